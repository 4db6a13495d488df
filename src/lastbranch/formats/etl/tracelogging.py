"""Self-describing (TraceLogging) events: the schema that rides along with each, and its layout.

The schema is the extended data item 11, the provider's name the item 12 (traits). Systems before Windows 10 put both
ahead of the payload instead, in events of channel 11. Source: TraceLoggingProvider.h and TraceLoggingDynamic.h of the
Windows SDK, which document the format:

    schema   u16 size, event tags (bytes, the last without bit 7), name, then a field after the other
    field    name, in-type, [out-type if bit 7 of the in-type], [field tags if bit 7 of the out-type],
             [u16 number of elements for a constant array, or u16 size and bytes for a custom type]
    traits   u16 size, name, then u16 size, u8 type, bytes each; type 1 is the provider group's GUID

Names are UTF-8 with a NUL. A structure's out-type is the number of fields after it that belong to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from .event import Event
from .field_text import ANSI, PLAIN_SID, WIDE, Counted, Fixed, Text, Text8, Text16
from .field_values import FileTime, Hex
from .fields import (
    BOOL8,
    BOOL32,
    F32,
    F64,
    FILETIME,
    GUID,
    HEX32,
    HEX64,
    I8,
    I16,
    I32,
    I64,
    IPV4,
    IPV6,
    PORT,
    PTR,
    SYSTEMTIME,
    U8,
    U16,
    U32,
    U64,
    Array,
    CountedBytes,
    FieldType,
    Scalar,
    Struct,
)  # fmt: skip
from .payloads import Field, Layout

__all__ = ["Schema", "Traits", "describe", "parse_schema", "parse_traits"]

SCHEMA_ITEM, TRAITS_ITEM = 11, 12
CHANNEL = 11
_MOST_NESTED = 32

IN_TYPES: dict[int, FieldType] = {
    1: WIDE, 2: ANSI, 3: I8, 4: U8, 5: I16, 6: U16, 7: I32, 8: U32, 9: I64, 10: U64, 11: F32, 12: F64, 13: BOOL32,
    14: CountedBytes(U16), 15: GUID, 16: PTR, 17: FILETIME, 18: SYSTEMTIME, 19: PLAIN_SID, 20: HEX32, 21: HEX64,
    22: Counted(U16, Text16()), 23: Counted(U16, Text8()), 25: CountedBytes(U16),
}  # fmt: skip
_STRUCT = 24
_CONSTANT, _VARIABLE, _CUSTOM = 0x20, 0x40, 0x60
_CHAIN = 0x80

(
    OUT_STRING, OUT_BOOLEAN, OUT_HEX, OUT_PORT, OUT_IPV4, OUT_IPV6, OUT_NTSTATUS, OUT_HRESULT, OUT_FILETIME, OUT_SIGNED,
    OUT_UNSIGNED, OUT_CODE_POINTER,
) = 2, 3, 4, 7, 8, 9, 14, 15, 16, 17, 18, 37  # fmt: skip


class Schema(NamedTuple):
    """What an event says of itself. ``size`` is the number of bytes that said it."""

    name: str
    layout: Layout
    size: int


class Traits(NamedTuple):
    """What the provider says of itself; ``group`` is "" without one."""

    name: str
    group: str
    size: int


def describe(event: Event) -> tuple[Schema, Traits | None, bytes] | None:
    """(schema, traits, payload) of a self-describing event, None for others and for damaged schemas."""
    items = dict(reversed(event.extended))
    if SCHEMA_ITEM in items:
        schema = parse_schema(items[SCHEMA_ITEM])
        if schema is None:
            return None
        return schema, parse_traits(items[TRAITS_ITEM]) if TRAITS_ITEM in items else None, event.payload
    if event.channel != CHANNEL:
        return None
    traits = parse_traits(_sized(event.payload))
    schema = None if traits is None else parse_schema(_sized(event.payload[traits.size :]))
    if traits is None or schema is None:
        return None
    return schema, traits, event.payload[traits.size + schema.size :]


def _sized(data: bytes) -> bytes:
    """The block that begins ``data`` with its own size; b"" where it is longer than that."""
    size = int.from_bytes(data[:2], "little")
    return data[:size] if 2 < size <= len(data) else b""


@lru_cache(1024)
def parse_traits(data: bytes) -> Traits | None:
    size = int.from_bytes(data[:2], "little")
    end = data.find(b"\0", 2, size)
    if not 2 < size <= len(data) or end < 0:
        return None
    at, group = end + 1, ""
    while at + 3 <= size:
        length = int.from_bytes(data[at : at + 2], "little")
        if length < 3 or at + length > size:
            break
        if data[at + 2] == 1 and length == 19:
            group = str(UUID(bytes_le=data[at + 3 : at + 19]))
        at += length
    return Traits(data[2:end].decode("utf-8", "replace"), group, size)


@lru_cache(4096)
def parse_schema(data: bytes) -> Schema | None:
    """The schema of an item 11. None where it breaks off, or has a type that no document names."""
    size = int.from_bytes(data[:2], "little")
    if not 2 < size <= len(data):
        return None
    reader = _Reader(data, 2, size)
    try:
        reader.tags()
        name = reader.name()
        fields: dict[str, FieldType] = {}
        while reader.at < size:
            _field(reader, fields, _MOST_NESTED)
    except (IndexError, ValueError):
        return None
    return Schema(name, Layout(tuple(Field(*item) for item in fields.items())), size)


class _Reader:
    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def byte(self) -> int:
        if self.at >= self.end:
            raise IndexError
        self.at += 1
        return self.data[self.at - 1]

    def short(self) -> int:
        return self.byte() | self.byte() << 8

    def name(self) -> str:
        stop = self.data.index(b"\0", self.at, self.end)
        found = self.data[self.at : stop]
        self.at = stop + 1
        return found.decode("utf-8", "replace")

    def tags(self) -> None:
        while self.byte() & _CHAIN:
            pass


def _field(reader: _Reader, fields: dict[str, FieldType], nesting: int) -> None:
    name = reader.name()
    coded = reader.byte()
    out = 0
    if coded & _CHAIN:
        out = reader.byte()
        if out & _CHAIN:
            reader.tags()
    in_type, counted, out = coded & 0x1F, coded & _CUSTOM, out & 0x7F
    count = reader.short() if counted == _CONSTANT else 0
    if counted == _CUSTOM:
        for _ in range(reader.short()):
            reader.byte()
        type_: FieldType = CountedBytes(U16)  # how a custom type writes itself is between it and its reader
    elif in_type == _STRUCT:
        if not nesting:
            raise ValueError("structures nested too deep")
        members: dict[str, FieldType] = {}
        for _ in range(out):
            _field(reader, members, nesting - 1)
        type_ = _array(Struct(members), counted, count)
    elif in_type == 0:
        return  # no data
    else:
        type_ = _typed(in_type, out, counted, count)
    fields[unique(name, fields)] = type_


def unique(name: str, taken: dict[str, FieldType]) -> str:
    """A name for a field that no other has: a payload may have two of one name, or one without."""
    name = name or f"Field{len(taken) + 1}"
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def _typed(in_type: int, out: int, counted: int, count: int) -> FieldType:
    type_ = IN_TYPES.get(in_type)
    if type_ is None:
        raise ValueError(f"unknown type {in_type}")
    if out == OUT_STRING and in_type in (3, 4, 5, 6):  # a character; an array of them is a string
        text: Text = Text8() if in_type < 5 else Text16()
        if counted == _VARIABLE:
            return Counted(U16, text, text.unit)
        return Fixed(count if counted else 1, text)
    return _array(shown(type_, out), counted, count)


def _array(item: FieldType, counted: int, count: int) -> FieldType:
    return Array(item, U16) if counted == _VARIABLE else Array(item, count) if counted else item


def shown(type_: FieldType, out: int) -> FieldType:
    """The type with the form that its out-type asks for, where that has one here."""
    if isinstance(type_, CountedBytes):
        return _Ipv6Bytes(type_.size) if out == OUT_IPV6 else type_
    if type(type_) is not Scalar or type_.code not in "bBhHiIqQ":
        return type_
    code = type_.code
    if out == OUT_BOOLEAN:
        return {"B": BOOL8, "I": BOOL32}.get(code.upper(), type_)
    if out in (OUT_HEX, OUT_NTSTATUS, OUT_HRESULT, OUT_CODE_POINTER):
        return Scalar(code.upper(), Hex, type_.code4.upper())
    if out == OUT_PORT and code.upper() == "H":
        return PORT
    if out == OUT_IPV4 and code.upper() == "I":
        return IPV4
    if out == OUT_FILETIME and code.upper() == "Q":
        return Scalar("Q", FileTime)
    if out == OUT_SIGNED:
        return Scalar(code.lower())
    return Scalar(code.upper()) if out == OUT_UNSIGNED else type_


class _Ipv6Bytes(CountedBytes):
    """16 counted bytes that are an address; bytes of another number stay bytes."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[object, int]:
        raw, after = super().decode(data, at, end, pointer)
        return (IPV6.decode(raw, 0, 16, pointer)[0] if len(raw) == 16 else raw), after

    def encode(self, value: object, pointer: int) -> bytes:
        return super().encode(IPV6.encode(value, pointer) if isinstance(value, str) else value, pointer)
