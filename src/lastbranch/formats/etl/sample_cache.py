"""Samples that the kernel logs several at a time: PERFINFO_SAMPLED_PROFILE_CACHE (phnt's ntwmi.h), hook 0x0F37.

A u32 Entries, and that many samples as those of SampledProfile, at their alignment. They have no time of their own but
that of the event: when the cache was full, or was flushed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...arrays import Ints, ranges
from .columns import EventBlock

__all__ = ["CACHE", "CachedSamples", "cache_end"]

CACHE = 0x0F37
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
        events = np.flatnonzero(block.kernel_hook == CACHE)
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
