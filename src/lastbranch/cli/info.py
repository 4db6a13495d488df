"""``lastbranch info``."""

from __future__ import annotations

import click

from .options import Capture, captures_options, table_options
from .output import print_json, print_rows, print_table


@click.command()
@captures_options
@table_options
def command(capture: Capture, form: str, limit: int) -> int:
    """Describe a capture: recorder, machine, events, losses, binaries.

    It also shows the clock, the records, the fields, and which binaries were found.

    json is one object (docs: info); csv is the same with one key and value per line. --limit applies to modules and, in
    a table, to kinds of records, the most frequent first.
    """
    from ..answers.capture_facts import CaptureFacts

    profile = capture.open()
    found = CaptureFacts.of(profile, limit)
    if form == "json":
        print_json(found.facts)
    elif form == "csv":
        print_rows(("key", "value"), found.leaves(), form)
    else:
        print_table(found.table(), form, wrap=True)
        if modules := found.modules():
            click.echo()
            print_table(modules, form)
        if found.left_out:
            click.echo(f"{found.left_out} more modules; --limit 0 prints all")
    return capture.finish(profile)
