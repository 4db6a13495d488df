"""What the first screen and the frame of all screens are made of, counted in one pass over the samples; of a recording
that grows, only what is new."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..analysis import Estimate, NameTable, WeightTable
from ..analysis.count_tables import Key, WeightCounter
from ..analysis.functions import NameCounter
from ..analysis.naming import Namer
from ..analysis.over_time import KeptTimes, Shares, TimeCounter, TimelineCounter
from ..analysis.share_noise import Noise, innermost, noise_of_addresses
from ..model import Array, Profile, SampleBatch, SampleFilter

if TYPE_CHECKING:
    from ..formats.perfdata.growing import IndexedSoFar

__all__ = ["MOMENTS", "WEIGHED", "FunctionCounts", "FunctionTables", "GrowingCounts"]

MOMENTS = 240
"""Parts of the time in `FunctionTables.timeline`."""
WEIGHED: tuple[Key, ...] = ("process", "module")


class FunctionTables(NamedTuple):
    """What a pass gives: `analysis.names` by function, with branches; their samples over parts of the time, and the
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
        self._parts, self._grows = parts, grows
        self._names = NameCounter(profile, chosen, totals=False, branches=True)
        self._weights, self._noise = WeightCounter(profile, WEIGHED), noise_of_addresses(profile)
        self._kept = KeptTimes(profile)
        self._times, self._timeline = TimeCounter(profile, parts, chosen), TimelineCounter(profile, MOMENTS, chosen)
        times = [self._kept] if grows else [self._times, self._timeline]
        self._watching = [self._weights, self._noise, *times]

    def add(self, profile: Profile) -> None:
        """Count the samples of ``profile``, which has the tables of the first one."""
        self._names.add(profile, self._watch)

    def _watch(self, batch: SampleBatch) -> None:
        for counter in self._watching:
            counter.add(batch)

    def tables(self, profile: Profile, namer: Namer, estimate: Estimate) -> FunctionTables:
        """The tables of what was counted, which is all of ``profile``."""
        table = self._names.result("function", namer, estimate, goes_on=self._grows)
        by_function = partial(innermost, namer, "function")
        noise = self._noise.of(table.event, table.name, table.samples, by_function)
        if not self._grows:
            times, timeline = self._times.result(namer), self._timeline.result()
        else:
            times, timeline = self._kept.shares(profile, namer, self._parts), self._kept.timeline(profile, MOMENTS)

            def is_last(_process: Array, module: Array, _address: Array) -> Array:
                return ~namer.is_own(module)  # code that is made at run time gets its names later

            self._noise.settle(by_function, is_last)
        return FunctionTables(table, times, noise, self._weights.result(), timeline)


class GrowingCounts:
    """The counts of all samples of a recording that grows. Of each state only what it has more than the one before is
    counted; where the tables are other ones, all of it."""

    def __init__(self) -> None:
        self._counts: FunctionCounts | None = None
        self._of: Hashable = None
        self._end = 0

    def until(self, state: IndexedSoFar, parts: int) -> FunctionCounts:
        """The counts of all samples of ``state``, whose profile is bound."""
        part, of = copy.copy(state.profile), (state.tables, parts)
        if self._counts is not None and self._of == of and self._end <= state.end:
            counts = self._counts
            part.streams = state.since(self._end)
        else:
            counts = FunctionCounts(part, parts, grows=True)
        self._counts = None  # for good, where it fails
        counts.add(part)
        self._counts, self._of, self._end = counts, of, state.end
        return counts
