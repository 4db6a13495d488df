"""Operations that NumPy lacks: tables, ragged columns, and merging of rows with equal keys."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from . import native

__all__ = [
    "Array",
    "Ints",
    "RowNumbers",
    "SortKey",
    "StackSums",
    "Sums",
    "SummedStacks",
    "Table",
    "bisect_within",
    "sum_covering",
    "distinct",
    "distinct_rows",
    "distinct_stacks",
    "distinct_unordered",
    "group",
    "group_unordered",
    "in_groups",
    "insertion_points",
    "interval_of",
    "lowest_rows",
    "offsets_of",
    "positions",
    "ranges",
    "sums",
    "take_ranges",
    "take_rows",
    "view_unaligned",
]

Array = NDArray[Any]
Ints = NDArray[np.int64]

_PIECE = 1 << 15


class Table:
    """Base of a dataclass whose fields are columns: arrays with one value a row. Other fields describe it all."""

    # mypy cannot know that what derives from this is a dataclass: hence the ignored types.
    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def arrays(self) -> dict[str, Array]:
        """The columns by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: column for name, column in found.items() if isinstance(column, np.ndarray)}

    def take(self, rows: Array | slice) -> Self:
        """The rows of a bool mask, of a slice, or of indices in the wanted order."""
        return replace(self, **{name: c[rows] for name, c in self.arrays().items()})  # type: ignore[type-var]


def view_unaligned(raw: Any, dtype: Any) -> Array:
    """The bytes ``raw`` as a view whose element ``i`` is the ``dtype`` that begins at byte ``i``."""
    return np.ndarray((max(0, len(raw) - np.dtype(dtype).itemsize + 1),), dtype, raw, 0, (1,))


def ranges(first: Ints, count: Ints, step: int = 1) -> Ints:
    """``first[i], first[i] + step, ...``, ``count[i]`` numbers of each, int64."""
    ends = np.cumsum(count)
    index = np.repeat(first - (ends - count) * step, count)
    index += np.arange(0, len(index) * step, step)
    return index


def offsets_of(count: Array) -> Ints:
    """The beginning of each range, and last the sum of all sizes: int64, one element more than ``count``."""
    offsets = np.zeros(len(count) + 1, np.int64)
    np.cumsum(count, out=offsets[1:])
    return offsets


def take_ranges(values: Array, first: Ints, count: Ints) -> Array:
    """``values.take(ranges(first, count))`` of contiguous values."""
    taken = np.empty(int(count.sum()), values.dtype)
    library = native.library()
    if library is not None and values.flags.c_contiguous and not values.dtype.hasobject:
        begin, length = np.ascontiguousarray(first, np.int64), np.ascontiguousarray(count, np.int64)
        source, out = native.address(values), native.address(taken)
        runs = native.address(begin), native.address(length), len(length)
        if library.lb_take_runs(source, len(values), values.itemsize, *runs, out, len(taken)) == 0:
            return taken
    return _take_by_indices(values, first, count, taken)


def _take_by_indices(values: Array, first: Ints, count: Ints, taken: Array) -> Array:
    """`take_ranges` into ``taken``, a piece at a time: indices that stay in the processor's caches are made in a third
    of the time."""
    offsets, lo = offsets_of(count), 0
    while lo < len(count):
        hi = max(lo + 1, int(np.searchsorted(offsets, offsets[lo] + _PIECE, "right")) - 1)
        piece = ranges(first[lo:hi], count[lo:hi])
        # With mode "raise" it would be copied once more.
        values.take(piece, out=taken[offsets[lo] : offsets[hi]], mode="clip")
        lo = hi
    return taken


def sum_covering(first: Ints, past: Ints, weight: Array, rows: int) -> Array:
    """For each of ``rows`` rows, the sum of the ``weight`` of the ranges ``first[i]:past[i]`` that hold the row."""
    steps = np.zeros(rows + 1, weight.dtype)
    np.add.at(steps, first, weight)
    np.subtract.at(steps, past, weight)
    return np.asarray(np.cumsum(steps[:-1]))


def sums(row: Ints, values: Ints, rows: int) -> Ints:
    """int64[rows]: the sum of the ``values`` of each row."""
    found = np.zeros(rows, np.int64)
    np.add.at(found, row, values)
    return found


