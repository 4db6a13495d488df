"""Names of code: functions, source lines and inlined frames.

A `Symbolizer` names the addresses of one profile. It searches for the files of a module, looks into the cache of names,
and lets a worker process read symbol files for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .model import Frame, Function, FunctionTable, Names, plain
from .options import SymbolOptions

if TYPE_CHECKING:
    from .symbolizer import Symbolizer

__all__ = ["Frame", "Function", "FunctionTable", "Names", "SymbolOptions", "Symbolizer", "plain"]


def __getattr__(name: str) -> Any:
    if name != "Symbolizer":  # the one name whose module the worker does not need
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .symbolizer import Symbolizer

    return Symbolizer
