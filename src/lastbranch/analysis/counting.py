"""One pass over the branch stacks: branches and fall-through ranges, counted first and bound after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import StackSums, Table, distinct, group, group_unordered
from ..errors import NotRecordedError
from ..lbr import branch_type, flag, no_ranges_because
from ..model import (
    BRANCH,
    ENTRY,
    KERNEL_HALF,
    AddressSpaces,
    Array,
    Change,
    Mode,
    Profile,
    SampleBatch,
    SampleFilter,
    Timeline,
    kernel_start,
)
from ..threads import Threads
from .compact import Compactor
from .findings import Origin
from .native_counter import NativeStackCounter
from .pairs import PairCounter, RawPairs
from .sample_filtering import any_end_in, check_events, filtered_batches, wanted_events

__all__ = [
    "BRANCH_VALUES",
    "Bound",
    "Counted",
    "EarlyCounts",
    "EntryCounter",
    "PairTable",
    "Sampled",
    "count_stacks",
    "cycles_of",
    "why_no_ranges",
    "why_no_stacks",
]

BRANCH_VALUES: dict[str, np.ufunc] = {
    "cycles": np.add,
    "timed": np.add,
    "in_tx": np.add,
    "abort": np.add,
    "type_low": np.minimum,
    "type_high": np.maximum,
}
"""What is gathered for each branch beside its count, and how it combines."""

_SHRINK_ROWS = 1 << 17


@dataclass(slots=True)
class Bound(Table):
    """Distinct pairs of bound addresses; equal-length arrays.

    ``process`` int64 row or -1; ``a_module``/``b_module`` int64 row or -1; ``a``/``b`` uint64 module addresses;
    ``count``, ``mispredicted``, ``predicted`` int64; ``values`` int64 by name of `BRANCH_VALUES`, on request.
    """

    process: Array
    a_module: Array
    a: Array
    b_module: Array
    b: Array
    count: Array
    mispredicted: Array
    predicted: Array
    values: dict[str, Array] = field(default_factory=dict)

    def take(self, rows: Array | slice) -> Bound:
        """The rows of a bool mask, or of indices in the wanted order."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool and rows.all():
            return self
        return replace(super(Bound, self).take(rows), values={name: v[rows] for name, v in self.values.items()})


class Spaces(Protocol):
    """What counting takes of `AddressSpaces`."""

    def scopes(self, batch: SampleBatch) -> NDArray[np.int64]: ...

    def process_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64]: ...

    def weights_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64] | int: ...

    def locate(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Array]: ...


