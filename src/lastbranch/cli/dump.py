"""``lastbranch dump``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from .count import Count
from .options import LogOptions, TimeRange, file_argument, limit_options, log_options, time_option
from .output import key, print_damage, print_notes

if TYPE_CHECKING:
    from ..formats.dump import Cells, Dump, Wanted
    from ..formats.etl import Reading

COLUMNS = ("time ms", "pid", "tid", "cpu", "event", "size", "fields")
_WIDTHS = (14, 7, 7, 4, -40, 6)
"""Of the columns before the fields: rows are printed as they come. Negative ones are to the left."""
_LINES = 1000
"""So many go out together."""


@click.command()
@limit_options
@file_argument
@click.option("--no-progress", is_flag=True, help="No progress on standard error.")
@click.option(
    "--event", "events", multiple=True, metavar="NAME,...",
    help="Only these events: a task (Process, Image, SAMPLE, MMAP2), a whole name, or one without its provider, in "
    "upper or lower case.",
)  # fmt: skip
@click.option(
    "--provider", metavar="GUID|NAME", help="Only events of this provider (.etl); names are those of --manifest."
)
@click.option("--pid", type=int, multiple=True, help="Only this process id (again for more).")
@time_option("the first event")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True,
    help="How to print; json is a list with one object a line.",
)  # fmt: skip
@click.option("--limit", type=Count(), default=0, help="Events to print; 0 is all.  [default: all]")
@log_options
def command(
    path: str, no_progress: bool, events: tuple[str, ...], provider: str | None, pid: tuple[int, ...],
    time: TimeRange | None, form: str, limit: int, log: LogOptions,
) -> int:  # fmt: skip
    """Every event of a capture in time order, with its fields by name.

    time ms (time_ms in csv and json) is milliseconds since the first event, with all the decimals that the clock has;
    an event that has no time stamp has an empty cell. pid and tid are the process and thread that an event is about, -1
    where nobody tells. size is the bytes of the event's own data. fields are NAME=VALUE, one after the other, each cut
    off after 32,768 letters; json has them whole, as an object, with addresses and other bit patterns as hexadecimal
    text.

    .etl: all events, named PROVIDER/TASK/OPCODE; events without a known layout have one field, their payload.
    perf.data: all records, named as in perf_event.h; a sample is SAMPLE, and also goes by the name of its event.
    .tb5 and the text of perf script: samples, named so too, and changes of address spaces: MAP, UNMAP, FORK, EXEC,
    EXIT, NAME.
    """
    reading = log.reading()
    if provider is not None:
        provider = str(reading.provider_of(provider) or provider)
    return dump_file(path, not no_progress, wanted_of(events, provider, pid, time), events, form, limit, reading)


def dump_file(
    path: str, progress: bool, wanted: Wanted, events: tuple[str, ...], form: str, limit: int, reading: Reading
) -> int:
    """What the verb prints, and its exit code. ``events`` are the names that were asked for."""
    from ..errors import SelectionError
    from ..verbs import dump
    from .progress import bar

    # Between rows on the same terminal a bar would only be in the way.
    shown = click.get_current_context().with_resource(bar("reading", progress and not sys.stdout.isatty()))
    try:
        found = dump(path, wanted, reading=reading, progress=shown)
    except SelectionError as error:
        raise click.BadParameter(str(error), param_hint="--provider") from None
    if not print_dump(found, form, limit):
        _nothing(path, events, reading)
    print_notes(found.notes())
    return print_damage([(found.name, one) for one in found.damage()])


def print_dump(dump: Dump, form: str, limit: int, *, at_once: int = _LINES) -> bool:
    """Print the events of ``dump``, ``at_once`` with one write; whether there was any."""
    from ..formats.dump import JSON, TEXT

    rows = dump.cells(JSON if form == "json" else TEXT)
    if limit:
        rows = islice(rows, limit)
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
    _PRINT[form](given, at_once)
    return seen


def _nothing(path: str, events: tuple[str, ...], reading: Reading) -> None:
    """Say that no event was chosen, and which names of the first events are like those that were asked for."""
    click.echo("note: no event is what was asked for", err=True)
    if not events or path == "-":
        return
    from ..model import visible
    from ..verbs import similar_events

    like = similar_events(path, wanted_of(events, None, (), None).events, reading)
    if like:
        click.echo(f"hint: events here are called {', '.join(map(visible, like))}", err=True)


def wanted_of(events: tuple[str, ...], provider: str | None, pid: tuple[int, ...], time: TimeRange | None) -> Wanted:
    from uuid import UUID

    from ..formats.dump import Wanted

    names = frozenset(name.strip().lower() for text in events for name in text.split(",") if name.strip())
    if events and not names:
        raise click.BadParameter("no name in it", param_hint="--event")
    try:
        guid = None if provider is None else UUID(provider).bytes_le
    except ValueError:
        raise click.BadParameter(f"{provider!r} is not a GUID", param_hint="--provider") from None
    return Wanted(names, guid, frozenset(pid), *(time or ()))


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
