"""Names of code: functions, source lines and inlined frames.

A `Symbolizer` names the addresses of one profile. It searches for the files of a module, looks into the cache of names,
and lets a worker process read symbol files for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .model import Frame, Function, FunctionTable, Names, plain
    from .options import SymbolOptions
    from .symbolizer import Symbolizer

__all__ = ["Frame", "Function", "FunctionTable", "Names", "SymbolOptions", "Symbolizer", "plain"]

__getattr__ = lazy_names(__name__, {
    "model": "Frame Function FunctionTable Names plain",
    "options": "SymbolOptions",
    "symbolizer": "Symbolizer",
})  # fmt: skip
