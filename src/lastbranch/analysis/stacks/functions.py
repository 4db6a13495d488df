"""Samples by name: function, inlined function or source line; with callers where stacks exist, and with the
instructions that ranges show as executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays import Sums, Table, distinct, distinct_rows, distinct_stacks, take_rows
from ...errors import NotRecordedError
from ...model import BRANCH, Array, ModuleKind, Profile, SampleBatch, SampleFilter
from ..counting.availability import why_no_ranges, why_no_stacks
from ..counting.bound_pairs import BoundPairs
from ..counting.branch_kinds import CodeOf
from ..counting.count_stacks import EntryCounter, Replacement, StackCounts, count_stacks
from ..counting.count_tables import BranchTable, branch_table
from ..counting.executed import executed_instructions
from ..naming import Label, Namer, View
from ..samples import filtered_batches, period_of
from .call_stacks import CallStacks, StackCounter, StackMaker, Tally, source_of, why_no_call_stacks

if TYPE_CHECKING:
    from ...symbols import Symbolizer

__all__ = ["BranchSums", "NameCounter", "NameTable", "branches_by_function", "fold", "named_stacks", "names"]


@dataclass(slots=True)
class NameTable(Table):
    """One row for each event and name, heaviest first within its event. Equal-length arrays.

    ``event`` int64 row of the events table; ``name`` int64 row of ``labels``; ``samples`` int64 and ``period`` uint64:
    by the sample's own instruction address (*self*), ``period`` meaningless where ``has_period`` (bool) is false;
    ``total`` int64 samples and ``total_period`` uint64 with the name anywhere in their call stack, each sample once,
    ``None`` where there are no call stacks; ``instructions`` int64 executed, by the ranges of branch stacks, ``None``
    where there are no ranges or no code at all; both mean nothing in rows whose event has none of it, or whose code is
    in a binary that is not available (``has_total``, ``has_instructions``, bool). ``stacks`` says what the totals were
    made from; ``notes`` what is missing.
    """

    event: Array
    name: Array
    samples: Array
    period: Array
    has_period: Array
    has_total: Array
    has_instructions: Array
    total: Array | None
    total_period: Array | None
    instructions: Array | None
    labels: list[Label]
    stacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    branches: dict[int, BranchTable] = field(default_factory=dict)
    """By row of each event with branch stacks, on request."""


class NonSymbolMatches(NamedTuple):
    """Places at which code with a wanted name was seen that is no function of a symbol table."""

    inlined: list[Label]
    """Functions that contain the inlined code, the function with most samples and branches first."""
    processes: list[int]
    """Rows of the processes that made it at run time."""


def find_inlined_or_jit(
    profile: Profile, namer: Namer, wanted: str, sample_filter: SampleFilter | None = None
) -> NonSymbolMatches:
    """Find functions that ``wanted`` means and that are inlined or made at run time, at the addresses of samples and of
    the branches of their stacks. Reads the capture."""
    from ...symbols import Function, FunctionTable

    binder, own = profile.binder, Tally(profile)
    for batch in filtered_batches(profile, profile.batches(()), sample_filter):
        none = np.zeros(len(batch), np.uint64)
        own.add(none, binder.scopes(batch), none, batch.ip, np.arange(len(batch) + 1))
    seen = own.result()
    places = [(seen.process, seen.module[seen.frame], seen.address[seen.frame], seen.samples)]
    if why_no_stacks(profile, sample_filter) is None:
        found = count_stacks(profile, ranges=False, details=False, sample_filter=sample_filter).branches
        places.append((found.process, found.a_module, found.a, found.count))
    process, module, address, count = (np.concatenate(column) for column in zip(*places, strict=True))
    rows, offsets = namer.chains("inline", process, module, address)
    labels = [Function(label.name, label.function) for label in namer.labels]
    numbers = np.arange(len(labels), dtype=np.uint64)
    meant = np.zeros(len(labels), bool)
    meant[FunctionTable(numbers, numbers, labels).match(wanted)[1]] = True
    outer = rows[offsets[1:] - 1]
    inside = np.add.reduceat(meant[rows].astype(np.int64), offsets[:-1]) - meant[outer] if len(outer) else outer
    into = np.bincount(outer[inside > 0], count[inside > 0], len(labels))
    heaviest = np.argsort(-into, kind="stable")[: np.count_nonzero(into)]
    kinds = np.array([m.kind is ModuleKind.ANONYMOUS for m in profile.modules] + [False], bool)
    made = distinct(process[meant[outer] & kinds[module] & (process >= 0)])
    return NonSymbolMatches([namer.labels[row] for row in heaviest.tolist()], made.tolist())


_OnNamesResolved = Callable[[NDArray[np.int64], NDArray[np.int64]], None]
"""A callback for the names of some places: rows of labels and their offsets, as `Namer.chains` gives them."""


_SUMS = ("samples", "period", "total", "total_period", "instructions")


@dataclass(slots=True)
class _Sums:
    """Columns of sums by event and name. All places are named at once: symbol files may be read for each time."""

    places: list[tuple[Array, Array, Array]] = field(default_factory=list)
    callbacks: list[_OnNamesResolved] = field(default_factory=list)
    sums: Sums = field(default_factory=lambda: Sums([np.int64] * 2, [np.int64] * len(_SUMS)))

    def when_named(self, process: Array, module: Array, address: Array, on_names_resolved: _OnNamesResolved) -> None:
        """Call ``on_names_resolved`` with the names of these places, later."""
        self.places.append((process, module, address))
        self.callbacks.append(on_names_resolved)

    def name(self, view: View, namer: Namer) -> None:
        rows, offsets = namer.chains(view, *(np.concatenate(c) for c in zip(*self.places, strict=True)))
        at = 0
        for (place, _, _), callback in zip(self.places, self.callbacks, strict=True):
            mine = offsets[at : at + len(place) + 1]
            callback(rows[mine[0] : mine[-1]], mine - mine[0])
            at += len(place)
        self.callbacks.clear()  # each holds these sums: a cycle

    def add(self, event: Array, name: Array, **sums: Array) -> None:
        empty = np.zeros(len(event), np.int64)
        self.sums.add(event, name, *(sums.get(column, empty) for column in _SUMS))


def names(
    profile: Profile,
    view: View,
    symbols: Symbolizer | Namer | None,
    *,
    sample_filter: SampleFilter | None = None,
    totals: bool = True,
    branches: bool = False,
    watch: Callable[[SampleBatch], None] | None = None,
    estimate: Replacement | None = None,
) -> NameTable:
    """Samples, periods and executed instructions by ``view``: ``function``, ``inline`` or ``line``.

    A `Namer` as ``symbols`` shares its ``labels`` with the table, for callers that name more with the same `Namer`.

    Without ``totals`` no call stacks are made, which can be half of the work, and names that are only callers have no
    row. ``branches``: the pass counts them, too (`NameTable.branches`). ``watch`` gets each batch of samples that
    have a row, for what else is to be made of the pass. With an ``estimate`` (`estimate_executions`) instructions and
    branches are counted by executions; samples are time.

    The self columns of ``inline`` and ``line`` are those of the innermost inlined frame. Columns that the capture
    cannot fill are ``None`` in the table, with a note; they raise no error. Modules without names have one row each.
    """
    counter = NameCounter(profile, sample_filter, totals=totals, branches=branches)
    counter.add(profile, watch)
    return counter.result(view, symbols if isinstance(symbols, Namer) else Namer(profile, symbols), estimate)


class NameCounter:
    """Counts for `names` (same arguments): the samples of one profile, or of its parts, one part after the other."""

    def __init__(
        self,
        profile: Profile,
        sample_filter: SampleFilter | None = None,
        *,
        totals: bool = True,
        branches: bool = False,
    ) -> None:
        self._profile, self._filter, self._branches = profile, sample_filter, branches
        self._own, self._notes = Tally(profile), list[str]()
        self._stacks: StackCounter | None = None
        if not totals:
            pass
        elif why := why_no_call_stacks(profile, sample_filter):
            self._notes.append(f"no totals: {why}")
        else:
            self._stacks = StackCounter(profile)
        self._counters, branching = dict[int, EntryCounter](), [e.branch_select is not None for e in profile.events]
        no_stacks = why_no_stacks(profile, sample_filter)
        no_ranges = no_stacks or why_no_ranges(profile, sample_filter)
        if no_ranges and any(branching):
            self._notes.append(f"no instruction counts: {no_ranges}")
        if not no_stacks and (branches or not no_ranges):
            wanted = {"branches": branches, "ranges": not no_ranges, "details": branches}
            rows = np.flatnonzero(branching).tolist()
            self._counters = {row: EntryCounter(profile.binder, **wanted) for row in rows}

    def add(self, profile: Profile, watch: Callable[[SampleBatch], None] | None = None) -> None:
        """Count the samples of ``profile``, whose tables begin with those of the one that the counter was made for, and
        which has its binder."""
        self._profile = profile
        counters, stacks, binder = self._counters, self._stacks, profile.binder
        batches = (
            profile.batches(StackMaker.COLUMNS) if stacks else profile.stacks() if counters else profile.batches(())
        )
        in_modules = SampleFilter(modules=self._filter.modules if self._filter else frozenset())
        for batch in filtered_batches(profile, batches, self._filter, by_address=False):
            for row in distinct(batch.event).tolist() if BRANCH in batch.offsets else ():
                if row in counters:
                    mine = batch.select(np.flatnonzero(batch.event == row)) if (batch.event != row).any() else batch
                    counters[row].add(mine)
            for part in filtered_batches(profile, iter([batch]), in_modules):
                if watch is not None:
                    watch(part)
                scope, one = binder.scopes(part), np.arange(len(part) + 1)
                self._own.add(part.event, scope, period_of(profile, part), part.ip, one)
                if stacks is not None:
                    stacks.add(part)

    def result(
        self, view: View, namer: Namer, estimate: Replacement | None = None, *, goes_on: bool = False
    ) -> NameTable:
        """`names` of what was counted. ``goes_on``: counting does, which takes more memory; not with ``totals``."""
        assert self._stacks is None or not goes_on
        profile, sums, notes, stacks = self._profile, _Sums(), list(self._notes), None
        try:
            stacks = self._stacks.result() if self._stacks else None
        except NotRecordedError as error:
            notes.append(f"no totals: {error}")
        leaves = self._own.result()
        by_event = {row: one.result(self._filter, estimate, goes_on=goes_on) for row, one in self._counters.items()}
        ranges = {row: one.ranges for row, one in by_event.items() if one.ranges is not None and len(one.ranges.count)}
        _own(leaves, sums)
        if stacks is not None:
            _totals(stacks, sums)
        counted, hidden = _instructions(profile, ranges, sums, notes)
        sums.name(view, namer)
        event, name, *values = sums.sums.result()
        columns = dict(zip(_SUMS, values, strict=True))
        order = np.lexsort((-columns["instructions"], -columns["total"], -columns["samples"], event))
        known = np.array([e.has_period or e.period > 0 for e in profile.events], bool)
        stacked = np.array([stacks is not None and bool(source_of(e)[0]) for e in profile.events], bool)
        readable = np.array([label.module not in hidden for label in namer.labels], bool)
        branching = np.array([counted and e.branch_select is not None for e in profile.events], bool)
        event, name, own, period, total, total_period, instructions = (
            c[order] for c in (event, name, *columns.values())
        )
        return NameTable(
            event,
            name,
            own,
            period.astype(np.uint64),
            known[event],
            stacked[event],
            branching[event] & readable[name],
            total if stacks else None,
            total_period.astype(np.uint64) if stacks else None,
            instructions if counted else None,
            namer.labels,
            stacks.sources if stacks else [],
            notes,
            {row: branch_table(profile, one.branches) for row, one in by_event.items()} if self._branches else {},
        )


def _own(own: CallStacks, sums: _Sums) -> None:
    """By the instruction address of the sample."""

    def on_names_resolved(name: Array, offsets: Array) -> None:
        sums.add(own.event, name[offsets[:-1]], samples=own.samples, period=own.period.view(np.int64))

    sums.when_named(own.process, own.module[own.frame], own.address[own.frame], on_names_resolved)


def _totals(stacks: CallStacks, sums: _Sums) -> None:
    """By every name in a stack, once for each."""
    process, frame = _frames(stacks)

    def on_names_resolved(rows: Array, offsets: Array) -> None:
        stack, name = _pairs(*_spread(stacks, process, frame, rows, offsets))
        period = stacks.period[stack].view(np.int64)
        sums.add(stacks.event[stack], name, total=stacks.samples[stack], total_period=period)

    sums.when_named(process, stacks.module[frame], stacks.address[frame], on_names_resolved)


def named_stacks(stacks: CallStacks, view: View, namer: Namer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(stack int64, row of labels int64) of every frame of every stack, leaf first, inlined ones on their own."""
    process, frame = _frames(stacks)
    return _spread(stacks, process, frame, *namer.chains(view, process, stacks.module[frame], stacks.address[frame]))


