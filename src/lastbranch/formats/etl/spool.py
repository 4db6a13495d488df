"""Arrays that may become larger than memory: what is behind a limit is in a temporary file."""

from __future__ import annotations

from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import Ints, in_groups, offsets_of, take_ranges
from ...model import Array
from ...model.output import temporary_file

__all__ = ["Spool"]

_NEAR = 4096  # bytes between two ranges that are rather read with them


class Spool:
    """Items of one ``dtype``: appended at the end, read and replaced in ranges.

    They are in memory up to ``limit`` bytes; then all go to a file, and of what comes later again that much is held.
    """

    def __init__(self, dtype: Any, limit: int) -> None:
        self._dtype, self._limit = np.dtype(dtype), limit
        self._held: list[Array] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, items: Array) -> int:
        """Where the first of ``items`` now is. They are not copied."""
        first = self._count
        self._count += len(items)
        self._held.append(items)
        self._bytes += items.nbytes
        if self._bytes > self._limit:
            self._write()
        return first

    def read(self, first: int, past: int) -> Array:
        """One range: a view if all is in memory."""
        if self._file is None:
            return self._whole()[first:past]
        return self._read(np.array([first]), np.array([past]))

    def replace(self, first: int, items: Array) -> None:
        """Put ``items`` over those from ``first`` on."""
        if self._file is None:
            self._whole()[first : first + len(items)] = items
            return
        self._write()
        self._file.seek(first * self._dtype.itemsize)
        self._file.write(items.tobytes())

    def take(self, first: Ints, count: Ints) -> Array:
        """Ranges one after the other."""
        if self._file is None:
            return take_ranges(self._whole(), first, count)
        return in_groups(self._read, first, count, _NEAR // self._dtype.itemsize)

    def _read(self, first: Ints, past: Ints) -> Array:
        assert self._file is not None
        self._write()
        offsets = offsets_of(past - first)
        items = np.empty(offsets[-1], self._dtype)
        if len(items):
            memory: Any = memoryview(items.view(np.uint8))  # type: ignore[arg-type]
            size = self._dtype.itemsize
            for at, lo, hi in zip(first.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                self._file.seek(at * size)
                self._file.readinto(memory[lo * size : hi * size])  # type: ignore[attr-defined]
        return items

    def _whole(self) -> NDArray[Any]:
        if len(self._held) != 1:
            self._held = [np.concatenate([np.empty(0, self._dtype), *self._held])]
        return self._held[0]

    def _write(self) -> None:
        """What is held goes to the file."""
        if not self._held:
            return
        if self._file is None:
            self._file = temporary_file()
        self._file.seek(0, 2)
        for items in self._held:
            self._file.write(items.tobytes())
        self._held, self._bytes = [], 0
