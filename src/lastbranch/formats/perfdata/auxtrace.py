"""AUX areas of a perf.data: what the records about them say, and the samples that an Arm SPE trace holds.

AUXTRACE_INFO names the trace, AUXTRACE records carry its bytes, and AUX records say what became of each stretch of it.
Sources: tools/lib/perf/include/perf/event.h and include/uapi/linux/perf_event.h of Linux; for the words of
AUXTRACE_INFO tools/perf/util/arm-spe.h. Traces other than Arm SPE are not decoded: `TRACES` names them, and perf's
manual pages the commands that do it (perf-intel-pt(1); coresight.rst of Linux, "Using perf tools").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct, offsets_of
from ...errors import Damage
from ...model import BRANCH, Array, Change, Profile, SampleBatch, Source, read_at
from .attr import Attr

if TYPE_CHECKING:
    from .spe import DecodedTrace, Operations

__all__ = ["ARM_SPE", "COLUMNS", "TRACES", "AuxTrace", "Counts", "Trace"]


class Trace(NamedTuple):
    """The tracer. ``stacks``: the command that makes branch stacks of it, empty where there is none."""

    name: str
    stacks: str = ""


ARM_SPE = 4
TRACES = {
    1: Trace("Intel PT", "perf inject -i perf.data -o branches.data --itrace=i100usl --strip"),
    2: Trace("Intel BTS"),
    3: Trace("CoreSight ETM", "perf inject -i perf.data -o branches.data --itrace=i100000il64 --strip"),
    ARM_SPE: Trace("Arm SPE"),
    5: Trace("s390 CPU-measurement sampling"),
    6: Trace("HiSilicon PTT"),
    7: Trace("VPA dispatch trace log"),
}
"""enum auxtrace_type."""

COLUMNS = (
    "position", "previous_target", "addr", "phys_addr", "weight", "issue_latency", "translation_latency", "operation",
    "operation_events", "operation_source", "branch_from", "branch_to", "branch_flags",
)  # fmt: skip
"""Optional columns of the samples of an Arm SPE trace."""

_TRUNCATED, _PARTIAL, _COLLISION = 1, 4, 8  # PERF_AUX_FLAG_*
_LOST = {
    _TRUNCATED: "stretches of the AUX area that were cut short",
    _PARTIAL: "stretches of the AUX area with gaps",
    _COLLISION: "stretches of the AUX area with dropped operations",
}
_PIECE = 1 << 20
"""Bytes that are decoded at once."""
_MOST_OFFSET = 1 << 60
_MOST_NAMED = 100
_DYNAMIC = 6
"""The first perf_event_attr.type that is not fixed: those of sysfs."""
_CPU_MAGIC = 0x1010101010101010


class _AuxBlock(NamedTuple):
    """An AUXTRACE record: ``ring`` is its offset in the AUX area, ``at`` and ``size`` are its bytes in the file."""

    at: int
    size: int
    ring: int
    stream: int
    tid: int
    cpu: int


class _Stretch(NamedTuple):
    """An AUX record: bytes ``begin:end`` of the AUX area were complete at ``time``."""

    begin: int
    end: int
    flags: int
    time: int


@dataclass(slots=True)
class Counts:
    """The facts that the index pass found in the trace, as for other samples."""

    samples: int = 0
    entries: int = 0
    earliest: list[int] = field(default_factory=list)
    latest: int | None = None
    threads: set[tuple[int, int]] = field(default_factory=set)


class AuxTrace:
    """The AUX areas of a file. Handlers of records add to the trace; once prepared, the trace gives its samples again
    and again."""

    def __init__(self) -> None:
        self.kind = 0
        """Of `TRACES`; 0 where there is none."""
        self.bytes = 0
        self._priv: list[int] = []
        self._blocks: list[_AuxBlock] = []
        self._stretches: dict[tuple[str, int], list[_Stretch]] = defaultdict(list)
        self._started: list[tuple[int, int, int, int]] = []  # time, cpu, pid, tid
        self._conversion: dict[str, int] | None = None
        self._threads: dict[int, tuple[Array, Array]] = {}
        self._running: dict[int, tuple[Array, Array]] = {}
        self._events: dict[int, int] = {}
        self._event = self._period = self._start = 0

    # -- records

    def information(self, fields: dict[str, Any]) -> None:
        """AUXTRACE_INFO."""
        self.kind = fields["type"]
        self._priv = [*fields["priv"]]

    def conversion(self, fields: dict[str, Any]) -> None:
        """TIME_CONV."""
        self._conversion = fields

    def stretch(self, fields: dict[str, Any], trailer: dict[str, int], profile: Profile, times: int) -> None:
        """AUX, with its sample_id trailer."""
        for bit, name in _LOST.items():
            if fields["flags"] & bit:
                profile.lost[name] = profile.lost.get(name, 0) + times
        begin, size = fields["aux_offset"], fields["aux_size"]
        if max(begin, size) > _MOST_OFFSET:
            raise ValueError(f"bytes {begin:#x} and {size:#x} more of an AUX area")
        one = _Stretch(begin, begin + size, fields["flags"], trailer.get("time", 0))
        for key in (("cpu", trailer.get("cpu", -1)), ("tid", trailer.get("tid", -1))):
            self._stretches[key].append(one)

    def started(self, fields: dict[str, Any], trailer: dict[str, int]) -> None:
        """ITRACE_START, or what says alike that a thread runs: a SWITCH to it."""
        self._started.append((trailer.get("time", 0), trailer.get("cpu", -1), fields["pid"], fields["tid"]))

    def block(self, fields: dict[str, Any], at: int, size: int) -> None:
        """AUXTRACE, whose bytes are at ``at`` of the file."""
        if fields["offset"] > _MOST_OFFSET:
            raise ValueError(f"offset {fields['offset']:#x} in an AUX area")
        self.bytes += size
        self._blocks.append(_AuxBlock(at, size, fields["offset"], fields["idx"], fields["tid"], fields["cpu"]))

    # -- once all records are known

    @property
    def decoded(self) -> bool:
        """Whether its bytes are samples."""
        return self.kind == ARM_SPE and bool(self._blocks)

    @property
    def events(self) -> list[int]:
        """Rows of the events that its samples can be of."""
        return sorted({self._event, *self._events.values()})

    @property
    def weight(self) -> int:
        """Bytes that this takes, about."""
        return 200 * len(self._blocks) + 400 * sum(map(len, self._stretches.values())) + 150 * len(self._started)

    def prepare(self, profile: Profile, attrs: list[Attr]) -> None:
        """Learn of threads and events from the rest of the file."""
        of_type = [i for i, a in enumerate(attrs) if a.fields["type"] in self._priv and a.fields["type"] >= _DYNAMIC]
        dynamic = [i for i, a in enumerate(attrs) if a.fields["type"] >= _DYNAMIC]
        named = [i for i, a in enumerate(attrs) if a.name.startswith("arm_spe")]
        self._event = next(iter(named + of_type + dynamic), 0)
        self._period = attrs[self._event].fields["sample_period"]
        self._events = {cpu: i for cpu, kind in self._pmus() for i, a in enumerate(attrs) if a.fields["type"] == kind}
        self._start = profile.start or 0
        changes = profile.timeline.columns()
        known = np.isin(changes["kind"], (Change.FORK, Change.NAME, Change.EXEC, Change.MAP))
        known &= (changes["tid"] >= 0) & (changes["pid"] >= 0)
        started = np.array(sorted(self._started), np.int64).reshape(-1, 4)
        time, tid, pid = (
            np.concatenate([changes[name][known], started[:, column]])
            for name, column in (("time", 0), ("tid", 3), ("pid", 2))
        )
        self._threads = _by_key(tid, time, pid)
        self._running = _by_key(started[:, 1], started[:, 0], started[:, 3])
        for name in self._stretches:
            self._stretches[name].sort()

    def _pmus(self) -> Iterator[tuple[int, int]]:
        """(cpu, type of its PMU), where AUXTRACE_INFO lists processors: machines with cores of several kinds."""
        for at, word in enumerate(self._priv):
            if word == _CPU_MAGIC and at + 4 < len(self._priv):
                yield self._priv[at + 1], self._priv[at + 4]

    def count(self, source: Source, damage: list[Damage]) -> Counts:
        """Decode the whole trace: its content, and its damage."""
        out = Counts()
        for batch in self._decode(source, damage):
            out.samples += len(batch)
            out.entries += batch.entries
            out.earliest.append(int(batch.time.min()))
            latest = int(batch.time.max())
            out.latest = latest if out.latest is None else max(out.latest, latest)
            pairs = distinct(batch.pid.astype(np.int64) << 32 | batch.tid.astype(np.int64) & 0xFFFFFFFF).tolist()
            out.threads |= {(pair >> 32, ((pair & 0xFFFFFFFF) ^ 1 << 31) - (1 << 31)) for pair in pairs}
        return out

    def batches(
        self, source: Source, wanted: frozenset[str] | None, later: NDArray[np.int64]
    ) -> Iterator[tuple[SampleBatch, int]]:
        """(samples, watermark) of all of it, piece after piece; ``later``: the watermark after each piece."""
        for number, piece in enumerate(self._decode(source, None)):
            parts = [*piece.split()]
            rest = int(later[number])
            ends = [int(part.time.min()) for part in parts]
            for i, part in enumerate(parts):
                columns = {n: c for n, c in part.columns.items() if wanted is None or n in wanted or n not in _SPARED}
                yield SampleBatch(columns, part.offsets), min([rest, *ends[i + 1 :]])

    # -- samples

    def _decode(self, source: Source, damage: list[Damage] | None) -> Iterator[SampleBatch]:
        """The samples of each piece that has some."""
        for block, at, found in self._pieces(source, damage):
            if len(found.operations):
                yield self._batch(block, at, found.operations)

    def _pieces(self, source: Source, damage: list[Damage] | None) -> Iterator[tuple[_AuxBlock, int, DecodedTrace]]:
        """(block, offset in the file, what is there) of all bytes, a piece at a time.

        A record that is cut by the end of a block continues in the next block of the same AUX area, if that block
        begins with the next byte. No record goes on where the processor or the kernel stopped early.
        """
        from .spe import LONGEST, decode  # which few captures need

        held: dict[int, tuple[int, bytes]] = {}
        broken = 0
        follows = self._followers()
        for number, block in enumerate(self._blocks):
            breaks = self._breaks(block)
            ring, rest = held.pop(block.stream, (-1, b""))
            rest = rest if ring == block.ring else b""
            end = min(block.size, max(source.size - block.at, 0))
            bounds = [*(b - block.ring for b in breaks if b - block.ring < end), end]
            start = 0
            for bound in bounds:
                closed = bound < end or number not in follows
                while start < bound or rest:
                    size = min(_PIECE, bound - start)
                    data = rest + read_at(source, block.at + start, size)
                    at, ring = block.at + start - len(rest), block.ring + start - len(rest)
                    start += size
                    found = decode(data, ring, last=(closed and start == bound) or len(data) > size + LONGEST)
                    rest = data[found.used :]
                    if found.first >= 0 and damage is not None:
                        if broken < _MOST_NAMED:
                            reason = (
                                f"SPE packets are damaged: {found.damaged} bytes skipped"
                                if found.damaged
                                else "SPE records that begin or end in the middle"
                            )
                            damage.append(Damage(reason, at + found.first, "records", found.fragments, found.damaged))
                        broken += 1
                    yield block, at, found
                    if start == bound:
                        break
            held[block.stream] = block.ring + block.size, rest

    def _followers(self) -> set[int]:
        """Which blocks are followed by one that goes on where they end."""
        begins = {(b.stream, b.ring) for b in self._blocks}
        return {i for i, b in enumerate(self._blocks) if (b.stream, b.ring + b.size) in begins}

    def _breaks(self, block: _AuxBlock) -> list[int]:
        """Places in the AUX area, inside of ``block``, where recording stopped early."""
        return sorted(
            {
                s.end
                for s in self._stretches_of(block)
                if s.flags & (_TRUNCATED | _PARTIAL) and block.ring < s.end < block.ring + block.size
            }
        )

    def _stretches_of(self, block: _AuxBlock) -> list[_Stretch]:
        key = ("cpu", block.cpu) if block.cpu >= 0 else ("tid", block.tid)
        return self._stretches.get(key, [])

    def _batch(self, block: _AuxBlock, at: int, operations: Operations) -> SampleBatch:
        from .spe import entries_of, modes_of

        n, entries = len(operations), entries_of(operations)
        time = self._times(block, at, operations)
        tid = self._tids(block, operations, time)
        none = np.zeros(n, np.uint64)
        branch = entries.branch
        columns: dict[str, Array] = {
            "time": time,
            "ip": entries.ip,
            "pid": self._pids(tid, time),
            "tid": tid,
            "cpu": np.full(n, block.cpu, np.int32),
            "event": np.full(n, self._events.get(block.cpu, self._event), np.int32),
            "period": none + np.uint64(self._period),
            "mode": modes_of(operations),
            "position": operations.position + at,
            "previous_target": entries.previous,
            "addr": entries.addr,
            "phys_addr": operations["phys_addr"] & np.uint64((1 << 56) - 1),
            "weight": operations["total"].astype(np.uint64),
            "issue_latency": operations["issue"].astype(np.uint64),
            "translation_latency": operations["translation"].astype(np.uint64),
            "operation": np.where(operations.has["operation"], operations["operation"], np.uint16(0xFFFF)).astype(
                np.uint64
            ),
            "operation_events": operations["events"],
            "operation_source": operations["source"].astype(np.uint64),
            "branch_from": entries.ip[branch],
            "branch_to": entries.target[branch],
            "branch_flags": entries.flags[branch],
        }
        return SampleBatch(columns, {BRANCH: offsets_of(branch.astype(np.int64))})

    def _times(self, block: _AuxBlock, at: int, operations: Operations) -> NDArray[np.int64]:
        """ns on perf's clock. An operation without a time has the previous operation's time; if no operation in the
        piece has a time, all have the time of the AUX record that announced the piece."""
        stretches = self._stretches_of(block)
        ends = np.array([s.end for s in stretches] or [0], np.int64)
        announced = np.array([s.time for s in stretches] or [self._start], np.int64)
        ring = operations.position + (at - block.at + block.ring)
        out = announced[np.minimum(np.searchsorted(ends, ring, side="right"), len(ends) - 1)]
        timed = operations.has["time"]
        if self._conversion is None or not timed.any():
            return out
        before = np.maximum.accumulate(np.where(timed, np.arange(len(timed)), -1))
        return self._convert(operations["time"])[np.where(before < 0, timed.argmax(), before)]

    def _convert(self, ticks: Array) -> NDArray[np.int64]:
        """The arithmetic of struct perf_event_mmap_page: all modulo 2**64."""
        c = {name: np.uint64(value & (1 << 64) - 1) for name, value in (self._conversion or {}).items()}
        if c.get("cap_user_time_short"):
            ticks = c["time_cycles"] + ((ticks - c["time_cycles"]) & c["time_mask"])
        shift = np.uint64(min(int(c["time_shift"]), 63))
        rest = ticks & ((np.uint64(1) << shift) - np.uint64(1))
        whole = (ticks >> shift) * c["time_mult"] + (rest * c["time_mult"] >> shift)
        ns: NDArray[np.int64] = (whole + c["time_zero"]).view(np.int64)
        return ns

    def _tids(self, block: _AuxBlock, operations: Operations, time: NDArray[np.int64]) -> NDArray[np.int32]:
        """The thread: of the host's context, the guest's, the area's, or what ran on the processor then."""
        has = operations.has
        tid = np.full(len(operations), block.tid, np.int64)
        if block.tid < 0:
            times, tids = self._running.get(block.cpu, (np.empty(0, np.int64), np.empty(0, np.int64)))
            if len(times):
                tid = tids[np.maximum(np.searchsorted(times, time, side="right") - 1, 0)]
        tid = np.where(has["el1"], operations["el1"], tid)
        tid = np.where(has["el2"], operations["el2"], tid)
        return tid.astype(np.int64).astype(np.int32)

    def _pids(self, tid: NDArray[np.int32], time: NDArray[np.int64]) -> NDArray[np.int32]:
        """The process that each thread belonged to at its time; -1 where the file does not say."""
        out = np.full(len(tid), -1, np.int32)
        for one in distinct(tid).tolist():
            mine = tid == one
            known = self._threads.get(one)
            if known is None:
                out[mine] = 0 if one == 0 else -1
                continue
            times, pids = known
            out[mine] = pids[np.maximum(np.searchsorted(times, time[mine], side="right") - 1, 0)]
        return out


_SPARED = frozenset(COLUMNS) - {"previous_target", "branch_from", "branch_to", "branch_flags"}
"""Columns that nobody gets unasked."""


def _by_key(key: Array, time: Array, value: Array) -> dict[int, tuple[Array, Array]]:
    """(times, values) in time order for each key."""
    order = np.lexsort((time, key))
    key, time, value = key[order], time[order], value[order]
    bounds = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(key)]
    return {int(key[lo]): (time[lo:hi], value[lo:hi]) for lo, hi in pairwise(bounds) if hi > lo}
