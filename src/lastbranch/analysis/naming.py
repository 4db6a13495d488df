"""Names of bound addresses as rows of one table, by which counts are summed."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import distinct, distinct_rows, offsets_of, ranges, take_rows
from ..model import Array, ModuleKind, Profile

if TYPE_CHECKING:
    from ..symbols import Function, FunctionTable, Names, Symbolizer

__all__ = ["Label", "Namer", "Place", "View", "find_functions", "place_of", "name_of_unnamed"]


View = Literal["function", "inline", "line"]
"""The meaning of a name: the function with the code, each function of the inline chain, or each source line of the
chain."""


_MANY = 8
"""One in so many functions of a module."""


class Label(NamedTuple):
    """A name in a module, as symbol files spell the name (`lastbranch.model.visible` makes names safe to print)."""

    module: int
    """Row of the modules table, -1 where nothing was mapped."""
    function: str
    """Demangled; empty where unknown."""
    name: str = ""
    """As the linker knows it."""
    file: str = ""
    """Source file: where the function is declared, or that of the line."""
    line: int = 0
    start: int = 0
    """The beginning of its code (link address); 0 for a line, and for a function that may have been inlined there."""

    def shown(self, profile: Profile) -> str:
        """The function, or ``[module]`` for code without one."""
        if self.function:
            return self.function
        return name_of_unnamed(profile.modules[self.module].short if self.module >= 0 else "")


def name_of_unnamed(module: str) -> str:
    """The name of code of ``module`` without a function; ``module`` is empty if not even the module is known."""
    return f"[{(module or 'unknown').strip('[]')}]"


class Namer:
    """Names addresses of ``profile`` by ``symbols``; ``None``: nothing but modules has a name.

    ``labels`` grows as names are met; every method answers in rows of it, and equal labels share a row.
    """

    def __init__(self, profile: Profile, symbols: Symbolizer | None) -> None:
        self.profile, self.symbols = profile, symbols
        self.labels: list[Label] = []
        self._rows: dict[Label, int] = {}
        self._tables: dict[int, FunctionTable] = {}
        self._known: dict[int, NDArray[np.int64]] = {}

    def table(self, module: int) -> FunctionTable:
        """The functions of a row of the modules table; empty where none are known."""
        if module not in self._tables:
            from ..symbols import FunctionTable

            known = self.symbols is not None and module >= 0
            self._tables[module] = self.symbols.functions(module) if known and self.symbols else FunctionTable.empty()
        return self._tables[module]

    def is_complete(self, module: Array) -> NDArray[np.bool_]:
        """Whether the functions of each module are known, or that there are none: see `FunctionTable.complete`."""
        missing = [row for row, table in self._tables.items() if not table.complete]
        return ~np.isin(module, missing)

    def row(self, label: Label) -> int:
        """The row of ``label``, which is new or known."""
        row = self._rows.setdefault(label, len(self.labels))
        if row == len(self.labels):
            self.labels.append(label)
        return row

    def rows(self, process: Array, module: Array, address: Array) -> NDArray[np.int64]:
        """int64[n]: row of the function of each address (int64 process and module rows, uint64 module address)."""
        out = np.empty(len(address), np.int64)
        for one in distinct(module).tolist():  # not by `chains`: finding equal addresses takes longer than naming them
            mine = np.flatnonzero(module == one)
            if one < 0 or self.symbols is None:
                out[mine] = self.row(Label(one, ""))
            elif self.profile.modules[one].kind is ModuleKind.ANONYMOUS:
                out[mine] = self.chains("function", process[mine], module[mine], address[mine])[0]
            else:
                out[mine] = self._functions(one, address[mine], self.row(Label(one, "")))
        return out

    def chains(
        self, view: View, process: Array, module: Array, address: Array
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows int64[m], offsets int64[n + 1]): the names of each address, innermost first and at least one.

        ``function`` gives one name an address. The name of unknown code is a label of the module without a function.
        """
        owner = np.where(self.is_own(module), process, -1)
        scopes, which = distinct_rows(module, owner)
        pieces: list[tuple[Array, Array, Array]] = []
        for i, scope in enumerate(scopes.tolist()):
            mine = np.flatnonzero(which == i)
            once, back = np.unique(address[mine], return_inverse=True)
            rows, sizes = self._of_module(view, int(module[scope]), int(owner[scope]), once)
            pieces.append((mine, *_spread(rows, sizes, back.reshape(-1))))
        sizes = np.ones(len(address), np.int64)
        for mine, _, counts in pieces:
            sizes[mine] = counts
        offsets = offsets_of(sizes)
        out = np.empty(int(offsets[-1]), np.int64)
        for mine, rows, counts in pieces:
            out[ranges(offsets[mine], counts)] = rows
        return out, offsets

    def places(self, module: Array, address: Array, process: Array | None = None) -> list[str]:
        """``function+0x12`` for each address, the function alone for its first; empty where none is known. ``process``
        (int64 rows) is what names of code that was made at run time depend on."""
        out = []
        rows = self.rows(np.full(len(module), -1) if process is None else process, module, address)
        for row, at in zip(rows.tolist(), address.tolist(), strict=True):
            label = self.labels[row]
            offset = f"+{at - label.start:#x}" if label.function and at > label.start else ""
            out.append(label.function + offset)
        return out

    def is_own(self, module: Array) -> NDArray[np.bool_]:
        """Memory whose names depend on the process: code that was made at run time."""
        own = np.array([m.kind is ModuleKind.ANONYMOUS for m in self.profile.modules] + [False], bool)
        return own[module]

    def _of_module(self, view: View, module: int, process: int, address: Array) -> tuple[Array, Array]:
        """(rows of labels, how many of them each address has)."""
        unknown = self.row(Label(module, ""))
        if self.symbols is None or module < 0:
            return np.full(len(address), unknown), np.ones(len(address), np.int64)
        if self.profile.modules[module].kind is ModuleKind.ANONYMOUS:
            names = self.symbols.names_at(process, address)
        elif view == "function":
            return self._functions(module, address, unknown), np.ones(len(address), np.int64)
        else:
            names = self.symbols.names(module, address)
        if view == "function":
            rows = np.array(
                [*(self.row(_declaration_label(module, f, view)) for f in names.functions), unknown], np.int64
            )
            return rows[names.function], np.ones(len(address), np.int64)
        return self._frames(view, module, names, unknown)

    def _functions(self, module: int, address: Array, unknown: int) -> NDArray[np.int64]:
        table = self.table(module)
        found = table.at(address)
        # Rows of labels by the functions of the table: making 100,000 labels anew costs more than all else here.
        if module not in self._known:
            self._known[module] = np.full(len(table) + 1, -1, np.int64)
            self._known[module][-1] = unknown
        known = self._known[module]
        new = distinct(found[known[found] < 0]).tolist()
        # Making many names at once from the table's bytes takes a tenth of the time.
        functions = table.functions[:] if len(new) * _MANY > len(table) else table.functions
        for i in new:
            known[i] = self.row(_declaration_label(module, functions[i], "function"))
        return known[found]

    def _frames(self, view: View, module: int, names: Names, unknown: int) -> tuple[Array, Array]:
        function, file, line = names.frame_function, names.frame_file, names.frame_line
        if view == "inline":
            file, line = np.full_like(file, -1), np.zeros_like(line)
        once, which = distinct_rows(function, file, line)
        table = []
        for row, path, number in zip(*(c[once].tolist() for c in (function, file, line)), strict=True):
            known = names.functions[row]
            at = Label(module, known.shown, known.name, names.files[path] if path >= 0 else "", number)
            table.append(self.row(_declaration_label(module, known, view) if view == "inline" else at))
        frames = np.array(table, np.int64)[which]
        sizes = np.diff(names.offsets)
        bare = np.flatnonzero(sizes == 0)
        return np.insert(frames, names.offsets[bare], unknown), np.maximum(sizes, 1)