def _frames(stacks: CallStacks) -> tuple[Array, Array]:
    """The distinct (process, frame) of all stacks, in order."""
    return _pairs(np.repeat(stacks.process, np.diff(stacks.offsets)), stacks.frame)


def _pairs(one: Array, other: Array) -> tuple[Array, Array]:
    """The distinct pairs, in order."""
    rows, _ = distinct_rows(one, other)
    return one[rows], other[rows]


def _spread(
    stacks: CallStacks, process: Array, frame: Array, rows: Array, offsets: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`named_stacks` from the names of `_frames`."""
    stack = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    width = len(stacks.module) + 1
    place = np.searchsorted(process * width + frame, stacks.process[stack] * width + stacks.frame)
    names, bounds = take_rows(rows, offsets, place)
    return np.repeat(stack, np.diff(bounds)), names


def _instructions(
    profile: Profile, ranges: dict[int, BoundPairs], sums: _Sums, notes: list[str]
) -> tuple[bool, set[int]]:
    """By the instructions that were executed, for each event with branch stacks. (whether any code was found, rows of
    modules with ranges whose code was not)."""
    code_of, hidden, seen, modules = CodeOf(profile), 0, 0, set[int]()
    made, generated = np.array([m.kind is ModuleKind.ANONYMOUS for m in profile.modules] + [False]), 0
    for row, bound in ranges.items():
        ran = executed_instructions(profile, bound, code_of)
        hidden, seen = hidden + ran.hidden, seen + int(bound.count.sum())
        generated += int(bound.count[made[bound.a_module]].sum())
        modules |= ran.hidden_modules

        def on_names_resolved(name: Array, offsets: Array, row: int = row, count: Array = ran.count) -> None:
            sums.add(np.full(len(count), row), name[offsets[:-1]], instructions=count)

        sums.when_named(ran.process, ran.module, ran.address, on_names_resolved)
    if generated:
        notes.append(
            f"instructions: {generated} of {seen} ranges are in code generated at run time (JIT), which is in no file"
        )
    if hidden > generated:
        notes.append(
            f"instructions: {hidden - generated} of {seen} ranges are in binaries that are not available (see --symfs)"
        )
    return hidden < seen, modules


# -- Branches by the function that they are in


@dataclass(slots=True)
class BranchSums(Table):
    """Taken branches by function; equal-length int64 arrays.

    ``name`` row of the `Namer`'s labels; ``count``, ``mispredicted``, ``predicted``, ``cycles`` and ``timed`` are the
    sums of these columns of `BranchTable` over the branches that begin in the function.
    """

    name: Array
    count: Array
    mispredicted: Array
    predicted: Array
    cycles: Array
    timed: Array


def branches_by_function(table: BranchTable, namer: Namer) -> BranchSums:
    """The branches of ``table`` that were recorded, by the function that they begin in."""
    recorded = table.take((table.from_address != 0) | (table.from_module >= 0))
    sums = Sums([np.int64], [np.int64] * 5)
    sums.add(
        namer.rows(recorded.process, recorded.from_module, recorded.from_address),
        recorded.count,
        recorded.mispredicted,
        recorded.predicted,
        recorded.cycles,
        recorded.timed,
    )
    return BranchSums(*sums.result())


# -- Counts without samples, by name


@dataclass(slots=True)
class NamedCounts(Table):
    """Counts by function; equal-length int64 arrays, most samples first.

    ``name`` row of the `Namer`'s labels; ``samples`` with their address in the function, taken ``branches`` that begin
    in the function, of which ``mispredicted`` and ``predicted``; ``ranges`` that begin in the function.
    """

    name: Array
    samples: Array
    branches: Array
    mispredicted: Array
    predicted: Array
    ranges: Array


def counts_by_function(counted: StackCounts, namer: Namer) -> NamedCounts:
    """Sum up ``counted`` by function. A `Namer` without symbols knows modules alone."""
    sums, taken, sampled = Sums([np.int64], [np.int64] * 5), counted.branches, counted.sampled

    def add(module: Array, address: Array, **columns: Array) -> None:
        names = namer.rows(np.full(len(module), -1), module, address)
        none = np.zeros(len(module), np.int64)
        sums.add(names, *(columns.get(f.name, none) for f in fields(NamedCounts)[1:]))

    add(sampled.module, sampled.address, samples=sampled.count)
    add(taken.a_module, taken.a, branches=taken.count, mispredicted=taken.mispredicted, predicted=taken.predicted)
    if counted.ranges is not None:
        add(counted.ranges.a_module, counted.ranges.a, ranges=counted.ranges.count)
    found = NamedCounts(*sums.result())
    return found.take(np.lexsort((-found.branches, -found.samples)))


# -- Call stacks by name: equal stacks are merged, and their weights added


Folded = dict[tuple[int, tuple[int, ...]], int]
"""(row of the process, rows of labels from the root to the leaf) -> weight."""


def fold(stacks: CallStacks, namer: Namer, view: View = "function", weight: str = "samples") -> Folded:
    """Sum ``stacks`` over events by process and names, heaviest first.

    ``view`` ``function`` gives one name a frame, ``inline`` each inlined function its own. ``weight`` is ``samples``,
    ``period``, or ``executions`` where ``stacks`` has them. Raises `ValueError` for another.
    """
    weights = {"samples": stacks.samples, "period": stacks.period, "executions": stacks.executions}
    if (added := weights.get(weight)) is None:
        raise ValueError(f"weight = {weight!r}: choose from {', '.join(map(repr, weights))}")
    stack, name = named_stacks(stacks, view, namer)
    offsets = np.searchsorted(stack, np.arange(len(stacks) + 1))
    rows, which = distinct_stacks([stacks.process], name, offsets)
    sums = np.zeros(len(rows), np.uint64)
    np.add.at(sums, which, added.astype(np.uint64))
    labels, bounds = take_rows(name, offsets, rows)
    names, (process, totals) = labels.tolist(), (stacks.process[rows].tolist(), sums.tolist())
    folded = {
        (owner, tuple(reversed(names[lo:hi]))): total
        for owner, total, (lo, hi) in zip(process, totals, pairwise(bounds.tolist()), strict=True)
    }
    return dict(sorted(folded.items(), key=lambda item: -item[1]))
