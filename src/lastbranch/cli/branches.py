"""``lastbranch branches``."""

from __future__ import annotations

from typing import Any

import click

from .options import Capture, capture_options, filter_options, table_options
from .output import Cell, place, print_rows, share


@click.command()
@capture_options
@filter_options
@table_options
def command(capture: Capture, make_filter: Any, form: str, limit: int) -> int:
    """The hottest branches: from, to, how often, how often mispredicted, cycles since the branch before.

    Places are module+address, the address as linked (docs: addresses). An empty cell means that the processor did not
    tell. --module keeps branches with at least one end in the module.
    """
    from ..analysis import branches
    from ..lbr import type_name

    profile = capture.open()
    table = branches(profile, sample_filter=make_filter(profile))
    recorded = (table.from_address != 0) | (table.to_address != 0) | (table.from_module >= 0)
    empty, total = int(table.count[~recorded].sum()), int(table.count[recorded].sum())
    names = [m.short for m in profile.modules] + [""]
    rows: list[list[Cell]] = []
    for i in recorded.nonzero()[0][: limit or None].tolist():
        count, known, timed = int(table.count[i]), int(table.mispredicted[i] + table.predicted[i]), int(table.timed[i])
        kind = int(table.type[i])
        rows.append(
            [
                place(names[table.from_module[i]], int(table.from_address[i])),
                place(names[table.to_module[i]], int(table.to_address[i])),
                count,
                share(count, total),
                share(int(table.mispredicted[i]), known),
                round(int(table.cycles[i]) / timed, 2) if timed else None,
                "several" if kind < 0 else type_name(kind) if kind else None,
                int(table.in_tx[i]) or None,
                int(table.abort[i]) or None,
            ]
        )
    columns = ["from", "to", "count", "share %", "mispredicted %", "cycles", "type", "in_tx", "aborts"]
    print_rows(columns, rows, form)
    return capture.finish(profile, [f"{empty} entries are empty: nothing was recorded in them"] if empty else [])
