"""``lastbranch convert``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fractions import Fraction

_DAMAGE_SHOWN = 5


@click.command()
@click.argument("paths", metavar="IN.etl... OUT.etl", nargs=-1, required=True)
@click.option("--compress/--no-compress", default=None, help="Compress buffers (XPRESS) or not. [default: as IN.etl]")
@click.option("--time", metavar="FROM..TO", help="Only these seconds since the log's start; either may be missing.")
@click.option("--pid", type=int, multiple=True, help="Only this process id (again for more).")
@click.option("--force", is_flag=True, help="Replace OUT.etl if it exists.")
def command(paths: tuple[str, ...], compress: bool | None, time: str | None, pid: tuple[int, ...], force: bool) -> int:
    """Write Windows trace logs again: compressed or not, cut, several merged into one time line.

    The last name is the output. Of several inputs, - is standard input, the output has the clock of the one that began
    first; the times of the others are converted by wall time, unless they are of the same uptime of one machine.

    A cut keeps the processes, threads, images, stack definitions and configuration that the other events need: --time
    those of the whole log, --pid those of the given processes and of the kernel.

    OUT.etl appears when it is complete.
    """
    from ..formats.etl.transfer import convert
    from ..model import visible
    from ..opening import open_source

    if len(paths) < 2:
        raise click.UsageError("give at least one input and, last, the output")
    *inputs, output = paths
    if output == "-":
        raise click.BadParameter("a trace log cannot be written to standard output", param_hint="OUT.etl")
    if os.path.exists(output) and not force:
        raise click.BadParameter(f"{output} exists; --force replaces it", param_hint="OUT.etl")
    done = convert(
        [open_source(path) for path in inputs], output, compress=compress, seconds=_seconds(time), pids=frozenset(pid)
    )
    if len(inputs) > 1 and done.boots > 1:
        click.echo(
            "note: the inputs are of different uptimes: equal process ids may mean different processes", err=True
        )
    if done.header.events_lost or done.header.buffers_lost:
        lost = f"{done.header.events_lost} events and {done.header.buffers_lost} buffers"
        click.echo(f"note: the recording lost {lost}", err=True)
    for name, damage in done.damage[:_DAMAGE_SHOWN]:
        click.echo(f"warning: {visible(f'{name}: {damage}')}", err=True)
    if len(done.damage) > _DAMAGE_SHOWN:
        click.echo(f"warning: {len(done.damage) - _DAMAGE_SHOWN} more damaged places", err=True)
    click.echo(f"{done.kept} of {done.events} events written to {visible(output)}", err=True)
    return 1 if done.damage else 0


def _seconds(text: str | None) -> tuple[Fraction | None, Fraction | None]:
    from fractions import Fraction

    if text is None:
        return None, None
    start, dots, end = text.partition("..")
    if not dots:
        raise click.BadParameter(f"{text!r} is not FROM..TO, for example 0.5..2", param_hint="--time")
    try:
        first, last = (Fraction(part) if part else None for part in (start, end))
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(f"{text!r} is not two numbers of seconds", param_hint="--time") from None
    return first, last
