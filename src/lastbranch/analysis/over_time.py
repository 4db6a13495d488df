"""When the samples of each name were taken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Sums, Table
from ..model import Array, Profile, SampleFilter
from .naming import Label, Namer
from .sample_filtering import filtered_batches

__all__ = ["Shares", "over_time"]


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


def over_time(
    profile: Profile, namer: Namer, parts: int, *, sample_filter: SampleFilter | None = None
) -> Shares | None:
    """Samples by the function of their own instruction address, over ``parts`` of the time that the filter leaves.

    ``None`` where the source has no time stamps or no samples.
    """
    first, last = profile.first_time, profile.last_time
    if first is None or last is None or not profile.clock.has_time:
        return None
    if sample_filter is not None:
        first = first if sample_filter.first is None else max(first, sample_filter.first)
        last = last if sample_filter.last is None else min(last, sample_filter.last - 1)
    span = max(1, last - first + 1)
    binder, sums = profile.binder, Sums([np.int64, np.int64, np.int64, np.uint64, np.int64], [np.int64])
    for batch in filtered_batches(profile, profile.batches(()), sample_filter):
        scope = binder.scopes(batch)
        module, address = binder.locate(scope, batch.ip)
        part = np.clip(((batch.time - first) * (parts / span)).astype(np.int64), 0, parts - 1)
        ones = np.ones(len(batch), np.int64)
        sums.add(batch.event.astype(np.int64), binder.process_of(scope), module, address, part, ones)
    event, process, module, address, part, samples = sums.result()
    named = Sums([np.int64] * 3, [np.int64])
    named.add(event, namer.rows(process, module, address), part, samples)
    event, name, part, samples = named.result()
    return Shares(event, name, part, samples, first, first + span, parts, namer.labels)
