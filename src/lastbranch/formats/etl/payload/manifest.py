"""Descriptions of manifest events in merged logs, and the payload layouts made from them.

Merging stores the results of TdhGetEventInformation and TdhGetEventMapInformation on its machine (EventMetadata, tdh.h:
TRACE_EVENT_INFO, EVENT_MAP_INFO). Manifests in XML, which make the same descriptions: `manifest_xml`. All offsets and
counts of a description are checked; a damaged one is not used.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

from ..layout import Fields, packed, unpack_fields
from .layouts import EventNames, Layout, layout
from .types import (
    ANSI,
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
    PLAIN_SID,
    PORT,
    PTR,
    SID,
    SIZE,
    SYSTEMTIME,
    U8,
    U16,
    U32,
    U64,
    UNKNOWN,
    UTF8,
    UTF16,
    WIDE,
    Array,
    Blob,
    CountedBytes,
    CountedString,
    Dependent,
    Exact,
    FieldType,
    FileTime,
    FixedString,
    Hex,
    Rest,
    Scalar,
    Short,
    Struct,
    named,
)

__all__ = [
    "Described",
    "EventMap",
    "IN_TYPES",
    "MapKey",
    "OUT_STRING",
    "Property",
    "described_layout",
    "join_names",
    "message_of",
    "parse_event_info",
    "parse_map_info",
    "shown",
]


_MOST_NESTED = 16
_STRUCT, _PARAM_LENGTH, _PARAM_COUNT, _FIXED_LENGTH, _FIXED_COUNT = 0x01, 0x02, 0x04, 0x10, 0x20
_WBEM = 1  # DECODING_SOURCE of classic providers

_EVENT_INFO: Fields = (  # TRACE_EVENT_INFO; offsets count from its start
    ("ProviderGuid", "16s"), ("EventGuid", "16s"),  # 0x00
    ("Id", "H"), ("Version", "B"), ("Channel", "B"), ("Level", "B"), ("Opcode", "B"), ("Task", "H"),  # 0x20
    ("Keyword", "Q"), ("DecodingSource", "I"), ("ProviderNameOffset", "I"),  # 0x28
    ("LevelNameOffset", "I"), ("ChannelNameOffset", "I"), ("KeywordsNameOffset", "I"), ("TaskNameOffset", "I"),  # 0x38
    ("OpcodeNameOffset", "I"), ("EventMessageOffset", "I"), ("ProviderMessageOffset", "I"),  # 0x48
    ("BinaryXMLOffset", "I"), ("BinaryXMLSize", "I"), ("EventNameOffset", "I"), ("EventAttributesOffset", "I"),  # 0x54
    ("PropertyCount", "I"), ("TopLevelPropertyCount", "I"), ("Flags", "I"),  # 0x64; then the properties
)  # fmt: skip
_PROPERTIES = packed(_EVENT_INFO).size
_PROPERTY = struct.Struct("<IIHHIHHI")  # EVENT_PROPERTY_INFO
_MAP = struct.Struct("<IIII")  # EVENT_MAP_INFO

_BITMAPS = 0x02 | 0x10  # EVENTMAP_INFO_FLAG_MANIFEST_BITMAP, WBEM_BITMAP

_OUT_TYPES = {  # TDH_OUTTYPE_* with a form of their own to the numbers of self-describing events
    1: 2, 13: 3, 16: 4, 17: 4, 18: 4, 19: 4, 22: 7, 23: 8, 24: 9, 31: 14, 32: 15, 37: 37,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Property:
    """One field of a description.

    Types are numbered as in `IN_TYPES`, and TDH_INTYPE_* from 300 up. ``count`` and ``length`` are numbers or
    name the field that holds them.
    """

    name: str
    in_type: int = 0
    out_type: int = 0
    map_name: str = ""
    members: tuple[Property, ...] = ()
    count: int | str | None = None
    """None: no array."""
    length: int | str | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """One event of a manifest. ``classic`` ones are found by opcode, the others by id."""

    provider: bytes
    id: int
    version: int
    opcode: int
    provider_name: str
    event_name: str
    properties: tuple[Property, ...]
    classic: bool = False
    message: str = ""
    """A text for people, with %1 for the first property."""
    level: str = ""
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventMap:
    names: Mapping[int, str]
    flags: bool


MapKey = tuple[bytes, str]
"""Provider, name of the map."""


def join_names(task: str, opcode: str, fallback: str) -> str:
    """ "Task/Opcode" without the opcode Info and the prefix of standard opcodes, as consumers show names."""
    opcode = opcode.strip().removeprefix("win:")
    task = task.strip()
    if not task:
        return opcode or fallback
    return task if not opcode or opcode == "Info" else f"{task}/{opcode}"


_INSERT = re.compile(r"%(?:(\d{1,2})(?:![^!]*!)?|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": " "}


def message_of(message: str, values: Sequence[object]) -> str:
    """``message`` with the values in the places of %1, %2 and so on, by the rules of FormatMessage."""

    def insert(found: re.Match[str]) -> str:
        if found[1] is None:
            return _ESCAPES.get(found[2], found[2])
        number = int(found[1])
        return str(values[number - 1]) if 0 < number <= len(values) else "" if not number else found[0]

    return _INSERT.sub(insert, message)


def parse_event_info(data: bytes) -> Described | None:
    """A TRACE_EVENT_INFO; None where it is inconsistent."""
    if len(data) < _PROPERTIES:
        return None
    info = unpack_fields(_EVENT_INFO, data)
    total, top_level, source = info["PropertyCount"], info["TopLevelPropertyCount"], info["DecodingSource"]
    if source > _WBEM or top_level > total or total > (len(data) - _PROPERTIES) // _PROPERTY.size:
        return None
    classic, id_ = source == _WBEM, info["Id"]
    try:
        task, opcode = _text(data, info["TaskNameOffset"]), _text(data, info["OpcodeNameOffset"])
        return Described(
            info["EventGuid" if classic else "ProviderGuid"],
            id_,
            info["Version"],
            info["Opcode"],
            _text(data, info["ProviderNameOffset"]).strip() or str(UUID(bytes_le=info["ProviderGuid"])),
            join_names(task, opcode, f"EventID({id_})"),
            _properties(data, 0, top_level, total, [total], _MOST_NESTED),
            classic,
        )
    except ValueError:
        return None


def _text(data: bytes, at: int) -> str:
    """The NUL-terminated UTF-16 string at an offset; "" for offset 0, which means none."""
    if not at:
        return ""
    if at >= len(data):
        raise ValueError("a name outside the description")
    return str(WIDE.decode(data, at, len(data), 8)[0])


def _properties(
    data: bytes, first: int, number: int, total: int, budget: list[int], nesting: int
) -> tuple[Property, ...]:
    """``number`` properties from ``first`` on. No two structures share members; the budget ends a description in which
    they do."""
    if first + number > total or not nesting:
        raise ValueError("members outside the description")
    budget[0] -= number
    if budget[0] < 0:
        raise ValueError("members used twice")
    found: list[Property] = []
    names = EventNames()
    own = data[_PROPERTIES + _PROPERTY.size * first : _PROPERTIES + _PROPERTY.size * (first + number)]
    for flags, name, kind, out, map_name, count, length, _ in _PROPERTY.iter_unpack(own):
        name = names.add(_text(data, name).strip())
        if flags & _PARAM_COUNT:
            count = _reference(data, count, total)
        elif count < 2 and not flags & _FIXED_COUNT:
            count = None
        length = _reference(data, length, total) if flags & _PARAM_LENGTH else length or None
        if flags & _STRUCT:
            members = _properties(data, kind, out, total, budget, nesting - 1)
            found.append(Property(name, members=members, count=count, length=length))
        else:
            found.append(Property(name, kind, _OUT_TYPES.get(out, 0), _text(data, map_name), (), count, length))
    return tuple(found)


def _reference(data: bytes, index: int, total: int) -> str:
    """The name of the property that holds a count or length."""
    if index >= total:
        raise ValueError("a reference outside the description")
    return _text(data, _PROPERTY.unpack_from(data, _PROPERTIES + _PROPERTY.size * index)[1]).strip()


def parse_map_info(data: bytes) -> tuple[MapKey, EventMap] | None:
    """A provider's GUID and an EVENT_MAP_INFO; offsets count from the latter."""
    provider, data = data[:16], data[16:]
    if len(data) < _MAP.size:
        return None
    name, flags, number, _ = _MAP.unpack_from(data)
    if number > (len(data) - _MAP.size) // 8:
        return None
    try:
        entries = struct.iter_unpack("<II", data[_MAP.size : _MAP.size + 8 * number])
        names = {value: _text(data, at).strip() for at, value in entries}
        return (provider, _text(data, name)), EventMap(names, bool(flags & _BITMAPS))
    except ValueError:
        return None


