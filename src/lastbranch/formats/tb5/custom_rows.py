"""Rows of a custom stream, as the samples that own them are read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from .constants import StreamSection
from .layout import Scope, Table
from .reading import Tb5File

__all__ = ["Rows"]


class Rows:
    """Rows of a custom stream in growing order: one block at a time is kept."""

    def __init__(self, file: Tb5File, number: int) -> None:
        self._file, self._key = file, Table(Scope.STREAM, number, StreamSection.DATA)
        self._entry = file.tables[self._key]
        self._at, self._rows = -1, np.empty((0, self._entry.record_size), np.uint8)

    def take(self, first: int, count: int) -> NDArray[np.uint8]:
        if first + count > self._entry.count:
            raise FormatError("rows beyond the end of their stream", file=self._file.name, field="first", value=first)
        parts = []
        while count:
            number, inside = divmod(first, self._entry.block_records)
            if number != self._at:
                ((_, rows),) = self._file.some_blocks(self._key, range(number, number + 1))
                if isinstance(rows, FormatError):
                    raise rows
                self._at, self._rows = number, rows
            part = self._rows[inside : inside + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        if len(parts) == 1:
            return np.ascontiguousarray(parts[0])
        return np.concatenate(parts) if parts else np.empty((0, self._entry.record_size), np.uint8)
