"""The results: hottest branches, ranges, and weights by process, thread or module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import numpy as np

from ...arrays import Ints, Table, distinct, distinct_rows, group
from ...lbr import KIND
from ...model import AddressSpaces, Array, Profile, RowNames, SampleBatch, SampleFilter, Tabular, visible
from ..samples import filtered_batches, period_of
from .bound_pairs import BRANCH_VALUES, NO_PAIRS, BoundPairs
from .count_stacks import Replacement, count_stacks

__all__ = [
    "BranchTable",
    "Key",
    "RangeTable",
    "SiteTable",
    "WeightCounter",
    "WeightTable",
    "branches",
    "merge_processes",
    "ranges",
    "sites",
    "weights",
    "weights_by",
]


Key = Literal["process", "thread", "module"]


@dataclass(slots=True, repr=False)
class BranchTable(Tabular):
    """Distinct branches, hottest first. Arrays of equal length.

    ``from_module``/``to_module`` int64 rows of the modules table, -1 where nothing was mapped: no index, it would be
    the last row (`Profile.place` names a place of any row); ``from_address``/``to_address`` uint64: link addresses (or
    what `docs/concepts/addresses.md` says instead), both 0 with both modules -1 for entries in which nothing was
    recorded; ``count`` int64 entries; ``mispredicted``, ``predicted`` int64 (both 0: the processor did not report it);
    ``cycles`` int64 sum over the ``timed`` entries that have a cycle count; ``in_tx``, ``abort`` int64 entries;
    ``type`` int64 code of `lbr.branch_type`, -1 where entries of one branch disagree; ``process`` int64 row of the
    processes table, -1 where entries are of several or nobody knows.
    """

    from_module: Array
    from_address: Array
    to_module: Array
    to_address: Array
    count: Array
    mispredicted: Array
    predicted: Array
    cycles: Array
    timed: Array
    in_tx: Array
    abort: Array
    type: Array
    process: Array
    not_taken: BoundPairs | None = field(default=None, kw_only=True)
    """Branches that were not taken, which are no rows; ``None`` where none is recorded."""
    row_names: RowNames = field(default_factory=dict, kw_only=True)

    @property
    def recorded(self) -> Array:
        """bool: rows of entries in which something was recorded."""
        rows: Array = (self.from_address != 0) | (self.to_address != 0) | (self.from_module >= 0)
        return rows


@dataclass(slots=True, repr=False)
class RangeTable(Tabular):
    """Distinct fall-through ranges, by module and address: ``start`` and ``end`` are both first bytes of instructions.

    ``module`` int64 row of the modules table, -1 where nothing was mapped (no index: see `Profile.place`); ``start``,
    ``end`` uint64; ``count`` int64. ``broken`` counts what is no range, by reason.
    """

    module: Array
    start: Array
    end: Array
    count: Array
    broken: dict[str, int]
    row_names: RowNames = field(default_factory=dict, kw_only=True)


@dataclass(slots=True, repr=False)
class WeightTable(Tabular):
    """One row for each event and key, heaviest first.

    ``event`` int64 row of the events table; ``key`` int64 row of the requested table, -1 if the sample has no such row
    (never use -1 as an index: NumPy takes the last row); ``samples``, ``entries`` int64; ``period`` uint64 sum,
    meaningless where ``has_period`` (bool, a row) is false: the event has a frequency and samples no period.
    """

    event: Array
    key: Array
    samples: Array
    period: Array
    has_period: Array
    entries: Array
    row_names: RowNames = field(default_factory=dict, kw_only=True)


def merge_processes(bound: BoundPairs, ops: list[np.ufunc] | None = None) -> tuple[list[Array], list[Array]]:
    """([a_module, a, b_module, b], [count, mispredicted, predicted, values...]) summed over processes."""
    values = [bound.count, bound.mispredicted, bound.predicted, *bound.values.values()]
    every = ops if ops is not None else [np.add] * len(values)
    return group([bound.a_module, bound.a, bound.b_module, bound.b], values, every)


def without_binary(profile: Profile, *modules: Array) -> list[str]:
    """A note for each of the ``modules`` (rows) whose addresses are file offsets because its binary is unavailable."""
    rows = sorted({row for part in modules for row in distinct(part).tolist() if row >= 0})
    lacking = [profile.modules[row] for row in rows if profile.modules[row].missing]
    return [f"{visible(module.name)}: offsets, binary {module.missing}" for module in lacking]


def branches(
    profile: Profile, *, sample_filter: SampleFilter | None = None, estimate: Replacement | None = None
) -> BranchTable:
    """The distinct branches of ``profile``, hottest first, summed over processes and events; by their executions with
    an ``estimate`` (`estimate_executions`).

    Raises `NotRecordedError` where the capture has no branch stacks.
    """
    found = count_stacks(
        profile, ranges=False, details=True, sample_filter=sample_filter, by_process=False, estimate=estimate
    )
    return branch_table(profile, found.branches, found.not_taken)


def branch_table(profile: Profile, found: BoundPairs, not_taken: BoundPairs | None = None) -> BranchTable:
    """`branches` from what was ``found`` with the details of `count_stacks`."""
    found.values |= {"process_low": found.process, "process_high": found.process}
    ops = [np.add] * 3 + [*BRANCH_VALUES.values(), np.minimum, np.maximum]
    keys, (count, mispredicted, predicted, *rest) = merge_processes(found, ops)
    values = dict(zip(found.values, rest, strict=True))
    kind, process = (
        np.where(values[f"{name}_low"] == values[f"{name}_high"], values[f"{name}_low"], -1)
        for name in ("type", "process")
    )
    gathered = (values[n] for n in ("cycles", "timed", "in_tx", "abort"))
    columns = [*keys, count, mispredicted, predicted, *gathered, kind, process]
    modules, processes = partial(_modules, profile), partial(_processes, profile)
    names: RowNames = {"from_module": modules, "to_module": modules, "process": processes}
    return BranchTable(*columns, not_taken=not_taken, row_names=names).take(np.argsort(-count, kind="stable"))


def ranges(
    profile: Profile, *, sample_filter: SampleFilter | None = None, estimate: Replacement | None = None
) -> RangeTable:
    """The distinct fall-through ranges of ``profile``, by module and address, summed over processes and events; by
    their executions with an ``estimate``.

    Raises `NotRecordedError` where there are no branch stacks, or no ranges between them (a branch class was filtered
    out, or call-stack mode was on).
    """
    counted = count_stacks(
        profile, ranges=True, details=False, sample_filter=sample_filter, by_process=False, estimate=estimate
    )
    assert counted.ranges is not None
    keys, values = merge_processes(counted.ranges)
    return RangeTable(
        keys[0], keys[1], keys[3], values[0], counted.broken, row_names={"module": partial(_modules, profile)}
    )


def weights(
    profile: Profile,
    by: Key,
    *,
    sample_filter: SampleFilter | None = None,
    watch: Callable[[SampleBatch], None] | None = None,
) -> WeightTable:
    """Samples, periods and branch entries by ``process``, ``thread`` or ``module``, for each event apart.

    A module is that of the sample's instruction address. ``watch`` gets each batch that is counted, for what else is to
    be made of the pass. Raises `ValueError` for another ``by``.
    """
    (table,) = weights_by(profile, (by,), sample_filter=sample_filter, watch=watch)
    return table


def weights_by(
    profile: Profile,
    keys: Sequence[Key],
    *,
    sample_filter: SampleFilter | None = None,
    watch: Callable[[SampleBatch], None] | None = None,
) -> list[WeightTable]:
    """`weights` by each of ``keys``, all of one pass."""
    counter = WeightCounter(profile, keys)
    every = (batch for stream in profile.streams for batch in stream.batches(stream.for_depth))
    for batch in filtered_batches(profile, every, sample_filter):
        counter.add(batch)
        if watch is not None:
            watch(batch)
    return counter.result()


class WeightCounter:
    """Counts the samples of batches by each of ``keys``. Raises `ValueError` for another than `Key` has."""

    def __init__(self, profile: Profile, keys: Sequence[Key]) -> None:
        for by in keys:
            if by not in get_args(Key):
                raise ValueError(f"by = {by!r}: choose from {', '.join(map(repr, get_args(Key)))}")
        self._profile, self._events = profile, len(profile.events)
        none = [np.empty(0, kind) for kind in (np.int64, np.int64, np.uint64, np.int64)]
        self._parts: dict[Key, list[list[Array]]] = {by: [none] for by in keys}

    def add(self, batch: SampleBatch) -> None:
        """Count a batch, which has branch entries where its stream has them."""
        columns = np.ones(len(batch), np.int64), period_of(self._profile, batch), batch.depth
        values = [column * column.dtype.type(self._profile.weight_of(batch)) for column in columns]
        for by, parts in self._parts.items():
            key = rows_of(self._profile.binder, batch, by) + 1
            parts.append(_sum_rows(key * self._events + batch.event, *values))

    def result(self) -> list[WeightTable]:
        """The tables, one for each key, of what was counted until now."""
        profile = self._profile
        known = np.array([e.has_period or e.period > 0 for e in profile.events], bool)
        tables = []
        for by, parts in self._parts.items():
            parts[:] = [_sum_rows(*(np.concatenate(c) for c in zip(*parts, strict=True)))]
            ((number, samples, total, entries),) = parts
            key, event = np.divmod(number, self._events)
            names: RowNames = {"event": lambda: [e.name for e in profile.events], "key": partial(_NAMES[by], profile)}
            table = WeightTable(event, key - 1, samples, total, known[event], entries, row_names=names)
            tables.append(table.take(np.lexsort((-samples, event))))
        return tables


def _modules(profile: Profile) -> list[str]:
    return [module.short for module in profile.modules]


def _processes(profile: Profile) -> list[str]:
    return [f"{process.name} ({process.pid})" for process in profile.processes]


def _threads(profile: Profile) -> list[str]:
    return [f"{thread.name} ({thread.tid})" for thread in profile.threads]


_NAMES = {"process": _processes, "thread": _threads, "module": _modules}


def _sum_rows(number: Array, *values: Array) -> list[Array]:
    """One row for each number (int64, none below 0), and the sums of its values."""
    narrow = number.astype(np.uint16) if number.max(initial=0) < 1 << 16 else number
    (number,), sums = group([narrow], values, [np.add] * len(values))
    return [number.astype(np.int64), *sums]


def rows_of(binder: AddressSpaces, batch: SampleBatch, by: Key) -> Array:
    """The row of each sample in the table ``by``, -1 for samples without a row."""
    scope = binder.scopes(batch)
    match by:
        case "process":
            return binder.process_of(scope)
        case "thread":
            return binder.threads_of(batch, scope)
        case "module":
            return binder.locate(scope, batch.ip)[0]


# -- branches by where they begin


@dataclass(slots=True)
class SiteTable(Table):
    """Distinct branch instructions, hottest first. Arrays of equal length.

    ``module`` int64 row of the modules table (-1 where nothing was mapped) and ``address`` uint64, as in `BranchTable`;
    ``count`` int64 entries; ``targets`` int64 distinct places that it went to; ``to_module``, ``to_address``: the
    target that it went to most often, ``to_count`` int64 times; ``not_taken`` int64 entries in which it went nowhere;
    ``mispredicted``, ``predicted`` int64 of both (both 0: the processor did not report it); ``cycles`` int64 sum over
    the ``timed`` entries; ``type`` int64 code of `lbr.branch_type` and ``process`` int64 row of the processes table, -1
    where entries disagree.
    """

    module: Array
    address: Array
    count: Array
    targets: Array
    to_module: Array
    to_address: Array
    to_count: Array
    not_taken: Array
    mispredicted: Array
    predicted: Array
    cycles: Array
    timed: Array
    type: Array
    process: Array


def sites(table: BranchTable) -> SiteTable:
    """The branches of ``table``, which is hottest first, summed over their targets, and those that were not taken;
    without entries that recorded nothing."""
    table = table.take(table.recorded)
    if (passed := table.not_taken) is None:
        passed = NO_PAIRS
    more, taken = len(passed.count), len(table)

    def both(column: Array, of_passed: Array | int) -> Array:
        return np.concatenate([column, np.broadcast_to(np.asarray(of_passed, column.dtype), more)])

    module, address = both(table.from_module, passed.a_module), both(table.from_address, passed.a)
    first, which = distinct_rows(module, address)  # the first row has the most frequent target

    def total(column: Array, of_passed: Array | int = 0) -> Ints:
        out = np.zeros(len(first), np.int64)
        np.add.at(out, which, both(column, of_passed))
        return out

    def common(column: Array, of_passed: Array | int) -> Array:
        each = both(column, of_passed)
        differs = np.zeros(len(first), bool)
        np.logical_or.at(differs, which, each != each[first][which])
        return np.where(differs, -1, each[first])

    none = np.zeros(taken, np.int64)
    found = SiteTable(
        module=module[first],
        address=address[first],
        count=total(table.count),
        targets=np.bincount(which[:taken], minlength=len(first)),
        to_module=both(table.to_module, -1)[first],
        to_address=both(table.to_address, 0)[first],
        to_count=both(table.count, 0)[first],
        not_taken=total(none, passed.count),
        mispredicted=total(table.mispredicted, passed.mispredicted),
        predicted=total(table.predicted, passed.predicted),
        cycles=total(table.cycles),
        timed=total(table.timed),
        type=common(table.type, KIND["cond"]),
        process=common(table.process, passed.process),
    )
    return found.take(np.argsort(-found.count, kind="stable"))
