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

from ....arrays import offsets_of, take_ranges
from .types import Exact, FieldType, Text

__all__ = [
    "Blobs", "Bytes", "Column", "Encoded", "Floats", "Ints", "Lists", "Numbers", "Objects", "Texts", "gather",
]  # fmt: skip


Ints = NDArray[np.int64]


def gather(values: NDArray[Any], begin: Ints, count: Ints) -> tuple[NDArray[Any], Ints]:
    """(items, offsets): ``count[i]`` items of ``values`` from ``begin[i]`` on, one row after the other."""
    return take_ranges(values, begin, count), offsets_of(count)


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
            copied, offsets = gather(raw, begin, size)
            return cls(copied, offsets[:-1], offsets[1:])
        words, offsets = gather(raw[: len(raw) & ~7].view(np.uint64), begin >> 3, (size + 7) >> 3)
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
        data: Any = memoryview(self.raw)  # type: ignore[arg-type]
        decode, errors = self.text.decoder, self.text.errors
        bounds = zip(self.begin.tolist(), self.stop.tolist(), strict=True)
        if not self.cut.any():
            return [decode(data[begin:stop], errors, True)[0] for begin, stop in bounds]
        rows = zip(bounds, self.cut.tolist(), strict=True)
        return [self._cut(bytes(data[b:e])) if cut else decode(data[b:e], errors, True)[0] for (b, e), cut in rows]

    def _cut(self, raw: bytes) -> str:
        return Exact(self.text.read(raw), raw)


class Encoded(Column):
    """Bytes of varying number that ``type`` reads, such as SIDs: row ``i`` is ``raw[begin[i] : end[i]]``."""

    def __init__(self, raw: NDArray[np.uint8], begin: Ints, end: Ints, type_: FieldType, pointer: int) -> None:
        self.raw, self.begin, self.end, self.type, self.pointer = raw, begin, end, type_, pointer

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: Any) -> Column:
        return Encoded(self.raw, self.begin[rows], self.end[rows], self.type, self.pointer)

    def tolist(self) -> list[Any]:
        known: dict[bytes, Any] = {}  # they are few
        found = []
        for begin, end in zip(self.begin.tolist(), self.end.tolist(), strict=True):
            part = self.raw[begin:end].tobytes()
            if part not in known:
                known[part] = self.type.decode(part, 0, len(part), self.pointer)[0]
            found.append(known[part])
        return found


class Lists(Column):
    """Numbers of varying number: row ``i`` is ``values[offsets[i] : offsets[i + 1]]``, each shown as ``wrap`` says."""

    def __init__(self, values: NDArray[Any], offsets: Ints, wrap: Callable[[Any], Any] | None = None) -> None:
        self.values, self.offsets, self.wrap = values, offsets, wrap

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Any) -> Column:
        begin, end = self.offsets[:-1][rows], self.offsets[1:][rows]
        return Lists(*gather(self.values, begin, end - begin), self.wrap)

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
