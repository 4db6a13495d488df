"""Names, lines and inline chains of addresses from DWARF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...model import Function, Names
from ..files import strings_at
from ..symbols import Symbols
from .attributes import Kind, read_attributes, texts
from .chains import Chains, Origins, chains_of, innermost, numbers, origins_of
from .constants import AT, FORM
from .entries import Tree, walk
from .line_headers import LineHeader, read_header
from .lines import LineTable, read_lines
from .ranges import Ranges, ranges_of
from .units import NO_BASE, Info, Sections

__all__ = ["Dwarf", "OpenSplit"]

OpenSplit = Callable[[str, str, int], Info | None]
"""(``DW_AT_comp_dir``, ``DW_AT_dwo_name``, DWO id) -> the split unit's file, checked; ``None``: not at hand."""

BASES = AT.STR_OFFSETS_BASE, AT.ADDR_BASE, AT.GNU_ADDR_BASE, AT.RNGLISTS_BASE, AT.GNU_RANGES_BASE
FIRST = AT.LOW_PC, AT.STMT_LIST, AT.COMP_DIR, AT.DWO_NAME, AT.GNU_DWO_NAME, AT.GNU_DWO_ID
CALL = AT.CALL_FILE, AT.CALL_LINE, AT.CALL_COLUMN, AT.GNU_DISCRIMINATOR


@dataclass(slots=True)
class _Frames:
    """Frames of some addresses: the columns of `Names`, files as (unit, number) of line tables."""

    owner: NDArray[np.int64]
    step: NDArray[np.int64]
    origin: NDArray[np.int64]
    unit: NDArray[np.int64]
    file: NDArray[np.int64]
    line: NDArray[np.int64]
    column: NDArray[np.int64]
    discriminator: NDArray[np.int64]


