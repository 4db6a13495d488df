"""``tbrw_reader``, a program of its own: the guide's example (2.2)."""

from __future__ import annotations

import click

__all__ = ["command", "main"]


@click.command()
@click.argument("source", metavar="UNBOUND_TB5_FILE")
@click.argument("target", metavar="OUTPUT_FILE_NAME")
def command(source: str, target: str) -> int:
    """Write what a TB5 file holds to OUTPUT_FILE_NAME, and its samples to UNBOUND_TB5_FILE.dat beside that.

    tbrw_writer makes a TB5 file of the two again. What binding added is left out.
    """
    from ..tbrw.transfer import save

    for name in save(source, target):
        click.echo(f"written: {name}", err=True)
    return 0


def main() -> None:
    """Run the program."""
    from . import run

    run(command, "tbrw_reader")
