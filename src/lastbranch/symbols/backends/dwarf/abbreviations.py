"""What entries of ``.debug_info`` look like: abbreviations (DWARF 5, 7.5.3) as shapes that units share.

A shape is a tag, whether there are children, and attributes with their forms, in one format (sizes of offsets and
addresses). Most units of a program declare the same few hundred shapes, so attributes are read shape by shape for all
entries of all units at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....binaries.files import Space
from .constants import ADDRESS, AT, BLOCKS, FIXED, FORM, LEB, OFFSET, TAG

__all__ = ["Format", "Shape", "Shapes", "Step"]

CODES_LIMIT = 1 << 14
"""Most abbreviations of a unit (two bytes of LEB128). Compilers come to about a thousand."""

TYPES = frozenset({TAG.ARRAY, TAG.CLASS, TAG.ENUMERATION, TAG.STRUCTURE, TAG.SUBROUTINE_TYPE, TAG.UNION, TAG.INTERFACE,
                   TAG.CALL_SITE, TAG.GNU_CALL_SITE})  # fmt: skip
"""Entries below which there is hardly ever code. With functions that have none of their own, these are jumped over at
first, where they say where their next sibling is (see `entries.walk`)."""


class Format(NamedTuple):
    """What sizes depend on."""

    version: int
    offset_size: int
    address_size: int


class Step(NamedTuple):
    """Bytes to skip, and what says how many more: ``LEB``, ``TEXT`` or ``-9 - n``, the size of a block's length."""

    skip: int
    kind: int


class Shape(NamedTuple):
    """One abbreviation, with what the walk over entries needs of it."""

    tag: int
    children: bool
    attributes: tuple[tuple[int, int, int], ...]
    """(attribute, form, constant of DW_FORM_implicit_const)."""
    format: Format
    size: int
    """Bytes after the code, -1 where that differs from entry to entry."""
    steps: tuple[Step, ...]
    tail: int
    """How to get past it then: the steps, and bytes behind the last one."""
    sibling: int
    """Bytes from the end of the code to a DW_AT_sibling that a first walk follows; -1: none."""
    recorded: bool
    """Whether the walk keeps it: it has code or children."""


class Shapes:
    """All shapes of a file, each once, and the abbreviation tables that point to them."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.known: dict[tuple[int, bool, tuple[tuple[int, int, int], ...], Format], int] = {}
        self.shapes: list[Shape] = []
        self.tables: dict[tuple[int, Format], dict[int, int]] = {}

    def table(self, offset: int, form: Format) -> dict[int, int]:
        """Code -> shape number of the table at ``offset``. Raises `FormatError`."""
        found = self.tables.get((offset, form))
        if found is None:
            found = self.tables[offset, form] = self._read(offset, form)
        return found

    def _read(self, offset: int, form: Format) -> dict[int, int]:
        raw, size, at = self.space.raw, self.space.size, offset
        if not 0 <= offset < size:
            raise self.space.bad("no abbreviations there", offset, "debug_abbrev_offset", offset)
        table: dict[int, int] = {}
        while at < size:
            code, at = uleb(raw, at)
            if code == 0:
                return table
            if code >= CODES_LIMIT or len(table) >= CODES_LIMIT:
                raise self.space.bad(f"codes of {CODES_LIMIT} and more are not read", at, "abbreviation code", code)
            tag, at = uleb(raw, at)
            children = raw[at] != 0
            at += 1
            attributes = []
            while at < size:
                attribute, kind = raw[at], raw[at + 1]  # nearly all are of one byte
                if attribute < 0x80 and kind < 0x80:
                    at += 2
                else:
                    attribute, at = uleb(raw, at)
                    kind, at = uleb(raw, at)
                constant = 0
                if kind == FORM.IMPLICIT_CONST:
                    constant, at = sleb(raw, at)
                if attribute == kind == 0:
                    break
                attributes.append((attribute, kind, constant))
            table[code] = self._number(tag, children, tuple(attributes), form)
        return table

    def _number(self, tag: int, children: bool, attributes: tuple[tuple[int, int, int], ...], form: Format) -> int:
        key = tag, children, attributes, form
        number = self.known.get(key)
        if number is None:
            number = self.known[key] = len(self.shapes)
            self.shapes.append(self._shape(tag, children, attributes, form))
        return number

    def _shape(self, tag: int, children: bool, attributes: tuple[tuple[int, int, int], ...], form: Format) -> Shape:
        steps: list[Step] = []
        skip, sibling = 0, -1
        names = {attribute for attribute, _, _ in attributes}
        for attribute, kind, _ in attributes:
            if attribute == AT.SIBLING and kind == FORM.REF4 and not steps:
                sibling = skip
            length = size_of(kind, form)
            if length is None:
                reason = "DW_FORM_indirect is not read" if kind == FORM.INDIRECT else "a form that is not known"
                raise self.space.bad(reason, 0, "form", kind)
            if length >= 0:
                skip += length
            else:
                steps.append(Step(skip, length))
                skip = 0
        code = bool(names & {AT.LOW_PC, AT.RANGES})
        followed = children and (tag in TYPES or (tag == TAG.SUBPROGRAM and not code))
        return Shape(
            tag, children, attributes, form, -1 if steps else skip, tuple(steps), skip,
            sibling if followed else -1,
            children or (tag in (TAG.SUBPROGRAM, TAG.INLINED_SUBROUTINE) and code),
        )  # fmt: skip

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """(tag, whether there are children) of each shape."""
        return np.array([s.tag for s in self.shapes], np.int64), np.array([s.children for s in self.shapes], bool)


def size_of(kind: int, form: Format) -> int | None:
    """Bytes of a form in ``form``; `LEB`, `TEXT`, or ``-9 - n`` for a block whose length has ``n`` bytes (0: LEB)."""
    if kind in BLOCKS:
        length = BLOCKS[kind]
        return -9 if length == LEB else -9 - length
    length = FIXED.get(kind, None)  # type: ignore[assignment]
    if length == OFFSET:
        return form.address_size if kind == FORM.REF_ADDR and form.version == 2 else form.offset_size
    return form.address_size if length == ADDRESS else length


def uleb(raw: bytes | bytearray, at: int) -> tuple[int, int]:
    """(the unsigned LEB128 number at ``at``, the offset behind it); the padding of a `Space` ends it."""
    value = raw[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


def sleb(raw: bytes | bytearray, at: int) -> tuple[int, int]:
    """The same, signed."""
    value, end = uleb(raw, at)
    bits = 7 * (end - at)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), end
