"""``tbrw_reader``, a program of its own: the guide's example (2.2)."""

from __future__ import annotations

import click

from .options import check_new, force_option
from .output import print_damage

__all__ = ["command", "main"]


@click.command()
@click.argument("source", metavar="UNBOUND_TB5_FILE")
@click.argument("target", metavar="OUTPUT_FILE_NAME")
@force_option
def command(source: str, target: str, force: bool) -> int:
    """Write what a TB5 file holds to OUTPUT_FILE_NAME, and its samples to UNBOUND_TB5_FILE.dat next to it.

    tbrw_writer makes a TB5 file of the two again. Bindings are left out. The files appear when they are complete. Exit
    code 1 if the TB5 file is damaged.
    """
    from ..tbrw import save_exchange

    try:
        names, damage = save_exchange(source, target, lambda names: check_new(names, force, "OUTPUT_FILE_NAME"))
    except FileExistsError as error:
        raise click.UsageError(f"{error.filename} {error.strerror}") from error
    for name in names:
        click.echo(f"written: {name}", err=True)
    return print_damage([(source, one) for one in damage])


def main() -> None:
    """Run the program."""
    from . import program

    program(command, "tbrw_reader")