class Dwarf:
    """The DWARF of one module. ``code`` is its range of link addresses: what lies outside is code that was dropped."""

    def __init__(self, sections: Sections, code: tuple[int, int], split: OpenSplit) -> None:
        self.info = Info(sections)
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
        owners = _Owners.of(self._clipped(self._unit_ranges()))
        unit = owners.at(address)
        lines = self._lines(np.unique(unit[unit >= 0]))
        place = lines.find(address, unit)
        splits = {n: info for n in np.unique(unit[unit >= 0]).tolist() if (info := self._split(n)) is not None}
        here = (unit >= 0) & ~np.isin(unit, list(splits))
        parts = [self._chains(self.info, np.flatnonzero(here), address, unit, None, owners)]
        for number, info in splits.items():
            parts.append(self._chains(info, np.flatnonzero(unit == number), address, unit, number, owners))
        return self._named(address, unit, lines, place, parts, symbols)

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
        tree = walk(self.info, silent)
        found = ranges_of(self.info, tree.offset, tree.unit)
        return Ranges.join([said, Ranges(found.low, found.high, tree.unit[found.row])])

    def _clipped(self, ranges: Ranges) -> Ranges:
        low, high = self.code
        kept = (ranges.low >= np.uint64(low)) & (ranges.high <= np.uint64(high))
        return Ranges(ranges.low[kept], ranges.high[kept], ranges.row[kept])

    def _chains(
        self,
        info: Info,
        rows: NDArray[np.int64],
        address: NDArray[np.uint64],
        unit: NDArray[np.int64],
        skeleton: int | None,
        owners: _Owners,
    ) -> tuple[_Frames, Origins]:
        """Frames of the addresses in ``rows`` from ``info``; that of a split unit has one unit, ``skeleton``'s."""
        mine = unit[rows] if skeleton is None else np.zeros(len(rows), np.int64)
        tree = walk(info, np.unique(mine))
        ranges = ranges_of(info, tree.offset, tree.unit)
        # Of a function that several units have, the linker kept one: the entries of the others describe code that is
        # not there, although they name the same addresses.
        own = owners.at(ranges.low) == (tree.unit[ranges.row] if skeleton is None else skeleton)
        entry = innermost(tree, Ranges(ranges.low[own], ranges.high[own], ranges.row[own]), address[rows])
        frames, origins = _described(info, tree, chains_of(tree, entry))
        frames.owner = rows[frames.owner]
        if skeleton is not None:
            frames.unit[:] = skeleton
            origins.unit[:] = skeleton
        return frames, origins

    def _lines(self, units: NDArray[np.int64]) -> LineTable:
        headers = {unit: header for unit in units.tolist() if (header := self._header(unit)) is not None}
        return read_lines(self.info.sections("line"), headers)

    def _header(self, unit: int) -> LineHeader | None:
        if unit not in self.headers:
            start = int(self.statements[unit])
            sections = self.info.sections

            def text(form: int, offset: int) -> str:
                return strings_at(sections("line_str" if form == FORM.LINE_STRP else "str").raw, [offset])[0]

            self.headers[unit] = read_header(sections("line"), start, text) if start < NO_BASE else None
        return self.headers[unit]

    def _named(
        self,
        address: NDArray[np.uint64],
        unit: NDArray[np.int64],
        lines: LineTable,
        place: NDArray[np.int64],
        parts: list[tuple[_Frames, Origins]],
        symbols: Symbols,
    ) -> Names:
        symbol = symbols.at(address)
        chained = np.zeros(len(address), bool)
        for frames, _ in parts:
            chained[frames.owner] = True
        alone = np.flatnonzero(~chained & ((symbol >= 0) | (place >= 0)))
        zero = np.zeros(len(alone), np.int64)
        single = _Frames(alone, zero, zero - 1, zero, zero - 1, zero, zero, zero)
        owner, step, origin, in_unit, file, line, column, discriminator = (
            np.concatenate(columns)
            for columns in zip(*(_columns(f, base) for f, base in _numbered(parts, single)), strict=True)
        )
        order = np.lexsort((step, owner))
        owner, step, origin, in_unit, file, line, column, discriminator = (
            c[order] for c in (owner, step, origin, in_unit, file, line, column, discriminator)
        )
        inner = np.flatnonzero((step == 0) & (place[owner] >= 0))
        row = place[owner[inner]]
        in_unit[inner], file[inner] = unit[owner[inner]], lines.file[row]
        line[inner], column[inner], discriminator[inner] = lines.line[row], lines.column[row], lines.discriminator[row]

        files = _Files(self)
        count = np.bincount(owner, minlength=len(address))
        offsets = np.concatenate([[0], np.cumsum(count)])
        outermost = offsets[1:][owner] - 1 == np.arange(len(owner))
        functions, frame_function = _functions(parts, origin, np.where(outermost, symbol[owner], -1), symbols, files)
        frame_file = files.rows(in_unit, file)
        function = np.where(count > 0, np.append(frame_function, -1)[offsets[1:] - 1], -1)
        return Names(
            function.astype(np.int32), offsets.astype(np.int64), frame_function.astype(np.int32),
            frame_file.astype(np.int32), line.astype(np.uint32), column.astype(np.uint32),
            discriminator.astype(np.uint32), functions, list(files.known),
        )  # fmt: skip


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


def _described(info: Info, tree: Tree, chains: Chains) -> tuple[_Frames, Origins]:
    used, inverse = np.unique(chains.entry, return_inverse=True)
    origin, origins = origins_of(info, tree.offset[used], tree.inlined[used])
    call = np.flatnonzero(chains.caller >= 0)
    callers, back = np.unique(chains.caller[call], return_inverse=True)
    calls = read_attributes(info, tree.offset[callers], CALL, tree.unit[callers])
    columns = []
    for name, unknown in zip(CALL, (-1, 0, 0, 0), strict=True):
        column = np.full(len(chains.owner), unknown, np.int64)
        value = np.where(calls[name].there, numbers(calls[name]), unknown)
        column[call] = value[back]
        columns.append(column)
    frames = _Frames(chains.owner, chains.step, origin[inverse], tree.unit[chains.entry], *columns)
    return frames, origins


def _numbered(parts: list[tuple[_Frames, Origins]], single: _Frames) -> list[tuple[_Frames, int]]:
    """Frames with the number that their first origin has among all."""
    out, base = [], 0
    for frames, origins in parts:
        out.append((frames, base))
        base += len(origins.name)
    return [*out, (single, 0)]


def _columns(frames: _Frames, base: int) -> tuple[NDArray[np.int64], ...]:
    origin = np.where(frames.origin >= 0, frames.origin + base, -1)
    return frames.owner, frames.step, origin, frames.unit, frames.file, frames.line, frames.column, frames.discriminator


