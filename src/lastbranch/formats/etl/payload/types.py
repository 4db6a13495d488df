"""Field types of ETW payloads: numbers, times, GUIDs, addresses, text, and compound types.

A type turns bytes into a value and back: ``decode(data, at, end, pointer) -> (value, next)`` and ``encode(value,
pointer) -> bytes``, where ``pointer`` is the pointer size of the event (4 or 8). The decoder reads nothing at or past
``end`` and raises `Short` if the bytes do not hold a whole value. `encode` returns the very bytes that `decode` read a
value from.
"""

from __future__ import annotations

import codecs
import ipaddress
import struct
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from ...fields import Hex as Hex
from ...fields import pack_number

__all__ = [
    "ANSI",
    "Array",
    "BOOL32",
    "BOOL8",
    "Bits",
    "Blob",
    "CountedString",
    "CountedBytes",
    "Dependent",
    "Exact",
    "F32",
    "F64",
    "FILETIME",
    "FieldType",
    "FileTime",
    "FixedString",
    "GUID",
    "HEX32",
    "HEX64",
    "Hex",
    "I16",
    "I32",
    "I64",
    "I8",
    "IPV4",
    "IPV6",
    "Named",
    "PLAIN_SID",
    "PORT",
    "PTR",
    "Rest",
    "PayloadRows",
    "SID",
    "SIZE",
    "SLACK",
    "SYSTEMTIME",
    "Scalar",
    "Short",
    "Struct",
    "Text",
    "U16",
    "U32",
    "U64",
    "U8",
    "UNKNOWN",
    "UTF16",
    "UTF8",
    "WIDE",
    "named",
]


# -- Values that are shown in a form of their own
#
# The number kinds are ints (they compare, hash and compute as such) whose ``str()`` is the customary form. An `Exact`
# is a string that keeps the bytes it was read from, for text that does not determine them: a string cut off by the end
# of its event, letters after the NUL of a fixed-size array, a SID with the pointers before it.


_FILETIME_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)


class FileTime(int):
    """100-ns ticks since 1601-01-01 UTC; shown as ISO 8601 with all seven decimals."""

    __slots__ = ()

    def __str__(self) -> str:
        try:
            moment = _FILETIME_EPOCH + timedelta(seconds=int(self) // 10_000_000)
        except OverflowError:
            return f"{int(self):#x}"
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(self) % 10_000_000:07d}Z"


class Named(int):
    """A number whose values (or, with ``flags``, bits) have names. ``names`` is the whole table."""

    names: Mapping[int, str]
    flags: bool

    def __new__(cls, value: int, names: Mapping[int, str], flags: bool = False) -> Named:
        made = super().__new__(cls, value)
        made.names, made.flags = names, flags
        return made

    def __str__(self) -> str:
        value = int(self)
        if not self.flags or not value:
            return self.names.get(value, str(value))
        bits = sorted(bit for bit in self.names if bit > 0 and bit & (bit - 1) == 0 and bit & value)
        unknown = value & ~sum(bits)
        return "|".join([*(self.names[bit] for bit in bits), *([f"{unknown:#x}"] if unknown else [])])

    def __reduce__(self) -> tuple[object, ...]:
        return Named, (int(self), self.names, self.flags)


class Exact(str):
    """A string and the ``raw`` bytes of its whole field, which encoding writes back unchanged."""

    raw: bytes

    def __new__(cls, text: str, raw: bytes) -> Exact:
        made = super().__new__(cls, text)
        made.raw = raw
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return Exact, (str(self), self.raw)


class Short(ValueError):
    """The bytes up to the end do not hold one value of the type."""


class FieldType:
    """One type of field."""

    parts: tuple[str, ...] = ()
    """Names of the values of a type that makes several."""
    empty = False
    """Whether a value may take no bytes."""
    leaves = 1
    """How many values one of it holds at least."""
    dependent = False
    """Whether lengths or counts are the values of earlier fields: `within` has to be called before `decode`."""

    def within(self, scope: Mapping[str, Any]) -> FieldType:
        """The type after fields with the values of ``scope``. Raises `Short` where these do not determine it."""
        return self

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        raise NotImplementedError

    def encode(self, value: Any, pointer: int) -> bytes:
        raise NotImplementedError


