"""One field of many events: what the columns hold that `column_decode` makes.

Each kind of column keeps what the file has (numbers, or bytes and where in them) and makes Python values, the very ones
that decoding event by event gives, only when it is asked for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .field_text import Text
from .field_values import Exact
from .fields import FieldType

__all__ = ["Blobs", "Bytes", "Column", "Floats", "Ints", "Lists", "Numbers", "Objects", "Texts", "ragged"]

Ints = NDArray[np.int64]


def ragged(begin: Ints, count: Ints) -> tuple[Ints, Ints]:
    """(indices, offsets) of ``count[i]`` places from ``begin[i]`` on, one row after the other."""
    ends = np.cumsum(count)
    offsets = np.concatenate([[0], ends])
    return np.repeat(begin - offsets[:-1], count) + np.arange(offsets[-1]), offsets


class Column:
    """Values of one field, one for each event."""

    def __len__(self) -> int:
        raise NotImplementedError

    def take(self, rows: Any) -> Column:
        """The values of some of the events: an index array or a mask."""
        raise NotImplementedError

    def tolist(self) -> list[Any]:
        """Python values as `Layout.decode` makes them."""
        raise NotImplementedError


class Numbers(Column):
    """``values``, an array of integers; ``wrap`` makes of each what is shown, None: itself."""

    def __init__(self, values: NDArray[Any], wrap: Callable[[Any], Any] | None = None) -> None:
        self.values, self.wrap = values, wrap

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Any) -> Column:
        return type(self)(self.values[rows], self.wrap)

    def tolist(self) -> list[Any]:
        found: list[Any] = self.values.tolist()
        return found if self.wrap is None else list(map(self.wrap, found))


class Floats(Numbers):
    """Numbers with NaN, whose bits are kept."""

    def tolist(self) -> list[Any]:
        found: list[Any] = self.values.tolist()
        for row in np.flatnonzero(np.isnan(self.values)).tolist():
            found[row] = Exact("nan", self.values[row : row + 1].tobytes())
        return found


class Blobs(Column):
    """``values``, bytes of one size (dtype V), which ``type`` reads: GUIDs, addresses, text in fixed room, arrays."""

    def __init__(self, values: NDArray[Any], type_: FieldType, pointer: int) -> None:
        self.values, self.type, self.pointer = values, type_, pointer

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Any) -> Column:
        return Blobs(self.values[rows], self.type, self.pointer)

    def tolist(self) -> list[Any]:
        size, raw = self.values.dtype.itemsize, self.values.tobytes()
        parts = [raw[at : at + size] for at in range(0, len(raw), size)]
        return [self.type.decode(part, 0, size, self.pointer)[0] for part in parts]


class Bytes(Column):
    """Bytes of varying number: row ``i`` is ``raw[begin[i] : end[i]]``."""

    def __init__(self, raw: NDArray[np.uint8], begin: Ints, end: Ints) -> None:
        self.raw, self.begin, self.end = raw, begin, end

    @classmethod
    def gather(cls, raw: NDArray[np.uint8], begin: Ints, end: Ints) -> Bytes:
        """A copy of the bytes from ``begin`` to ``end`` of ``raw``."""
        size = end - begin
        if (begin & 7).any():
            index, offsets = ragged(begin, size)
            return cls(raw.take(index), offsets[:-1], offsets[1:])
        index, offsets = ragged(begin >> 3, (size + 7) >> 3)
        words = raw[: len(raw) & ~7].view(np.uint64).take(index, mode="clip")
        return cls(words.view(np.uint8), offsets[:-1] * 8, offsets[:-1] * 8 + size)

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: Any) -> Column:
        return Bytes(self.raw, self.begin[rows], self.end[rows])

    def tolist(self) -> list[Any]:
        raw = self.raw.tobytes()
        return [raw[begin:end] for begin, end in zip(self.begin.tolist(), self.end.tolist(), strict=True)]


class Texts(Column):
    """Strings: row ``i`` is ``raw[begin[i] : stop[i]]`` in the coding ``text``.

    Where ``cut`` (bool), it was ended by the end of its event instead of a NUL. ``raw`` is shared by the columns that
    were decoded together.
    """

    def __init__(self, raw: NDArray[np.uint8], begin: Ints, stop: Ints, cut: NDArray[np.bool_], text: Text) -> None:
        self.raw, self.begin, self.stop, self.cut, self.text = raw, begin, stop, cut, text

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: Any) -> Column:
        return Texts(self.raw, self.begin[rows], self.stop[rows], self.cut[rows], self.text)

    def tolist(self) -> list[Any]:
        unit = self.text.unit
        count = (self.stop - self.begin) // unit
        index, offsets = ragged(self.begin, count) if unit == 1 else ragged(self.begin >> 1, count)
        odd = self.begin & (unit - 1)
        shift = int(odd[0]) if len(odd) else 0
        if (odd != shift).any():  # wide strings on even and odd places: nobody does that to a field of one event
            return [self._read(row) for row in range(len(self))]
        whole = self.raw[shift : len(self.raw) - (len(self.raw) - shift) % unit].view(f"<u{unit}")
        units = whole.take(index)
        plain = np.less(units, 0x80 if unit == 1 else 0xD800)  # one unit, one character
        if unit == 2:
            plain |= units >= 0xE000
        slow: list[int] = []
        if not plain.all():
            beside = np.flatnonzero(~plain)
            slow = np.unique(np.searchsorted(offsets, beside, "right") - 1).tolist()
            units[beside] = 0x3F
        string, bounds = units.tobytes().decode(self.text.coding), offsets.tolist()
        found: list[Any] = [string[begin:end] for begin, end in pairwise(bounds)]
        for row in {*slow, *np.flatnonzero(self.cut).tolist()}:
            found[row] = self._read(row)
        return found

    def _read(self, row: int) -> str:
        raw = self.raw[self.begin[row] : self.stop[row]].tobytes()
        text = self.text.read(raw)
        return Exact(text, raw) if self.cut[row] else text


class Lists(Column):
    """Numbers of varying number: row ``i`` is ``values[offsets[i] : offsets[i + 1]]``, each shown as ``wrap`` says."""

    def __init__(self, values: NDArray[Any], offsets: Ints, wrap: Callable[[Any], Any] | None = None) -> None:
        self.values, self.offsets, self.wrap = values, offsets, wrap

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Any) -> Column:
        begin, end = self.offsets[:-1][rows], self.offsets[1:][rows]
        index, offsets = ragged(begin, end - begin)
        return Lists(self.values[index], offsets, self.wrap)

    def tolist(self) -> list[Any]:
        values, bounds = self.values.tolist(), self.offsets.tolist()
        if self.wrap is not None:
            values = list(map(self.wrap, values))
        return [values[begin:end] for begin, end in pairwise(bounds)]


class Objects(Column):
    """Python values as they are."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Any) -> Column:
        return Objects([self.values[i] for i in np.arange(len(self.values))[rows].tolist()])

    def tolist(self) -> list[Any]:
        return list(self.values)
