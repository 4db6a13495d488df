"""Counts of a recording that still runs: of all that was seen, and of the time since they were last asked for.

Samples are counted and let go. What is kept are sums by address, of at most `MOST_ROWS` addresses or pairs of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Table, distinct, group_unordered
from ..model import Array, Profile, SampleBatch
from .annotation import Annotation, annotate_counts
from .count_tables import BranchTable, branch_table
from .counting import BRANCH_VALUES, Bound, EntryCounter, why_no_ranges, why_no_stacks
from .early_pass import Spaces
from .naming import Label, Namer, Place

__all__ = ["MOST_ROWS", "LiveFunctions", "RunningCounts", "Snapshot"]

MOST_ROWS = 1 << 18
"""Rows of each table; beyond it the rarer half of them is one sum."""
_WAITING_ROWS = 1 << 15
_MOST_PARTS = 256
_ADDED = np.add
_BRANCH_OPS = [_ADDED] * 3 + list(BRANCH_VALUES.values())


class _Totals:
    """Rows with equal keys, added up part after part."""

    def __init__(self, ops: Sequence[np.ufunc]) -> None:
        self._ops = ops
        self._parts: list[tuple[list[Array], list[Array]]] = []
        self._waiting = 0
        """Rows that were added since these were one part."""
        self.left_out = 0
        """The sum of the first value over rows that there was no room for."""

    def add(self, keys: list[Array], values: list[Array]) -> None:
        if not len(keys[0]):
            return
        self._parts.append((keys, values))
        self._waiting += len(keys[0])
        enough = self._waiting > max(_WAITING_ROWS, len(self._parts[0][0][0]))
        if enough or len(self._parts) > _MOST_PARTS:  # not each time: that would cost more
            self.rows()

    def rows(self) -> tuple[list[Array], list[Array]]:
        """The distinct keys, in no order, and their values."""
        if not self._parts:
            raise LookupError
        if len(self._parts) > 1:
            keys, values = (
                [np.concatenate(column) for column in zip(*part, strict=True)]
                for part in zip(*self._parts, strict=True)
            )
            self._parts = [group_unordered(keys, values, self._ops)]
        keys, values = self._parts[0]
        self._waiting = 0
        if len(keys[0]) > MOST_ROWS:
            order = np.argsort(-values[0], kind="stable")
            kept = np.sort(order[: MOST_ROWS // 2])
            self.left_out += int(values[0].sum() - values[0][kept].sum())
            keys, values = [c[kept] for c in keys], [c[kept] for c in values]
            self._parts = [(keys, values)]
        return keys, values


class _StableSpaces:
    """`Spaces` of binders that replace each other: a process keeps its number."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], int] = {}
        self._number = np.empty(0, np.int64)
        self._row: dict[int, int] = {}

    def replace(self, profile: Profile) -> None:
        self._binder: Spaces = profile.binder
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


