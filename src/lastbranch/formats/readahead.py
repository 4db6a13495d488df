"""Reading a file in large blocks, the next one on another thread while this one is parsed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ..model import Source

__all__ = ["ReadAhead"]


class ReadAhead:
    """Blocks of 64-bit words from growing offsets of ``source``, up to ``end``.

    The next block is expected to start in the last ``overlap`` bytes of this one (records straddle blocks), at a
    multiple of 8 from its start; anything else is read when asked for. A block is valid until the next is asked for.
    """

    def __init__(self, source: Source, end: int, block: int, overlap: int) -> None:
        self._source, self._end, self._block, self._overlap = source, min(end, source.size), block, overlap
        self._buffers = [np.empty((block + overlap) // 8, np.uint64) for _ in range(2)]
        self._thread = ThreadPoolExecutor(1, "lastbranch-read")
        self._ahead: tuple[int, Future[int]] | None = None

    def read(self, offset: int, length: int | None = None) -> tuple[NDArray[np.uint64], int]:
        """(words from ``offset``, bytes of the file in them): ``length`` bytes or a block, less at the end."""
        ahead, self._ahead = self._ahead, None
        start = offset
        if ahead is not None:
            start, got = ahead[0], ahead[1].result()
            self._buffers.reverse()
        if ahead is None or not start <= offset < start + got or (offset - start) & 7:
            start, got = offset, self._fill(0, offset, self._block if length is None else length)
        if length is None and offset + self._block < self._end:
            following = offset + ((start + got - offset - self._overlap) & ~7)
            self._ahead = following, self._thread.submit(self._fill, 1, following, self._block + self._overlap)
        if got & 7:  # the end of the file: what is left of the last word is zero
            self._buffers[0].view(np.uint8)[got : got + 7] = 0
        return self._buffers[0][(offset - start) >> 3 : (got + 7) >> 3], start + got - offset

    def _fill(self, which: int, offset: int, length: int) -> int:
        view = memoryview(self._buffers[which]).cast("B")  # type: ignore[arg-type]
        return self._source.readinto(offset, view[: max(0, min(length, self._end - offset))])

    def close(self) -> None:
        self._thread.shutdown()
