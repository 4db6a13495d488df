"""When samples were taken and branches recorded: of each name, and of each process or thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...arrays import StackSums, Sums, Table, distinct_rows
from ...lbr import FLAG_FIELDS
from ...model import ENTRY, Array, Profile, SampleBatch, SampleFilter
from ..naming import Label, Namer
from ..samples import any_end_in, filtered_batches
from .bound_pairs import outcomes_of
from .count_tables import Key, rows_of

__all__ = [
    "KeptTimes",
    "Rates",
    "Shares",
    "TimeCounter",
    "TimelineCounter",
    "losses_over_time",
    "over_time",
    "rates_over_time",
    "samples_over_time",
]


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
        self._time, self._parts, self._binder = time_span(profile, sample_filter), parts, profile.binder
        self._sums = StackSums(4, 1)
        """By event, scope, address and part: only distinct ones are bound."""

    def add(self, batch: SampleBatch) -> None:
        """Count a batch."""
        if self._time is None:
            return
        part, once = _part(batch.time, *self._time, self._parts), np.full(len(batch), self._profile.weight_of(batch))
        keys = batch.event.astype(np.int64), self._binder.scopes(batch), batch.ip.view(np.int64), part
        self._sums.add(keys, np.empty(0, np.uint64), np.zeros(len(batch) + 1, np.int64), [once])

    def result(self, namer: Namer) -> Shares | None:
        """By the function of the samples' own instruction address; ``None`` where the source has no time stamps or no
        samples."""
        if self._time is None:
            return None
        (event, scope, ip, part), _, _, (samples,) = self._sums.read()
        module, address = self._binder.locate(scope, ip.view(np.uint64))
        named = Sums([np.int64] * 3, [np.int64])
        named.add(event, namer.rows(self._binder.process_of(scope), module, address), part, samples)
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
    for batch in filtered_batches(profile, profile.batches(()), sample_filter) if time_span(profile, None) else ():
        counter.add(batch)
    return counter.result(namer)


class TimelineCounter:
    """Counts the samples of batches over ``parts`` of the time, as `TimeCounter` does, whatever their names."""

    def __init__(self, profile: Profile, parts: int, sample_filter: SampleFilter | None = None) -> None:
        self._profile, self._time = profile, time_span(profile, sample_filter)
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


class KeptTimes:
    """Counts the samples of batches over the time of a recording that grows, whose end moves: as `TimeCounter` and
    `TimelineCounter` do when it is known. Each sample takes 12 bytes."""

    def __init__(self, profile: Profile) -> None:
        self._binder = profile.binder
        self._places: dict[tuple[int, ...], int] = {}
        """Rows of event, process, module and module address."""
        self._place, self._time, self._samples = np.empty(0, np.int32), np.empty(0, np.int64), 0

    def add(self, batch: SampleBatch) -> None:
        """Keep the needed columns of a batch, whose samples count once each."""
        columns = batch.event.astype(np.int64), self._binder.scopes(batch), batch.ip.view(np.int64)
        once, which = distinct_rows(*columns)
        event, scope, ip = (column[once] for column in columns)
        module, address = self._binder.locate(scope, ip.view(np.uint64))
        places = zip(*(c.tolist() for c in (event, self._binder.process_of(scope), module, address)), strict=True)
        numbers = np.array([self._places.setdefault(place, len(self._places)) for place in places], np.int32)
        end = self._samples + len(batch)
        if end > len(self._place):
            self._place, self._time = np.resize(self._place, 2 * end), np.resize(self._time, 2 * end)
        self._place[self._samples : end], self._time[self._samples : end] = numbers[which], batch.time
        self._samples = end

    def shares(self, profile: Profile, namer: Namer, parts: int) -> Shares | None:
        """`TimeCounter.result` over the time of ``profile``, whose tables begin with those of the one before."""
        time, width = time_span(profile, None), len(self._places)
        if time is None or not width:
            return None
        key = _part(self._time[: self._samples], *time, parts) * width + self._place[: self._samples]
        counted = np.bincount(key, minlength=parts * width)
        part, place = np.divmod(np.flatnonzero(counted), max(1, width))
        event, process, module, address = (
            np.fromiter(column, kind, width)
            for column, kind in zip(zip(*self._places, strict=True), (np.int64,) * 3 + (np.uint64,), strict=True)
        )
        named = Sums([np.int64] * 3, [np.int64])
        named.add(event[place], namer.rows(process, module, address)[place], part, counted[counted > 0])
        event, name, part, samples = named.result()
        first, span = time
        return Shares(event, name, part, samples, first, first + span, parts, namer.labels)

    def timeline(self, profile: Profile, parts: int) -> NDArray[np.int64] | None:
        """`TimelineCounter.result` over the time of ``profile``."""
        time = time_span(profile, None)
        if time is None:
            return None
        return np.bincount(_part(self._time[: self._samples], *time, parts), minlength=parts)


def samples_over_time(
    profile: Profile, parts: int, *, sample_filter: SampleFilter | None = None
) -> NDArray[np.int64] | None:
    """int64[parts]: samples in each of ``parts`` equal parts of the time that the filter leaves.

    ``None`` where the source has no time stamps or no samples.
    """
    counter = TimelineCounter(profile, parts, sample_filter)
    for batch in filtered_batches(profile, profile.batches(()), sample_filter) if time_span(profile, None) else ():
        counter.add(batch)
    return counter.result()


@dataclass(slots=True)
class Rates(Table):
    """Samples and branches by owner and part of the time; equal-length arrays, no row without any.

    ``owner`` int64 row of the processes or threads table, -1 not known; ``part`` int64; int64 ``samples``, the
    ``branches`` recorded with them, and of these ``mispredicted`` and ``predicted`` (both 0: not reported).
    """

    owner: Array
    part: Array
    samples: Array
    branches: Array
    mispredicted: Array
    predicted: Array


def rates_over_time(
    profile: Profile, parts: int, by: Key, *, sample_filter: SampleFilter | None = None
) -> Rates | None:
    """Samples and branches by ``process`` or ``thread``, over ``parts`` of the time that the filter leaves.

    With a filter of modules, a sample counts by its own address, and a branch by either end, as everywhere. ``None``
    where the source has no time stamps or no samples.
    """
    time = time_span(profile, sample_filter)
    if time is None:
        return None
    binder, sums = profile.binder, Sums([np.int64] * 2, [np.int64] * 4)
    modules = list(sample_filter.modules) if sample_filter else []
    for stream in profile.streams:
        batches = stream.batches(ENTRY if "branch_from" in stream.columns else ())
        for batch in filtered_batches(profile, batches, sample_filter, by_address=False):
            scope = binder.scopes(batch)
            samples = np.ones(len(batch), bool)
            if modules:
                samples = np.isin(binder.locate(scope, batch.ip)[0], modules)
            counts = [samples, *_branches_of(profile, batch, scope, sample_filter)]
            values = [count.astype(np.int64) * profile.weight_of(batch) for count in counts]
            some = (values[0] | values[1]) > 0
            keys = rows_of(binder, batch, by), _part(batch.time, *time, parts)
            sums.add(*(column[some] for column in (*keys, *values)))
    return Rates(*sums.result())


_NOT_TAKEN = np.uint64(1 << FLAG_FIELDS["not_taken"][0])


def _branches_of(profile: Profile, batch: SampleBatch, scope: Array, chosen: SampleFilter | None) -> list[Array]:
    """(branches, mispredicted, predicted) of each sample, as many as `branches` counts."""
    if not batch.entries:
        return [np.zeros(len(batch), np.int64)] * 3
    source, target, flags = (batch[name] for name in ENTRY)
    each = np.repeat(np.arange(len(batch)), batch.depth)
    taken = ((source | target) != 0) & (flags & _NOT_TAKEN == 0)
    if chosen is not None and chosen.modules:
        binder, scope = profile.binder, scope[each]
        taken &= any_end_in(chosen, binder.locate(scope, source)[0], binder.locate(scope, target)[0])
    wrong, right = outcomes_of(flags)
    return [np.bincount(each[kind], minlength=len(batch)) for kind in (taken, taken & (wrong > 0), taken & (right > 0))]


def losses_over_time(profile: Profile, parts: int) -> NDArray[np.int64] | None:
    """int64[parts]: records and samples that were lost, at the time that the source says; ``None`` where it does not
    say when."""
    time = time_span(profile, None)
    if time is None or (profile.lost_records and not profile.losses):
        return None
    out = np.zeros(parts, np.int64)
    for when, how_many in profile.losses:
        out[_part(np.array([when]), *time, parts)] += how_many
    return out


def time_span(profile: Profile, chosen: SampleFilter | None) -> tuple[int, int] | None:
    """(first tick, how many there are) of the time that the filter leaves; ``None`` where times are not known."""
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
