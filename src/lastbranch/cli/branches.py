"""``lastbranch branches``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import (
    Capture,
    EstimateChoice,
    FilterMaker,
    captures_options,
    estimate_option,
    filter_options,
    table_options,
)
from .output import print_table
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..symbols import SymbolOptions


@click.command()
@captures_options
@filter_options
@symbol_options
@click.option("--no-symbols", is_flag=True, help="Without function names.")
@click.option(
    "--by",
    type=click.Choice(("branch", "site")),
    default="branch",
    show_default=True,
    help="A row for each pair of source and target, or for each branch instruction with all its targets.",
)
@table_options
@estimate_option
def command(
    capture: Capture,
    make_filter: FilterMaker,
    symbols: SymbolOptions,
    no_symbols: bool,
    by: str,
    form: str,
    limit: int,
    counts: EstimateChoice,
) -> int:
    """List the hottest branches: counts, mispredictions, cycles.

    Each row shows both ends of a branch, how often it was taken, how often it was mispredicted when taken, and the
    cycles since the previous branch. Counts follow the time that code takes; --estimate executions corrects that.

    Places are module+address, with the address as linked (docs: addresses). An empty cell, or no column in a table,
    means that the processor did not report it. Functions come last, as name+offset, where symbols are found. csv and
    json have the full path of each module and each address (hexadecimal) in columns of their own. --module keeps the
    branches that begin or end in the module.

    noise is the standard error of the share, in percentage points, and bursts in how many bursts the branch was seen:
    both are of recordings by software.

    --by site has a row for each branch instruction: how often it was mispredicted, how many targets it went to, and to
    which of them most often. Where branches that were not taken are recorded (Arm SPE), it says how often, and their
    mispredictions count, too.
    """
    from ..answers.branches import hottest_branches
    from ..answers.names import Names

    profile = capture.open(make_filter.early(ranges=False, details=True))
    chosen = make_filter(profile)
    estimate, names = counts.of(capture, profile, chosen), Names(profile, None if no_symbols else symbols)
    with capture.reading(profile):
        table = hottest_branches(names, chosen, estimate, limit, by_site=by == "site")
    print_table(table, form)
    return capture.finish(profile, [*capture.why_empty(profile, table), *table.notes])
