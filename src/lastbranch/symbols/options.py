"""The user's settings for symbols."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..model import default_cache

__all__ = ["BACKENDS", "SymbolOptions"]

BACKENDS = ("auto", "dwarf", "symbolic", "llvm", "tables")
"""Readers of symbol files: the best one for each file, the in-tree reader of DWARF, the symbolic library,
llvm-symbolizer, or the in-tree readers of symbol tables."""


@dataclass(frozen=True, slots=True)
class SymbolOptions:
    """The sources of names, and the limits of the search."""

    debug_dirs: tuple[str, ...] = ()
    """Folders of GDB's search: DIR/.build-id/xx/rest.debug, and DIR + full path; /usr/lib/debug always comes last."""
    symbol_store: tuple[str, ...] = ()
    """Folders with NAME.pdb/GUIDAGE/NAME.pdb, or just NAME.pdb; PE files and Breakpad's .sym in the same layout."""
    debuginfod: bool = False
    """Whether the servers of DEBUGINFOD_URLS may be asked."""
    backend: str = "auto"
    """One of `BACKENDS`."""
    cache: str | None = field(default_factory=default_cache)
    """Folder of the cache of names (mode 0700); ``None``: no cache."""
    seconds: float = 60
    """Time limit of the worker for each 100 MB of the files of a module."""
    memory: int = 2 << 30
    """Bytes of address space that the worker may use besides the files' sizes."""
