"""The payloads of many events of one layout at once, to columns: the second way to run a `payloads.Layout`.

Numbers side by side are one gather of as many bytes for all events; strings and arrays move each event's position on
by offset arithmetic. Where payloads hold different prefixes of the layout, or more than it, the events part ways and
come back as several sets of columns. What the layout does not fit at all is left to `Layout.decode`, which is also what
the tests hold this against.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .field_columns import Blobs, Bytes, Column, Floats, Ints, Lists, Numbers, Objects, Texts, ragged
from .field_groups import Array, Bits, Columns
from .field_text import WIDE, Fixed
from .fields import BOOL8, F32, Blob, FieldType, Rest, Scalar, Short
from .payloads import REST, Field, Layout

__all__ = ["Payloads", "decode_columns"]

_NUMPY = {"b": "i1", "h": "i2", "i": "i4", "q": "i8", "f": "f4", "d": "f8"}
_FLOAT, _BOOL, _TERMINATED = type(F32), type(BOOL8), type(WIDE)
_LONGEST_ARRAY = 1024
_Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Payloads:
    """Payloads of events with one pointer size: bytes ``at`` (int64) to ``end`` of ``raw``, 8 bytes more behind."""

    raw: NDArray[np.uint8]
    at: Ints
    end: Ints
    pointer: int

    def packed(self) -> Payloads:
        """A copy of their bytes alone, each at a multiple of 8."""
        size = self.end - self.at
        if (self.at & 7).any():
            room = (size + 7) & ~7
            at = np.cumsum(room) - room
            raw = np.zeros(int(room.sum()) + 8, np.uint8)
            index, offsets = ragged(self.at, size)
            raw[index + np.repeat(at - self.at, size)] = self.raw.take(index)
        else:
            words = self.raw[: len(self.raw) & ~7].view(np.uint64)
            index, offsets = ragged(self.at >> 3, (size + 7) >> 3)
            raw, at = np.append(words.take(index), np.uint64(0)).view(np.uint8), offsets[:-1] * 8
        return Payloads(raw, at, at + size, self.pointer)

    def take(self, rows: Any) -> Payloads:
        return Payloads(self.raw, self.at[rows], self.end[rows], self.pointer)


class _Read(NamedTuple):
    """What a step made: its columns by name, where each event goes on, and which events it fits (None: all)."""

    columns: dict[str, Column]
    after: Ints
    good: _Mask | None = None


# -- numbers side by side


class _Run:
    """Fields of fixed size, read by one gather."""

    def __init__(self, fields: list[tuple[Field, str]], pointer: int) -> None:
        self.fields, self.pointer = fields, pointer
        self.dtype = np.dtype([(str(i), code) for i, (_, code) in enumerate(fields)])
        self.ends = [self.dtype.fields[str(i + 1)][1] for i in range(len(fields) - 1)] if self.dtype.fields else []
        self.ends.append(self.dtype.itemsize)
        self.least = self.dtype.itemsize

    def prefix(self, room: int) -> _Run | None:
        """The fields that ``room`` bytes hold if it is exactly some of them, else None."""
        return _Run(self.fields[: self.ends.index(room) + 1], self.pointer) if room in self.ends else None

    def read(self, payloads: Payloads) -> _Read:
        raw, size = payloads.raw, self.least
        anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - size + 1),), f"V{size}", raw, 0, (1,))
        rows = anywhere[payloads.at].view(self.dtype)
        columns: dict[str, Column] = {}
        for i, (field, _) in enumerate(self.fields):
            columns |= _columns_of(field, rows[str(i)], self.pointer)
        return _Read(columns, payloads.at + size)


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


def _code(type_: FieldType, pointer: int) -> str:
    """The NumPy type of a field of fixed size, "" for others."""
    if isinstance(type_, Bits):
        return _code(type_.base, pointer)
    if isinstance(type_, Scalar):
        code = type_.code_for(pointer)
        return type_.order + (_NUMPY.get(code) or _NUMPY[code.lower()].replace("i", "u"))
    if isinstance(type_, Blob | Fixed):
        return f"V{type_.size}" if type_.size else ""
    if isinstance(type_, Array) and isinstance(type_.count, int) and type(type_.item) is Scalar:
        size = struct.calcsize("<" + type_.item.code_for(pointer)) * type_.count
        return f"V{size}" if 0 < size <= _LONGEST_ARRAY else ""
    return ""


# -- the others, one field a step


class _Single:
    """A field whose size its bytes tell."""

    def __init__(self, field: Field, read: Callable[[Field, Payloads], _Read]) -> None:
        self.field, self._read = field, read
        self.least = 0 if field.type.empty else 1

    def prefix(self, room: int) -> None:
        """No part of it can be had."""

    def read(self, payloads: Payloads) -> _Read:
        return self._read(self.field, payloads)


def _one_by_one(field: Field, payloads: Payloads) -> _Read:
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
        return _Read({n: Objects(c) for n, c in zip(type_.parts, cells, strict=True)}, after, good)
    absent = np.array([value is None for value in values], bool)  # left out, which is another set of columns
    if absent[good].all():
        return _Read({}, after, good)
    return _Read({field.name: Objects(values)}, after, good & ~absent)


def _terminated(field: Field, payloads: Payloads) -> _Read:
    text, raw, at, end = field.type.text, payloads.raw, payloads.at, payloads.end  # type: ignore[attr-defined]
    stop = end.copy()
    for odd in (0, 1) if text.unit == 2 else (0,):
        rows = np.flatnonzero(at & 1 == odd) if text.unit == 2 else np.arange(len(at))
        if not len(rows):
            continue
        units = raw[odd : len(raw) - (len(raw) - odd) % text.unit].view(f"<u{text.unit}")
        zeros = np.flatnonzero(units == 0) * text.unit + odd
        next_ = np.searchsorted(zeros, at[rows])
        found = np.append(zeros, len(raw))[next_]
        stop[rows] = np.where(found + text.unit <= end[rows], found, end[rows])
    cut = stop == end
    return _Read({field.name: Texts(raw, at, stop, cut, text)}, np.where(cut, end, stop + text.unit))


def _array(field: Field, payloads: Payloads) -> _Read:
    item, counted = field.type.item, field.type.count  # type: ignore[attr-defined]
    dtype = np.dtype(_code(item, payloads.pointer))
    at, good = payloads.at, np.ones(len(payloads.at), bool)
    fitting = (payloads.end - at) // dtype.itemsize
    count = fitting
    if counted is not None:
        head = _Run([(Field("", counted), _code(counted, payloads.pointer))], payloads.pointer)
        good = payloads.end - at >= head.least
        number = head.read(Payloads(payloads.raw, np.where(good, at, 0), payloads.end, payloads.pointer))
        count = number.columns[""].values.astype(np.int64)  # type: ignore[attr-defined]
        at = at + head.least
        fitting = (payloads.end - at) // dtype.itemsize
        good &= count <= fitting
        count = np.where(good, count, 0)
    values, offsets = _rows_at(payloads.raw, at, count, dtype)
    return _Read({field.name: Lists(values, offsets, item.wrap)}, at + count * dtype.itemsize, good)


def _table(field: Field, payloads: Payloads) -> _Read:
    columns: dict[str, Scalar] = field.type.columns  # type: ignore[attr-defined]
    row = np.dtype([(name, _code(type_, payloads.pointer)) for name, type_ in columns.items()])
    count = (payloads.end - payloads.at) // row.itemsize
    values, offsets = _rows_at(payloads.raw, payloads.at, count, row)
    made: dict[str, Column] = {name: Lists(values[name], offsets, type_.wrap) for name, type_ in columns.items()}
    return _Read(made, payloads.at + count * row.itemsize)


def _rows_at(raw: NDArray[np.uint8], at: Ints, count: Ints, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Ints]:
    """``count[i]`` items from byte ``at[i]`` on, and the offsets of each row's first."""
    size = dtype.itemsize
    if size in (1, 2, 4, 8) and not (at & (size - 1)).any():
        index, offsets = ragged(at // size, count)
        return raw[: len(raw) - len(raw) % size].view(dtype).take(index), offsets
    steps, offsets = ragged(np.zeros(len(at), np.int64), count)
    anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - size + 1),), f"V{size}", raw, 0, (1,))
    return anywhere[np.repeat(at, count) + steps * size].view(dtype), offsets


