"""Inline chains of addresses as columns: the address ranges of entries, the chains of entries that hold an address, and
the `Names` made of chains and rows of line tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, distinct, interval_of, offsets_of, ranges
from ....binaries.dwarf import DW_AT, DW_RLE
from ....binaries.files import Space, Words
from ...model import Function, Names
from ..symbol_tables import Symbols
from .bytecode import instruction_starts, state_table
from .entries import AttributeColumn, EntryKind, Tree, read_attributes, texts
from .units import NO_BASE, Cursor, Info

__all__ = [
    "InlineFrames",
    "LinePlaces",
    "Origins",
    "Ranges",
    "chains_of",
    "describe_chains",
    "innermost",
    "name_addresses",
    "ranges_of",
]


# -- Address ranges: ``DW_AT_low_pc`` and ``high_pc``, or a range list (DWARF 5, 2.17 and 7.25; DWARF 4, 7.23)


WANTED = DW_AT.low_pc, DW_AT.high_pc, DW_AT.ranges


@dataclass(slots=True)
class Ranges:
    """Address ranges, each with the row of its entry."""

    low: Words
    high: Words
    row: Ints

    @classmethod
    def join(cls, parts: list[Ranges]) -> Ranges:
        """All ranges that are not empty, by row. The linker leaves empty ranges for dropped code."""
        parts = parts or [cls(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))]
        low, high, row = (np.concatenate([getattr(p, name) for p in parts]) for name in ("low", "high", "row"))
        kept = np.flatnonzero(low < high)
        order = kept[np.argsort(row[kept], kind="stable")]
        return cls(low[order], high[order], row[order])

    def take(self, rows: NDArray[Any]) -> Ranges:
        """The ranges in ``rows``, numbers or a mask."""
        return Ranges(self.low[rows], self.high[rows], self.row[rows])

    def disjoint(self) -> Ranges:
        """The same addresses in ascending ranges without overlap: an address in several ranges gets the lowest row."""
        ordered = self.take(np.lexsort((self.row, self.low)))
        if not (ordered.low[1:] < np.maximum.accumulate(ordered.high)[:-1]).any():
            return ordered
        low, high, row = ordered.low.tolist(), ordered.high.tolist(), ordered.row.tolist()
        pieces: list[tuple[int, int, int]] = []
        heap: list[tuple[int, int]] = []
        i = 0
        for edge, following in pairwise(sorted({*low, *high})):
            while i < len(low) and low[i] <= edge:
                heappush(heap, (row[i], high[i]))
                i += 1
            while heap and heap[0][1] <= edge:
                heappop(heap)
            if heap:
                pieces.append((edge, following, heap[0][0]))
        edges, ends, rows = zip(*pieces, strict=True)
        return Ranges(np.array(edges, np.uint64), np.array(ends, np.uint64), np.array(rows, np.int64))

    def at(self, address: Words) -> Ints:
        """The row that each address belongs to, or -1, where ranges are `disjoint`."""
        return np.append(self.row, -1)[interval_of(self.low, self.high, address)]


def ranges_of(info: Info, offset: Ints, unit: Ints) -> Ranges:
    """The addresses of the entries at ``offset``."""
    found = read_attributes(info, offset, WANTED, unit)
    low, high, lists = (found[name] for name in WANTED)
    whole = np.flatnonzero((low.kind == EntryKind.ADDRESS) & high.there & ~lists.there)
    end = np.where(high.kind[whole] == EntryKind.ADDRESS, high.value[whole], low.value[whole] + high.value[whole])
    parts = [Ranges(low.value[whole], end, whole)]
    old = lists.there & (info.version[unit] < 5) if len(unit) else lists.there
    for rows, read in ((np.flatnonzero(old), _pairs), (np.flatnonzero(lists.there & ~old), _read_rnglists)):
        if len(rows):
            part = AttributeColumn(lists.kind[rows], lists.value[rows])
            found_ranges = read(info, part, unit[rows])
            parts.append(Ranges(found_ranges.low, found_ranges.high, rows[found_ranges.row]))
    return Ranges.join(parts)


def _pairs(info: Info, lists: AttributeColumn, unit: Ints) -> Ranges:
    """``.debug_ranges`` of DWARF 3 and 4: pairs of addresses from a base, ended by zeros."""
    space, parts = info.sections("ranges"), []
    base_at = np.where(info.range_base[unit] < NO_BASE, info.range_base[unit], 0)
    at: Ints = _clip_base(lists.value) + base_at
    for width in (4, 8):
        for part in range(2 * width):
            rows = np.flatnonzero((info.address_size[unit] == width) & (at % (2 * width) == part) & (at < space.size))
            if not len(rows):
                continue
            pairs = (space.size - part) // (2 * width)
            places: Ints = part + np.arange(2 * pairs) * width
            words = space.read(places, width).reshape(-1, 2)
            first = at[rows] // (2 * width)
            stop = np.flatnonzero((words == 0).all(axis=1))
            last = np.append(stop, pairs)[np.searchsorted(stop, first)]
            count = np.maximum(0, last - first)
            low, high = words[ranges(first, count)].T
            selects = low == np.uint64(2**32 - 1 if width == 4 else 2**64 - 1)
            base = _bases(np.where(selects, high, 0), selects, count, info.low[unit[rows]])
            parts.append(Ranges(base + low, base + high, np.repeat(rows, count)).take(~selects))
    return Ranges.join(parts)


OPERANDS = {
    DW_RLE.end_of_list: (), DW_RLE.base_addressx: (-1,), DW_RLE.startx_endx: (-1, -1), DW_RLE.startx_length: (-1, -1),
    DW_RLE.offset_pair: (-1, -1), DW_RLE.base_address: (0,), DW_RLE.start_end: (0, 0), DW_RLE.start_length: (0, -1),
}  # fmt: skip
"""Kind of entry -> operands: -1 a LEB128 number, 0 an address."""


def _read_rnglists(info: Info, lists: AttributeColumn, unit: Ints) -> Ranges:
    """``.debug_rnglists`` of DWARF 5: entries that begin with their kind."""
    space = info.sections("rnglists")
    parts: list[Ranges] = []
    width = info.offset_size[unit]
    base = info.range_base[unit]
    table = (base + np.minimum(_clip_base(lists.value), NO_BASE >> 4) * width).astype(np.int64)
    entry = np.where(width == 4, space.read(table, 4), space.read(table, 8))
    indexed = lists.kind == EntryKind.INDEX
    at = np.where(indexed, base + _clip_base(entry), _clip_base(lists.value))
    for size in (4, 8):
        rows = np.flatnonzero((info.address_size[unit] == size) & (at < space.size))
        if len(rows):
            parts.append(_read_rnglists_at(info, space, at[rows], unit[rows], size, rows))
    return Ranges.join(parts)


def _read_rnglists_at(info: Info, space: Space, at: Ints, unit: Ints, size: int, rows: Ints) -> Ranges:
    codes = {kind: tuple(size if o == 0 else o for o in operands) for kind, operands in OPERANDS.items()}
    lists = distinct(at)
    entry, _ = instruction_starts(space, *_stretches(space, lists), state_table(codes))
    kind = space.data[entry]
    stop = np.flatnonzero(kind == DW_RLE.end_of_list)
    first = np.searchsorted(entry, at)
    found = np.flatnonzero(np.append(entry, -1)[first] == at)
    first, unit, rows = first[found], unit[found], rows[found]
    last = np.append(stop, len(entry))[np.searchsorted(stop, first)]
    count = np.maximum(0, last - first)
    place = ranges(first, count)
    where, kind, owner = entry[place] + 1, kind[place], np.repeat(unit, count)
    low, high = np.zeros(len(place), np.uint64), np.zeros(len(place), np.uint64)
    for code, operands in OPERANDS.items():
        mine = np.flatnonzero(kind == code)
        here = where[mine]
        for out, operand in zip((low, high), operands, strict=False):
            if operand:
                out[mine], here = space.uleb(here)
            else:
                out[mine], here = space.read(here, size), here + size
    addresses = info.sections("addr")

    def address(values: Words, which: NDArray[np.bool_]) -> None:
        index = np.minimum(values[which], np.uint64(NO_BASE >> 4)).astype(np.int64)
        values[which] = addresses.read(np.minimum(info.address_base[owner[which]], NO_BASE) + index * size, size)

    address(low, np.isin(kind, (DW_RLE.base_addressx, DW_RLE.startx_endx, DW_RLE.startx_length)))
    address(high, kind == DW_RLE.startx_endx)
    lengths = np.isin(kind, (DW_RLE.startx_length, DW_RLE.start_length))
    selects = np.isin(kind, (DW_RLE.base_addressx, DW_RLE.base_address))
    base = _bases(np.where(selects, low, 0), selects, count, info.low[unit])
    offsets = kind == DW_RLE.offset_pair
    high = np.where(lengths, low + high, np.where(offsets, base + high, high))
    low = np.where(offsets, base + low, low)
    return Ranges(low, high, np.repeat(rows, count)).take(~selects)


def _stretches(space: Space, lists: Ints) -> tuple[Ints, Ints]:
    """Which bytes to decode: of each contribution, from its first list to its end.

    Contributions begin with a header (DWARF 5, 7.28) that has their length; a list outside of them is not read.
    """
    begin, end, at = [], [], 0
    while at + 4 < space.size:
        cursor = Cursor(space, at)
        length, _ = cursor.unit_length()
        past = min(space.size, cursor.at + length)
        first = int(np.searchsorted(lists, at))
        if first < len(lists) and lists[first] < past:
            begin.append(int(lists[first]))
            end.append(past)
        at = past
    return np.array(begin, np.int64), np.array(end, np.int64)


def _bases(value: Words, there: NDArray[np.bool_], count: Ints, first: Words) -> Words:
    """The base of each entry of lists with ``count`` entries each: the last ``value`` that is ``there`` in the list so
    far, else the list's ``first`` base."""
    newest = np.maximum.accumulate(np.where(there, np.arange(len(value)), -1))
    selected = newest >= np.repeat(offsets_of(count)[:-1], count)
    return np.where(selected, np.append(value, np.uint64(0))[newest], np.repeat(first, count))


