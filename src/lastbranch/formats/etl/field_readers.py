"""Fields whose size their bytes tell, of many events at once: strings, SIDs, arrays, rows, and all other types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .field_columns import Bytes, Column, Encoded, Ints, Lists, Objects, Texts, gather, ragged
from .field_groups import Array, Columns
from .field_text import SID, WIDE
from .fields import FieldType, Rest, Scalar, Short
from .payload_runs import Payloads, Read, Run, code_of
from .payloads import Field

__all__ = ["NEAR_TOGETHER", "READERS", "one_by_one"]

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
    """See `field_text.SID` for the rules."""
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
    steps, offsets = ragged(np.zeros(len(at), np.int64), count)
    anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - size + 1),), f"V{size}", raw, 0, (1,))
    return anywhere[np.repeat(at, count) + steps * size].view(dtype), offsets


def _rest(field: Field, payloads: Payloads) -> Read:
    return Read({field.name: Bytes.gather(payloads.raw, payloads.at, payloads.end)}, payloads.end)


READERS: dict[type[FieldType], Callable[[Field, Payloads], Read]] = {
    _TERMINATED: _terminated, _SID: _sid, Array: _array, Columns: _table, Rest: _rest,
}  # fmt: skip
"""By the type of a field."""

NEAR_TOGETHER = frozenset((one_by_one, _terminated, _sid))
"""Those that look at all bytes between the payloads, which `Payloads.apart` makes few."""
