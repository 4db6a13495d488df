"""``lastbranch convert``."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import click

from .options import (
    Capture,
    LogOptions,
    TimeRange,
    check_new,
    complete_file,
    force_option,
    limit_options,
    log_options,
    time_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..model import Source

_DAMAGE_SHOWN = 5


@click.command()
@limit_options
@click.argument("paths", metavar="IN... OUT", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--compress/--no-compress", default=None, help="Compress buffers (XPRESS) or not. [default: as IN.etl]")
@time_option("the log's start")
@click.option("--pid", type=int, multiple=True, help="Only this process id (again for more).")
@force_option
@log_options
def command(
    paths: tuple[str, ...], compress: bool | None, time: TimeRange | None, pid: tuple[int, ...], force: bool,
    log: LogOptions,
) -> int:  # fmt: skip
    """Write a capture as OUT.tb5 or OUT.etl; merge and cut logs.

    OUT.tb5 is lastbranch's own store and holds all of one capture; every verb answers from it as from the capture.

    OUT.etl is a Windows trace log: any capture as one, or logs again, compressed or not, cut, merged into one time
    line.

    Another capture than an .etl, as a perf.data with branch stacks, must be the only input. Its samples, branch
    records, stacks, processes and mappings become events; what .etl has no place for is named.

    The last name is the output. Of several inputs, - is standard input, the output has the clock of the one that began
    first; the times of the others are converted by wall time, unless they are of the same uptime of one machine.

    A cut keeps the processes, threads, images, stack definitions and configuration that the other events need: --time
    those of the whole log, --pid those of the given processes and of the kernel.

    The header event of a log is made anew and not among the events that are counted; verify and info count it, too.

    OUT appears when it is complete. Nobody may read it who may not read every input.
    """
    from ..formats.etl import convert
    from ..formats.registry import format_of
    from ..model import visible
    from ..opening import open_source

    if len(paths) < 2:
        raise click.UsageError("give at least one input and, last, the output")
    *inputs, output = paths
    if not output:
        raise click.BadParameter("the name of the output is empty", param_hint="OUT")
    if output == "-":
        raise click.BadParameter("a capture cannot be written to standard output", param_hint="OUT")
    ending = os.path.splitext(output)[1].lower()
    if ending not in (*_LOGS, *_OTHERS):
        raise click.BadParameter(
            f"{output}: a capture becomes lastbranch's store (a name in .tb5) or a trace log (.etl, or without an "
            f"ending), and none in {ending}; `lastbranch export` writes other forms", param_hint="OUT",
        )  # fmt: skip
    check_new(output, force, "OUT")
    other = _OTHERS.get(ending)
    if other is not None:
        if compress is not None or time is not None or pid or len(inputs) > 1:
            raise click.UsageError(f"{output}: of one input as a whole, without --compress, --time and --pid")
        with _as_private_as(inputs):
            return other(inputs[0], output, log)
    sources = [open_source(path) for path in inputs]
    formats = [format_of(source).name for source in sources]
    if len(formats) == 1 and formats[0] != "etl":
        with _as_private_as(inputs):
            return _write(sources[0], output, log, compress=bool(compress), cut=bool(time or pid))
    reading = log.reading()
    with _as_private_as(inputs):
        done = convert(sources, output, compress=compress, seconds=time or (None, None), pids=frozenset(pid),
                       pointer_size=reading.pointer_size)  # fmt: skip
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


@contextmanager
def _as_private_as(inputs: Sequence[str]) -> Iterator[None]:
    """What is made now is as private as ``inputs``: a session's log, or perf's, has mode 0600."""
    closed = [~os.stat(path).st_mode & 0o066 for path in inputs if os.path.isfile(path)]
    before = os.umask(0o077)  # which tells what it is
    os.umask(reduce(or_, closed, before))
    try:
        yield
    finally:
        os.umask(before)


def _write_tb5(path: str, output: str, log: LogOptions) -> int:
    from ..errors import FormatError
    from ..formats.registry import format_of
    from ..formats.tb5 import copy
    from ..model import visible
    from ..opening import open_source
    from ..tb5_binding import write_profile
    from .progress import bar

    if not log.reading() and path != "-" and os.path.isfile(path) and format_of(open_source(path)).name == "tb5":
        try:
            click.echo(f"{copy(open_source(path), output)} tables copied to {visible(output)}", err=True)
        except FormatError as error:
            click.echo(f"warning: {visible(str(error))}", err=True)
            click.echo("note: not copied: damaged samples, user-defined data, custom streams, binding", err=True)
        else:
            return 0
    capture = Capture(path, None, True, log=log)
    profile = capture.open()
    if profile.format == "etl" and os.path.isfile(path):
        from ..analysis.check import check_events
        from ..analysis.findings import FINDINGS

        found = check_events(open_source(path), log.reading())
        profile.findings = [(f.name, f.severity.value, f.seen, f.remedy == FINDINGS[f.name].windows) for f in found]
    with bar("writing", True) as shown:
        write_profile(profile, output, progress=shown)
    click.echo(f"{profile.samples} samples, {profile.entries} branch entries written to {visible(output)}", err=True)
    return capture.finish(profile)


_OTHERS: dict[str, Callable[[str, str, LogOptions], int]] = {".tb5": _write_tb5}
"""Ending of the output -> what writes it, from (input, output, how to read it)."""
_LOGS = ("", ".etl")
"""Endings of trace logs."""


def _write(source: Source, output: str, log: LogOptions, *, compress: bool, cut: bool) -> int:
    """A capture of another format as a trace log."""
    from ..formats.etl import write_profile
    from ..model import visible
    from ..opening import attach_binaries, read_profile

    profile = read_profile(source, reading=log.reading())
    attach_binaries(profile.modules, profile.machine.os_release)  # the log says how they are laid out
    if cut:
        raise click.UsageError("--time and --pid cut .etl files: convert the whole capture first, then that file")
    done = write_profile(profile, output, compress=compress)
    for note in done.notes:
        click.echo(f"note: not in the log: {visible(note)}", err=True)
    for damage in profile.damage[:_DAMAGE_SHOWN]:
        click.echo(f"warning: {visible(f'{source.name}: {damage}')}", err=True)
    click.echo(f"{done.samples} of {profile.samples} samples written to {visible(output)}", err=True)
    return 1 if profile.damage else 0