class PairTable:
    """Collects raw pairs, binds many of them at once and keeps one row for each bound pair."""

    def __init__(self, binder: Spaces, names: tuple[str, ...] = ()) -> None:
        self._binder, self._names = binder, names
        self._ops = [np.add] * 3 + [BRANCH_VALUES[n] for n in names]
        self._each = StackSums(1, len(self._ops))
        self._waiting: list[tuple[Array, Array, Array, list[Array]]] = []
        self._keys: list[list[Array]] = []
        self._values: list[list[Array]] = []
        self._rows = self._waiting_rows = 0

    def add(self, raw: RawPairs) -> None:
        scope, a, b, tag, (count, *values) = raw
        self.add_sums(scope, a, b, [count, count * (tag & 1), count * (tag >> 1), *values])

    def add_each(self, scope: Array, a: Array, b: Array, tag: Array, values: list[Array]) -> None:
        """Add one pair a row, of which many are equal; uint64 ``tag``: bit 0 mispredicted, bit 1 predicted. The values
        (int64) must be sums."""
        ones, flags = np.ones(len(scope), np.int64), tag.view(np.int64)
        ends = np.stack([a, b], axis=1).reshape(-1)
        self._each.add([scope], ends, np.arange(0, len(ends) + 1, 2), [ones, flags & 1, flags >> 1 & 1, *values])
        if self._each.size > 3 * _SHRINK_ROWS:  # a row and two ends each
            self._sum_each()

    def _sum_each(self) -> None:
        (scope,), ends, _, sums = self._each.take()
        a, b = ends.reshape(-1, 2).T
        self.add_sums(scope, a, b, list(sums))

    def add_sums(self, scope: Array, a: Array, b: Array, sums: list[Array]) -> None:
        """Add pairs with their count, mispredicted, predicted (int64) and values; the same pair may come again."""
        self._waiting.append((scope, a, b, sums))
        self._waiting_rows += len(scope)
        if self._waiting_rows > _SHRINK_ROWS:
            self._bind()

    def _bind(self) -> None:
        """Bind what is waiting, if anything is."""
        if not self._waiting_rows:
            return
        *columns, waiting = zip(*self._waiting, strict=True)
        scope, a, b = map(_joined, columns)
        sums = [*map(_joined, zip(*waiting, strict=True))]
        self._waiting, self._waiting_rows = [], 0
        weight = self._binder.weights_of(scope)
        sums = [c * weight if op is np.add else c for c, op in zip(sums, self._ops, strict=True)]
        a_module, a = self._binder.locate(scope, a)
        b_module, b = self._binder.locate(scope, b)
        keys = [self._binder.process_of(scope), a_module, a, b_module, b]
        keys, sums = group_unordered(keys, sums, self._ops)
        self._keys.append(keys)
        self._values.append(sums)
        self._rows += len(keys[0])
        if self._rows > max(_SHRINK_ROWS, len(self._keys[0][0]) // 2):
            self._merge()
            self._rows = 0  # the limit is for what is added from here on

    def _merge(self) -> None:
        """Make one part of all parts."""
        keys = [np.concatenate(part) for part in zip(*self._keys, strict=True)]
        self._keys.clear()
        values = (np.concatenate(part) for part in zip(*self._values, strict=True))
        keys, sums = group_unordered(keys, values, self._ops)
        self._keys, self._values = [keys], [sums]

    def take(self) -> Iterator[tuple[Array, Array, Array, list[Array]]]:
        """What was added, as it is for `add_sums`: of a binder whose processes are scopes, and that binds addresses to
        themselves."""
        self._sum_each()
        yield from self._waiting
        for (process, _, a, _, b), sums in zip(self._keys, self._values, strict=True):
            yield process, a, b, sums

    @property
    def bound(self) -> int:
        """Rows of what was bound."""
        return sum(len(keys[0]) for keys in self._keys)

    def result(self) -> Bound:
        self._sum_each()
        self._bind()
        if not self._keys:
            none = np.empty(0, np.int64)
            address = np.empty(0, np.uint64)
            return Bound(none, none, address, none, address, none, none, none, dict.fromkeys(self._names, none))
        self._merge()
        keys, (count, mispredicted, predicted, *values) = group(self._keys[0], self._values[0], self._ops)
        process, a_module, a, b_module, b = keys
        named = dict(zip(self._names, values, strict=True))
        return Bound(process, a_module, a, b_module, b, count, mispredicted, predicted, named)


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(slots=True)
class Sampled(Table):
    """Distinct addresses of samples: int64 ``module`` row or -1, uint64 module ``address``, int64 ``count`` of samples.
    Equal-length arrays, by module and address."""

    module: Array
    address: Array
    count: Array

    @classmethod
    def none(cls) -> Sampled:
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.int64))


@dataclass(slots=True)
class Counted:
    """What `count_stacks` found. ``broken`` ranges by reason; ``ranges`` is ``None`` if none were requested.
    ``sampled`` is empty if it was not requested."""

    branches: Bound
    ranges: Bound | None
    samples: int = 0
    entries: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    sampled: Sampled = field(default_factory=lambda: Sampled.none())


