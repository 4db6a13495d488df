"""The payloads of many events of one layout at once, to columns: the second way to run a `layouts.Layout`.

Numbers side by side are one gather of as many bytes for all events; strings and arrays move each event's position on
by offset arithmetic. Where payloads hold different prefixes of the layout, or more than it, the events part ways and
come back as several sets of columns. What the layout does not fit at all is left to `Layout.decode`, which is also what
the tests hold this against.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....arrays import offsets_of, ranges
from .columns import Blobs, Bytes, Column, Encoded, Floats, Ints, Lists, Numbers, Objects, Texts, gather
from .layouts import REST, Field, Layout
from .types import BOOL8, F32, SID, WIDE, Array, Bits, Blob, Columns, FieldType, Fixed, Rest, Scalar, Short

__all__ = ["Payloads", "decode_columns"]


# -- Payloads in bulk: where they are, and the fields of fixed size in them, which one gather reads for all events


_NUMPY = {"b": "i1", "h": "i2", "i": "i4", "q": "i8", "f": "f4", "d": "f8"}
_FLOAT, _BOOL = type(F32), type(BOOL8)
_LONGEST_ARRAY = 1024
_NEAR = 1 << 12  # bytes between payloads that are copied rather than looked over


@dataclass(slots=True)
class Payloads:
    """Payloads of events with one pointer size: bytes ``at`` (int64) to ``end`` of ``raw``, 8 bytes more behind.

    ``nuls`` is what `_next_nul` found in ``raw``.
    """

    raw: NDArray[np.uint8]
    at: Ints
    end: Ints
    pointer: int
    nuls: dict[tuple[int, int], Ints] = dataclass_field(default_factory=dict)

    def apart(self) -> Payloads:
        """A copy of their bytes and little else, each as far from a multiple of 8 as before, or at one."""
        size = self.end - self.at
        first, last = int(self.at.min()) & ~7, int(self.end.max())
        if last - first < 2 * int(size.sum()) + _NEAR:
            raw = np.zeros(last - first + 8, np.uint8)
            raw[:-8] = self.raw[first:last]
            return Payloads(raw, self.at - first, self.end - first, self.pointer)
        if (self.at & 7).any():
            room = (size + 7) & ~7
            at = np.cumsum(room) - room
            raw = np.zeros(int(room.sum()) + 8, np.uint8)
            raw[ranges(at, size)] = self.raw.take(ranges(self.at, size))
        else:
            words, offsets = gather(self.raw[: len(self.raw) & ~7].view(np.uint64), self.at >> 3, (size + 7) >> 3)
            raw, at = np.append(words, np.uint64(0)).view(np.uint8), offsets[:-1] * 8
        return Payloads(raw, at, at + size, self.pointer)

    def take(self, rows: Any) -> Payloads:
        return Payloads(self.raw, self.at[rows], self.end[rows], self.pointer, self.nuls)

    def moved(self, at: Ints) -> Payloads:
        """What follows from ``at`` on."""
        return Payloads(self.raw, at, self.end, self.pointer, self.nuls)


class Read(NamedTuple):
    """What a step made: its columns by name, where each event goes on, and which events it fits (None: all)."""

    columns: dict[str, Column]
    after: Ints
    good: NDArray[np.bool_] | None = None


class Run:
    """Fields of fixed size, read by one gather."""

    def __init__(self, fields: list[tuple[Field, str]], pointer: int) -> None:
        self.fields, self.pointer = fields, pointer
        self.dtype = np.dtype([(str(i), code) for i, (_, code) in enumerate(fields)])
        self.ends = [self.dtype.fields[str(i + 1)][1] for i in range(len(fields) - 1)] if self.dtype.fields else []
        self.ends.append(self.dtype.itemsize)
        self.least = self.dtype.itemsize

    def prefix(self, room: int) -> Run | None:
        """The fields that ``room`` bytes hold if it is exactly some of them, else None."""
        return Run(self.fields[: self.ends.index(room) + 1], self.pointer) if room in self.ends else None

    def read(self, payloads: Payloads) -> Read:
        raw, size = payloads.raw, self.least
        anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - size + 1),), f"V{size}", raw, 0, (1,))
        rows = anywhere[payloads.at].view(self.dtype)
        columns: dict[str, Column] = {}
        for i, (field, _) in enumerate(self.fields):
            columns |= _columns_of(field, rows[str(i)], self.pointer)
        return Read(columns, payloads.at + size)


def _columns_of(field: Field, values: NDArray[Any], pointer: int) -> dict[str, Column]:
    type_ = field.type
    if isinstance(type_, Bits):
        return {
            name: Numbers((values & mask) >> shift, None if make is int else make)
            for name, (mask, shift, make) in zip(type_.parts, type_.cuts, strict=True)
        }
    if type(type_) is Scalar:
        return {field.name: Numbers(values, type_.wrap)}
    if type(type_) is _FLOAT:
        return {field.name: Floats(values)}
    if type(type_) is _BOOL:
        return {field.name: Numbers(values, _truth)}
    return {field.name: Blobs(values, type_, pointer)}


def _truth(value: int) -> int:
    return bool(value) if value < 2 else value


def code_of(type_: FieldType, pointer: int) -> str:
    """The NumPy type of a field of fixed size, "" for others."""
    if isinstance(type_, Bits):
        return code_of(type_.base, pointer)
    if isinstance(type_, Scalar):
        code = type_.code_for(pointer)
        return type_.order + (_NUMPY.get(code) or _NUMPY[code.lower()].replace("i", "u"))
    if isinstance(type_, Blob | Fixed):
        return f"V{type_.size}" if type_.size else ""
    if isinstance(type_, Array) and isinstance(type_.count, int) and type(type_.item) is Scalar:
        size = struct.calcsize("<" + type_.item.code_for(pointer)) * type_.count
        return f"V{size}" if 0 < size <= _LONGEST_ARRAY else ""
    return ""


# -- Fields whose size their bytes tell, of many events at once: strings, SIDs, arrays, rows, and all other types


_TERMINATED, _SID = type(WIDE), type(SID)


def one_by_one(field: Field, payloads: Payloads) -> Read:
    """Any type, by its own `decode`."""
    data, type_, pointer = payloads.raw.tobytes(), field.type, payloads.pointer
    values, after, good = [], payloads.at.copy(), np.ones(len(payloads.at), bool)
    for row, (at, end) in enumerate(zip(payloads.at.tolist(), payloads.end.tolist(), strict=True)):
        try:
            value, after[row] = type_.decode(data, at, end, pointer)
        except Short:
            value, good[row] = None, False
        values.append(value)
    if type_.parts:
        made = [value if ok else (None,) * len(type_.parts) for value, ok in zip(values, good.tolist(), strict=True)]
        cells = zip(*made, strict=True)
        return Read({n: Objects(c) for n, c in zip(type_.parts, cells, strict=True)}, after, good)
    absent = np.array([value is None for value in values], bool)  # left out, which is another set of columns
    if absent[good].all():
        return Read({}, after, good)
    return Read({field.name: Objects(values)}, after, good & ~absent)


def _next_nul(payloads: Payloads, at: Ints, unit: int, odd: int) -> Ints:
    """The first NUL character of ``unit`` bytes from each ``at`` on, all at multiples of that plus ``odd``.

    There is one: `Payloads.apart` has zeros behind the last payload.
    """
    nuls = payloads.nuls.get((unit, odd))
    if nuls is None:
        raw = payloads.raw[odd : len(payloads.raw) - (len(payloads.raw) - odd) % unit]
        nuls = payloads.nuls[unit, odd] = np.flatnonzero(raw.view(f"<u{unit}") == 0)
    return nuls[np.searchsorted(nuls, (at - odd) // unit)] * unit + odd


def _terminated(field: Field, payloads: Payloads) -> Read:
    text, at, end = field.type.text, payloads.at, payloads.end  # type: ignore[attr-defined]
    unit = text.unit
    odd = at & (unit - 1)
    if (odd == odd[0]).all():
        found = _next_nul(payloads, at, unit, int(odd[0]))
    else:
        found = np.empty_like(at)
        for shift in range(unit):
            rows = odd == shift
            found[rows] = _next_nul(payloads, at[rows], unit, shift)
    cut = found + unit > end
    stop = np.where(cut, end, found)
    return Read({field.name: Texts(payloads.raw, at, stop, cut, text)}, np.where(cut, end, stop + unit))


def _sid(field: Field, payloads: Payloads) -> Read:
    """See `types.SID` for the rules."""
    raw, at, end, token = payloads.raw, payloads.at, payloads.end, 2 * payloads.pointer
    room = at + token + 8 <= end
    start = np.where(room, at, 0)
    heads = raw[start[:, None] + np.arange(token + 2)]
    count = heads[:, token + 1].astype(np.int64)
    after = at + token + 8 + 4 * count
    fits = room & (count <= 15) & (after <= end)
    zeroed = ~heads[:, :token].any(axis=1)
    follows = fits & zeroed & (heads[:, token] == 1) & (count >= 1)
    short = at + 4 > end
    word = raw[np.where(short, 0, at)[:, None] + np.arange(4)].any(axis=1)
    none = ~(short | word | follows)
    after = np.where(none, at + 4, after)
    return Read({field.name: Encoded(raw, at, after, field.type, payloads.pointer)}, after, none | (fits & ~short))


def _array(field: Field, payloads: Payloads) -> Read:
    item, counted = field.type.item, field.type.count  # type: ignore[attr-defined]
    dtype = np.dtype(code_of(item, payloads.pointer))
    at, good = payloads.at, np.ones(len(payloads.at), bool)
    fitting = (payloads.end - at) // dtype.itemsize
    count = fitting
    if counted is not None:
        head = Run([(Field("", counted), code_of(counted, payloads.pointer))], payloads.pointer)
        good = payloads.end - at >= head.least
        number = head.read(Payloads(payloads.raw, np.where(good, at, 0), payloads.end, payloads.pointer))
        count = number.columns[""].values.astype(np.int64)  # type: ignore[attr-defined]
        at = at + head.least
        fitting = (payloads.end - at) // dtype.itemsize
        good &= count <= fitting
        count = np.where(good, count, 0)
    values, offsets = _rows_at(payloads.raw, at, count, dtype)
    return Read({field.name: Lists(values, offsets, item.wrap)}, at + count * dtype.itemsize, good)


def _table(field: Field, payloads: Payloads) -> Read:
    columns: dict[str, Scalar] = field.type.columns  # type: ignore[attr-defined]
    row = np.dtype([(name, code_of(type_, payloads.pointer)) for name, type_ in columns.items()])
    count = (payloads.end - payloads.at) // row.itemsize
    values, offsets = _rows_at(payloads.raw, payloads.at, count, row)
    made: dict[str, Column] = {name: Lists(values[name], offsets, type_.wrap) for name, type_ in columns.items()}
    return Read(made, payloads.at + count * row.itemsize)


def _rows_at(raw: NDArray[np.uint8], at: Ints, count: Ints, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Ints]:
    """``count[i]`` items from byte ``at[i]`` on, and the offsets of each row's first."""
    size = dtype.itemsize
    if size in (1, 2, 4, 8) and not (at & (size - 1)).any():
        return gather(raw[: len(raw) - len(raw) % size].view(dtype), at // size, count)
    anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - size + 1),), f"V{size}", raw, 0, (1,))
    return anywhere[ranges(at, count, size)].view(dtype), offsets_of(count)


