"""Samples by function, by inlined function or by source line, with callers, instructions and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..analysis import Estimate, NameTable, names
from ..analysis.stacks.functions import branches_by_function
from ..analysis.statistics.bursts import share_bursts
from ..analysis.statistics.share_noise import Noise, innermost, noise_of_addresses
from ..analysis.statistics.significance import ENOUGH
from ..model import Array, Profile, SampleFilter, visible
from .columns import GUESS, Column, TableKind, To
from .estimates import estimate_notes
from .names import EVENT, FILE, FUNCTION, LINE, LINE_NUMBER, LINKAGE_NAME, MODULE, SOURCE, Names, module_of
from .sample_columns import (
    BURSTS,
    NOISE,
    PERIOD,
    PERIOD_SHARE,
    SAMPLES,
    SAMPLES_SHARE,
    UnsampledTime,
    event_sums,
    first_rows,
)
from .table import Known, Ratio, Table, make_table, ratio

if TYPE_CHECKING:
    from ..analysis import Label, Namer, Sources, View

__all__ = [
    "ENOUGH",
    "FUNCTIONS",
    "LINES",
    "FunctionRows",
    "NamedSamples",
    "function_table",
    "samples_by_name",
    "where_to_start",
]


def _instructions(rows: FunctionRows) -> Known | None:
    table = rows.table
    return None if table.instructions is None else Known(table.instructions, table.has_instructions)


def _where_known(values: Array | None, known: Array) -> Known | None:
    return None if values is None else Known(values, known)


def _share_where(values: Array | None, whole: Array, known: Array) -> Ratio | None:
    return None if values is None else Ratio(values, np.where(known, whole, 0))


_BRANCHES = (
    Column(
        name="branches",
        title="branches",
        meaning="taken branches that begin there",
        unit="branches",
        to=To.VIEWER,
        value=lambda rows: rows.branches.count,
    ),
    Column(
        name="mispredicted",
        title="mispredicted %",
        meaning="of the taken branches that begin there",
        unit="%",
        form="percent",
        to=To.VIEWER,
        heat=GUESS,
        value=lambda rows: Ratio(rows.branches.wrong, rows.branches.wrong + rows.branches.right),
    ),
    Column(
        name="cycles",
        title="cycles",
        meaning="from one taken branch to the next, on average",
        unit="cycles",
        form="decimal",
        to=To.VIEWER,
        value=lambda rows: Ratio(rows.branches.cycles, rows.branches.timed),
    ),
)
"""The columns that the viewer counts in the same pass."""

FUNCTIONS = TableKind(
    name="functions",
    row="an event and a function (or an inlined function)",
    columns=(
        EVENT,
        FUNCTION,
        MODULE,
        SAMPLES,
        SAMPLES_SHARE,
        BURSTS,
        NOISE,
        PERIOD,
        PERIOD_SHARE,
        Column(
            name="total",
            title="total",
            meaning="samples with it anywhere in their call stack",
            unit="samples",
            value=lambda rows: _where_known(rows.table.total, rows.table.has_total),
        ),
        Column(
            name="total_share",
            title="total %",
            meaning="of all samples of the event",
            unit="%",
            form="percent",
            heat=100.0,
            rests_on=("total",),
            value=lambda rows: _share_where(rows.table.total, rows.all_samples, rows.table.has_total),
        ),
        Column(
            name="total_period",
            title="total period",
            meaning="the periods of these samples",
            unit="events",
            value=lambda rows: _where_known(rows.table.total_period, rows.table.has_total & rows.has_period),
        ),
        Column(
            name="instructions",
            title="instructions",
            unit="instructions",
            to=To.ALL,
            value=_instructions,
            meaning="executed instructions, computed from the ranges of branch stacks: as observed, or as estimated",
        ),
        Column(
            name="instructions_share",
            title="instructions %",
            meaning="of all instructions of the event",
            unit="%",
            form="percent",
            heat=100.0,
            by_basis="instructions % by {}",
            value=lambda rows: _share_where(
                rows.table.instructions, rows.all_instructions, rows.table.has_instructions
            ),
        ),
        *_BRANCHES,
        LINKAGE_NAME,
        FILE,
        LINE_NUMBER,
        SOURCE,
    ),
    last=("event_name", "function", "module", "source"),
    spare=(
        "total_period",
        "period",
        "bursts",
        "instructions",
        "total",
        "period_share",
        "samples",
        "source",
        "total_share",
        "noise",
    ),
)
"""`report --by function` and `inline`, and the viewer's first screen."""