def take_rows(values: Array, offsets: Ints, rows: Ints) -> tuple[Array, Ints]:
    """(values, offsets) of these rows of a ragged column: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""
    count = offsets[1:][rows] - offsets[:-1][rows]
    return values[ranges(offsets[:-1][rows], count)], offsets_of(count)


def positions(offsets: Ints) -> Ints:
    """The place of each value within its row, from 0."""
    return np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], np.diff(offsets))


def in_groups(read: Callable[[Ints, Ints], NDArray[Any]], first: Ints, count: Ints, near: int) -> NDArray[Any]:
    """The ranges of what ``read(first, past)`` reads, one after the other, in their own order.

    Ranges that overlap, or have at most ``near`` items between them, are read together.
    """
    if not count.any():
        return read(first[:0], first[:0])
    order = np.argsort(first)
    begin, end = first[order], np.maximum.accumulate((first + count)[order])
    apart = np.append(True, begin[1:] > end[:-1] + near)
    heads = np.flatnonzero(apart)
    low, high = begin[heads], end[np.append(heads[1:], len(end)) - 1]
    group = np.cumsum(apart) - 1
    place = np.empty_like(first)
    place[order] = begin - low[group] + offsets_of(high - low)[group]
    return take_ranges(read(low, high), place, count)


def insertion_points(a: Array, b: Array, wanted_a: Array, wanted_b: Array, *, right: bool = False) -> Ints:
    """Left (``right``: right) insertion points of pairs in the sorted pairs ``(a, b)``, int64.

    All pairs are bisected in step among those of their ``a``, of which there are few in what this is used for.
    """
    low, high = np.searchsorted(a, wanted_a, "left"), np.searchsorted(a, wanted_a, "right")
    return bisect_within(b, low, high, wanted_b, right=right)


def bisect_within(values: Array, low: Ints, high: Ints, wanted: Array, *, right: bool = False) -> Ints:
    """Left (``right``: right) insertion point of each of ``wanted`` among ``values[low:high]``, which ascend.

    All are bisected in step. ``low`` and ``high`` are changed.
    """
    live = np.flatnonzero(low < high)
    while len(live):
        middle = (low[live] + high[live]) >> 1
        there, mine = values[middle], wanted[live]
        after = (there <= mine) if right else (there < mine)
        low[live] = np.where(after, middle + 1, low[live])
        high[live] = np.where(after, high[live], middle)
        live = live[low[live] < high[live]]
    return low


def interval_of(start: Array, end: Array, value: Array) -> Ints:
    """The row of the interval ``start:end`` (ascending, disjoint, as wide as ``value``) that holds each value, int64;
    -1 where none does."""
    if not len(start):
        return np.full(len(value), -1, np.int64)
    row = np.searchsorted(start, value, side="right").astype(np.int64) - 1
    return np.where((row >= 0) & (value < end[np.maximum(row, 0)]), row, -1)


SortKey = Array | Callable[[Ints], Array]
"""A column, or what finds it for some rows."""


def lowest_rows(keys: Sequence[SortKey], number: int) -> Ints:
    """The rows with the lowest ``keys``, the first of which counts most and is a column, in order: at most ``number``.

    Only these rows are sorted. A later key of the other rows is computed only if all earlier keys are equal.
    """
    rows, found = np.arange(len(cast("Array", keys[0]))), [np.empty(0, np.int64)]
    for key in keys:
        if len(rows) <= number:
            break
        values = _of_rows(key, rows)
        last = np.partition(values, number - 1)[number - 1]
        found.append(rows[values < last])
        number -= len(found[-1])
        rows = rows[values == last]
    chosen = np.concatenate([*found, rows[:number]])
    return np.asarray(chosen[np.lexsort([_of_rows(key, chosen) for key in reversed(keys)])])


def _of_rows(key: SortKey, rows: Ints) -> Array:
    return key(rows) if callable(key) else key[rows]


# -- Rows with equal keys made one


def distinct(values: Array) -> Array:
    """The distinct values, in order: what `numpy.unique` gives.

    `numpy.unique` loads masked arrays, a tenth of the time to start, and makes a hash table, which took ten times as
    long where there are many values.
    """
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def group(keys: Sequence[Array], values: Sequence[Array], ops: Sequence[np.ufunc]) -> tuple[list[Array], list[Array]]:
    """Make one row of all rows with equal ``keys``, combining each value column by its ufunc; sorted by the keys."""
    if not len(keys[0]):
        return list(keys), list(values)
    narrow = keys[0].itemsize < 4  # a stable sort of those goes by their digits
    order = np.lexsort(tuple(keys)[::-1]) if len(keys) > 1 else np.argsort(keys[0], stable=narrow)
    ordered = [k[order] for k in keys]
    new = np.zeros(len(order), bool)
    new[0] = True
    for k in ordered:
        new[1:] |= k[1:] != k[:-1]
    starts = np.flatnonzero(new)
    return [k[starts] for k in ordered], [op.reduceat(v[order], starts) for v, op in zip(values, ops, strict=True)]


class Sums:
    """Adds up columns by keys, batch after batch: rows with equal keys are one in the `result`."""

    def __init__(self, keys: Sequence[type[np.generic]], values: Sequence[type[np.generic]]) -> None:
        self._keys, self._rows = len(keys), 0
        self._parts: list[Sequence[Array]] = [[np.empty(0, kind) for kind in (*keys, *values)]]

    def add(self, *columns: Array) -> None:
        """Add rows: the columns of the keys, then those of the values."""
        self._parts.append(columns)
        self._rows += len(columns[0])
        if self._rows > max(_WAITING_ROWS, len(self._parts[0][0])):
            self.result()

    def result(self) -> list[Array]:
        """The distinct keys, sorted, and the sum of each value."""
        columns = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
        keys, values = columns[: self._keys], columns[self._keys :]
        keys, values = group(keys, values, [np.add] * len(values))
        self.reset(*keys, *values)
        return [*keys, *values]

    def reset(self, *columns: Array) -> None:
        """Have these rows, whose keys differ, instead of those that were added."""
        self._parts, self._rows = [columns], 0


_WAITING_ROWS = 1 << 18


def distinct_rows(*columns: Array) -> tuple[Ints, Ints]:
    """(rows int64[k], which int64[n]): the first row of each kind, sorted by the integer columns, and for each row its
    index in them.
    """
    key, kinds = np.zeros(len(columns[0]), np.int64), 1
    for column in columns if len(key) else ():
        column = column if column.itemsize == 8 else column.astype(np.int64)
        low, width = column.min(), int(column.max()) - int(column.min()) + 1
        if width * kinds < _KEYS:
            place = (column - low).astype(np.int64)
        else:
            (key, kinds), (place, width) = rank_values(key), rank_values(column)
        key, kinds = key * width + place, kinds * width
    _, rows, which = np.unique(key, return_index=True, return_inverse=True)
    return rows, which.reshape(-1)


def distinct_unordered(*columns: Array) -> tuple[Ints, Ints]:
    """(rows int64[k], which int64[n]): a row of each kind of the 64-bit integer columns, in no order, and for each row
    its index in them. The library does this by a hash table, in a fraction of the time of `distinct_rows`."""
    found = _distinct_compiled(columns, np.empty(0, np.int64), np.zeros(len(columns[0]) + 1, np.int64))
    return distinct_rows(*columns) if found is None else found


def number_rows(known: dict[tuple[int, ...], int], *columns: Array) -> Ints:
    """int64: the number in ``known`` of each row of the integer columns. New rows are added, as they sort."""
    rows, which = distinct_rows(*columns)
    keys = zip(*(column[rows].tolist() for column in columns), strict=True)
    numbers = [known.setdefault(key, len(known)) for key in keys]
    return np.array(numbers, np.int64)[which]


class RowNumbers:
    """Numbers rows of 64-bit integer columns as they come, batch after batch: equal rows have one number."""

    def __init__(self, columns: int) -> None:
        self._known: dict[tuple[int, ...], int] = {}
        self._library = native.library()
        if self._library is not None:
            self._table = self._library.lb_numbers_new(int(_KEY), columns)
            if not self._table:
                raise MemoryError
            weakref.finalize(self, self._library.lb_numbers_free, self._table)

    def of(self, *columns: Array) -> tuple[Ints, Ints]:
        """(int64 number of each row, int64 the first row of each new number in their order)."""
        if self._library is None:
            before = len(self._known)
            number = number_rows(self._known, *columns)
            first = np.empty(len(self._known) - before, np.int64)
            new = np.flatnonzero(number >= before)
            first[number[new[::-1]] - before] = new[::-1]
            return number, first
        key, number = _words(columns), np.empty(len(columns[0]), np.int64)
        first = np.empty_like(number)
        given = map(native.address, (number, first))
        new = self._library.lb_numbers_add(self._table, native.address(key), len(number), *given)
        if new < 0:
            raise MemoryError
        return number, first[:new].copy()


def rank_values(column: Array) -> tuple[Ints, int]:
    """(rank of each value among the distinct ones, how many these are)."""
    found, rank = np.unique(column, return_inverse=True)
    return rank.reshape(-1), len(found)


_KEYS = 1 << 62


# -- By a sort of hashes, for tables whose order does not matter yet


_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 by the golden ratio
_HALF = np.uint64(32)


def group_unordered(
    keys: Sequence[Array], values: Iterable[Array], ops: Sequence[np.ufunc]
) -> tuple[list[Array], list[Array]]:
    """The same as `group`, in no order, in a fraction of the time if there are several keys.

    Numbers are sorted that have a hash of the keys above and the row below. If two keys have the same hash, `group`
    does the work. ``values`` are taken one after the other, so that not all need be in memory twice.
    """
    rows = len(keys[0])
    if not rows:
        return list(keys), list(values)
    low = np.uint64((1 << rows.bit_length()) - 1)
    mixed = np.zeros(rows, np.uint64)
    for key in keys:
        mixed ^= key.astype(np.uint64)
        mixed *= _GOLDEN
        mixed ^= mixed >> _HALF
    mixed *= _GOLDEN
    mixed &= ~low
    mixed |= np.arange(rows, dtype=np.uint64)
    mixed.sort()
    order = (mixed & low).view(np.int64)
    mixed &= ~low
    new = np.append(True, mixed[1:] != mixed[:-1])
    starts, merged = np.flatnonzero(new), []
    for key in keys:
        ordered = key.take(order)
        if ((ordered[1:] != ordered[:-1]) & ~new[1:]).any():
            return group(keys, list(values), ops)
        merged.append(ordered.take(starts))
    return merged, [op.reduceat(value.take(order), starts) for value, op in zip(values, ops, strict=True)]


# -- Stacks: by a hash of each, then a comparison of those with the same hash


_ODD = np.uint64(1)
_FRAME, _PLACE, _KEY = np.frombuffer(os.urandom(24), np.uint64) | _ODD
"""Multipliers that nobody can know, so that no file can be made to have many stacks with one hash."""


def distinct_stacks(keys: Sequence[Array], frame: Array, offsets: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows int64[k], which int64[n]): the first stack of each kind, ascending, and for each stack its index in them.

    Stack ``i`` has the values ``frame[offsets[i]:offsets[i + 1]]`` (integers of any size). Equal are those with the
    same frames and the same value in each of ``keys`` (n integers).
    """
    found = _distinct_compiled(keys, frame, offsets)
    if found is not None:
        return found
    first = np.full(len(offsets) - 1, -1, np.int64)
    digest, left = _digest(keys, frame, offsets), np.arange(len(first))
    while len(left):  # again for stacks that have the hash of a different one
        _, at, back = np.unique(digest[left], return_index=True, return_inverse=True)
        one = left[at][back.reshape(-1)]
        same = _equal(keys, frame, offsets, left, one)
        first[left[same]] = one[same]
        left = left[~same]
    rows, which = np.unique(first, return_inverse=True)
    return rows, which.reshape(-1)