def _rest(field: Field, payloads: Payloads) -> Read:
    return Read({field.name: Bytes.gather(payloads.raw, payloads.at, payloads.end)}, payloads.end)


READERS: dict[type[FieldType], Callable[[Field, Payloads], Read]] = {
    _TERMINATED: _terminated, _SID: _sid, Array: _array, Columns: _table, Rest: _rest,
}  # fmt: skip
"""By the type of a field."""

NEAR_TOGETHER = frozenset((one_by_one, _terminated, _sid))
"""Those that look at all bytes between the payloads, which `Payloads.apart` makes few."""


class _Single:
    """A field whose size its bytes tell."""

    def __init__(self, field: Field, read: Callable[[Field, Payloads], Read]) -> None:
        self.field, self._read = field, read
        self.least = 0 if field.type.empty else 1

    def prefix(self, room: int) -> None:
        """No part of it can be had."""

    def read(self, payloads: Payloads) -> Read:
        return self._read(self.field, payloads)


def _is_gathered(array: Array) -> bool:
    return type(array.item) is Scalar and array.item.order == "<" and not isinstance(array.count, int)


@lru_cache(2048)
def _plan(layout: Layout, pointer: int) -> tuple[list[Run | _Single], bool]:
    """The steps, and whether they need the payloads copied together."""
    steps: list[Run | _Single] = []
    run: list[tuple[Field, str]] = []
    together = False
    for field in (*layout.fields, None):
        code = code_of(field.type, pointer) if field is not None else ""
        if field is not None and code:
            run.append((field, code))
            continue
        if run:
            steps.append(Run(run, pointer))
            run = []
        if field is not None:
            read = READERS.get(type(field.type), one_by_one)
            if isinstance(field.type, Array) and not _is_gathered(field.type):
                read = one_by_one
            together |= read in NEAR_TOGETHER
            steps.append(_Single(field, read))
    return steps, together


