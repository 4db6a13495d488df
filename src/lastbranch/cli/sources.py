"""``lastbranch sources``."""

from __future__ import annotations

import click

from .options import table_options
from .output import print_rows

_COLUMNS = ("source", "name", "interval", "minimum", "maximum", "default")


@click.command()
@table_options
@click.option("--set", "changes", multiple=True, metavar="NAME=INTERVAL",
              help="Set the interval of a source, for all sessions (again for more).")  # fmt: skip
def command(form: str, limit: int, changes: tuple[str, ...]) -> int:
    """List the profile sources of this machine with their intervals.

    An interval is in events of the source; that of Timer in units of 100 ns.
    """
    from ..etw import profile_interval, profile_sources, set_profile_interval

    found = profile_sources()
    numbers = {source.name.lower(): source.source for source in found} | {str(s.source): s.source for s in found}
    for text in changes:
        name, _, interval = text.partition("=")
        if name.lower() not in numbers or not interval.isdecimal():
            raise click.BadParameter(f"{text!r} is not NAME=INTERVAL of a source that there is", param_hint="--set")
        set_profile_interval(numbers[name.lower()], int(interval))
    rows = [
        (s.source, s.name, profile_interval(s.source), s.minimum, s.maximum, s.default or None)
        for s in (found[:limit] if limit else found)
    ]
    print_rows(_COLUMNS, rows, form)
    if len(rows) < len(found):
        click.echo(f"note: {len(found) - len(rows)} more; --limit 0 shows all", err=True)
    return 0
