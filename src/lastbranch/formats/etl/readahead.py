"""Reading a file window by window, the next one while this one is worked on."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ...model import Source

__all__ = ["FEW_LANES", "PAD", "ReadAhead", "keep_freed_memory", "pad_for"]

PAD = (1 << 20) + (1 << 16)
"""Bytes behind the last buffer that the walk may look at, see `walk`."""

FEW_LANES = 40
"""So many buffers are walked one after the other, and never left: then `pad_for` needs room for header fields only."""

_KEPT = 31 << 20


def pad_for(buffers: int) -> int:
    """Bytes that an array with so many buffers needs behind the last one."""
    return PAD if buffers > FEW_LANES else 256


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks of up to 31 MiB for the next request instead of giving them back.

    Every window makes arrays of some MB, and fetching their pages from the system anew took 40 % of the time of a
    pass. Freeing a mapped block raises the size from which blocks are mapped to its own (mallopt(3), M_MMAP_THRESHOLD:
    "dynamic threshold"), up to 32 MiB. Elsewhere this does nothing.
    """
    np.empty(_KEPT, np.uint8)


class ReadAhead:
    """Two buffers: while one is worked on, a thread fills the other from where the next window will probably begin.

    Only where a file can be read at an offset without moving its position: else the thread could get in the way of
    whoever reads the file meanwhile.
    """

    def __init__(self, source: Source, size: int, stride: int, *, ahead: bool, sparse: bool) -> None:
        self.source, self.size, self.stride, self.sparse = source, size, stride, sparse
        self.data = bytearray(size + PAD)
        self._other: bytearray | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: tuple[int, Future[int]] | None = None
        if ahead and not sparse and source.size > 2 * size and hasattr(os, "preadv"):
            self._other = bytearray(size + PAD)
            self._pool = ThreadPoolExecutor(1)

    def fill(self, offset: int) -> int:
        """Have ``data`` hold the file from ``offset`` on; the number of bytes."""
        got = self._take(offset)
        if self._pool is not None and self._other is not None and offset + got < self.source.size:
            following = offset + (got // self.stride * self.stride)
            other = memoryview(self._other)[: self.size]
            self._ahead = (following, self._pool.submit(self.source.readinto, following, other))
        return got

    def _take(self, offset: int) -> int:
        if self._ahead is not None:
            begin, future = self._ahead
            self._ahead = None
            got = future.result()
            if begin == offset and self._other is not None:
                self.data, self._other = self._other, self.data
                return got
        memory = memoryview(self.data)
        if not self.sparse:
            return self.source.readinto(offset, memory[: self.size])
        left = min(self.size, self.source.size - offset)
        for at in range(0, left, self.stride):
            self.source.readinto(offset + at, memory[at : min(at + 72, left)])
        return left

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
