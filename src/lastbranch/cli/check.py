"""``lastbranch check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import Capture, capture_options, format_options
from .output import print_table, wrap_text
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..answers.table import Table
    from ..symbols import SymbolOptions


@click.command()
@capture_options
@symbol_options
@format_options
def command(capture: Capture, symbols: SymbolOptions, form: str) -> int:
    """Judge a capture: what is missing or wrong, and how to fix it.

    A finding is an error (the capture cannot answer the questions it was made for), a warning (something is or may be
    missing) or info. Each finding gives its evidence in the capture and a remedy.

    .etl: PMC sampling and group masks, branch records and their triggers, lost events, rundown events, samples outside
    images. perf.data and .tb5: losses, throttling, branch stacks and filters, mappings, build ids. All: damage, too few
    samples, binaries that were deleted, samples without function names, and how far off shares are by chance.

    The exit code is 1 if any finding is an error, else 0.
    """
    from ..analysis.checks.findings import Severity
    from ..answers.capture_facts import find_faults
    from ..model import counted

    found = find_faults(
        [capture.path], symbols, symfs=capture.symfs, folders=capture.folders, reading=capture.log.given()
    )
    if form == "table":
        _print_paragraphs(found)
    else:
        print_table(found, form)
    severities = [row["severity"] for row in found.objects()]
    counts = {severity: severities.count(severity.value) for severity in Severity}
    click.echo(
        ", ".join(counted(n, s.value, "info" if s is Severity.INFO else "") for s, n in counts.items()), err=True
    )
    return 1 if counts[Severity.ERROR] else 0


def _print_paragraphs(found: Table) -> None:
    """Sentences do not fit into columns: three lines for each finding."""
    from ..model import visible

    for severity, name, means, seen, remedy in found.cells():
        for head, text in ((f"{severity}: {name}: ", means), ("  seen:   ", seen), ("  remedy: ", remedy)):
            click.echo(wrap_text(head + visible(str(text)), indent=10))
