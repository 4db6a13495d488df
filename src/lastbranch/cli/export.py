"""``lastbranch export``."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..export import EXPORTS, exporter
from .options import Capture, capture_options, filter_options
from .output import writing


@click.command()
@capture_options
@filter_options
@click.option("--to", "name", required=True, type=click.Choice(list(EXPORTS)), help="What to write.")
@click.option("-o", "--output", metavar="OUT", help="File to write; standard output without it.")
def command(capture: Capture, make_filter: Any, name: str, output: str | None) -> int:
    """Write a capture in another form.

    counts: branch and range counts as text, a line each. brstack: the text of `perf script -F ip,brstack`.

    OUT appears when it is complete: a file of that name stays as it is until then.
    """
    profile = capture.open()
    chosen = make_filter(profile)
    export = exporter(name)
    if output is None:
        with capture.reading(profile, printing=True):
            notes = export(profile, sys.stdout.buffer, chosen)
        sys.stdout.buffer.flush()
    else:
        with writing(output) as out, capture.reading(profile):
            notes = export(profile, out, chosen)
    return capture.finish(profile, notes)