def _declaration_label(module: int, function: Function, view: View) -> Label:
    start = function.start if view == "function" else 0
    return Label(module, function.shown, function.name, function.file, function.line, start)


def _spread(rows: Array, sizes: Array, back: Array) -> tuple[Array, Array]:
    """Ragged ``rows`` of distinct addresses for every address: ``back`` has the row among the distinct addresses."""
    values, offsets = take_rows(rows, offsets_of(sizes), back)
    return values, np.diff(offsets)


# -- Find the function that somebody means


_AT = re.compile(r"(?P<module>.+)\+(?P<address>0x[0-9a-fA-F]+)")


class Place(NamedTuple):
    """A function in a module, at link addresses; ``end`` is exclusive, and 0 where it is not known."""

    module: int
    start: int
    end: int
    label: Label


def find_functions(profile: Profile, namer: Namer, wanted: str, modules: Collection[int] = ()) -> list[Place]:
    """The functions that ``wanted`` means, in the order of modules and addresses; empty where there are none.

    ``wanted`` is a name (linkage name, demangled name, demangled name without its arguments, or, if no module has such
    a name, the end of a name, as ``Bin::eval`` of ``ast::Bin<int>::eval(int)``), a pattern with ``*``, or a place
    ``module+0xaddress`` in the function. ``modules`` are the rows to search; empty means all.
    """
    rows = sorted(modules) if modules else range(len(profile.modules))
    if (at := _AT.fullmatch(wanted)) is not None:
        address = int(at["address"], 16)
        called = [row for row in rows if at["module"] in (profile.modules[row].name, profile.modules[row].short)]
        return [place_of(namer, row, address) for row in called if address < 1 << 64]
    files = [row for row in rows if profile.modules[row].kind is not ModuleKind.ANONYMOUS]
    named = {row: namer.table(row).match(wanted) for row in files}
    most = min((literal for literal, places in named.values() if places), default=0)
    found = []
    for row, (literal, which) in named.items():
        if literal != most:  # what is the end of a name here is a whole one in another module
            continue
        table, places = namer.table(row), np.array(which, np.int64)
        start, end = table.start[places], table.end[places]
        labels = namer.rows(np.full(len(places), -1), np.full(len(places), row), start)
        columns = (start.tolist(), end.tolist(), labels.tolist())
        found += [Place(row, lo, hi, namer.labels[label]) for lo, hi, label in zip(*columns, strict=True)]
    return found


def place_of(namer: Namer, module: int, address: int) -> Place:
    """The function at a module address; without a name, code from that address on."""
    table = namer.table(module)
    where = np.array([address], np.uint64)
    label = namer.labels[int(namer.rows(np.array([-1]), np.array([module]), where)[0])]
    row = int(table.at(where)[0])
    if row < 0:
        return Place(module, address, 0, label)
    return Place(module, int(table.start[row]), int(table.end[row]), label)
