"""Backends that read symbol files: a module each, with ``symbolize(files, address)`` and ``functions(files)``.

``auto`` takes the backend that finds most in the files: the in-tree reader for DWARF; for PDBs the symbolic library or
llvm-symbolizer, if installed; symbol tables for all else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import LastbranchError, UnavailableError
from ..model import DebugFiles, Function, FunctionTable, Names
from ..tools import newest

__all__ = ["NamedBackend", "backend_of", "version_of"]

_Answer = TypeVar("_Answer")

MODULES = {"dwarf": "dwarf.reader", "symbolic": "symbolic_reader", "llvm": "llvm", "tables": "symbol_tables"}
"""Backend -> its module here, imported on use."""

VERSIONS = {"dwarf": 4, "symbolic": 4, "llvm": 3, "tables": 2}
"""Increased when the answers of a backend change, so that cached ones are not used any more."""


class NamedBackend:
    """A backend by its name (`lastbranch.symbols.model.Backend`), with demangled names."""

    def __init__(self, name: str) -> None:
        self._name = name

    def symbolize(self, files: DebugFiles, address: NDArray[np.uint64]) -> Names:
        """The names of ``address`` (ascending, distinct). Raises `LastbranchError` or `OSError`."""
        names: Names
        names, notes = self._first(files, lambda module: module.symbolize(files, address))
        names.functions = _demangle_all(names.functions)
        names.notes = [*notes, *names.notes]
        return names

    def functions(self, files: DebugFiles) -> FunctionTable:
        """Every function of the module. Raises `LastbranchError` or `OSError`."""
        table: FunctionTable
        table, _ = self._first(files, lambda module: module.functions(files))
        table.functions = _demangle_all(table.functions)
        return table

    def _first(self, files: DebugFiles, ask: Callable[[ModuleType], _Answer]) -> tuple[_Answer, list[str]]:
        """The first module's answer, and why the backends before it failed. Raises the error of the last."""
        modules = list(_best(files)) if self._name == "auto" else [_module(self._name)]
        notes: list[str] = []
        for module in modules[:-1]:
            try:
                return ask(module), notes
            except LastbranchError as error:
                notes.append(f"{error} (names come from other symbols)")
        return ask(modules[-1]), notes


def backend_of(name: str) -> NamedBackend:
    """The backend ``name``: ``auto`` or one of `MODULES`. Raises `UnavailableError` for another one."""
    if name != "auto" and name not in MODULES:
        raise UnavailableError(f"no symbol backend {name!r}", hint=f"one of auto, {', '.join(MODULES)}")
    return NamedBackend(name)


def version_of(name: str, kind: str) -> str:
    """The versions of backend ``name`` and of its tools for files of ``kind``; a cached answer depends on these
    versions. Imports none of them."""
    readers = [n for n in MODULES if name in (n, "auto")]
    asked = {"symbolic", "llvm"} & set(readers) if kind == "pe" or name != "auto" else set()
    tools = [newest(name) for name in ("llvm-cxxfilt", "c++filt", "llvm-undname")]
    if "symbolic" in asked:
        tools.append(f"symbolic {_symbolic()}")
    if "llvm" in asked:
        tools.append(newest("llvm-symbolizer"))
    return " ".join([*(f"{n}{VERSIONS[n]}" for n in readers), *(t or "none" for t in tools)])


def _symbolic() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("symbolic")
    except PackageNotFoundError:
        return ""


def _best(files: DebugFiles) -> Iterator[ModuleType]:
    """The backends that can read ``files``, the best first."""
    dwarf = _module("dwarf")
    if dwarf.has_dwarf(files):  # a PDB of such a file has symbols only
        yield dwarf
    elif files.kind == "pe" and files.debug:
        for name in ("symbolic", "llvm"):
            if _module(name).available():
                yield _module(name)
    yield _module("tables")


def _module(name: str) -> ModuleType:
    return import_module(f"{__name__}.{MODULES[name]}")


def _demangle_all(functions: Sequence[Function]) -> list[Function]:
    from ..demangle import demangle

    names = list(dict.fromkeys(f.name for f in functions))
    shown = dict(zip(names, demangle(names), strict=True))
    return [Function(f.name, shown[f.name], *f[2:]) for f in functions]
