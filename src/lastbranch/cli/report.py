"""``lastbranch report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from .options import Capture, capture_options, complete_folder, filter_options, table_options
from .output import Cell, print_rows, share
from .report_names import VIEWS, report_names
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..analysis import Key
    from ..model import Profile
    from ..symbols import SymbolOptions


@click.command()
@capture_options
@filter_options
@symbol_options
@table_options
@click.option(
    "--by",
    type=click.Choice(["process", "thread", "module", *VIEWS]),
    help="What a row is. [default: function, or module where no names can be had]",
)
@click.option(
    "--source-root", multiple=True, metavar="DIR", shell_complete=complete_folder,
    help="By line: look for source files below DIR (again for more). [default: beside the binary]",
)  # fmt: skip
def command(
    capture: Capture, make_filter: Any, symbols: SymbolOptions, form: str, limit: int, by: str | None,
    source_root: tuple[str, ...],
) -> int:  # fmt: skip
    """Where the samples fell, by function, module, process or line.

    A row is of one event. Without --by, rows are functions, or modules where no function has a name.

    By function, inline (inlined functions on their own) or line: samples are those whose address is there, total those
    that have it anywhere in their call stack, and instructions those executed there by the ranges of branch stacks.
    """
    from ..analysis import weights

    profile = capture.open()
    chosen = make_filter(profile)
    notes = []
    if by is None or by in VIEWS:
        named = report_names(capture, profile, chosen, form, limit, by, symbols, source_root)
        if isinstance(named, int):
            return named
        by, notes = "module", named
    with capture.reading(profile):
        table = weights(profile, cast("Key", by), sample_filter=chosen)
    totals = [[0, 0, 0] for _ in profile.events]
    columns = [
        c.tolist() for c in (table.event, table.key, table.samples, table.period, table.has_period, table.entries)
    ]
    for event, _, samples, period, _, entries in zip(*columns, strict=True):
        for i, value in enumerate((samples, period, entries)):
            totals[event][i] += value
    rows: list[list[Cell]] = []
    for event, key, samples, period, has_period, entries in list(zip(*columns, strict=True))[: limit or None]:
        all_samples, all_period, all_entries = totals[event]
        rows.append(
            [profile.events[event].name, *_names(profile, by, key), samples, share(samples, all_samples)]
            + ([period, share(period, all_period)] if has_period else [None, None])
            + [entries, share(entries, all_entries)]
        )
    names = ["event", *_COLUMNS[by], "samples", "samples %", "period", "period %", "branch entries", "entries %"]
    print_rows(names, rows, form, names=("event", *_COLUMNS[by]), spare=_SPARE)
    return capture.finish(profile, capture.why_empty(profile, rows) + notes)


_SPARE = ("branch entries", "period", "period %")
_COLUMNS = {"process": ("pid", "process"), "thread": ("pid", "tid", "thread"), "module": ("module",)}


def _names(profile: Profile, by: str, row: int) -> list[Cell]:
    if row < 0:
        return [*[None] * (len(_COLUMNS[by]) - 1), "[unknown]"]
    if by == "process":
        return [profile.processes[row].pid, profile.processes[row].name]
    if by == "thread":
        thread = profile.threads[row]
        return [profile.processes[thread.process].pid, thread.tid, thread.name]
    return [profile.modules[row].name]
