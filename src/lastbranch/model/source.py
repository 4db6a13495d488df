"""What a parser reads from: bytes at offsets. Files are opened in ``open.py`` alone."""

from __future__ import annotations

from typing import Protocol

from .limits import Limits

__all__ = ["BytesSource", "Source", "read_at"]


class Source(Protocol):
    """Bytes at offsets. Not a mapping: a mapped file that shrinks under its reader kills the process."""

    name: str
    """What errors call the file."""
    limits: Limits
    """What reading it may take."""

    @property
    def size(self) -> int:
        """Size in bytes at the time of opening."""

    def readinto(self, offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``offset``; the number of bytes read, short only at the end of the file."""


class BytesSource:
    """A `Source` over bytes that are in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<memory>") -> None:
        self.name, self.limits = name, Limits.current()
        self._data = memoryview(data).cast("B")

    @property
    def size(self) -> int:
        return len(self._data)

    def readinto(self, offset: int, buffer: memoryview) -> int:
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


def read_at(source: Source, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes at ``offset``; short at the end of the file. ``length`` is bounded by the file's size."""
    length = max(0, min(length, source.size - offset))
    if length == 0:
        return b""
    buffer = bytearray(length)
    got = source.readinto(offset, memoryview(buffer))
    return bytes(buffer[:got])
