"""Counts of a recording that still runs: since its start, and since the last snapshot.

Samples are counted and let go. Only sums by address are kept, for at most `MOST_ROWS` addresses or pairs of addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...arrays import Ints, SortKey, StackSums, Table, distinct, group_unordered, lowest_rows
from ...bind import Binder
from ...model import Array, Profile, SampleBatch
from ..counting.availability import why_no_ranges, why_no_stacks
from ..counting.bound_pairs import BRANCH_VALUES, BoundColumns, BoundPairs
from ..counting.count_stacks import EntryCounter
from ..counting.count_tables import BranchTable, branch_table
from ..function.annotation import Annotation, annotate_counts
from ..naming import Label, Namer, Place
from .bound_counter import SEVERAL, SUMS, BoundCounter, CounterTables, PagedSpaces

__all__ = [
    "LiveFunctions",
    "MOST_ROWS",
    "Order",
    "RunningCounts",
    "Snapshot",
]


MOST_ROWS = 1 << 18
"""Rows of each table; beyond it the rarer half of them is one sum."""
_ADDED = np.add
_PAIR, _BRANCH_SUMS = 4, 3 + sum(op is _ADDED for op in BRANCH_VALUES.values())
"""Columns of a table of pairs: keys, and sums of branches; it has the lowest and the highest type and process, too."""


class _Totals:
    """Rows with equal keys, added up part after part. The last ``values`` are ``lows`` and ``highs``: their lowest or
    highest value is kept."""

    def __init__(self, keys: int, values: int, lows: int = 0, highs: int = 0) -> None:
        self._sums = StackSums(keys, values, lows, highs)
        self.left_out = 0
        """The sum of the first value over rows that there was no room for."""

    def add(self, keys: Sequence[Array], values: Sequence[Array]) -> None:
        self._add(keys, values)
        if self._sums.size > MOST_ROWS:
            found = self._sums.take()
            keys, values = list(found.keys), list(found.values)
            if len(values[0]) > MOST_ROWS:
                order = np.argsort(-values[0], kind="stable")
                kept = np.sort(order[: MOST_ROWS // 2])
                self.left_out += int(values[0].sum() - values[0][kept].sum())
                keys, values = [c[kept] for c in keys], [c[kept] for c in values]
            self._add(keys, values)

    def _add(self, keys: Sequence[Array], values: Sequence[Array]) -> None:
        self._sums.add(keys, _NO_FRAMES, np.zeros(len(keys[0]) + 1, np.int64), values)

    def rows(self) -> tuple[list[Array], list[Array]]:
        """The distinct keys, in the order in which they came, and their values: int64."""
        found = self._sums.read()
        return list(found.keys), list(found.values)


_NO_FRAMES = np.empty(0, np.uint64)


class _StableSpaces:
    """`Spaces` of binders that replace each other: a process keeps its number."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], int] = {}
        self._number = np.empty(0, np.int64)
        self._row: dict[int, int] = {}

    def replace(self, profile: Profile) -> None:
        assert isinstance(profile.binder, Binder)
        self._binder: PagedSpaces = profile.binder
        lives = [(process.pid, process.start) for process in profile.processes]
        self._number = np.array([self._known.setdefault(life, len(self._known)) for life in lives] + [-1], np.int64)
        self._row = {number: row for row, number in enumerate(self._number[:-1].tolist())}

    def rows_of(self, number: Array) -> Array:
        """int64: rows of the processes table, as it is now."""
        row = np.full(len(self._known) + 1, -1, np.int64)
        row[list(self._row)] = list(self._row.values())
        return np.asarray(row[number])

    def scopes(self, batch: SampleBatch) -> NDArray[np.int64]:
        return self._binder.scopes(batch)

    def process_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(self._number[self._binder.process_of(scope)])

    def weights_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64] | int:
        return self._binder.weights_of(scope)

    def locate(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Array]:
        return self._binder.locate(scope, address)

    def cut_pages(self, bits: int) -> NDArray[np.uint64]:
        return self._binder.cut_pages(bits)


