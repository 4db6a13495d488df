"""``print_tb5``, a program of its own: the guide's example (2.1)."""

from __future__ import annotations

import click

from .options import Capture

__all__ = ["command", "main"]


@click.command()
@click.argument("path", metavar="TB5FILE")
def command(path: str) -> int:
    """Print what each section of a TB5 file holds. Exit code 1 where it is damaged."""
    from ..model import Profile
    from ..tbrw.files import open_file
    from ..tbrw.listing import lines

    with open_file(path) as file:
        for line in lines(file):
            click.echo(line)
        return Capture(path, None, False).finish(Profile(path, "", damage=file.damage))


def main() -> None:
    """Run the program."""
    from . import run

    run(command, "print_tb5")
