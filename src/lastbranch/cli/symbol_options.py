"""Options of verbs that show names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .options import complete_folder

__all__ = ["symbol_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_BACKENDS = ("auto", "dwarf", "symbolic", "llvm", "tables")


def symbol_options(function: _Command) -> _Command:
    """--debug-dir, --symbol-store, --debuginfod, --symbol-backend, --no-symbol-cache: one ``symbols`` argument."""

    @click.option(
        "--debug-dir", multiple=True, metavar="DIR", shell_complete=complete_folder,
        help="Look for debug files here, too (again for more): by build id in .build-id/, or at DIR + full path.",
    )  # fmt: skip
    @click.option(
        "--symbol-store", multiple=True, metavar="DIR", shell_complete=complete_folder,
        help="Look for PDBs, PE files and Breakpad files here (again for more): NAME/KEY/NAME, or NAME.",
    )  # fmt: skip
    @click.option("--debuginfod", is_flag=True, help="Ask the servers of DEBUGINFOD_URLS for debug files.")
    @click.option(
        "--symbol-backend", type=click.Choice(_BACKENDS), default="auto", show_default=True,
        help="Who reads symbol files; tables: symbol tables only.",
    )  # fmt: skip
    @click.option("--no-symbol-cache", is_flag=True, help="Neither use nor keep names found before.")
    @functools.wraps(function)
    def wrapped(
        debug_dir: tuple[str, ...], symbol_store: tuple[str, ...], debuginfod: bool, symbol_backend: str,
        no_symbol_cache: bool, **rest: Any,
    ) -> Any:  # fmt: skip
        from ..symbols import SymbolOptions
        from ..symbols.options import default_cache

        if debuginfod and no_symbol_cache:
            raise click.UsageError("--debuginfod keeps its files in the cache: leave out --no-symbol-cache")
        symbols = SymbolOptions(
            debug_dirs=debug_dir,
            symbol_store=symbol_store,
            debuginfod=debuginfod,
            backend=symbol_backend,
            cache=None if no_symbol_cache else default_cache(),
        )
        if "capture" in rest:  # code comes from where names do
            rest["capture"].folders = (*debug_dir, *symbol_store)
        return function(symbols=symbols, **rest)

    return wrapped  # type: ignore[return-value]
