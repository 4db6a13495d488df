"""``lastbranch doctor``."""

from __future__ import annotations

import click

from .options import format_options
from .output import print_rows


@click.command()
@format_options
def command(form: str) -> int:
    """Show what this machine can record, and how to enable the rest.

    It shows commands with their scope (this recording, this shell, until the next boot) and never runs them; replace
    the words in capitals. It needs no privileges.
    """
    from ..capture import COLUMNS, examine

    rows = [row for finding in examine() for row in finding.rows]
    if form == "table":  # only the first command is on the line of its capability
        rows = [("", "", "", *row[3:]) if i and row[:3] == rows[i - 1][:3] else row for i, row in enumerate(rows)]
    print_rows(COLUMNS, rows, form, wrap=True)
    return 0
