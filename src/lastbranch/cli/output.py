"""Tables on standard output, in the form that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

__all__ = ["Cell", "key", "print_json", "print_rows", "share"]

Cell = str | int | float | bool | None


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], form: str, *, machine_only: Collection[str] = ()
) -> None:
    """Print ``rows`` as ``table``, ``csv`` (header line first) or ``json`` (a list of objects).

    ``None`` is an empty cell (``null`` in JSON). Text out of files is made visible here. Programs get each column by
    its `key`; people do not get those of ``machine_only``, nor those without a value in any row.
    """
    from ..model import visible

    made = ([visible(c) if isinstance(c, str) else c for c in row] for row in rows)
    safe: Iterable[list[Cell]] = made if form == "csv" else list(made)  # csv goes out as it comes
    keys = [key(name) for name in columns]
    if form == "json":
        print_json([dict(zip(keys, row, strict=True)) for row in safe])
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(keys)
        writer.writerows(safe)
    else:
        shown = [
            i for i, name in enumerate(columns)
            if name not in machine_only and (not safe or any(row[i] is not None for row in safe))
        ]  # fmt: skip
        _print_table([columns[i] for i in shown], [[row[i] for i in shown] for row in safe])


def print_json(value: Any) -> None:
    """Print ``value`` as JSON."""
    import json

    json.dump(value, sys.stdout, indent=1)
    print()


def key(name: str) -> str:
    """What programs call the column that people see as ``name``: ``share %`` is ``share_percent``."""
    return name.replace("%", "percent").replace(" ", "_")


def _print_table(columns: Sequence[str], rows: list[list[Cell]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        numbers = any(isinstance(row[i], int | float) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    # A row is one line, however long: names that are cut off are of no use, and a terminal wraps by itself.
    console = Console(width=100_000, height=100, highlight=False)
    with console.capture() as drawn:  # rich ends the program itself where the pipe is closed
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in drawn.get().removesuffix("\n").split("\n"))


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else ""
    if isinstance(cell, float):
        return f"{cell:.2f}"
    return str(cell)


def share(part: int, whole: int) -> float | None:
    """Percent with two decimals, ``None`` of nothing."""
    return round(100 * part / whole, 2) if whole else None
