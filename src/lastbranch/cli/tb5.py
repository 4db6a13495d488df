"""``lastbranch bind``, ``unbind`` and ``compact``: the verbs that change a .tb5."""

from __future__ import annotations

import click

from .options import Count, complete_file
from .output import share

_FILE = click.argument("path", metavar="FILE.tb5", shell_complete=complete_file)


@click.command()
@_FILE
@click.option("--stream", type=Count(), help="Only this data stream. [default: every one of samples]")
def bind(path: str, stream: int | None) -> int:
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


@click.command()
@_FILE
@click.option("--stream", type=Count(), help="Only this data stream. [default: every bound one]")
def unbind(path: str, stream: int | None) -> int:
    """Take the bind information of a .tb5 away again.

    The file itself is changed. `lastbranch compact` gives its space back.
    """
    from ..tb5_binding import sample_streams, unbind_stream

    for number in sample_streams(path, bound=True) if stream is None else [stream]:
        unbind_stream(path, number)
        click.echo(f"stream {number}: unbound", err=True)
    return 0


@click.command()
@_FILE
def compact(path: str) -> int:
    """Write a .tb5 anew without what is no longer part of it.

    That is bind information that was taken away, and what writers that died left. The new file takes the place of the
    old one when it is complete.
    """
    from ..formats import tb5

    click.echo(f"{tb5.compact(path)} bytes freed", err=True)
    return 0