def why_no_stacks(profile: Profile, sample_filter: SampleFilter | None = None) -> str | None:
    """Why the profile (or the events that the filter keeps) has no branch stacks at all; ``None`` where it has."""
    if not any(e.branch_select is not None for e in profile.events):
        return "the capture has no branch stacks"
    wanted = wanted_events(profile, sample_filter).values()
    if any(event.branch_select is not None for event in wanted):
        return None
    return "; ".join(f"event {event.name} has no branch stacks" for event in wanted)


def origin_of(profile: Profile) -> Origin:
    """What made the capture, whatever file it is in now."""
    if profile.recorder.startswith("lastbranch") or profile.header.get("command line", "").startswith("lastbranch "):
        return Origin.LASTBRANCH
    return Origin.WINDOWS if profile.machine.os.startswith("Windows") else Origin.PERF


_HOW = {
    Origin.PERF: "record with `perf record -b` (or -j any,u) on a machine with LBR, elsewhere with `lastbranch record`",
    Origin.WINDOWS: "record with TraceConfigureLastBranchRecord, without its filters, on a machine that has LBR",
    Origin.LASTBRANCH: "let `lastbranch record` run longer, without --filter and --call-stack",
}  # fmt: skip


def how_to_record(profile: Profile) -> str:
    """How branch stacks, with ranges between them, get into a capture like ``profile``."""
    return _HOW[origin_of(profile)]


def why_no_ranges(profile: Profile, sample_filter: SampleFilter | None = None) -> str | None:
    """Why fall-through ranges do not exist in the profile (or in the events that the filter keeps)."""
    for event in wanted_events(profile, sample_filter).values():
        select = event.branch_select
        if select is not None and (reason := no_ranges_because(event.branch_select_kind, select)):
            return f"event {event.name}: {reason}"
    return None


def count_stacks(
    profile: Profile, *, ranges: bool, details: bool, sample_filter: SampleFilter | None = None,
    sampled: bool = False,
) -> Counted:  # fmt: skip
    """Count the branches, and the ranges between them, of every sample that ``sample_filter`` keeps.

    ``details`` adds `BRANCH_VALUES` (slower), ``sampled`` the addresses of the samples. What an `EarlyCounts` saw when
    the capture was opened is not read again. Raises `NotRecordedError` where there are no branch stacks, or no ranges
    if ``ranges`` requests them, and `SelectionError` where the captures of a joined profile have them of different
    events.
    """
    reason = why_no_stacks(profile, sample_filter)
    if reason:
        raise NotRecordedError(reason, hint=how_to_record(profile))
    if ranges and (reason := why_no_ranges(profile, sample_filter)):
        raise NotRecordedError(f"the capture has no fall-through ranges: {reason}", hint=how_to_record(profile))
    check_events(profile, sample_filter, lambda event: event.branch_select is not None)
    counter = EntryCounter(profile.binder, ranges=ranges, details=details, sampled=sampled)
    early, profile.watcher = profile.watcher, None  # it is for one count: its tables take memory
    if isinstance(early, EarlyCounts) and early.serves(counter, sample_filter) and early.pour(profile, counter):
        return counter.result(sample_filter)
    for stream in profile.streams:
        if "branch_from" not in stream.columns:
            continue
        for batch in filtered_batches(profile, stream.stacks(), sample_filter, by_address=False):
            counter.add(batch)
    return counter.result(sample_filter)


