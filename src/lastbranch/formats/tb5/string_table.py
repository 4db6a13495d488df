"""The strings of a file by their ids: segments one after the other, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model import Array
from . import layout
from .layout import Scope, Table, describe
from .strings import decode

if TYPE_CHECKING:
    from .reading import Tb5File

__all__ = ["StringTable"]


class StringTable:
    """Ids count from 1 over all segments of ``file``."""

    def __init__(self, file: Tb5File) -> None:
        self._file = file
        self._ends: dict[int, Array] = {}
        self._texts: dict[int, str] = {}

    @property
    def count(self) -> int:
        """The largest id."""
        return self._segments[-1][2] if self._segments else 0

    def find(self, unique_id: int) -> str:
        """The string of an id. Raises `FormatError` for 0 and for ids that are not there."""
        text = self._texts.get(unique_id)
        if text is None:
            text = self._texts[unique_id] = self._read(unique_id)
        return text

    def all(self) -> Iterator[str]:
        """The strings of ids 1, 2, 3..."""
        for key, _, _ in self._segments:
            ends = self._segment_ends(key)
            data = self._file.bytes(key._replace(part=1)) if key._replace(part=1) in self._file.tables else b""
            start = 0
            for end in ends.tolist():
                yield decode(data[start:end])
                start = end

    def _read(self, unique_id: int) -> str:
        for key, before, last in self._segments:
            if before < unique_id <= last:
                ends, row = self._segment_ends(key), unique_id - before - 1
                start, end = int(ends[row - 1]) if row else 0, int(ends[row])
                data = key._replace(part=1)
                return decode(self._file.read(data, start, end - start).tobytes() if end > start else b"")
        reason = "NULL string" if unique_id == 0 else f"string id out of range (1 to {self.count})"
        raise FormatError(reason, file=self._file.name, field="soi_uniqueid", value=unique_id)

    @cached_property
    def _segments(self) -> list[tuple[Table, int, int]]:
        """(table of the ends, ids before it, its last id)"""
        out, known = [], 0
        for key in sorted(self._file.tables):
            if key.scope is Scope.STORE and key.section == layout.STRINGS and not key.part:
                out.append((key, known, known + self._file.count(key)))
                known += self._file.count(key)
        return out

    def _segment_ends(self, key: Table) -> Array:
        ends = self._ends.get(key.stream)
        if ends is None:
            ends = self._file.read(key).reshape(-1).view("<u8")
            data = key._replace(part=1)
            size = self._file.count(data) if data in self._file.tables else 0
            if len(ends) and (int(ends[-1]) != size or (ends[1:] < ends[:-1]).any()):
                raise FormatError(
                    f"{describe(key)}: lengths are wrong", file=self._file.name,
                    offset=self._file.tables[key].index, field="ends", value=int(ends[-1]),
                )  # fmt: skip
            self._ends[key.stream] = ends
        return ends
