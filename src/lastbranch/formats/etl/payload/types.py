"""Field types of ETW payloads: numbers, times, GUIDs, addresses, text, and types made of others.

A type turns bytes into a value and back: ``decode(data, at, end, pointer) -> (value, next)`` and
``encode(value, pointer) -> bytes``, where ``pointer`` is the pointer size of the event (4 or 8). It reads nothing at or
past ``end`` and raises `Short` where the bytes do not hold one whole value. For every value it returns, encode gives
the very bytes back.
"""

from __future__ import annotations

import codecs
import ipaddress
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from ...numbers import pack_number

__all__ = [
    "ANSI", "Array", "BOOL32", "BOOL8", "Bits", "Blob", "Columns", "Counted", "CountedBytes", "Exact", "F32",
    "F64", "FILETIME", "FieldType", "FileTime", "Fixed", "GUID", "HEX32", "HEX64", "Hex", "I16", "I32", "I64",
    "I8", "IPV4", "IPV6", "Named", "PLAIN_SID", "PORT", "PTR", "Rest", "SID", "SIZE", "SLACK", "SYSTEMTIME",
    "Scalar", "Short", "Struct", "Text", "Text16", "Text8", "U16", "U32", "U64", "U8", "WIDE", "named",
]  # fmt: skip


# -- What decoded fields hold beside plain int, str, bool and lists: values that know how to be shown, and stay exact
#
# The number kinds are ints (they compare, hash and compute as such) whose ``str()`` is the customary form. An `Exact`
# is a string that also keeps the bytes it was read from, for text that does not determine them: a string cut off by the
# end of its event, letters behind the NUL of a fixed-size array, a SID behind a pointer.


_FILETIME_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)