# -- Field types by the numbers of descriptions: in-types say how a field is stored, out-types how it is shown
#
# In-types 1 to 25 are the same in self-describing events (TlgIn_*, TraceLoggingProvider.h) and manifests (TDH_INTYPE_*,
# tdh.h), but for binary (14), which only the former store with a length. Out-types are those of self-describing events.


IN_TYPES: dict[int, FieldType] = {
    1: WIDE, 2: ANSI, 3: I8, 4: U8, 5: I16, 6: U16, 7: I32, 8: U32, 9: I64, 10: U64, 11: F32, 12: F64, 13: BOOL32,
    14: CountedBytes(U16), 15: GUID, 16: PTR, 17: FILETIME, 18: SYSTEMTIME, 19: PLAIN_SID, 20: HEX32, 21: HEX64,
    22: CountedString(U16, UTF16), 23: CountedString(U16, UTF8), 25: CountedBytes(U16),
}  # fmt: skip

(
    OUT_STRING, OUT_BOOLEAN, OUT_HEX, OUT_PORT, OUT_IPV4, OUT_IPV6, OUT_SOCKET, OUT_NTSTATUS, OUT_HRESULT, OUT_FILETIME,
    OUT_SIGNED, OUT_UNSIGNED, OUT_CODE_POINTER,
) = 2, 3, 4, 7, 8, 9, 10, 14, 15, 16, 17, 18, 37  # fmt: skip


