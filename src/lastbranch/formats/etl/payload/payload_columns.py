"""Payloads of many events with one layout, decoded as columns: the second interpreter of `layouts.Layout`.

A column keeps what the file has (numbers, or bytes and their positions). `FieldColumn.tolist` makes the same Python
values as decoding event by event.

One gather reads adjacent fields of fixed size for all events; for strings and arrays, offset arithmetic moves each
event's position on. Payloads that hold different prefixes of the layout, or more than the layout, are returned as
several sets of columns. Payloads that do not fit the layout are left to `Layout.decode`, the oracle of the tests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, distinct, offsets_of, ranges, take_ranges
from .layouts import REST, Field, Layout
from .types import BOOL8, F32, SID, WIDE, Array, Bits, Blob, Exact, FieldType, PayloadRows, Rest, Scalar, Short, Text

__all__ = [
    "Blobs",
    "Bytes",
    "FieldColumn",
    "Encoded",
    "Floats",
    "Lists",
    "Numbers",
    "Objects",
    "Payloads",
    "Texts",
    "decode_columns",
]


def _gather(values: NDArray[Any], begin: Ints, count: Ints) -> tuple[NDArray[Any], Ints]:
    """(items, offsets): ``count[i]`` items of ``values`` from ``begin[i]`` on, one row after the other."""
    return take_ranges(values, begin, count), offsets_of(count)


def _gather_words(raw: NDArray[np.uint8], begin: Ints, size: Ints) -> tuple[NDArray[np.uint8], Ints]:
    """A copy of ``size[i]`` bytes from ``begin[i]`` on, and where each row begins in it. Whole words where they can be
    copied."""
    if (begin & 7).any():
        copied, offsets = _gather(raw, begin, size)
        return copied, offsets[:-1]
    words, offsets = _gather(raw[: len(raw) & ~7].view(np.uint64), begin >> 3, (size + 7) >> 3)
    return words.view(np.uint8), offsets[:-1] * 8


# -- Columns


@dataclass(slots=True, eq=False)
class FieldColumn:
    """The values of a field, one for each event."""

    _by_event: ClassVar[tuple[str, ...]] = ("values",)
    """Names of the arrays with an item for each event."""

    def __len__(self) -> int:
        return len(getattr(self, self._by_event[0]))

    def take(self, rows: Any) -> FieldColumn:
        """The values of some of the events: an index array or a mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self._by_event})

    def tolist(self) -> list[Any]:
        """Python values as `Layout.decode` makes them."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Numbers(FieldColumn):
    """``values``, an array of integers; ``wrap`` makes the value that is shown of each, None: the integer itself."""

    values: NDArray[Any]
    wrap: Callable[[Any], Any] | None = None

    def tolist(self) -> list[Any]:
        found: list[Any] = self.values.tolist()
        return found if self.wrap is None else list(map(self.wrap, found))


@dataclass(slots=True, eq=False)
class Floats(FieldColumn):
    """Floating-point numbers; a NaN keeps its bits."""

    values: NDArray[Any]

    def tolist(self) -> list[Any]:
        found: list[Any] = self.values.tolist()
        for row in np.flatnonzero(np.isnan(self.values)).tolist():
            found[row] = Exact("nan", self.values[row : row + 1].tobytes())
        return found


@dataclass(slots=True, eq=False)
class Blobs(FieldColumn):
    """``values``, bytes of one size (dtype V), which ``type`` reads: GUIDs, addresses, text in fixed room, arrays."""

    values: NDArray[Any]
    type: FieldType
    pointer: int

    def tolist(self) -> list[Any]:
        size, raw = self.values.dtype.itemsize, self.values.tobytes()
        parts = [raw[at : at + size] for at in range(0, len(raw), size)]
        return [self.type.decode(part, 0, size, self.pointer)[0] for part in parts]


@dataclass(slots=True, eq=False)
class Bytes(FieldColumn):
    """Bytes of varying number: row ``i`` is ``raw[begin[i] : end[i]]``."""

    _by_event: ClassVar[tuple[str, ...]] = ("begin", "end")
    raw: NDArray[np.uint8]
    begin: Ints
    end: Ints

    @classmethod
    def gather(cls, raw: NDArray[np.uint8], begin: Ints, end: Ints) -> Bytes:
        """A copy of the bytes from ``begin`` to ``end`` of ``raw``."""
        copied, at = _gather_words(raw, begin, end - begin)
        return cls(copied, at, at + end - begin)

    def tolist(self) -> list[Any]:
        raw = self.raw.tobytes()
        return [raw[begin:end] for begin, end in zip(self.begin.tolist(), self.end.tolist(), strict=True)]


@dataclass(slots=True, eq=False)
class Texts(FieldColumn):
    """Strings: row ``i`` is ``raw[begin[i] : end[i]]`` in the coding ``text``.

    If ``cut`` (bool), the text ended with the event instead of a NUL. Columns that were decoded at once share ``raw``.
    """

    _by_event: ClassVar[tuple[str, ...]] = ("begin", "end", "cut")
    raw: NDArray[np.uint8]
    begin: Ints
    end: Ints
    cut: NDArray[np.bool_]
    text: Text

    def tolist(self) -> list[Any]:
        data: Any = memoryview(self.raw)  # type: ignore[arg-type]
        decode, errors = self.text.decoder, self.text.errors
        bounds = zip(self.begin.tolist(), self.end.tolist(), strict=True)
        if not self.cut.any():
            return [decode(data[begin:end], errors, True)[0] for begin, end in bounds]
        rows = zip(bounds, self.cut.tolist(), strict=True)
        return [self._cut(bytes(data[b:e])) if cut else decode(data[b:e], errors, True)[0] for (b, e), cut in rows]

    def _cut(self, raw: bytes) -> str:
        return Exact(self.text.read(raw), raw)


@dataclass(slots=True, eq=False)
class Encoded(FieldColumn):
    """Bytes of varying number that ``type`` reads, such as SIDs: row ``i`` is ``raw[begin[i] : end[i]]``."""

    _by_event: ClassVar[tuple[str, ...]] = ("begin", "end")
    raw: NDArray[np.uint8]
    begin: Ints
    end: Ints
    type: FieldType
    pointer: int

    def tolist(self) -> list[Any]:
        known: dict[bytes, Any] = {}  # they are few
        found = []
        for begin, end in zip(self.begin.tolist(), self.end.tolist(), strict=True):
            part = self.raw[begin:end].tobytes()
            if part not in known:
                known[part] = self.type.decode(part, 0, len(part), self.pointer)[0]
            found.append(known[part])
        return found


@dataclass(slots=True, eq=False)
class Lists(FieldColumn):
    """Lists of numbers: row ``i`` is ``values[offsets[i] : offsets[i + 1]]``, each shown as ``wrap`` says."""

    values: NDArray[Any]
    offsets: Ints
    wrap: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Any) -> FieldColumn:
        begin, end = self.offsets[:-1][rows], self.offsets[1:][rows]
        return Lists(*_gather(self.values, begin, end - begin), self.wrap)

    def tolist(self) -> list[Any]:
        values, bounds = self.values.tolist(), self.offsets.tolist()
        if self.wrap is not None:
            values = list(map(self.wrap, values))
        return [values[begin:end] for begin, end in pairwise(bounds)]


@dataclass(slots=True, eq=False)
class Objects(FieldColumn):
    """Python values as they are."""

    values: Sequence[Any]

    def take(self, rows: Any) -> FieldColumn:
        return Objects([self.values[i] for i in np.arange(len(self.values))[rows].tolist()])

    def tolist(self) -> list[Any]:
        return list(self.values)


# -- Payloads, and the fields of fixed size in them


_FLOAT, _BOOL = type(F32), type(BOOL8)
_LONGEST_ARRAY = 1024
_NEAR = 1 << 12  # bytes between payloads that are copied rather than skipped


@dataclass(slots=True)
class Payloads:
    """Payloads of events with one pointer size: bytes ``at`` (int64) to ``end`` of ``raw``, which has 8 bytes more.

    ``nuls`` is what `_next_nul` found in ``raw``.
    """

    raw: NDArray[np.uint8]
    at: Ints
    end: Ints
    pointer: int
    nuls: dict[tuple[int, int], Ints] = field(default_factory=dict)

    def compacted(self) -> Payloads:
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
            words, at = _gather_words(self.raw, self.at, size)
            raw = np.append(words, np.zeros(8, np.uint8))
        return Payloads(raw, at, at + size, self.pointer)

    def take(self, rows: Any) -> Payloads:
        return replace(self, at=self.at[rows], end=self.end[rows])


class Read(NamedTuple):
    """The result of a step: columns by name, the offset at which each event goes on, and the events that the step fits
    (None: all)."""

    columns: dict[str, FieldColumn]
    after: Ints
    good: NDArray[np.bool_] | None = None


class _FixedFields:
    """Fields of fixed size, read by one gather."""

    def __init__(self, fields: list[Field], pointer: int) -> None:
        self.fields, self.pointer = fields, pointer
        self.dtype = np.dtype([(str(i), _dtype(field.type, pointer)) for i, field in enumerate(fields)])
        self.least = self.dtype.itemsize

    def prefix(self, room: int) -> _FixedFields | None:
        """The leading fields that fill ``room`` bytes exactly, else None."""
        ends = np.cumsum([self.dtype[i].itemsize for i in range(len(self.fields))]).tolist()
        return _FixedFields(self.fields[: ends.index(room) + 1], self.pointer) if room in ends else None

    def read(self, payloads: Payloads) -> Read:
        raw, size = payloads.raw, self.least
        anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - size + 1),), f"V{size}", raw, 0, (1,))
        rows = anywhere[payloads.at].view(self.dtype)
        columns: dict[str, FieldColumn] = {}
        for i, of in enumerate(self.fields):
            columns |= _columns_of(of, rows[str(i)], self.pointer)
        return Read(columns, payloads.at + size)


def _columns_of(field: Field, values: NDArray[Any], pointer: int) -> dict[str, FieldColumn]:
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


def _dtype(type_: FieldType, pointer: int) -> str:
    """The NumPy type of a field of fixed size, "" for others."""
    size = 0
    if isinstance(type_, Bits | Scalar):
        return (type_.base if isinstance(type_, Bits) else type_).order + type_.code_for(pointer)
    if isinstance(type_, Blob):
        size = type_.size
    elif isinstance(type_, Array) and isinstance(type_.count, int) and type(type_.item) is Scalar:
        size = struct.calcsize("<" + type_.item.code_for(pointer)) * type_.count
        size = size if size <= _LONGEST_ARRAY else 0
    return f"V{size}" if size else ""


# -- Fields whose bytes determine their size, of many events at once: strings, SIDs, arrays, rows, all other types


_TERMINATED, _SID = type(WIDE), type(SID)


def _one_by_one(field: Field, payloads: Payloads) -> Read:
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

    There is one: `Payloads.compacted` puts zeros after the last payload.
    """
    nuls = payloads.nuls.get((unit, odd))
    if nuls is None:
        raw = payloads.raw[odd : len(payloads.raw) - (len(payloads.raw) - odd) % unit]
        nuls = payloads.nuls[unit, odd] = np.flatnonzero(raw.view(f"<u{unit}") == 0)
    return nuls[np.searchsorted(nuls, (at - odd) // unit)] * unit + odd


def _read_terminated(field: Field, payloads: Payloads) -> Read:
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
    dtype = np.dtype(_dtype(item, payloads.pointer))
    at, good = payloads.at, np.ones(len(payloads.at), bool)
    fitting = (payloads.end - at) // dtype.itemsize
    count = fitting
    if counted is not None:
        head = _FixedFields([Field("", counted)], payloads.pointer)
        good = payloads.end - at >= head.least
        number = head.read(replace(payloads, at=np.where(good, at, 0)))
        count = number.columns[""].values.astype(np.int64)  # type: ignore[attr-defined]
        at = at + head.least
        fitting = (payloads.end - at) // dtype.itemsize
        good &= count <= fitting
        count = np.where(good, count, 0)
    values, offsets = _rows_at(payloads.raw, at, count, dtype)
    return Read({field.name: Lists(values, offsets, item.wrap)}, at + count * dtype.itemsize, good)


def _table(field: Field, payloads: Payloads) -> Read:
    columns: dict[str, Scalar] = field.type.columns  # type: ignore[attr-defined]
    row = np.dtype([(name, _dtype(type_, payloads.pointer)) for name, type_ in columns.items()])
    count = (payloads.end - payloads.at) // row.itemsize
    values, offsets = _rows_at(payloads.raw, payloads.at, count, row)
    made: dict[str, FieldColumn] = {name: Lists(values[name], offsets, type_.wrap) for name, type_ in columns.items()}
    return Read(made, payloads.at + count * row.itemsize)


def _rows_at(raw: NDArray[np.uint8], at: Ints, count: Ints, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Ints]:
    """``count[i]`` items from byte ``at[i]`` on, and the offsets of each row's first."""
    size = dtype.itemsize
    if size in (1, 2, 4, 8) and not (at & (size - 1)).any():
        return _gather(raw[: len(raw) - len(raw) % size].view(dtype), at // size, count)
    anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - size + 1),), f"V{size}", raw, 0, (1,))
    return anywhere[ranges(at, count, size)].view(dtype), offsets_of(count)


