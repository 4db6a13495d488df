"""Symbols of one module as columns, from any table, and the lookup of addresses in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...binaries.files import strings_at
from ..model import Function, FunctionTable, Names, used_rows

__all__ = ["Symbols", "until_next"]


_COLUMNS = ("start", "size", "name", "code", "public")


@dataclass(eq=False)
class Symbols:
    """n symbols in the order of their table. Names are decoded on use: most never are."""

    start: NDArray[np.uint64]
    """Link addresses."""
    size: NDArray[np.uint64]
    """Bytes; 0 unknown: such a symbol reaches to the next one."""
    name: NDArray[np.int64]
    """Offsets into ``strings``, where the names end with a zero byte."""
    code: NDArray[np.bool_]
    """Whether it is a function or a label of code."""
    public: NDArray[np.bool_]
    """Whether other modules may see it."""
    strings: bytes | bytearray = b""

    @classmethod
    def empty(cls) -> Symbols:
        none = np.empty(0, np.uint64)
        return cls(none, none, np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool))

    @classmethod
    def of(cls, found: Sequence[tuple[int, int, bool, bool, bytes]]) -> Symbols:
        """Symbols from (start, size, whether code, whether public, name)."""
        if not found:
            return cls.empty()
        start, size, code, public, name = zip(*found, strict=True)
        begin = np.cumsum([0, *(len(n) + 1 for n in name)])[:-1]
        words = np.array(start, np.uint64), np.array(size, np.uint64)
        return cls(*words, begin, np.array(code, bool), np.array(public, bool), b"\0".join(name) + b"\0")

    @classmethod
    def join(cls, parts: list[Symbols]) -> Symbols:
        """All symbols of ``parts``, in that order."""
        if len(parts) == 1:
            return parts[0]
        base = np.cumsum([0, *(len(p.strings) for p in parts)])[:-1]
        moved = [replace(p, name=p.name + b) for p, b in zip(parts, base, strict=True)]
        columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in moved]) for name in _COLUMNS}
        return cls(**columns, strings=b"".join(p.strings for p in parts))

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Symbols:
        """The symbols in ``rows``."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, **columns)

    def by_address(self) -> Symbols:
        """One symbol for each address, ascending: the last of the largest symbols in the table."""
        order = np.lexsort((self.size, self.start))
        start = self.start[order]
        last = np.append(start[1:] != start[:-1], True) if len(start) else np.empty(0, bool)
        return self.take(order[last])

    def at(self, address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64[n]: the row of each address, or -1, where symbols are `by_address`."""
        if not len(self):
            return np.full(len(address), -1, np.int64)
        row = np.searchsorted(self.start, address, side="right").astype(np.int64) - 1
        size = self.size[np.maximum(row, 0)]
        inside = (size == 0) | (address - self.start[np.maximum(row, 0)] < size)
        return np.where((row >= 0) & inside, row, -1)

    def names(self, rows: NDArray[np.integer]) -> list[str]:
        """The names of ``rows``."""
        return strings_at(self.strings, self.name[rows].tolist())

    def functions(self, rows: NDArray[np.integer]) -> list[Function]:
        """``rows`` as functions, without a place in the source."""
        columns = self.names(rows), self.start[rows].tolist(), self.size[rows].tolist()
        return [Function(name, name, start, size) for name, start, size in zip(*columns, strict=True)]

    def resolve(self, address: NDArray[np.uint64]) -> Names:
        """The names of ``address``, where symbols are `by_address`."""
        used, rows = used_rows(self.at(address))
        return Names.of_functions(rows, self.functions(used))

    def table(self) -> FunctionTable:
        """All code symbols by address; one without a size reaches to the next symbol."""
        code = self.take(self.code)
        chosen = code.by_address()
        following = np.append(chosen.start[1:], chosen.start[-1:] + np.uint64(1))
        end = np.where(chosen.size == 0, following, chosen.start + chosen.size)
        everyone = np.arange(len(chosen))
        functions = chosen.functions(everyone)
        return FunctionTable(chosen.start, np.maximum(end, chosen.start), functions, code._aliases(chosen, functions))

    def _aliases(self, chosen: Symbols, functions: list[Function]) -> dict[int, tuple[str, ...]]:
        row = np.searchsorted(chosen.start, self.start)
        shared = np.flatnonzero(np.bincount(row, minlength=len(chosen))[row] > 1)
        names: dict[int, dict[str, None]] = {}
        for i, name in zip(row[shared].tolist(), self.names(shared), strict=True):
            if name != functions[i].name:
                names.setdefault(i, {})[name] = None
        return {i: tuple(other) for i, other in sorted(names.items())}


def until_next(symbols: Symbols, ends: NDArray[np.uint64]) -> Symbols:
    """``symbols`` where each without a size reaches to the next address that has one, or to the next of ``ends``."""
    if not len(symbols):
        return symbols
    stops = distinct(np.concatenate([symbols.start, ends]))
    following = np.append(stops, stops[-1])[np.searchsorted(stops, symbols.start, side="right")]
    return replace(symbols, size=np.where(symbols.size == 0, following - symbols.start, symbols.size))
