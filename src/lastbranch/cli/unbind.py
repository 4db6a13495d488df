"""``lastbranch unbind``."""

from __future__ import annotations

import click

from .count import Count
from .options import complete_file


@click.command()
@click.argument("path", metavar="FILE.tb5", shell_complete=complete_file)
@click.option("--stream", type=Count(), help="Only this data stream. [default: every bound one]")
def command(path: str, stream: int | None) -> int:
    """Take the bind information of a .tb5 away again.

    The file itself is changed. `lastbranch compact` gives its space back.
    """
    from ..tb5_binding import sample_streams, unbind_stream

    for number in sample_streams(path, bound=True) if stream is None else [stream]:
        unbind_stream(path, number)
        click.echo(f"stream {number}: unbound", err=True)
    return 0