def _distinct_compiled(keys: Sequence[Array], frame: Array, offsets: Array) -> tuple[Ints, Ints] | None:
    """`distinct_stacks` by the compiled library; ``None`` without it, and for values of other sizes than its."""
    library, number = native.library(), len(offsets) - 1
    if library is None:
        return None
    key = np.array([column.astype(np.int64) for column in keys], np.int64)
    given = np.ascontiguousarray(frame), np.ascontiguousarray(offsets, np.int64)
    rows, which = np.empty(number, np.int64), np.empty(number, np.int64)
    frames, bounds, *out = map(native.address, (*given, rows, which))
    arguments = native.address(key), len(keys), frames, frame.itemsize, bounds, number, int(_KEY), *out
    found = library.lb_distinct_stacks(*arguments)
    return (rows[:found].copy(), which) if found >= 0 else None


def _digest(keys: Sequence[Array], frame: Array, offsets: Array) -> NDArray[np.uint64]:
    """A hash of each stack; all sums and products are modulo 2**64."""
    sizes = np.diff(offsets)
    deepest = int(sizes.max(initial=0))
    of_place = np.cumprod(np.full(deepest + 1, _PLACE))
    mixed = frame.astype(np.uint64) * _FRAME
    mixed ^= mixed >> _HALF
    mixed *= of_place[np.arange(len(frame)) - np.repeat(offsets[:-1], sizes)]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
    out: NDArray[np.uint64] = sums[offsets[1:]] - sums[offsets[:-1]] + of_place[sizes]
    for key in keys:
        out = (out ^ (out >> _HALF)) * _KEY + key.astype(np.uint64)
    return out


