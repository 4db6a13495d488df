"""Strings of a file: each is stored once and has a unique id.

Ids count from 1 over all *segments*, each of which a commit added: u64 ends of its strings, and their bytes. Id 0 is
the guide's NULL string. Text is UTF-8; names that are not (any bytes on Linux, half surrogates on Windows) keep their
bytes, so that each comes back as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from ...model import Array
from . import layout
from .layout import Scope, Table, TableEntry, describe

__all__ = ["StringIds", "StringTable", "decode", "encode", "encode_segment"]


_FORMS = ("surrogateescape", "surrogatepass")


def encode(text: str) -> bytes:
    """Bytes that `decode` makes ``text`` of."""
    for errors in _FORMS:
        try:
            data = text.encode("utf-8", errors)
        except UnicodeEncodeError:
            continue
        if decode(data) == text:
            return data
    raise ValueError(f"{text!r} cannot be stored")


def decode(data: bytes) -> str:
    """Text of stored bytes: surrogates as three bytes each where that is possible, else undecodable bytes escaped."""
    for errors in reversed(_FORMS):
        try:
            return data.decode("utf-8", errors)
        except UnicodeDecodeError:
            continue
    raise AssertionError("surrogateescape decodes everything")


def encode_segment(texts: list[bytes]) -> tuple[Array, Array]:
    """(uint64 ends, uint8 bytes) of a segment."""
    ends = np.cumsum([len(t) for t in texts], dtype=np.uint64)
    return ends, np.frombuffer(b"".join(texts), np.uint8)


class StringIds:
    """Unique ids for a writer. ``count`` ids are given; ``fresh`` are the bytes of strings that no segment holds."""

    def __init__(self, stored: Iterable[str] = ()) -> None:
        self.fresh: list[bytes] = []
        self.count = 0
        self._ids: dict[str, int] = {}
        for self.count, text in enumerate(stored, 1):
            self._ids.setdefault(text, self.count)

    def id_of(self, text: str) -> int:
        """The id of ``text``, a new one for a new string. `ValueError` for text that cannot be stored."""
        unique_id = self._ids.get(text)
        if unique_id is None:
            self.fresh.append(encode(text))
            self.count += 1
            unique_id = self._ids[text] = self.count
        return unique_id

    def forget(self, count: int) -> None:
        """Keep the first ``count`` ids, all of which are stored."""
        self.fresh, self.count = [], count
        self._ids = {text: i for text, i in self._ids.items() if i <= count}


# -- the strings of a file by their ids: consecutive segments, each read at its first use


class StringTable:
    """Ids count from 1 over all segments in ``tables``; ``read(key, first, count)`` gives the bytes of a table of the
    file called ``name``."""

    def __init__(self, tables: Mapping[Table, TableEntry], read: Callable[..., NDArray[np.uint8]], name: str) -> None:
        self._tables, self._read, self._name = tables, read, name
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
            text = self._texts[unique_id] = self._look_up(unique_id)
        return text

    def all(self) -> Iterator[str]:
        """The strings of ids 1, 2, 3..."""
        for key, _, _ in self._segments:
            ends = self._segment_ends(key)
            data = self._read(key._replace(part=1)).tobytes() if key._replace(part=1) in self._tables else b""
            start = 0
            for end in ends.tolist():
                yield decode(data[start:end])
                start = end

    def _look_up(self, unique_id: int) -> str:
        for key, before, last in self._segments:
            if before < unique_id <= last:
                ends, row = self._segment_ends(key), unique_id - before - 1
                start, end = int(ends[row - 1]) if row else 0, int(ends[row])
                data = key._replace(part=1)
                return decode(self._read(data, start, end - start).tobytes() if end > start else b"")
        reason = "NULL string" if unique_id == 0 else f"string id out of range (1 to {self.count})"
        raise FormatError(reason, file=self._name, field="soi_uniqueid", value=unique_id)

    @cached_property
    def _segments(self) -> list[tuple[Table, int, int]]:
        """(table of the ends, ids before it, its last id)"""
        out, known = [], 0
        for key in sorted(self._tables):
            if key.scope is Scope.STORE and key.section == layout.STRINGS and not key.part:
                out.append((key, known, known + self._tables[key].count))
                known += self._tables[key].count
        return out

    def _segment_ends(self, key: Table) -> Array:
        ends = self._ends.get(key.stream)
        if ends is None:
            ends = self._read(key).reshape(-1).view("<u8")
            data = key._replace(part=1)
            size = self._tables[data].count if data in self._tables else 0
            if len(ends) and (int(ends[-1]) != size or (ends[1:] < ends[:-1]).any()):
                raise FormatError(
                    f"{describe(key)}: lengths are wrong",
                    file=self._name,
                    offset=self._tables[key].index,
                    field="ends",
                    value=int(ends[-1]),
                )
            self._ends[key.stream] = ends
        return ends