def _rest(field: Field, payloads: Payloads) -> Read:
    return Read({field.name: Bytes.gather(payloads.raw, payloads.at, payloads.end)}, payloads.end)


_READERS: dict[type[FieldType], Callable[[Field, Payloads], Read]] = {
    _TERMINATED: _read_terminated,
    _SID: _sid,
    Array: _array,
    PayloadRows: _table,
    Rest: _rest,
}
"""By the type of a field; `_one_by_one` reads all others."""

_SCAN = frozenset((_one_by_one, _read_terminated, _sid))
"""Readers that look at all bytes between the payloads, which `Payloads.compacted` makes few."""


class _Single:
    """A field whose bytes determine its size."""

    def __init__(self, field: Field) -> None:
        self.field, type_ = field, field.type
        self.reader = _READERS.get(type(type_), _one_by_one)
        if isinstance(type_, Array) and (
            type(type_.item) is not Scalar or type_.item.order != "<" or isinstance(type_.count, int)
        ):
            self.reader = _one_by_one
        self.least = 0 if type_.empty else 1

    def prefix(self, room: int) -> None:
        """No part of it is readable."""

    def read(self, payloads: Payloads) -> Read:
        return self.reader(self.field, payloads)


@lru_cache(2048)
def _plan(layout: Layout, pointer: int) -> tuple[list[_FixedFields | _Single], bool]:
    """The steps, and whether they want the payloads compacted."""
    steps: list[_FixedFields | _Single] = []
    for is_fixed, group in groupby(layout.fields, lambda field: bool(_dtype(field.type, pointer))):
        fields = list(group)
        steps += [_FixedFields(fields, pointer)] if is_fixed else map(_Single, fields)
    return steps, any(isinstance(step, _Single) and step.reader in _SCAN for step in steps)


