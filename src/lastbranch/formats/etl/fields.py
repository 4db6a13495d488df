"""Field types of ETW payloads: numbers, times, GUIDs, addresses. Text is in `field_text`, the rest in `field_groups`.

A type turns bytes into a value and back: ``decode(data, at, end, pointer) -> (value, next)`` and
``encode(value, pointer) -> bytes``, where ``pointer`` is the pointer size of the event (4 or 8). It reads nothing at or
past ``end`` and raises `Short` where the bytes do not hold one whole value. For every value it returns, encode gives
the very bytes back.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from ..numbers import pack_number
from .field_values import Exact, FileTime, Hex, Named

__all__ = [
    "BOOL8", "BOOL32", "F32", "F64", "FILETIME", "GUID", "HEX32", "HEX64", "I16", "I32", "I64", "I8", "IPV4", "IPV6",
    "PORT", "PTR", "SIZE", "SYSTEMTIME", "U16", "U32", "U64", "U8",
    "Blob", "FieldType", "Rest", "Scalar", "Short", "named",
]  # fmt: skip


class Short(ValueError):
    """The bytes up to the end do not hold one value of the type."""


class FieldType:
    """One type of field. ``parts`` names the values of a type that makes several; ``empty`` ones may take no bytes.

    ``leaves`` is how many values one of it holds at least.
    """

    parts: tuple[str, ...] = ()
    empty = False
    leaves = 1

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
        return pack_number(_struct(self.order + self.code_for(pointer)), value)


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
