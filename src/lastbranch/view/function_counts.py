"""The counts for the first screen and for the frame of all screens, in one pass over the samples; for a growing
recording, only over the new samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..analysis import Estimate, Key, Namer, NameTable, WeightTable
from ..analysis.counting.count_tables import WeightCounter
from ..analysis.counting.over_time import KeptTimes, Shares, TimeCounter, TimelineCounter
from ..analysis.stacks.functions import NameCounter
from ..analysis.statistics.share_noise import Noise, innermost, noise_of_addresses
from ..arrays import distinct
from ..model import KERNEL_HALF, AddressSpaces, Array, Change, Profile, SampleBatch, SampleFilter

if TYPE_CHECKING:
    from ..formats.perfdata.growing import IndexedSoFar

__all__ = ["MOMENTS", "WEIGHED", "FunctionCounts", "FunctionTables", "GrowingCounts"]

MOMENTS = 240
"""Parts of the time in `FunctionTables.timeline`."""
WEIGHED: tuple[Key, ...] = ("process", "module")


class FunctionTables(NamedTuple):
    """The result of a pass: `analysis.names` by function, with branches; their samples over parts of the time, and the
    noise of their shares; `analysis.weights_by` `WEIGHED`; `samples_over_time`, `MOMENTS` numbers."""

    functions: NameTable
    times: Shares | None
    noise: Noise
    weights: list[WeightTable]
    timeline: NDArray[np.int64] | None


class FunctionCounts:
    """Counts, for `FunctionTables` with the functions over so many ``parts`` of the time, the samples that ``chosen``
    keeps. ``grows``: more samples come after tables were made."""

    def __init__(
        self, profile: Profile, parts: int, chosen: SampleFilter | None = None, *, grows: bool = False
    ) -> None:
        self.parts, self._grows = parts, grows
        self._names = NameCounter(profile, chosen, totals=False, branches=True)
        self._weights, self._noise = WeightCounter(profile, WEIGHED), noise_of_addresses(profile)
        self._kept = KeptTimes(profile)
        self._times, self._timeline = TimeCounter(profile, parts, chosen), TimelineCounter(profile, MOMENTS, chosen)
        times = [self._kept] if grows else [self._times, self._timeline]
        self._watching = [self._weights, self._noise, *times]

    def add(self, profile: Profile, watch: Callable[[SampleBatch], None] = lambda batch: None) -> None:
        """Count the samples of ``profile``, whose tables begin with those of the first one. ``watch`` sees them too."""

        def add_batch(batch: SampleBatch) -> None:
            watch(batch)
            for counter in self._watching:
                counter.add(batch)

        self._names.add(profile, add_batch)

    def tables(self, profile: Profile, namer: Namer, estimate: Estimate) -> FunctionTables:
        """The tables of the counts, which are complete for ``profile``."""
        table = self._names.result("function", namer, estimate, goes_on=self._grows)
        by_function = partial(innermost, namer, "function")
        noise = self._noise.of(table.event, table.name, table.samples, by_function)
        if not self._grows:
            times, timeline = self._times.result(namer), self._timeline.result()
        else:
            times, timeline = self._kept.shares(profile, namer, self.parts), self._kept.timeline(profile, MOMENTS)

            def is_last(_process: Array, module: Array, _address: Array) -> Array:
                # Code that is made at run time gets its names later, and so may any while they are looked for.
                return namer.is_complete(module) & ~namer.is_own(module)

            self._noise.settle(by_function, is_last)
        return FunctionTables(table, times, noise, self._weights.result(), timeline)


class GrowingCounts:
    """The counts of all samples of a growing recording. Each new state counts only its new samples, unless new facts
    may have changed where earlier samples belong: then all samples are counted again."""

    def __init__(self) -> None:
        self._counts: FunctionCounts | None = None
        self._before: IndexedSoFar | None = None
        self._spaces = _NewestSpaces()
        self._newest: dict[int, int] = {}
        """The time of the newest sample of each process id."""

    def tables(self, state: IndexedSoFar, parts: int, namer: Namer, estimate: Estimate) -> FunctionTables:
        """The tables of all samples of ``state``, whose profile is bound."""
        part, before, counts = copy.copy(state.profile), self._before, self._counts
        part.binder = self._spaces
        if counts is not None and before is not None and counts.parts == parts and self._goes_on(before, state):
            part.streams = state.since(before.end)
        else:
            counts, self._newest = None, {}
        self._counts = None  # for good, where it fails
        self._spaces.newest = state.profile.binder
        counts = counts or FunctionCounts(part, parts, grows=True)
        counts.add(part, self._note_times)
        found = counts.tables(state.profile, namer, estimate)  # all is bound now
        self._counts, self._before = counts, state
        return found

    def _note_times(self, batch: SampleBatch) -> None:
        for pid in distinct(batch.pid).tolist():
            newest = int(batch.time[batch.pid == pid].max())
            self._newest[pid] = max(newest, self._newest.get(pid, newest))

    def _goes_on(self, before: IndexedSoFar, state: IndexedSoFar) -> bool:
        """Whether samples until ``before`` belong where they did: no change of address spaces since is earlier
        than one before, or than a sample of its process, and rows of tables stay."""
        if before.number != state.number or before.end > state.end:
            return False
        if before.tables == state.tables:
            return True
        old, now = before.profile, state.profile
        lives = [[(process.pid, process.start) for process in profile.processes] for profile in (old, now)]
        if len(old.events) != len(now.events) or lives[1][: len(lives[0])] != lives[0] or old.damage or now.damage:
            return False
        latest = int(old.timeline.columns()["time"].max(initial=0))
        for kind, time, pid, _, parent, _, start, *_ in now.timeline.since(len(old.timeline)):
            if kind in (Change.NAME, Change.EXIT, Change.RAN) or (kind == Change.FORK and pid == parent):
                continue  # of threads
            if pid < 0 or start >= KERNEL_HALF or time < latest or time <= self._newest.get(pid, -1):
                return False
        return True


class _NewestSpaces:
    """The address spaces of the newest state, for counters that are about all states."""

    newest: AddressSpaces

    def __getattr__(self, name: str) -> Any:
        return getattr(self.newest, name)