class EntryCounter:
    """Counts the branches, or the ranges between them, or both, of the batches that it is given."""

    def __init__(
        self, binder: Spaces, *, branches: bool = True, ranges: bool = True, details: bool = False,
        sampled: bool = False,
    ) -> None:  # fmt: skip
        self._binder, self._details, self._wants_branches = binder, details, branches
        names = tuple(BRANCH_VALUES) if details else ()
        self._branch_table = PairTable(binder, names)
        self._range_table = PairTable(binder) if ranges else None
        self._sample_table = PairTable(binder) if sampled else None
        self._compactor, thread = Compactor(), Threads(1, "lastbranch-sort")
        ops = [BRANCH_VALUES[n] for n in names]
        self._branches = PairCounter(self._compactor, thread, self._branch_table.add, ops)
        self._ranges = PairCounter(self._compactor, thread, self._range_table.add) if self._range_table else None
        self._samples = self._entries = self._broken = 0
        counted = self._branch_table.add_sums if branches else None
        between = self._range_table.add_sums if self._range_table else None
        self._kernel = NativeStackCounter.available(counted, between, details)

    def add(self, batch: SampleBatch, *, again: bool = False) -> None:
        """Count a batch that has the columns of branch entries; ``again``: it is in the totals that `pour` adds."""
        before = self._broken_now if again else 0
        self._add(batch)
        if again:
            self._broken -= self._broken_now - before
        else:
            self._samples += len(batch)
            self._entries += batch.entries

    @property
    def _broken_now(self) -> int:
        return self._broken + (self._kernel.broken if self._kernel is not None else 0)

    def _add(self, batch: SampleBatch) -> None:
        offsets = batch.offsets[BRANCH]
        if not len(batch):
            return
        scope = self._binder.scopes(batch)
        if self._sample_table is not None:
            once, none = np.ones(len(batch), np.int64), np.zeros(len(batch), np.int64)
            self._sample_table.add_sums(scope, batch.ip, none.view(np.uint64), [once, none, none])
        if not offsets[-1]:
            return
        if self._kernel is not None:
            done = self._kernel.add(scope, batch)
            if done == len(batch):
                return
            scope, batch = scope[done:], batch.slice(done, len(batch))
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
        # Between neighbours of one stack; entry i + 1 is the older one. None leads into the next stack.
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
        return self._branch_table, self._range_table, self._sample_table

    def _finish(self) -> None:
        """Bring all that was counted to the tables."""
        self._broken = self._broken_now
        if self._kernel is not None:
            self._kernel.flush()
            self._kernel = None
        self._branches.decode()
        if self._ranges is not None:
            self._ranges.decode()

    def pour(self, other: EntryCounter, scope: NDArray[np.int64]) -> None:
        """Have ``other`` hold what this one counted, too, under ``scope`` (int64) of each scope here. Where that is -1,
        it has counted the samples again."""
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

    def result(self, sample_filter: SampleFilter | None) -> Counted:
        """What was counted; of the filter's modules, what has an end in one of them."""
        self._finish()
        found = self._branch_table.result()
        found = found.take(any_end_in(sample_filter, found.a_module, found.b_module))
        out = Counted(found, None, self._samples, self._entries)
        if self._sample_table is not None:
            at = self._sample_table.result()
            (module, address), (count,) = group([at.a_module, at.a], [at.count], [np.add])
            out.sampled = Sampled(module, address, count)
        if self._range_table is not None:
            found = self._range_table.result()
            found = found.take(any_end_in(sample_filter, found.a_module, found.b_module))
            crossing = found.a_module != found.b_module
            backward = ~crossing & (found.a > found.b)
            out.broken = {
                "next to an empty entry": self._broken,
                "ends in different modules": int(found.count[crossing].sum()),
                "ends before it starts": int(found.count[backward].sum()),
            }
            out.ranges = found.take(~(crossing | backward))
        return out


# -- Counting while a capture is indexed


_MOST_EARLY = 1 << 20
"""Rows that wait for the end of the index: beyond that they take more memory than reading again takes time."""
_EVERY_PROCESS = None
_MODES = 3
"""Bits of a mode."""