def _clip_base(value: Words) -> Ints:
    return np.minimum(value, np.uint64(NO_BASE)).astype(np.int64)


# -- Inline chains: the function and the inlined calls that hold an address, and their names
#
# Built as llvm-symbolizer builds them (LLVM ``DWARFUnit::getInlinedChainForAddress``): the innermost entry whose ranges
# hold the address, then the entries around it up to its function.


HOPS = 8
"""Most references to follow from an entry to its name; three are usual."""


@dataclass(slots=True)
class InlineChains:
    """Frames of all addresses, in no order."""

    owner: Ints
    """Row of the address."""
    step: Ints
    """0 is the innermost."""
    entry: Ints
    """Row of the `Tree`."""
    caller: Ints
    """The inlined entry (row of the tree) whose call site is the place of this frame; -1 for the innermost."""


@dataclass(slots=True)
class Origins:
    """Names and declarations of entries."""

    name: list[str]
    """Linkage name, else the plain one."""
    unit: Ints
    """Of ``file``."""
    file: Ints
    """Number in the line table of its unit; -1 unknown."""
    line: Ints


def innermost(tree: Tree, ranges: Ranges, address: Words, *, nested: bool) -> Ints:
    """The deepest row of ``tree`` whose ranges hold each address (ascending), or -1.

    If the linker folded several functions of a unit, the last function counts, as in LLVM. ``nested``: the ranges of an
    inlined call lie within those of its caller. Not so in DWARF 2, which has no range lists: a call whose code is in
    pieces names one of them, or none.
    """
    found = np.full(len(address), -1, np.int64)
    level = tree.level[ranges.row]
    left = np.arange(len(address))
    for depth in range(int(level.max(initial=-1)) + 1):
        mine = np.flatnonzero(level == depth)
        mine = mine[np.argsort(ranges.low[mine], kind="stable")]
        if not len(mine):
            continue
        low, high, row = ranges.low[mine], ranges.high[mine], ranges.row[mine]
        place = np.searchsorted(low, address[left], side="right") - 1
        inside = (place >= 0) & (address[left] < high[place])
        found[left[inside]] = row[place[inside]]
        if nested:
            left = left[inside]
            if not len(left):
                break
    return found


