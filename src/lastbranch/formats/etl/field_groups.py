"""Field types made of others: bit fields, structures, arrays, columns of rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .fields import FieldType, Scalar, Short

__all__ = ["SLACK", "Array", "Bits", "Columns", "CountedBytes", "Struct"]

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