class EarlyCounts:
    """Counts the branch stacks of a capture while it is indexed: a `model.StackWatcher`.

    Scopes are not known yet. So a stack is counted under a number for its process and processor mode, from one block
    in which changes of the process's mappings were read to the next. When the index is complete, the binder's scopes at
    the earliest and the latest time of a number say whether all of its samples have one scope: mostly they do. Those of
    other numbers are read again, and those of blocks in which such changes were read, which are not counted early.
    """

    def __init__(self, *, ranges: bool, details: bool, sampled: bool = False) -> None:
        self._spaces = _Unbound()
        self._counter: EntryCounter | None = EntryCounter(
            self._spaces, ranges=ranges, details=details, sampled=sampled
        )  # fmt: skip
        self._complete = False
        self._changes = 0
        self._one_half: bool | None = None
        self._live: dict[int, int] = {}
        self._known = self._numbers = np.empty(0, np.int64)
        self._facts: list[list[int]] = []
        """Of each number: process and mode in one word (`_owners`), earliest and latest time, first and last block."""
        self._late: dict[int, set[int] | None] = {}
        """Block -> processes whose samples were not counted."""

    # -- while the index is made

    def add(self, batch: SampleBatch, block: int, first: int, last: int, known: Timeline) -> None:
        """Count a block (see `StackWatcher`)."""
        if self._counter is None:
            return
        if self._one_half is None:
            self._one_half = kernel_start(known.columns()) == KERNEL_HALF
        if len(known) != self._changes:
            batch = self._without_changed(batch, block, _touched(known.since(self._changes)))
            self._changes = len(known)
        if not len(batch):
            return
        owner = self._owners(batch)
        at = np.minimum(np.searchsorted(self._known, owner), max(0, len(self._known) - 1))
        if not len(self._known) or (self._known[at] != owner).any():
            self._learn(owner)
            at = np.searchsorted(self._known, owner)
        self._spaces.now = self._numbers[at]
        for number in self._numbers[np.bincount(at).nonzero()[0]].tolist():
            facts = self._facts[number]
            facts[1:] = min(facts[1], first), max(facts[2], last), min(facts[3], block), block
        self._counter.add(batch)
        if self._counter.bound > _MOST_EARLY:
            self._counter = None

    def end(self, whole: bool) -> None:
        """The index is complete."""
        self._complete = whole

    def _without_changed(self, batch: SampleBatch, block: int, changed: set[int] | None) -> SampleBatch:
        """The samples of ``batch`` whose processes did not change."""
        if changed == set():
            return batch
        self._late[block] = changed
        self._live = {
            owner: number for owner, number in self._live.items()
            if changed is not _EVERY_PROCESS and owner >> _MODES not in changed
        }  # fmt: skip
        self._sort()
        if changed is _EVERY_PROCESS:
            return batch.slice(0, 0)
        return batch.select(~np.isin(batch.pid, list(changed)))

    def _owners(self, batch: SampleBatch) -> NDArray[np.int64]:
        """int64: process and mode of each sample. Where the address says which half it belongs to, the modes of the
        host are one, as in the binder's scopes."""
        mode = batch.mode.astype(np.int64)
        if self._one_half:
            mode[mode <= Mode.USER] = Mode.UNKNOWN
        return batch.pid.astype(np.int64) << _MODES | mode & (1 << _MODES) - 1

    def _learn(self, owner: NDArray[np.int64]) -> None:
        for one in distinct(owner).tolist():
            if one not in self._live:
                self._live[one] = len(self._facts)
                self._facts.append([one, _LATEST, -_LATEST, _LATEST, 0])
        self._sort()

    def _sort(self) -> None:
        pairs = np.array(sorted(self._live.items()), np.int64).reshape(-1, 2)
        self._known, self._numbers = np.ascontiguousarray(pairs.T)

    # -- when it is complete

    def serves(self, counter: EntryCounter, sample_filter: SampleFilter | None) -> bool:
        """Whether all that ``counter`` is to count was counted."""
        if self._counter is None or not self._complete or (sample_filter is not None and sample_filter.by_columns):
            return False
        (ranges, *more), (wanted, *others) = self._counter.makes, counter.makes
        return ranges >= wanted and more == others

    def pour(self, profile: Profile, counter: EntryCounter) -> bool:
        """Have ``counter`` hold what was counted. Whether that was possible: else the capture must be counted anew."""
        streams = [stream for stream in profile.streams if "branch_from" in stream.columns]
        if self._counter is None or len(streams) != 1:
            return False
        facts = np.array(self._facts, np.int64).reshape(-1, 5)
        scope = self._scopes(profile.binder, *facts[:, :3].T)
        again: dict[int, list[int]] = {block: [] for block in self._late}
        for owner, _, _, first, last in facts[scope < 0].tolist():
            for block in range(first, last + 1):
                again.setdefault(block, []).append(owner)
        if again and streams[0].blocks is None:
            return False
        for block, batch in streams[0].blocks(again) if again and streams[0].blocks else ():
            late = self._late.get(block, set())
            if late is _EVERY_PROCESS:
                counter.add(batch)
                continue
            if late:
                counter.add(batch.select(np.isin(batch.pid, list(late))))
            if again[block]:
                counter.add(batch.select(np.isin(self._owners(batch), again[block])), again=True)
        self._counter.pour(counter, scope)
        self._counter = None
        return True

    def _scopes(
        self, binder: AddressSpaces, owner: NDArray[np.int64], earliest: NDArray[np.int64], latest: NDArray[np.int64]
    ) -> NDArray[np.int64]:  # fmt: skip
        """int64 scope of each number; -1 where its samples may have several, or one without a process."""
        pid, mode = (owner >> _MODES).astype(np.int32), (owner & (1 << _MODES) - 1).astype(np.uint8)
        modes = [mode]
        if self._one_half:
            own = (np.uint8(Mode.KERNEL), np.uint8(Mode.USER))
            modes += [np.where(mode == Mode.UNKNOWN, other, mode) for other in own]
        found = [
            binder.scopes(SampleBatch({"time": time, "pid": pid, "mode": each}))
            for each in modes for time in (earliest, latest)
        ]  # fmt: skip
        same = np.logical_and.reduce([scope == found[0] for scope in found])
        return np.where(same & (binder.process_of(found[0]) >= 0), found[0], -1)