def chains_of(tree: Tree, entry: Ints) -> InlineChains:
    """The chains from each ``entry`` (row of the tree, -1: none) up to its function."""
    owner = np.flatnonzero(entry >= 0)
    current, caller = entry[owner], np.full(len(owner), -1, np.int64)
    parts: list[tuple[Ints, ...]] = []
    while len(owner):
        parts.append((owner, np.full(len(owner), len(parts)), current, caller))
        goes_on = tree.inlined[current] & (tree.up[current] >= 0)
        owner, caller = owner[goes_on], current[goes_on]
        current = tree.up[caller]
    columns = zip(*parts, strict=True) if parts else [()] * 4
    return InlineChains(*(np.concatenate([np.empty(0, np.int64), *column]) for column in columns))


NAMES = DW_AT.linkage_name, DW_AT.MIPS_linkage_name, DW_AT.name, DW_AT.decl_file, DW_AT.decl_line
REFERENCES = DW_AT.abstract_origin, DW_AT.specification


def origins_of(info: Info, offset: Ints, inlined: NDArray[np.bool_]) -> tuple[Ints, Origins]:
    """(row of the origins for each entry at ``offset``, the origins): inlined calls of one function share its row."""
    following, refers = _references(read_attributes(info, offset, REFERENCES))
    places, inverse = np.unique(np.where(refers & inlined, following, offset), return_inverse=True)
    columns = {name: AttributeColumn.absent(len(places)) for name in NAMES}
    file_unit = np.zeros(len(places), np.int64)
    rows, at = np.arange(len(places)), places
    for _ in range(HOPS):
        asked, back = np.unique(at, return_inverse=True)
        unit = info.unit_of(asked)
        found = read_attributes(info, asked, NAMES + REFERENCES, unit)
        for name, column in columns.items():
            new = found[name].there[back] & ~column.there[rows]
            column.kind[rows[new]] = found[name].kind[back][new]
            column.value[rows[new]] = found[name].value[back][new]
            if name == DW_AT.decl_file:
                file_unit[rows[new]] = unit[back][new]
        following, goes_on = _references(found)
        complete = columns[DW_AT.linkage_name].there & columns[DW_AT.decl_line].there & columns[DW_AT.decl_file].there
        goes_on = goes_on[back] & ~complete[rows]
        rows, at = rows[goes_on], following[back][goes_on]
        if not len(rows):
            break
    plain, linkage, mips = (texts(info, columns[n]) for n in (DW_AT.name, DW_AT.linkage_name, DW_AT.MIPS_linkage_name))
    shown = [a or b or c for a, b, c in zip(linkage, mips, plain, strict=True)]
    file = np.where(columns[DW_AT.decl_file].there, numbers(columns[DW_AT.decl_file]), -1)
    return inverse, Origins(shown, file_unit, file, numbers(columns[DW_AT.decl_line]))


