"""When the samples of each name were taken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..arrays import Sums, Table
from ..model import Array, Profile, SampleBatch, SampleFilter
from .naming import Label, Namer
from .sample_filtering import filtered_batches

__all__ = ["Shares", "TimeCounter", "over_time"]


@dataclass(slots=True)
class Shares(Table):
    """Samples by event, name and part of the time; equal-length arrays, no row without samples.

    ``event`` int64 row of the events table; ``name`` int64 row of ``labels``; ``part`` int64; ``samples`` int64.
    ``start`` and ``end`` are the ticks that the parts divide evenly, ``parts`` how many there are.
    """

    event: Array
    name: Array
    part: Array
    samples: Array
    start: int
    end: int
    parts: int
    labels: list[Label]


class TimeCounter:
    """Counts the samples of batches over ``parts`` of the time that ``sample_filter`` leaves of ``profile``.

    The batches have what the filter leaves already.
    """

    def __init__(self, profile: Profile, parts: int, sample_filter: SampleFilter | None = None) -> None:
        first, last = profile.first_time, profile.last_time
        self.possible = first is not None and last is not None and profile.clock.has_time
        """Whether the source has time stamps, and samples."""
        first, last = first or 0, last or 0
        if sample_filter is not None:
            first = first if sample_filter.first is None else max(first, sample_filter.first)
            last = last if sample_filter.last is None else min(last, sample_filter.last - 1)
        self._profile = profile
        self._first, self._span, self._parts, self._binder = first, max(1, last - first + 1), parts, profile.binder
        self._sums = Sums([np.int64, np.int64, np.int64, np.uint64, np.int64], [np.int64])

    def add(self, batch: SampleBatch) -> None:
        if not self.possible:
            return
        scope = self._binder.scopes(batch)
        module, address = self._binder.locate(scope, batch.ip)
        part = ((batch.time - self._first) * (self._parts / self._span)).astype(np.int64)
        once, process = np.full(len(batch), self._profile.weight_of(batch)), self._binder.process_of(scope)
        self._sums.add(batch.event.astype(np.int64), process, module, address, np.clip(part, 0, self._parts - 1), once)

    def result(self, namer: Namer) -> Shares | None:
        """By the function of the samples' own instruction address; ``None`` where it is not `possible`."""
        if not self.possible:
            return None
        event, process, module, address, part, samples = self._sums.result()
        named = Sums([np.int64] * 3, [np.int64])
        named.add(event, namer.rows(process, module, address), part, samples)
        event, name, part, samples = named.result()
        end = self._first + self._span
        return Shares(event, name, part, samples, self._first, end, self._parts, namer.labels)


def over_time(
    profile: Profile, namer: Namer, parts: int, *, sample_filter: SampleFilter | None = None
) -> Shares | None:
    """Samples by the function of their own instruction address, over ``parts`` of the time that the filter leaves.

    ``None`` where the source has no time stamps or no samples.
    """
    counter = TimeCounter(profile, parts, sample_filter)
    for batch in filtered_batches(profile, profile.batches(()), sample_filter) if counter.possible else ():
        counter.add(batch)
    return counter.result(namer)


def samples_over_time(
    profile: Profile, parts: int, *, sample_filter: SampleFilter | None = None
) -> NDArray[np.int64] | None:
    """int64[parts]: samples in each of ``parts`` equal parts of the time that the filter leaves.

    ``None`` where the source has no time stamps or no samples.
    """
    if (time := _time(profile, sample_filter)) is None:
        return None
    out = np.zeros(parts, np.int64)
    for batch in filtered_batches(profile, profile.batches(()), sample_filter):
        out += np.bincount(_part(batch.time, *time, parts), minlength=parts) * profile.weight_of(batch)
    return out


def _time(profile: Profile, chosen: SampleFilter | None) -> tuple[int, int] | None:
    """(first tick, how many there are) of the time that the filter leaves."""
    first, last = profile.first_time, profile.last_time
    if first is None or last is None or not profile.clock.has_time:
        return None
    if chosen is not None:
        first = first if chosen.first is None else max(first, chosen.first)
        last = last if chosen.last is None else min(last, chosen.last - 1)
    return first, max(1, last - first + 1)


def _part(time: Array, first: int, span: int, parts: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.clip(((time - first) * (parts / span)).astype(np.int64), 0, parts - 1)
    return found
