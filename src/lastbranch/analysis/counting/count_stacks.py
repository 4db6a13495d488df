"""One pass over the branch stacks: branches and fall-through ranges, counted first and bound after."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...arrays import Table, group, offsets_of
from ...errors import NotRecordedError
from ...lbr import branch_type, flag
from ...model import BRANCH, ENTRY, Array, Profile, SampleBatch, SampleFilter, column
from ...threads import Threads
from ..samples import any_end_in, check_events, filtered_batches
from .availability import how_to_record, why_no_ranges, why_no_stacks
from .bound_pairs import BRANCH_VALUES, BoundColumns, BoundPairs, PairTable, cycles_of
from .compact import Compactor
from .early_pass import EarlyPass, Spaces
from .pair_counter import PairCounter

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = [
    "StackCounts",
    "EarlyCounts",
    "EntryCounter",
    "NativeStackCounter",
    "Replacement",
    "SampledAddresses",
    "count_stacks",
    "entry_places",
]


class Replacement(Protocol):
    """An estimate that replaces counts: `executions.estimate.Estimate`."""

    @property
    def replaced(self) -> bool: ...

    def branches(self, bound: BoundPairs) -> BoundPairs: ...

    def ranges(self, bound: BoundPairs) -> BoundPairs: ...

    def stacks(self, binder: Spaces, scope: NDArray[np.int64], batch: SampleBatch) -> NDArray[np.int64]: ...


@dataclass(slots=True)
class SampledAddresses(Table):
    """Distinct addresses of samples: int64 ``module`` row or -1, uint64 module ``address``, int64 ``count`` of samples.
    Equal-length arrays, by module and address."""

    module: Array
    address: Array
    count: Array

    @classmethod
    def none(cls) -> SampledAddresses:
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.int64))


@dataclass(slots=True)
class StackCounts:
    """The counts that `count_stacks` returns. ``broken`` ranges by reason; ``ranges`` is ``None`` if none were
    requested. ``sampled`` is empty if it was not requested."""

    branches: BoundPairs
    ranges: BoundPairs | None
    samples: int = 0
    entries: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    sampled: SampledAddresses = field(default_factory=lambda: SampledAddresses.none())
    not_taken: BoundPairs | None = None
    """Entries of branches that were not taken, from them to the next instruction; ``None`` where none was recorded."""


def count_stacks(
    profile: Profile,
    *,
    ranges: bool,
    details: bool,
    sample_filter: SampleFilter | None = None,
    sampled: bool = False,
    by_process: bool = True,
    estimate: Replacement | None = None,
) -> StackCounts:
    """Count the branches, and the ranges between them, of every sample that ``sample_filter`` keeps.

    ``estimate`` (`estimate_executions` of the same samples) gives executions instead of entries. ``details`` adds
    `BRANCH_VALUES` (slower), ``sampled`` the addresses of the samples. Without ``by_process``, equal branches of
    several processes may be one row with process -1, which takes less memory. Blocks that an `EarlyCounts` saw when the
    capture was opened are not read again. Raises `NotRecordedError` if there are no branch stacks, or no ranges
    although ``ranges`` requests them, and `SelectionError` if the captures of a joined profile have branch stacks of
    different events.
    """
    reason = why_no_stacks(profile, sample_filter)
    if reason:
        raise NotRecordedError(reason, hint=how_to_record(profile))
    if ranges and (reason := why_no_ranges(profile, sample_filter)):
        raise NotRecordedError(f"the capture has no fall-through ranges: {reason}", hint=how_to_record(profile))
    check_events(profile, sample_filter, lambda event: event.branch_select is not None)
    if estimate is not None and estimate.replaced:  # it counts memory without a file by process
        by_process = True
    counter = EntryCounter(profile.binder, ranges=ranges, details=details, sampled=sampled, by_process=by_process)
    early, profile.watcher = profile.watcher, None  # serves one count: its tables take memory
    if isinstance(early, EarlyCounts) and early.serves(counter, sample_filter) and early.pour(profile, [counter]):
        return counter.result(sample_filter, estimate)  # not of single branches: their readers end the watch
    for stream in profile.streams:
        if "branch_from" not in stream.columns:
            continue
        for batch in filtered_batches(profile, stream.stacks(), sample_filter, by_address=False):
            counter.add(batch)
    out = counter.result(sample_filter, estimate)
    if any("previous_target" in stream.columns for stream in profile.streams):
        add_runs_of_code(profile, out)
    return out


def add_runs_of_code(profile: Profile, found: StackCounts) -> None:
    """Records of single branches (Arm SPE before v1.2) do not say where the branch before went: add the ranges that are
    certain by the code.

    After a branch, taken or not, the code runs up to the next branch. So each stretch between two branches counts as
    often as the branches that lead to the stretch were sampled. AutoFDO counts such records in the same way.
    """
    from .executed import next_branches

    if found.ranges is None or len(found.ranges.count):
        return
    parts = [found.branches, *([found.not_taken] if found.not_taken is not None else [])]
    names = ("process", "b_module", "b", "count")
    process, module, start, count = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    (process, module, start), (count,) = group([process, module, start], [count], [np.add])
    end, known = next_branches(profile, module, start)
    found.broken["into code that is not available"] = int(count[~known].sum())
    process, module, start, end, count = (column[known] for column in (process, module, start, end, count))
    none = np.zeros(len(count), np.int64)
    found.ranges = BoundPairs(process, module, start, module, end, count, none, none)


def runs_of(batch: SampleBatch) -> tuple[Array, Array, Array]:
    """(row, start, end) of the straight lines of records of one branch each: from where the branch before went
    (``previous_target``) to the branch.

    Only for taken branches: a line ends with a taken branch, so that each line counts as often as its end was sampled.
    Other operations inside the line, and branches not taken, would each count the line once more.
    """
    ends, first = np.flatnonzero(batch.depth == 1), batch.offsets[BRANCH][:-1]
    if len(ends):
        taken = flag(batch["branch_flags"][first[ends]], "not_taken") == 0
        ends = ends[taken & (batch["previous_target"][ends] != 0)]
    return ends, batch["previous_target"][ends], batch["branch_from"][first[ends]]


def without_entries(batch: SampleBatch, left_out: Array) -> SampleBatch:
    """``batch`` without the branch entries that a bool mask is true of."""
    columns = {n: c[~left_out] if column(n).group == BRANCH else c for n, c in batch.columns.items()}
    sample = np.repeat(np.arange(len(batch)), batch.depth)
    depth = np.bincount(sample[~left_out], minlength=len(batch))
    return SampleBatch(columns, {**batch.offsets, BRANCH: offsets_of(depth)})


class EntryCounter:
    """Counts the branches of batches, or the ranges between branches, or both."""

    def __init__(
        self,
        binder: Spaces,
        *,
        branches: bool = True,
        ranges: bool = True,
        details: bool = False,
        sampled: bool = False,
        by_process: bool = True,
    ) -> None:
        self._binder, self._details, self._wants_branches = binder, details, branches
        names = tuple(BRANCH_VALUES) if details else ()
        self._branch_table = PairTable(binder, names, by_process=by_process)
        self._range_table = PairTable(binder, by_process=by_process) if ranges else None
        self._passed_table = PairTable(binder, by_process=by_process)
        self._sample_table = PairTable(binder, by_process=by_process) if sampled else None
        self._compactor, thread = Compactor(), Threads(1, "lastbranch-sort")
        ops = [BRANCH_VALUES[n] for n in names]
        self._branches = PairCounter(self._compactor, thread, self._branch_table.add, ops)
        self._ranges = PairCounter(self._compactor, thread, self._range_table.add) if self._range_table else None
        self._samples = self._entries = self._broken = 0
        counted = self._branch_table.add_sums if branches else None
        between = self._range_table.add_sums if self._range_table else None
        self._kernel = NativeStackCounter.available(counted, between, details)

    def add(self, batch: SampleBatch, *, again: bool = False) -> None:
        """Count a batch whose stream has branch entries in its columns; ``again``: the totals that `pour` adds hold the
        batch already."""
        before = self._broken_count if again else 0
        self._add(batch)
        if again:
            self._broken -= self._broken_count - before
        else:
            self._samples += len(batch)
            self._entries += batch.entries

    @property
    def _broken_count(self) -> int:
        return self._broken + (self._kernel.broken if self._kernel is not None else 0)

    def _add(self, batch: SampleBatch) -> None:
        if not len(batch):
            return
        scope = self._binder.scopes(batch)
        if self._sample_table is not None:
            once, none = np.ones(len(batch), np.int64), np.zeros(len(batch), np.int64)
            self._sample_table.add_sums(scope, batch.ip, none.view(np.uint64), [once, none, none])
        if self._range_table is not None and "previous_target" in batch:
            self._add_runs(scope, batch)
        if self._kernel is None or batch.in_place is None:
            batch = self._without_not_taken(scope, batch)
        if not batch.entries or not (self._wants_branches or self._ranges):
            return
        if self._kernel is not None:
            done = self._kernel.add(scope, batch)
            if done == len(batch):
                return
            scope, batch = scope[done:], self._without_not_taken(scope[done:], batch.slice(done, len(batch)))
            if not batch.entries:
                return
        offsets = batch.offsets[BRANCH]
        depth, (source, target, flags) = batch.depth, (batch[name] for name in ENTRY)
        values = _values(flags) if self._details else []
        compact = self._compactor.compact(scope, depth, (source, target))
        if self._wants_branches and compact is not None:
            self._branches.add(*compact, flags=flags, values=values)
        elif self._wants_branches:
            tag = (flags & np.uint64(3)).astype(np.uint8)
            self._branches.add_as_is(np.repeat(scope, depth), source, target, tag, values)
        if self._ranges is None:
            return
        # A range lies between neighbours of one stack; entry i + 1 is older. No range leads into the next stack.
        firsts = offsets[1:-1]
        leave_out: Array = firsts[(firsts > 0) & (firsts < len(source))] - 1
        if not source.min() or not target.min():
            empty = (source == 0) | (target == 0)
            beside = empty[1:] | empty[:-1]
            across = np.zeros(len(source) - 1, bool)
            across[leave_out] = True
            self._broken += int((beside & ~across).sum())
            leave_out = beside | across
        if compact is not None:
            self._ranges.add(compact[1][1:], compact[0][:-1], leave_out=leave_out)
        else:
            within = np.ones(len(source) - 1, bool)
            within[leave_out] = False
            zeros = np.zeros(int(within.sum()), np.uint8)
            each = np.repeat(scope, depth)[1:]
            self._ranges.add_as_is(each[within], target[1:][within], source[:-1][within], zeros)

    def _without_not_taken(self, scope: Array, batch: SampleBatch) -> SampleBatch:
        """``batch`` without entries of branches that were not taken, which are counted apart."""
        if not batch.entries:
            return batch
        source, target, flags = (batch[name] for name in ENTRY)
        passed = flag(flags, "not_taken") != 0
        if not passed.any():
            return batch
        sample = np.repeat(scope, batch.depth)[passed]
        self._passed_table.add_each(sample, source[passed], target[passed], flags[passed] & np.uint64(3), [])
        return without_entries(batch, passed)

    def _add_runs(self, scope: Array, batch: SampleBatch) -> None:
        """The straight lines of records of one branch each."""
        assert self._range_table is not None
        rows, start, end = runs_of(batch)
        self._range_table.add_each(scope[rows], start, end, np.zeros(len(rows), np.uint64), [])

    @property
    def makes(self) -> tuple[bool, bool, bool]:
        """Whether it counts ranges, gathers details, and counts the addresses of samples."""
        return self._range_table is not None, self._details, self._sample_table is not None

    @property
    def bound(self) -> int:
        """Rows of its tables."""
        return sum(table.bound for table in self._tables if table is not None)

    @property
    def _tables(self) -> tuple[PairTable | None, ...]:
        return self._branch_table, self._range_table, self._sample_table, self._passed_table

    def _finish(self) -> None:
        """Bring all that was counted to the tables."""
        self._broken = self._broken_count
        self._flush()
        self._kernel = None

    def _flush(self) -> None:
        if self._kernel is not None:
            self._kernel.flush()
        self._branches.decode()
        if self._ranges is not None:
            self._ranges.decode()

    def take(self) -> tuple[list[BoundColumns], list[BoundColumns]]:
        """(branches, ranges) that were counted, bound, in parts; none is left, and counting may go on. Equal pairs may
        be several rows."""
        self._flush()
        ranges = list(self._range_table.take_bound()) if self._range_table is not None else []
        return list(self._branch_table.take_bound()), ranges

    def pour(self, other: EntryCounter, scope: NDArray[np.int64]) -> None:
        """Add this counter's counts to ``other``, under ``scope`` (int64) of each scope here; -1: ``other`` has counted
        the samples of this scope again."""
        self._finish()
        other._finish()
        for mine, table in zip(self._tables, other._tables, strict=True):
            if mine is None or table is None:
                continue
            for number, a, b, sums in mine.take():
                into = scope[number]
                kept = into >= 0
                if kept.all():
                    table.add_sums(into, a, b, sums)
                else:
                    table.add_sums(into[kept], a[kept], b[kept], [column[kept] for column in sums])
        other._samples += self._samples
        other._entries += self._entries
        other._broken += self._broken

    def result(
        self, sample_filter: SampleFilter | None, estimate: Replacement | None = None, *, goes_on: bool = False
    ) -> StackCounts:
        """The counts; with a filter of modules, only branches and ranges with an end in such a module. ``estimate`` as
        in `count_stacks`. ``goes_on``: the counter counts more afterwards."""
        if goes_on:
            self._flush()
        else:
            self._finish()
        found = self._branch_table.result()
        found = found.take(any_end_in(sample_filter, found.a_module, found.b_module))
        out = StackCounts(estimate.branches(found) if estimate else found, None, self._samples, self._entries)
        if self._sample_table is not None:
            at = self._sample_table.result()
            (module, address), (count,) = group([at.a_module, at.a], [at.count], [np.add])
            out.sampled = SampledAddresses(module, address, count)
        passed = self._passed_table.result()
        passed = passed.take(any_end_in(sample_filter, passed.a_module, passed.b_module))
        out.not_taken = passed if len(passed.count) else None
        if self._range_table is not None:
            found = self._range_table.result()
            found = found.take(any_end_in(sample_filter, found.a_module, found.b_module))
            crossing = found.a_module != found.b_module
            backward = ~crossing & (found.a > found.b)
            out.broken = {
                "next to an empty entry": self._broken_count,
                "ends in different modules": int(found.count[crossing].sum()),
                "ends before it starts": int(found.count[backward].sum()),
            }
            found = found.take(~(crossing | backward))
            out.ranges = estimate.ranges(found) if estimate else found
        return out


class EarlyCounts(EarlyPass[EntryCounter]):
    """Counts the branch stacks of a capture while it is indexed, for a later `count_stacks` with the same
    arguments."""

    def __init__(self, *, ranges: bool, details: bool, sampled: bool = False) -> None:
        super().__init__(partial(EntryCounter, ranges=ranges, details=details, sampled=sampled))
        self._makes = ranges, details, sampled

    def serves(self, counter: EntryCounter, sample_filter: SampleFilter | None) -> bool:
        """Whether all that ``counter`` is to count was counted."""
        if sample_filter is not None and sample_filter.by_columns:
            return False
        (ranges, *more), (wanted, *others) = self._makes, counter.makes
        return ranges >= wanted and more == others


def _values(flags: NDArray[np.uint64]) -> list[Array]:
    """The columns of `BRANCH_VALUES` for each entry."""
    kind = branch_type(flags).astype(np.int64)
    in_tx, abort = flag(flags, "in_tx"), flag(flags, "abort")
    return [*cycles_of(flags), in_tx.view(np.int64), abort.view(np.int64), kind, kind]


# -- The same by the compiled library (``native/count_stacks.c``), in batches, where the entries are
#
# `EntryCounter` without the library, which sorts keys instead, is its oracle.


_SUMS, _DETAILS = 3, 6
"""Columns: count, mispredicted, predicted; with details those of `bound_pairs.BRANCH_VALUES`, too."""
_BRANCHES, _RANGES = 0, 1
_WORD = 8

Sink = Callable[[Array, Array, Array, list[Array]], None]
"""Gets scope (int64), a and b (uint64), and the columns (int64). A pair can come in several rows."""


class NativeStackCounter:
    """Counts branches, and the ranges between branches; either only if it has a sink."""

    def __init__(self, library: CDLL, branches: Sink | None, ranges: Sink | None, details: bool) -> None:
        self._library, self._sinks = library, (branches, ranges)
        self._columns = _SUMS + (_DETAILS if details else 0)
        self._counter = library.lb_counter_new(int.from_bytes(os.urandom(8)), bool(branches), bool(ranges), details)
        if not self._counter:
            raise MemoryError
        weakref.finalize(self, library.lb_counter_free, self._counter)

    @classmethod
    def available(cls, branches: Sink | None, ranges: Sink | None, details: bool) -> NativeStackCounter | None:
        """A counter, or ``None`` without the library."""
        library = native.library()
        return None if library is None else cls(library, branches, ranges, details)

    @property
    def broken(self) -> int:
        """Neighbours of empty entries, between which there is no range."""
        return int(self._library.lb_counter_broken(self._counter))

    def add(self, scope: NDArray[np.int64], batch: SampleBatch) -> int:
        """Count the stacks of ``batch``, each of which belongs to its ``scope`` (int64).

        How many were counted: the next one has addresses that the kernel cannot compact.
        """
        scope = np.ascontiguousarray(scope, np.int64)
        first, columns = entry_places(batch)
        depth = np.diff(batch.offsets[BRANCH])
        done, flushed = 0, False
        while done < len(batch):
            given = map(native.address, (scope[done:], first[done:], depth[done:]))
            added = self._library.lb_counter_add(self._counter, *given, len(batch) - done, *columns)
            if added < 0:
                raise MemoryError
            done += added
            if done == len(batch) or flushed > (added > 0) or not self._full(int(depth[done])):
                break
            self.flush()
            flushed = True
        return done

    def _full(self, depth: int) -> bool:
        return bool(self._library.lb_counter_full(self._counter, depth))

    def flush(self) -> None:
        """Hand the counts to the sinks, and begin anew."""
        for which, sink in enumerate(self._sinks):
            room = self._library.lb_counter_rows(self._counter, which)
            if room and sink:
                width = self._columns if which == _BRANCHES else _SUMS
                scope, a, b = np.empty(room, np.int64), np.empty(room, np.uint64), np.empty(room, np.uint64)
                values = np.empty((width, room), np.int64)
                addresses = map(native.address, (scope, a, b, values))
                rows = self._library.lb_counter_take(self._counter, which, room, *addresses)
                sink(scope[:rows], a[:rows], b[:rows], [column[:rows] for column in values])
        self._library.lb_counter_clear(self._counter)


def entry_places(batch: SampleBatch) -> tuple[NDArray[np.int64], list[int]]:
    """How kernels get the branch stacks of a batch: (the place where each stack begins; for each column of entries its
    address, the bytes of a place, and the bytes of an entry)."""
    if batch.in_place is not None:
        base = native.address(batch.in_place.words)
        each = (word for n in range(len(ENTRY)) for word in (base + n * _WORD, _WORD, len(ENTRY) * _WORD))
        return np.ascontiguousarray(batch.in_place.first), list(each)
    columns = [batch[name] for name in ENTRY]
    return batch.offsets[BRANCH], [word for c in columns for word in (native.address(c), c.strides[0], c.strides[0])]
