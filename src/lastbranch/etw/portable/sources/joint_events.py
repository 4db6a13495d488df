"""Kernel events that several tracepoints make together: begin and end of a request, or the addresses of a socket.

A `TracepointFollower` gets the samples of its tracepoints row by row in the order of time, keeps its state between
samples, and logs events. The follower sees all rows of a round before the events of that round are written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from ....capture.perf_events.linux_kernel import Kernel
from ....formats.etl import Event, kernel_event
from ....formats.etl.kernel.hooks import STACK_WALK
from ....formats.etl.profile.sample_events import frames_of
from ....model import SampleBatch
from .event_words import Events, Ints, count_unwritten, encoded, shown_hook
from .kinds import Raw

__all__ = ["Feed", "Row", "TracepointFollower", "signed"]

_POINTER = 8
_STACK = 0x20
_U32 = 0xFFFFFFFF


class Feed(NamedTuple):
    """The samples of one tracepoint in a round, at ``ticks`` of the session."""

    tracepoint: str
    batch: SampleBatch
    ticks: Ints
    raw: Raw


class Row(NamedTuple):
    """One sample. ``values`` are the fields of its tracepoint: numbers, or bytes of arrays.

    ``pid`` and ``tid`` are u32, as payloads have them: 0xFFFFFFFF for a thread that has ended.
    """

    tracepoint: str
    time: int
    cpu: int
    pid: int
    tid: int
    values: dict[str, Any]
    frames: list[int]


class TracepointFollower:
    """Makes the events of ``kinds`` (`enable_map`); those of ``stack_hooks`` have call stacks."""

    needs: ClassVar[dict[str, tuple[str, ...]]]
    """Kind -> its tracepoints."""
    fields: ClassVar[dict[str, tuple[str, ...]]]
    """Tracepoint -> fields of it that are numbers, and with a leading * those that are arrays."""
    hooks: ClassVar[frozenset[int]]
    """The kernel events that it makes."""

    def __init__(self, kernel: Kernel) -> None:
        self.kinds: frozenset[str] = frozenset()
        self.stack_hooks: Collection[int] = ()
        self.kernel = kernel
        self._events: list[Event] = []
        self._unwritten: Counter[str] = Counter()

    @classmethod
    def filter(cls, kinds: frozenset[str], machine: str) -> str:
        """The filter of its tracepoints for ``kinds`` on a ``machine`` (``uname -m``). `EtwError` 50 for an unknown
        machine."""
        return ""

    @abstractmethod
    def row(self, row: Row) -> None:
        """Take the next sample."""

    def whole_round(self, rows: Sequence[Row]) -> None:
        """Called with all rows of a round before the first of them is taken."""

    def end_round(self) -> None:
        """Called after the last row of a round."""

    def begin(self, now: int) -> Events:
        """Events about what exists at ``now`` (ticks)."""
        return self._taken()

    def end(self, now: int) -> Events:
        """Events about what still exists at ``now`` (ticks)."""
        return self._taken()

    def events(self, feeds: Sequence[Feed]) -> Events:
        """The events of a round. A row that cannot be handled counts as an event that could not be written."""
        rows = sorted((row for feed in feeds for row in self._rows(feed)), key=lambda row: row.time)
        about = type(self).__name__
        try:
            self.whole_round(rows)
        except Exception as error:  # here and below: rows come from any program, and none may end the source
            count_unwritten(self._unwritten, about, error, 0)
        for row in rows:
            try:
                self.row(row)
            except Exception as error:
                count_unwritten(self._unwritten, row.tracepoint, error)
        try:
            self.end_round()
        except Exception as error:
            count_unwritten(self._unwritten, about, error)
        return self._taken()

    def _rows(self, feed: Feed) -> Iterator[Row]:
        names = self.fields[feed.tracepoint]
        columns = [feed.raw.array(name[1:]) if name.startswith("*") else feed.raw[name].tolist() for name in names]
        keys = [name.lstrip("*") for name in names]
        batch = feed.batch
        offsets, frames = frames_of(batch)
        ids = (feed.ticks.tolist(), batch.cpu.tolist(), batch.pid.tolist(), batch.tid.tolist())
        for i, (time, cpu, pid, tid) in enumerate(zip(*ids, strict=True)):
            values = {key: column[i] for key, column in zip(keys, columns, strict=True)}
            chain = frames[offsets[i] : offsets[i + 1]].tolist()
            yield Row(feed.tracepoint, time, cpu, pid & _U32, tid & _U32, values, chain)

    def log(
        self, key: tuple[int, int], row: Row, version: int, fields: dict[str, Any], time: int | None = None
    ) -> None:
        """Log an event of the thread and processor of ``row``, at its time or at ``time``."""
        at = row.time if time is None else time
        self._add(key, at, version, fields, row)
        if row.frames and key[0] << 8 | key[1] in self.stack_hooks:
            stack = {"EventTimeStamp": at, "ProcessID": row.pid, "ThreadID": row.tid, "Addresses": row.frames}
            self._add((STACK_WALK, _STACK), at, 2, stack, row)

    def log_at(self, key: tuple[int, int], time: int, version: int, fields: dict[str, Any]) -> None:
        """Log an event that belongs to no thread."""
        self._add(key, time, version, fields)

    def _add(
        self, key: tuple[int, int], time: int, version: int, fields: dict[str, Any], row: Row | None = None
    ) -> None:
        """Numbers come from any program: where a number does not fit, the event has its low bits."""
        try:
            event = kernel_event(key, time, _POINTER, fields, version=version, cut=True)
        except Exception as error:
            count_unwritten(self._unwritten, shown_hook(key[0] << 8 | key[1]), error)
            return
        if row is not None:
            event.pid, event.tid, event.cpu = signed(row.pid), signed(row.tid), row.cpu
        self._events.append(event)

    def _taken(self) -> Events:
        made, self._events = self._events, []
        found = Events.joined([encoded([e for e in made if e.cpu == cpu], cpu) for cpu in {e.cpu for e in made}])
        found.unwritten += self._unwritten
        self._unwritten = Counter()
        return found


def signed(number: int) -> int:
    """The low 32 bits as an int of C: -1 for 0xFFFFFFFF, as headers of events and registers have it."""
    return (number & 0xFFFFFFFF) - ((number & 0x80000000) << 1)
