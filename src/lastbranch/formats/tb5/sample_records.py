"""The records of a stream of samples, or their heads, which a file of ours keeps apart as well.

A head is all of a record before its branch stack: a tenth of the bytes for whoever asks who ran, and how often.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import Damage, FormatError
from ...model import BRANCH, COLUMNS, Array
from .constants import StreamSection
from .described import described_dtype
from .layout import HEADS, Scope, Table
from .reading import Tb5File

__all__ = ["SampleRecords", "note", "note_error"]

_STACK = frozenset(("branch", *(c.name for c in COLUMNS if c.group == BRANCH)))
"""Fields behind the head of a record."""


class SampleRecords:
    """Structured records of stream ``number``, ``dtype``, with the fields that are known, ``names``."""

    def __init__(self, file: Tb5File, number: int) -> None:
        self.file = file
        self.key = Table(Scope.STREAM, number, StreamSection.DATA)
        self._heads = Table(Scope.STORE, number, HEADS)
        self.dtype = described_dtype(file, number)
        self.names = frozenset(self.dtype.names or ())

    def blocks(self, wanted: frozenset[str] | None, damage: list[Damage] | None) -> Iterator[tuple[int, Array]]:
        """(number of the first, records) of each block; of their heads where those have the columns that are
        ``wanted`` (``None``: all) and the number of branch entries.

        A damaged block is stepped over and noted in ``damage``, or raised where that is ``None``.
        """
        heads = self._head_dtype(wanted)
        key, dtype = (self.key, self.dtype) if heads is None else (self._heads, heads)
        entry = self.file.tables[key]
        for number, rows in self.file.some_blocks(key, range(entry.blocks)):
            at = number * entry.block_records
            if not isinstance(rows, FormatError):
                yield at, rows.reshape(-1).view(dtype)
            elif key == self.key:
                note_error(damage, rows, entry.block_bytes)
            else:
                note_error(damage, rows, 0)
                yield from self._instead(at, entry.block_records, damage)

    def _instead(self, first: int, count: int, damage: list[Damage] | None) -> Iterator[tuple[int, Array]]:
        """The records themselves where their heads are damaged."""
        try:
            for rows in self.file.blocks(self.key, first, count):
                yield first, rows.reshape(-1).view(self.dtype)
                first += len(rows)
        except FormatError as error:
            note_error(damage, error, self.file.tables[self.key].block_bytes)

    def _head_dtype(self, wanted: frozenset[str] | None) -> np.dtype[Any] | None:
        """The heads of the records, ``None`` where they are not all there or lack what is wanted."""
        entry, dtype = self.file.tables.get(self._heads), self.dtype
        if wanted is None or entry is None or entry.count != self.file.count(self.key):
            return None
        ends = {n: dtype.fields[n][1] + dtype[n].itemsize for n in self.names} if dtype.fields else {}
        inside = [n for n, end in ends.items() if end <= entry.record_size]
        behind = self.names - set(inside)
        cut_off = behind | ({"branch_from", "branch_to"} if "branch" in behind else set())
        if behind - _STACK or cut_off & wanted or "branch count" not in inside:
            return None
        formats, offsets = [dtype[n] for n in inside], [ends[n] - dtype[n].itemsize for n in inside]
        return np.dtype({"names": inside, "formats": formats, "offsets": offsets, "itemsize": entry.record_size})


def note(damage: list[Damage], found: Damage) -> None:
    """Add a place that was stepped over, once."""
    if found not in damage:
        damage.append(found)


def note_error(damage: list[Damage] | None, error: FormatError, lost: int) -> None:
    """`note` what an error tells, or raise it where there is no list."""
    if damage is None:
        raise error
    note(damage, Damage(error.reason, error.offset or 0, error.field, error.value, lost))
