"""Samples, counter interrupts and last branch records of a block, as batches, and the intervals of profile sources.

The kernel logs a last branch record after its trigger, on the same processor and with its time stamp. The newest sample
or other kernel event for which both hold is the trigger, whatever lies between: stacks, and events that interrupted the
logging, have times of their own. A record joins the sample that triggered it. If another event did, or none is found,
the record is a row of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .... import native
from ....arrays import Ints, distinct, insertion_points, offsets_of, ranges
from ....model import (
    BRANCH,
    FRAME,
    KERNEL_HALF,
    KERNEL_HALF_32,
    MAX_ENTRIES,
    MAX_SAMPLES,
    Array,
    Mode,
    SampleBatch,
    column,
    concatenate,
    cuts,
)
from ..decode import Decoder
from ..events.columns import EventBlock, events_of
from ..kernel.hooks import LBR_SAMPLE, PMC_SAMPLE, SAMPLE_CACHE, SAMPLED_PROFILE, SET_INTERVAL, STACK_WALK
from .lbr_information import flags_of
from .stacks import Stacks
from .system import ThreadTable

__all__ = [
    "BranchRecords",
    "CarriedTriggers",
    "INTERVAL_HOOKS",
    "IntervalTable",
    "Intervals",
    "Sampler",
    "Triggers",
    "too_short",
    "trigger_candidates",
]


# -- The intervals that profile sources were programmed with over time, from the interval events of a log


INTERVAL_HOOKS = (0x0F49, SET_INTERVAL, 0x0F4A)
"""Intervals when the session starts, changes, intervals when it ends; events of one tick are in this order."""
_NUMBERS = 12  # bytes of a payload that ends before the name
_NAMELESS = 14  # bytes of a payload with an empty name


class Intervals(NamedTuple):
    """The intervals of a profile source, and the ticks (int64, ascending) from which each holds."""

    since: Ints
    interval: Ints

    @property
    def first(self) -> int:
        """The first interval; 0 where none is known."""
        return int(self.interval[0]) if len(self.interval) else 0


class IntervalTable:
    """The intervals of all profile sources of a log. The names of sources go to ``sources``."""

    def __init__(self, sources: dict[int, str]) -> None:
        self._sources = sources
        self._rows = [np.empty((0, 5), np.int64)]
        """Time, order within a tick, profile source, interval from then on, interval until then or 0."""
        self.short: Counter[int] = Counter()
        """By hook: events without all their numbers."""

    def gather(self, block: EventBlock, decoder: Decoder) -> None:
        """Add the interval events of ``block``; those without all their numbers are counted."""
        rows = np.flatnonzero(np.isin(block.kernel_hook, INTERVAL_HOOKS))
        if not len(rows):
            return
        whole = block.payload_size[rows] >= _NUMBERS
        self.short.update(block.kernel_hook[rows[~whole]].tolist())
        rows = rows[whole]
        if not len(rows):
            return
        part = block.take(rows)
        words = part.raw[part.payload[:, None] + np.arange(_NUMBERS)].view("<u4").astype(np.int64)
        words[part.kernel_hook != SET_INTERVAL, 2] = 0
        rank = np.argmax(part.kernel_hook[:, None] == INTERVAL_HOOKS, axis=1)
        self._rows.append(np.column_stack([part.time, rank, words]))
        named = np.flatnonzero(part.payload_size > _NAMELESS)
        known, first = np.unique(words[named, 0], return_index=True)
        names = (decoder.decode(event).fields.get("SourceName") for event in events_of(part.take(named[first])))
        self._sources.update({number: str(name) for number, name in zip(known.tolist(), names, strict=True) if name})

    def of(self, source: int, first: int, last: int) -> Intervals:
        """The intervals of a profile source from tick ``first`` to ``last``, in 100 ns for the timer, in events for the
        other sources; empty if the log has none."""
        table = np.concatenate(self._rows)
        table = table[table[:, 2] == source]
        if not len(table):
            return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
        table = table[np.lexsort((table[:, 1], table[:, 0]))]
        # Until the first event its OldInterval holds.
        time, interval = np.append(0, table[:, 0]), np.append(table[0, 4] or table[0, 3], table[:, 3])
        changes = np.append(True, interval[1:] != interval[:-1])
        time, interval = time[changes], interval[changes]
        begin = max(int(np.searchsorted(time, first, "right")) - 1, 0)
        past = max(int(np.searchsorted(time, last, "right")), begin + 1)
        return Intervals(time[begin:past], interval[begin:past])


# -- Samples and branch records


_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)


# -- Several samples in one event: PERFINFO_SAMPLED_PROFILE_CACHE (phnt's ntwmi.h)
#
# A u32 Entries, and that many samples as those of SampledProfile, at their alignment. Their time is that of the event:
# when the cache was full, or was flushed.


@dataclass(slots=True)
class CachedSamples:
    """The samples of all such events of a block, in file order.

    ``row`` int64: the event of the block. ``ip`` uint64, ``tid`` int64, ``count`` int64: how many interrupts it counts
    as. ``wide`` bool: of a 64-bit system.
    """

    row: Ints
    ip: NDArray[np.uint64]
    tid: Ints
    count: Ints
    wide: NDArray[np.bool_]

    @classmethod
    def of(cls, block: EventBlock) -> CachedSamples:
        """The samples of ``block``, in which no such event is shorter than `_cache_end` says."""
        events = np.flatnonzero(block.kernel_hook == SAMPLE_CACHE)
        part = block.take(events)
        step = 8 + part.pointer_size.astype(np.int64)
        number = _entries(part)
        at = np.repeat(part.payload + _cache_end(part) - number * step, number)
        at += ranges(np.zeros(len(events), np.int64), number) * np.repeat(step, number)
        halves = [block.raw[at[:, None] + np.arange(i, i + 4)].view("<u4")[:, 0].astype(np.uint64) for i in (0, 4, 8)]
        wide = np.repeat(part.pointer_size == 8, number)
        last = np.where(wide, at + 12, at + 8)
        count = block.raw[last[:, None] + np.arange(2)].view("<u2")[:, 0]
        ip = np.where(wide, halves[0] | halves[1] << _HIGH, halves[0])
        tid = np.where(wide, halves[2], halves[1]).astype(np.int64)
        return cls(np.repeat(events, number), ip, tid, count.astype(np.int64), wide)

    def __len__(self) -> int:
        return len(self.row)

    def slice(self, first: int, past: int) -> CachedSamples:
        part = slice(first, past)
        return CachedSamples(self.row[part], self.ip[part], self.tid[part], self.count[part], self.wide[part])


def _entries(part: EventBlock) -> Ints:
    return (part.words.take(part.payload >> 3, mode="clip") & _LOW).astype(np.int64)


def _cache_end(part: EventBlock) -> Ints:
    """Size of the payload of each of these events, by its number of samples."""
    pointer = part.pointer_size.astype(np.int64)
    step = 8 + pointer
    # After the u32 the samples are aligned, as far as is known, unless they fill the payload only without a gap.
    before = np.where((part.payload_size - 4) % step == 0, 4, pointer)
    end: Ints = before + _entries(part) * step
    return end


# -- Which events are samples, which can trigger, and which are too short

# By hook; the last place is that of -1, no hook.
_IS_SAMPLE = np.zeros((1 << 16) + 1, bool)
_IS_SAMPLE[[SAMPLED_PROFILE, PMC_SAMPLE]] = True
_CAN_TRIGGER = np.ones((1 << 16) + 1, bool)
_CAN_TRIGGER[[LBR_SAMPLE, -1]] = False
_CAN_TRIGGER[STACK_WALK << 8 : (STACK_WALK + 1) << 8] = False

_LEAST_OF, _POINTERS_OF = np.zeros((2, (1 << 16) + 1), np.int64)
"""Bytes of a payload without which nothing of it is readable, and how many pointers to add."""
_LEAST_OF[[SAMPLED_PROFILE, PMC_SAMPLE, LBR_SAMPLE, SAMPLE_CACHE]] = 8, 8, 20, 4
_POINTERS_OF[[SAMPLED_PROFILE, PMC_SAMPLE]] = 1


def too_short(block: EventBlock) -> Ints:
    """Rows of the samples and records that end before the fields that they must have."""
    rows = np.flatnonzero(_LEAST_OF.take(block.kernel_hook))
    part = block.take(rows)
    least, pointers = _LEAST_OF.take(part.kernel_hook), _POINTERS_OF.take(part.kernel_hook)
    short = part.payload_size < least + pointers * part.pointer_size.astype(np.int64)
    several = np.flatnonzero((part.kernel_hook == SAMPLE_CACHE) & ~short)
    if len(several):
        short[several] = part.payload_size[several] < _cache_end(part.take(several))
    return rows[short]


# -- Last branch records


@dataclass(slots=True)
class BranchRecords:
    """BranchRecords as columns, in file order.

    ``row`` int64: of the block. ``owner`` int64: the row of the sample that triggered it, else its own. ``hook`` int32:
    the hook id of the trigger, -1 without a trigger. ``first`` int64: byte position in ``raw`` of the newest entry;
    ``count`` int64: entries; ``pointer_size`` uint8. ``options``: the LBR configurations of all of them, or-ed.
    """

    row: Ints
    owner: Ints
    hook: NDArray[np.int32]
    first: Ints
    count: Ints
    pointer_size: NDArray[np.uint8]
    options: int

    @classmethod
    def of(cls, block: EventBlock) -> BranchRecords:
        rows = np.flatnonzero(block.kernel_hook == LBR_SAMPLE)
        part = block.take(rows)
        wide, size = part.pointer_size == 8, part.payload_size
        # 32-bit: entries of 12 bytes begin at 0x14, or after an unused u32 at 0x18, where whole ones fill the rest.
        before = np.where(wide | ((size - 20) % 12 != 0), 24, 20)
        count = np.maximum(size - np.where(wide, 24, 20), 0) // np.where(wide, 24, 12)
        options = int(np.bitwise_or.reduce(part.words.take((part.payload >> 3) + 2, mode="clip"))) & 0xFFFFFFFF
        return cls(rows, *_triggers(block, rows), part.payload + before, count, part.pointer_size, options)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, which: Any) -> BranchRecords:
        """The given records: an index array, a mask or a slice."""
        columns = ("row", "owner", "hook", "first", "count", "pointer_size")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})

    def by_owner(self) -> BranchRecords:
        """The same records, in the order of their owners."""
        ordered = bool((self.owner[1:] >= self.owner[:-1]).all())
        return self if ordered else self.take(np.argsort(self.owner, kind="stable"))

    def entries(self, block: EventBlock) -> NDArray[np.uint64]:
        """from, to and information of all entries, record after record, newest first: (3, n)."""
        entries = np.empty((3, int(self.count.sum())), np.uint64)
        library, address = native.library(), native.address
        if library is not None:
            first, count, size = map(np.ascontiguousarray, (self.first, self.count, self.pointer_size))
            records = address(first), address(count), address(size), len(self)
            out = address(entries), entries.shape[1]
            if library.lb_branch_entries(address(block.raw), len(block.raw), *records, *out) == 0:
                return entries
        return self._in_numpy(block, entries)

    def _in_numpy(self, block: EventBlock, entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
        offsets = offsets_of(self.count)
        for size, words in ((8, block.words), (4, block.raw.view(np.uint32))):
            mine = np.flatnonzero(self.pointer_size == size)
            if not len(mine):
                continue
            count = self.count[mine]
            index = ranges(self.first[mine] // size, count, step=3)
            places: Any = slice(None) if len(mine) == len(self) else ranges(offsets[mine], count)
            for entry in entries:
                entry[places] = words.take(index)
                index += 1
        return entries


def _buffer_spans(block: EventBlock) -> tuple[Ints, Ints, Ints]:
    """(buffer, first row, row after the last) of the buffers with events, by processor and in the order they were
    written."""
    first = np.flatnonzero(np.diff(block.buffer, prepend=-1))
    past, buffer = np.append(first[1:], len(block)), block.buffer[first].astype(np.int64)
    order = np.lexsort((block.window.buffers.sequence[buffer], block.window.buffers.cpu[buffer]))
    return buffer[order], first[order], past[order]


def _triggers(block: EventBlock, rows: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """`BranchRecords.owner` and `BranchRecords.hook` of the records ``rows``."""
    trigger = np.maximum(rows - 1, 0)
    # Mostly the trigger is the event before, in the same buffer.
    found = (rows > 0) & (block.buffer[trigger] == block.buffer[rows]) & (block.time[trigger] == block.time[rows])
    found &= _CAN_TRIGGER.take(block.kernel_hook[trigger])
    far = np.flatnonzero(~found)
    if len(far):
        trigger[far], found[far] = _distant_triggers(block, rows[far])
    hook = np.where(found, block.kernel_hook[trigger], np.int32(-1))
    return np.where(_IS_SAMPLE.take(hook), trigger, rows), hook


def _distant_triggers(block: EventBlock, rows: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """The row of the trigger of each record, and whether there is a trigger. Other events and other processors' buffers
    can lie between."""
    buffers, _, _ = _buffer_spans(block)
    rank = np.zeros(len(block.window.buffers.cpu), np.int64)
    rank[buffers] = np.arange(len(buffers))
    can = np.flatnonzero(_CAN_TRIGGER.take(block.kernel_hook) & np.isin(block.time, distinct(block.time[rows])))
    if not len(can):
        return rows, np.zeros(len(rows), bool)
    place, wanted = (rank[block.buffer[of]] * len(block) + of for of in (can, rows))
    order = np.lexsort((place, block.time[can]))
    can, place = can[order], place[order]
    newest = insertion_points(block.time[can], place, block.time[rows], wanted) - 1
    trigger = can[np.maximum(newest, 0)]
    same = (block.time[trigger] == block.time[rows]) & (block.cpu[trigger] == block.cpu[rows])
    return trigger, (newest >= 0) & same


# -- Triggers from one window to the next
#
# The newest few events of each processor in a window may have triggered a record that is still to come. Samples are
# held back until their records join; for other triggers the hook is enough.


_REACH = 16
"""How many events of a processor before the end of a window can be triggers of records in the next."""


@dataclass(slots=True)
class TriggerCandidates:
    """The newest events of a processor in a block: the ``rows`` of those that may be triggers, oldest first.

    ``after``: how many events of the processor follow each of them. ``count``: how many it has in the block.
    """

    rows: list[int]
    after: list[int]
    count: int


def trigger_candidates(block: EventBlock) -> dict[int, TriggerCandidates]:
    """The last event of each processor that has events in ``block``."""
    found: dict[int, tuple[list[int], int]] = {}
    for buffer, first, past in zip(*(part.tolist() for part in _buffer_spans(block)), strict=True):
        cpu = int(block.window.buffers.cpu[buffer])
        rows, count = found.get(cpu, ([], 0))
        found[cpu] = [*rows, *range(max(first, past - _REACH), past)][-_REACH:], count + past - first
    candidates = {}
    for cpu, (rows, count) in found.items():
        may = [(row, len(rows) - 1 - i) for i, row in enumerate(rows) if _CAN_TRIGGER[block.kernel_hook[row]]]
        candidates[cpu] = TriggerCandidates([row for row, _ in may], [after for _, after in may], count)
    return candidates


@dataclass(slots=True)
class _Trigger:
    """An event of an earlier window. ``number``: its place among the events of its processor. ``row``: the sample, if
    it is held back."""

    number: int
    time: int
    hook: int
    row: SampleBatch | None


class CarriedTriggers:
    """Triggers from one window to the next."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._triggers: dict[int, list[_Trigger]] = {}

    def _find(self, cpu: int, time: int) -> _Trigger | None:
        """The newest of the processor with that time."""
        return next((t for t in reversed(self._triggers.get(cpu, ())) if t.time == time), None)

    def complete(self, block: EventBlock, records: BranchRecords) -> NDArray[np.bool_]:
        """Find the triggers of ``records`` without a trigger in their block, and set their hooks in place.

        Returns which of them `join` has to attach to samples.
        """
        late = np.zeros(len(records), bool)
        if (records.hook >= 0).all():
            return late
        time = block.time[records.row]
        known = [t.time for triggers in self._triggers.values() for t in triggers]
        for i in np.flatnonzero((records.hook < 0) & np.isin(time, known)).tolist():
            trigger = self._find(int(block.cpu[records.row[i]]), int(time[i]))
            if trigger is not None:
                records.hook[i], late[i] = trigger.hook, trigger.row is not None
        return late

    def join(self, records: SampleBatch) -> None:
        """Attach the entries of ``records``, as `complete` returned them, to their samples."""
        for i, (cpu, time) in enumerate(zip(records.cpu.tolist(), records.time.tolist(), strict=True)):
            trigger = self._find(cpu, time)
            if trigger is not None and trigger.row is not None:
                both = concatenate([trigger.row, records.slice(i, i + 1)])
                row = trigger.row = both.slice(0, 1)
                row.columns |= {name: both[name] for name in both.columns if column(name).group == BRANCH}
                row.offsets[BRANCH] = both.offsets[BRANCH][[0, 2]]

    def follow(
        self, block: EventBlock, candidates: dict[int, TriggerCandidates], held: dict[int, SampleBatch]
    ) -> list[SampleBatch]:
        """Go on to the next window: its ``candidates`` and, by row of the block, the samples that are ``held`` back.

        Returns the samples that wait no longer.
        """
        done = []
        for cpu, now in candidates.items():
            count = self._count[cpu] = self._count.get(cpu, 0) + now.count
            triggers = self._triggers.get(cpu, [])
            for row, after in zip(now.rows, now.after, strict=True):
                number = count - 1 - after
                triggers.append(_Trigger(number, int(block.time[row]), int(block.kernel_hook[row]), held.get(row)))
            done += [t.row for t in triggers if t.number < count - _REACH and t.row is not None]
            self._triggers[cpu] = [t for t in triggers if t.number >= count - _REACH]
        return done

    def rest(self) -> Iterator[SampleBatch]:
        """The samples that are still held back after the last window."""
        for triggers in self._triggers.values():
            yield from (t.row for t in triggers if t.row is not None)
        self._triggers.clear()


