"""Who reads symbol files: one module for each backend, with ``resolve(files, address)`` and ``functions(files)``.

``auto`` takes the reader that knows most of what the files hold: DWARF is read in-tree, PDBs by the symbolic library or
llvm-symbolizer where one of them is installed, and all else from symbol tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import LastbranchError, UnavailableError
from ..files import DebugFiles
from ..model import Function, FunctionTable, Names

__all__ = ["Reader", "backend_of", "version_of"]

_Answer = TypeVar("_Answer")

MODULES = {"dwarf": "dwarf_reader", "symbolic": "symbolic_reader", "llvm": "llvm", "tables": "tables"}
"""Backend -> its module here; what is not used is not imported."""


class Reader:
    """A backend by its name: `lastbranch.symbols.worker.Backend`. Names are demangled here, for all alike."""

    def __init__(self, name: str) -> None:
        self._name = name

    def resolve(self, files: DebugFiles, address: NDArray[np.uint64]) -> Names:
        """The names of ``address`` (ascending, distinct). Raises `LastbranchError` or `OSError`."""
        names: Names = self._first(files, lambda module: module.resolve(files, address))
        names.functions = _demangled(names.functions)
        return names

    def functions(self, files: DebugFiles) -> FunctionTable:
        """Every function of the module. Raises `LastbranchError` or `OSError`."""
        table: FunctionTable = self._first(files, lambda module: module.functions(files))
        table.functions = _demangled(table.functions)
        return table

    def _first(self, files: DebugFiles, ask: Callable[[ModuleType], _Answer]) -> _Answer:
        """The answer of the first module that can give one; of ``auto``'s, the error of the last one counts."""
        modules = list(_best(files)) if self._name == "auto" else [_module(self._name)]
        for module in modules[:-1]:
            try:
                return ask(module)
            except LastbranchError:
                continue
        return ask(modules[-1])


def backend_of(name: str) -> Reader:
    """The backend ``name``: ``auto`` or one of `MODULES`. Raises `UnavailableError` for another one."""
    if name != "auto" and name not in MODULES:
        raise UnavailableError(f"no symbol backend {name!r}", hint=f"one of auto, {', '.join(MODULES)}")
    return Reader(name)


def version_of(name: str) -> str:
    """What a kept answer of backend ``name`` depends on beyond the files: its own version and that of what it uses."""
    names = MODULES if name == "auto" else [name]
    return " ".join(f"{n}{_module(n).VERSION}" for n in names) + f" {_installed()}"


def _installed() -> str:
    from . import llvm, symbolic_reader

    return f"symbolic={symbolic_reader.available()} llvm={llvm.available() or ''}"


def _best(files: DebugFiles) -> Iterator[ModuleType]:
    """Who may read ``files``, the best first."""
    dwarf = _module("dwarf")
    if files.kind == "pe" and files.debug:
        for name in ("symbolic", "llvm"):
            if _module(name).available():
                yield _module(name)
    elif dwarf.has_dwarf(files):
        yield dwarf
    yield _module("tables")


def _module(name: str) -> ModuleType:
    return import_module(f"{__name__}.{MODULES[name]}")


def _demangled(functions: list[Function]) -> list[Function]:
    from ..demangle import demangle

    names = list(dict.fromkeys(f.name for f in functions))
    shown = dict(zip(names, demangle(names), strict=True))
    return [f._replace(shown=s) if (s := shown[f.name]) != f.shown else f for f in functions]