@dataclass(slots=True)
class LiveFunctions(Table):
    """One row for each event and function, most samples first within its event. Equal-length arrays.

    ``event`` int64 row of the events table; ``name`` int64 row of the namer's labels; ``samples`` int64 by the sample's
    own address, ``recent`` int64 of them since the snapshot before, ``before`` int64 in the time before that.
    ``branches`` int64 that begin in the function, of all events, of which ``mispredicted`` and ``predicted``, both 0
    where that is not known; ``cycles`` int64 sum over the ``timed`` ones.
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
    """What was counted until a moment. ``recent`` and ``before`` are samples of each event since the snapshot before,
    and in the time before that; ``left_out`` are branches whose addresses there was no room for."""

    functions: LiveFunctions
    branches: BranchTable
    labels: list[Label]
    samples: NDArray[np.int64]
    """By row of the events table."""
    recent: NDArray[np.int64]
    before: NDArray[np.int64]
    entries: int = 0
    recent_entries: int = 0
    left_out: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    """By the name of the counter, as in `Profile.lost`."""


_BY_NAME = 5
"""Columns of branches by function."""


class _MadeCode:
    """Names of code that was made at run time. A JIT writes them to files that come and grow while it runs: what was
    counted before there was a name is kept by address, and `renamed` once there is one."""

    def __init__(self, namer: Namer) -> None:
        self._namer = namer
        self._states: dict[int, list[Any]] = {}
        """What names of a process depend on, by its number."""
        self._known: dict[int, dict[tuple[int, int], int]] = {}
        """By the number of the process: (module, address) -> row of the label."""
        self._nameless: dict[str, _Totals] = {}

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
        return ~np.array([bool(label.function) for label in self._namer.labels], bool)[name]

    def keep(self, what: str, keys: list[Array], values: list[Array]) -> None:
        """Keep sums whose last keys are number, module and address, which have no name yet."""
        self._nameless.setdefault(what, _Totals([_ADDED] * len(values))).add(keys, values)

    def renamed(
        self, what: str, rows_of: Callable[[Array, Array, Array], NDArray[np.int64]]
    ) -> tuple[list[Array], list[Array], Array, Array] | None:
        """(keys, values, label until now, name) of kept sums that have a name now. They are kept no more."""
        try:
            keys, values = self._nameless.pop(what).rows()
        except (KeyError, LookupError):
            return None
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
        self._samples, self._branches = _Totals([_ADDED]), _Totals(_BRANCH_OPS)
        self._ranges = _Totals([_ADDED])
        self._new: dict[str, list[tuple[list[Array], list[Array]]]] = {"samples": [], "branches": []}
        self._leaves: list[tuple[Array, Array, Array]] = []
        """(event, scope, ip) of samples that are not bound yet."""
        self._by_event: list[NDArray[np.int64]] = [np.empty((0, 0), np.int64)] * 3
        """Samples of each event (row) by name: all, recent ones, those before."""
        self._by_name = np.zeros((0, _BY_NAME), np.int64)
        self._entries = self._recent_entries = 0
        self._made = _MadeCode(namer)

    def bind(self) -> None:
        """The profile has a new binder."""
        self._settle()
        self._spaces.replace(self.profile)

    def add(self, batch: SampleBatch) -> None:
        """Count a batch, which may change after that."""
        scope = self._spaces.scopes(batch)
        self._leaves.append((batch.event.astype(np.int64), scope.copy(), batch.ip.copy()))
        if not batch.entries:
            return
        if self._counter is None:
            ranges = why_no_stacks(self.profile) is None and why_no_ranges(self.profile) is None
            self._counter = EntryCounter(self._spaces, ranges=ranges, details=True)
        self._counter.add(batch)
        self._recent_entries += batch.entries

    def _settle(self) -> None:
        """Bind what was counted, by the binder that it was counted for."""
        if self._leaves:
            event, scope, ip = (np.concatenate(c) for c in zip(*self._leaves, strict=True))
            self._leaves = []
            keys, values = group_unordered([event, scope, ip], [np.ones(len(ip), np.int64)], [_ADDED])
            module, address = self._spaces.locate(keys[1], keys[2])
            keys = [keys[0], self._spaces.process_of(keys[1]), module, address]
            self._new["samples"].append(group_unordered(keys, values, [_ADDED]))
        if self._counter is not None:
            found = self._counter.result(None)
            self._counter = None
            self._new["branches"].append(_columns(found.branches))
            if found.ranges is not None:
                keys, values = _columns(found.ranges)
                self._ranges.add(keys, values[:1])

    def turn(self) -> Snapshot:
        """What was counted until now; what comes next is recent."""
        self._settle()
        if self._made.look(self._spaces.rows_of):
            self._rename()
        recent = {name: _Totals(_BRANCH_OPS if name == "branches" else [_ADDED]) for name in self._new}
        for name, parts in self._new.items():
            for keys, values in parts:
                recent[name].add(keys, values)
                (self._branches if name == "branches" else self._samples).add(keys, values)
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
        """Move what was counted without a name to the name that its code has now."""
        if (found := self._made.renamed("samples", self._rows)) is not None:
            (event, *_), (count,), was, name = found
            total = self._by_event[0] = _grown(self._by_event[0], (len(self.profile.events), len(self.namer.labels)))
            np.subtract.at(total, (event, was), count)
            np.add.at(total, (event, name), count)
        if (found := self._made.renamed("branches", self._rows)) is not None:
            _, values, was, name = found
            self._by_name = _grown(self._by_name, (len(self.namer.labels), _BY_NAME))
            np.subtract.at(self._by_name, was, np.stack(values, axis=1))
            np.add.at(self._by_name, name, np.stack(values, axis=1))

    def _keep_nameless(self, what: str, name: Array, keys: list[Array], values: list[Array]) -> None:
        """Keep the sums of code that was made at run time, and whose name is not known yet."""
        later = self.namer.is_own(keys[-2])
        later[later] = self._made.without_name(name[later])
        if later.any():
            self._made.keep(what, [key[later] for key in keys], [value[later] for value in values])

    def _name_samples(self, recent: _Totals) -> None:
        total, now, _ = self._by_event
        added = np.zeros((len(self.profile.events), 0), np.int64)
        try:
            (event, process, module, address), (count,) = recent.rows()
        except LookupError:
            pass
        else:
            name = self._rows(process, module, address)
            self._keep_nameless("samples", name, [event, process, module, address], [count])
            added = np.zeros((len(self.profile.events), len(self.namer.labels)), np.int64)
            np.add.at(added, (event, name), count)
        shape = len(self.profile.events), len(self.namer.labels)
        total, now, added = (_grown(one, shape) for one in (total, now, added))
        self._by_event = [total + added, added, now]

    def _name_branches(self, recent: _Totals) -> None:
        try:
            (process, module, address, *_), values = recent.rows()
        except LookupError:
            return
        recorded = (address != 0) | (module >= 0)
        keys, values = (
            [process[recorded], module[recorded], address[recorded]],
            [v[recorded] for v in values[:_BY_NAME]],
        )
        name = self._rows(*keys)
        self._keep_nameless("branches", name, keys, values)
        self._by_name = _grown(self._by_name, (len(self.namer.labels), _BY_NAME))
        np.add.at(self._by_name, name, np.stack(values, axis=1))

    def _snapshot(self) -> Snapshot:
        shape = len(self.profile.events), len(self.namer.labels)
        total, now, before = self._by_event = [_grown(one, shape) for one in self._by_event]
        self._by_name = _grown(self._by_name, (shape[1], _BY_NAME))
        stacked = [row for row, event in enumerate(self.profile.events) if event.branch_select is not None]
        seen = total > 0
        for row in stacked[:1]:  # a function that only branches were seen of has a row, too
            seen[row] |= (self._by_name[:, 0] > 0) & ~(total > 0).any(axis=0)
        event, name = np.nonzero(seen)
        order = np.lexsort((-self._by_name[name, 0], -total[event, name], event))
        event, name = event[order], name[order]
        sums = (one[event, name] for one in (total, now, before))
        functions = LiveFunctions(event, name, *sums, *self._by_name[name].T)
        return Snapshot(
            functions, self._branch_table(), self.namer.labels, total.sum(axis=1), now.sum(axis=1), before.sum(axis=1),
            self._entries, self._recent_entries, self._branches.left_out, dict(self.profile.lost),
        )  # fmt: skip

    def _branch_table(self) -> BranchTable:
        return branch_table(self.profile, self._bound(self._branches, tuple(BRANCH_VALUES)))

    def _bound(self, totals: _Totals, names: tuple[str, ...]) -> Bound:
        try:
            (process, a_module, a, b_module, b), (count, *values) = totals.rows()
        except LookupError:
            none, address = np.empty(0, np.int64), np.empty(0, np.uint64)
            return Bound(none, none, address, none, address, none, none, none, dict.fromkeys(names, none))
        none = np.zeros(len(count), np.int64)
        mispredicted, predicted, *rest = values or [none, none]
        named = dict(zip(names, rest or [none] * len(names), strict=True))
        owner = self._spaces.rows_of(process)
        return Bound(owner, a_module, a, b_module, b, count, mispredicted, predicted, named)

    def annotate(self, place: Place) -> Annotation:
        """The code of ``place`` with all that was counted until now, as `annotate` makes it; without cycles of blocks
        and trips of loops, which need whole stacks. Raises what that raises."""
        missing = why_no_stacks(self.profile) or why_no_ranges(self.profile)
        try:
            (_, _, module, address), (samples,) = self._samples.rows()
        except LookupError:
            module, address, samples = np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.int64)
        branches, ranges = self._bound(self._branches, tuple(BRANCH_VALUES)), self._bound(self._ranges, _TIMES)
        return annotate_counts(self.profile, place, branches, ranges, (module, address, samples), missing)


_TIMES = ("cycles", "timed")


def _columns(bound: Bound) -> tuple[list[Array], list[Array]]:
    keys = [bound.process, bound.a_module, bound.a, bound.b_module, bound.b]
    return keys, [bound.count, bound.mispredicted, bound.predicted, *bound.values.values()]


def _grown(table: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.int64]:
    """``table`` with rows and columns of zeros added to it."""
    if table.shape == shape:
        return table
    out = np.zeros(shape, np.int64)
    out[: table.shape[0], : table.shape[1]] = table
    return out
