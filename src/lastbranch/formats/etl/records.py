"""Last branch records of a block: which event triggered each, and their entries.

A record comes behind its trigger on the same processor and has its time stamp: the newest sample or other event of the
kernel that does is it, whatever else stands between (stacks, or what interrupted the logging, have times of their own).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import Ints, insertion_points, offsets_of, ranges
from .columns import EventBlock
from .sample_cache import CACHE, cache_end

__all__ = ["CAN_TRIGGER", "IS_SAMPLE", "LBR", "PMC", "SAMPLED", "Records", "buffer_spans", "too_short"]

SAMPLED, PMC, LBR = 0x0F2E, 0x0F2F, 0x0C20
_STACK_WALK = 0x18

# By hook; the last place is that of -1, no hook.
IS_SAMPLE = np.zeros((1 << 16) + 1, bool)
IS_SAMPLE[[SAMPLED, PMC]] = True
CAN_TRIGGER = np.ones((1 << 16) + 1, bool)
CAN_TRIGGER[[LBR, -1]] = False
CAN_TRIGGER[_STACK_WALK << 8 : (_STACK_WALK + 1) << 8] = False

# Bytes of a payload before which nothing is to be had of it, and how many of its pointers are among them.
_LEAST = {SAMPLED: (8, 1), PMC: (8, 1), LBR: (20, 0), CACHE: (4, 0)}


def too_short(block: EventBlock) -> Ints:
    """Rows of the samples and records that end before the fields that they must have."""
    rows = np.flatnonzero(_LEAST_OF.take(block.kernel_hook))
    part = block.take(rows)
    least, pointers = _LEAST_OF.take(part.kernel_hook), _POINTERS_OF.take(part.kernel_hook)
    short = part.payload_size < least + pointers * part.pointer_size.astype(np.int64)
    several = np.flatnonzero((part.kernel_hook == CACHE) & ~short)
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
            for column in entries:
                column[places] = words.take(index)
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
