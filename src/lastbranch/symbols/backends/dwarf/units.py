"""Units of ``.debug_info``: headers and abbreviations (DWARF 5, 7.5.1, 7.5.3 and 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ....arrays import Ints, distinct, interval_of
from ....binaries.dwarf import DW_AT, DW_FORM, DW_TAG, DW_UT, sleb, uleb
from ....binaries.files import Space
from ....errors import FormatError

__all__ = [
    "BLOCK",
    "Cursor",
    "Format",
    "INDEXED",
    "Info",
    "OFFSET",
    "REFERENCES",
    "SIZES",
    "STRINGS",
    "Sections",
    "Shape",
]


# -- Sizes and kinds of forms


OFFSET, ADDRESS, LEB, TEXT, BLOCK = -1, -2, -3, -4, -9
"""Sizes of forms that are not a number of bytes: section offset, address, LEB128 number, string with its zero, and
``BLOCK - n`` for a block whose length has ``n`` bytes (0: a LEB128 number)."""

_FORMS_OF: dict[int, tuple[int, ...]] = {
    ADDRESS: (DW_FORM.addr,),
    OFFSET: (
        DW_FORM.strp,
        DW_FORM.line_strp,
        DW_FORM.strp_sup,
        DW_FORM.GNU_strp_alt,
        DW_FORM.sec_offset,
        DW_FORM.ref_addr,
        DW_FORM.GNU_ref_alt,
    ),
    0: (DW_FORM.flag_present, DW_FORM.implicit_const),
    1: (DW_FORM.data1, DW_FORM.flag, DW_FORM.ref1, DW_FORM.strx1, DW_FORM.addrx1),
    2: (DW_FORM.data2, DW_FORM.ref2, DW_FORM.strx2, DW_FORM.addrx2),
    3: (DW_FORM.strx3, DW_FORM.addrx3),
    4: (DW_FORM.data4, DW_FORM.ref4, DW_FORM.ref_sup4, DW_FORM.strx4, DW_FORM.addrx4),
    8: (DW_FORM.data8, DW_FORM.ref8, DW_FORM.ref_sig8, DW_FORM.ref_sup8),
    16: (DW_FORM.data16,),
    LEB: (
        DW_FORM.sdata,
        DW_FORM.udata,
        DW_FORM.ref_udata,
        DW_FORM.strx,
        DW_FORM.GNU_str_index,
        DW_FORM.addrx,
        DW_FORM.GNU_addr_index,
        DW_FORM.loclistx,
        DW_FORM.rnglistx,
    ),
    TEXT: (DW_FORM.string,),
    BLOCK - 1: (DW_FORM.block1,),
    BLOCK - 2: (DW_FORM.block2,),
    BLOCK - 4: (DW_FORM.block4,),
    BLOCK: (DW_FORM.block, DW_FORM.exprloc),
}
SIZES = {form: size for size, forms in _FORMS_OF.items() for form in forms}
"""Form -> bytes, or one of the sizes above."""


REFERENCES = frozenset({DW_FORM.ref1, DW_FORM.ref2, DW_FORM.ref4, DW_FORM.ref8, DW_FORM.ref_udata})
"""Forms that count from the start of their unit."""

INDEXED = frozenset(
    {DW_FORM.addrx, DW_FORM.addrx1, DW_FORM.addrx2, DW_FORM.addrx3, DW_FORM.addrx4, DW_FORM.GNU_addr_index}
)
"""Forms that are rows of ``.debug_addr``."""

STRINGS = frozenset({DW_FORM.strx, DW_FORM.strx1, DW_FORM.strx2, DW_FORM.strx3, DW_FORM.strx4, DW_FORM.GNU_str_index})
"""Forms that are rows of ``.debug_str_offsets``."""


# -- Abbreviations (DWARF 5, 7.5.3) as shapes of entries that units share
#
# A shape is a tag, whether there are children, and attributes with their forms, in one format (sizes of offsets and
# addresses). Most units of a program declare the same few hundred shapes, so attributes are read shape by shape for all
# entries of all units at once.


CODES_LIMIT = 1 << 14
"""Most abbreviations of a unit (two bytes of LEB128). Compilers come to about a thousand."""

TYPES = frozenset(
    {
        DW_TAG.array_type,
        DW_TAG.class_type,
        DW_TAG.enumeration_type,
        DW_TAG.structure_type,
        DW_TAG.subroutine_type,
        DW_TAG.union_type,
        DW_TAG.interface_type,
        DW_TAG.call_site,
        DW_TAG.GNU_call_site,
    }
)
"""Entries that rarely have code below them. A first walk skips these, and functions without code of their own, where
they have the offset of their next sibling (see `entries.walk`)."""


class Format(NamedTuple):
    """The version and widths of a unit, on which the sizes of forms depend."""

    version: int
    offset_size: int
    address_size: int


class Step(NamedTuple):
    """Bytes to skip, and the variable size that follows: ``LEB``, ``TEXT`` or ``BLOCK - n``."""

    skip: int
    kind: int


class Shape(NamedTuple):
    """One abbreviation, with the facts that the walk over entries needs."""

    tag: int
    children: bool
    attributes: tuple[tuple[int, int, int], ...]
    """(attribute, form, constant of DW_FORM_implicit_const)."""
    format: Format
    size: int
    """Bytes after the code, -1 where that differs from entry to entry."""
    steps: tuple[Step, ...]
    tail: int
    """Bytes after the last step."""
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
                if kind == DW_FORM.implicit_const:
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
            if attribute == DW_AT.sibling and kind == DW_FORM.ref4 and not steps:
                sibling = skip
            length = size_of(kind, form)
            if length is None:
                reason = "DW_FORM_indirect is not read" if kind == DW_FORM.indirect else "an unknown form"
                raise self.space.bad(reason, 0, "form", kind)
            if length >= 0:
                skip += length
            else:
                steps.append(Step(skip, length))
                skip = 0
        code = bool(names & {DW_AT.low_pc, DW_AT.ranges})
        followed = children and (tag in TYPES or (tag == DW_TAG.subprogram and not code))
        return Shape(
            tag,
            children,
            attributes,
            form,
            -1 if steps else skip,
            tuple(steps),
            skip,
            sibling if followed else -1,
            children or (tag in (DW_TAG.subprogram, DW_TAG.inlined_subroutine) and code),
        )

    def columns(self) -> tuple[Ints, Ints]:
        """(tag, 1 if it has children) of each shape."""
        return np.array([s.tag for s in self.shapes], np.int64), np.array([s.children for s in self.shapes], np.int64)


def size_of(kind: int, form: Format) -> int | None:
    """Bytes of values of form ``kind``; `LEB`, `TEXT` or ``BLOCK - n``; ``None`` for a form that is not known."""
    size = SIZES.get(kind)
    if size == OFFSET:
        return form.address_size if kind == DW_FORM.ref_addr and form.version == 2 else form.offset_size
    return form.address_size if size == ADDRESS else size


class Cursor:
    """Reads a `Space` one value after the other, from offset ``at`` on."""

    def __init__(self, space: Space, at: int) -> None:
        self.space, self.at = space, at
        self._order: Literal["little", "big"] = "little" if space.order == "<" else "big"

    def number(self, width: int) -> int:
        """An unsigned number of ``width`` bytes."""
        self.at += width
        return int.from_bytes(self.space.raw[self.at - width : self.at], self._order)

    def unit_length(self) -> tuple[int, int]:
        """(length of what follows, bytes of an offset in it): ``unit_length`` (DWARF 5, 7.4)."""
        length = self.number(4)
        return (length, 4) if length < 0xFFFFFFFF else (self.number(8), 8)

    def unit_end(self, what: str) -> tuple[int, int]:
        """(where ``what``, which begins here, ends; bytes of an offset in it). Raises `FormatError` if that is past the
        end of the section."""
        start = self.at
        length, offset_size = self.unit_length()
        if self.at + length > self.space.size:
            raise self.space.bad(f"{what} is past the end of the section", start, "unit_length", length)
        return self.at + length, offset_size


Sections = Callable[[str], Space]
"""A section by its name without ``.debug_`` (and without ``.dwo``)."""

UNITS_LIMIT = 1 << 20
NO_BASE = 1 << 62
"""A base that is not known: every offset from it is outside of its section."""


@dataclass(slots=True)
class Unit:
    """One unit; offsets count from the start of ``.debug_info``."""

    offset: int
    end: int
    entry: int
    """Offset of the first entry."""
    format: Format
    kind: int
    """`DW_UT`; units before DWARF 5 are ``DW_UT.compile``."""
    abbreviations: int
    dwo_id: int = 0
    codes: dict[int, int] | None = None
    """Abbreviation code -> shape number; ``None`` until the unit is wanted."""


class Info:
    """``.debug_info`` of one file and the sections that it refers to.

    Columns have a row for each unit. ``files`` (`Sections`) of a split DWARF file gives ``addr`` of the main file.
    Units that cannot be read are left out or empty; ``notes`` gets the reasons.
    """

    def __init__(self, files: Sections, notes: list[str]) -> None:
        self.sections = files
        self.notes = notes
        self.space = files("info")
        self.shapes = Shapes(files("abbrev"))
        self.units = [u for u in _headers(self.space, notes) if u.kind not in (DW_UT.type, DW_UT.split_type)]
        n = len(self.units)
        self.start = np.array([u.offset for u in self.units], np.int64)
        self.end = np.array([u.end for u in self.units], np.int64)
        formats = np.array([u.format for u in self.units], np.int64).reshape(n, 3).T
        self.version, self.offset_size, self.address_size = formats
        self.address_base, self.string_base, self.range_base = (np.full(n, NO_BASE, np.int64) for _ in range(3))
        self.low = np.zeros(n, np.uint64)
        """``DW_AT_low_pc``: range lists count from it."""

    def unit_of(self, offset: Ints) -> Ints:
        """Row of the unit that holds each offset of ``.debug_info``, or -1."""
        return interval_of(self.start, self.end, offset)

    def shapes_of(self, offset: Ints, unit: Ints) -> tuple[Ints, Ints]:
        """(shape of the entry at each offset, -1 for none; the offset after its code)."""
        code, after = self.space.uleb(offset)
        used = distinct(unit[unit >= 0])
        tables = []
        base = np.zeros(len(self.units) + 1, np.int64)
        count = np.zeros(len(self.units) + 1, np.int64)
        total = 0
        made: dict[tuple[int, Format], tuple[int, int]] = {}
        for row in used.tolist():
            one = self.units[row]
            key = one.abbreviations, one.format
            if key not in made:
                codes = self.codes(row)
                table = np.full(max(codes, default=0) + 1, -1, np.int64)
                table[list(codes)] = list(codes.values())
                tables.append(table)
                made[key] = total, len(table)
                total += len(table)
            base[row], count[row] = made[key]
        flat = np.concatenate([*tables, [-1]])
        inside = (unit >= 0) & (code < count[unit].astype(np.uint64))
        place = np.where(inside, base[unit] + code.astype(np.int64), len(flat) - 1)
        return flat[place], after

    def codes(self, row: int) -> dict[int, int]:
        """Abbreviation code -> shape number of the unit in ``row``."""
        unit = self.units[row]
        if unit.codes is None:
            unit.codes = {}
            try:
                unit.codes = self.shapes.table(unit.abbreviations, unit.format)
            except FormatError as error:
                self.notes.append(f"{error} (the unit at {unit.offset:#x} is skipped)")
        return unit.codes


def _headers(space: Space, notes: list[str]) -> list[Unit]:
    units: list[Unit] = []
    at = 0
    while at + 11 < space.size and len(units) < UNITS_LIMIT:
        try:
            unit = _header(space, at)
        except FormatError as error:
            notes.append(f"{error} (nothing from there on is read)")
            break
        if unit.format.version:
            units.append(unit)
        else:
            notes.append(f"{space.file}: the unit at {at:#x} of {space.name} has an unknown version")
        at = unit.end
    return units


def _header(space: Space, start: int) -> Unit:
    cursor = Cursor(space, start)
    end, offset_size = cursor.unit_end("a unit")
    version = cursor.number(2)
    kind, dwo_id = DW_UT.compile, 0
    if version >= 5:
        kind, address_size, abbreviations = cursor.number(1), cursor.number(1), cursor.number(offset_size)
        if kind in (DW_UT.skeleton, DW_UT.split_compile):
            dwo_id = cursor.number(8)
    else:
        abbreviations, address_size = cursor.number(offset_size), cursor.number(1)
    if not 2 <= version <= 5 or address_size not in (4, 8) or cursor.at > end:
        return Unit(start, max(end, start + 4), end, Format(0, offset_size, 8), kind, 0)
    return Unit(start, end, cursor.at, Format(version, offset_size, address_size), kind, abbreviations, dwo_id)