def _equal(keys: Sequence[Array], frame: Array, offsets: Array, one: Array, other: Array) -> NDArray[np.bool_]:
    """Whether these stacks are equal, pair by pair."""
    sizes = np.diff(offsets)
    same = np.asarray(sizes[one] == sizes[other])
    for key in keys:
        same &= key[one] == key[other]
    rows = np.flatnonzero(same & (one != other))
    (a, bounds), (b, _) = take_rows(frame, offsets, one[rows]), take_rows(frame, offsets, other[rows])
    differing = np.concatenate([[0], np.cumsum(a != b)])[bounds]
    same[rows] = differing[1:] == differing[:-1]
    return same


class SummedStacks(NamedTuple):
    """Different stacks: ``frame`` uint64, ragged by ``offsets`` (int64, stacks + 1). ``keys`` and ``values`` have a row
    for each column: int64[columns, stacks]."""

    keys: Ints
    frame: NDArray[np.uint64]
    offsets: Ints
    values: Ints


class StackSums:
    """Adds up columns over equal stacks, batch after batch: those with the same frames and the same ``keys``.

    The ``values`` are sums, ``lows`` columns after them keep the lowest value, ``highs`` after these the highest.
    Without frames, rows with equal keys are added up.
    """

    def __init__(self, keys: int, values: int, lows: int = 0, highs: int = 0) -> None:
        self._keys, self._values = keys, values + lows + highs
        self._ops = [np.add] * values + [np.minimum] * lows + [np.maximum] * highs
        self._library = native.library()
        if self._library is not None:
            self._table = self._library.lb_sums_new(int(_KEY), keys, values, lows, highs)
            if not self._table:
                raise MemoryError
            weakref.finalize(self, self._library.lb_sums_free, self._table)
        self._parts: list[SummedStacks] = []
        self._size = self._summed = 0

    @property
    def size(self) -> int:
        """Stacks and frames that are kept: without the library some are equal."""
        if self._library is None:
            return self._size
        return int(self._library.lb_sums_rows(self._table) + self._library.lb_sums_frames(self._table))

    def add(self, keys: Iterable[Array], frame: Array, offsets: Array, values: Iterable[Array]) -> None:
        """Add stacks: stack ``i`` has the frames ``offsets[i]:offsets[i + 1]`` and an element of each of ``keys`` and
        ``values``. All are 64-bit integers; sums are modulo 2**64, what is lowest and highest is so as int64."""
        rows = len(offsets) - 1
        whole, bounds = np.ascontiguousarray(frame).view(np.uint64), np.ascontiguousarray(offsets, np.int64)
        part = SummedStacks(_words(keys), whole, bounds, _words(values))
        if self._library is not None:
            if self._library.lb_sums_add(self._table, *_addresses(part), rows):
                raise MemoryError
            return
        self._parts.append(part)
        self._size += len(frame) + rows
        if self._size > max(_WAITING_ROWS, 2 * self._summed):
            self._sum()

    def take(self) -> SummedStacks:
        """`read`; none is left."""
        found = self.read()
        if self._library is not None:
            self._library.lb_sums_clear(self._table)
        self._parts, self._size, self._summed = [], 0, 0
        return found

    def read(self) -> SummedStacks:
        """The stacks, in the order in which they were first seen."""
        if self._library is None:
            self._sum()
            return self._parts[0]
        rows, frames = self._library.lb_sums_rows(self._table), self._library.lb_sums_frames(self._table)
        keys, values = np.empty((self._keys, rows), np.int64), np.empty((self._values, rows), np.int64)
        found = SummedStacks(keys, np.empty(frames, np.uint64), np.empty(rows + 1, np.int64), values)
        self._library.lb_sums_read(self._table, *_addresses(found))
        return found

    def _sum(self) -> None:
        """Make equal stacks one."""
        sizes = np.concatenate([_NONE, *(np.diff(part.offsets) for part in self._parts)])
        frame = np.concatenate([_NONE.view(np.uint64), *(part.frame for part in self._parts)])
        keys = np.concatenate([np.empty((self._keys, 0), np.int64), *(part.keys for part in self._parts)], 1)
        values = np.concatenate([np.empty((self._values, 0), np.int64), *(part.values for part in self._parts)], 1)
        rows, which = distinct_stacks(list(keys), frame, offsets_of(sizes))
        sums = values[:, rows]
        for total, column, op in zip(sums, values, self._ops, strict=True):
            if op is np.add:
                total[:] = 0
            op.at(total, which, column)
        self._parts = [SummedStacks(keys[:, rows], *take_rows(frame, offsets_of(sizes), rows), sums)]
        self._size = self._summed = len(rows) + len(self._parts[0].frame)


_NONE = np.empty(0, np.int64)


def _words(columns: Iterable[Array]) -> Ints:
    """Columns of 64-bit integers as one array, a row for each."""
    return np.array([column.view(np.int64) for column in columns])


def _addresses(stacks: SummedStacks) -> Iterator[int]:
    return map(native.address, stacks)
