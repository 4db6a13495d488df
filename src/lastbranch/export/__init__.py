"""What people take away: one module a format. `EXPORTS` names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from ..model import Profile, SampleFilter
    from ..symbols import SymbolOptions
    from .modules import ModuleFormat

__all__ = ["BY_MODULE", "EXPORTS", "FOLDERS", "ExportOptions", "Exporter", "exporter", "module_format"]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the user asked for beside the format."""

    sample_filter: SampleFilter | None = None
    binary: str | None = None
    """One module only: its name, the last part of that, or the path of a file that is it."""
    symbols: SymbolOptions | None = None
    """Where names come from; ``None``: the defaults."""


Exporter = Callable[["Profile", IO[bytes], ExportOptions], list[str]]
"""Writes a profile; what it returns are notes for the user."""

EXPORTS = {
    "counts": "counts",
    "brstack": "brstack",
    "autofdo": "autofdo",
    "gcov": "gcov",
    "profgen": "profgen",
    "bolt": "bolt",
    "sampleprof": "sampleprof",
    "perfscript": "perfscript",
    "folded": "folded",
    "pprof": "pprof",
    "speedscope": "speedscope",
    "firefox": "firefox",
    "chrome": "chrome",
    "parquet": "columnar",
    "arrow": "columnar",
}
"""Name on the command line -> module of this package, each with a function ``export`` or, if in `BY_MODULE`, a
`ModuleFormat` called ``FORMAT``."""

BY_MODULE = ("autofdo", "gcov", "profgen", "bolt", "sampleprof")
"""Formats that speak of one module: a folder of files where no ``binary`` is chosen."""


FOLDERS = ("parquet", "arrow")
"""Formats that are always a folder, with a file for each table: `columnar.export_tables`."""


def module_format(name: str) -> ModuleFormat:
    """The format called ``name``, one of `BY_MODULE`; `KeyError` for another."""
    found: ModuleFormat = import_module(f".{EXPORTS[name]}", __name__).FORMAT
    return found


def exporter(name: str) -> Exporter:
    """The exporter called ``name`` (for those of `BY_MODULE`: of the one module in its options); else `KeyError`."""
    if name in BY_MODULE:
        from .modules import exporter_of

        return exporter_of(module_format(name))
    export: Exporter = import_module(f".{EXPORTS[name]}", __name__).export
    return export
