"""Function tables from plain lists of symbols, and backends that have nothing but such a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..binaries.files import open_regular
from ..errors import FormatError
from .demangle import demangle
from .model import DebugFiles, Function, FunctionTable, Names

__all__ = ["TEXT_LIMIT", "TableReader", "lines_of", "only_at", "only_used", "table_of"]

TEXT_LIMIT = 1 << 30
"""Bytes of a text file of symbols."""

_TOP = (1 << 64) - 1


def table_of(symbols: Iterable[tuple[int, int, str]], *, demangled: bool = True) -> FunctionTable:
    """The table of (address, size, linkage name), whose last one of an address wins, the others being aliases.

    A size of 0 reaches to the next symbol; one that reaches into the next symbol is cut there.
    """
    found = sorted(enumerate(symbols), key=lambda s: (s[1][0], s[0]))
    if not found:
        return FunctionTable.empty()
    rows: list[tuple[int, int, str]] = []
    aliases: dict[int, tuple[str, ...]] = {}
    for _, (address, size, name) in found:
        if rows and rows[-1][0] == address:
            _, earlier_size, earlier = rows[-1]
            if earlier != name:
                aliases[len(rows) - 1] = (*aliases.get(len(rows) - 1, ()), earlier)
            rows[-1] = (address, size or earlier_size, name)
        else:
            rows.append((address, size, name))
    names = [name for *_, name in rows]
    start = np.array([a for a, *_ in rows], np.uint64)
    sizes = np.array([s for _, s, _ in rows], np.uint64)
    following = np.append(start[1:], np.uint64(_TOP))
    end = np.where(sizes > 0, np.minimum(start + np.minimum(sizes, ~start), following), following)
    length = np.where(end == _TOP, sizes, end - start).tolist()
    shown = demangle(names) if demangled else names
    functions = [Function(n, s, a, z) for n, s, a, z in zip(names, shown, start.tolist(), length, strict=True)]
    return FunctionTable(start, end, functions, aliases)


def only_at(table: FunctionTable, addresses: set[int]) -> FunctionTable:
    """The functions that start at one of ``addresses``."""
    kept = [row for row, f in enumerate(table.functions) if f.start in addresses]
    aliases = {new: table.aliases[old] for new, old in enumerate(kept) if old in table.aliases}
    return FunctionTable(table.start[kept], table.end[kept], [table.functions[r] for r in kept], aliases)


class TableReader:
    """A backend made of a function that reads a table."""

    def __init__(self, read: Callable[[DebugFiles], FunctionTable]) -> None:
        self._read = read

    def functions(self, files: DebugFiles) -> FunctionTable:
        """Every function. Raises `FormatError`, `OSError`."""
        return self._read(files)

    def resolve(self, files: DebugFiles, address: NDArray[np.uint64]) -> Names:
        """The function that each address lies in; no lines. Raises `FormatError`, `OSError`."""
        table = self._read(files)
        return only_used(table.at(address), table.functions)


def only_used(row: NDArray[np.int64], functions: Sequence[Function]) -> Names:
    """`Names.of_functions` with no more functions than are used."""
    used, back = np.unique(row[row >= 0], return_inverse=True)
    rows = np.full(len(row), -1, np.int64)
    rows[row >= 0] = back
    return Names.of_functions(rows, [functions[i] for i in used.tolist()])


def lines_of(path: str, *, links: bool = True) -> list[str]:
    """The lines of a text file; what is no UTF-8 stays as it is. Raises `FormatError` for one that is too large."""
    with os.fdopen(open_regular(path, links=links), "rb") as file:
        if os.fstat(file.fileno()).st_size > TEXT_LIMIT:
            raise FormatError(f"a list of symbols has at most {TEXT_LIMIT} bytes", file=path, field="size")
        data = file.read()
    return data.decode("utf-8", "surrogateescape").split("\n")
