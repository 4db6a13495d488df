"""Symbol tables only: names of functions, no lines. In-tree, for ELF, PE and PDB."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...binaries.files import File
from ...binaries.sections import Binary, open_binary
from ..model import DebugFiles, FunctionTable, Names
from .symbols import Symbols

__all__ = ["functions", "resolve", "symbols_of"]


def resolve(files: DebugFiles, address: NDArray[np.uint64]) -> Names:
    """The symbols that ``address`` belongs to. Raises `FormatError` or `OSError`."""
    return symbols_of(files).by_address().resolve(address)


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols. Raises `FormatError` or `OSError`."""
    return symbols_of(files).table()


def symbols_of(files: DebugFiles, binary: Binary | None = None, debug: Binary | None = None) -> Symbols:
    """All symbols of a module; those of a PE file by addresses that count from the image's base.

    ``binary`` and ``debug`` are the files' contents where they are open already.
    """
    if files.kind == "elf":
        from .elf_symbols import elf_symbols

        debug = debug or (open_binary(files.debug) if files.debug else None)
        main = binary or (open_binary(files.binary) if files.binary else debug)
        return elf_symbols(main, debug) if main else Symbols.empty()
    if files.debug:
        from .pdb import pdb_symbols

        return pdb_symbols(File(files.debug))
    from .coff import coff_symbols

    return coff_symbols(binary or open_binary(files.binary))