def _references(found: dict[int, AttributeColumn]) -> tuple[Ints, NDArray[np.bool_]]:
    """(offset of the entry to which each entry refers, whether there is such a reference)."""
    origin, specification = (found[name] for name in REFERENCES)
    use = origin.kind == EntryKind.REFERENCE
    there = use | (specification.kind == EntryKind.REFERENCE)
    value = np.where(use, origin.value, specification.value)
    return np.minimum(value, np.uint64(1 << 62)).astype(np.int64), there


def numbers(column: AttributeColumn) -> Ints:
    """Values of ``column`` as numbers of files, lines and columns; what is no number or too large is 0."""
    fits = (column.kind == EntryKind.NUMBER) & (column.value < np.uint64(1 << 32))
    return np.where(fits, column.value, np.uint64(0)).astype(np.int64)


CALL = DW_AT.call_file, DW_AT.call_line, DW_AT.call_column, DW_AT.GNU_discriminator

Path = Callable[[int, int], str]
"""(unit, number in its line table) -> the path of a file; empty where there is none."""


@dataclass(slots=True)
class InlineFrames:
    """Frames of some addresses: the columns of `Names`, files as (unit, number) of line tables."""

    owner: Ints
    step: Ints
    origin: Ints
    unit: Ints
    file: Ints
    line: Ints
    column: Ints
    discriminator: Ints

    def columns(self) -> dict[str, Ints]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def join(cls, parts: list[InlineFrames]) -> InlineFrames:
        """All frames by address and step."""
        columns = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)}
        order = np.lexsort((columns["step"], columns["owner"]))
        return cls(**{name: column[order] for name, column in columns.items()})


@dataclass(slots=True)
class LinePlaces:
    """The rows of line tables for n addresses."""

    there: NDArray[np.bool_]
    file: NDArray[np.uint32]
    line: NDArray[np.uint32]
    column: NDArray[np.uint32]
    discriminator: NDArray[np.uint32]


def describe_chains(info: Info, tree: Tree, chains: InlineChains) -> tuple[InlineFrames, Origins]:
    """``chains`` as frames, and the origins that these refer to."""
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
    return InlineFrames(chains.owner, chains.step, origin[inverse], tree.unit[chains.entry], *columns), origins


