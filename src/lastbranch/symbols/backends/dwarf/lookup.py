"""Names, lines and inline chains of addresses from DWARF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....binaries.files import strings_at
from ....errors import FormatError
from ...model import Names
from ..symbols import Symbols
from .attributes import Kind, read_attributes, texts
from .beside import as_bytes, as_texts, beside
from .chains import Origins, chains_of, innermost
from .constants import AT, FORM
from .entries import Tree, walk
from .frames import Frames, Places, described, named
from .line_headers import LineHeader, read_header
from .lines import read_lines
from .owners import Owners
from .ranges import Ranges, ranges_of
from .units import NO_BASE, Info, Sections

__all__ = ["Dwarf", "OpenSplit"]

LARGE = 4 << 20
"""Bytes of line number programs, or of entries, that are worth a process of their own."""
SHARE = 0.3
"""Of the entries: so much is left to another process, beside that which reads line number programs."""

OpenSplit = Callable[[str, str, int], Info | None]
"""(``DW_AT_comp_dir``, ``DW_AT_dwo_name``, DWO id) -> the split unit's file, checked; ``None``: not at hand."""

BASES = AT.STR_OFFSETS_BASE, AT.ADDR_BASE, AT.GNU_ADDR_BASE, AT.RNGLISTS_BASE, AT.GNU_RANGES_BASE
FIRST = AT.LOW_PC, AT.STMT_LIST, AT.COMP_DIR, AT.DWO_NAME, AT.GNU_DWO_NAME, AT.GNU_DWO_ID


@dataclass(slots=True)
class Wanted:
    """Addresses that are asked for, ascending."""

    address: NDArray[np.uint64]
    unit: NDArray[np.int64]
    """Row of the unit that each belongs to, or -1."""
    expected: NDArray[np.bool_]
    """Whether it belongs to a function, as far as symbols tell; others are padding between functions."""


