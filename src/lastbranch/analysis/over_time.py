"""When the samples of each name were taken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..arrays import Sums, Table
from ..model import Array, Profile, SampleBatch, SampleFilter
from .naming import Label, Namer
from .sample_filtering import filtered_batches

__all__ = ["Shares", "TimeCounter", "TimelineCounter", "over_time", "samples_over_time"]


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
        self._profile = profile
        self._time, self._parts, self._binder = _time(profile, sample_filter), parts, profile.binder
        self._sums = Sums([np.int64, np.int64, np.int64, np.uint64, np.int64], [np.int64])

    def add(self, batch: SampleBatch) -> None:
        """Count a batch."""
        if self._time is None:
            return
        scope = self._binder.scopes(batch)
        module, address = self._binder.locate(scope, batch.ip)
        once, process = np.full(len(batch), self._profile.weight_of(batch)), self._binder.process_of(scope)
        part = _part(batch.time, *self._time, self._parts)
        self._sums.add(batch.event.astype(np.int64), process, module, address, part, once)

    def result(self, namer: Namer) -> Shares | None:
        """By the function of the samples' own instruction address; ``None`` where the source has no time stamps or no
        samples."""
        if self._time is None:
            return None
        event, process, module, address, part, samples = self._sums.result()
        named = Sums([np.int64] * 3, [np.int64])
        named.add(event, namer.rows(process, module, address), part, samples)
        event, name, part, samples = named.result()
        first, span = self._time
        return Shares(event, name, part, samples, first, first + span, self._parts, namer.labels)


def over_time(
    profile: Profile, namer: Namer, parts: int, *, sample_filter: SampleFilter | None = None
) -> Shares | None:
    """Samples by the function of their own instruction address, over ``parts`` of the time that the filter leaves.

    ``None`` where the source has no time stamps or no samples.
    """
    counter = TimeCounter(profile, parts, sample_filter)
    for batch in filtered_batches(profile, profile.batches(()), sample_filter) if _time(profile, None) else ():
        counter.add(batch)
    return counter.result(namer)


class TimelineCounter:
    """Counts the samples of batches over ``parts`` of the time, as `TimeCounter` does, whatever their names."""

    def __init__(self, profile: Profile, parts: int, sample_filter: SampleFilter | None = None) -> None:
        self._profile, self._time = profile, _time(profile, sample_filter)
        self._samples = np.zeros(parts, np.int64)

    def add(self, batch: SampleBatch) -> None:
        """Count a batch."""
        if self._time is not None:
            parts = len(self._samples)
            found = np.bincount(_part(batch.time, *self._time, parts), minlength=parts)
            self._samples += found * self._profile.weight_of(batch)

    def result(self) -> NDArray[np.int64] | None:
        """int64[parts]; ``None`` where the source has no time stamps or no samples."""
        return None if self._time is None else self._samples


def samples_over_time(
    profile: Profile, parts: int, *, sample_filter: SampleFilter | None = None
) -> NDArray[np.int64] | None:
    """int64[parts]: samples in each of ``parts`` equal parts of the time that the filter leaves.

    ``None`` where the source has no time stamps or no samples.
    """
    counter = TimelineCounter(profile, parts, sample_filter)
    for batch in filtered_batches(profile, profile.batches(()), sample_filter) if _time(profile, None) else ():
        counter.add(batch)
    return counter.result()


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
