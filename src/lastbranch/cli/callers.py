"""``lastbranch callers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .callgraph import print_calls
from .options import Capture, capture_and, filter_options, table_options
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..symbols import SymbolOptions


@click.command()
@capture_and("function", "FUNC")
@filter_options
@symbol_options
@table_options
def command(capture: Capture, function: str, make_filter: Any, symbols: SymbolOptions, form: str, limit: int) -> int:
    """Who calls a function, by call branches and by call stacks.

    FUNC is a name, a pattern with *, or MODULE+0xADDRESS. calls counts entries of call branches, indirect those of them
    through a pointer, and jumps the jumps to a function's first instruction (tail calls); samples those with the call
    in their stack, and samples % their share of the samples with FUNC in it. A call through a stub of the linkage table
    (f@plt) is one of the function itself.
    """
    return print_calls(capture, make_filter, symbols, form, limit, function, "caller")