class Hex(int):
    """A number that people read in hexadecimal: an address, a key, a mask."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{int(self):#x}"


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
    """A string and the ``raw`` bytes of its whole field, which encoding writes back as they are."""

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


# -- String and SID types of ETW payloads
#
# Wide strings are UTF-16LE in which lone surrogates are kept; narrow ones are shown as UTF-8, with bytes that are not
# UTF-8 (the system's ANSI code page is not recorded) as surrogate escapes, so that both encode back exactly. Text that
# its bytes alone do not follow from, such as one cut by the end of the event, comes as an `Exact`.


class Text:
    """A character coding: from bytes to a string and exactly back."""

    unit = 1
    coding, errors = "utf-8", "surrogateescape"
    decoder = staticmethod(codecs.utf_8_decode)

    def read(self, raw: bytes) -> str:
        return raw.decode(self.coding, self.errors)

    def write(self, text: str) -> bytes:
        return text.encode(self.coding, self.errors)

    def find_end(self, data: bytes, at: int, end: int) -> int:
        """Where the first NUL character stands, -1 without one."""
        return data.find(b"\0", at, end)


class Text8(Text):
    """One byte a unit."""


class Text16(Text):
    """Two bytes a unit."""

    unit = 2
    coding, errors = "utf-16-le", "surrogatepass"
    decoder = staticmethod(codecs.utf_16_le_decode)

    def read(self, raw: bytes) -> str:
        return raw[: len(raw) & ~1].decode(self.coding, self.errors)

    def find_end(self, data: bytes, at: int, end: int) -> int:
        found = data.find(b"\0\0", at, end)
        while found >= 0 and (found - at) % 2:
            found = data.find(b"\0\0", found + 1, end)
        return found


class _Terminated(FieldType):
    """A string up to its NUL character; without one before the end, all that is there (an `Exact`)."""

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

    def encode(self, value: Any, pointer: int) -> bytes:
        if isinstance(value, Exact):
            return value.raw
        if "\0" in value:
            raise ValueError("a NUL inside of a NUL-terminated string")
        return self.text.write(value) + bytes(self.text.unit)


class Fixed(FieldType):
    """A string in ``units`` characters of room, filled up with NUL; what else stands behind the first NUL is kept."""

    def __init__(self, units: int, text: Text) -> None:
        self.size, self.text = units * text.unit, text

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        after = at + self.size
        if after > end:
            raise Short
        raw = bytes(data[at:after])
        stop = self.text.find_end(raw, 0, self.size)
        text = self.text.read(raw if stop < 0 else raw[:stop])
        return (text if stop < 0 or not any(raw[stop:]) else Exact(text, raw)), after

    def encode(self, value: Any, pointer: int) -> bytes:
        raw = value.raw if isinstance(value, Exact) else self.text.write(value).ljust(self.size, b"\0")
        if len(raw) != self.size:
            raise ValueError(f"{len(raw)} bytes for a field of {self.size}")
        return raw


class Counted(FieldType):
    """A string behind its size, in bytes or units of ``scale`` bytes; NUL characters have no meaning in it."""

    def __init__(self, size: Scalar, text: Text, scale: int = 1) -> None:
        self.size, self.text, self.scale = size, text, scale

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        size, start = self.size.decode(data, at, end, pointer)
        size *= self.scale
        after = start + size
        if after > end:
            raise Short
        text = self.text.read(bytes(data[start:after]))
        return (Exact(text, bytes(data[at:after])) if size % self.text.unit else text), after

    def encode(self, value: Any, pointer: int) -> bytes:
        if isinstance(value, Exact):
            return value.raw
        raw = self.text.write(value)
        return self.size.encode(len(raw) // self.scale, pointer) + raw


WIDE, ANSI = _Terminated(Text16()), _Terminated(Text8())


class _Sid(FieldType):
    """A binary SID: u8 revision, u8 count, 6-byte authority (big endian), count u32 sub-authorities. As "S-1-5-18"."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        if at + 8 > end or data[at + 1] > 15 or at + 8 + 4 * data[at + 1] > end:
            raise Short
        after = at + 8 + 4 * data[at + 1]
        authority = int.from_bytes(data[at + 2 : at + 8], "big")
        subs = struct.unpack_from(f"<{data[at + 1]}I", data, at + 8)
        shown = authority if authority < 1 << 32 else f"{authority:#x}"
        return "-".join(map(str, ("S", data[at], shown, *subs))), after

    def encode(self, value: Any, pointer: int) -> bytes:
        if isinstance(value, Exact):
            return value.raw
        letter, revision, authority, *subs = value.split("-")
        if letter != "S" or len(subs) > 15:
            raise ValueError(f"not a SID: {value}")
        head = bytes([int(revision), len(subs)]) + int(authority, 0).to_bytes(6, "big")
        return head + struct.pack(f"<{len(subs)}I", *map(int, subs))


class _UserSid(FieldType):
    """The block before a process' name: TOKEN_USER (two pointers) and the SID, or 4 zero bytes for none (as "").

    The rule of Microsoft's reader takes a zero first u32 for "none"; some writers zero the TOKEN_USER and put a SID
    behind it all the same (facts: the Windows 7 test captures), so there the SID itself decides.
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

    def encode(self, value: Any, pointer: int) -> bytes:
        if isinstance(value, Exact):
            return value.raw
        if not value:
            return bytes(4)
        return b"\1".ljust(2 * pointer, b"\0") + PLAIN_SID.encode(value, pointer)


PLAIN_SID, SID = _Sid(), _UserSid()


# -- Field types made of others: bit fields, structures, arrays, columns of rows


SLACK = 1024
"""How many more values than bytes an array may have. Without a limit a hostile schema makes a billion of an event."""


class Bits(FieldType):
    """A number cut into parts: ``Bits(U8, Low=(0x0F, 0), High=(0xF0, 4))``; the masks cover every bit once.

    A third item of a part is made of the value, for example a `Named`; a part of one bit is a bool without one.
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
    """Fields inside of a field, as a dict."""

    def __init__(self, members: Mapping[str, FieldType]) -> None:
        self.members = members
        self.leaves = 1 + sum(type_.leaves for type_ in members.values())

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        found = {}
        for name, type_ in self.members.items():
            found[name], at = type_.decode(data, at, end, pointer)
        return found, at

    def encode(self, value: Any, pointer: int) -> bytes:
        return b"".join(type_.encode(value[name], pointer) for name, type_ in self.members.items())


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
