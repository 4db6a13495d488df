"""The frames of stacks: in memory, then where they stand in the log, or if that is not plain, in a temporary file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import Ints, in_groups, offsets_of, ranges, take_ranges
from ...model import Array, Source
from .columns import EventBlock
from .layout import BUFFER_FLAG
from .spool import Spool

__all__ = ["Frames", "pointers"]

_NEAR = 512  # words between two stacks in a log that are rather read with them


def pointers(block: EventBlock, at: Array, count: Array, size: int) -> NDArray[np.uint64]:
    """``count[i]`` pointers of ``size`` bytes from byte ``at[i]`` of the block on, one after the other."""
    words: Array = block.words if size == 8 else block.raw.view(np.uint32)
    return take_ranges(words, at // size, count).astype(np.uint64, copy=False)


class Frames:
    """Frames by where they are: from 0 on those kept here, below 0 (-1 is word 0) those left in ``source``.

    ``limit``: bytes that are held in memory, about.
    """

    def __init__(self, source: Source, limit: int) -> None:
        self._source, self._limit = source, limit
        self.spool = Spool(np.uint64, limit)
        self._left = False

    def __bool__(self) -> bool:
        return self._left or len(self.spool) > 0

    def add(self, block: EventBlock, at: Ints, count: Ints, size: int) -> Ints:
        """Where the ``count`` frames of each event, which begin at byte ``at`` of the block, are from now on."""
        if size == 8 and 8 * (len(self.spool) + int(count.sum())) > self._limit:
            buffers = block.window.buffers
            place = at + (buffers.offset - block.window.start).take(block.buffer)
            if not (buffers.flags & BUFFER_FLAG.COMPRESSED).any() and not (place & 7).any():
                self._left |= bool(count.any())
                return np.asarray(-1 - (place >> 3))
        return self.spool.append(pointers(block, at, count, size)) + offsets_of(count)[:-1]

    def take(self, at: Ints, count: Ints) -> NDArray[np.uint64]:
        """Those of stacks one after the other. Of a log that has become shorter, 0 for what is gone."""
        left = at < 0
        if not left.any():
            return self.spool.take(at, count)
        first = -1 - at[left]
        if left.all():
            return in_groups(self._read, first, count, _NEAR)
        frames, begin = np.empty(int(count.sum()), np.uint64), offsets_of(count)[:-1]
        frames[ranges(begin[left], count[left])] = in_groups(self._read, first, count[left], _NEAR)
        frames[ranges(begin[~left], count[~left])] = self.spool.take(at[~left], count[~left])
        return frames

    def _read(self, first: Ints, past: Ints) -> NDArray[np.uint64]:
        offsets = offsets_of(past - first) * 8
        words = np.zeros(int(offsets[-1]) >> 3, np.uint64)
        memory: Any = memoryview(words.view(np.uint8))  # type: ignore[arg-type]
        for at, low, high in zip(first.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            self._source.readinto(at * 8, memory[low:high])
        return words