class _MadeCode:
    """Names of code that was made at run time. A JIT writes names to files that appear and grow while the program runs:
    counts without a name yet are kept by address, and `renamed` once the name is there."""

    def __init__(self, namer: Namer) -> None:
        self._namer = namer
        self._states: dict[int, list[Any]] = {}
        """The state of the files that names of a process depend on, by its number."""
        self._known: dict[int, dict[tuple[int, int], int]] = {}
        """By the number of the process: (module, address) -> row of the label."""
        self._nameless: dict[str, _Totals] = {}
        self._named = np.empty(0, bool)
        """By row of the labels, as far as they were looked at: whether it has a function."""

    def look(self, row_of: Callable[[Array], Array]) -> bool:
        """Look for the files of the processes anew; whether any has others."""
        changed = False
        for number, before in list(self._states.items()):
            row = int(row_of(np.array([number]))[0])
            self._states[number] = state = self._state(row)
            if state != before:
                changed = True
                self._known.pop(number, None)
            elif row >= 0 and self._namer.profile.processes[row].end is not None:
                del self._states[number]  # nothing comes after its end
        return changed

    def _state(self, process: int) -> list[Any]:
        return self._namer.symbols.jit_state(process) if self._namer.symbols is not None and process >= 0 else []

    def rows(self, number: Array, process: Array, module: Array, address: Array) -> NDArray[np.int64]:
        """As `Namer.rows`, of processes with these numbers; each address is asked for once while files are the same."""
        out = np.empty(len(address), np.int64)
        for one in distinct(number).tolist():
            mine = np.flatnonzero(number == one)
            row = int(process[mine[0]])
            if one not in self._states:
                self._states[one] = self._state(row)
            known = self._known.setdefault(one, {})
            keys = list(zip(module[mine].tolist(), address[mine].tolist(), strict=True))
            new = list(dict.fromkeys(key for key in keys if key not in known))
            if new:
                if len(known) > MOST_ROWS:
                    known.clear()
                    new = list(dict.fromkeys(keys))
                modules, addresses = zip(*new, strict=True)
                asked = np.array(modules, np.int64), np.array(addresses, np.uint64)
                known.update(zip(new, self._namer.rows(np.full(len(new), row), *asked).tolist(), strict=True))
            out[mine] = [known[key] for key in keys]
        return out

    def without_name(self, name: Array) -> NDArray[np.bool_]:
        """Which of these rows of labels have no function."""
        new = [bool(label.function) for label in self._namer.labels[len(self._named) :]]
        self._named = np.append(self._named, np.array(new, bool))
        return np.asarray(~self._named[name])

    def keep(self, what: str, keys: list[Array], values: list[Array]) -> None:
        """Keep sums whose last keys are number, module and address, which have no name yet."""
        self._nameless.setdefault(what, _Totals(len(keys), len(values))).add(keys, values)

    def renamed(
        self, what: str, rows_of: Callable[[Array, Array, Array], NDArray[np.int64]]
    ) -> tuple[list[Array], list[Array], Array, Array] | None:
        """(keys, values, label until now, name) of kept sums that have a name now. They are kept no more."""
        if what not in self._nameless:
            return None
        keys, values = self._nameless.pop(what).rows()
        keys[-1] = keys[-1].view(np.uint64)
        name = rows_of(*keys[-3:])
        nameless = self.without_name(name)
        if nameless.any():
            self.keep(what, [key[nameless] for key in keys], [value[nameless] for value in values])
        was = np.array([self._namer.row(Label(module, "")) for module in keys[-2].tolist()], np.int64)
        found = ~nameless
        return [key[found] for key in keys], [value[found] for value in values], was[found], name[found]