LINES = replace(
    FUNCTIONS,
    name="lines",
    row="an event and a source line",
    columns=(EVENT, LINE, *FUNCTIONS.columns[1:]),
    last=("event_name", "line", "function", "module", "source"),
    spare=(*FUNCTIONS.spare, "module"),
)
"""`report --by line`."""


@dataclass(frozen=True, slots=True)
class BranchNumbers:
    """Sums for each row, float64: branches, mispredicted and predicted branches, cycles, and branches with cycles."""

    count: NDArray[np.float64]
    wrong: NDArray[np.float64]
    right: NDArray[np.float64]
    cycles: NDArray[np.float64]
    timed: NDArray[np.float64]

    def take(self, rows: Array) -> BranchNumbers:
        return BranchNumbers(
            *(column[rows] for column in (self.count, self.wrong, self.right, self.cycles, self.timed))
        )


@dataclass(slots=True)
class FunctionRows:
    """Rows of `FUNCTIONS`: those of ``table``, and columns that are not in it, in its order.

    ``error`` and ``observed`` are those of the noise; ``shared`` bool: the samples of the event come in bursts;
    ``all_samples``, ``all_period`` and ``all_instructions``: the sums of the event.
    """

    profile: Profile
    table: NameTable
    error: Array
    observed: Array
    shared: Array
    all_samples: Array
    all_period: Array
    all_instructions: Array
    branches: BranchNumbers
    sources: Sources | None = None

    def take(self, rows: Sequence[int] | Array) -> FunctionRows:
        """Some of the rows."""
        rows = np.asarray(rows, np.int64)
        columns = ("error", "observed", "shared", "all_samples", "all_period", "all_instructions")
        taken = {name: getattr(self, name)[rows] for name in columns}
        return replace(self, table=self.table.take(rows), branches=self.branches.take(rows), **taken)

    @property
    def labels(self) -> list[Label]:
        return [self.table.labels[name] for name in self.table.name.tolist()]

    @property
    def event(self) -> Array:
        return self.table.event

    @property
    def samples(self) -> Array:
        return self.table.samples

    @property
    def period(self) -> Array:
        return self.table.period

    @property
    def has_period(self) -> Array:
        return self.table.has_period

    @classmethod
    def of(cls, profile: Profile, table: NameTable, noise: Noise, namer: Namer) -> FunctionRows:
        """All rows of what was counted."""
        samples, period, executed = (
            event_sums(table.event, c) for c in (table.samples, table.period, table.instructions)
        )
        shared = share_bursts(profile)[table.event]
        branches = _branch_numbers(namer, table)
        return cls(profile, table, noise.error, noise.observed, shared, samples, period, executed, branches)


def _branch_numbers(namer: Namer, table: NameTable) -> BranchNumbers:
    """All NaN in rows of an event without branch stacks, 0 in functions that no recorded branch begins in."""
    fields = ("count", "mispredicted", "predicted", "cycles", "timed")
    columns = [np.full(len(table), np.nan) for _ in fields]
    for event, branches in table.branches.items():
        sums = branches_by_function(branches, namer)
        found = np.full(len(table.labels), -1)
        found[sums.name] = np.arange(len(sums))
        mine = np.flatnonzero(table.event == event)
        at = found[table.name[mine]]
        for column, field in zip(columns, fields, strict=True):
            values = getattr(sums, field)
            column[mine] = np.where(at >= 0, values[at], 0) if len(values) else 0
    return BranchNumbers(*columns)


def function_table(rows: FunctionRows, estimate: Estimate, *, lines: bool = False) -> Table:
    """The table of ``rows``, which are source ``lines`` or functions, counted as ``estimate`` says."""
    return make_table(LINES if lines else FUNCTIONS, rows, len(rows.table), estimate)