class _Unknown(FieldType):
    """A type of unknown size: it and what follows stay bytes."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        raise Short


UNKNOWN = _Unknown()


@cache
def _struct(code: str) -> struct.Struct:
    return struct.Struct(code)


def _bytes(data: bytes, at: int, size: int, end: int) -> bytes:
    if at + size > end:
        raise Short
    return bytes(data[at : at + size])


# -- Numbers


class Scalar(FieldType):
    """A number of a `struct` code (for 32-bit events ``code4`` if different), shown as ``wrap`` says."""

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

    def low_bits(self, value: int, pointer: int) -> bytes:
        """The low bits of an integer that does not fit, as C stores them."""
        size = struct.calcsize(self.order + self.code_for(pointer))
        return (value & (1 << 8 * size) - 1).to_bytes(size, "little" if self.order == "<" else "big")


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


class _NamedValues(FieldType):
    """Numbers of another type, with names; values that are no numbers stay as they are."""

    def __init__(self, base: FieldType, names: Mapping[int, str], flags: bool) -> None:
        self._base, self._names, self._flags = base, names, flags
        self.empty = base.empty

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        value, after = self._base.decode(data, at, end, pointer)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return (Named(value, self._names, self._flags) if is_number else value), after


def named(base: FieldType, names: Mapping[int, str], flags: bool = False) -> FieldType:
    """The type ``base``, whose values (or, with ``flags``, bits) have names."""
    if type(base) is not Scalar:
        return _NamedValues(base, names, flags)
    return Scalar(base.code, lambda value: Named(value, names, flags), base.code4, base.order)


# -- Bytes of a fixed number


class _Exactly(FieldType):
    """A type whose values may be an `Exact`; others are made into bytes by `_write`."""

    def encode(self, value: Any, pointer: int) -> bytes:
        return value.raw if isinstance(value, Exact) else self._write(value, pointer)

    def _write(self, value: Any, pointer: int) -> bytes:
        raise NotImplementedError


class Blob(_Exactly):
    """``size`` bytes as they are, or what ``read`` makes of them and ``write`` turns back."""

    def __init__(self, size: int, read: Callable[[bytes], Any] = bytes, write: Callable[[Any], bytes] = bytes) -> None:
        self.size, self._read, self._to_bytes = size, read, write
        self.empty = not size

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        return self._read(_bytes(data, at, self.size, end)), at + self.size

    def encode(self, value: Any, pointer: int) -> bytes:
        raw = super().encode(value, pointer)
        if len(raw) != self.size:
            raise ValueError(f"{len(raw)} bytes for a field of {self.size}")
        return raw

    def _write(self, value: Any, pointer: int) -> bytes:
        return self._to_bytes(value)


def _read_systemtime(raw: bytes) -> str:
    """ISO text; an `Exact` where the day of the week or the date itself is not right."""
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


# -- Bytes of a varying number


class Rest(FieldType):
    """All bytes up to the end of the payload."""

    empty = True

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        return bytes(data[at:end]), end

    def encode(self, value: Any, pointer: int) -> bytes:
        return bytes(value)


class CountedBytes(FieldType):
    """Bytes after their number."""

    def __init__(self, size: Scalar) -> None:
        self.size = size

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        size, at = self.size.decode(data, at, end, pointer)
        return _bytes(data, at, size, end), at + size

    def encode(self, value: Any, pointer: int) -> bytes:
        return self.size.encode(len(value), pointer) + bytes(value)


# -- Text
#
# Wide strings are UTF-16LE in which lone surrogates are kept; narrow ones are shown as UTF-8, with bytes that are not
# UTF-8 (the log does not record the system's ANSI code page) as surrogate escapes, so that both encode back exactly.


@dataclass(frozen=True, slots=True)
class Text:
    """A character coding of ``unit`` bytes: from bytes to a string and exactly back."""

    unit: int
    coding: str
    errors: str
    decoder: Callable[..., tuple[str, int]]

    def read(self, raw: bytes) -> str:
        return raw[: len(raw) - len(raw) % self.unit].decode(self.coding, self.errors)

    def write(self, text: str) -> bytes:
        return text.encode(self.coding, self.errors)

    def find_end(self, data: bytes, at: int, end: int) -> int:
        """Position of the first NUL character, -1 without one."""
        nul = bytes(self.unit)
        found = data.find(nul, at, end)
        while found >= 0 and (found - at) % self.unit:
            found = data.find(nul, found + 1, end)
        return found


UTF8 = Text(1, "utf-8", "surrogateescape", codecs.utf_8_decode)
UTF16 = Text(2, "utf-16-le", "surrogatepass", codecs.utf_16_le_decode)


class _TerminatedString(_Exactly):
    """A string up to its NUL character, or to the end without one (an `Exact`)."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        if at >= end:
            raise Short
        stop = self.text.find_end(data, at, end)
        if stop < 0:
            raw = bytes(data[at:end])
            return Exact(self.text.read(raw), raw), end
        return self.text.read(bytes(data[at:stop])), stop + self.text.unit

    def _write(self, value: Any, pointer: int) -> bytes:
        if "\0" in value:
            raise ValueError("a NUL inside a NUL-terminated string")
        return self.text.write(value) + bytes(self.text.unit)