def _rest(field: Field, payloads: Payloads) -> _Read:
    return _Read({field.name: Bytes.gather(payloads.raw, payloads.at, payloads.end)}, payloads.end)


_READERS: dict[type[FieldType], Callable[[Field, Payloads], _Read]] = {
    _TERMINATED: _terminated, Array: _array, Columns: _table, Rest: _rest,
}  # fmt: skip


def _is_gathered(array: Array) -> bool:
    return type(array.item) is Scalar and array.item.order == "<" and not isinstance(array.count, int)


@lru_cache(2048)
def _plan(layout: Layout, pointer: int) -> tuple[list[_Run | _Single], bool]:
    """The steps, and whether they need the payloads copied together."""
    steps: list[_Run | _Single] = []
    run: list[tuple[Field, str]] = []
    together = False
    for field in (*layout.fields, None):
        code = _code(field.type, pointer) if field is not None else ""
        if field is not None and code:
            run.append((field, code))
            continue
        if run:
            steps.append(_Run(run, pointer))
            run = []
        if field is not None:
            read = _READERS.get(type(field.type), _one_by_one)
            if isinstance(field.type, Array) and not _is_gathered(field.type):
                read = _one_by_one
            together |= read in (_terminated, _one_by_one)
            steps.append(_Single(field, read))
    return steps, together


def decode_columns(layout: Layout, payloads: Payloads) -> Iterator[tuple[Ints, dict[str, Column] | None]]:
    """Sets of (row numbers, columns by name) that have every payload once; for None the caller decodes it by itself."""
    steps, together = _plan(layout, payloads.pointer)
    if together:
        payloads = payloads.packed()
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
            here = Payloads(here.raw, after, here.end, here.pointer)
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
