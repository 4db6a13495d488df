"""``lastbranch stacks``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from .options import Capture, Count, EstimateChoice, captures_options, estimate_option, filter_options, format_option
from .output import print_table, terminal_options
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..analysis import View
    from ..symbols import SymbolOptions


@click.command()
@captures_options
@filter_options
@symbol_options
@click.option("--inline", is_flag=True, help="Also print a frame for each inlined function.")
@click.option(
    "--count", type=click.Choice(["samples", "period"]), default="samples", show_default=True, help="What is added up."
)
@format_option("folded", "table", "csv", "json")
@terminal_options
@click.option("--limit", type=Count(), default=0, show_default=True, help="Stacks to print; 0 prints all.")
@estimate_option
def command(
    capture: Capture,
    make_filter: Any,
    symbols: SymbolOptions,
    inline: bool,
    count: str,
    form: str,
    limit: int,
    counts: EstimateChoice,
) -> int:
    """Print call stacks as folded lines for flame graphs.

    A line is the process and its functions, root first, with ; between them, and how often. The stacks are the best
    that the capture offers: call chains, LBR call-stack mode, or stacks rebuilt from the calls and returns of branch
    stacks (as deep as these reach). A note says which.

    With --estimate executions a stack weighs as many branches as were executed, by the estimate, in the records that
    were taken there.
    """
    from itertools import islice

    from ..analysis import Namer, call_stacks
    from ..answers.call_stacks import stack_table
    from ..answers.names import symbol_notes
    from ..export.folded import folded_line, folded_stacks, stack_notes
    from ..symbols import Symbolizer

    if counts.executions and count == "period":
        raise click.UsageError("--count period adds up what samples represent; leave out --estimate executions.")
    profile = capture.open()
    chosen = make_filter(profile)
    estimate = counts.of(capture, profile, chosen)
    count = "executions" if estimate.replaced else count
    with capture.reading(profile):
        stacks = call_stacks(profile, sample_filter=chosen, estimate=estimate if estimate.replaced else None)
    symbolizer = Symbolizer(profile, symbols)
    view: View = "inline" if inline else "function"
    lines = list(islice(folded_stacks(profile, stacks, Namer(profile, symbolizer), view, count), limit or None))
    if form == "folded":
        sys.stdout.writelines(map(folded_line, lines))
    else:
        print_table(stack_table(lines, count), form)
    seen = {profile.modules[row].short for row in set(stacks.module.tolist()) if row >= 0}
    notes = [
        *capture.why_empty(profile, lines),
        *stack_notes(stacks),
        *counts.notes(estimate),
        *symbol_notes(profile, symbolizer, seen, lines=inline),
    ]
    return capture.finish(profile, notes)
