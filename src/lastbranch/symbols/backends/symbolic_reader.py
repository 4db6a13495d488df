"""The symbolic library as a backend: DWARF and PDB with inline chains, without columns, discriminators and start lines.

The library first makes a table of the whole file. symbolic takes one address a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...binaries.files import whole_file
from ...binaries.sections import open_binary
from ...errors import FormatError, UnavailableError
from ..model import DebugFiles, Frame, Function, FunctionTable, Names, NamesBuilder
from . import symbol_tables
from .dwarf.reader import names_split_files

__all__ = ["available", "functions", "symbolize"]

_SPLIT = "the symbolic library cannot read split DWARF (no inlined frames, few lines): use --symbol-backend auto"


def available() -> bool:
    """Whether the library is installed."""
    from importlib.util import find_spec

    return find_spec("symbolic") is not None


def symbolize(files: DebugFiles, address: NDArray[np.uint64]) -> Names:
    """The names of ``address``. Raises `UnavailableError` without the library, `FormatError` for bad files."""
    path = files.debug or files.binary
    if not available():
        raise UnavailableError("the symbolic library is not installed", hint="pip install symbolic")
    from symbolic import exceptions
    from symbolic.debuginfo import Archive

    base = _base(files)
    builder = NamesBuilder()
    # The outermost function has the name of its symbol: the library has one name for all parts of a function, and in a
    # PDB the name without namespace and argument types.
    symbols = symbol_tables.symbols_of(files).by_address()
    functions = symbols.functions(np.arange(len(symbols)))
    try:
        data = whole_file(path)  # the library gets no path to open or map, and does not keep the bytes
        found = next(iter(Archive.from_bytes(data).iter_objects()), None)
        if found is None:
            raise FormatError("symbolic found nothing in it", file=path)
        lookup: Callable[[int], list[Any]] = found.make_symcache().lookup
        for value, row in zip(address.tolist(), symbols.at(address).tolist(), strict=True):
            frames = list(map(_frame, lookup(value - base) if value >= base else ()))
            if row >= 0:
                outermost = frames.pop() if frames else Frame(functions[row], "", 0)
                frames.append(outermost._replace(function=functions[row]))
            builder.add(frames)
    except exceptions.SymbolicError as error:
        raise FormatError(f"symbolic cannot read it: {error}", file=path) from None
    names = builder.names()
    if files.kind == "elf" and names_split_files(open_binary(path)):
        names.notes = [_SPLIT]
    return names


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols, read in-tree."""
    return symbol_tables.functions(files)


def _base(files: DebugFiles) -> int:
    """The base of the library's addresses: the lowest segment in ELF; 0 in PE, as they count from the image."""
    if files.kind == "pe":
        return 0
    segments = open_binary(files.binary or files.debug or "").image.segments
    return min((s.vaddr for s in segments), default=0)


def _frame(frame: Any) -> Frame:
    name = frame.symbol if frame.symbol != "?" else ""
    return Frame(Function(name, name), frame.full_path or "", frame.line)
