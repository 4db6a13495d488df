"""Tables on standard output, in the form that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from .layout import Cell, Spare, table_lines

if TYPE_CHECKING:
    from ..errors import Damage

__all__ = ["Cell", "key", "print_damage", "print_json", "print_notes", "print_rows", "share"]

_DAMAGE_SHOWN = 5


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], form: str, *, machine_only: Collection[str] = (),
    names: Sequence[str] = (), spare: Sequence[Spare] = (), wrap: bool = False,
) -> None:  # fmt: skip
    """Print ``rows`` as ``table``, ``csv`` (header line first) or ``json`` (a list of objects).

    ``None`` is an empty cell (``null`` in JSON). Text out of files is made visible here. Programs get each column by
    its `key`; people do not get those of ``machine_only``, nor those without a value in any row. The rest is
    how `table_lines` lays out a table.
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
        cells = [[row[i] for i in shown] for row in safe]
        lines = table_lines([columns[i] for i in shown], cells, names=names, spare=spare, wrap=wrap)
        click.echo(click.style(next(lines), bold=os.environ.get("TERM") != "dumb"))
        sys.stdout.writelines(f"{line}\n" for line in lines)


def print_json(value: Any) -> None:
    """Print ``value`` as JSON."""
    import json

    json.dump(value, sys.stdout, indent=1)
    print()


def print_notes(notes: Iterable[str], severity: str = "note") -> None:
    """Print sentences on standard error, each once."""
    from ..model.text import visible

    for note in dict.fromkeys(notes):
        click.echo(f"{severity}: {visible(note)}", err=True)


def print_damage(damage: Sequence[tuple[str, Damage]]) -> int:
    """Print the first damaged places of files (by name) on standard error, and how many more. 1 if any, else 0."""
    from ..model.text import visible

    for name, one in damage[:_DAMAGE_SHOWN]:
        click.echo(f"warning: {visible(f'{name}: {one}')}", err=True)
    if len(damage) > _DAMAGE_SHOWN:
        click.echo(f"warning: {len(damage) - _DAMAGE_SHOWN} more; `lastbranch verify` lists them", err=True)
    return 1 if damage else 0


def key(name: str) -> str:
    """What programs call the column that people see as ``name``: ``share %`` is ``share_percent``."""
    return name.replace("%", "percent").replace(" ", "_")


def share(part: int, whole: int) -> float | None:
    """Percent with two decimals, ``None`` of nothing."""
    return round(100 * part / whole, 2) if whole else None
