"""Self-describing (TraceLogging) events: the schema that each one carries, and its layout.

The schema is the extended data item 11, the provider's name the item 12 (traits). Systems before Windows 10 put both
before the payload instead, in events of channel 11. Source: TraceLoggingProvider.h and TraceLoggingDynamic.h of the
Windows SDK, which document the format:

    schema   u16 size, event tags (bytes, the last without bit 7), name, then a field after the other
    field    name, in-type, [out-type if bit 7 of the in-type], [field tags if bit 7 of the out-type],
             [u16 number of elements for a constant array, or u16 size and bytes for a custom type]
    traits   u16 size, name, then u16 size, u8 type, bytes each; type 1 is the provider group's GUID

Names are UTF-8 with a NUL. A structure's out-type is the number of its members, which follow as fields.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from ..single_event import Event
from .layouts import EventNames, Field, Layout
from .manifest import IN_TYPES, OUT_STRING, shown
from .types import U16, UTF8, UTF16, Array, CountedBytes, CountedString, FieldType, FixedString, Struct

__all__ = ["describe", "parse_schema", "parse_traits"]


SCHEMA_ITEM, TRAITS_ITEM = 11, 12
CHANNEL = 11
_MOST_NESTED = 32

_STRUCT = 24
_CONSTANT, _VARIABLE, _CUSTOM = 0x20, 0x40, 0x60
_CHAIN = 0x80


class Schema(NamedTuple):
    """The description of an event, which took ``size`` bytes."""

    name: str
    layout: Layout
    size: int


class Traits(NamedTuple):
    """The description of a provider; ``group`` is "" without one."""

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
    traits = parse_traits(_sized_block(event.payload))
    schema = None if traits is None else parse_schema(_sized_block(event.payload[traits.size :]))
    if traits is None or schema is None:
        return None
    return schema, traits, event.payload[traits.size + schema.size :]


def _sized_block(data: bytes) -> bytes:
    """The first block of ``data``, which begins with its own size; b"" where that exceeds ``data``."""
    size = int.from_bytes(data[:2], "little")
    return data[:size] if 2 < size <= len(data) else b""


@lru_cache(256)
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


@lru_cache(1024)
def parse_schema(data: bytes) -> Schema | None:
    """The schema of an item 11. None where it is cut off, or has an undocumented type."""
    size = int.from_bytes(data[:2], "little")
    if not 2 < size <= len(data):
        return None
    reader = _MetadataReader(data, 2, size)
    try:
        reader.tags()
        name = reader.name()
        fields: dict[str, FieldType] = {}
        names = EventNames()
        while reader.at < size:
            _field(reader, fields, names, _MOST_NESTED)
    except (IndexError, ValueError):
        return None
    return Schema(name, Layout(tuple(Field(*item) for item in fields.items())), size)


class _MetadataReader:
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


def _field(reader: _MetadataReader, fields: dict[str, FieldType], names: EventNames, nesting: int) -> None:
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
        type_: FieldType = CountedBytes(U16)  # its contents are a matter of its writer and reader
    elif in_type == _STRUCT:
        if not nesting:
            raise ValueError("structures nested too deep")
        members: dict[str, FieldType] = {}
        inner = EventNames()
        for _ in range(out):
            _field(reader, members, inner, nesting - 1)
        type_ = _array(Struct(members), counted, count)
    elif in_type == 0:
        return  # no data
    else:
        type_ = _type_of(in_type, out, counted, count)
    fields[names.add(name)] = type_


def _type_of(in_type: int, out: int, counted: int, count: int) -> FieldType:
    type_ = IN_TYPES.get(in_type)
    if type_ is None:
        raise ValueError(f"unknown type {in_type}")
    if out == OUT_STRING and in_type in (3, 4, 5, 6):  # a character; an array of them is a string
        text = UTF8 if in_type < 5 else UTF16
        if counted == _VARIABLE:
            return CountedString(U16, text, text.unit)
        return FixedString(count if counted else 1, text)
    return _array(shown(type_, out), counted, count)


def _array(item: FieldType, counted: int, count: int) -> FieldType:
    return Array(item, U16) if counted == _VARIABLE else Array(item, count) if counted else item