# -- Batches


_RANK = {"source": 0, "hook": 1, "none": 2}
_NO_THREAD = 1 << 32  # no thread's id
_ENTRY = ("branch_from", "branch_to", "branch_info", "branch_flags")


@dataclass(slots=True)
class Triggers:
    """Rows of the events table: (kind, number) -> row, in the order of their first events.

    Kinds: "source" (a profile source), "hook" (another kernel event), "none" (a branch record without a trigger).
    """

    rows: dict[tuple[str, int], int] = field(default_factory=dict)

    def row(self, kind: str, number: int) -> int:
        return self.rows.setdefault((kind, number), len(self.rows))


class Sampler:
    """Samples of one pass over a log, window by window.

    Optional columns are those that are ``wanted``; column ``frame`` only with ``stacks``. Rows come in file order, but
    rows that wait for their record at the end of a window come with the next window. ``size`` is that of the file: no
    record follows its end. ``changing``: the intervals of profile sources whose samples have periods of their own.
    ``extended``: whether the log declares extended Information words.

    State of all blocks so far. ``counted``: whether a sample counts as several (Count); ``recorded``: whether there was
    a record; ``options``: the LBR configurations of all records; ``short``: by hook, events that end before their
    required fields.
    """

    def __init__(
        self,
        size: int,
        triggers: Triggers,
        threads: ThreadTable,
        stacks: Stacks | None,
        wanted: frozenset[str] | None,
        changing: Mapping[int, Intervals] | None = None,
        *,
        extended: bool = False,
    ) -> None:
        self._changing, self._extended = changing or {}, extended
        self._triggers, self._threads, self._wanted = triggers, threads, wanted
        self._stacks = stacks if self._wants(FRAME) else None
        self._carried, self._size = CarriedTriggers(), size
        self.counted = self.recorded = False
        self.options = 0
        self.short: Counter[int] = Counter()

    def _wants(self, *names: str) -> bool:
        return self._wanted is None or not self._wanted.isdisjoint(names)

    def of(self, block: EventBlock) -> Iterator[SampleBatch]:
        """The rows of ``block``, and rows that wait no longer; no batch is empty.

        Take them before the next block.
        """
        short = too_short(block)
        if len(short):
            self.short.update(block.kernel_hook[short].tolist())
            block = block.take(np.delete(np.arange(len(block)), short))
        records, candidates = BranchRecords.of(block), trigger_candidates(block)
        if len(records):
            self.recorded, self.options = True, self.options | records.options
        late = self._carried.complete(block, records)
        if late.any():
            self._carried.join(self._batch(block, records.row[late], records.take(late)))
            records = records.take(~late)
        records = records.by_owner()
        is_row = _IS_SAMPLE.take(block.kernel_hook)
        is_row[records.row[records.owner == records.row]] = True
        waiting = self._waiting_rows(block, candidates)
        waits = np.zeros(len(block), bool)
        waits[waiting] = True
        held = self._batch(block, waiting, records.take(waits[records.owner]))
        of_row = {row: held.slice(i, i + 1) for i, row in enumerate(waiting.tolist())}
        yield from self._finish(self._carried.follow(block, candidates, of_row))
        if len(waiting):
            is_row[waiting] = False
            records = records.take(~waits[records.owner])
        rows = np.flatnonzero(is_row)
        for lo, hi in cuts(np.cumsum(_depth(rows, records)), MAX_ENTRIES):
            mine = slice(*np.searchsorted(records.owner, (rows[lo], rows[hi - 1] + 1)))
            yield from self._finish([self._batch(block, rows[lo:hi], records.take(mine))])
        cached = CachedSamples.of(block)
        for lo in range(0, len(cached), MAX_SAMPLES):
            yield from self._finish([self._cached_batch(block, cached.slice(lo, lo + MAX_SAMPLES))])

    def rest(self) -> Iterator[SampleBatch]:
        """The rows that are held back at the end of the log."""
        yield from self._finish(self._carried.rest())

    def _finish(self, batches: Iterable[SampleBatch]) -> Iterator[SampleBatch]:
        kept = [batch for batch in batches if len(batch)]
        if not kept:
            return
        batch = concatenate(kept)
        if self._stacks is not None:
            offsets, frames = self._stacks.find(batch.time, np.where(self._has_stack(batch), batch.tid, _NO_THREAD))
            batch.columns["frame"], batch.offsets[FRAME] = frames, offsets
        yield batch

    def _has_stack(self, batch: SampleBatch) -> NDArray[np.bool_]:
        """Which rows may have a call stack: no record without a trigger; and a single event of a thread at a time,
        preferably a sample."""
        kind = np.array([_RANK[kind] for kind, _ in self._triggers.rows] or [0])[batch.event]
        order = np.lexsort((kind, batch.tid, batch.time))
        time, tid = batch.time[order], batch.tid[order]
        first = np.ones(len(batch), bool)
        first[order[1:]] = (time[1:] != time[:-1]) | (tid[1:] != tid[:-1])
        return np.asarray((kind == _RANK["source"]) | (first & (kind == _RANK["hook"])))

    def _waiting_rows(self, block: EventBlock, candidates: dict[int, TriggerCandidates]) -> Ints:
        """The rows of the samples whose records may still come, ascending."""
        buffers = block.window.buffers
        if buffers.offset[-1] + buffers.length[-1] >= self._size:
            return np.empty(0, np.int64)
        rows = np.array(sorted(row for now in candidates.values() for row in now.rows), np.int64)
        return rows[_IS_SAMPLE.take(block.kernel_hook[rows])]

    def _batch(self, block: EventBlock, rows: Ints, records: BranchRecords) -> SampleBatch:
        """The events ``rows``, ascending, with the entries of ``records``, which are theirs and in their order."""
        part = block.take(rows)
        wide, is_lbr, is_pmc = part.pointer_size == 8, part.kernel_hook == LBR_SAMPLE, part.kernel_hook == PMC_SAMPLE
        first, second = (part.words.take((part.payload >> 3) + i, mode="clip") for i in range(2))
        ip = np.where(wide, first, first & _LOW)
        low = np.where(wide, second & _LOW, first >> _HIGH)
        number = (np.where(wide, second >> _HIGH, second) & np.uint64(0xFFFF)).astype(np.int64)
        tid = np.where(is_lbr, second >> _HIGH, low).astype(np.int64)
        pid = np.where(is_lbr, (second & _LOW).astype(np.int64), self._threads.pid(tid, part.time))
        if len(records) and (pid < 0).any():  # no thread event names the process: the sample's record does
            mine = np.searchsorted(rows, records.owner)
            recorded = block.words.take((block.payload[records.row] >> 3) + 1) & _LOW
            pid[mine] = np.where(pid[mine] < 0, recorded.astype(np.int64), pid[mine])
        source = np.where(is_pmc, number, np.where(is_lbr, -1, 0))
        columns = self._columns(part, ip, wide, pid, tid, source, np.where(is_lbr | is_pmc, 1, number))
        columns["ip"][is_lbr], columns["mode"][is_lbr] = 0, Mode.UNKNOWN
        hook, own = records.hook[records.owner == records.row], np.flatnonzero(is_lbr)
        # Records of samples in earlier windows are about to join them.
        for one in distinct(hook[~_IS_SAMPLE.take(hook)]).tolist():
            columns["event"][own[hook == one]] = self._triggers.row(*(("hook", one) if one >= 0 else ("none", 0)))
        if self._wants(*_ENTRY):
            entries = records.entries(block)
            columns |= zip(_ENTRY, entries, strict=False)
            if self._wants("branch_flags"):
                narrow = np.repeat(records.pointer_size == 4, records.count)
                columns["branch_flags"] = flags_of(entries[2], narrow, extended=self._extended)
        return SampleBatch(columns, {BRANCH: offsets_of(_depth(rows, records))})

    def _cached_batch(self, block: EventBlock, samples: CachedSamples) -> SampleBatch:
        """A row for each of ``samples``."""
        part, none = block.take(samples.row), np.zeros(len(samples), np.int64)
        pid = self._threads.pid(samples.tid, part.time)
        columns = self._columns(part, samples.ip, samples.wide, pid, samples.tid, none, samples.count)
        if self._wants(*_ENTRY):
            names = _ENTRY if self._wants("branch_flags") else _ENTRY[:3]
            columns |= {name: np.empty(0, np.uint64) for name in names}
        return SampleBatch(columns, {BRANCH: np.zeros(len(samples) + 1, np.int64)})

    def _columns(
        self, part: EventBlock, ip: Array, wide: Array, pid: Ints, tid: Ints, source: Ints, count: Ints
    ) -> dict[str, Array]:
        """The columns of samples of ``source`` (-1: of none), each of which counts as ``count``."""
        self.counted |= bool((count > 1).any())
        kernel = ip >= np.where(wide, np.uint64(KERNEL_HALF), np.uint64(KERNEL_HALF_32))
        event = np.zeros(len(part), np.int32)
        for number in distinct(source[source >= 0]).tolist():
            event[source == number] = self._triggers.row("source", number)
        columns: dict[str, Array] = {
            "time": part.time.copy(),
            "ip": ip,
            "pid": pid.astype(np.int32),
            "tid": tid.astype(np.int32),
            "cpu": part.cpu.copy(),
            "event": event,
            "period": self._periods(source, part.time, count),
            "mode": np.where(kernel, Mode.KERNEL, Mode.USER).astype(np.uint8),
        }
        if self._wants("position"):
            start = part.window.buffers.offset.take(part.buffer) - part.window.start.take(part.buffer)
            columns["position"] = start + part.at * 8  # in a compressed buffer: as if it were decompressed
        return columns

    def _periods(self, source: Ints, time: Ints, count: Ints) -> NDArray[np.uint64]:
        """The period of each event: the interval of its source at its time, times its ``count``. It is 0 for sources
        that are not in ``changing``, whose period is in the events table."""
        period = np.zeros(len(source), np.uint64)
        for number, (since, interval) in self._changing.items():
            mine = np.flatnonzero(source == number)
            here = np.maximum(np.searchsorted(since, time[mine], "right") - 1, 0)
            period[mine] = interval[here] * np.maximum(count[mine], 1)
        return period


def _depth(rows: Ints, records: BranchRecords) -> Ints:
    """How many entries each of the ``rows`` has, which own all ``records``."""
    depth = np.zeros(len(rows), np.int64)
    np.add.at(depth, np.searchsorted(rows, records.owner), records.count)
    return depth
