"""``lastbranch dump`` and ``consume``: the events of a capture, or of a live trace session, as rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from .options import (
    Count,
    LogOptions,
    TimeRange,
    complete_file,
    file_argument,
    format_option,
    grouped,
    limit_options,
    log_options,
    no_progress_option,
    pid_option,
    stacked,
    time_option,
)
from .output import key, print_damage, print_notes

if TYPE_CHECKING:
    from ..etw import Stream
    from ..formats.dump import Cells, Dump, Wanted
    from ..formats.etl import Reading

COLUMNS = ("time ms", "pid", "tid", "cpu", "event", "size", "fields")
_WIDTHS = (14, 7, 7, 4, -40, 6)
"""Of the columns before the fields: rows are printed as they come. Negative ones are to the left."""
_LINES = 1000
"""Rows that are written together."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events to print, and how."""

    events: tuple[str, ...]
    provider: str | None
    pid: tuple[int, ...]
    time: TimeRange | None
    form: str
    limit: int

    @property
    def names(self) -> frozenset[str]:
        """Names of events in lower case."""
        names = frozenset(name.strip().lower() for text in self.events for name in text.split(",") if name.strip())
        if self.events and not names:
            raise click.BadParameter("no name in it", param_hint="--event")
        return names

    def wanted(self, reading: Reading, guid_of: Callable[[str], object] = str) -> Wanted:
        """The selection. ``guid_of`` knows providers that no manifest of ``reading`` names."""
        from uuid import UUID

        from ..formats.dump import Wanted

        guid = None
        if self.provider is not None:
            provider = str(reading.provider_of(self.provider) or guid_of(self.provider))
            try:
                guid = UUID(provider).bytes_le
            except ValueError:
                raise click.BadParameter(f"{provider!r} is not a GUID", param_hint="--provider") from None
        return Wanted(self.names, guid, frozenset(self.pid), *(self.time or ()))


