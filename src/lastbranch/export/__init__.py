"""What people take away: one module a format. `EXPORTS` names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..model import Profile, SampleFilter
    from ..symbols import SymbolOptions
    from .modules import ModuleFormat

__all__ = ["BY_MODULE", "EXPORTS", "FOLDERS", "ExportOptions", "Exported", "Exporter", "exporter", "module_format"]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the user asked for beside the format."""

    sample_filter: SampleFilter | None = None
    binary: str | None = None
    """One module only: its name, the last part of that, or the path of a file that is it."""
    symbols: SymbolOptions | None = None
    """Where names come from; ``None``: the defaults."""


class Exported(NamedTuple):
    """What an export wrote of what the capture has."""

    notes: list[str]
    """For the user."""
    written: int
    """How many of the recorded ``unit`` the output stands for."""
    recorded: int
    """How many were recorded and passed the filters, in the modules that were asked for."""
    unit: str = "samples"
    why: str = ""
    """Why the rest is missing, where the exporter knows."""

    @property
    def partial(self) -> bool:
        """Whether the output is empty or covers less than half of what was recorded: too little to build on."""
        return not self.written or 2 * self.written < self.recorded

    @property
    def verdict(self) -> list[str]:
        """A note that says so where the output is `partial`; nothing elsewhere."""
        if not self.partial:
            return []
        reason = f": {self.why}" if self.why else ""
        if not self.written:
            return [f"the output is empty: {self.why or 'nothing passes the filters'}"]
        percent = 100 * self.written / self.recorded
        return [f"the output covers {percent:.1f} % of the {self.recorded} recorded {self.unit}{reason}"]

    @property
    def all_notes(self) -> list[str]:
        """``notes``, then the verdict."""
        return self.notes + self.verdict


Exporter = Callable[["Profile", IO[bytes], ExportOptions], Exported]
"""Writes a profile. Raises `NotRecordedError` where the capture lacks what the format needs."""

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
