"""``lastbranch diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from .differences import ENDS, difference_options, exceeded, noise_note, print_difference, verdict
from .options import (
    Capture,
    LogOptions,
    complete_file,
    filter_options,
    limit_options,
    log_options,
    no_progress_option,
    symfs_option,
    weight_option,
)
from .sides import SecondSide, side_options
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..analysis import Thing
    from ..symbols import SymbolOptions


@click.command()
@limit_options
@click.argument("words", metavar="A... B", nargs=-1, shell_complete=complete_file)
@weight_option
@symfs_option
@side_options
@no_progress_option
@log_options
@filter_options
@symbol_options
@difference_options
@click.option("--by", type=click.Choice(list(ENDS)), default="function", show_default=True, help="What each row is.")
def command(
    words: tuple[str, ...],
    second: SecondSide,
    weights: dict[str, int],
    symfs: str | None,
    no_progress: bool,
    log: LogOptions,
    make_filter: Any,
    symbols: SymbolOptions,
    form: str,
    limit: int,
    by: str,
    rate: float,
    fail_over: float | None,
) -> int:
    """Show what takes a larger or smaller share in B than in A.

    Each side is a capture, a folder or a pattern for several, which are added up; with --against each can be several.

    Each row says whether the difference is more than chance.

    The share of a function is its share of the samples (by period); of an edge, its share of the branch entries; of a
    block, its share of the ranges. noise is the standard error of the change, in percentage points. Four times as many
    samples halve it: a note says how much longer to record. p is the probability of such a difference between two
    recordings of the same behaviour. The unit is the sample: the entries of one branch stack are one observation. Code
    is matched by name across builds.

    --format markdown is a table for a pull request, --format sarif has a result for each significant difference, with
    its source line where that is known.
    """
    from ..analysis import Namer, compare
    from ..answers.names import symbol_notes
    from ..symbols import Symbolizer

    captures = second.sides(Capture(words, symfs, not no_progress, log=log, weights=weights))
    profiles = [capture.open() for capture in captures]
    filters = [make_filter(profile) for profile in profiles]
    symbolizers = [Symbolizer(profile, symbols) for profile in profiles]
    namers = [Namer(profile, symbolizer) for profile, symbolizer in zip(profiles, symbolizers, strict=True)]
    with captures[0].reading(profiles[0]), captures[1].reading(profiles[1]):
        found = compare(namers, cast("Thing", by), sample_filters=filters, lines=form == "sarif")
    print_difference(found, by, rate, form, limit, fail_over)
    shown = {spot.module for spots in found.spots[: limit or None] for spot in spots}
    notes = [*noise_note(profiles, filters), *found.notes]
    for profile, symbolizer in zip(profiles, symbolizers, strict=True):
        notes += symbol_notes(profile, symbolizer, shown)
    codes = [captures[0].finish(profiles[0], verdict(found, rate) + notes), captures[1].finish(profiles[1])]
    return exceeded(found, rate, fail_over) or max(codes)
