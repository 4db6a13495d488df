"""``lastbranch bind``."""

from __future__ import annotations

import click

from .count import Count
from .options import complete_file
from .output import share


@click.command()
@click.argument("path", metavar="FILE.tb5", shell_complete=complete_file)
@click.option("--stream", type=Count(), help="Only this data stream. [default: every one of samples]")
def command(path: str, stream: int | None) -> int:
    """Find the module, process and thread of each sample of a .tb5.

    They are added to the file itself. What the file has of modules, processes and threads stays as it is; processes and
    threads that it does not list are inferred. Streams that are bound are left alone, unless --stream names one: that
    is an error.
    """
    from ..tb5_binding import bind_stream, sample_streams

    for number in sample_streams(path, bound=False) if stream is None else [stream]:
        done = bind_stream(path, number)
        found = ", ".join(
            f"{share(n, done.samples) or 0} % {what}"
            for what, n in (("module", done.module), ("process", done.process), ("thread", done.thread))
        )
        made = "; processes and threads inferred" if done.processes_made else ""
        click.echo(f"stream {number}: {done.samples} samples bound: {found}{made}", err=True)
    return 0
