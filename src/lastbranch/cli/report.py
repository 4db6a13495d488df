"""``lastbranch report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from .options import (
    Capture,
    EstimateChoice,
    captures_options,
    estimate_option,
    filter_options,
    source_root_option,
    table_options,
)
from .output import print_table
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..analysis import Key, View
    from ..answers.functions import NamedSamples
    from ..model import Profile, SampleFilter
    from ..symbols import SymbolOptions

VIEWS = ("function", "inline", "line")
_KEYS = ("process", "thread", "module")
_OTHERS = "--by shows the same by process, thread, module, inline or line"


@click.command()
@captures_options
@filter_options
@symbol_options
@table_options
@click.option(
    "--by",
    type=click.Choice([*_KEYS, *VIEWS]),
    help="What each row is. [default: function, or module if no names are found]",
)
@click.option(
    "--mispredictions",
    "cost",
    is_flag=True,
    help="Report mispredicted branches, those that cost most first, by function, inline, line or module.",
)
@source_root_option
@estimate_option
def command(
    capture: Capture,
    make_filter: Any,
    symbols: SymbolOptions,
    form: str,
    limit: int,
    by: str | None,
    cost: bool,
    source_root: tuple[str, ...],
    counts: EstimateChoice,
) -> int:
    """Report samples by function, module, process or line.

    Each row covers one event, and --limit applies to each. Without --by, rows are functions, or modules if no function
    has a name.

    By function, by inline (inlined functions on their own) or by line: samples counts the samples whose address is
    there, total those with it anywhere in their call stack, and instructions the instructions executed there, from the
    ranges of branch stacks: as often as they were observed, or executed (--estimate).

    By process or thread: cpu ms is the CPU time that it spent, and cpu % its share of that, where the capture has it
    and samples are not filtered; rows without samples are there, too. A note says how much CPU time has no samples.

    noise is the standard error of samples %, in percentage points. A note says how much longer to record to halve it.
    bursts counts the bursts of a software recording with samples there; samples of one burst are not independent.

    With --mispredictions, branches counts the entries of branch stacks whose outcome is known, and share % is of all
    mispredictions. cycles lost is how much longer the code after them took than the same code after predicted
    branches, and lost % its part of all cycles, where the processor times branches.
    """
    if cost and by in ("process", "thread"):
        raise click.UsageError(f"--mispredictions is by {', '.join(VIEWS)} or module, not by {by}.")
    if cost and counts.executions:
        raise click.UsageError("--mispredictions counts what was observed, without --estimate executions.")
    profile = capture.open()
    chosen = make_filter(profile)
    if cost:
        return _print_mispredictions(capture, profile, chosen, symbols, form, limit, by, source_root)
    notes: list[str] = []
    if by not in _KEYS:
        from ..answers.functions import samples_by_name
        from ..answers.names import Names

        names, estimate = Names(profile, symbols), counts.of(capture, profile, chosen)
        with capture.reading(profile):
            found = samples_by_name(names, cast("View", by or "function"), chosen, estimate)
        if by or found.named:
            return _print_names(capture, found, form, limit, by, source_root)
        by = "module"
        why = "by module, because no function has a name; " if len(found.counted) else "by module; "
        notes = [f"{why}{_OTHERS}", *found.time_notes, *names.all_notes]
    from ..answers.weights import samples_by_key

    with capture.reading(profile):
        table = samples_by_key(profile, cast("Key", by), chosen, limit, time_is_said=bool(notes))
    print_table(table, form)
    return capture.finish(profile, [*capture.why_empty(profile, table), *_losses(profile), *notes, *table.notes])


def _print_names(
    capture: Capture, found: NamedSamples, form: str, limit: int, by: str | None, roots: tuple[str, ...]
) -> int:
    """Print samples by function, inlined function or line; ``by`` ``None``: by function, as nobody chose."""
    profile, table = found.names.profile, found.table(limit, roots)
    print_table(table, form)
    notes = [*capture.why_empty(profile, table), *_losses(profile), *([] if by else [f"by function; {_OTHERS}"])]
    notes += [*table.notes, *found.name_notes(limit, lines=by not in (None, "function"))]
    return capture.finish(profile, notes)


def _losses(profile: Profile) -> list[str]:
    """A note on recorded samples that the capture lacks."""
    from ..model import counted

    lost = [counted(number, name[:-1]) for name in ("records", "samples") if (number := profile.lost.get(name, 0))]
    return [f"{' and '.join(lost)} were lost, and are in no row"] if lost else []


def _print_mispredictions(
    capture: Capture,
    profile: Profile,
    chosen: SampleFilter | None,
    symbols: SymbolOptions,
    form: str,
    limit: int,
    by: Any,
    roots: tuple[str, ...],
) -> int:
    from ..answers.misprediction_costs import misprediction_costs
    from ..answers.names import Names

    names = Names(profile, None if by == "module" else symbols)
    with capture.reading(profile):
        table = misprediction_costs(names, by, chosen, limit, roots)
    print_table(table, form)
    return capture.finish(profile, [*capture.why_empty(profile, table), *_losses(profile), *table.notes])
