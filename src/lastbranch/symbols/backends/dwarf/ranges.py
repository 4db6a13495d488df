"""Addresses of entries: ``DW_AT_low_pc`` and ``high_pc``, or a range list (DWARF 5, 2.17 and 7.25; DWARF 4, 7.23)."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ....binaries.files import Space
from .entries import Column, Kind, read_attributes
from .tokens import machine, starts_of
from .units import AT, NO_BASE, RLE, Info

__all__ = ["Owners", "Ranges", "ranges_of"]


WANTED = AT.LOW_PC, AT.HIGH_PC, AT.RANGES


@dataclass(slots=True)
class Ranges:
    """Address ranges and the rows of the entries that they belong to."""

    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    row: NDArray[np.int64]

    @classmethod
    def join(cls, parts: list[Ranges]) -> Ranges:
        """All ranges that are not empty, by their rows. Code that the linker dropped may have empty ones."""
        low, high, row = (np.concatenate([getattr(p, name) for p in parts]) for name in ("low", "high", "row"))
        kept = np.flatnonzero(low < high)
        order = kept[np.argsort(row[kept], kind="stable")]
        return cls(low[order], high[order], row[order])


def ranges_of(info: Info, offset: NDArray[np.int64], unit: NDArray[np.int64]) -> Ranges:
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


def _pairs(info: Info, lists: Column, unit: NDArray[np.int64]) -> Ranges:
    """``.debug_ranges`` of DWARF 3 and 4: pairs of addresses from a base, ended by zeros."""
    space, parts = info.sections("ranges"), []
    base_at = np.where(info.range_base[unit] < NO_BASE, info.range_base[unit], 0)
    at: NDArray[np.int64] = _bounded(lists.value) + base_at
    for width in (4, 8):
        for part in range(2 * width):
            rows = np.flatnonzero((info.address_size[unit] == width) & (at % (2 * width) == part) & (at < space.size))
            if not len(rows):
                continue
            count = (space.size - part) // (2 * width)
            places: NDArray[np.int64] = part + np.arange(2 * count) * width
            words = space.read(places, width).reshape(-1, 2)
            first = at[rows] // (2 * width)
            stop = np.flatnonzero((words == 0).all(axis=1))
            last = np.append(stop, count)[np.searchsorted(stop, first)]
            entry, row = _spread(first, last)
            low, high = words[entry].T
            selects = low == np.uint64(2**32 - 1 if width == 4 else 2**64 - 1)
            base = _carried(np.where(selects, high, 0), selects, first, last, info.low[unit[rows]])
            kept = ~selects
            parts.append(Ranges((base + low)[kept], (base + high)[kept], rows[row[kept]]))
    return Ranges.join(parts or [_none()])


OPERANDS = {
    RLE.END: (), RLE.BASE_ADDRESSX: (-1,), RLE.STARTX_ENDX: (-1, -1), RLE.STARTX_LENGTH: (-1, -1),
    RLE.OFFSET_PAIR: (-1, -1), RLE.BASE_ADDRESS: (0,), RLE.START_END: (0, 0), RLE.START_LENGTH: (0, -1),
}  # fmt: skip
"""Kind of entry -> operands: -1 a LEB128 number, 0 an address."""


def _coded(info: Info, lists: Column, unit: NDArray[np.int64]) -> Ranges:
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
    return Ranges.join(parts or [_none()])


def _coded_at(
    info: Info, space: Space, at: NDArray[np.int64], unit: NDArray[np.int64], size: int, rows: NDArray[np.int64]
) -> Ranges:
    codes = {kind: tuple(size if o == 0 else o for o in operands) for kind, operands in OPERANDS.items()}
    lists = np.unique(at)
    entry, _ = starts_of(space, *_stretches(space, lists), machine(codes))
    kind = space.data[entry]
    stop = np.flatnonzero(kind == RLE.END)
    first = np.searchsorted(entry, at)
    found = np.flatnonzero(np.append(entry, -1)[first] == at)
    first, unit, rows = first[found], unit[found], rows[found]
    last = np.append(stop, len(entry))[np.searchsorted(stop, first)]
    place, row = _spread(first, last)
    where, kind = entry[place] + 1, kind[place]
    owner = unit[row]
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

    def address(values: NDArray[np.uint64], which: NDArray[np.bool_]) -> None:
        index = np.minimum(values[which], np.uint64(NO_BASE >> 4)).astype(np.int64)
        values[which] = addresses.read(np.minimum(info.address_base[owner[which]], NO_BASE) + index * size, size)

    address(low, np.isin(kind, (RLE.BASE_ADDRESSX, RLE.STARTX_ENDX, RLE.STARTX_LENGTH)))
    address(high, kind == RLE.STARTX_ENDX)
    lengths = np.isin(kind, (RLE.STARTX_LENGTH, RLE.START_LENGTH))
    selects = np.isin(kind, (RLE.BASE_ADDRESSX, RLE.BASE_ADDRESS))
    base = _carried(np.where(selects, low, 0), selects, first, last, info.low[unit])
    offsets = kind == RLE.OFFSET_PAIR
    high = np.where(lengths, low + high, np.where(offsets, base + high, high))
    low = np.where(offsets, base + low, low)
    return Ranges(low[~selects], high[~selects], rows[row[~selects]])


def _stretches(space: Space, lists: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where byte code may be run through: from the first list of each contribution to its end.

    Contributions begin with a header (DWARF 5, 7.28) that says how long they are; lists outside of any run to the end.
    """
    begin, end, at = [], [], 0
    while at + 4 < space.size:
        length = int(space.read(np.array([at]), 4)[0])
        head = 4
        if length == 0xFFFFFFFF:
            length, head = int(space.read(np.array([at + 4]), 8)[0]), 12
        behind = min(space.size, at + head + length)
        first = int(np.searchsorted(lists, at))
        if first < len(lists) and lists[first] < behind:
            begin.append(int(lists[first]))
            end.append(behind)
        at = behind
    return np.array(begin, np.int64), np.array(end, np.int64)


def _spread(first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All numbers of ``range(first, last)`` behind each other, and the row that each comes from."""
    count = np.maximum(0, last - first)
    row = np.repeat(np.arange(len(first)), count)
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum())), row


def _carried(
    value: NDArray[np.uint64],
    there: NDArray[np.bool_],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    begin: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """For each entry of lists that `_spread` laid out: the last ``value`` before it in its list, else ``begin``."""
    count = np.maximum(0, last - first)
    start = np.repeat(np.cumsum(count) - count, count)
    newest = np.maximum.accumulate(np.where(there, np.arange(len(value)), -1)) if len(value) else start
    return np.where(newest >= start, value[np.maximum(newest, 0)] if len(value) else value, np.repeat(begin, count))


def _bounded(value: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.minimum(value, np.uint64(NO_BASE)).astype(np.int64)


def _none() -> Ranges:
    return Ranges(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))


# -- Which unit an address belongs to


@dataclass(slots=True)
class Owners:
    """Which unit an address belongs to: ranges that do not overlap, ascending."""

    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    unit: NDArray[np.int64]

    @classmethod
    def of(cls, ranges: Ranges) -> Owners:
        """Where units overlap, the first one in the file has the address."""
        order = np.lexsort((ranges.row, ranges.low))
        low, high, unit = ranges.low[order], ranges.high[order], ranges.row[order]
        if len(low) and (low[1:] < np.maximum.accumulate(high)[:-1]).any():
            return cls._swept(low.tolist(), high.tolist(), unit.tolist())
        return cls(low, high, unit)

    @classmethod
    def _swept(cls, low: list[int], high: list[int], unit: list[int]) -> Owners:
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