def name_addresses(
    unit: Ints,
    symbol: Ints,
    places: LinePlaces,
    parts: list[tuple[InlineFrames, Origins]],
    symbols: Symbols,
    path: Path,
) -> Names:
    """The names of addresses in ``unit`` that have ``symbol`` and lines at ``places`` (-1, or not there: none).

    The innermost frame is at the place of the line table. The outermost function has the name of the symbol.
    """
    frames = _complete(parts, len(unit), (symbol >= 0) | places.there)
    owner = frames.owner
    inner = np.flatnonzero((frames.step == 0) & places.there[owner])
    row = owner[inner]
    frames.unit[inner] = unit[row]
    for name in ("file", "line", "column", "discriminator"):
        getattr(frames, name)[inner] = getattr(places, name)[row]
    files = _Files(path)
    count = np.bincount(owner, minlength=len(unit))
    offsets = np.concatenate([[0], np.cumsum(count)])
    outermost = offsets[1:][owner] - 1 == np.arange(len(owner))
    called = np.where(outermost, symbol[owner], -1)
    functions, frame_function = _functions(parts, frames.origin, called, symbols, files)
    frame_file = files.rows(frames.unit, frames.file)
    function = np.where(count > 0, np.append(frame_function, -1)[offsets[1:] - 1], -1)
    return Names(
        function.astype(np.int32),
        offsets.astype(np.int64),
        frame_function.astype(np.int32),
        frame_file.astype(np.int32),
        frames.line.astype(np.uint32),
        frames.column.astype(np.uint32),
        frames.discriminator.astype(np.uint32),
        functions,
        list(files.known),
    )


def _complete(parts: list[tuple[InlineFrames, Origins]], count: int, known: NDArray[np.bool_]) -> InlineFrames:
    """All frames by address and step, origins numbered through; ``known`` addresses without a chain have one frame."""
    chained = np.zeros(count, bool)
    base = 0
    for frames, origins in parts:
        chained[frames.owner] = True
        frames.origin = np.where(frames.origin >= 0, frames.origin + base, -1)
        base += len(origins.name)
    alone = np.flatnonzero(~chained & known)
    zero = np.zeros(len(alone), np.int64)
    single = InlineFrames(alone, zero, zero - 1, zero, zero - 1, zero, zero, zero)
    return InlineFrames.join([*(frames for frames, _ in parts), single])


def _functions(
    parts: list[tuple[InlineFrames, Origins]], origin: Ints, symbol: Ints, symbols: Symbols, files: _Files
) -> tuple[list[Function], Ints]:
    """The functions of frames: each pair of origin and symbol (-1: inlined, or none) once. (functions, row of each)."""
    names = [name for _, origins in parts for name in origins.name]
    unit, file, line = (
        np.concatenate([*(getattr(o, n) for _, o in parts), [-1]]).astype(np.int64) for n in ("unit", "file", "line")
    )
    wide = len(symbols) + 1
    pairs, row = np.unique((origin + 1) * wide + symbol + 1, return_inverse=True)
    of, at = pairs // wide - 1, pairs % wide - 1
    declared = files.rows(unit[of], file[of]).tolist()
    known = [*files.known, ""]
    there = np.flatnonzero(at >= 0)
    called = [names[i] if i >= 0 else "" for i in of.tolist()]
    compiled = [""] * len(called)
    for i, name in zip(there.tolist(), symbols.names(at[there]), strict=True):
        if called[i] != name:
            called[i], compiled[i] = name, called[i]
    start, size = (
        np.where(at >= 0, np.append(c, np.uint64(0))[at], np.uint64(0)).tolist() for c in (symbols.start, symbols.size)
    )
    lines = np.where(of >= 0, line[of], 0).tolist()
    files_of, described = [known[d] for d in declared], (of >= 0).tolist()
    given = zip(called, called, start, size, files_of, lines, described, compiled, strict=True)
    return list(map(Function._make, given)), row


class _Files:
    """Paths, each once, by (unit, number in its line table)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, int] = {}

    def rows(self, unit: Ints, number: Ints) -> Ints:
        """The row of each file in ``known``; -1 unknown."""
        there = np.flatnonzero((number >= 0) & (unit >= 0))
        pairs, back = np.unique(unit[there] << 32 | number[there], return_inverse=True)
        rows = np.array([self._row(pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist()], np.int64)
        found = np.full(len(unit), -1, np.int64)
        found[there] = rows[back] if len(there) else -1
        return found

    def _row(self, unit: int, number: int) -> int:
        path = self._path(unit, number)
        return self.known.setdefault(path, len(self.known)) if path else -1
