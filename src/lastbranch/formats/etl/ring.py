"""A ring of compressed buffers. They have all sizes, so that none fits where another one was: new ones go to the end,
and what is too old is cut off at the front when the file has become twice as long as it may."""

from __future__ import annotations

from collections import deque
from typing import IO

__all__ = ["Ring"]

_CHUNK = 1 << 20


class Ring:
    """The newest buffers that fit into ``room`` bytes from ``first`` on."""

    def __init__(self, first: int, room: int) -> None:
        self._first, self._room = first, room
        self._sizes: deque[int] = deque()
        self._held = 0

    def add(self, size: int) -> None:
        """A buffer that is about to be written to the end; it pushes out the oldest ones."""
        while self._sizes and self._held + size > self._room:
            self._held -= self._sizes.popleft()
        self._sizes.append(size)
        self._held += size

    def is_long(self, end: int) -> bool:
        """Whether the file, which ends at ``end``, is to be cut."""
        return end - self._first > 2 * self._room

    def cut(self, file: IO[bytes], end: int) -> int:
        """Move what is held to the front; by how many bytes it moved."""
        begin = end - self._held
        for at in range(begin, end, _CHUNK):
            file.seek(at)
            data = file.read(min(_CHUNK, end - at))
            file.seek(at - begin + self._first)
            file.write(data)
        return begin - self._first
