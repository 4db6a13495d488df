"""Options of verbs that show names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import complete_folder, grouped

if TYPE_CHECKING:
    from ..analysis import Place
    from ..answers.names import Names
    from ..model import SampleFilter
    from ..symbols import SymbolOptions

__all__ = ["chosen_function", "symbol_options"]


_Command = TypeVar("_Command", bound=Callable[..., Any])

_BACKENDS = ("auto", "dwarf", "symbolic", "llvm", "tables")


def _symbols(
    debug_dir: tuple[str, ...],
    symbol_store: tuple[str, ...],
    debuginfod: bool,
    symbol_backend: str,
    no_symbol_cache: bool,
) -> SymbolOptions:
    from ..model import default_cache
    from ..symbols import SymbolOptions

    if debuginfod and no_symbol_cache:
        raise click.UsageError("--debuginfod needs the cache for its files: omit --no-symbol-cache")
    cache = None if no_symbol_cache else default_cache()
    return SymbolOptions(
        debug_dirs=debug_dir, symbol_store=symbol_store, debuginfod=debuginfod, backend=symbol_backend, cache=cache
    )


_symbol_options = grouped(
    "symbols",
    _symbols,
    click.option(
        "--debug-dir",
        multiple=True,
        metavar="DIR",
        shell_complete=complete_folder,
        help="Also look for debug files here (repeatable): by build id in .build-id/, or at DIR + full path.",
    ),
    click.option(
        "--symbol-store",
        multiple=True,
        metavar="DIR",
        shell_complete=complete_folder,
        help="Look for PDBs, PE files and Breakpad files here (repeatable): NAME/KEY/NAME, or NAME.",
    ),
    click.option("--debuginfod", is_flag=True, help="Ask the servers in DEBUGINFOD_URLS for debug files."),
    click.option(
        "--symbol-backend",
        type=click.Choice(_BACKENDS),
        default="auto",
        show_default=True,
        help="Reader of symbol files; tables reads symbol tables only.",
    ),
    click.option("--no-symbol-cache", is_flag=True, help="Do not use the cache of symbol names."),
)


def symbol_options(function: _Command) -> _Command:
    """--debug-dir, --symbol-store, --debuginfod, --symbol-backend, --no-symbol-cache: one ``symbols`` argument."""

    @functools.wraps(function)
    def wrapped(symbols: SymbolOptions, **rest: Any) -> Any:
        if "capture" in rest:  # code comes from where names do
            rest["capture"].folders = (*symbols.debug_dirs, *symbols.symbol_store)
        return function(symbols=symbols, **rest)

    return _symbol_options(wrapped)  # type: ignore[return-value]


def chosen_function(names: Names, wanted: str, sample_filter: SampleFilter | None) -> Place:
    """`find_function`, whose error is one of the argument FUNC."""
    from ..answers.names import NoSuchFunction, find_function

    try:
        return find_function(names.profile, names.namer, wanted, sample_filter)
    except NoSuchFunction as error:
        raise click.BadParameter(str(error), param_hint="FUNC") from None
