"""Payloads of manifest events: a description (`manifest`) laid over the bytes.

Unlike the kernel's layouts, counts and lengths of a field may stand in another one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from .described_types import IN_TYPES, OUT_IPV6, OUT_SOCKET, shown
from .field_groups import SLACK, CountedBytes
from .field_text import ANSI, SID, WIDE, Counted, Fixed, Text, Text8, Text16
from .field_values import Exact, Named
from .fields import IPV6, SIZE, U16, U32, Blob, FieldType, Rest, Scalar, Short, named
from .manifest import Described, EventMap, MapKey, Property
from .payloads import REST, Layout, layout

__all__ = ["decode_described", "fixed_layout"]

_BIG16 = Scalar("H", order=">")
_EXTRA_TYPES: dict[int, FieldType] = {  # TDH_INTYPE_* from 300 up, of classic (WBEM) descriptions
    300: Counted(U16, Text16()), 301: Counted(U16, Text8()), 302: Counted(_BIG16, Text16()),
    303: Counted(_BIG16, Text8()), 306: Fixed(1, Text16()), 307: Fixed(1, Text8()), 308: SIZE,
    309: CountedBytes(U32), 310: SID,
}  # fmt: skip


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


def decode_described(event: Described, data: bytes, pointer: int, maps: Mapping[MapKey, EventMap]) -> dict[str, Any]:
    """The fields of a payload; from where it does not hold what the description says, bytes under ``REST``."""
    reader = _PayloadReader(data, pointer, event.provider, maps)
    found: dict[str, Any] = {}
    with suppress(Short):
        reader.read(event.properties, found, None)
    if reader.done < len(data):
        found[REST] = data[reader.done :]
    return found


def fixed_layout(event: Described, maps: Mapping[MapKey, EventMap]) -> Layout | None:
    """The same as a layout, for a description in which no count or length stands in another field, else None."""
    fields: dict[str, FieldType] = {}
    for item in event.properties:
        if item.members or item.count is not None or isinstance(item.length, str) or item.name in (*fields, REST):
            return None
        try:
            type_ = _type_of(item, item.length)
        except Short:
            return None
        known = maps.get((event.provider, item.map_name)) if item.map_name else None
        if known is not None:
            if type(type_) is not Scalar:
                return None
            type_ = named(type_, known.names, known.flags)
        fields[item.name] = type_
    return layout(**fields)


_Scope = dict[str, Any] | ChainMap[str, Any]
"""Values by name: of this structure, and outside of it."""


class _PayloadReader:
    def __init__(self, data: bytes, pointer: int, provider: bytes, maps: Mapping[MapKey, EventMap]) -> None:
        self.data, self.end, self.pointer = data, len(data), pointer
        self.provider, self.maps = provider, maps
        self.at = self.done = 0

    def read(self, properties: tuple[Property, ...], found: dict[str, Any], outer: _Scope | None) -> None:
        """The properties in order into ``found``. At the top (no ``outer``) what is whole so far is ``done``."""
        scope: _Scope = found if outer is None else ChainMap(found, outer)
        for item in properties:
            if item.count is None:
                found[item.name] = self._one(item, scope)
            else:
                found[item.name] = self._many(item, self._number(item.count, scope), scope)
            if outer is None:
                self.done = self.at

    def _number(self, value: int | str, scope: _Scope) -> int:
        number = scope.get(value) if isinstance(value, str) else value
        if not isinstance(number, int) or number < 0:
            raise Short
        return number

    def _many(self, item: Property, count: int, scope: _Scope) -> list[Any]:
        if count * _leaves(item) > self.end - self.at + SLACK:
            raise Short
        values = []
        for _ in range(count):
            before = self.at
            values.append(self._one(item, scope))
            if self.at == before:  # elements without bytes could be any number
                raise Short
        return values

    def _one(self, item: Property, scope: _Scope) -> Any:
        if item.members:
            found: dict[str, Any] = {}
            self.read(item.members, found, scope)
            return found
        length = None if item.length is None else self._number(item.length, scope)
        type_ = _type_of(item, length)
        value, self.at = type_.decode(self.data, self.at, self.end, self.pointer)
        known = self.maps.get((self.provider, item.map_name)) if item.map_name else None
        return Named(value, known.names, known.flags) if known and _is_number(value) else value


def _leaves(item: Property) -> int:
    return 1 + sum(_leaves(member) for member in item.members)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _type_of(item: Property, length: int | None) -> FieldType:
    if item.in_type in (1, 2):
        text: Text = Text16() if item.in_type == 1 else Text8()
        return Fixed(length, text) if length else WIDE if item.in_type == 1 else ANSI
    if item.in_type in (304, 305):
        return Rest()
    if item.in_type == 14:
        if item.out_type == OUT_IPV6 and length in (None, 16):
            return IPV6
        if length is None:
            raise Short
        return _SocketAddress(length) if item.out_type == OUT_SOCKET else Blob(length)
    type_ = _EXTRA_TYPES.get(item.in_type) or IN_TYPES.get(item.in_type)
    if type_ is None:
        raise Short
    return shown(type_, item.out_type)
