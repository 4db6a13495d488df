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
from .output import Cell, print_rows, share, titles_of
from .symbols import symbol_notes, symbol_options

if TYPE_CHECKING:
    from ..analysis import BranchTable, Estimate, SiteTable
    from ..analysis.naming import Namer
    from ..analysis.statistics.share_noise import Noise
    from ..model import Profile
    from ..symbols import SymbolOptions

_PARTS = ("from_module", "from_address", "to_module", "to_address")
COLUMNS = ("from", *_PARTS[:2], "to", *_PARTS[2:], "count", "share %", "bursts", "noise", "mispredicted %", "cycles",
           "type", "in_tx", "aborts", "from function", "to function")  # fmt: skip
_NAMES = ("from", "to", "from function", "to function")
_SPARE = ("in_tx", "aborts", "bursts", {"from": "from function", "to": "to function"}, "type", "cycles", "noise")
_SITE_COLUMNS = ("from", *_PARTS[:2], "count", "share %", "bursts", "noise", "not taken", "mispredictions",
                 "mispredicted %", "cycles", "type", "targets", "most often to", *_PARTS[2:], "most often %",
                 "from function", "to function")  # fmt: skip
_SITE_NAMES = ("from", "most often to", "from function", "to function")
_SITE_SPARE = ("bursts", {"from": "from function", "most often to": "to function"}, "type", "cycles", "noise")


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
    help="A row for each pair of ends, or for each branch instruction with all of its targets.",
)
@table_options
@estimate_option
def command(
    capture: Capture, make_filter: FilterMaker, symbols: SymbolOptions, no_symbols: bool, by: str, form: str,
    limit: int, counts: EstimateChoice,
) -> int:  # fmt: skip
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
    from ..analysis import branches, sites, without_binary
    from ..analysis.naming import Namer
    from ..analysis.statistics.share_noise import noise_of_branches
    from ..symbols import Symbolizer

    profile = capture.open(make_filter.early(ranges=False, details=True))
    chosen = make_filter(profile)
    estimate = counts.of(capture, profile, chosen)
    with capture.reading(profile):
        table = branches(profile, sample_filter=chosen, estimate=estimate)
    titles = titles_of(estimate)
    recorded = table.recorded
    empty, total = int(table.count[~recorded].sum()), int(table.count[recorded].sum())
    symbolizer = None if no_symbols else Symbolizer(profile, symbols)
    namer = Namer(profile, symbolizer)
    if by == "site":
        listed = sites(table).take(slice(limit or None))
        noise = noise_of_branches(profile, chosen, [(listed.module, listed.address)])
        rows, from_module, to_module = _sites(namer, listed, total), listed.module, listed.to_module
        _add_noise(_SITE_COLUMNS, rows, noise, estimate)
        print_rows(_SITE_COLUMNS, rows, form, machine_only=_PARTS, names=_SITE_NAMES, spare=_SITE_SPARE,
                   titles=titles)  # fmt: skip
    else:
        shown = table.take(recorded.nonzero()[0][: limit or None])
        ends = [(shown.from_module, shown.from_address), (shown.to_module, shown.to_address)]
        noise = noise_of_branches(profile, chosen, ends)
        rows, from_module, to_module = branch_rows(namer, shown, total), shown.from_module, shown.to_module
        _add_noise(COLUMNS, rows, noise, estimate)
        print_rows(COLUMNS, rows, form, machine_only=_PARTS, names=_NAMES, spare=_SPARE, titles=titles)
    notes = capture.why_empty(profile, rows) + without_binary(profile, from_module, to_module)
    notes += counts.notes(estimate)
    if noise is not None and not estimate.replaced:
        notes += noise.notes
    if table.not_taken is not None and by == "branch":
        passed, wrong = (int(column.sum()) for column in (table.not_taken.count, table.not_taken.mispredicted))
        notes.append(
            f"{passed} entries are of branches that were not taken, {wrong} of them mispredicted: --by site counts them"
        )
    if empty:
        notes.append(f"{empty} entries are empty")
    if symbolizer is not None:
        used = {*from_module.tolist(), *to_module.tolist()}
        modules = [profile.modules[row] for row in used if row >= 0]
        said = {f"{module.short}: no names: {module.missing}" for module in modules}  # with the addresses already
        named = symbol_notes(profile, symbolizer, [module.short for module in modules])
        notes += [note for note in named if note not in said]
    return capture.finish(profile, notes)


def _add_noise(columns: tuple[str, ...], rows: list[list[Cell]], noise: Noise | None, estimate: Estimate) -> None:
    """Fill in ``bursts`` and ``noise`` of a recording in bursts. Noise is that of observed shares."""
    at = columns.index("bursts")
    for i, row in enumerate(rows):
        error = None if noise is None or estimate.replaced else round(100 * float(noise.error[i]), 2)
        row[at:at] = [None if noise is None else int(noise.observed[i]), error]


def branch_rows(namer: Namer, table: BranchTable, total: int) -> list[list[Cell]]:
    """Rows of `COLUMNS` without bursts and noise; shares are of ``total`` entries."""
    profile, rows = namer.profile, list[list[Cell]]()
    sources = namer.places(table.from_module, table.from_address, table.process)
    targets = namer.places(table.to_module, table.to_address, table.process)
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        rows.append(
            [
                *_place(profile, int(table.from_module[i]), int(table.from_address[i])),
                *_place(profile, int(table.to_module[i]), int(table.to_address[i])),
                int(table.count[i]),
                share(int(table.count[i]), total),
                *_outcome(table, i),
                int(table.in_tx[i]) or None,
                int(table.abort[i]) or None,
                source or None,
                target or None,
            ]
        )
    return rows


def _sites(namer: Namer, table: SiteTable, total: int) -> list[list[Cell]]:
    profile, rows, passing = namer.profile, list[list[Cell]](), table.not_taken.any()
    sources = namer.places(table.module, table.address, table.process)
    targets = namer.places(table.to_module, table.to_address, table.process)
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        count, known = int(table.count[i]), int(table.mispredicted[i] + table.predicted[i])
        rows.append(
            [
                *_place(profile, int(table.module[i]), int(table.address[i])),
                count,
                share(count, total),
                int(table.not_taken[i]) if passing else None,
                int(table.mispredicted[i]) if known else None,
                *_outcome(table, i),
                int(table.targets[i]),
                *_place(profile, int(table.to_module[i]), int(table.to_address[i])),
                share(int(table.to_count[i]), count),
                source or None,
                target or None,
            ]
        )
    return rows


def _outcome(table: BranchTable | SiteTable, row: int) -> list[Cell]:
    """Share of mispredictions, cycles and type."""
    from ..lbr import type_name

    mispredicted, timed, kind = int(table.mispredicted[row]), int(table.timed[row]), int(table.type[row])
    return [
        share(mispredicted, mispredicted + int(table.predicted[row])),
        round(int(table.cycles[row]) / timed, 2) if timed else None,
        "several" if kind < 0 else type_name(kind) if kind else None,
    ]


def _place(profile: Profile, module: int, address: int) -> list[Cell]:
    """As people see it, then its parts."""
    return [profile.place(module, address), profile.modules[module].name if module >= 0 else None, f"{address:#x}"]