def decode_columns(layout: Layout, payloads: Payloads) -> Iterator[tuple[Ints, dict[str, FieldColumn] | None]]:
    """Sets of (row numbers, columns by name) that have every payload once; the caller decodes the rows of a set with
    None.

    ``layout`` is not dependent.
    """
    steps, compact = _plan(layout, payloads.pointer)
    if compact:
        payloads = payloads.compacted()
    rows, columns = np.arange(len(payloads.at)), dict[str, FieldColumn]()
    for step in steps:
        room = payloads.end - payloads.at
        short = room < step.least
        if short.any():
            for size in distinct(room[short]).tolist():
                mine = np.flatnonzero(room == size)
                part = step.prefix(size)
                if size and part is None:
                    yield rows[mine], None
                else:
                    yield rows[mine], _take(columns, mine) | (part.read(payloads.take(mine)).columns if part else {})
            rows, payloads, columns = rows[~short], payloads.take(~short), _take(columns, ~short)
        if not len(rows):
            return
        made, after, good = step.read(payloads)
        columns, payloads = columns | made, replace(payloads, at=after)
        if good is not None and not good.all():
            yield rows[~good], None
            rows, payloads, columns = rows[good], payloads.take(good), _take(columns, good)
    more = payloads.at < payloads.end
    if not more.all():
        yield rows[~more], _take(columns, ~more) if more.any() else columns
    if more.any():
        if not more.all():
            rows, payloads, columns = rows[more], payloads.take(more), _take(columns, more)
        yield rows, columns | {REST: Bytes.gather(payloads.raw, payloads.at, payloads.end)}


def _take(columns: dict[str, FieldColumn], rows: Any) -> dict[str, FieldColumn]:
    return {name: column.take(rows) for name, column in columns.items()}
