"""Names, lines and inline chains from DWARF, read in-tree: ELF, and PE as GNU tools write it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...images import SegmentFlags
from ..files import DebugFiles
from ..model import FunctionTable, Names
from . import tables
from .dwarf.lookup import Dwarf
from .dwarf.split import Splits
from .elf_file import Binary, open_binary
from .files import Space

__all__ = ["functions", "has_dwarf", "resolve"]

VERSION = 1


def has_dwarf(files: DebugFiles) -> bool:
    """Whether there is any. Raises `FormatError` or `OSError`."""
    return any(binary.has(".debug_info") for binary in _binaries(files))


def resolve(files: DebugFiles, address: NDArray[np.uint64]) -> Names:
    """The names of ``address`` (ascending). Raises `FormatError` or `OSError`."""
    binaries = _binaries(files)
    described = next((b for b in reversed(binaries) if b.has(".debug_info")), None)
    if described is None:
        return tables.resolve(files, address)
    main = binaries[0]
    base = np.uint64(main.image.image_base if files.kind == "pe" else 0)
    symbols = tables.symbols_of(files, main, binaries[-1]).by_address()
    symbols = replace(symbols, start=symbols.start + base)

    def sections(name: str) -> Space:
        return described.section(f".debug_{name}")

    dwarf = Dwarf(sections, _code_range(main), Splits(files, sections).open)
    names = dwarf.resolve(address + base, symbols)
    if base:
        names.functions = [f._replace(start=max(0, f.start - int(base))) for f in names.functions]
    return names


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols. Raises `FormatError` or `OSError`."""
    return tables.functions(files)


def _binaries(files: DebugFiles) -> list[Binary]:
    """The binary, and its separate debug file; a PDB is none."""
    paths = [files.binary, files.debug if files.kind == "elf" else None]
    return [open_binary(path) for path in paths if path]


def _code_range(binary: Binary) -> tuple[int, int]:
    code = [s for s in binary.image.sections if s.flags & SegmentFlags.EXECUTE]
    return min((s.vaddr for s in code), default=0), max((s.vaddr + s.size for s in code), default=(1 << 64) - 1)
