"""``lastbranch verify``."""

from __future__ import annotations

import click

from .options import Capture, capture_options, format_options
from .output import print_rows


@click.command()
@capture_options
@format_options
def command(capture: Capture, form: str) -> int:
    """Walk everything in a capture and say what is damaged.

    Of a session's log it also says which buffers the session lost. Exit code 1 if anything is damaged or lost.
    """
    profile = capture.open()
    samples = entries = 0
    with capture.reading(profile):
        for batch in profile.batches():
            samples += len(batch)
            entries += batch.entries
    if profile.format == "tb5":  # samples are not all that there is
        from ..formats.tb5 import Tb5File
        from ..formats.tb5.verification import verify
        from ..opening import open_source

        with Tb5File(open_source(capture.path)) as file:
            profile.damage += [d for d in verify(file) if d not in profile.damage]
    rows: list[tuple[int | None, str | None, str | None, int, str]]
    rows = [(d.offset, d.field, None if d.value is None else str(d.value), d.lost, d.reason) for d in profile.damage]
    if buffers := profile.lost.get("buffers"):
        reason = "the session lost buffers: the disk or the file was full, or a provider damaged its own"
        rows.append((None, "BuffersLost", str(buffers), 0, reason))
    if rows or form != "table":
        print_rows(("offset", "field", "value", "bytes skipped", "damage"), rows, form, wrap=True)
    records = sum(profile.records.values())
    click.echo(f"{records} records, {samples} samples, {entries} branch entries, {len(rows)} damaged places", err=True)
    return 1 if rows else 0
