"""``tbrw_writer``, a program of its own: the guide's example (2.3)."""

from __future__ import annotations

import click

from .options import check_new, force_option

__all__ = ["command", "main"]


@click.command()
@click.argument("source", metavar="INPUT_DATA_FILE_NAME")
@click.argument("target", metavar="TB5_FILE_NAME")
@force_option
def command(source: str, target: str, force: bool) -> int:
    """Write a TB5 file from what tbrw_reader wrote, by calls of the TBRW API.

    All input is checked first, and the TB5 file appears when it is complete.
    """
    from ..tbrw import load_exchange

    try:
        load_exchange(source, target, lambda name: check_new(name, force, "TB5_FILE_NAME"))
    except FileExistsError as error:
        raise click.UsageError(f"{error.filename} {error.strerror}") from error
    click.echo(f"written: {target}", err=True)
    return 0


def main() -> None:
    """Run the program."""
    from . import program

    program(command, "tbrw_writer")
