"""``lastbranch report``."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from .options import (
    Capture,
    EstimateChoice,
    captures_options,
    estimate_option,
    filter_options,
    source_root_option,
    table_options,
)
from .output import Cell, print_rows, share, titles_of
from .symbols import brief, line_of, module_of, symbol_notes, symbol_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from ..analysis import Key, NameTable, WeightTable
    from ..analysis.counting.cpu_time import CpuTime
    from ..analysis.naming import View
    from ..analysis.sources import Sources
    from ..analysis.statistics.share_noise import Noise
    from ..model import Array, Profile, SampleBatch, SampleFilter
    from ..symbols import SymbolOptions

VIEWS = ("function", "inline", "line")
_KEYS = {"process": ("pid", "process"), "thread": ("pid", "tid", "thread"), "module": ("module",)}
_OTHERS = "--by shows the same by process, thread, module, inline or line"
_SPARE = ("branch entries", "bursts", "period", "period %", "noise")
_SPARE_NAMES = ("total period", "period", "bursts", "instructions", "total", "period %", "samples", "source", "total %",
                "noise")  # fmt: skip
_MACHINE_ONLY = ("linkage name", "file", "line number")
_COSTS = ("branches", "mispredictions", "share %", "mispredicted %", "cycles lost", "lost %")
_COST_SPARE = ("branches", "lost %", "share %", "source")


@click.command()
@captures_options
@filter_options
@symbol_options
@table_options
@click.option(
    "--by",
    type=click.Choice([*_KEYS, *VIEWS]),
    help="What each row is. [default: function, or module if no names are found]",
)
@click.option(
    "--mispredictions",
    "cost",
    is_flag=True,
    help="Report mispredicted branches, those that cost most first, by function, inline, line or module.",
)
@source_root_option
@estimate_option
def command(
    capture: Capture, make_filter: Any, symbols: SymbolOptions, form: str, limit: int, by: str | None, cost: bool,
    source_root: tuple[str, ...], counts: EstimateChoice,
) -> int:  # fmt: skip
    """Report samples by function, module, process or line.

    Each row covers one event, and --limit applies to each. Without --by, rows are functions, or modules if no function
    has a name.

    By function, by inline (inlined functions on their own) or by line: samples counts the samples whose address is
    there, total those with it anywhere in their call stack, and instructions the instructions executed there, from the
    ranges of branch stacks: as often as they were observed, or executed (--estimate).

    By process or thread: cpu ms is the CPU time that it spent, and cpu % its share of that, where the capture has it
    and samples are not filtered; rows without samples are there, too. A note says what no sample stands for.

    noise is the standard error of samples %, in percentage points. A note says how much longer to record to halve it.
    bursts counts the bursts of a software recording that have samples there: those of one are no independent samples.

    With --mispredictions, branches counts the entries of branch stacks whose outcome is known, and share % is of all
    mispredictions. cycles lost is how much longer the code after them took than the same code after predicted
    branches, and lost % its part of all cycles, where the processor times branches.
    """
    if cost and by in ("process", "thread"):
        raise click.UsageError(f"--mispredictions is by {', '.join(VIEWS)} or module, not by {by}.")
    if cost and counts.executions:
        raise click.UsageError("--mispredictions counts what was observed, without --estimate executions.")
    profile = capture.open()
    chosen = make_filter(profile)
    if cost:
        return _print_mispredictions(capture, profile, chosen, symbols, form, limit, by, source_root)
    notes: list[str] = []
    if by not in _KEYS:
        from ..analysis import names
        from ..analysis.naming import Namer
        from ..analysis.sources import Sources
        from ..analysis.statistics.share_noise import innermost, noise_of_addresses
        from ..symbols import Symbolizer

        symbolizer, estimate = Symbolizer(profile, symbols), counts.of(capture, profile, chosen)
        view, namer, sums = cast("View", by or "function"), Namer(profile, symbolizer), noise_of_addresses(profile)
        spent = _CpuTimes(profile, chosen)
        with capture.reading(profile):
            named = names(profile, view, namer, sample_filter=chosen, estimate=estimate, watch=spent.beside(sums.add))
        noise = sums.of(named.event, named.name, named.samples, partial(innermost, namer, view))
        if by or any(label.function for label in named.labels):
            sources = Sources(profile, source_root)
            rows = _print_names(profile, named, noise, by or "function", sources, form, limit, titles_of(estimate))
            listed = named.name[_first_rows(named.event, limit)]
            shown = {module_of(profile, named.labels[row]) for row in listed.tolist()}
            notes = [*capture.why_empty(profile, rows), *([] if by else [f"by function; {_OTHERS}"])]
            notes += [*(f"totals: {source}" for source in named.stacks), *named.notes, *sources.notes]
            notes += [*counts.notes(estimate), *spent.notes(), *noise.notes]
            lines = by not in (None, "function")
            return capture.finish(profile, notes + symbol_notes(profile, symbolizer, shown, lines=lines))
        by = "module"
        why = "by module, because no function has a name; " if len(named) else "by module; "
        notes = [f"{why}{_OTHERS}", *spent.notes(), *brief(profile, symbolizer.notes)]
    from ..analysis import weights
    from ..analysis.statistics.share_noise import noise_of_rows

    beside = None if notes else _CpuTimes(profile, chosen)
    with capture.reading(profile):
        sums = noise_of_rows(profile, cast("Key", by))
        watch = sums.add if beside is None else beside.beside(sums.add)
        table = weights(profile, cast("Key", by), sample_filter=chosen, watch=watch)
    times = None
    if by != "module" and chosen is None:
        from ..analysis.counting.cpu_time import cpu_time

        times = cpu_time(profile, table, cast("Literal['process', 'thread']", by))
    if times is not None:
        table = times.every_row(table, profile)
    if beside is not None:
        notes += beside.notes()
    noise = sums.of(table.event, table.key, table.samples, lambda key: key)
    rows = _print_weights(profile, table, noise, cast("Key", by), form, limit, times)
    return capture.finish(profile, [*capture.why_empty(profile, rows), *notes, *noise.notes])


class _CpuTimes:
    """What no sample stands for, of a table of something else than processes; nothing where samples are filtered."""

    def __init__(self, profile: Profile, chosen: SampleFilter | None) -> None:
        from ..analysis.counting.count_tables import WeightCounter

        known = chosen is None and any(process.cpu_ns is not None for process in profile.processes)
        self._profile, self._counter = profile, WeightCounter(profile, ("process",)) if known else None

    def beside(self, watch: Callable[[SampleBatch], None]) -> Callable[[SampleBatch], None]:
        """A function that counts a batch, too, beside ``watch``."""
        counter = self._counter
        if counter is None:
            return watch

        def both(batch: SampleBatch) -> None:
            watch(batch)
            counter.add(batch)

        return both

    def notes(self) -> list[str]:
        from ..analysis.counting.cpu_time import cpu_time

        found = cpu_time(self._profile, self._counter.result()[0], "process") if self._counter is not None else None
        return [f"{found.note}"] if found is not None and found.note else []


def _print_mispredictions(
    capture: Capture, profile: Profile, chosen: SampleFilter | None, symbols: SymbolOptions, form: str, limit: int,
    by: str | None, roots: tuple[str, ...],
) -> int:  # fmt: skip
    from ..analysis.counting.mispredictions import cost_note, mispredictions, named
    from ..analysis.naming import Namer
    from ..analysis.sources import Sources
    from ..symbols import Symbolizer

    with capture.reading(profile):
        found, cycles = mispredictions(profile, sample_filter=chosen)
    symbolizer = Symbolizer(profile, symbols) if by != "module" else None
    namer = Namer(profile, symbolizer)
    table = named(found, None if by == "module" else cast("View", by or "function"), namer)
    if not by and not any(namer.labels[row].function for row in table.name.tolist()):
        by, table = "module", named(found, None, namer)
    sources, total = Sources(profile, roots), int(table.mispredicted.sum())
    rows: list[list[Cell]] = []
    for i, row in enumerate(table.name[: limit or None].tolist()):
        label, wrong, lost = namer.labels[row], int(table.mispredicted[i]), round(max(0.0, float(table.lost[i])))
        known = bool(table.timed[i])
        names: list[Cell] = [] if by == "module" else [label.shown(profile)]
        rows.append(
            [
                *([line_of(label)] if by == "line" else []), *names, module_of(profile, label) or "[unknown]",
                int(table.count[i]), wrong, share(wrong, total),
                share(wrong, wrong + int(table.predicted[i])), lost if known else None,
                share(lost, cycles) if known else None, label.name or None, label.file or None, label.line or None,
                sources.line(label.module, label.file, label.line) if by == "line" else None,
            ]
        )  # fmt: skip
    names_of = [] if by == "module" else ["line", "function"] if by == "line" else ["function"]
    columns = [*names_of, "module", *_COSTS, *_MACHINE_ONLY, "source"]
    print_rows(columns, rows, form, machine_only=_MACHINE_ONLY, spare=_COST_SPARE,
               names=(*names_of, "module", "source"))  # fmt: skip
    shown = {module_of(profile, namer.labels[row]) for row in table.name[: limit or None].tolist()}
    notes = [*capture.why_empty(profile, rows), cost_note(found), *sources.notes]
    if symbolizer is not None:
        notes += symbol_notes(profile, symbolizer, shown, lines=by in ("line", "inline"))
    return capture.finish(profile, notes)


def _print_weights(
    profile: Profile, table: WeightTable, noise: Noise, by: Key, form: str, limit: int, spent: CpuTime | None
) -> list[list[Cell]]:
    sums = (table.samples, table.period, table.entries)
    whole = [_by_event(table.event, column, profile) for column in sums]
    rows: list[list[Cell]] = []
    columns, bursts = (table.event, table.key, table.has_period, noise.error, *sums), _bursts(profile, table, noise)
    first = _first_rows(table.event, limit)
    listed = zip(first, *(c[first].tolist() for c in columns), strict=True)
    for i, event, key, has_period, error, *values in listed:
        samples, period, entries = ([value, share(value, of[event])] for value, of in zip(values, whole, strict=True))
        period = period if has_period else [None, None]
        name = profile.events[event].name
        noisy = [bursts[i], round(100 * error, 2)]
        rows.append([name, *_key(profile, by, key), *_time_of(spent, key), *samples, *noisy, *period, *entries])
    times = ["cpu ms", "cpu %"] if spent is not None else []
    names = ["event", *_KEYS[by], *times, "samples", "samples %", "bursts", "noise", "period", "period %",
             "branch entries", "entries %"]  # fmt: skip
    print_rows(names, rows, form, names=("event", *_KEYS[by]), spare=_SPARE)
    return rows


def _time_of(spent: CpuTime | None, key: int) -> list[Cell]:
    """CPU time of a row of a table with such times, and its share of all that is known."""
    if spent is None:
        return []
    ns = int(spent.spent[key]) if key >= 0 else -1
    return [round(ns / 1e6, 3), share(ns, spent.total)] if ns >= 0 else [None, None]


def _first_rows(event: Array, limit: int) -> list[int]:
    """The first ``limit`` rows of each event, 0: all. Events differ in how many samples they have: of two, the rows of
    one would leave no room for the other, which may be the only one with branches."""
    seen, rows = Counter[int](), list[int]()
    for row, one in enumerate(event.tolist()):
        seen[one] += 1
        if not limit or seen[one] <= limit:
            rows.append(row)
    return rows


def _bursts(profile: Profile, table: WeightTable | NameTable, noise: Noise) -> list[int | None]:
    """The bursts that each row was seen in, where its event has any."""
    from ..analysis.statistics.bursts import share_bursts

    shared = share_bursts(profile)
    rows = zip(table.event.tolist(), noise.observed.tolist(), strict=True)
    return [observed if shared[event] else None for event, observed in rows]


def _by_event(event: Array, column: Array | None, profile: Profile) -> list[int]:
    """The sum of a column over all rows of each event."""
    whole = [0] * len(profile.events)
    for row, value in zip(event.tolist(), [] if column is None else column.tolist(), strict=column is not None):
        whole[row] += value
    return whole


def _key(profile: Profile, by: Key, row: int) -> list[Cell]:
    if row < 0:
        return [*[None] * (len(_KEYS[by]) - 1), "[unknown]"]
    if by == "process":
        return [profile.processes[row].pid, profile.processes[row].name]
    if by == "thread":
        thread = profile.threads[row]
        return [profile.processes[thread.process].pid, thread.tid, thread.name]
    return [profile.modules[row].name]


def _print_names(
    profile: Profile, table: NameTable, noise: Noise, by: str, sources: Sources, form: str, limit: int,
    titles: dict[str, str],
) -> list[list[Cell]]:  # fmt: skip
    samples, period, instructions = (
        _by_event(table.event, column, profile) for column in (table.samples, table.period, table.instructions)
    )

    def cells(column: Array | None, i: int, of: list[int], known: Array | bool = True) -> tuple[Cell, Cell]:
        """A sum of row ``i`` and its share of all of the event, where they are ``known``."""
        if column is None or not (known if isinstance(known, bool) else known[i]):
            return None, None
        return int(column[i]), share(int(column[i]), of[int(table.event[i])])

    rows: list[list[Cell]] = []
    periods_of_totals, bursts = table.has_total & table.has_period, _bursts(profile, table, noise)
    for i in _first_rows(table.event, limit):
        label = table.labels[int(table.name[i])]
        line: list[Cell] = [line_of(label)] if by == "line" else []
        rows.append(
            [
                profile.events[int(table.event[i])].name, *line, label.shown(profile), module_of(profile, label),
                *cells(table.samples, i, samples), bursts[i], round(100 * float(noise.error[i]), 2),
                *cells(table.period, i, period, table.has_period),
                *cells(table.total, i, samples, table.has_total),
                cells(table.total_period, i, period, periods_of_totals)[0],
                *cells(table.instructions, i, instructions, table.has_instructions),
                label.name or None, label.file or None, label.line or None,
                sources.line(label.module, label.file, label.line) if by == "line" else None,
            ]
        )  # fmt: skip
    names_of = ["line", "function"] if by == "line" else ["function"]
    columns = ["event", *names_of, "module", "samples", "samples %", "bursts", "noise", "period", "period %", "total",
               "total %", "total period", "instructions", "instructions %", *_MACHINE_ONLY, "source"]  # fmt: skip
    spare, names = (*_SPARE_NAMES, *["module"] * (by == "line")), ("event", *names_of, "module", "source")
    print_rows(columns, rows, form, machine_only=_MACHINE_ONLY, spare=spare, names=names, titles=titles)
    return rows
