"""``lastbranch compact``."""

from __future__ import annotations

import click

from .options import complete_file


@click.command()
@click.argument("path", metavar="FILE.tb5", shell_complete=complete_file)
def command(path: str) -> int:
    """Write a .tb5 anew without what is no longer part of it.

    That is bind information that was taken away, and what writers that died left. The new file takes the place of the
    old one when it is complete.
    """
    from ..formats.tb5 import compact

    click.echo(f"{compact(path)} bytes freed", err=True)
    return 0
