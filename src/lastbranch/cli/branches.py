"""``lastbranch branches``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import Capture, capture_options, filter_options, table_options
from .output import Cell, print_rows, share
from .symbols import symbol_notes, symbol_options

if TYPE_CHECKING:
    from ..model import Profile
    from ..symbols import SymbolOptions

_PARTS = ("from_module", "from_address", "to_module", "to_address")


_NAMES = ("from", "to", "from function", "to function")
_SPARE = ("in_tx", "aborts", {"from": "from function", "to": "to function"}, "type", "cycles")


@click.command()
@capture_options
@filter_options
@symbol_options
@click.option("--no-symbols", is_flag=True, help="Without function names.")
@table_options
def command(capture: Capture, make_filter: Any, symbols: SymbolOptions, no_symbols: bool, form: str, limit: int) -> int:
    """List the hottest branches: counts, mispredictions, cycles.

    Each row shows both ends of a branch, how often it was taken, how often it was mispredicted when taken, and the
    cycles since the previous branch.

    Places are module+address, with the address as linked (docs: addresses). An empty cell, or no column in a table,
    means that the processor did not report it. Functions come last, as name+offset, where symbols are found. csv and
    json have the full path of each module and each address (hexadecimal) in columns of their own. --module keeps the
    branches that begin or end in the module.
    """
    from ..analysis import branches, without_binary
    from ..analysis.naming import Namer
    from ..lbr import type_name
    from ..symbols import Symbolizer

    profile = capture.open()
    chosen = make_filter(profile)
    with capture.reading(profile):
        table = branches(profile, sample_filter=chosen)
    recorded = (table.from_address != 0) | (table.to_address != 0) | (table.from_module >= 0)
    empty, total = int(table.count[~recorded].sum()), int(table.count[recorded].sum())
    rows: list[list[Cell]] = []
    shown = recorded.nonzero()[0][: limit or None]
    symbolizer = None if no_symbols else Symbolizer(profile, symbols)
    namer = Namer(profile, symbolizer)
    process = table.process[shown]
    sources = namer.places(table.from_module[shown], table.from_address[shown], process)
    targets = namer.places(table.to_module[shown], table.to_address[shown], process)
    for i, source, target in zip(shown.tolist(), sources, targets, strict=True):
        count, known, timed = int(table.count[i]), int(table.mispredicted[i] + table.predicted[i]), int(table.timed[i])
        kind = int(table.type[i])
        rows.append(
            [
                *_place(profile, int(table.from_module[i]), int(table.from_address[i])),
                *_place(profile, int(table.to_module[i]), int(table.to_address[i])),
                count,
                share(count, total),
                share(int(table.mispredicted[i]), known),
                round(int(table.cycles[i]) / timed, 2) if timed else None,
                "several" if kind < 0 else type_name(kind) if kind else None,
                int(table.in_tx[i]) or None,
                int(table.abort[i]) or None,
                source or None,
                target or None,
            ]
        )
    columns = ["from", *_PARTS[:2], "to", *_PARTS[2:], "count", "share %", "mispredicted %", "cycles", "type", "in_tx",
               "aborts", "from function", "to function"]  # fmt: skip
    print_rows(columns, rows, form, machine_only=_PARTS, names=_NAMES, spare=_SPARE)
    notes = capture.why_empty(profile, rows) + without_binary(profile, table.from_module[shown], table.to_module[shown])
    if empty:
        notes.append(f"{empty} entries are empty")
    if symbolizer is not None:
        ends = {*table.from_module[shown].tolist(), *table.to_module[shown].tolist()}
        modules = [profile.modules[row] for row in ends if row >= 0]
        said = {f"{module.short}: no names: {module.missing}" for module in modules}  # with the addresses already
        named = symbol_notes(profile, symbolizer, [module.short for module in modules])
        notes += [note for note in named if note not in said]
    return capture.finish(profile, notes)


def _place(profile: Profile, module: int, address: int) -> list[Cell]:
    """As people see it, then its parts."""
    return [profile.place(module, address), profile.modules[module].name if module >= 0 else None, f"{address:#x}"]
