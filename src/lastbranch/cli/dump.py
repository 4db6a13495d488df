"""``lastbranch dump``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from .options import Capture, capture_options

if TYPE_CHECKING:
    from decimal import Decimal

    from ..formats.rows import Dump, Row, Wanted

COLUMNS = ("time ms", "pid", "tid", "cpu", "event", "size", "fields")
_WIDTHS = (14, 7, 7, 4, -40, 6)
"""Of the columns before the fields: rows are printed as they come. Negative ones are to the left."""
_LONGEST = 1 << 15
"""Letters of a value in a cell: many readers of csv, Python's among them, take no cell over 128 k."""


@click.command()
@capture_options
@click.option(
    "--event", "events", multiple=True, metavar="NAME,...",
    help="Only these events: a task (Process, Image, SAMPLE, MMAP2), a whole name, or one without its provider, in "
    "upper or lower case.",
)  # fmt: skip
@click.option("--provider", metavar="GUID", help="Only events of this provider (.etl).")
@click.option("--pid", type=int, multiple=True, help="Only this process id (again for more).")
@click.option(
    "--time", metavar="FROM..TO", help="Only these seconds since the first event; either may be missing: 0.5..2"
)
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True,
    help="How to print; json is a list with one object a line.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=0), default=0, help="Events to print; 0 is all.  [default: all]")
def command(
    capture: Capture, events: tuple[str, ...], provider: str | None, pid: tuple[int, ...], time: str | None, form: str,
    limit: int,
) -> int:  # fmt: skip
    """Every event of a capture in time order, with its fields by name.

    time ms is milliseconds since the first event, with all the decimals that the clock has; an event that has no time
    stamp has an empty cell. pid and tid are the process and thread that an event is about, -1 where nobody tells. size
    is the bytes of the event's own data. fields are NAME=VALUE, one after the other, each cut off after 32,768 letters;
    json has them whole, as an object, with addresses and other bit patterns as hexadecimal text.

    .etl: all events, named PROVIDER/TASK/OPCODE; events without a known layout have one field, their payload.
    perf.data: all records, named as in perf_event.h; a sample is SAMPLE, and also goes by the name of its event.
    """
    from ..model import Profile

    dump = _open(capture.path, _wanted(events, provider, pid, time))
    _PRINT[form](islice(dump.rows, limit or None), dump)
    return capture.finish(Profile(dump.name, "", damage=dump.damage()))


def _open(path: str, wanted: Wanted) -> Dump:
    from ..errors import FormatError
    from ..formats.etl import is_etl
    from ..formats.perfdata import is_perfdata
    from ..model import read_at
    from ..opening import open_source

    source = open_source(path)
    start = read_at(source, 0, 128)
    if is_perfdata(start):
        if wanted.provider is not None:
            raise click.BadParameter("events of a perf.data have no provider", param_hint="--provider")
        from ..formats.perfdata.dump import dump_perfdata

        return dump_perfdata(source, wanted)
    if is_etl(start):
        from ..formats.etl.dump import dump_etl

        return dump_etl(source, wanted)
    raise FormatError(
        "not a capture that lastbranch reads" if start else "file is empty",
        file=source.name, offset=0, hint="it reads perf.data and .etl files",
    )  # fmt: skip


def _wanted(events: tuple[str, ...], provider: str | None, pid: tuple[int, ...], time: str | None) -> Wanted:
    from uuid import UUID

    from ..formats.rows import Wanted

    names = frozenset(name.strip().lower() for text in events for name in text.split(",") if name.strip())
    if events and not names:
        raise click.BadParameter("no name in it", param_hint="--event")
    try:
        guid = None if provider is None else UUID(provider).bytes_le
    except ValueError:
        raise click.BadParameter(f"{provider!r} is not a GUID", param_hint="--provider") from None
    start, end = _seconds(time) if time is not None else (None, None)
    return Wanted(names, guid, frozenset(pid), start, end)


def _seconds(text: str) -> tuple[Decimal | None, Decimal | None]:
    from decimal import Decimal, InvalidOperation

    start, dots, end = text.partition("..")
    try:
        first, last = (Decimal(part) if part else None for part in (start, end))
    except InvalidOperation:
        raise click.BadParameter(f"{text!r} is not two numbers of seconds", param_hint="--time") from None
    if not dots or not all(part is None or part.is_finite() for part in (first, last)):
        raise click.BadParameter(f"{text!r} is not FROM..TO, for example 0.5..2", param_hint="--time")
    return first, last


# -- the forms: rows go out one by one


def _cells(row: Row, time: Callable[[int], str]) -> tuple[str, ...]:
    from ..model import visible

    size = "" if row.size is None else str(row.size)
    fields = "; ".join(f"{visible(name)}={_cut(visible(_text(value)))}" for name, value in row.fields.items())
    stamp = "" if row.time is None else time(row.time)
    return stamp, str(row.pid), str(row.tid), str(row.cpu), visible(row.event), size, fields


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...({len(text) - _LONGEST} more)"


def _print_table(rows: Iterable[Row], dump: Dump) -> None:
    from ..formats.rows import milliseconds

    time, write = milliseconds(dump.clock), sys.stdout.write
    for cells in _with_head(_cells(row, time) for row in rows):
        shown = [c.rjust(w) if w > 0 else c.ljust(-w) for c, w in zip(cells, _WIDTHS, strict=False)]
        write("  ".join([*shown, cells[-1]]).rstrip() + "\n")


def _print_csv(rows: Iterable[Row], dump: Dump) -> None:
    import csv

    from ..formats.rows import milliseconds

    time = milliseconds(dump.clock)
    csv.writer(sys.stdout, lineterminator="\n").writerows(_with_head(_cells(row, time) for row in rows))


def _with_head(rows: Iterator[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    yield COLUMNS
    yield from rows


def _print_json(rows: Iterable[Row], dump: Dump) -> None:
    import json

    from ..formats.rows import milliseconds
    from ..model import visible

    time, write = milliseconds(dump.clock), sys.stdout.write
    before = "[\n"
    for row in rows:
        rest = (row.pid, row.tid, row.cpu, visible(row.event), row.size)
        fields = {visible(name): _plain(value) for name, value in row.fields.items()}
        stamp = "null" if row.time is None else time(row.time)  # a JSON number may have all its decimals
        texts = [stamp, *map(json.dumps, rest), json.dumps(fields)]
        pairs = ", ".join(f"{json.dumps(name)}: {text}" for name, text in zip(COLUMNS, texts, strict=True))
        write(f"{before}{{{pairs}}}")
        before = ",\n"
    write("\n]\n" if before != "[\n" else "[]\n")


_PRINT = {"table": _print_table, "csv": _print_csv, "json": _print_json}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return "{" + " ".join(f"{name}={_text(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(part) for part in value) + "]"
    return str(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it: plain numbers and truth values as they are, text where it says more."""
    from ..model import visible

    if value is None or type(value) in (int, bool):
        return value
    if isinstance(value, dict):
        return {visible(str(name)): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if type(value) is float and value - value == 0:  # neither infinite nor NaN, which JSON does not know
        return value
    return visible(_text(value))
