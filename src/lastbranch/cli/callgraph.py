"""``lastbranch callers`` and ``lastbranch callees``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from .options import Capture, captures_and, filter_options, table_options
from .output import print_table
from .symbols import chosen_function, symbol_options

if TYPE_CHECKING:
    from ..symbols import SymbolOptions

_HELP = """

    FUNC is a name, a pattern with *, or MODULE+0xADDRESS. calls counts call branches, indirect the calls through a
    pointer, and jumps the jumps to a function's first instruction (tail calls). samples counts the samples with the
    call in their stack, and samples % is their share of the samples with FUNC in the stack. A call through a stub of
    the linkage table (f@plt) counts as a call of the function itself.
    """


def _verb(direction: Literal["caller", "callee"], summary: str) -> click.Command:
    """The verb that prints the functions at the other end of the calls of FUNC, each a ``direction``."""

    @click.command(f"{direction}s", help=summary + _HELP)
    @captures_and("function", "FUNC")
    @filter_options
    @symbol_options
    @table_options
    def command(
        capture: Capture, function: str, make_filter: Any, symbols: SymbolOptions, form: str, limit: int
    ) -> int:
        from ..answers.call_partners import call_partners
        from ..answers.names import Names

        profile = capture.open()
        chosen = make_filter(profile)
        names = Names(profile, symbols)
        place = chosen_function(names, function, chosen)
        with capture.reading(profile):
            table = call_partners(names, place, direction, chosen, limit)
        print_table(table, form)
        return capture.finish(profile, table.notes)

    return command


callers = _verb("caller", "List the callers of a function, from calls and call stacks.")
callees = _verb("callee", "List the callees of a function, from calls and call stacks.")
