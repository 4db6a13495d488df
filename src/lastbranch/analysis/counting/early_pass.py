"""Counting while a capture is indexed, which saves reading it again.

Everything in the file is known only when the index is complete: early counts are kept if their place turns out to be
certain, and the rest is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...model import KERNEL_HALF, AddressSpaces, Array, Change, Mode, Profile, SampleBatch, Timeline, kernel_start

__all__ = ["Counter", "EarlyPass", "Spaces"]


class Spaces(Protocol):
    """The part of `AddressSpaces` that counters use."""

    def scopes(self, batch: SampleBatch) -> NDArray[np.int64]: ...

    def process_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64]: ...

    def weights_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64] | int: ...

    def locate(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Array]: ...


class Counter(Protocol):
    """Counts batches by scope."""

    def add(self, batch: SampleBatch, *, again: bool = False) -> None:
        """Count a batch; ``again``: the totals that `pour` adds hold the batch already."""

    @property
    def bound(self) -> int:
        """Rows that it has in memory, about."""

    def pour(self, other: Self, scope: NDArray[np.int64]) -> None:
        """Add this counter's counts to ``other``, under ``scope`` (int64) of each scope here; -1: ``other`` has counted
        the samples of this scope again."""


_MOST_EARLY = 1 << 20
"""Rows that wait for the end of the index: beyond that they take more memory than reading again takes time."""
_EVERY_PROCESS = None
_MODES = 3
"""Bits of a mode."""


C = TypeVar("C", bound=Counter)


class EarlyPass(Generic[C]):
    """Counts the branch stacks of a capture while the capture is indexed, with counters from ``make``: a
    `model.StackWatcher`. ``by_event``: a counter for each event, else a single counter.

    Scopes are not known yet. So a stack is counted under a number for its process and processor mode, from one block in
    which changes of the process's mappings were read to the next. When the index is complete, the binder's scopes at
    the earliest and the latest time of a number say whether all of its samples have one scope: mostly they do. Samples
    of other numbers are read again. So are samples of blocks with such changes: they are not counted early.
    """

    def __init__(self, make: Callable[[Spaces], C], *, by_event: bool = False) -> None:
        self._make, self._by_event = make, by_event
        self._spaces = _Unbound()
        self._counters: dict[int, C] | None = {}
        """By event, or that of all: 0. ``None`` once it was given up."""
        self._complete = False
        self._changes = 0
        self._one_half: bool | None = None
        self._live: dict[int, int] = {}
        self._known = self._numbers = np.empty(0, np.int64)
        self._facts: list[list[int]] = []
        """By number: process and mode in one word (`_owners`), earliest and latest time, first and last block."""
        self._late: dict[int, set[int] | None] = {}
        """Block -> processes whose samples were not counted."""

    # -- while the index is made

    def add(self, batch: SampleBatch, block: int, first: int, last: int, known: Timeline) -> None:
        """Count a block (see `StackWatcher`)."""
        if self._counters is None:
            return
        if self._one_half is None:
            self._one_half = kernel_start(known.columns()) == KERNEL_HALF
        if len(known) != self._changes:
            batch = self._without_changed(batch, block, _processes_touched(known.since(self._changes)))
            self._changes = len(known)
        if not len(batch):
            return
        owner = self._owners(batch)
        at = np.minimum(np.searchsorted(self._known, owner), max(0, len(self._known) - 1))
        if not len(self._known) or (self._known[at] != owner).any():
            self._learn(owner)
            at = np.searchsorted(self._known, owner)
        for number in self._numbers[np.bincount(at).nonzero()[0]].tolist():
            facts = self._facts[number]
            facts[1:] = min(facts[1], first), max(facts[2], last), min(facts[3], block), block
        for event, rows in self._events(batch):
            if event not in self._counters:
                self._counters[event] = self._make(self._spaces)
            self._spaces.now = self._numbers[at[rows]]
            self._counters[event].add(_select_rows(batch, rows))
        if sum(counter.bound for counter in self._counters.values()) > _MOST_EARLY:
            self._counters = None

    def end(self, whole: bool) -> None:
        """The index is complete."""
        self._complete = whole

    def _without_changed(self, batch: SampleBatch, block: int, changed: set[int] | None) -> SampleBatch:
        """The samples of ``batch`` whose processes did not change."""
        if changed == set():
            return batch
        self._late[block] = changed
        self._live = {
            owner: number
            for owner, number in self._live.items()
            if changed is not _EVERY_PROCESS and owner >> _MODES not in changed
        }
        self._sort()
        if changed is _EVERY_PROCESS:
            return batch.slice(0, 0)
        return batch.select(~np.isin(batch.pid, list(changed)))

    def _events(self, batch: SampleBatch) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
        """The counters of a batch, and its samples that each of them counts."""
        found = np.bincount(batch.event).nonzero()[0].tolist() if self._by_event else [0]
        for event in found:
            yield event, slice(None) if len(found) == 1 else np.flatnonzero(batch.event == event)

    def _owners(self, batch: SampleBatch) -> NDArray[np.int64]:
        """int64: process and mode of each sample. If an address alone tells kernel from user, the modes of the host
        count as one mode, as in the binder's scopes."""
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

    def pour(self, profile: Profile, counters: Sequence[C]) -> bool:
        """Have ``counters``, by row of the events table where that was requested, hold what was counted. Return whether
        this was possible: if not, the capture must be counted anew."""
        streams = [stream for stream in profile.streams if "branch_from" in stream.columns]
        if self._counters is None or not self._complete or len(streams) != 1:
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
                self._add(counters, batch)
                continue
            if late:
                self._add(counters, batch.select(np.isin(batch.pid, list(late))))
            if again[block]:
                self._add(counters, batch.select(np.isin(self._owners(batch), again[block])), again=True)
        for event, counter in self._counters.items():
            counter.pour(counters[event], scope)
        self._counters = None
        return True

    def _add(self, counters: Sequence[C], batch: SampleBatch, *, again: bool = False) -> None:
        for event, rows in self._events(batch):
            counters[event].add(_select_rows(batch, rows), again=again)

    def _scopes(
        self, binder: AddressSpaces, owner: NDArray[np.int64], earliest: NDArray[np.int64], latest: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """int64 scope of each number; -1 where its samples may have several, or one without a process."""
        pid, mode = (owner >> _MODES).astype(np.int32), (owner & (1 << _MODES) - 1).astype(np.uint8)
        modes = [mode]
        if self._one_half:
            own = (np.uint8(Mode.KERNEL), np.uint8(Mode.USER))
            modes += [np.where(mode == Mode.UNKNOWN, other, mode) for other in own]
        found = [
            binder.scopes(SampleBatch({"time": time, "pid": pid, "mode": each}))
            for each in modes
            for time in (earliest, latest)
        ]
        same = np.logical_and.reduce([scope == found[0] for scope in found])
        return np.where(same & (binder.process_of(found[0]) >= 0), found[0], -1)


def _select_rows(batch: SampleBatch, rows: NDArray[np.int64] | slice) -> SampleBatch:
    return batch if isinstance(rows, slice) else batch.select(rows)


_LATEST = (1 << 63) - 1


def _processes_touched(changes: Iterable[tuple[int, ...]]) -> set[int] | None:
    """The processes whose mappings differ after ``changes``; ``None``: every process, because the kernel's mappings
    differ."""
    touched = set[int]()
    for kind, _, pid, _, parent, _, start, *_ in changes:
        if kind in (Change.NAME, Change.EXIT, Change.RAN) or (kind == Change.FORK and pid == parent):
            continue
        if pid < 0 or start >= KERNEL_HALF:
            return _EVERY_PROCESS
        touched.add(pid)
    return touched


class _Unbound:
    """`Spaces` while nothing can be bound: a scope is a number that `EarlyPass` gives, and its own process."""

    def __init__(self) -> None:
        self.now = np.empty(0, np.int64)
        """The scopes of the batch that is counted."""

    def scopes(self, batch: SampleBatch) -> NDArray[np.int64]:
        return self.now

    def process_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        return scope

    def weights_of(self, scope: NDArray[np.int64]) -> int:
        return 1

    def locate(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Array]:
        return np.zeros(len(scope), np.int64), address
