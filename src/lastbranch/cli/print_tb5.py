"""``print_tb5``, a program of its own: the guide's example (2.1)."""

from __future__ import annotations

import click

from .output import print_damage

__all__ = ["command", "main"]


@click.command()
@click.argument("path", metavar="TB5FILE")
def command(path: str) -> int:
    """Print what each section of a TB5 file holds. Exit code 1 if it is damaged."""
    from ..tbrw import list_lines, open_file

    with open_file(path) as file:
        for line in list_lines(file):
            click.echo(line)
        return print_damage([(path, one) for one in file.damage])


def main() -> None:
    """Run the program."""
    from . import program

    program(command, "print_tb5")