class RunningCounts:
    """Counts batches as they come. `bind` is called before the first one, and again whenever the profile's tables have
    changed; `turn` ends the time that counts as recent."""

    def __init__(self, namer: Namer) -> None:
        self.namer, self.profile = namer, namer.profile
        self._spaces = _StableSpaces()
        self._counter: EntryCounter | None = None
        self._samples, self._ranges = _Totals(2, 1), _Totals(_PAIR, 1)
        self._branches = _Totals(_PAIR, _BRANCH_SUMS, 2, 2)
        self._new: dict[str, list[BoundColumns]] = {"samples": [], "branches": []}
        self._leaves: list[tuple[Array, Array, Array]] = []
        """(event, scope, ip) of samples that are not bound yet."""
        self._by_event: list[NDArray[np.int64]] = [np.empty((0, 0), np.int64)] * 3
        """Samples of each event (row) by name: all, recent ones, those before."""
        self._by_name = np.zeros((len(SUMS), 0), np.int64)
        self._entries = self._recent_entries = 0
        self._made = _MadeCode(namer)
        self._bound_rows = BoundCounter.available(self._spaces, MOST_ROWS, self._names_of_branches)
        self._branched = np.zeros(0, bool)
        """By row of the labels: whether a branch begins there that `_bound_rows` counted."""

    def bind(self) -> None:
        """The profile has a new binder."""
        self._settle()
        self._counter = None  # there may be other events
        self._spaces.replace(self.profile)
        if self._bound_rows is not None:
            self._bound_rows.bind(self.namer.is_own(np.arange(len(self.profile.modules) + 1)), self._has_ranges())

    def _has_ranges(self) -> bool:
        return why_no_stacks(self.profile) is None and why_no_ranges(self.profile) is None

    def _names_of_branches(self, module: Array, address: Array) -> Ints:
        name = self._rows(np.full(len(module), -1), module, address)
        self._branched = np.append(self._branched, np.zeros(len(self.namer.labels) - len(self._branched), bool))
        self._branched[name] = True
        return name

    def hold(self) -> None:
        """Hide samples added from here on until the next `turn` from snapshots, `hottest_branches` and `annotate`; the
        samples count."""
        if self._bound_rows is not None:
            self._bound_rows.hold()

    def add(self, batch: SampleBatch) -> None:
        """Count a batch, which may change after that."""
        scope = self._spaces.scopes(batch)
        self._leaves.append((batch.event.astype(np.int64), scope.copy(), batch.ip.copy()))
        if not batch.entries:
            return
        self._recent_entries += batch.entries
        if self._bound_rows is not None:
            left = self._bound_rows.add(scope, self._spaces.process_of(scope), batch)
            if left is None:
                return
            batch = batch if left.all() else batch.select(left)
        if self._counter is None:
            self._counter = EntryCounter(self._spaces, ranges=self._has_ranges(), details=True)
        self._counter.add(batch)

    def _settle(self) -> None:
        """Bind the counts, with the binder that they were made for."""
        if self._leaves:
            event, scope, ip = (np.concatenate(c) for c in zip(*self._leaves, strict=True))
            self._leaves = []
            keys, values = group_unordered([event, scope, ip], [np.ones(len(ip), np.int64)], [_ADDED])
            module, address = self._spaces.locate(keys[1], keys[2])
            keys = [keys[0], self._spaces.process_of(keys[1]), module, address]
            self._new["samples"].append(group_unordered(keys, values, [_ADDED]))
        if self._counter is not None:
            branches, ranges = self._counter.take()
            self._new["branches"] += branches
            for (_, *pair), (count, *_) in ranges:
                self._ranges.add(pair, [count])

    def turn(self) -> Snapshot:
        """A snapshot of the counts until now; samples from here on are recent."""
        self._settle()
        if self._bound_rows is not None:
            self._bound_rows.turn()
        if self._made.look(self._spaces.rows_of):
            self._rename()
        recent = {name: _join_columns(parts) for name, parts in self._new.items()}
        for parts in self._new.values():
            parts.clear()
        self._name_samples(recent["samples"])
        self._name_branches(recent["branches"])
        self._entries += self._recent_entries
        snapshot = self._snapshot()
        self._recent_entries = 0
        return snapshot

    def _rows(self, process: Array, module: Array, address: Array) -> NDArray[np.int64]:
        made, row = self.namer.is_own(module), self._spaces.rows_of(process)
        out = np.empty(len(module), np.int64)
        out[~made] = self.namer.rows(row[~made], module[~made], address[~made])
        if made.any():
            out[made] = self._made.rows(process[made], row[made], module[made], address[made])
        return out

    def _rename(self) -> None:
        """Move counts without a name to the name that their code has now."""
        if (found := self._made.renamed("samples", self._rows)) is not None:
            (event, *_), (count,), was, name = found
            total = self._by_event[0] = _grow_table(
                self._by_event[0], (len(self.profile.events), len(self.namer.labels))
            )
            np.subtract.at(total, (event, was), count)
            np.add.at(total, (event, name), count)
        if (found := self._made.renamed("branches", self._rows)) is not None:
            _, values, was, name = found
            self._by_name = _grow_table(self._by_name, (len(SUMS), len(self.namer.labels)))
            for total, column in zip(self._by_name, values, strict=True):
                np.subtract.at(total, was, column)
                np.add.at(total, name, column)

    def _keep_nameless(self, what: str, name: Array, keys: list[Array], values: list[Array]) -> None:
        """Keep the sums of code that was made at run time, and whose name is not known yet."""
        later = self.namer.is_own(keys[-2])
        if later.any():
            later[later] = self._made.without_name(name[later])
        if later.any():
            self._made.keep(what, [key[later] for key in keys], [value[later] for value in values])

    def _name_samples(self, recent: BoundColumns | None) -> None:
        total, now, _ = self._by_event
        added = np.zeros((len(self.profile.events), 0), np.int64)
        if recent is not None:
            (event, process, module, address), (count,) = recent
            self._samples.add([module, address], [count])
            name = self._rows(process, module, address)
            self._keep_nameless("samples", name, [event, process, module, address], [count])
            added = np.zeros((len(self.profile.events), len(self.namer.labels)), np.int64)
            np.add.at(added.reshape(-1), event * len(self.namer.labels) + name, count)
        shape = len(self.profile.events), len(self.namer.labels)
        total, now, added = (_grow_table(one, shape) for one in (total, now, added))
        self._by_event = [total + added, added, now]

    def _name_branches(self, recent: BoundColumns | None) -> None:
        if recent is None:
            return
        (process, *pair), values = recent
        *sums, low, high = values
        self._branches.add(pair, [*sums, low, process, high, process])
        module, address = pair[:2]
        recorded = (address != 0) | (module >= 0)
        keys, values = [process, module, address], values[: len(SUMS)]
        if not recorded.all():
            keys, values = [key[recorded] for key in keys], [value[recorded] for value in values]
        name = self._rows(*keys)
        self._keep_nameless("branches", name, keys, values)
        self._by_name = _grow_table(self._by_name, (len(SUMS), len(self.namer.labels)))
        for total, column in zip(self._by_name, values, strict=True):
            np.add.at(total, name, column)

    def _snapshot(self) -> Snapshot:
        shape = len(self.profile.events), len(self.namer.labels)
        total, now, before = self._by_event = [_grow_table(one, shape) for one in self._by_event]
        self._by_name = _grow_table(self._by_name, (len(SUMS), shape[1]))
        branched = self._by_name[0] > 0
        branched[: len(self._branched)] |= self._branched
        stacked = (row for row, event in enumerate(self.profile.events) if event.branch_select is not None)
        left_out = self._branches.left_out + (self._bound_rows.left_out if self._bound_rows is not None else 0)
        return Snapshot(
            self.namer.labels,
            (total, now, before),
            branched,
            next(stacked, -1),
            self._sums,
            self._entries,
            self._recent_entries,
            left_out,
            dict(self.profile.lost),
        )

    def _sums(self, labels: Ints) -> Ints:
        found = np.asarray(self._by_name[:, labels])
        return found if self._bound_rows is None else found + self._bound_rows.tables().by_name(labels)

    def hottest_branches(self, limit: int = 0) -> tuple[BranchTable, int]:
        """(the ``limit`` hottest branches (0: all) that were recorded until the last `turn`, hottest first; how often
        all of them were taken)."""
        rest = self._branches.rows()
        count, total = rest[1][0], 0
        if self._bound_rows is not None:
            tables = self._bound_rows.tables()
            total += tables.total()
            # If both tables have a branch, only the sum of both counts says how hot the branch is.
            found = self._bound_branches(tables, tables.hottest(limit) if limit and not len(count) else None, rest)
        else:
            found = self._bound_branches(None, None, rest)
        recorded = np.flatnonzero((found.a != 0) | (found.b != 0) | (found.a_module >= 0))
        if self._bound_rows is None or len(count):
            total = int(found.count[recorded].sum())
        if 0 < limit < len(recorded):
            keys = [found.a_module, found.a, found.b_module, found.b]
            recorded = recorded[lowest_rows([-found.count[recorded], *(key[recorded] for key in keys)], limit)]
        return branch_table(self.profile, found.take(recorded)), total

    def _bound_branches(
        self, tables: CounterTables | None, chosen: tuple[Array, Array] | None, rest: tuple[list[Array], list[Array]]
    ) -> BoundPairs:
        """The ``chosen`` branches of ``tables`` (`CounterTables.hottest`; all) and the branches of the ``rest``, which
        are counted apart."""
        keys, values = rest
        if tables is not None:
            if chosen is None:
                chosen = np.ones(len(tables.froms), bool), np.ones(len(tables.pairs), bool)
            ends, (*sums, low, high, process) = tables.branches(*chosen)
            several = process == SEVERAL
            none = np.zeros(len(low), np.int64)
            mine = [*sums, none, none, low, np.where(several, -2, process - 1), high, process - 1]
            keys, values = _sum_tables(
                (keys, values), ([end.view(np.int64) for end in ends], mine), [_ADDED] * _BRANCH_SUMS, 2
            )
        *sums, type_low, low, type_high, high = values
        process = self._spaces.rows_of(np.where(low == high, low, -1))
        return _bound_rows(keys, process, [*sums, type_low, type_high], tuple(BRANCH_VALUES))

    def annotate(self, place: Place) -> Annotation:
        """The code of ``place`` with all that was counted until now, as `annotate` makes it; without cycles of blocks
        and trips of loops, which need whole stacks. Raises what that raises."""
        missing = why_no_stacks(self.profile) or why_no_ranges(self.profile)
        (module, address), (samples,) = self._samples.rows()
        keys, (count,) = self._ranges.rows()
        tables = chosen = None
        if self._bound_rows is not None:
            tables, end = self._bound_rows.tables(), place.end or (1 << 64) - 1
            chosen = tables.near(place.module, place.start, end)
            bounds, more = tables.ranges(place.module, place.start, end)
            mine = [bound.view(np.int64) for bound in bounds], [more]
            keys, (count,) = _sum_tables((keys, [count]), mine, [_ADDED])
        none = np.zeros(len(count), np.int64)
        ranges = _bound_rows(keys, none - 1, [count, *[none] * (2 + len(_TIMES))], _TIMES)
        at = module, address.view(np.uint64), samples
        branches = self._bound_branches(tables, chosen, self._branches.rows())
        return annotate_counts(self.profile, place, branches, ranges, at, missing)