_LATEST = (1 << 63) - 1


def _touched(changes: Iterable[tuple[int, ...]]) -> set[int] | None:
    """The processes whose mappings differ after ``changes``: every one where it is those of the kernel."""
    touched = set[int]()
    for kind, _, pid, _, parent, _, start, *_ in changes:
        if kind in (Change.NAME, Change.EXIT) or (kind == Change.FORK and pid == parent):
            continue
        if pid < 0 or start >= KERNEL_HALF:
            return _EVERY_PROCESS
        touched.add(pid)
    return touched


class _Unbound:
    """`Spaces` while nothing can be bound: a scope is a number that `EarlyCounts` gives, and its own process."""

    def __init__(self) -> None:
        self.now = np.empty(0, np.int64)
        """Those of the batch that is counted."""

    def scopes(self, batch: SampleBatch) -> NDArray[np.int64]:
        return self.now

    def process_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        return scope

    def weights_of(self, scope: NDArray[np.int64]) -> int:
        return 1

    def locate(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Array]:
        return np.zeros(len(scope), np.int64), address


def _values(flags: NDArray[np.uint64]) -> list[Array]:
    """The columns of `BRANCH_VALUES` for each entry."""
    kind = branch_type(flags).astype(np.int64)
    in_tx, abort = flag(flags, "in_tx"), flag(flags, "abort")
    return [*cycles_of(flags), in_tx.view(np.int64), abort.view(np.int64), kind, kind]


def cycles_of(flags: NDArray[np.uint64]) -> list[Array]:
    """The columns ``cycles`` and ``timed`` of `BRANCH_VALUES` for each entry."""
    cycles = flag(flags, "cycles").view(np.int64)
    return [cycles, (cycles != 0).astype(np.int64)]
