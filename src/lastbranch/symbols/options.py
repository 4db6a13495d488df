"""What the user says about symbols."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

__all__ = ["BACKENDS", "SymbolOptions", "default_cache"]

BACKENDS = ("auto", "dwarf", "symbolic", "llvm", "tables")
"""Who reads symbol files: the best one for each, the in-tree reader of DWARF, the symbolic library, llvm-symbolizer, or
the in-tree readers of symbol tables."""


def default_cache() -> str:
    """The user's own folder for names (XDG Base Directory Specification; ``LOCALAPPDATA`` on Windows)."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")  # relative ones are invalid there
    return os.path.join(base, "lastbranch", "symbols")


@dataclass(frozen=True, slots=True)
class SymbolOptions:
    """Where names may come from, and what looking for them may cost."""

    debug_dirs: tuple[str, ...] = ()
    """Searched as GDB does: DIR/.build-id/xx/rest.debug, and DIR + full path; /usr/lib/debug always comes last."""
    symbol_store: tuple[str, ...] = ()
    """Folders with NAME.pdb/GUIDAGE/NAME.pdb, or just NAME.pdb; PE files and Breakpad's .sym in the same layout."""
    debuginfod: bool = False
    """Whether the servers of DEBUGINFOD_URLS may be asked."""
    backend: str = "auto"
    """One of `BACKENDS`."""
    cache: str | None = field(default_factory=default_cache)
    """Folder of names found before (mode 0700); ``None``: none is kept."""
    seconds: float = 60
    """Time limit of the worker for a module, for each 100 MB of its files."""
    memory: int = 2 << 30
    """Bytes of address space that the worker may use beyond its files' sizes."""
