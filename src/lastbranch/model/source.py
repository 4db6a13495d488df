"""The input of a parser: bytes at offsets. Only `opening` opens captures and binaries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Protocol

__all__ = ["BytesSource", "Limits", "MEMORY", "OpenFile", "Source", "limited", "read_at"]


# -- What a file may ask for: counts and sizes in it are claims, and some kilobytes can claim the memory of a machine


MEMORY = 256 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets for reading one file. Reading stops at a limit: everything before the limit is delivered, and
    ``profile.damage`` names the place."""

    memory: int | None = None
    """Bytes that the tables of a capture may take (processes, threads, mappings, modules, names...), by estimate.
    ``None``: `MEMORY`, or the size of the file where that is more."""
    expansion: int = 256 << 20
    """Bytes that compressed data may become, however small they are; beyond that, `ratio` decides."""
    ratio: int = 100
    """How many times their own size compressed data may become, beyond `expansion`."""

    def memory_of(self, size: int) -> int:
        """The budget of tables for a file of ``size`` bytes."""
        return max(MEMORY, size) if self.memory is None else self.memory

    def expanded(self, packed: int) -> int:
        """The largest size to which ``packed`` compressed bytes may expand."""
        return max(self.expansion, self.ratio * packed)

    @staticmethod
    def current() -> Limits:
        """The limits that `limited` set, or the defaults."""
        return _CURRENT.get()


_CURRENT: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039 - it cannot be changed


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Files that are opened inside have ``limits``, also when they are read later."""
    before = _CURRENT.set(limits)
    try:
        yield
    finally:
        _CURRENT.reset(before)


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

    def expect(self, offset: int, length: int) -> None:
        """``length`` bytes from ``offset`` on are probably read next: prepare that without waiting, if possible."""


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

    def expect(self, offset: int, length: int) -> None:
        pass

    def close(self) -> None:
        pass


_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
"""Has a read give what is in the page cache, and not wait for the rest. Linux only."""
_ANNOUNCED = 64
"""Reads that are announced to the system after one that had to wait."""


class OpenFile:
    """A `Source` over a file that is open for reading, without a buffer. The opener, or `close`, closes it."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name, self.limits, self._file = name, Limits.current(), file
        self._announced = _ANNOUNCED

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def fileno(self) -> int:
        """The descriptor of the open file."""
        return self._file.fileno()

    def readinto(self, offset: int, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer) and (got := self._read(buffer[done:], offset + done)):
            done += got
        return done

    def _read(self, buffer: memoryview, offset: int) -> int:
        if _NOWAIT:
            with suppress(OSError):  # it would have to wait, or the file system does not know
                return os.preadv(self._file.fileno(), [buffer], offset, _NOWAIT)
            self._announced = 0
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [buffer], offset)
        self._file.seek(offset)
        return self._file.readinto(buffer) or 0  # type: ignore[attr-defined]

    def expect(self, offset: int, length: int) -> None:
        if _NOWAIT and self._announced == _ANNOUNCED:
            return  # to look for what is in the page cache already took 2 to 4 % of the time of counting
        self._announced += 1
        if hasattr(os, "posix_fadvise"):  # elsewhere the system reads ahead as far as it does by itself
            os.posix_fadvise(self._file.fileno(), offset, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        self._file.close()


def read_at(source: Source, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes at ``offset``; short at the end of the file. ``length`` is bounded by the file's size."""
    length = max(0, min(length, source.size - offset))
    if length == 0:
        return b""
    buffer = bytearray(length)
    got = source.readinto(offset, memoryview(buffer))
    return bytes(buffer[:got])
