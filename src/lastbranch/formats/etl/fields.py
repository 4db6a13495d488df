"""Field types of ETW payloads: numbers, times, GUIDs, addresses, arrays. Strings and SIDs are in `field_text`.

A type turns bytes into a value and back: ``decode(data, at, end, pointer) -> (value, next)`` and
``encode(value, pointer) -> bytes``, where ``pointer`` is the pointer size of the event (4 or 8). It reads nothing at or
past ``end`` and raises `Short` where the bytes do not hold one whole value. For every value it returns, encode gives
the very bytes back.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from .field_values import Exact, FileTime, Hex, Named

__all__ = [
    "BOOL8", "BOOL32", "F32", "F64", "FILETIME", "GUID", "HEX32", "HEX64", "I16", "I32", "I64", "I8", "IPV4", "IPV6", "PORT",
    "PTR", "SIZE", "SYSTEMTIME", "U16", "U32", "U64", "U8",
    "Array", "Bits", "Blob", "Columns", "CountedBytes", "FieldType", "Rest", "Scalar", "Short", "Struct", "named",
]  # fmt: skip


class Short(ValueError):
    """The bytes up to the end do not hold one value of the type."""


class FieldType:
    """One type of field. ``parts`` names the values of a type that makes several; ``empty`` ones may take no bytes."""

    parts: tuple[str, ...] = ()
    empty = False

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        raise NotImplementedError

    def encode(self, value: Any, pointer: int) -> bytes:
        raise NotImplementedError


@cache
def _struct(code: str) -> struct.Struct:
    return struct.Struct(code)


class Scalar(FieldType):
    """A number of one `struct` code (for 32-bit events ``code4`` where it differs), shown as ``wrap`` says."""

    def __init__(self, code: str, wrap: Callable[[Any], Any] | None = None, code4: str = "", order: str = "<") -> None:
        self.code, self.code4, self.wrap, self.order = code, code4 or code, wrap, order

    def code_for(self, pointer: int) -> str:
        return self.code if pointer == 8 else self.code4

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        packed = _struct(self.order + self.code_for(pointer))
        after = at + packed.size
        if after > end:
            raise Short
        (value,) = packed.unpack_from(data, at)
        return (value if self.wrap is None else self.wrap(value)), after

    def encode(self, value: Any, pointer: int) -> bytes:
        return _struct(self.order + self.code_for(pointer)).pack(value)


class _Float(Scalar):
    """A NaN keeps its bits: converting between the widths would make a signalling one quiet."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        value, after = super().decode(data, at, end, pointer)
        return (Exact("nan", data[at:after]) if value != value else value), after

    def encode(self, value: Any, pointer: int) -> bytes:
        return value.raw if isinstance(value, Exact) else super().encode(value, pointer)