class FixedString(Blob):
    """A string in ``units`` characters of room, padded with NUL; one with other bytes after the first NUL is an
    `Exact`."""

    def __init__(self, units: int, text: Text) -> None:
        super().__init__(units * text.unit, self._text_of, lambda value: text.write(value).ljust(self.size, b"\0"))
        self.text = text

    def _text_of(self, raw: bytes) -> str:
        stop = self.text.find_end(raw, 0, self.size)
        if stop < 0:
            return self.text.read(raw)
        text = self.text.read(raw[:stop])
        return Exact(text, raw) if any(raw[stop:]) else text


class CountedString(_Exactly):
    """A string after its size, in bytes or units of ``scale`` bytes; NUL characters have no meaning in it."""

    def __init__(self, size: Scalar, text: Text, scale: int = 1) -> None:
        self.size, self.text, self.scale = size, text, scale

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        size, start = self.size.decode(data, at, end, pointer)
        after = start + size * self.scale
        text = self.text.read(_bytes(data, start, after - start, end))
        return (Exact(text, bytes(data[at:after])) if (after - start) % self.text.unit else text), after

    def _write(self, value: Any, pointer: int) -> bytes:
        raw = self.text.write(value)
        return self.size.encode(len(raw) // self.scale, pointer) + raw


WIDE, ANSI = _TerminatedString(UTF16), _TerminatedString(UTF8)


# -- Security identifiers


class _Sid(_Exactly):
    """A binary SID: u8 revision, u8 count, 6-byte authority (big endian), count u32 sub-authorities. As "S-1-5-18"."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        if at + 8 > end or data[at + 1] > 15 or at + 8 + 4 * data[at + 1] > end:
            raise Short
        after = at + 8 + 4 * data[at + 1]
        authority = int.from_bytes(data[at + 2 : at + 8], "big")
        subs = struct.unpack_from(f"<{data[at + 1]}I", data, at + 8)
        shown = authority if authority < 1 << 32 else f"{authority:#x}"
        return "-".join(map(str, ("S", data[at], shown, *subs))), after

    def _write(self, value: Any, pointer: int) -> bytes:
        letter, revision, authority, *subs = value.split("-")
        if letter != "S" or len(subs) > 15:
            raise ValueError(f"not a SID: {value}")
        head = bytes([int(revision), len(subs)]) + int(authority, 0).to_bytes(6, "big")
        return head + struct.pack(f"<{len(subs)}I", *map(int, subs))


class _UserSid(_Exactly):
    """The block before a process's name: TOKEN_USER (two pointers) and the SID, or 4 zero bytes for none (as "").

    Microsoft's reader takes a zero first u32 for "none". Some writers zero the TOKEN_USER and put a SID after it all
    the same (the Windows 7 test captures), so there the SID itself decides.
    """

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        if at + 4 > end:
            raise Short
        start = at + 2 * pointer
        if data[at : at + 4] == bytes(4) and not self._looks_like_sid(data, at, start, end):
            return "", at + 4
        text, after = PLAIN_SID.decode(data, start, end, pointer)
        return Exact(text, bytes(data[at:after])), after

    @staticmethod
    def _looks_like_sid(data: bytes, at: int, start: int, end: int) -> bool:
        if start + 8 > end or any(data[at:start]) or data[start] != 1:
            return False
        return 1 <= data[start + 1] <= 15 and start + 8 + 4 * data[start + 1] <= end

    def _write(self, value: Any, pointer: int) -> bytes:
        return b"\1".ljust(2 * pointer, b"\0") + PLAIN_SID.encode(value, pointer) if value else bytes(4)


PLAIN_SID, SID = _Sid(), _UserSid()


# -- Types made of others: bit fields, structures, arrays, rows


SLACK = 1024
"""How many more values than bytes an array may have. Without a limit a hostile schema makes a billion of an event."""


class Bits(FieldType):
    """A number cut into parts: ``Bits(U8, Low=(0x0F, 0), High=(0xF0, 4))``; the masks cover every bit once.

    The third item of a part makes the part's value, for example a `Named`; without a third item, a part of one bit is a
    bool.
    """

    def __init__(self, base: Scalar, **parts: tuple[int, int] | tuple[int, int, Callable[[int], Any]]) -> None:
        self.base = base
        self.parts = tuple(parts)
        self.cuts = [
            (p[0], p[1], p[2] if len(p) == 3 else (bool if p[0] == 1 << p[1] else int)) for p in parts.values()
        ]

    def code_for(self, pointer: int) -> str:
        return self.base.code_for(pointer)

    def wrap(self, number: int) -> tuple[Any, ...]:
        return tuple(make((number & mask) >> shift) for mask, shift, make in self.cuts)

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        number, after = self.base.decode(data, at, end, pointer)
        return self.wrap(number), after

    def encode(self, value: Any, pointer: int) -> bytes:
        number = 0
        for part, (mask, shift, _) in zip(value, self.cuts, strict=True):
            moved = int(part) << shift
            if moved & ~mask:
                raise ValueError(f"{part} does not fit {mask >> shift:#x}")
            number |= moved
        return self.base.encode(number, pointer)


class Struct(FieldType):
    """Fields inside a field, as a dict. ``outer``: values of the fields before it."""

    def __init__(self, members: Mapping[str, FieldType], outer: Mapping[str, Any] | None = None) -> None:
        self.members, self._outer = members, outer or {}
        self.leaves = 1 + sum(type_.leaves for type_ in members.values())
        self.dependent = any(type_.dependent for type_ in members.values())
        self.empty = bool(members) and all(type_.empty for type_ in members.values())

    def within(self, scope: Mapping[str, Any]) -> FieldType:
        return Struct(self.members, scope) if self.dependent else self

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        found: dict[str, Any] = {}
        scope = ChainMap(found, self._outer)  # type: ignore[arg-type]
        for name, type_ in self.members.items():
            found[name], at = type_.within(scope).decode(data, at, end, pointer)
        return found, at

    def encode(self, value: Any, pointer: int) -> bytes:
        return b"".join(type_.encode(value[name], pointer) for name, type_ in self.members.items())


class Array(FieldType):
    """A list of ``item``: ``count`` elements, a number followed by so many elements, or (None) all elements that fit up
    to the end."""

    def __init__(self, item: FieldType, count: int | Scalar | None = None) -> None:
        self.item, self.count = item, count
        self.empty = not count
        self.dependent = item.dependent

    def within(self, scope: Mapping[str, Any]) -> FieldType:
        return Array(self.item.within(scope), self.count) if self.dependent else self

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
        if wanted is not None and wanted * item.leaves > end - at + SLACK:
            raise Short
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


class PayloadRows(FieldType):
    """Rows of number fields up to the end of the payload, as one list a column."""

    empty = True

    def __init__(self, **columns: Scalar) -> None:
        self.columns = columns
        self.parts = tuple(columns)

    def _row(self, pointer: int) -> struct.Struct:
        return struct.Struct("<" + "".join(column.code_for(pointer) for column in self.columns.values()))

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        row = self._row(pointer)
        after = at + (end - at) // row.size * row.size
        cells = list(zip(*row.iter_unpack(data[at:after]), strict=True)) or [()] * len(self.columns)
        return tuple(
            list(values if column.wrap is None else map(column.wrap, values))
            for column, values in zip(self.columns.values(), cells, strict=True)
        ), after

    def encode(self, value: Any, pointer: int) -> bytes:
        return b"".join(self._row(pointer).pack(*cells) for cells in zip(*value, strict=True))


class Dependent(FieldType):
    """A type that the values of earlier fields determine: ``make`` returns it for these, or raises `Short`."""

    empty = True
    dependent = True

    def __init__(self, make: Callable[[Mapping[str, Any]], FieldType]) -> None:
        self._make = make

    def within(self, scope: Mapping[str, Any]) -> FieldType:
        return self._make(scope)
