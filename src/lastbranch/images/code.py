"""The bytes of a binary at link addresses."""

from __future__ import annotations

from functools import lru_cache

from ..model import Source, read_at
from .image import Image

__all__ = ["Code"]

_CHUNK = 1 << 16
_CHUNKS = 256
"""Kept in memory: instructions are read one by one."""


class Code:
    """What the loader puts into memory from ``source``, the file that ``image`` was read from.

    ``arch`` is the machine as `isa.Decoder` names it (``x86_64``, ``i386``, ``aarch64``, else as `Image.machine`).
    The file stays open as long as this object lives.
    """

    def __init__(self, source: Source, image: Image) -> None:
        self._chunk = lru_cache(_CHUNKS)(lambda number: read_at(source, number * _CHUNK, _CHUNK))
        # A code address is asked for in code first: nothing keeps a file's segments from overlapping.
        self._segments = (*image.executable_segments, *image.segments)
        self.arch, self.image = image.machine, image

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at link ``address``; fewer where the segment or the file ends, none outside of both."""
        for s in self._segments:
            inside = address - s.vaddr
            if 0 <= inside < s.file_size:
                return self._read(s.offset + inside, min(size, s.file_size - inside))
        return b""

    def _read(self, offset: int, size: int) -> bytes:
        first, last = offset // _CHUNK, (offset + max(size, 1) - 1) // _CHUNK
        if first == last:
            return self._chunk(first)[offset % _CHUNK : offset % _CHUNK + size]
        data = b"".join(self._chunk(number) for number in range(first, last + 1))
        return data[offset % _CHUNK :][:size]
