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

    The bind information is added to the file itself. The file's modules, processes and threads stay as they are;
    processes and threads that it does not list are inferred. Bound streams are left alone; to name one with --stream is
    an error.
    """
    from ..tbrw import bind_stream, sample_streams

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
    """Remove the bind information from a .tb5.

    This changes the file itself. `lastbranch compact` reclaims the space.
    """
    from ..tbrw import sample_streams, unbind_stream

    for number in sample_streams(path, bound=True) if stream is None else [stream]:
        unbind_stream(path, number)
        click.echo(f"stream {number}: unbound", err=True)
    return 0


@click.command()
@_FILE
def compact(path: str) -> int:
    """Rewrite a .tb5 without the parts that it no longer uses.

    Unused parts are removed bind information and what crashed writers left. The new file replaces the old one when
    it is complete.
    """
    from ..formats.tb5.writer import compact as rewrite

    click.echo(f"{rewrite(path)} bytes freed", err=True)
    return 0
