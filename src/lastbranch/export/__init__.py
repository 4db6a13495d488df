"""What people take away: one module a format. `EXPORTS` names them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .interface import Exported, Exporter, ExportOptions

if TYPE_CHECKING:
    from .modules import ModuleFormat

__all__ = ["BY_MODULE", "EXPORTS", "FOLDERS", "ExportOptions", "Exported", "Exporter", "exporter", "module_format"]


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
