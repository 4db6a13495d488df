"""``lastbranch annotate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import (
    Capture,
    Count,
    EstimateChoice,
    captures_and,
    estimate_option,
    filter_options,
    format_option,
    source_root_option,
)
from .output import terminal_options
from .symbols import chosen_function, symbol_options

if TYPE_CHECKING:
    from ..symbols import SymbolOptions


@click.command()
@captures_and("function", "FUNC")
@filter_options
@symbol_options
@click.option("--source", is_flag=True, help="Print source lines between the instructions.")
@source_root_option
@click.option(
    "--mispredictions",
    "cost",
    is_flag=True,
    help="Also print how often each branch was mispredicted and the cycles that it cost, and the costliest branches.",
)
@click.option("--all", "every", is_flag=True, help="Also print instructions that were not seen to run.")
@format_option("table", "csv", "json", help="Output format; csv has one row per instruction.")
@terminal_options
@click.option(
    "--limit",
    type=Count(),
    default=20,
    show_default=True,
    help="Edges and indirect targets to print; 0 prints all.",
)
@estimate_option
def command(
    capture: Capture,
    function: str,
    make_filter: Any,
    symbols: SymbolOptions,
    source: bool,
    source_root: tuple[str, ...],
    cost: bool,
    every: bool,
    form: str,
    limit: int,
    counts: EstimateChoice,
) -> int:
    """Show the code of a function and how often it ran.

    Its loops, its hottest edges and the targets of its indirect branches follow.

    FUNC is a name, a pattern with *, or MODULE+0xADDRESS. The first instruction of a block shows how often the block
    ran, its cycles and its instructions per cycle. Its last instruction shows how often its branch was taken, and
    how often the taken branch was mispredicted. All these counts come from the ranges between the entries of branch
    stacks (docs: hot code). They follow time; --estimate executions corrects that.

    In recordings by software, bursts counts the bursts that saw a block or an edge, noise % is the standard error
    of count in percent of it, and the other columns of noise are the standard error of the share before them, in
    percentage points. What fewer than 100 bursts saw is faint: it is mostly chance.

    With --mispredictions, cycles lost is how much longer the code after mispredictions of a branch took than the same
    code after predicted branches, where the processor times branches.
    """
    from ..answers.function_code import count_function
    from ..answers.names import Names
    from ..errors import NotRecordedError
    from .annotation_listing import print_annotated

    profile = capture.open()
    chosen = make_filter(profile)
    names = Names(profile, symbols)
    place = chosen_function(names, function, chosen)
    estimate = counts.of(capture, profile, chosen)
    with capture.reading(profile):
        shown = count_function(names, place, chosen, estimate, costs=cost, source_roots=source_root if source else None)
    print_annotated(shown, form, limit, every)
    code = capture.finish(profile, shown.notes)
    if shown.found.missing:
        raise NotRecordedError(
            f"only samples are shown, without executions: {shown.found.missing}", hint=shown.found.hint
        )
    return code