class Dwarf:
    """The DWARF of one module. ``code`` is its range of link addresses: what lies outside is code that was dropped.

    A unit that is damaged costs its own names; ``notes`` gets to know of it.
    """

    def __init__(self, sections: Sections, code: tuple[int, int], split: OpenSplit, notes: list[str]) -> None:
        self.info = Info(sections, notes)
        self.notes = notes
        self.code = code
        self.split = split
        info, every = self.info, np.arange(len(self.info.units))
        self.entries = np.array([u.entry for u in info.units], np.int64)
        self.old_ranges = set_bases(info, self.entries)
        first = read_attributes(info, self.entries, FIRST, every)
        info.low = np.where(first[AT.LOW_PC].kind == Kind.ADDRESS, first[AT.LOW_PC].value, np.uint64(0))
        statements = first[AT.STMT_LIST]
        self.statements = np.where(statements.there, np.minimum(statements.value, np.uint64(NO_BASE)), NO_BASE).astype(
            np.int64
        )
        self.folders = texts(info, first[AT.COMP_DIR])
        self.split_names = [
            a or b for a, b in zip(texts(info, first[AT.DWO_NAME]), texts(info, first[AT.GNU_DWO_NAME]), strict=True)
        ]
        self.split_ids = [u.dwo_id or int(i) for u, i in zip(info.units, first[AT.GNU_DWO_ID].value, strict=True)]
        self.headers: dict[int, LineHeader | None] = {}

    def resolve(self, address: NDArray[np.uint64], symbols: Symbols) -> Names:
        """The names of ``address`` (ascending); the outermost function is called as in ``symbols`` (by address)."""
        owners = Owners.of(self._clipped(self._unit_ranges()))
        unit, symbol = owners.at(address), symbols.at(address)
        # A table with exported symbols only does not tell padding from a local function.
        expected = (symbol >= 0) | bool(symbols.public.all())
        wanted = Wanted(address, unit, expected)
        places = self._places(address, unit)
        splits = {n: info for n in np.unique(unit[unit >= 0]).tolist() if (info := self._split(n)) is not None}
        here = np.flatnonzero((unit >= 0) & ~np.isin(unit, list(splits)))
        shared = np.isin(unit[here], self._shared(unit[here]))
        copys = self._chains_beside(here[shared], wanted, owners)
        parts = [self._chains(self.info, here[~shared], wanted, None, owners)]
        for number, info in splits.items():
            parts.append(self._chains(info, np.flatnonzero(unit == number), wanted, number, owners))
        return named(unit, symbol, places(), [*parts, *copys()], symbols, self._path)

    def _shared(self, unit: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the units in ``unit`` are left to a copy of this process; none where that is not worth it."""
        used = np.unique(unit)
        behind = np.cumsum((self.info.end - self.info.start)[used])
        total = int(behind[-1]) if len(used) else 0
        return used[behind > (1 - SHARE) * total] if total > LARGE else used[:0]

    def _chains_beside(
        self, rows: NDArray[np.int64], wanted: Wanted, owners: Owners
    ) -> Callable[[], list[tuple[Frames, Origins]]]:
        """What waits for `_chains` of ``rows`` from this file, which a copy of this process works out meanwhile."""
        if not len(rows):
            return list

        def work() -> list[NDArray[Any]]:
            known = len(self.notes)
            frames, origins = self._chains(self.info, rows, wanted, None, owners)
            texts = (as_bytes(origins.name), as_bytes(self.notes[known:]))
            return [*frames.columns(), origins.unit, origins.file, origins.line, *texts]

        begun = beside(work)

        def chains() -> list[tuple[Frames, Origins]]:
            *columns, units, files, lines, names, notes = begun()
            self.notes += as_texts(notes)
            return [(Frames(*columns), Origins(as_texts(names), units, files, lines))]

        return chains

    def _split(self, number: int) -> Info | None:
        """The file that has the entries of unit ``number``, if that is split, with its bases set."""
        name = self.split_names[number]
        info = self.split(self.folders[number], name, self.split_ids[number]) if name else None
        if info is not None:
            wide = info.offset_size[0] == 8
            new = info.version[0] >= 5
            info.address_base[:], info.low[:] = self.info.address_base[number], self.info.low[number]
            info.string_base[:] = (16 if wide else 8) if new else 0  # behind the header of the only table
            info.range_base[:] = (20 if wide else 12) if new else self.old_ranges[number]
        return info

    def _unit_ranges(self) -> Ranges:
        """Addresses of units; where one does not say, or cannot (DWARF 2 has no range lists), its functions'."""
        every = np.arange(len(self.info.units))
        said = ranges_of(self.info, self.entries, every)
        silent = np.union1d(np.setdiff1d(every, said.row), np.flatnonzero(self.info.version == 2))
        if not len(silent):
            return said
        tree = walk(self.info, silent, whole=True)
        found = ranges_of(self.info, tree.offset, tree.unit)
        return Ranges.join([said, Ranges(found.low, found.high, tree.unit[found.row])])

    def _clipped(self, ranges: Ranges) -> Ranges:
        low, high = self.code
        kept = (ranges.low >= np.uint64(low)) & (ranges.high <= np.uint64(high))
        return Ranges(ranges.low[kept], ranges.high[kept], ranges.row[kept])

    def _chains(
        self, info: Info, rows: NDArray[np.int64], wanted: Wanted, skeleton: int | None, owners: Owners
    ) -> tuple[Frames, Origins]:
        """Frames of the addresses in ``rows`` from ``info``; that of a split unit has one unit, ``skeleton``'s."""
        mine = wanted.unit[rows] if skeleton is None else np.zeros(len(rows), np.int64)
        address = wanted.address[rows]
        nested = bool((info.version[mine] > 2).all())

        def find(left: NDArray[np.int64], whole: bool) -> tuple[Tree, NDArray[np.int64]]:
            tree = walk(info, np.unique(mine[left]), whole=whole)
            ranges = ranges_of(info, tree.offset, tree.unit)
            # Of a function that several units have, the linker kept one: the entries of the others describe code that
            # is not there, although they name the same addresses.
            own = owners.at(ranges.low) == (tree.unit[ranges.row] if skeleton is None else skeleton)
            ranges = Ranges(ranges.low[own], ranges.high[own], ranges.row[own])
            return tree, innermost(tree, ranges, address[left], nested=nested)

        tree, entry = find(np.arange(len(rows)), False)
        left = np.flatnonzero((entry < 0) & wanted.expected[rows])
        if len(left):
            more, found = find(left, True)
            entry[left] = np.where(found >= 0, found + len(tree), -1)
            tree = tree.join(more)
        frames, origins = described(info, tree, chains_of(tree, entry))
        frames.owner = rows[frames.owner]
        if skeleton is not None:
            frames.unit[:] = skeleton
            origins.unit[:] = skeleton
        return frames, origins

    def _places(self, address: NDArray[np.uint64], unit: NDArray[np.int64]) -> Callable[[], Places]:
        """What waits for what line tables say of ``address``. Large ones are read beside the entries."""
        used = np.unique(unit[unit >= 0]).tolist()
        headers = {unit: header for unit in used if (header := self._header(unit)) is not None}
        space = self.info.sections("line")

        def read() -> list[NDArray[np.uint32]]:
            lines = read_lines(space, headers)
            row = lines.find(address, unit)
            columns = (lines.file, lines.line, lines.column, lines.discriminator)
            return [(row >= 0).astype(np.uint32), *(np.append(c, np.uint32(0))[row] for c in columns)]

        large = sum(h.end - h.program for h in headers.values()) > LARGE
        work = beside(read) if large else read

        def places() -> Places:
            there, *columns = work()
            return Places(there != 0, *columns)

        return places

    def _header(self, unit: int) -> LineHeader | None:
        if unit not in self.headers:
            start = int(self.statements[unit])
            sections = self.info.sections

            def text(form: int, offset: int) -> str:
                return strings_at(sections("line_str" if form == FORM.LINE_STRP else "str").raw, [offset])[0]

            try:
                self.headers[unit] = read_header(sections("line"), start, text) if start < NO_BASE else None
            except FormatError as error:
                self.headers[unit] = None
                self.notes.append(f"{error} (no lines of that unit)")
        return self.headers[unit]

    def _path(self, unit: int, number: int) -> str:
        header = self._header(unit)
        return header.path(number, self.folders[unit]) if header else ""


def set_bases(info: Info, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Set where the tables of each unit begin; returns where the ranges of split units do before DWARF 5."""
    found = read_attributes(info, entries, BASES, np.arange(len(info.units)))
    strings, addresses, gnu_addresses, ranges, old_ranges = (
        np.where(found[n].there, np.minimum(found[n].value, np.uint64(NO_BASE)), NO_BASE).astype(np.int64)
        for n in BASES
    )
    info.string_base, info.range_base = strings, ranges
    info.address_base = np.minimum(addresses, gnu_addresses)
    return old_ranges
