"""A piece of a trace file in memory, and the buffers found in it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...model import Source, read_at
from .buffers import DamageLog
from .layout import BUFFER_HEADER_SIZE

__all__ = ["HEAD", "Found", "View"]

HEAD = struct.Struct("<I44xIHH")
"""Of a buffer header: BufferSize, Offset, BufferFlag, BufferType."""


@dataclass(slots=True)
class View:
    """The bytes ``base`` to ``base + got`` of the file, and what is known about its buffers."""

    source: Source
    end: int
    """Size of the file."""
    damage: DamageLog
    stride: int
    """BufferSize of uncompressed buffers."""
    largest: int
    """Most bytes that a buffer holds."""
    data: memoryview
    raw: NDArray[np.uint8]
    """``data`` again."""
    base: int = 0
    got: int = 0
    broken_at: int | None = None
    """Offset from which on nothing was found that could be a buffer, and ``broken_by`` what is said about it."""
    broken_by: str = ""
    header_at: int = 0
    """Offset of the header buffer that governs what is read."""
    reserved: bool = False
    """Whether room behind the last buffer may never have been written to: a preallocated or circular file."""
    zeros_at: int | None = None
    """Offset from which on there were only zeros where buffers should be."""
    unwritten: int = 0
    """Places of such a file that no buffer was written to."""

    @property
    def at_end(self) -> bool:
        return self.base + self.got >= self.end

    def head(self, at: int) -> tuple[int, int, int, int] | None:
        """BufferSize, Offset, BufferFlag and BufferType of the header at ``at``; None behind the end of the file."""
        if at + BUFFER_HEADER_SIZE <= self.got:
            return HEAD.unpack_from(self.data, at)
        raw = read_at(self.source, self.base + at, BUFFER_HEADER_SIZE)
        return HEAD.unpack_from(raw) if len(raw) == BUFFER_HEADER_SIZE else None

    def ends_at(self, at: int) -> bool:
        return self.base + at == self.end


@dataclass(slots=True)
class Found:
    """Buffers of a view: position, bytes in the file and bytes in use of each.

    ``stop`` is the position behind them, ``more`` whether what comes there needs the view to move on.
    """

    at: list[NDArray[np.int64]] = field(default_factory=list)
    length: list[NDArray[np.int64]] = field(default_factory=list)
    filled: list[NDArray[np.int64]] = field(default_factory=list)
    stop: int = 0
    more: bool = True

    def add(self, at: object, length: object, filled: object) -> None:
        for part, values in ((self.at, at), (self.length, length), (self.filled, filled)):
            part.append(np.atleast_1d(np.asarray(values, np.int64)))
