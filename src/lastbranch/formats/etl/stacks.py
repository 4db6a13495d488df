"""Call stacks: gathered in a first pass, joined to samples in the second.

A stack is an event of its own that carries the time stamp and the thread of the event it belongs to: directly as
addresses (0x1820), or as a key (0x1825 kernel part, 0x1826 user part) whose addresses stand in a definition (0x1822 to
0x1824) that may come thousands of events later. A key can be used again for another stack after its definition was
evicted, so a reference belongs to the first definition of its key at or after it, else to the last one before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...model import Array
from .columns import EventBlock

__all__ = ["DEFINITIONS", "REFERENCES", "STACK", "Stacks"]

STACK = 0x1820
DEFINITIONS = (0x1822, 0x1823, 0x1824)
REFERENCES = (0x1825, 0x1826)
_NO_FRAMES = np.empty(0, np.uint64)


def _pointers(block: EventBlock, at: Array, count: Array, size: int) -> NDArray[np.uint64]:
    """``count[i]`` pointers of ``size`` bytes from byte ``at[i]`` of the block on, one after the other."""
    words: Array = block.words if size == 8 else block.raw.view(np.uint32)
    ends = np.cumsum(count)
    index = np.repeat(at // size - (ends - count), count) + np.arange(ends[-1] if len(ends) else 0)
    return words.take(index).astype(np.uint64)


class _Ragged:
    """Frames one after the other, with the length of each stack."""

    def __init__(self) -> None:
        self.lengths: list[Array] = []
        self.frames: list[NDArray[np.uint64]] = []
        self.count = 0

    def add(self, lengths: Array, frames: NDArray[np.uint64]) -> int:
        """Row of the first of the new stacks."""
        row = self.count
        self.lengths.append(lengths)
        self.frames.append(frames)
        self.count += len(lengths)
        return row


class Stacks:
    """All call stacks of a log. `gather` each block, `finish`, then `find`."""

    def __init__(self) -> None:
        self._stacks = _Ragged()
        self._definitions: list[tuple[Array, Array, Array]] = []  # key, time, row
        self._references: list[tuple[Array, Array, Array, Array]] = []  # time, tid, part, key or row
        self.joined = 0
        self.offsets = np.zeros(1, np.int64)
        self.frames = _NO_FRAMES

    def gather(self, block: EventBlock) -> None:
        """Take the stack events of ``block``."""
        hook = block.hook
        group = np.flatnonzero((hook >> 8) == STACK >> 8)
        if not len(group):
            return
        for size in (8, 4):
            mine = group[block.pointer_size[group] == size]
            if len(mine):
                part = block.take(mine)
                for hooks, take in ((DEFINITIONS, self._define), (REFERENCES, self._refer), ((STACK,), self._direct)):
                    rows = np.flatnonzero(np.isin(part.hook, hooks))
                    if len(rows):
                        take(part.take(rows), size)

    def _define(self, block: EventBlock, size: int) -> None:
        count = np.maximum(block.payload_size // size - 1, 0)
        key = _pointers(block, block.payload, np.ones(len(block), np.int64), size)
        row = self._stacks.add(count, _pointers(block, block.payload + size, count, size))
        self._definitions.append((key, block.time.copy(), row + np.arange(len(block))))

    def _refer(self, block: EventBlock, size: int) -> None:
        whole = block.take(block.payload_size >= 16 + size)
        time, tid = self._whose(whole)
        key = _pointers(whole, whole.payload + 16, np.ones(len(whole), np.int64), size)
        part = np.where(whole.hook == REFERENCES[0], 0, 2)
        self._references.append((time, tid, part, key))

    def _direct(self, block: EventBlock, size: int) -> None:
        whole = block.take(block.payload_size >= 16)
        count = (whole.payload_size - 16) // size
        time, tid = self._whose(whole)
        row = self._stacks.add(count, _pointers(whole, whole.payload + 16, count, size))
        rows = (row + np.arange(len(whole))).astype(np.uint64)
        self._references.append((time, tid, np.full(len(whole), 1), rows))

    @staticmethod
    def _whose(block: EventBlock) -> tuple[Array, Array]:
        """Time stamp and thread of the event that a stack belongs to: u64 time, u32 pid, u32 tid."""
        at = block.payload >> 3
        time = block.words.take(at).view(np.int64)
        if block.rules.to_log is not None:
            time = block.rules.to_log(time)
        return time, (block.words.take(at + 1) >> np.uint64(32)).astype(np.int64)

    def finish(self) -> None:
        """Resolve keys and sort the references; afterwards nothing more is gathered."""
        lengths = np.concatenate([np.empty(0, np.int64), *self._stacks.lengths])
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.frames = np.concatenate([_NO_FRAMES, *self._stacks.frames])
        self._stacks = _Ragged()
        empty = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))
        time, tid, part, key = (np.concatenate(c) for c in zip(empty, *((r) for r in self._references), strict=True))
        row = np.where(part == 1, key.view(np.int64), -1)
        keyed = np.flatnonzero(part != 1)
        row[keyed] = self._resolve(key[keyed], time[keyed])
        known = row >= 0
        self.unresolved = int((~known).sum())
        time, tid, part, row = time[known], tid[known], part[known], row[known]
        order = np.lexsort((part, tid, time))
        self._time, self._tid, self._row = time[order], tid[order], row[order]
        self._definitions, self._references = [], []

    def _resolve(self, key: Array, time: Array) -> NDArray[np.int64]:
        out = np.full(len(key), -1, np.int64)
        if not self._definitions:
            return out
        d_key, d_time, d_row = (np.concatenate(c) for c in zip(*self._definitions, strict=True))
        order = np.lexsort((d_time, d_key))
        d_key, d_time, d_row = d_key[order], d_time[order], d_row[order]
        distinct, first = np.unique(d_key, return_index=True)
        last = np.append(first[1:], len(d_key)) - 1
        where = np.minimum(np.searchsorted(distinct, key), len(distinct) - 1)
        known = distinct[where] == key
        # Rank of (key, time) among definitions: both sorted together, by position of the key and then by time.
        ranks = _search_pairs(np.searchsorted(distinct, d_key), d_time, where, time)
        out[known] = d_row[np.clip(ranks, first[where], last[where])][known]
        return out

    def find(self, time: NDArray[np.int64], tid: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """(offsets, frames): the call chain of each sample, kernel part first; empty where there is none."""
        lo, hi = np.searchsorted(self._time, time, "left"), np.searchsorted(self._time, time, "right")
        parts: list[tuple[Array, Array]] = []  # samples, stack rows
        for step in range(int((hi - lo).max(initial=0))):
            at = lo + step
            inside = np.flatnonzero(at < hi)
            mine = inside[self._tid[at[inside]] == tid[inside]]
            if len(mine):
                parts.append((mine, self._row[at[mine]]))
        if not parts:
            return np.zeros(len(time) + 1, np.int64), _NO_FRAMES
        sample, row = (np.concatenate(c) for c in zip(*parts, strict=True))
        self.joined += len(row)
        order = np.argsort(sample, kind="stable")
        sample, row = sample[order], row[order]
        length = self.offsets[row + 1] - self.offsets[row]
        ends = np.cumsum(length)
        frames = self.frames.take(np.repeat(self.offsets[row] - (ends - length), length) + np.arange(ends[-1]))
        per_sample = np.bincount(sample, weights=length, minlength=len(time)).astype(np.int64)
        return np.concatenate([[0], np.cumsum(per_sample)]), frames


def _search_pairs(a: Array, b: Array, wanted_a: Array, wanted_b: Array) -> NDArray[np.int64]:
    """Left insertion points of pairs in the sorted pairs ``(a, b)``."""
    both_a, both_b = np.concatenate([wanted_a, a]), np.concatenate([wanted_b, b])
    order = np.lexsort((np.arange(len(both_a)), both_b, both_a))  # at equal pairs the wanted ones come first
    stands = np.cumsum(order >= len(wanted_a))
    out = np.empty(len(wanted_a), np.int64)
    mine = order < len(wanted_a)
    out[order[mine]] = stands[mine]
    return out