def decode_columns(layout: Layout, payloads: Payloads) -> Iterator[tuple[Ints, dict[str, Column] | None]]:
    """Sets of (row numbers, columns by name) that have every payload once; for None the caller decodes it by itself."""
    steps, together = _plan(layout, payloads.pointer)
    if together:
        payloads = payloads.apart()
    todo: list[tuple[int, Ints, Payloads, dict[str, Column]]] = [(0, np.arange(len(payloads.at)), payloads, {})]
    while todo:
        number, rows, here, columns = todo.pop()
        while number < len(steps) and len(rows):
            step = steps[number]
            room = here.end - here.at
            short = room < step.least
            if short.any():
                for size in np.unique(room[short]).tolist():
                    mine = np.flatnonzero(room == size)
                    part = step.prefix(size)
                    if size and part is None:
                        yield rows[mine], None
                    else:
                        yield rows[mine], _taken(columns, mine) | (part.read(here.take(mine)).columns if part else {})
                kept = np.flatnonzero(~short)
                rows, here, columns = rows[kept], here.take(kept), _taken(columns, kept)
                continue
            made, after, good = step.read(here)
            columns = columns | made
            here = here.moved(after)
            if good is not None and not good.all():
                yield rows[~good], None
                rows, here, columns = rows[good], here.take(good), _taken(columns, good)
            number += 1
        yield from _ended(rows, here, columns)


def _taken(columns: dict[str, Column], rows: Any) -> dict[str, Column]:
    return {name: column.take(rows) for name, column in columns.items()}


def _ended(rows: Ints, here: Payloads, columns: dict[str, Column]) -> Iterator[tuple[Ints, dict[str, Column]]]:
    """Behind the last field: those that are at their ends, and those that have more."""
    more = here.at < here.end
    if not len(rows):
        return
    if not more.any():
        yield rows, columns
        return
    if not more.all():
        yield rows[~more], _taken(columns, ~more)
        rows, here, columns = rows[more], here.take(more), _taken(columns, more)
    yield rows, columns | {REST: Bytes.gather(here.raw, here.at, here.end)}
