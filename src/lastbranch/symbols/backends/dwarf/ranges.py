"""Addresses of entries: ``DW_AT_low_pc`` and ``high_pc``, or a range list (DWARF 5, 2.17 and 7.25; DWARF 4, 7.23)."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, distinct, interval_of, offsets_of, ranges
from ....binaries.dwarf import DW_AT, DW_RLE
from ....binaries.files import Space, Words
from .bytecode import instruction_starts, state_table
from .entries import Column, Kind, read_attributes
from .units import NO_BASE, Cursor, Info

__all__ = ["Ranges", "ranges_of"]


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
        """Ascending ranges that do not overlap: where these do, the address belongs to the lowest row."""
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
    whole = np.flatnonzero((low.kind == Kind.ADDRESS) & high.there & ~lists.there)
    end = np.where(high.kind[whole] == Kind.ADDRESS, high.value[whole], low.value[whole] + high.value[whole])
    parts = [Ranges(low.value[whole], end, whole)]
    old = lists.there & (info.version[unit] < 5) if len(unit) else lists.there
    for rows, read in ((np.flatnonzero(old), _pairs), (np.flatnonzero(lists.there & ~old), _coded)):
        if len(rows):
            part = Column(lists.kind[rows], lists.value[rows])
            found_ranges = read(info, part, unit[rows])
            parts.append(Ranges(found_ranges.low, found_ranges.high, rows[found_ranges.row]))
    return Ranges.join(parts)


def _pairs(info: Info, lists: Column, unit: Ints) -> Ranges:
    """``.debug_ranges`` of DWARF 3 and 4: pairs of addresses from a base, ended by zeros."""
    space, parts = info.sections("ranges"), []
    base_at = np.where(info.range_base[unit] < NO_BASE, info.range_base[unit], 0)
    at: Ints = _bounded(lists.value) + base_at
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


def _coded(info: Info, lists: Column, unit: Ints) -> Ranges:
    """``.debug_rnglists`` of DWARF 5: entries that begin with their kind."""
    space = info.sections("rnglists")
    parts: list[Ranges] = []
    width = info.offset_size[unit]
    base = info.range_base[unit]
    table = (base + np.minimum(_bounded(lists.value), NO_BASE >> 4) * width).astype(np.int64)
    entry = np.where(width == 4, space.read(table, 4), space.read(table, 8))
    indexed = lists.kind == Kind.INDEX
    at = np.where(indexed, base + _bounded(entry), _bounded(lists.value))
    for size in (4, 8):
        rows = np.flatnonzero((info.address_size[unit] == size) & (at < space.size))
        if len(rows):
            parts.append(_coded_at(info, space, at[rows], unit[rows], size, rows))
    return Ranges.join(parts)


def _coded_at(info: Info, space: Space, at: Ints, unit: Ints, size: int, rows: Ints) -> Ranges:
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


def _bounded(value: Words) -> Ints:
    return np.minimum(value, np.uint64(NO_BASE)).astype(np.int64)
