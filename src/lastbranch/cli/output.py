"""Tables on standard output, in the form that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

__all__ = ["Cell", "print_rows", "share"]

Cell = str | int | float | bool | None


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Cell]], form: str) -> None:
    """Print ``rows`` as ``table``, ``csv`` (header line first) or ``json`` (a list of objects).

    ``None`` is an empty cell (``null`` in JSON). Text from files must be made visible by the caller only for tables and
    csv files that go to a terminal: that is done here.
    """
    from ..model import visible

    safe = ([visible(c) if isinstance(c, str) else c for c in row] for row in rows)
    if form == "json":
        import json

        json.dump([dict(zip(columns, row, strict=True)) for row in safe], sys.stdout, indent=1)
        print()
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(safe)
    else:
        _print_table(columns, list(safe))


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
    sys.stdout.write(drawn.get())


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
