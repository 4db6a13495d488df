"""``lastbranch verify``."""

from __future__ import annotations

import click

from .options import Capture, capture_options, format_options
from .output import print_rows
from .progress import stages


@click.command()
@capture_options
@format_options
def command(capture: Capture, form: str) -> int:
    """Read everything in a capture and list the damage.

    For the log of a session it also lists the buffers that the session lost. The exit code is 1 if anything is damaged
    or lost.
    """
    from ..model import counted
    from ..verbs import verify

    found = verify(capture.path, symfs=capture.symfs, reading=capture.log.given(), stages=stages(capture.progress))
    rows: list[tuple[int | None, str | None, str | None, int, str]]
    rows = [(d.offset, d.field, None if d.value is None else str(d.value), d.lost, d.reason) for d in found.damage]
    if found.buffers_lost:
        reason = "the session lost buffers: the disk or the file was full, or a provider corrupted its own buffers"
        rows.append((None, "BuffersLost", str(found.buffers_lost), 0, reason))
    if rows or form != "table":
        print_rows(("offset", "field", "value", "bytes skipped", "damage"), rows, form, wrap=True)
    counts = (
        counted(found.records, "record"),
        counted(found.samples, "sample"),
        counted(found.entries, "branch entry", "branch entries"),
        counted(len(rows), "damaged place"),
    )
    click.echo(", ".join(counts), err=True)
    return 1 if rows else 0