class _Bool(Scalar):
    """A byte or 4-byte BOOL; a value other than 0 and 1 stays a number."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        value, after = super().decode(data, at, end, pointer)
        return (bool(value) if value < 2 else value), after


U8, U16, U32, U64 = Scalar("B"), Scalar("H"), Scalar("I"), Scalar("Q")
I8, I16, I32, I64 = Scalar("b"), Scalar("h"), Scalar("i"), Scalar("q")
HEX32, HEX64 = Scalar("I", Hex), Scalar("Q", Hex)
F32, F64 = _Float("f"), _Float("d")
BOOL8, BOOL32 = _Bool("B"), _Bool("I")
PTR = Scalar("Q", Hex, code4="I")
SIZE = Scalar("Q", code4="I")
PORT = Scalar("H", order=">")  # network byte order
FILETIME = Scalar("Q", FileTime)


def named(base: Scalar, names: Mapping[int, str], flags: bool = False) -> Scalar:
    """The number type ``base`` whose values (or bits) have names."""
    return Scalar(base.code, lambda value: Named(value, names, flags), base.code4, base.order)


class Blob(FieldType):
    """``size`` bytes as they are, or what ``read`` makes of them and ``write`` turns back."""

    def __init__(
        self, size: int, read: Callable[[bytes], Any] | None = None, write: Callable[[Any], bytes] | None = None
    ) -> None:
        self.size, self._read, self._write = size, read, write

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        after = at + self.size
        if after > end:
            raise Short
        raw = bytes(data[at:after])
        return (raw if self._read is None else self._read(raw)), after

    def encode(self, value: Any, pointer: int) -> bytes:
        raw = value.raw if isinstance(value, Exact) else bytes(value) if self._write is None else self._write(value)
        if len(raw) != self.size:
            raise ValueError(f"{len(raw)} bytes for a field of {self.size}")
        return raw


def _read_systemtime(raw: bytes) -> str:
    """ISO text; with the bytes where the day of the week or the date itself is not right."""
    year, month, _weekday, day, hour, minute, second, ms = struct.unpack("<8H", raw)
    text = f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}.{ms:03d}"
    try:
        return text if _write_systemtime(text) == raw else Exact(text, raw)
    except ValueError:
        return Exact(text, raw)


def _write_systemtime(value: Any) -> bytes:
    m = datetime.fromisoformat(value)
    return struct.pack(
        "<8H", m.year, m.month, m.isoweekday() % 7, m.day, m.hour, m.minute, m.second, m.microsecond // 1000
    )


GUID = Blob(16, lambda raw: UUID(bytes_le=raw), lambda value: value.bytes_le)
SYSTEMTIME = Blob(16, _read_systemtime, _write_systemtime)
IPV4 = Blob(4, lambda raw: str(ipaddress.IPv4Address(raw)), lambda value: ipaddress.IPv4Address(value).packed)
IPV6 = Blob(16, lambda raw: str(ipaddress.IPv6Address(raw)), lambda value: ipaddress.IPv6Address(value).packed)


class Rest(FieldType):
    """All bytes up to the end of the payload."""

    empty = True

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        return bytes(data[at:end]), end

    def encode(self, value: Any, pointer: int) -> bytes:
        return bytes(value)


class CountedBytes(FieldType):
    """Bytes behind their number."""

    def __init__(self, size: Scalar) -> None:
        self.size = size

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        size, at = self.size.decode(data, at, end, pointer)
        if at + size > end:
            raise Short
        return bytes(data[at : at + size]), at + size

    def encode(self, value: Any, pointer: int) -> bytes:
        return self.size.encode(len(value), pointer) + bytes(value)


class Struct(FieldType):
    """Fields inside of a field, as a dict."""

    def __init__(self, members: Mapping[str, FieldType]) -> None:
        self.members = members

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        found = {}
        for name, type_ in self.members.items():
            found[name], at = type_.decode(data, at, end, pointer)
        return found, at

    def encode(self, value: Any, pointer: int) -> bytes:
        return b"".join(type_.encode(value[name], pointer) for name, type_ in self.members.items())


class Bits(FieldType):
    """A number cut into parts: ``Bits(U8, Low=(0x0F, 0), High=(0xF0, 4))``; the masks cover every bit once.

    A third item of a part is made of the value, for example a `Named`; a part of one bit is a bool without one.
    """

    def __init__(self, base: Scalar, **parts: tuple[int, int] | tuple[int, int, Callable[[int], Any]]) -> None:
        self.base = base
        self.parts = tuple(parts)
        self._parts = [
            (p[0], p[1], p[2] if len(p) == 3 else (bool if p[0] == 1 << p[1] else int)) for p in parts.values()
        ]

    def code_for(self, pointer: int) -> str:
        return self.base.code_for(pointer)

    def wrap(self, number: int) -> tuple[Any, ...]:
        return tuple(make((number & mask) >> shift) for mask, shift, make in self._parts)

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        number, after = self.base.decode(data, at, end, pointer)
        return self.wrap(number), after

    def encode(self, value: Any, pointer: int) -> bytes:
        number = 0
        for part, (mask, shift, _) in zip(value, self._parts, strict=True):
            moved = int(part) << shift
            if moved & ~mask:
                raise ValueError(f"{part} does not fit {mask >> shift:#x}")
            number |= moved
        return self.base.encode(number, pointer)


class Array(FieldType):
    """A list of ``item``: with ``count`` elements, behind a number of them, or (None) all that fit up to the end."""

    def __init__(self, item: FieldType, count: int | Scalar | None = None) -> None:
        self.item, self.count = item, count
        self.empty = count is None

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        wanted: int | None = self.count if not isinstance(self.count, Scalar) else None
        if isinstance(self.count, Scalar):
            wanted, at = self.count.decode(data, at, end, pointer)
        item = self.item
        if type(item) is Scalar and item.order == "<":
            code = item.code_for(pointer)
            fitting = (end - at) // struct.calcsize("<" + code)
            if wanted is not None and wanted > fitting:
                raise Short
            packed = struct.Struct(f"<{fitting if wanted is None else wanted}{code}")
            values = packed.unpack_from(data, at)
            return list(values if item.wrap is None else map(item.wrap, values)), at + packed.size
        found: list[Any] = []
        while wanted is None or len(found) < wanted:
            try:
                if at >= end and wanted is None:
                    break
                value, after = item.decode(data, at, end, pointer)
            except Short:
                if wanted is None:
                    break
                raise
            if after == at:  # an item without bytes would never end
                raise Short
            found.append(value)
            at = after
        return found, at

    def encode(self, value: Sequence[Any], pointer: int) -> bytes:
        if isinstance(self.count, int) and len(value) != self.count:
            raise ValueError(f"{len(value)} elements for an array of {self.count}")
        head = self.count.encode(len(value), pointer) if isinstance(self.count, Scalar) else b""
        return head + b"".join(self.item.encode(item, pointer) for item in value)


class Columns(FieldType):
    """Rows of number fields up to the end of the payload, as one list a column."""

    empty = True

    def __init__(self, **columns: Scalar) -> None:
        self.columns = columns
        self.parts = tuple(columns)

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        row = struct.Struct("<" + "".join(column.code_for(pointer) for column in self.columns.values()))
        after = at + (end - at) // row.size * row.size
        cells = list(zip(*row.iter_unpack(data[at:after]), strict=True)) or [()] * len(self.columns)
        return tuple(
            list(values if column.wrap is None else map(column.wrap, values))
            for column, values in zip(self.columns.values(), cells, strict=True)
        ), after

    def encode(self, value: Any, pointer: int) -> bytes:
        row = struct.Struct("<" + "".join(column.code_for(pointer) for column in self.columns.values()))
        return b"".join(row.pack(*cells) for cells in zip(*value, strict=True))
