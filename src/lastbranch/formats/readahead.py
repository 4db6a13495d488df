"""Reading a file in large blocks: another thread reads the next block while this one is processed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..model import Source
from ..threads import Threads

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["ReadAhead", "page_aligned"]

_PAGE = 4096


class ReadAhead:
    """Two buffers of ``size`` bytes, followed by ``pad`` bytes that are never filled.

    `fill` has ``data`` hold the file from an offset on; `expect` starts reading the data that will probably be
    requested next, unless ``ahead`` is false. ``data`` is valid until the next `fill`.
    """

    def __init__(self, source: Source, size: int, *, pad: int = 0, ahead: bool = True) -> None:
        self._source, self._size = source, size
        self.data = _memory(size + pad)
        self._other = _memory(size + pad) if ahead else None
        self._thread = Threads(1, "lastbranch-read") if self._other is not None else None
        self._ahead: tuple[int, Future[int]] | None = None

    def expect(self, offset: int, end: int) -> None:
        """Start to read from ``offset`` on, up to ``end`` at most; the next `fill` takes it or lets it be."""
        if self._thread is not None and self._other is not None and offset < end:
            into = memoryview(self._other)[: min(self._size, end - offset)]
            self._ahead = offset, self._thread.submit(self._source.readinto, offset, into)

    def fill(self, offset: int, length: int, *, within: int = 0) -> tuple[int, int]:
        """(start, bytes): ``data`` holds the file from ``start`` on.

        ``start`` is ``offset``, or if that is in what was read ahead, a multiple of ``within`` bytes before it.
        """
        if self._ahead is not None and self._other is not None:
            begin, future = self._ahead
            self._ahead = None
            got = future.result()
            if begin == offset or (within and begin <= offset < begin + got and (offset - begin) % within == 0):
                self.data, self._other = self._other, self.data
                return begin, got
        return offset, self._source.readinto(offset, memoryview(self.data)[: min(length, self._size)])

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.close()


def page_aligned(size: int) -> NDArray[np.uint8]:
    """``size`` bytes of any content: to fill them with zeros took as long as reading as many from the page cache.

    They begin with a page. Processors with fast `rep movsb` (AMD Zen 3) copy to 16 bytes after the start of one, which
    is where `malloc` would have them, at a sixth of the speed.
    """
    room = np.empty(size + _PAGE, np.uint8)
    begin = -room.ctypes.data % _PAGE
    return room[begin : begin + size]


def _memory(size: int) -> memoryview:
    return memoryview(page_aligned(size))  # type: ignore[arg-type]  # NumPy's arrays have the buffer protocol