def _functions(
    parts: list[tuple[_Frames, Origins]],
    origin: NDArray[np.int64],
    symbol: NDArray[np.int64],
    symbols: Symbols,
    files: _Files,
) -> tuple[list[Function], NDArray[np.int64]]:
    """The functions of frames: each pair of origin and symbol (-1: inlined, or none) once. (functions, row of each)."""
    names = [name for _, origins in parts for name in origins.name]
    unit, file, line = (
        np.concatenate([*(getattr(o, n) for _, o in parts), [-1]]).astype(np.int64) for n in ("unit", "file", "line")
    )
    wide = len(symbols) + 1
    pairs, row = np.unique((origin + 1) * wide + symbol + 1, return_inverse=True)
    of, at = pairs // wide - 1, pairs % wide - 1
    known = [*files.known, ""]
    declared = files.rows(unit[of], file[of])
    known = [*files.known, ""]
    there = np.flatnonzero(at >= 0)
    called = [names[i] if i >= 0 else "" for i in of.tolist()]
    for i, name in zip(there.tolist(), symbols.names(at[there]), strict=True):
        called[i] = name
    start, size = (
        np.where(at >= 0, np.append(c, np.uint64(0))[at], np.uint64(0)).tolist() for c in (symbols.start, symbols.size)
    )
    lines = np.where(of >= 0, line[of], 0).tolist()
    rest = zip(start, size, [known[d] for d in declared.tolist()], lines, strict=True)
    return [Function(n, n, *r) for n, r in zip(called, rest, strict=True)], row


class _Files:
    """Paths, each once, by (unit, number in its line table)."""

    def __init__(self, dwarf: Dwarf) -> None:
        self.dwarf = dwarf
        self.known: dict[str, int] = {}

    def rows(self, unit: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each file in ``known``; -1 unknown."""
        there = np.flatnonzero((number >= 0) & (unit >= 0))
        pairs, back = np.unique(unit[there] << 32 | number[there], return_inverse=True)
        rows = np.array([self._row(pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist()], np.int64)
        found = np.full(len(unit), -1, np.int64)
        found[there] = rows[back] if len(there) else -1
        return found

    def _row(self, unit: int, number: int) -> int:
        header = self.dwarf._header(unit)
        path = header.path(number, self.dwarf.folders[unit]) if header else ""
        return self.known.setdefault(path, len(self.known)) if path else -1


@dataclass(slots=True)
class _Owners:
    """Which unit an address belongs to: ranges that do not overlap, ascending."""

    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    unit: NDArray[np.int64]

    @classmethod
    def of(cls, ranges: Ranges) -> _Owners:
        """Where units overlap, the first one in the file has the address."""
        order = np.lexsort((ranges.row, ranges.low))
        low, high, unit = ranges.low[order], ranges.high[order], ranges.row[order]
        if len(low) and (low[1:] < np.maximum.accumulate(high)[:-1]).any():
            return cls._swept(low.tolist(), high.tolist(), unit.tolist())
        return cls(low, high, unit)

    @classmethod
    def _swept(cls, low: list[int], high: list[int], unit: list[int]) -> _Owners:
        edges = sorted({*low, *high})
        pieces: list[tuple[int, int, int]] = []
        heap: list[tuple[int, int]] = []
        i = 0
        for edge, following in pairwise(edges):
            while i < len(low) and low[i] <= edge:
                heappush(heap, (unit[i], high[i]))
                i += 1
            while heap and heap[0][1] <= edge:
                heappop(heap)
            if heap:
                pieces.append((edge, following, heap[0][0]))
        columns = list(zip(*pieces, strict=True)) or [(), (), ()]
        return cls(np.array(columns[0], np.uint64), np.array(columns[1], np.uint64), np.array(columns[2], np.int64))

    def at(self, address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The unit of each address, or -1."""
        if not len(self.low):
            return np.full(len(address), -1, np.int64)
        row = np.searchsorted(self.low, address, side="right") - 1
        inside = (row >= 0) & (address < self.high[np.maximum(row, 0)])
        return np.where(inside, self.unit[row], -1)