# -- `report`


@dataclass(slots=True)
class NamedSamples:
    """The counts of a pass over the samples by ``view``, with their names."""

    names: Names
    view: View
    counted: NameTable
    noise: Noise
    estimate: Estimate
    time_notes: list[str]
    """Notes about CPU time without samples."""

    @property
    def named(self) -> bool:
        """Whether any function has a name."""
        return any(label.function for label in self.counted.labels)

    def table(self, limit: int, source_roots: Sequence[str]) -> Table:
        """The table: the first ``limit`` rows of each event, 0: all."""
        from ..analysis import Sources

        profile, counted, names = self.names.profile, self.counted, self.names
        rows = FunctionRows.of(profile, counted, self.noise, names.namer).take(first_rows(counted.event, limit))
        sources = Sources(profile, source_roots)
        rows.sources = sources if self.view == "line" else None
        found = function_table(rows, self.estimate, lines=self.view == "line")
        found.notes = [*(f"totals: {source}" for source in counted.stacks), *counted.notes, *sources.notes]
        found.notes += [*estimate_notes(self.estimate), *self.time_notes, *self.noise.notes]
        return found

    def name_notes(self, limit: int, *, lines: bool) -> list[str]:
        """Notes on names of the rows of `table`."""
        shown = self.counted.name[first_rows(self.counted.event, limit)]
        modules = {module_of(self.names.profile, self.counted.labels[row]) for row in shown.tolist()}
        return self.names.notes(modules, lines=lines)


def samples_by_name(
    names_of: Names, view: View, sample_filter: SampleFilter | None, estimate: Estimate
) -> NamedSamples:
    """Count samples by ``view`` in one pass, with instructions as ``estimate`` says."""
    profile, namer = names_of.profile, names_of.namer
    sums, spent = noise_of_addresses(profile), UnsampledTime(profile, sample_filter)
    watch = spent.beside(sums.add)
    found = names(profile, view, namer, sample_filter=sample_filter, estimate=estimate, watch=watch)
    noise = sums.of(found.event, found.name, found.samples, partial(innermost, namer, view))
    return NamedSamples(names_of, view, found, noise, estimate, spent.notes)


# -- What to look at first

_OFTEN_WRONG = 0.05
"""Share of a function's branches that are mispredicted from which `where_to_start` speaks of it."""


def where_to_start(rows: FunctionRows) -> str:
    """One sentence about all rows of a capture: what to look at first, and why."""
    samples, event, labels, profile = rows.samples, rows.event, rows.labels, rows.profile
    if not len(samples) or not samples.sum():
        return "No sample passes the filters." if profile.samples else "The capture has no samples."
    main = int(np.bincount(event, samples).argmax())
    top = int(np.flatnonzero(event == main)[0])  # the heaviest of its event
    whole = int(samples[event == main].sum())
    name, share = visible(labels[top].shown(profile)), int(samples[top]) / max(1, whole)
    if whole < ENOUGH:
        return f"Only {whole} samples: shares mean little. {name} has {int(samples[top])} of them."
    count, wrong = rows.branches.count, ratio(rows.branches.wrong, rows.branches.wrong + rows.branches.right)
    several = len(set(event.tolist())) > 1
    of = f" of the samples of {visible(profile.events[main].name)}" if several else " of the samples"
    sentence = f"Start with {name}: {share:.0%}{of}"
    if count[top] >= ENOUGH and wrong[top] >= _OFTEN_WRONG:
        return f"{sentence}, and {wrong[top]:.1%} of the branches taken in it were mispredicted."
    mapped = np.array([label.module >= 0 for label in labels], bool)
    costly = np.where((count >= ENOUGH) & mapped, wrong * count, np.nan)
    if not np.isnan(costly).all() and wrong[worst := int(np.nanargmax(costly))] >= _OFTEN_WRONG:
        name = visible(labels[worst].shown(profile))
        return f"{sentence}. Then {name}: {wrong[worst]:.1%} of its branches were mispredicted."
    return f"{sentence}."
