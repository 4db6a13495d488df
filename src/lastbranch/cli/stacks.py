"""``lastbranch stacks``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from .options import Capture, Count, capture_options, filter_options, format_option
from .output import Cell, print_rows, terminal_options
from .symbols import symbol_notes, symbol_options

if TYPE_CHECKING:
    from ..analysis.naming import View
    from ..symbols import SymbolOptions


@click.command()
@capture_options
@filter_options
@symbol_options
@click.option("--inline", is_flag=True, help="Also print a frame for each inlined function.")
@click.option(
    "--weight", type=click.Choice(["samples", "period"]), default="samples", show_default=True, help="What counts."
)
@format_option("folded", "table", "csv", "json")
@terminal_options
@click.option("--limit", type=Count(), default=0, show_default=True, help="Stacks to print; 0 prints all.")
def command(
    capture: Capture, make_filter: Any, symbols: SymbolOptions, inline: bool, weight: str, form: str, limit: int
) -> int:
    """Print call stacks as folded lines for flame graphs.

    A line is the process and its functions, root first, with ; between them, and the weight. The stacks are the best
    that the capture offers: call chains, LBR call-stack mode, or stacks rebuilt from the calls and returns of branch
    stacks (as deep as these reach). A note says which.
    """
    from itertools import islice

    from ..analysis.naming import Namer
    from ..analysis.stacks import call_stacks
    from ..export.folded import folded_line, folded_stacks, stack_notes
    from ..symbols import Symbolizer

    profile = capture.open()
    chosen = make_filter(profile)
    with capture.reading(profile):
        stacks = call_stacks(profile, sample_filter=chosen)
    symbolizer = Symbolizer(profile, symbols)
    view: View = "inline" if inline else "function"
    lines = list(islice(folded_stacks(profile, stacks, Namer(profile, symbolizer), view, weight), limit or None))
    if form == "folded":
        sys.stdout.writelines(map(folded_line, lines))
    else:
        rows: list[list[Cell]] = [[count, len(names) - 1, names[0], ";".join(names[1:])] for names, count in lines]
        print_rows([weight, "depth", "process", "stack"], rows, form, names=("process", "stack"))
    seen = {profile.modules[row].short for row in set(stacks.module.tolist()) if row >= 0}
    notes = [
        *capture.why_empty(profile, lines),
        *stack_notes(stacks),
        *symbol_notes(profile, symbolizer, seen, lines=inline),
    ]
    return capture.finish(profile, notes)
