"""Exports for other tools, one output format a module. `EXPORTS` lists them."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import IO, TYPE_CHECKING

from ..errors import SelectionError
from .interface import Exporter, ExportOptions, ExportResult

if TYPE_CHECKING:
    from ..model import Profile

__all__ = [
    "BY_MODULE",
    "COUNTED",
    "ESTIMATED",
    "EXPORTS",
    "FOLDERS",
    "SAMPLES",
    "export_to",
    "exporter",
]

BY_MODULE = (
    "autofdo", "gcov", "profgen", "bolt", "sampleprof", "mispredictions", "propeller", "boltyaml", "gopgo",
)  # fmt: skip
"""Formats that speak of one module: a folder of files where no ``binary`` is chosen. Each module of this package with
such a name has a `ModuleFormat` called ``FORMAT``, those of other formats a function ``export``."""

FOLDERS = ("parquet", "arrow")
"""Formats that are always a folder, with a file for each table: `columnar.export_tables`."""

EXPORTS = (
    "counts", "brstack", *BY_MODULE, "perfscript", "folded", "pprof", "speedscope", "firefox", "chrome", *FOLDERS,
)  # fmt: skip
"""Names on the command line."""

SAMPLES = ("brstack", "perfscript", "speedscope", "firefox", "chrome")
"""Formats of samples one by one, where none can count several times."""

COUNTED = ("counts", *BY_MODULE)
"""Formats that need counts alone: they can be made where samples are no more (`ExportOptions.counted`)."""

ESTIMATED = (*COUNTED, "folded")
"""Formats of counts, which can be of executions (`ExportOptions.estimate`)."""


def count_request(name: str) -> dict[str, bool] | None:
    """The request to `analysis.count_stacks` that the format ``name`` makes; ``None`` for a format that is not in
    `COUNTED`."""
    if name not in COUNTED:
        return None
    form = import_module(f".{name}", __name__).FORMAT if name in BY_MODULE else None
    ranges, sampled = form is None or form.count is None, form is not None and form.sampled
    return {"ranges": ranges, "details": False, "sampled": sampled}


def exporter(name: str) -> Exporter:
    """The exporter of a format that is not in `FOLDERS`. An exporter of `BY_MODULE` writes the one module that its
    options name.

    An exporter of `SAMPLES` raises `SelectionError` for captures with weights.
    """
    module = import_module(f".{name}", __name__)
    if name in BY_MODULE:
        from .modules import exporter_of

        return exporter_of(module.FORMAT)
    export: Exporter = module.export
    return partial(_export_unweighted, name, export) if name in SAMPLES else export


def _export_unweighted(
    name: str, export: Exporter, profile: Profile, out: IO[bytes], options: ExportOptions
) -> ExportResult:
    if any(capture.weight != 1 for capture in profile.captures):
        hint = f"leave out --weight, or write counts: {', '.join(COUNTED)}, folded, pprof"
        raise SelectionError(f"{name} has samples one by one, which have no weights", hint=hint)
    return export(profile, out, options)


def export_to(profile: Profile, name: str, path: str, options: ExportOptions) -> ExportResult:
    """Write ``profile`` in the format ``name`` as ``path``, a file or a folder, which appears when it is complete.

    Raises what the format raises, and `OutputError` where ``path`` cannot be written.
    """
    if name in FOLDERS:
        from .columnar import export_tables

        return export_tables(profile, path, name, options)
    if name in BY_MODULE and options.binary is None:
        from .folder import export_folder

        return export_folder(profile, path, import_module(f".{name}", __name__).FORMAT, options)
    from ..model import writing_file

    with writing_file(path) as out:
        return exporter(name)(profile, out, options)
