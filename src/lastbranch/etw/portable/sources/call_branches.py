"""Branch records that the software LBR made before system calls. The process that records the kernel's events joins
each record to the event that triggers the record.

A burst that ended at a system call has the newest branches before it. Once the thread enters the call, its record is
sent on its way, with that time. The first SysCallEnter (0x0F33) of the thread from then on is the event of that call.
The first CSwitch (0x0524) at which the thread waits, before it leaves the call, is the event of a wait in the call. The
record is written behind the event, as a record of its own with the time of the event.

The events are ready before the records are. So they are held back until the recording has said that no older record
follows, at most for `PATIENCE`.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....arrays import offsets_of
from ....capture.perf_events.linux_kernel import Kernel
from ....errors import FormatError
from ....formats.etl.profile.sample_events import PeriodEncoding, Trigger
from ....model import BRANCH, Array, SampleBatch
from .event_words import Events, Ints, Words, of_samples
from .kinds import KINDS, read_tracepoint
from .perf_records import FOREVER

__all__ = ["MOST_ROWS", "CallBranches", "CallRecords", "check_tracepoints", "records_of"]


ENTER, CSWITCH = 0x0F33, 0x0524
MOST_ROWS = 1000
"""Rows of one message: each has up to 32 branches."""
PATIENCE = 2_000_000_000
"""ns that events wait for records; what comes later has no trigger any more."""
_HEAD = struct.Struct("<qII")
_ROW = np.dtype([("time", "<i8"), ("pid", "<i4"), ("tid", "<i4"), ("depth", "<u4"), ("unused", "<u4")])
_WAITS = 0x03
"""Bits of prev_state of sched_switch: interruptible, uninterruptible. A thread that a tracer stops has others."""


def check_tracepoints(hooks: Sequence[int], call: str) -> None:
    """Whether the times of the events of ``hooks`` that records are joined to can be known here. `EtwError` 50 or 1314
    for a tracepoint that is not there, or may not be read."""
    kernel = Kernel()
    for kind in (KINDS["enter"], KINDS["switch"]):
        if kind.hook in hooks:
            read_tracepoint(kernel, kind.tracepoint, call)


@dataclass(slots=True)
class CallRecords:
    """Rows of (time, process, thread, branches): a system call that was entered, or, without branches, the end of one.

    ``rows`` as `_ROW`; ``entries`` u64 (n, 3): from, to and flag words, newest first. ``until``: no row before this
    time (ns) follows. ``options``: the EVNTRACE_LBR_FLAGS.
    """

    until: int
    options: int = 0
    rows: np.ndarray[tuple[int], np.dtype[np.void]] = field(default_factory=lambda: np.empty(0, _ROW))
    entries: Words = field(default_factory=lambda: np.empty((0, 3), np.uint64))

    def encode(self) -> bytes:
        """The body of a BRANCHES message."""
        return _HEAD.pack(self.until, self.options, len(self.rows)) + self.rows.tobytes() + self.entries.tobytes()

    @classmethod
    def decode(cls, body: bytes) -> CallRecords:
        """The records of a message. `FormatError` for anything else."""
        if len(body) < _HEAD.size:
            raise FormatError("a message of branch records is too short", offset=0, field="length", value=len(body))
        until, options, number = _HEAD.unpack_from(body)
        end = _HEAD.size + number * _ROW.itemsize
        rows = np.frombuffer(body[_HEAD.size : end], _ROW) if end <= len(body) else np.empty(0, _ROW)
        if len(rows) != number or len(body) - end != 24 * int(rows["depth"].sum()):
            raise FormatError("branch records do not fit their message", offset=12, field="rows", value=number)
        return cls(until, options, rows, np.frombuffer(body[end:], np.uint64).reshape(-1, 3))


def records_of(batches: Sequence[SampleBatch], until: int, options: int) -> Iterator[CallRecords]:
    """The samples of system calls as messages, the last of which says that none before ``until`` (ns) follows."""
    for batch in batches:
        offsets = batch.offsets.get(BRANCH, np.zeros(len(batch) + 1, np.int64))
        columns = [batch["branch_from"], batch["branch_to"], batch["branch_flags"]] if int(offsets[-1]) else []
        entries = np.stack(columns, axis=1) if columns else np.empty((0, 3), np.uint64)
        rows = np.zeros(len(batch), _ROW)
        rows["time"], rows["pid"], rows["tid"], rows["depth"] = batch.time, batch.pid, batch.tid, np.diff(offsets)
        for first in range(0, len(rows), MOST_ROWS):
            past = min(first + MOST_ROWS, len(rows))
            yield CallRecords(0, options, rows[first:past], entries[offsets[first] : offsets[past]])
    yield CallRecords(until, options)


@dataclass(slots=True)
class _Untriggered:
    """A record without its trigger so far. ``end`` (ns): the thread was in the call before it."""

    time: int
    pid: int
    options: int
    entries: Words
    end: int = FOREVER


class CallBranches:
    """Records that wait for events of ``hooks``."""

    def __init__(self) -> None:
        self.hooks: tuple[int, ...] = ()
        self._waiting: dict[int, dict[int, list[_Untriggered]]] = {
            ENTER: defaultdict(list),
            CSWITCH: defaultdict(list),
        }
        """Hook -> thread -> records, in the order of time."""
        self._complete = FOREVER
        self._came = 0

    def use(self, hooks: tuple[int, ...]) -> None:
        """Join records to events of ``hooks`` from now on."""
        self.hooks = hooks
        for hook in set(self._waiting) - set(hooks):
            self._waiting[hook].clear()

    def take(self, body: bytes, now: int) -> None:
        """Take a BRANCHES message, ``now`` (ns). `FormatError` for a damaged one."""
        records = CallRecords.decode(body)
        if records.until:
            self._complete, self._came = records.until, now
        ends = np.cumsum(records.rows["depth"])
        for (time, pid, tid, depth, _), end in zip(records.rows.tolist(), ends.tolist(), strict=True):
            for hook in self.hooks:
                waiting = self._waiting[hook][tid]
                if depth:
                    waiting.append(_Untriggered(time, pid, records.options, records.entries[end - depth : end]))
                elif waiting:
                    waiting[-1].end = time

    def limit(self, now: int) -> int:
        """Events before this time (ns) have all their records."""
        return min(now, self._complete) if self.hooks and now - self._came < PATIENCE else now

    def following(self, hook: int, batch: SampleBatch, ns: Ints, ticks: Ints, state: Ints | None) -> Events:
        """The records that the events of ``hook`` trigger, each with the time and processor of its event.

        ``batch``: the samples that become the events, at ``ns`` and, in the session's clock, ``ticks``. ``state``: of
        context switches, prev_state of the thread.
        """
        rows, found = self._match(hook, batch.tid.astype(np.int64), ns, state)
        if not rows:
            return Events.join([])
        at = np.array(rows, np.int64)
        depth = np.array([len(one.entries) for one in found], np.int64)
        entries = np.concatenate([one.entries for one in found])
        none = np.zeros(len(at), np.uint64)
        columns: dict[str, Array] = {
            "time": ticks[at],
            "ip": none,
            "pid": np.array([one.pid for one in found], np.int32),
            "tid": batch.tid[at],
            "cpu": batch.cpu[at],
            "event": np.arange(len(at), dtype=np.int32),
            "period": none,
            "mode": none.astype(np.uint8),
            "branch_from": entries[:, 0].copy(),
            "branch_to": entries[:, 1].copy(),
            "branch_flags": entries[:, 2].copy(),
        }
        records = SampleBatch(columns, {BRANCH: offsets_of(depth)})
        one = np.ones(len(at), np.int64)
        periods = PeriodEncoding(one, one, one, np.zeros(len(at), bool), 0)
        return of_samples(records, ticks[at], [Trigger(options=one.options) for one in found], periods, batch.cpu[at])

    def _may_come(self, hook: int, record: _Untriggered) -> bool:
        """Whether its trigger may come yet: a wait may begin late, but the event of the call itself follows at once."""
        return hook == CSWITCH or record.time > min(self._complete, self._came) - PATIENCE

    def _match(self, hook: int, tid: Ints, ns: Ints, state: Ints | None) -> tuple[list[int], list[_Untriggered]]:
        """(row of each trigger, its record)."""
        waiting = self._waiting[hook]
        order = np.lexsort((ns, tid))
        if state is not None:
            order = order[state[order] & _WAITS > 0]
        threads = tid[order]
        rows: list[int] = []
        found: list[_Untriggered] = []
        for thread in list(waiting):
            first, past = np.searchsorted(threads, [thread, thread + 1]).tolist()
            mine = order[first:past]
            times = ns[mine]
            left: list[_Untriggered] = []
            for one, following in zip(waiting[thread], [*waiting[thread][1:], None], strict=True):
                end = one.end if following is None else min(one.end, following.time)
                place = int(np.searchsorted(times, one.time))
                if place < len(times) and times[place] < end:
                    rows.append(int(mine[place]))
                    found.append(one)
                elif following is None and one.end == FOREVER and self._may_come(hook, one):
                    left.append(one)
            if left:
                waiting[thread] = left
            else:
                del waiting[thread]
        return rows, found
