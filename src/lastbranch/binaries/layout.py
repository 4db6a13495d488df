"""Structures of binaries: their declarations, and a reader that does not trust the file.

The limits below bound memory: every count is checked against a limit and the bytes that are left, every length against
the bytes that are left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from ..errors import FormatError
from ..model import Source, read_at

if TYPE_CHECKING:  # uuid takes 14 ms to import, and only files with a PDB identity need it
    from uuid import UUID

__all__ = ["ByteOrder", "Layout", "Structure", "Strings", "guid_of", "read_exactly", "text_of"]


ByteOrder = Literal["little", "big"]

TABLE_LIMIT = 1 << 20
"""Most entries of one table. Objects with a section for each function come to some 100,000."""

STRING_LIMIT = 1 << 16
"""Longest string in bytes. Mangled C++ names of sections come to some thousands."""

STRINGS_LIMIT = 1 << 25
"""Most bytes of strings from one file: names may overlap, so the file's size does not bound their sum."""

_HEAD = 1 << 12
"""Bytes of a table of strings that are read at once."""

_PREFIX = {"little": "<", "big": ">"}


class Structure:
    """The fields of one structure: ``record["e_type"]`` is an integer, ``record.raw("e_ident")`` bytes."""

    __slots__ = ("layout", "offset", "source", "values")

    def __init__(self, layout: Layout, source: Source, offset: int, values: tuple[Any, ...]) -> None:
        self.layout, self.source, self.offset, self.values = layout, source, offset, values

    def __getitem__(self, field: str) -> int:
        value: int = self.values[self.layout.index[field]]
        return value

    def raw(self, field: str) -> bytes:
        value: bytes = self.values[self.layout.index[field]]
        return value

    def bad(self, field: str, reason: str) -> FormatError:
        """The error to raise about ``field``, with its value and offset."""
        return FormatError(
            reason,
            file=self.source.name,
            offset=self.offset + self.layout.offsets[field],
            field=field,
            value=self.values[self.layout.index[field]],
        )

    def require(self, begin: int, length: int, field: str) -> None:
        """Raise about ``field``, an offset or a length, unless the file has ``length`` bytes at ``begin``."""
        if length > self.source.size - begin:
            raise self.bad(field, f"{length} bytes at {begin:#x} are past the end of the file")


class Layout:
    """A structure: its name, and fields with `struct` codes in the order of the specification, without padding."""

    def __init__(self, name: str, *fields: tuple[str, str]) -> None:
        codes = [code for _, code in fields]
        self.name = name
        self.index = {field: number for number, (field, _) in enumerate(fields)}
        self.offsets = {field: struct.calcsize("<" + "".join(codes[:n])) for field, n in self.index.items()}
        self.size = struct.calcsize("<" + "".join(codes))
        self._structs = {order: struct.Struct(prefix + "".join(codes)) for order, prefix in _PREFIX.items()}

    def read(self, source: Source, offset: int, order: ByteOrder) -> Structure:
        """The structure at ``offset``. Raises `FormatError` where the file ends first."""
        data = read_exactly(source, offset, self.size, self.name)
        return Structure(self, source, offset, self._structs[order].unpack(data))

    def table(self, owner: Structure, field: str, offset: int, count: int, order: ByteOrder) -> Iterator[Structure]:
        """``count`` structures from ``offset`` on, as ``field`` of ``owner`` says."""
        if count > TABLE_LIMIT:
            raise owner.bad(field, f"{count} entries exceed the limit of {TABLE_LIMIT}")
        owner.require(offset, count * self.size, field)
        data = read_exactly(owner.source, offset, count * self.size, self.name)
        for number, values in enumerate(self._structs[order].iter_unpack(data)):
            yield Structure(self, owner.source, offset + number * self.size, values)


class Strings:
    """Strings that end with a zero byte, in the ``size`` bytes of ``source`` at ``offset``."""

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self._source, self._offset, self._size = source, offset, size
        self._known: dict[int, str] = {}
        self._total = 0
        self._head: bytes | None = None
        """The first bytes of the table: all of most tables, read at once."""

    def at(self, begin: int, owner: Structure, field: str) -> str:
        """The string that starts ``begin`` bytes into the table, as ``field`` of ``owner`` says."""
        if begin not in self._known:
            self._known[begin] = self._read(begin, owner, field)
        return self._known[begin]

    def _read(self, begin: int, owner: Structure, field: str) -> str:
        if begin >= self._size:
            raise owner.bad(field, f"a string at {begin:#x} is outside its table of {self._size} bytes")
        if self._head is None:
            self._head = read_at(self._source, self._offset, min(self._size, _HEAD))
        room = min(self._size - begin, STRING_LIMIT)
        length, text = 0, self._head[begin : begin + room]
        end = text.find(b"\0")
        while end < 0 and length < room:  # most are short: one small read
            length = min(room, 4 * length or 64)
            text = read_at(self._source, self._offset + begin, length)
            end = text.find(b"\0")
        self._total += end
        if end < 0 or self._total > STRINGS_LIMIT:
            raise owner.bad(field, "a string does not end, or the strings of the file are too long")
        return text_of(text[:end])


def read_exactly(source: Source, offset: int, length: int, what: str) -> bytes:
    """``length`` bytes at ``offset``. Raises `FormatError` that names ``what`` where the file ends first."""
    data = read_at(source, offset, length)
    if len(data) != length:
        reason = f"the file ends within {what}, {len(data)} of {length} bytes are left"
        raise FormatError(reason, file=source.name, offset=offset, field=what, value=data[:16].hex())
    return data


def text_of(data: bytes) -> str:
    """A name of the file as text; bytes that are no UTF-8 become escapes."""
    return data.decode("utf-8", "backslashreplace")


def guid_of(data: bytes) -> UUID:
    """The GUID in 16 bytes, as Windows writes it: the first three fields are little-endian."""
    from uuid import UUID

    return UUID(bytes_le=data)
