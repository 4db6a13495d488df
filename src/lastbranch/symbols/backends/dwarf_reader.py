"""Names, lines and inline chains from DWARF, read in-tree: ELF, and PE as GNU tools write it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...binaries import SegmentFlags
from ...binaries.files import Space
from ...binaries.sections import Binary, open_binary
from ..model import DebugFiles, FunctionTable, Names
from . import tables
from .dwarf.lookup import Dwarf
from .dwarf.split import Splits

__all__ = ["functions", "has_dwarf", "names_split_files", "resolve"]

_MOST = 3
"""Notes of one kind."""


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

    notes: list[str] = []
    splits = Splits(files, sections, notes)
    names = Dwarf(sections, _code_range(main), splits.open, notes).resolve(address + base, symbols)
    names.notes = [*_few(notes, "more damaged parts"), *_missing(splits.missing), *_moved(described)]
    if base:
        names.functions = [f._replace(start=max(0, f.start - int(base))) for f in names.functions]
    return names


def names_split_files(binary: Binary) -> bool:
    """Whether units of ``binary`` name files with their entries. Raises `FormatError`."""
    dwarf = Dwarf(lambda name: binary.section(f".debug_{name}"), (0, 0), lambda *_: None, [])
    return any(dwarf.split_names)


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols. Raises `FormatError` or `OSError`."""
    return tables.functions(files)


def _binaries(files: DebugFiles) -> list[Binary]:
    """The binary, and its separate debug file; a PDB is none."""
    paths = [files.binary, files.debug if files.kind == "elf" else None]
    return [open_binary(path) for path in paths if path]


def _missing(names: list[str]) -> list[str]:
    """What there is to say of split files that are not at hand."""
    which = ", ".join(_few(names, "more"))
    return [f"split DWARF is missing or of another build (no inlined frames there): {which}"] if names else []


def _moved(binary: Binary) -> list[str]:
    """dwz moves what several files share to one of its own, whose name and build id are in ``.gnu_debugaltlink``."""
    if not binary.has(".gnu_debugaltlink"):
        return []
    link = binary.section(".gnu_debugaltlink")
    name = bytes(link.raw[: link.size]).partition(b"\0")[0].decode("utf-8", "backslashreplace")
    return [f"what dwz moved to {name} is not read: some inlined functions have no name"]


def _few(texts: list[str], rest: str) -> list[str]:
    texts = list(dict.fromkeys(texts))
    return [*texts[:_MOST], f"{len(texts) - _MOST} {rest}"] if len(texts) > _MOST else texts


def _code_range(binary: Binary) -> tuple[int, int]:
    code = [s for s in binary.image.sections if s.flags & SegmentFlags.EXECUTE]
    return min((s.vaddr for s in code), default=0), max((s.vaddr + s.size for s in code), default=(1 << 64) - 1)