def shown(type_: FieldType, out: int) -> FieldType:
    """The type with the form of its out-type, where that has one here."""
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
    """An address of 16 counted bytes; any other number of bytes stays bytes."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[object, int]:
        raw, after = super().decode(data, at, end, pointer)
        return (IPV6.decode(raw, 0, 16, pointer)[0] if len(raw) == 16 else raw), after

    def encode(self, value: object, pointer: int) -> bytes:
        return super().encode(IPV6.encode(value, pointer) if isinstance(value, str) else value, pointer)


# -- The layout of a described event
#
# Unlike the kernel's layouts, the counts and lengths of a field may be the values of other fields.


_BIG16 = Scalar("H", order=">")
_EXTRA_TYPES: dict[int, FieldType] = {  # TDH_INTYPE_* from 300 up, of classic (WBEM) descriptions
    300: CountedString(U16, UTF16), 301: CountedString(U16, UTF8), 302: CountedString(_BIG16, UTF16),
    303: CountedString(_BIG16, UTF8), 304: Rest(), 305: Rest(), 306: FixedString(1, UTF16),
    307: FixedString(1, UTF8), 308: SIZE, 309: CountedBytes(U32), 310: SID,
}  # fmt: skip
_STRINGS = {1: (WIDE, UTF16), 2: (ANSI, UTF8)}
_BINARY = 14


class _SocketAddress(Blob):
    """A SOCKADDR of IPv4 (u16 family 2, u16 port, 4 bytes) or IPv6 (23, port, u32 flow, 16 bytes), port and address in
    network order: as "10.0.0.1:80" or "[::1]:80". Others stay bytes."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        raw, after = super().decode(data, at, end, pointer)
        family, port = raw[:2], int.from_bytes(raw[2:4], "big")
        if family == b"\2\0" and len(raw) >= 8:
            return Exact(f"{IPv4Address(raw[4:8])}:{port}", raw), after
        if family == b"\x17\0" and len(raw) >= 24:
            return Exact(f"[{IPv6Address(raw[8:24])}]:{port}", raw), after
        return raw, after


def described_layout(event: Described, maps: Mapping[MapKey, EventMap]) -> Layout:
    """The layout of the payloads of a described event; from a field of unknown size on they stay bytes."""
    return layout(**{item.name: _type_of(item, event.provider, maps) for item in event.properties})


def _type_of(item: Property, provider: bytes, maps: Mapping[MapKey, EventMap]) -> FieldType:
    names = maps.get((provider, item.map_name)) if item.map_name else None
    members = {member.name: _type_of(member, provider, maps) for member in item.members}

    def resolved(scope: Mapping[str, Any]) -> FieldType:
        count = None if item.count is None else _number(item.count, scope)
        if count == 0:
            return Array(UNKNOWN, 0)
        length = None if item.length is None else _number(item.length, scope)
        one = Struct(members, scope) if members else _plain_type(item, length)
        one = one if names is None else named(one, names.names, names.flags)
        return one if count is None else Array(one, count)

    is_fixed = all(n is None or (isinstance(n, int) and n >= 0) for n in (item.count, item.length))
    return resolved({}) if is_fixed else Dependent(resolved)


def _number(value: int | str, scope: Mapping[str, Any]) -> int:
    """A count or length, or the value of the field that holds it. Raises `Short` where that is none."""
    number = scope.get(value) if isinstance(value, str) else value
    if not isinstance(number, int) or number < 0:
        raise Short
    return int(number)


def _plain_type(item: Property, length: int | None) -> FieldType:
    if item.in_type in _STRINGS:
        terminated, text = _STRINGS[item.in_type]
        return FixedString(length, text) if length else terminated
    if item.in_type == _BINARY:
        if item.out_type == OUT_IPV6 and length in (None, 16):
            return IPV6
        if length is None:
            return UNKNOWN
        return _SocketAddress(length) if item.out_type == OUT_SOCKET else Blob(length)
    type_ = _EXTRA_TYPES.get(item.in_type) or IN_TYPES.get(item.in_type)
    return UNKNOWN if type_ is None else shown(type_, item.out_type)
