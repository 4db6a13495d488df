"""``lastbranch convert``."""

from __future__ import annotations

import click

from .options import (
    LogOptions,
    TimeRange,
    check_new,
    complete_file,
    force_option,
    limit_options,
    log_options,
    pid_option,
    time_option,
)
from .output import print_damage, print_notes
from .progress import stages


@click.command()
@limit_options
@click.argument("paths", metavar="IN... OUT", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--compress/--no-compress", default=None, help="Compress buffers (XPRESS) or not. [default: as IN.etl]")
@time_option("the log's start")
@pid_option
@force_option
@log_options
def command(
    paths: tuple[str, ...],
    compress: bool | None,
    time: TimeRange | None,
    pid: tuple[int, ...],
    force: bool,
    log: LogOptions,
) -> int:
    """Write a capture as OUT.tb5 or OUT.etl; merge and cut logs.

    OUT.tb5 is lastbranch's own format. It holds everything in one capture, and every verb gives the same answers from
    it.

    OUT.etl is a Windows trace log: any capture converted to one, or logs that are recompressed, cut, or merged into one
    time line.

    A capture that is not an .etl, such as a perf.data with branch stacks, must be the only input. Its samples, branch
    records, stacks, processes and mappings become events; a note lists what .etl has no place for.

    The last name is the output; - is standard input. With several inputs, the output has the clock of the one that
    began first. The times of the others are converted by wall time, unless all were recorded during one uptime of one
    machine.

    A cut keeps the processes, threads, images, stack definitions and configuration that the other events need: --time
    keeps those of the whole log, --pid those of the given processes and of the kernel.

    The header event of a log is written anew and is not among the events counted here; verify and info do count it.

    OUT appears when it is complete. Only users who may read every input may read it.
    """
    from ..errors import SelectionError
    from ..formats.registry import format_written_to
    from ..model import visible
    from ..verbs import convert

    if len(paths) < 2:
        raise click.UsageError("give at least one input, then the output")
    *inputs, output = paths
    if not output:
        raise click.BadParameter("the name of the output is empty", param_hint="OUT")
    if output == "-":
        raise click.BadParameter("a capture cannot be written to standard output", param_hint="OUT")
    try:
        format_written_to(output)
    except SelectionError as error:
        raise click.BadParameter(str(error), param_hint="OUT") from None
    check_new(output, force, "OUT")
    start, end = time or (None, None)
    try:
        done = convert(
            inputs, output, compress=compress, start=start, end=end, pids=pid, reading=log.given(), stages=stages(True)
        )
    except SelectionError as error:
        raise click.UsageError(str(error)) from None
    print_notes(done.warnings, "warning")
    print_notes(done.notes)
    code = print_damage(done.damage)
    click.echo(f"{done.summary} to {visible(output)}", err=True)
    return code
