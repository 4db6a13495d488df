"""Layouts of manifest events: from the descriptions that merged traces carry, to the named fields of a payload.

A merged trace holds what TdhGetEventInformation and TdhGetEventMapInformation say of its events on the machine where it
was merged (EventMetadata, tdh.h: TRACE_EVENT_INFO, EVENT_MAP_INFO); an EventSource writes its own manifest, see
`manifest_xml`. All offsets and counts of a description are checked; a damaged one is not used.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from .field_text import WIDE
from .payloads import Names

__all__ = ["Described", "EventMap", "MapKey", "Property", "message_of", "parse_event_info", "parse_map_info"]

_MOST_NESTED = 16
_STRUCT, _PARAM_LENGTH, _PARAM_COUNT, _FIXED_LENGTH, _FIXED_COUNT = 0x01, 0x02, 0x04, 0x10, 0x20
_WBEM = 1  # DECODING_SOURCE of classic providers

_INFO = struct.Struct("<16s16sHBBBBHQ" + "I" * 16)
_PROPERTY = struct.Struct("<IIHHIHHI")
_MAP = struct.Struct("<IIII")

_BITMAPS = 0x02 | 0x10  # EVENTMAP_INFO_FLAG_MANIFEST_BITMAP, WBEM_BITMAP

_OUT_TYPES = {  # TDH_OUTTYPE_* to the numbers of self-describing events, where they ask for a form here
    1: 2, 13: 3, 16: 4, 17: 4, 18: 4, 19: 4, 22: 7, 23: 8, 24: 9, 31: 14, 32: 15, 37: 37,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Property:
    """One field of a description.

    Types are numbered as in `described_types`, and TDH_INTYPE_* from 300 up. ``count`` and ``length`` are numbers or
    name the field that holds them.
    """

    name: str
    in_type: int = 0
    out_type: int = 0
    map_name: str = ""
    members: tuple[Property, ...] = ()
    count: int | str | None = None
    """None where it is no array."""
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
    """What consumers may show of it, with %1 for the first property."""
    level: str = ""
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventMap:
    names: Mapping[int, str]
    flags: bool


MapKey = tuple[bytes, str]
"""Provider, name of the map."""


def join_names(task: str, opcode: str, fallback: str) -> str:
    """ "Task/Opcode", as consumers show it: the opcode Info and the prefix of standard ones are left out."""
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
    """A TRACE_EVENT_INFO; None where it does not hold together."""
    if len(data) < _INFO.size:
        return None
    values = _INFO.unpack_from(data)
    provider, event_guid, id_, version, _, _, opcode, _, _, source = values[:10]
    provider_name, _, _, _, task, opcode_name = values[10:16]
    total, top_level = values[22], values[23]
    if source > _WBEM or top_level > total or total > (len(data) - _INFO.size) // _PROPERTY.size:
        return None
    try:
        properties = _properties(data, 0, top_level, total, [total], _MOST_NESTED)
        name = join_names(_text(data, task), _text(data, opcode_name), f"EventID({id_})")
        return Described(
            bytes(event_guid if source == _WBEM else provider),
            id_,
            version,
            opcode,
            _text(data, provider_name).strip() or str(UUID(bytes_le=provider)),
            name,
            properties,
            classic=source == _WBEM,
        )
    except ValueError:
        return None


def _text(data: bytes, at: int) -> str:
    """The NUL-terminated UTF-16 string at an offset; "" for offset 0, which stands for none."""
    if not at:
        return ""
    if at >= len(data):
        raise ValueError("a name outside of the description")
    return str(WIDE.decode(data, at, len(data), 8)[0])


def _properties(
    data: bytes, first: int, number: int, total: int, budget: list[int], nesting: int
) -> tuple[Property, ...]:
    """Properties ``first`` up. Members partition the array in a good description: the budget ends a bad one."""
    if first + number > total or not nesting:
        raise ValueError("members outside of the description")
    raw = [_PROPERTY.unpack_from(data, _INFO.size + _PROPERTY.size * (first + index)) for index in range(number)]
    budget[0] -= number
    if budget[0] < 0:
        raise ValueError("members used twice")
    found: list[Property] = []
    names = Names()
    for flags, name, kind, out, map_name, count, length, _ in raw:
        members = _properties(data, kind, out, total, budget, nesting - 1) if flags & _STRUCT else ()
        found.append(
            Property(
                names.add(_text(data, name).strip()),
                0 if flags & _STRUCT else kind,
                0 if flags & _STRUCT else _OUT_TYPES.get(out, 0),
                "" if flags & _STRUCT else _text(data, map_name),
                members,
                _reference(data, count, total)
                if flags & _PARAM_COUNT
                else count
                if flags & _FIXED_COUNT or count > 1
                else None,
                _reference(data, length, total) if flags & _PARAM_LENGTH else length or None,
            )
        )
    return tuple(found)


def _reference(data: bytes, index: int, total: int) -> str:
    """The name of the property that holds a count or length."""
    if index >= total:
        raise ValueError("a reference outside of the description")
    return _text(data, _PROPERTY.unpack_from(data, _INFO.size + _PROPERTY.size * index)[1]).strip()


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
