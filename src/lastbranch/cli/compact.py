"""``lastbranch compact``."""

from __future__ import annotations

import click


@click.command()
@click.argument("path", metavar="FILE.tb5")
def command(path: str) -> int:
    """Write a .tb5 anew without what is no longer part of it: bind information, and what writers that died left.

    The old file stays until the new one is complete.
    """
    from ..store import compact

    click.echo(f"{compact(path)} bytes freed", err=True)
    return 0
