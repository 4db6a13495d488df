"""Bursts: the samples that are one observation together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...model import ENTRY, Array, Profile, SampleBatch, column, concatenate

__all__ = ["BurstCount", "TimeSpan", "WholeBursts", "bursts_of", "share_bursts", "whole_bursts", "without_lists"]

_IN_RECORDS = "software-lbr"
"""The event whose bursts are longer than a record: a burst has several, which follow each other and have one time."""
_OPEN = 256
"""Most bursts that are kept back. One thread at a time is in a burst, so more are in pieces only where buffers of many
processors follow each other in a file."""


def share_bursts(profile: Profile) -> NDArray[np.bool_]:
    """bool, an event: several of its samples may be of one burst. Samples of other events are a burst each; without
    known times, all samples are."""
    return np.array([profile.clock.has_time and event.name == _IN_RECORDS for event in profile.events], bool)


def bursts_of(profile: Profile, batch: SampleBatch) -> NDArray[np.int64]:
    """int64, a sample of a batch of `whole_bursts`: the number of its burst in the batch, ascending from 0; samples of
    other events are one each."""
    if not len(batch):
        return np.zeros(0, np.int64)
    several = np.append(share_bursts(profile), False)[batch.event[1:]]
    return np.concatenate([[0], np.cumsum(~(several & _same(batch.event, batch.tid, batch.time, profile.tick)))])


def _same(event: Array, tid: Array, time: Array, tick: int) -> NDArray[np.bool_]:
    """bool: each sample but the first is of the same burst as the sample before. In a trace log they are a tick apart:
    call stacks are found by thread and time there, and no two may share both."""
    apart = time[1:] - time[:-1]
    near = (apart >= 0) & (apart <= tick)
    return np.asarray(near & (event[1:] == event[:-1]) & (tid[1:] == tid[:-1]))


def whole_bursts(profile: Profile, batches: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
    """The samples of ``batches``, the samples of each burst in one batch and next to each other: in a file, other
    samples and the end of a batch may lie between samples of a burst."""
    whole = WholeBursts(profile)
    for batch in batches:
        yield from whole.add(batch)
    yield from whole.rest()


class WholeBursts:
    """`whole_bursts` for batches that arrive singly."""

    def __init__(self, profile: Profile) -> None:
        self._several, self._tick = np.append(share_bursts(profile), False), profile.tick
        self._kept: SampleBatch | None = None
        """The newest burst of each thread on each processor, which may go on in the next batch: trace
        logs have a buffer of one processor after the other."""

    def add(self, batch: SampleBatch) -> list[SampleBatch]:
        """Add a batch; return the batches that are complete now."""
        if not self._several[batch.event].any():
            return [batch]
        out, kept = list[SampleBatch](), self._kept
        if kept is not None:
            if batch.in_place is not None:
                batch[ENTRY[0]]  # copied out as columns
            if _alike(kept, batch):
                batch = concatenate([kept, batch])
            else:
                out.append(kept)
        rows = np.flatnonzero(self._several[batch.event])
        # samples of one thread on one processor are in the order of their times
        rows = rows[np.lexsort((batch.cpu[rows], batch.tid[rows], batch.event[rows]))]
        event, tid, cpu = batch.event[rows], batch.tid[rows], batch.cpu[rows]
        stays = (event[1:] == event[:-1]) & (tid[1:] == tid[:-1]) & (cpu[1:] == cpu[:-1])
        burst = np.concatenate([[0], np.cumsum(~(stays & _same(event, tid, batch.time[rows], self._tick)))])
        last = np.append(~stays, True)  # of its thread there
        newest = np.sort(rows[last])[-_OPEN:]
        still_open = np.zeros(int(burst[-1]) + 1, bool)
        still_open[burst[np.isin(rows, newest)]] = True
        place = np.arange(len(batch))
        place[rows] = rows[np.searchsorted(burst, burst)]  # where the first of its burst is
        waits = np.zeros(len(batch), bool)
        waits[rows] = still_open[burst]
        order = np.argsort(place, kind="stable")
        waiting = waits[order]
        kept = batch.select(order[waiting])
        if kept.in_place is not None:
            kept[ENTRY[0]]
            kept.in_place = None
        self._kept, given = kept, order[~waiting]
        if len(given):
            whole = int(given[-1]) == len(given) - 1 and bool((np.diff(given) == 1).all())
            out.append(batch.slice(0, len(given)) if whole else batch.select(given))
        return out

    def open(self) -> list[SampleBatch]:
        """The batches that are still open, as `rest` would return them."""
        return [] if self._kept is None else [self._kept]

    def rest(self) -> list[SampleBatch]:
        """The samples of the bursts that are still open after the last batch."""
        kept, self._kept = self.open(), None
        return kept


def without_lists(batch: SampleBatch) -> SampleBatch:
    """The samples of a batch without branch entries and frames, which takes less to put together anew."""
    return SampleBatch({name: values for name, values in batch.columns.items() if column(name).group == "sample"})


class BurstCount:
    """Counts the bursts of samples; for events whose samples share no bursts, each sample counts as a burst."""

    def __init__(self, profile: Profile) -> None:
        self._profile, self._whole = profile, WholeBursts(profile)
        self._shared = bool(share_bursts(profile).any())
        self._count = 0

    def add(self, batch: SampleBatch) -> None:
        if not self._shared:
            self._count += len(batch) * self._profile.weight_of(batch)
            return
        for whole in self._whole.add(without_lists(batch)):
            self._add(whole)

    def _add(self, whole: SampleBatch) -> None:
        if len(whole):
            self._count += (int(bursts_of(self._profile, whole)[-1]) + 1) * self._profile.weight_of(whole)

    def result(self) -> int:
        """How many there were."""
        for whole in self._whole.rest():
            self._add(whole)
        return self._count


class TimeSpan:
    """The time from the first to the last sample of the batches that are added."""

    def __init__(self, profile: Profile) -> None:
        self._clock = profile.clock
        self._ends: tuple[int, int] | None = None

    def add(self, batch: SampleBatch) -> None:
        if len(batch):
            low, high = int(batch.time.min()), int(batch.time.max())
            self._ends = (min(low, self._ends[0]), max(high, self._ends[1])) if self._ends else (low, high)

    @property
    def seconds(self) -> float:
        """0 where no time is known."""
        if self._ends is None or not self._clock.has_time:
            return 0.0
        first, last = map(self._clock.to_ns, self._ends)
        return (last - first) / 1e9


def _alike(a: SampleBatch, b: SampleBatch) -> bool:
    """Whether they are of one capture, and have the same columns."""
    if a.columns.keys() != b.columns.keys():
        return False
    return "capture" not in a or bool(a["capture"][0] == b["capture"][0])
