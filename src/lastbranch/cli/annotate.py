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
from .symbols import chosen_function, module_of, symbol_notes, symbol_options

if TYPE_CHECKING:
    from ..symbols import SymbolOptions


@click.command()
@captures_and("function", "FUNC")
@filter_options
@symbol_options
@click.option("--source", is_flag=True, help="Print source lines between the instructions.")
@source_root_option
@click.option(
    "--mispredictions", "cost", is_flag=True,
    help="Also print how often each branch was mispredicted and the cycles that it cost, and the costliest branches.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Also print instructions that were not seen to run.")
@format_option("table", "csv", "json", help="Output format; csv has one row per instruction.")
@terminal_options
@click.option(
    "--limit", type=Count(), default=20, show_default=True,
    help="Edges and indirect targets to print; 0 prints all.",
)  # fmt: skip
@estimate_option
def command(
    capture: Capture, function: str, make_filter: Any, symbols: SymbolOptions, source: bool,
    source_root: tuple[str, ...], cost: bool, every: bool, form: str, limit: int, counts: EstimateChoice,
) -> int:  # fmt: skip
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
    from ..analysis.counting.mispredictions import cost_note, mispredictions
    from ..analysis.function.annotation import annotate
    from ..analysis.naming import Namer
    from ..errors import NotRecordedError
    from ..symbols import Symbolizer
    from .annotated import Annotated
    from .annotation_listing import print_annotated

    profile = capture.open()
    chosen = make_filter(profile)
    symbolizer = Symbolizer(profile, symbols)
    namer = Namer(profile, symbolizer)
    place = chosen_function(profile, namer, function, chosen)
    estimate = counts.of(capture, profile, chosen)
    with capture.reading(profile):
        found = annotate(profile, place, sample_filter=chosen, estimate=estimate)
        costs = mispredictions(profile, sample_filter=chosen)[0] if cost else None
    shown = Annotated(profile, namer, found, source, source_root, costs)
    print_annotated(shown, form, limit, every, estimate)
    code = capture.finish(
        profile,
        found.notes
        + (found.noise.notes if found.noise is not None else [])
        + counts.notes(estimate)
        + ([cost_note(costs)] if costs is not None else [])
        + shown.notes
        + symbol_notes(profile, symbolizer, [module_of(profile, place.label)], lines=source),
    )
    if found.missing:
        raise NotRecordedError(f"only samples are shown, without executions: {found.missing}", hint=found.hint)
    return code
