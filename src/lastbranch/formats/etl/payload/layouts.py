"""A payload layout: named fields in file order, decoded to a dict and encoded back to the same bytes.

A payload holds a prefix of its layout's fields. Bytes after the last field, and everything from a field on that the
payload does not hold as a whole, are kept under the name `REST`, so that `Layout.encode` returns the payload byte for
byte, whatever it was.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

from .types import Bits, FieldType, Scalar, Short

__all__ = ["Field", "Layout", "EventNames", "REST", "Versions", "layout", "newest"]


REST = "rest"


class Field(NamedTuple):
    """One field. For a type with ``parts``, decoding returns the parts, and the name is their common name."""

    name: str
    type: FieldType

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its values."""
        return self.type.parts or (self.name,)

    def code(self, pointer: int) -> str:
        """The `struct` code of a little-endian number whose value one wrapping call makes; "" for other types."""
        plain = type(self.type) is Bits or (type(self.type) is Scalar and self.type.order == "<")
        return self.type.code_for(pointer) if plain else ""  # type: ignore[attr-defined]


class _NumberRun(NamedTuple):
    """Adjacent numbers that a single `struct` call reads."""

    packed: struct.Struct
    fields: tuple[Field, ...]
    cells: list[tuple[str, Any, tuple[str, ...]]]
    """Name, what the number is wrapped in, and parts of each."""


class Layout:
    """The fields of a version of an event."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self.dependent = any(field.type.dependent for field in fields)
        """Whether lengths or counts are in other fields."""
        self._steps: dict[int, list[_NumberRun | Field]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values that `decode` can return, without `REST`."""
        return tuple(name for field in self.fields for name in field.names)

    def decode(self, data: bytes, pointer: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        at, end = 0, len(data)
        try:
            for step in self._plan(pointer):
                if isinstance(step, _NumberRun):
                    if at + step.packed.size <= end:
                        numbers = step.packed.unpack_from(data, at)
                        for (name, wrap, parts), value in zip(step.cells, numbers, strict=True):
                            if parts:
                                found.update(zip(parts, wrap(value), strict=True))
                            else:
                                found[name] = wrap(value) if wrap else value
                        at += step.packed.size
                        continue
                    fields = step.fields
                else:
                    fields = (step,)
                for name, type_ in fields:
                    if at >= end and not type_.empty:
                        return found
                    value, at = type_.within(found).decode(data, at, end, pointer)
                    if type_.parts:
                        found.update(zip(type_.parts, value, strict=True))
                    elif value is not None:  # None: this payload lacks the field
                        found[name] = value
        except Short:
            pass
        if at < end:
            found[REST] = bytes(data[at:end])
        return found

    def encode(self, values: Mapping[str, Any], pointer: int, *, cut: bool = False) -> bytes:
        """The payload of ``values``; fields that are missing are left out. ValueError for a value out of range, but
        with ``cut`` integers have the low bits that fit."""
        made = []
        for field in self.fields:
            if any(name in values for name in field.names):
                try:
                    value = tuple(values[name] for name in field.names) if field.type.parts else values[field.name]
                    if cut and isinstance(value, int) and type(field.type) is Scalar:
                        made.append(field.type.low_bits(value, pointer))
                    else:
                        made.append(field.type.encode(value, pointer))
                except struct.error as error:
                    raise ValueError(f"{field.name}: {values.get(field.name)!r} does not fit") from error
                except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                    raise ValueError(f"{field.name}: {error}") from error
        return b"".join(made) + bytes(values.get(REST, b""))

    def offsets(self, pointer: int) -> dict[str, tuple[int, str]]:
        """(offset, `struct` code) of the numbers before the first field without a fixed size, for reading in bulk."""
        found: dict[str, tuple[int, str]] = {}
        at = 0
        for field in self.fields:
            code = field.code(pointer)
            if not code:
                break
            found[field.name] = (at, code)
            at += struct.calcsize("<" + code)
        return found

    def _plan(self, pointer: int) -> list[_NumberRun | Field]:
        if pointer not in self._steps:
            steps: list[_NumberRun | Field] = []
            for is_number, group in groupby(self.fields, lambda field: bool(field.code(pointer))):
                fields = tuple(group)
                steps += [_run(fields, pointer)] if is_number else fields
            self._steps[pointer] = steps
        return self._steps[pointer]


def _run(fields: tuple[Field, ...], pointer: int) -> _NumberRun:
    packed = struct.Struct("<" + "".join(field.code(pointer) for field in fields))
    return _NumberRun(packed, fields, [(f.name, getattr(f.type, "wrap", None), f.type.parts) for f in fields])


class EventNames:
    """Makes the names of fields that come from a file unique: an event may have two fields of the same name, or a field
    without a name."""

    def __init__(self) -> None:
        self._uses: dict[str, int] = {REST: 1}
        self._given = 0

    def add(self, name: str) -> str:
        self._given += 1
        name = name or f"Field{self._given}"
        found, number = name, self._uses.get(name, 0)
        while found in self._uses:
            number += 1
            found = f"{name}_{number}"
        self._uses[name] = max(number, 1)
        self._uses.setdefault(found, 1)
        return found


Versions = Mapping[int, Layout]


def layout(*bases: Layout, **fields: FieldType) -> Layout:
    """A layout of named fields, after those of ``bases``: how the tables are written."""
    inherited = tuple(field for base in bases for field in base.fields)
    return Layout(inherited + tuple(Field(name, type_) for name, type_ in fields.items()))


def newest(versions: Versions, version: int) -> Layout | None:
    """The layout of ``version``, or of the newest known version below: later versions append."""
    known = [number for number in versions if number <= version]
    return versions[max(known)] if known else None
