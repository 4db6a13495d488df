"""Reading a file in large blocks: the system reads the next block while this one is processed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model import Source

__all__ = ["ReadAhead", "page_aligned"]

_PAGE, _HUGE_PAGE = 4096, 2 << 20


class ReadAhead:
    """``data``: a buffer of ``size`` bytes, followed by ``pad`` bytes that are never filled.

    The next block is expected, and not read by a thread of ours: of a file in the page cache, which is most of them,
    that took a sixth more CPU time (blocks came from the cache of another core) and no less wall time.
    """

    def __init__(self, source: Source, size: int, *, pad: int = 0) -> None:
        self._source, self._size = source, size
        self.data = page_aligned(size + pad).data

    def fill(self, offset: int, length: int, end: int) -> int:
        """Have ``data`` hold up to ``length`` bytes of the file from ``offset`` on: how many there are.

        As many that follow, up to ``end``, are expected to be requested next.
        """
        got = self._source.readinto(offset, self.data[: min(length, self._size)])
        if offset + got < end:
            self._source.expect(offset + got, min(got, end - offset - got))
        return got


def page_aligned(size: int) -> NDArray[np.uint8]:
    """``size`` bytes of any content: to fill them with zeros took as long as reading as many from the page cache.

    They begin with a page. Processors with fast `rep movsb` (AMD Zen 3) copy to 16 bytes after the start of one, which
    is where `malloc` would have them, at a sixth of the speed. Large ones begin with a huge page: NumPy asks Linux for
    such pages, and counting 1 GB through them takes 6 % less time. Memory before the beginning is never touched.
    """
    page = _HUGE_PAGE if size >= _HUGE_PAGE else _PAGE
    room = np.empty(size + page, np.uint8)
    begin = -room.ctypes.data % page
    return room[begin : begin + size]
