"""Backends of the formats that are read in-tree and have only one reader."""

from __future__ import annotations

from collections.abc import Callable

from .breakpad import Breakpad
from .jit import read_perfmap
from .model import Backend
from .symbol_lists import TableReader, read_kallsyms

__all__ = ["READERS"]

READERS: dict[str, Callable[[], Backend]] = {
    "breakpad": Breakpad,
    "kallsyms": lambda: TableReader(read_kallsyms),
    "perfmap": lambda: TableReader(read_perfmap),
}