def _sum_tables(
    one: tuple[list[Array], list[Array]], other: tuple[list[Array], list[Array]], ops: list[np.ufunc], bounds: int = 0
) -> tuple[list[Array], list[Array]]:
    """(keys, values) of two tables with distinct keys as one. After the ``ops`` of values come ``bounds`` columns whose
    lowest value is kept, and as many whose highest is."""
    for table, rest in ((one, other), (other, one)):
        if not len(table[0][0]):
            return rest
    keys, values = ([np.concatenate(c) for c in zip(*part, strict=True)] for part in zip(one, other, strict=True))
    return group_unordered(keys, values, [*ops, *[np.minimum] * bounds, *[np.maximum] * bounds])


_TIMES = ("cycles", "timed")


def _bound_rows(pair: list[Array], process: Array, values: list[Array], names: tuple[str, ...]) -> BoundPairs:
    """Rows of a table of pairs; ``values`` are the count, mispredicted, predicted, and those with ``names``."""
    a_module, a, b_module, b = pair
    count, mispredicted, predicted, *rest = values
    ends = a_module, a.view(np.uint64), b_module, b.view(np.uint64)
    return BoundPairs(process, *ends, count, mispredicted, predicted, dict(zip(names, rest, strict=True)))


def _join_columns(parts: list[BoundColumns]) -> BoundColumns | None:
    """One part of all parts; ``None`` of none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    keys, values = ([np.concatenate(c) for c in zip(*part, strict=True)] for part in zip(*parts, strict=True))
    return keys, values


def _grow_table(table: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.int64]:
    """``table`` with rows and columns of zeros added to it."""
    if table.shape == shape:
        return table
    out = np.zeros(shape, np.int64)
    out[: table.shape[0], : table.shape[1]] = table
    return out


# -- The counts of a recording that still runs, up to a moment: its hottest functions, and their recent changes


@dataclass(slots=True)
class LiveFunctions(Table):
    """One row for each event and function. Equal-length arrays.

    ``event`` int64 row of the events table; ``name`` int64 row of the namer's labels; ``samples`` int64 by the sample's
    own address, ``recent`` int64 samples since the previous snapshot, ``before`` int64 samples between the two
    snapshots before. ``branches`` int64 that begin in the function, of all events, of which ``mispredicted`` and
    ``predicted``, both 0 where that is not known; ``cycles`` int64 sum over the ``timed`` ones.
    """

    event: Array
    name: Array
    samples: Array
    recent: Array
    before: Array
    branches: Array
    mispredicted: Array
    predicted: Array
    cycles: Array
    timed: Array

    @classmethod
    def none(cls) -> LiveFunctions:
        return cls(*[np.empty(0, np.int64)] * 10)


@dataclass(slots=True)
class Snapshot:
    """Counts up to a moment. ``recent`` and ``before`` are samples of each event since the previous snapshot, and
    between the two snapshots before; ``left_out`` are branches whose addresses found no room.

    Sums of branches are looked up when they are asked for: ask before more is counted (`RunningCounts.hold`)."""

    labels: list[Label]
    by_event: tuple[Ints, Ints, Ints]
    """int64[events, labels]: all samples, recent ones, those before."""
    branched: NDArray[np.bool_]
    """By row of the labels: whether branches begin there."""
    stacked: int
    """Row of the event whose functions are also those that only branches were seen of; -1 for none."""
    sums: Callable[[Ints], Ints]
    """From rows of labels to their `SUMS`, int64[`SUMS`, labels]."""
    entries: int = 0
    recent_entries: int = 0
    left_out: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    """By the name of the counter, as in `Profile.lost`."""
    samples: Ints = field(init=False)
    """By row of the events table."""
    recent: Ints = field(init=False)
    before: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.samples, self.recent, self.before = (table.sum(axis=1) for table in self.by_event)

    def hottest_functions(
        self, limit: int = 0, order: Order = "samples", *, event: int | None = None, names: Array | None = None
    ) -> LiveFunctions:
        """The first ``limit`` functions (0: all): by ``order``, then by event, samples and branches.

        ``event`` (row) and ``names`` (bool, by row of the labels) choose some. Nothing is looked up or sorted of those
        that are not among the first, except what ``order`` takes.
        """
        events = range(len(self.samples)) if event is None else [event]
        found = [self._seen_rows(one, names) for one in events]
        row, name = np.repeat(events, [len(one) for one in found]), np.concatenate([_NO_NAMES, *found])
        total = np.concatenate([_NO_NAMES, *(self.by_event[0][one][of] for one, of in zip(events, found, strict=True))])
        keys: list[SortKey] = [row] if len(events) > 1 else []
        keys += [-total, lambda rows: -self.sums(name[rows])[0], name]
        if order != "samples":
            keys.insert(0, -self._value(order, row, name))
        chosen = lowest_rows(keys, limit or len(name))
        row, name = row[chosen], name[chosen]
        return LiveFunctions(row, name, *(table[row, name] for table in self.by_event), *self.sums(name))

    def _seen_rows(self, event: int, names: Array | None) -> Ints:
        """Rows of the labels of the functions of an event."""
        total = self.by_event[0]
        seen = total[event] > 0
        if event == self.stacked:
            seen |= self.branched & ~(total > 0).any(axis=0)
        if names is not None:
            seen &= names[: len(seen)]
        return np.flatnonzero(seen)

    def _value(self, order: Order, event: Ints, name: Ints) -> Array:
        if order in ("now", "change"):
            now = self.by_event[1][event, name] / np.maximum(self.recent, 1)[event]
            if order == "now":
                return np.asarray(now)
            return np.asarray(now - self.by_event[2][event, name] / np.maximum(self.before, 1)[event])
        branches, mispredicted, predicted, cycles, timed = self.sums(name)
        match order:
            case "mispredicted":
                return np.asarray(mispredicted / np.maximum(mispredicted + predicted, 1))
            case "cycles":
                return np.asarray(cycles / np.maximum(timed, 1))
        return np.asarray(branches)


_NO_NAMES = np.empty(0, np.int64)

Order = Literal["samples", "now", "change", "branches", "mispredicted", "cycles"]
"""By what functions can be sorted, highest first."""
