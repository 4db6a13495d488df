"""Units of ``.debug_info``: their headers, and what their first entry says (DWARF 5, 7.5.1 and 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....binaries.files import Space
from ....errors import FormatError
from .abbreviations import Format, Shapes
from .constants import UT

__all__ = ["Info", "Sections", "Unit"]

Sections = Callable[[str], Space]
"""A section by its name without ``.debug_`` (and without ``.dwo``)."""

UNITS_LIMIT = 1 << 20
NO_BASE = 1 << 62
"""Where a base is not known: every offset from it is outside."""


@dataclass(slots=True)
class Unit:
    """One unit; offsets count from the start of ``.debug_info``."""

    offset: int
    end: int
    entry: int
    """Where its first entry is."""
    format: Format
    kind: int
    """`UT`; units before DWARF 5 are ``UT.COMPILE``."""
    abbreviations: int
    dwo_id: int = 0
    codes: dict[int, int] | None = None
    """Abbreviation code -> shape number; ``None`` until the unit is wanted."""


class Info:
    """``.debug_info`` of one file and the sections that it refers to.

    Columns have a row for each unit. ``files`` (`Sections`) of a split DWARF file gives ``addr`` of the main file.
    Units that cannot be read are left out or empty, and ``notes`` gets to know why.
    """

    def __init__(self, files: Sections, notes: list[str]) -> None:
        self.sections = files
        self.notes = notes
        self.space = files("info")
        self.shapes = Shapes(files("abbrev"))
        self.units = [u for u in _headers(self.space, notes) if u.kind not in (UT.TYPE, UT.SPLIT_TYPE)]
        n = len(self.units)
        self.start = np.array([u.offset for u in self.units], np.int64)
        self.end = np.array([u.end for u in self.units], np.int64)
        self.version = np.array([u.format.version for u in self.units], np.int64)
        self.offset_size = np.array([u.format.offset_size for u in self.units], np.int64)
        self.address_size = np.array([u.format.address_size for u in self.units], np.int64)
        self.address_base = np.full(n, NO_BASE, np.int64)
        self.string_base = np.full(n, NO_BASE, np.int64)
        self.range_base = np.full(n, NO_BASE, np.int64)
        self.low = np.zeros(n, np.uint64)
        """``DW_AT_low_pc``: what range lists count from."""

    def unit_of(self, offset: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of the unit that each offset of ``.debug_info`` lies in, or -1."""
        if not len(self.units):
            return np.full(len(offset), -1, np.int64)
        row = np.searchsorted(self.start, offset, side="right") - 1
        return np.where((row >= 0) & (offset < self.end[np.maximum(row, 0)]), row, -1)

    def shapes_of(
        self, offset: NDArray[np.int64], unit: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(shape of the entry at each offset, -1 for none; the offset behind its code)."""
        code, behind = self.space.uleb(offset)
        used = np.unique(unit[unit >= 0])
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
        return flat[place], behind

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
            notes.append(f"{space.file}: the unit at {at:#x} of {space.name} is of no version that is known")
        at = unit.end
    return units


def _header(space: Space, start: int) -> Unit:
    order = "little" if space.order == "<" else "big"
    at = start

    def number(width: int) -> int:
        nonlocal at
        at += width
        return int.from_bytes(space.raw[at - width : at], order)  # type: ignore[arg-type]

    length, offset_size = number(4), 4
    if length == 0xFFFFFFFF:
        length, offset_size = number(8), 8
    end = at + length
    if end > space.size:
        raise space.bad("a unit is past the end of the section", start, "unit_length", length)
    version = number(2)
    kind, dwo_id = UT.COMPILE, 0
    if version >= 5:
        kind, address_size = number(1), number(1)
        abbreviations = number(offset_size)
        if kind in (UT.SKELETON, UT.SPLIT_COMPILE):
            dwo_id = number(8)
    else:
        abbreviations, address_size = number(offset_size), number(1)
    if not 2 <= version <= 5 or address_size not in (4, 8) or at > end:
        return Unit(start, max(end, start + 4), end, Format(0, offset_size, 8), kind, 0)
    form = Format(version, offset_size, address_size)
    return Unit(start, end, at, form, kind, abbreviations, dwo_id)