def asked_options(tasks: str, provider: str, since: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """What `Asked` holds, as the argument ``asked``, and `log_options`."""
    asked = grouped(
        "asked",
        Asked,
        click.option(
            "--event",
            "events",
            multiple=True,
            metavar="NAME,...",
            help=f"Only these events: a task ({tasks}), a whole name, or one without its provider, in upper or lower "
            "case.",
        ),
        click.option("--provider", metavar="GUID|NAME", help=f"Only events of this provider{provider}."),
        pid_option,
        time_option(since),
        format_option("table", "csv", "json", help="Output format; json is a list with one object per line."),
        click.option("--limit", type=Count(), default=0, help="Events to print; 0 prints all.  [default: all]"),
    )
    return stacked(asked, log_options)


@click.command()
@limit_options
@file_argument
@no_progress_option
@asked_options("Process, Image, SAMPLE, MMAP2", " (.etl); names are those of --manifest", "the first event")
def dump(path: str, no_progress: bool, asked: Asked, log: LogOptions) -> int:
    """Print the events of a capture in time order with their fields.

    time ms (time_ms in csv and json) is milliseconds since the first event, with all the decimals that the clock has;
    an event without a time stamp has an empty cell. pid and tid are the process and thread that an event is about, or
    -1 if not known. size is the size of the event's own data in bytes. fields is a list of NAME=VALUE, each cut off
    after 32,768 characters; json has them whole, as an object, with addresses and other bit patterns as hexadecimal
    text.

    .etl: all events, named PROVIDER/TASK/OPCODE; events without a known layout have one field, their payload.
    perf.data: all records, named as in perf_event.h; a sample is SAMPLE, and --event also accepts the name of its
    event. .tb5 and the text of perf script: samples, named likewise, and changes of address spaces: MAP, UNMAP, FORK,
    EXEC, EXIT, NAME.
    """
    reading = log.reading()
    return _dump_file(path, not no_progress, asked, asked.wanted(reading), reading)


@click.command()
@click.argument("source", metavar="NAME|FILE", shell_complete=complete_file)
@click.option("--real-time", is_flag=True, help="NAME is a session, even if a file has the same name.")
@asked_options("Process, Image", "", "the trace began")
def consume(source: str, real_time: bool, asked: Asked, log: LogOptions) -> int:
    """Print the events of a live trace session, or of a file.

    NAME is a session in real-time mode (session start --real-time). Its events are printed as soon as the session
    flushes its buffers, until it stops or you press Ctrl-C; the session never waits for the terminal. A FILE is printed
    as dump prints it; see there for the columns. Providers of EventSource, TraceLogging and manifests can be given by
    name.
    """
    from ..etw import dump_session, is_session, provider_guid

    reading = log.reading()
    wanted = asked.wanted(reading, provider_guid)
    if not (real_time or is_session(source)):
        return _dump_file(source, True, asked, wanted, reading)
    stream, live = dump_session(source, wanted, reading)
    with closing(stream), _ended_by_interrupt(stream):
        if not _print_dump(live, asked, at_once=1):
            print_notes(["no event matched the selection"])
        print_notes(live.notes())
    return 0


@contextmanager
def _ended_by_interrupt(stream: Stream) -> Iterator[None]:
    """Let Ctrl-C end the stream, so that what is printed is complete."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stream.end())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _dump_file(path: str, progress: bool, asked: Asked, wanted: Wanted, reading: Reading) -> int:
    """Print the events of a capture; the exit code."""
    from ..errors import SelectionError
    from ..verbs import dump
    from .progress import bar

    # Between rows on the same terminal a bar would only be in the way.
    shown = click.get_current_context().with_resource(bar("reading", progress and not sys.stdout.isatty()))
    try:
        found = dump(path, wanted, reading=reading, progress=shown)
    except SelectionError as error:
        raise click.BadParameter(str(error), param_hint="--provider") from None
    if not _print_dump(found, asked):
        _nothing(path, wanted, reading)
    print_notes(found.notes())
    return print_damage([(found.name, one) for one in found.damage()])


def _print_dump(dump: Dump, asked: Asked, at_once: int = _LINES) -> bool:
    """Print the events of ``dump``, ``at_once`` with one write; whether there was any."""
    from ..formats.dump import JSON, TEXT

    rows = dump.cells(JSON if asked.form == "json" else TEXT)
    if asked.limit:
        rows = islice(rows, asked.limit)
    seen = False

    def noted() -> Iterator[Cells]:
        nonlocal seen
        for row in rows:
            seen = True
            yield row

    given = noted()
    if at_once == _LINES:  # nothing is printed of what cannot be read; events that come later have their head at once
        first = next(given, None)
        given = given if first is None else chain([first], given)
    _PRINT[asked.form](given, at_once)
    return seen


def _nothing(path: str, wanted: Wanted, reading: Reading) -> None:
    """Say that no event was chosen, and which names of the first events are like those that were asked for."""
    print_notes(["no event matches the selection"])
    if not wanted.events or path == "-":
        return
    from ..model import visible
    from ..verbs import similar_events

    like = similar_events(path, wanted.events, reading)
    if like:
        click.echo(f"hint: events in this capture are called {', '.join(map(visible, like))}", err=True)


# -- the forms: rows go out as they come, many in one write


def _print_table(rows: Iterator[Cells], at_once: int) -> None:
    shown = "  ".join(f"%{width}s" for width in _WIDTHS) + "  %s"
    lines = ((shown % cells).rstrip() for cells in chain([COLUMNS], rows))
    _write((line + "\n" for line in lines), at_once)


def _print_csv(rows: Iterator[Cells], at_once: int) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(key, COLUMNS))
    while part := list(islice(rows, at_once)):
        writer.writerows(part)
        _shown(at_once)


def _print_json(rows: Iterator[Cells], at_once: int) -> None:
    from json import dumps

    shown = "{" + ", ".join(f"{dumps(key(name))}: %s" for name in COLUMNS) + "}"
    first = next(rows, None)
    if first is None:
        sys.stdout.write("[]\n")
        return
    _write(chain(["[\n" + shown % first], (",\n" + shown % cells for cells in rows), ["\n]\n"]), at_once)


def _write(lines: Iterator[str], at_once: int) -> None:
    while part := "".join(islice(lines, at_once)):
        sys.stdout.write(part)
        _shown(at_once)


def _shown(at_once: int) -> None:
    """Events that come one by one are wanted when they come."""
    if at_once < _LINES:
        sys.stdout.flush()


_PRINT: dict[str, Callable[[Iterator[Cells], int], None]] = {
    "table": _print_table,
    "csv": _print_csv,
    "json": _print_json,
}
