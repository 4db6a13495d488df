"""Last branch records of a block: which event triggered each, and their entries.

A record comes behind its trigger on the same processor and has its time stamp: the newest sample or other event of the
kernel that does is it, whatever else stands between (stacks, or what interrupted the logging, have times of their own).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, insertion_points, offsets_of, ranges
from ....model import BRANCH, SampleBatch, column, concatenate
from ..events.columns import EventBlock

__all__ = [
    "CachedSamples", "Carry", "IS_SAMPLE", "LBR", "Newest", "PMC", "Records", "SAMPLED", "SAMPLE_CACHE",
    "newest_events", "rows_of", "too_short",
]  # fmt: skip


# -- Samples that the kernel logs several at a time: PERFINFO_SAMPLED_PROFILE_CACHE (phnt's ntwmi.h), hook 0x0F37
#
# A u32 Entries, and that many samples as those of SampledProfile, at their alignment. They have no time of their own
# but that of the event: when the cache was full, or was flushed.


SAMPLE_CACHE = 0x0F37
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)


@dataclass(slots=True)
class CachedSamples:
    """The samples of all such events of a block, in file order.

    ``row`` int64: the event of the block. ``ip`` uint64, ``tid`` int64, ``count`` int64: how many interrupts it stands
    for. ``wide`` bool: of a 64-bit system.
    """

    row: Ints
    ip: NDArray[np.uint64]
    tid: Ints
    count: Ints
    wide: NDArray[np.bool_]

    @classmethod
    def of(cls, block: EventBlock) -> CachedSamples:
        """Of ``block``, in which no such event is shorter than `cache_end` says."""
        events = np.flatnonzero(block.kernel_hook == SAMPLE_CACHE)
        part = block.take(events)
        step = 8 + part.pointer_size.astype(np.int64)
        number = _entries(part)
        at = np.repeat(part.payload + cache_end(part) - number * step, number)
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


def cache_end(part: EventBlock) -> Ints:
    """Bytes of the payload of each of these events with all its samples, if they begin where they can."""
    pointer = part.pointer_size.astype(np.int64)
    step = 8 + pointer
    # Behind the u32 they are aligned, as far as is known; where they only come out even right behind it, there.
    before = np.where((part.payload_size - 4) % step == 0, 4, pointer)
    end: Ints = before + _entries(part) * step
    return end


SAMPLED, PMC, LBR = 0x0F2E, 0x0F2F, 0x0C20
_STACK_WALK = 0x18

# By hook; the last place is that of -1, no hook.
IS_SAMPLE = np.zeros((1 << 16) + 1, bool)
IS_SAMPLE[[SAMPLED, PMC]] = True
CAN_TRIGGER = np.ones((1 << 16) + 1, bool)
CAN_TRIGGER[[LBR, -1]] = False
CAN_TRIGGER[_STACK_WALK << 8 : (_STACK_WALK + 1) << 8] = False

# Bytes of a payload before which nothing is to be had of it, and how many of its pointers are among them.
_LEAST = {SAMPLED: (8, 1), PMC: (8, 1), LBR: (20, 0), SAMPLE_CACHE: (4, 0)}


def too_short(block: EventBlock) -> Ints:
    """Rows of the samples and records that end before the fields that they must have."""
    rows = np.flatnonzero(_LEAST_OF.take(block.kernel_hook))
    part = block.take(rows)
    least, pointers = _LEAST_OF.take(part.kernel_hook), _POINTERS_OF.take(part.kernel_hook)
    short = part.payload_size < least + pointers * part.pointer_size.astype(np.int64)
    several = np.flatnonzero((part.kernel_hook == SAMPLE_CACHE) & ~short)
    if len(several):
        short[several] = part.payload_size[several] < cache_end(part.take(several))
    return rows[short]


_LEAST_OF, _POINTERS_OF = np.zeros((2, (1 << 16) + 1), np.int64)
for _hook, _needs in _LEAST.items():
    _LEAST_OF[_hook], _POINTERS_OF[_hook] = _needs


@dataclass(slots=True)
class Records:
    """Records as columns, in file order.

    ``row`` int64: of the block. ``owner`` int64: the row of the sample that triggered it, else its own. ``hook`` int32:
    that of the event that triggered it, -1: there is none.
    ``first`` int64: byte position in ``raw`` of the newest entry; ``count`` int64: entries; ``pointer_size`` uint8.
    ``options``: the flags of all of them and of those they were taken of.
    """

    row: Ints
    owner: Ints
    hook: NDArray[np.int32]
    first: Ints
    count: Ints
    pointer_size: NDArray[np.uint8]
    options: int

    @classmethod
    def of(cls, block: EventBlock) -> Records:
        rows = np.flatnonzero(block.kernel_hook == LBR)
        part = block.take(rows)
        wide, size = part.pointer_size == 8, part.payload_size
        # 32-bit: entries of 12 bytes begin at 0x14, or behind a u32 that is not used, at 0x18: the one that comes out
        # even.
        before = np.where(wide | ((size - 20) % 12 != 0), 24, 20)
        count = np.maximum(size - np.where(wide, 24, 20), 0) // np.where(wide, 24, 12)
        options = int(np.bitwise_or.reduce(part.words.take((part.payload >> 3) + 2, mode="clip"))) & 0xFFFFFFFF
        return cls(rows, *_triggers(block, rows), part.payload + before, count, part.pointer_size, options)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, which: Any) -> Records:
        """The given records: an index array, a mask or a slice."""
        columns = ("row", "owner", "hook", "first", "count", "pointer_size")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})

    def by_owner(self) -> Records:
        """The same records, those of one sample together."""
        ordered = bool((self.owner[1:] >= self.owner[:-1]).all())
        return self if ordered else self.take(np.argsort(self.owner, kind="stable"))

    def entries(self, block: EventBlock) -> NDArray[np.uint64]:
        """from, to and information of all entries, record after record, newest first: (3, n)."""
        offsets = offsets_of(self.count)
        entries = np.empty((3, offsets[-1]), np.uint64)
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


def buffer_spans(block: EventBlock) -> tuple[Ints, Ints, Ints]:
    """(buffer, first row, row behind the last) of the buffers with events, by processor and in the order they were
    written."""
    first = np.flatnonzero(np.diff(block.buffer, prepend=-1))
    past, buffer = np.append(first[1:], len(block)), block.buffer[first].astype(np.int64)
    order = np.lexsort((block.window.buffers.sequence[buffer], block.window.buffers.cpu[buffer]))
    return buffer[order], first[order], past[order]


def _triggers(block: EventBlock, rows: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """`Records.owner` and `Records.hook` of the records ``rows``."""
    trigger = np.maximum(rows - 1, 0)
    # Mostly the trigger is the event before, in the same buffer.
    found = (rows > 0) & (block.buffer[trigger] == block.buffer[rows]) & (block.time[trigger] == block.time[rows])
    found &= CAN_TRIGGER.take(block.kernel_hook[trigger])
    far = np.flatnonzero(~found)
    if len(far):
        trigger[far], found[far] = _distant_triggers(block, rows[far])
    hook = np.where(found, block.kernel_hook[trigger], np.int32(-1))
    return np.where(IS_SAMPLE.take(hook), trigger, rows), hook


def _distant_triggers(block: EventBlock, rows: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """The row of the trigger of each record, and whether there is one: events can stand between, and buffers of one
    processor apart."""
    buffers, _, _ = buffer_spans(block)
    rank = np.zeros(len(block.window.buffers.cpu), np.int64)
    rank[buffers] = np.arange(len(buffers))
    can = np.flatnonzero(CAN_TRIGGER.take(block.kernel_hook) & np.isin(block.time, np.unique(block.time[rows])))
    if not len(can):
        return rows, np.zeros(len(rows), bool)
    place, wanted = (rank[block.buffer[of]] * len(block) + of for of in (can, rows))
    order = np.lexsort((place, block.time[can]))
    can, place = can[order], place[order]
    newest = insertion_points(block.time[can], place, block.time[rows], wanted) - 1
    trigger = can[np.maximum(newest, 0)]
    same = (block.time[trigger] == block.time[rows]) & (block.cpu[trigger] == block.cpu[rows])
    return trigger, (newest >= 0) & same


# -- What a window leaves to the next: the events that may have triggered a record which is still to come
#
# Of each processor the newest few count. The samples among them are held back, for their records to join them; of the
# others the hook is enough.


REACH = 16
"""So many events of its processor before the end of a window a trigger is still found for a record of the next."""


@dataclass(slots=True)
class Newest:
    """The newest events of a processor in a block: the ``rows`` of those that may be triggers, oldest first.

    ``count``: events that the processor has there, of all kinds. ``behind``: how many of them stand behind each row.
    """

    rows: list[int]
    behind: list[int]
    count: int


def newest_events(block: EventBlock) -> dict[int, Newest]:
    """Of each processor that has events in ``block``."""
    found: dict[int, tuple[list[int], int]] = {}
    for buffer, first, past in zip(*(part.tolist() for part in buffer_spans(block)), strict=True):
        cpu = int(block.window.buffers.cpu[buffer])
        rows, count = found.get(cpu, ([], 0))
        found[cpu] = [*rows, *range(max(first, past - REACH), past)][-REACH:], count + past - first
    newest = {}
    for cpu, (rows, count) in found.items():
        may = [(row, len(rows) - 1 - i) for i, row in enumerate(rows) if CAN_TRIGGER[block.kernel_hook[row]]]
        newest[cpu] = Newest([row for row, _ in may], [behind for _, behind in may], count)
    return newest


@dataclass(slots=True)
class _Trigger:
    """An event of the past. ``number``: its place among the events of its processor. ``row``: it, if it is held."""

    number: int
    time: int
    hook: int
    row: SampleBatch | None


class Carry:
    """Triggers from one window to the next."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._triggers: dict[int, list[_Trigger]] = {}

    def _find(self, cpu: int, time: int) -> _Trigger | None:
        """The newest of the processor with that time."""
        return next((t for t in reversed(self._triggers.get(cpu, ())) if t.time == time), None)

    def complete(self, block: EventBlock, records: Records) -> NDArray[np.bool_]:
        """Look here for the triggers of those ``records`` that have none in their block. Their hooks are set in place;
        the result: whether `join` is to give them to samples."""
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
        """Give the entries of ``records``, for which `complete` said so, to their samples."""
        for i, (cpu, time) in enumerate(zip(records.cpu.tolist(), records.time.tolist(), strict=True)):
            trigger = self._find(cpu, time)
            if trigger is not None and trigger.row is not None:
                both = concatenate([trigger.row, records.slice(i, i + 1)])
                row = trigger.row = both.slice(0, 1)
                row.columns |= {name: both[name] for name in both.columns if column(name).group == BRANCH}
                row.offsets[BRANCH] = both.offsets[BRANCH][[0, 2]]

    def follow(self, block: EventBlock, newest: dict[int, Newest], held: dict[int, SampleBatch]) -> list[SampleBatch]:
        """Take in a window with its ``newest`` events and, by row of the block, those that are ``held``. Gives the rows
        that are done."""
        done = []
        for cpu, now in newest.items():
            count = self._count[cpu] = self._count.get(cpu, 0) + now.count
            triggers = self._triggers.get(cpu, [])
            for row, behind in zip(now.rows, now.behind, strict=True):
                number = count - 1 - behind
                triggers.append(_Trigger(number, int(block.time[row]), int(block.kernel_hook[row]), held.get(row)))
            done += [t.row for t in triggers if t.number < count - REACH and t.row is not None]
            self._triggers[cpu] = [t for t in triggers if t.number >= count - REACH]
        return done

    def rest(self) -> Iterator[SampleBatch]:
        """What is still held, when there are no more windows."""
        for triggers in self._triggers.values():
            yield from (t.row for t in triggers if t.row is not None)
        self._triggers.clear()


def rows_of(newest: dict[int, Newest]) -> Ints:
    """All rows of ``newest``, ascending."""
    return np.array(sorted(row for now in newest.values() for row in now.rows), np.int64)
