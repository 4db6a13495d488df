"""``lastbranch fleet``: counts of many captures, in a store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, cast

import click

from ..export import COUNTED
from .diff import difference_options, exit_code_of_growth, print_comparison
from .export import Output, output_options
from .group import Group
from .options import (
    complete_file,
    complete_folder,
    grouped,
    limit_options,
    no_progress_option,
    symfs_option,
    table_options,
)
from .output import print_notes, print_table
from .progress import stages
from .query import print_result
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..analysis import Thing
    from ..fleet import Certificates, Selection, Store, StoreReader
    from ..symbols import SymbolOptions

_BY = ("capture", "module", "service", "version", "host", "event", "day")
_LISTED = 20
"""Missing binaries that are named."""

store_argument = click.argument("store", metavar="STORE", shell_complete=complete_folder)


def _day(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """``YYYY-MM-DD``; nothing where none is given."""
    if not value:
        return ""
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a day, for example 2026-07-31", ctx, param) from None


def _weights(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, int]:
    """``SERVICE=N``, each service once."""
    found: dict[str, int] = {}
    for word in value:
        service, sign, number = word.rpartition("=")
        if not sign or not (number.isascii() and number.isdecimal()) or len(number) > 9 or service in found:
            raise click.BadParameter(f"{word!r} is not SERVICE=N, with a whole number, once a service", ctx, param)
        found[service] = int(number)
    return found


def _selection(
    service: tuple[str, ...],
    host: tuple[str, ...],
    version: tuple[str, ...],
    event: tuple[str, ...],
    since: str,
    until: str,
    module: tuple[str, ...],
    weight: dict[str, int],
) -> Selection:
    from ..fleet import Selection

    return Selection(service, host, version, event, (since, until), module, weight)


selection_options = grouped(
    "selection",
    _selection,
    click.option("--service", multiple=True, metavar="NAME", help="Only this service (repeatable; * is any text)."),
    click.option("--host", multiple=True, metavar="NAME", help="Only this host (repeatable; * is any text)."),
    click.option("--version", multiple=True, metavar="NAME", help="Only this version (repeatable; * is any text)."),
    click.option("--event", multiple=True, metavar="NAME", help="Only this event (repeatable; * is any text)."),
    click.option("--since", metavar="DAY", callback=_day, help="Only captures of this day (UTC) and later ones."),
    click.option("--until", metavar="DAY", callback=_day, help="Only captures of this day (UTC) and earlier ones."),
    click.option(
        "--module",
        multiple=True,
        metavar="BUILD-ID|NAME",
        help="Only this module: beginning of its build id, full path, file name, or pattern with * (repeatable).",
    ),
    click.option(
        "--weight",
        multiple=True,
        metavar="SERVICE=N",
        callback=_weights,
        help="Multiply the counts of a service (repeatable).",
    ),
)
"""--service, --host, --version, --event, --since, --until, --module and --weight, as one ``selection`` argument."""


@dataclass(frozen=True, slots=True)
class Work:
    """Who does the work of a verb."""

    processes: int | None
    scheduler: str | None
    certificates: Certificates | None
    progress: bool

    @contextmanager
    def store(self, address: str) -> Iterator[Store]:
        """The store at ``address``, which has its work done there."""
        from ..fleet import Cluster, Processes, Store

        if self.scheduler is None:
            run: Cluster | Processes = Processes(self.processes)
        else:
            run = Cluster(self.scheduler, self.certificates)
        with run:
            yield Store(self.path(address), run, stages(self.progress))

    def path(self, path: str) -> str:
        """``path`` as workers know it."""
        return path if self.scheduler is None or "://" in path else os.path.abspath(path)


def _work(
    workers: int | None,
    scheduler: str | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    no_progress: bool,
) -> Work:
    from ..fleet import Certificates

    files = (tls_ca, tls_cert, tls_key)
    if any(files) and not all(files):
        raise click.UsageError("--tls-ca, --tls-cert and --tls-key go together")
    if workers and scheduler:
        raise click.UsageError("--workers are processes of this machine: a cluster has as many as it was given")
    certificates = Certificates(tls_ca, tls_cert, tls_key) if tls_ca and tls_cert and tls_key else None
    return Work(workers, scheduler, certificates, not no_progress)


work_options = grouped(
    "work",
    _work,
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Have N processes of this machine do the work. [default: one for each of its CPUs]",
    ),
    click.option(
        "--scheduler", metavar="tls://HOST:PORT", help="Have a Dask cluster do the work (docs: fleet on a cluster)."
    ),
    click.option("--tls-ca", metavar="FILE", help="Certificate of the authority of the cluster, PEM."),
    click.option("--tls-cert", metavar="FILE", help="Certificate of this member of the cluster, PEM."),
    click.option("--tls-key", metavar="FILE", help="Key of that certificate, PEM."),
    no_progress_option,
)
"""--workers, --scheduler, --tls-ca, --tls-cert, --tls-key and --no-progress, as one ``work`` argument."""


@click.group(cls=Group, lazy={"agent": "fleet_agent"})
def command() -> None:
    """Counts of many captures: merged exactly, from a store.

    STORE is a folder, or s3://BUCKET/FOLDER, gs:// or az:// (docs: fleet). It has counts of branches and ranges by
    module, and a module is what its build id says, on any host and under any path.
    """


# -- what goes in


@command.command(short_help="Count captures and add them to a store.")
@store_argument
@click.argument("files", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--service", default="", metavar="NAME", help="What the captured programs are a part of.")
@click.option("--version", default="", metavar="NAME", help="Which version of it.")
@click.option("--host", metavar="NAME", help="Where they ran. [default: as the capture has it]")
@click.option(
    "--time",
    metavar="TIME",
    callback=lambda ctx, param, value: _time(ctx, param, value),
    help="When they were recorded: 2026-07-31 or 2026-07-31T12:00 (UTC). [default: as the capture has it, or when the "
    "file was changed last]",
)
@work_options
@limit_options
def add(
    store: str, files: tuple[str, ...], service: str, version: str, host: str | None, time: datetime | None, work: Work
) -> int:
    """Count captures and add them to STORE, which is made if there is none.

    FILE can be a folder, which means the captures directly in it, or a pattern ('logs/**/*.data'). One call adds all of
    its captures or, if it is interrupted, none; the same call then continues where it stopped. A capture is identified
    by its contents and counts once, however often it is added. No binaries are needed.

    A capture that is damaged counts with what can be read; one that cannot be read is named and listed, and the rest is
    done: exit code 1.
    """
    from ..fleet import Labels

    with work.store(store) as there:
        added = there.add([work.path(file) for file in files], Labels(service, version, host, time))
    from ..model import counted, visible

    for path, reason in added.refused.items():
        click.echo(f"warning: {visible(path)}: not counted: {reason.removeprefix(f'{path}: ')}", err=True)
    for path, reason in added.damaged.items():
        click.echo(f"warning: {visible(path)}: {reason}", err=True)
    print_notes(added.notes)
    known = f", {added.known} already counted" if added.known else ""
    refused = f", {len(added.refused)} refused" if added.refused else ""
    click.echo(f"{counted(added.captures, 'capture')} added{known}{refused}", err=True)
    return 1 if added.refused or added.damaged else 0


def _time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        given = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time, for example 2026-07-31T12:00", ctx, param) from None
    return given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)


# -- what comes out


@command.command("list", short_help="List captures, modules, services.")
@store_argument
@selection_options
@click.option("--by", type=click.Choice(_BY), default="capture", show_default=True, help="What each row is.")
@table_options
def list_(store: str, selection: Selection, by: str, form: str, limit: int) -> int:
    """List what is in STORE: captures, with their losses, or what there is of each module, service...

    Captures that were refused are listed with the reason, and damaged ones with what could not be read.
    """
    from ..answers.store_lists import store_list
    from ..fleet import Store

    with Store(store).reading(selection) as reading:
        _, rows = reading.listed(by)
    table = store_list(by, rows, limit)
    print_table(table, form)
    print_notes(table.notes)
    return 0


@command.command(short_help="Run a SELECT statement over a store.")
@store_argument
@click.argument("sql", metavar="SQL")
@selection_options
@table_options
def query(store: str, sql: str, selection: Selection, form: str, limit: int) -> int:
    """Run a SELECT statement over STORE, with DuckDB.

    Tables (docs: fleet store): counts, captures, modules, of what is selected. The statement can read nothing else, and
    write nothing.
    """
    from ..fleet import Store

    with Store(store).reading(selection) as reading:
        columns, rows = reading.query(sql)
        print_result(columns, rows, form, limit)
    return 0


@command.command(short_help="Write the counts of a store for compilers.")
@store_argument
@selection_options
@symfs_option
@symbol_options
@click.option("--to", "name", required=True, type=click.Choice(COUNTED), help="What to write.")
@output_options
def export(
    store: str,
    selection: Selection,
    symfs: str | None,
    symbols: SymbolOptions,
    name: str,
    out: Output,
) -> int:
    """Write what is selected of STORE for compilers, as `lastbranch export` does of one capture.

    Binaries are found by their build ids: below --debug-dir, from debuginfod's servers with --debuginfod, or at their
    own paths if these have the same; those that are missing are listed. With --binary, or one --module, the output is a
    file, else a folder with a file for each module.

    Formats that show samples one by one, or call stacks, need the captures: a store has counts alone.
    """
    from ..answers.names import brief
    from ..export.interface import ExportOptions
    from ..fleet import Store

    with Store(store).reading(selection) as reading:
        counts = reading.counts()
        modules = counts.profile.modules
        if out.binary is None and selection.modules and len(modules) == 1:
            out = replace(out, binary=modules[0].name)
        out.check(name)
        notes = [*counts.find_binaries(symfs, symbols), *counts.scale_notes()]
        done = out.write(counts.profile, name, ExportOptions(symbols=symbols, counted=counts.counted))
    missing = [f"{m.name}: binary {m.missing} ({m.identity or 'no build id'})" for m in modules if m.missing]
    more = [f"{len(missing) - _LISTED} more binaries are missing"] if len(missing) > _LISTED else []
    print_notes([*notes, *brief(counts.profile, done.all_notes), *missing[:_LISTED], *more])
    return out.code(done, 0)


@command.command(short_help="Report functions, modules, or what more captures would change.")
@store_argument
@selection_options
@symfs_option
@symbol_options
@click.option(
    "--by",
    type=click.Choice(("function", "module")),
    help="What each row is. [default: function, or module if no names are found]",
)
@click.option(
    "--saturation", is_flag=True, help="How the profile of each service and module changes with more captures."
)
@table_options
def report(
    store: str,
    selection: Selection,
    symfs: str | None,
    symbols: SymbolOptions,
    by: str | None,
    saturation: bool,
    form: str,
    limit: int,
) -> int:
    """Report what is selected of STORE by function or module.

    Samples are those whose address is there, branches the entries of branch stacks that begin there, and ranges those
    that begin there. Each event has its own rows and shares; --event chooses some of them, --limit applies to each.

    --saturation says whether there are enough captures: which part of the shares of branches half of the captures, a
    quarter and an eighth of them have in common with all. If half of them have 98 %, as many again will change about
    2 %. Captures are drawn by their contents.
    """
    from ..fleet import Store

    with Store(store).reading(selection) as reading:
        if saturation:
            _print_saturation(reading, form, limit)
            return 0
        counts = reading.counts_by_event()
        notes = [*counts.find_binaries(symfs, symbols), *counts.scale_notes()]
        counted = {event.name: counts.counted(event=event.name) for event in counts.profile.events}
    from ..answers.names import Names
    from ..answers.stored_counts import stored_functions

    names = Names(counts.profile, None if by == "module" else symbols)
    table = stored_functions(names, counted, by, limit)
    print_table(table, form)
    print_notes([*notes, *table.notes])
    return 0


def _print_saturation(reading: StoreReader, form: str, limit: int) -> None:
    from ..answers.store_lists import saturation_table

    modules, found = reading.modules(), reading.saturation()[: limit or None]
    names = [modules[one.module][0].short if one.module in modules else None for one in found]
    print_table(saturation_table(found, names), form)


def _side(ctx: click.Context, param: click.Parameter, value: str) -> dict[str, str]:
    """``KEY=VALUE,...``"""
    found: dict[str, str] = {}
    for word in value.split(","):
        key, sign, text = word.partition("=")
        if key not in _SIDES or not sign or key in found:
            raise click.BadParameter(f"{word!r} is not KEY=VALUE; keys are {', '.join(_SIDES)}", ctx, param)
        found[key] = _day(ctx, param, text) if key in ("since", "until", "day") else text
    return found


_SIDES = ("service", "host", "version", "day", "since", "until")


def _of_side(selection: Selection, side: dict[str, str]) -> Selection:
    day = side.get("day", "")
    days = (side.get("since") or day or selection.days[0], side.get("until") or day or selection.days[1])
    return replace(
        selection,
        days=days,
        services=(side["service"],) if "service" in side else selection.services,
        hosts=(side["host"],) if "host" in side else selection.hosts,
        versions=(side["version"],) if "version" in side else selection.versions,
    )


@command.command(short_help="Show what takes a larger or smaller share in B than in A.")
@store_argument
@click.argument("before", metavar="A", callback=_side)
@click.argument("after", metavar="B", callback=_side)
@selection_options
@symfs_option
@symbol_options
@click.option(
    "--by", type=click.Choice(("function", "edge")), default="function", show_default=True, help="What each row is."
)
@difference_options
def diff(
    store: str,
    before: dict[str, str],
    after: dict[str, str],
    selection: Selection,
    symfs: str | None,
    symbols: SymbolOptions,
    by: str,
    rate: float,
    fail_over: float | None,
    form: str,
    limit: int,
) -> int:
    """Show what takes a larger or smaller share in B than in A, two selections of STORE.

    A and B are KEY=VALUE, or several with commas: version=7,service=search. Keys are service, host, version, day, since
    and until. Other options select from both.

    The share of a function is its share of the samples, of an edge its share of the branch entries. Significance is
    that of `lastbranch diff`: the unit is the sample. A sample of a service that an agent recorded for a part of the
    time stands for as many as in `fleet report`, and --weight SERVICE=N for N times that. That changes shares; for the
    test it is still one sample.
    """
    from ..answers.differences import compare_stored
    from ..answers.names import Names
    from ..fleet import Store

    sides, sums, notes, events = [], [], list[str](), set[tuple[str, ...]]()
    for name, side in (("A", before), ("B", after)):
        with Store(store).reading(_of_side(selection, side)) as reading:
            counts = reading.counts(stacks=by == "edge")
            notes += counts.find_binaries(symfs, symbols)
            notes += [f"{name}: {note}" for note in counts.scale_notes()]
            sides.append(Names(counts.profile, symbols))
            sums.append(counts.sums())
            events.add(tuple(event.name for event in counts.profile.events))
    if len(events) > 1 or len(next(iter(events))) > 1:
        several = ", ".join(sorted({name for names in events for name in names}))
        raise click.UsageError(
            f"shares of different events mean different things ({several}): choose with --event NAME"
        )
    ((event,),) = events
    made = compare_stored(sides, sums, event, cast("Thing", by), rate, limit, lines=form == "sarif")
    print_comparison(made, form, limit, fail_over)
    print_notes([made.verdict, *notes, *made.notes])
    return exit_code_of_growth(made, fail_over)


# -- the store itself


_kept_option = click.option(
    "--keep",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Delete objects that have been of no use for so long: those who read now may still need them.",
)


@command.command(short_help="Merge the parts of a store.")
@store_argument
@_kept_option
@work_options
def compact(store: str, keep: float, work: Work) -> int:
    """Merge the parts of STORE, which makes it smaller and questions faster.

    What is in it stays the same. Objects that dead writers have left, and parts that were merged, are deleted after
    --keep hours.
    """
    from ..model import counted

    with work.store(store) as there:
        click.echo(f"{counted(there.compact(keep), 'part')} merged", err=True)
    return 0


@command.command(short_help="Remove old days from a store.")
@store_argument
@click.option(
    "--before",
    metavar="DAY|Nd",
    required=True,
    callback=lambda ctx, param, value: _before(ctx, param, value),
    help="Remove captures of earlier days than this one (UTC), or that are older than N days: 90d.",
)
@_kept_option
def expire(store: str, before: str, keep: float) -> int:
    """Remove old days from STORE.

    Their objects are deleted after --keep hours, by this command or the next `fleet compact`.
    """
    from ..fleet import Store
    from ..model import counted

    click.echo(f"{counted(Store(store).expire(before, keep), 'part')} removed: all before {before}", err=True)
    return 0


def _before(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if days := re.fullmatch(r"(\d{1,5})d", value):
        return (datetime.now(UTC).date() - timedelta(int(days[1]))).isoformat()
    return _day(ctx, param, value)


@command.command(short_help="Check that a store is whole.")
@store_argument
@work_options
def verify(store: str, work: Work) -> int:
    """Read all parts of STORE: is each one there, as it was written?

    Names also what is in its folders and not of it. Exit code 1 if something is damaged or missing.
    """
    from ..model import counted

    with work.store(store) as there:
        found = there.verify()
    for name, reason in found.damaged.items():
        click.echo(f"error: {name}: {reason}", err=True)
    foreign = "not of the store: of another tool, or of a writer that did not finish"
    print_notes(f"{name}: {foreign}" for name in found.foreign)
    click.echo(f"{counted(found.parts, 'part')}, {len(found.damaged)} damaged", err=True)
    return 1 if found.damaged else 0
