"""Bursts: the samples that are one observation together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model import Profile, SampleBatch

__all__ = ["bursts_of", "share_bursts"]

_IN_RECORDS = "software-lbr"
"""The event whose bursts are longer than a record: a burst has several, which follow each other and have one time."""
_APART = 1
"""Ticks from one to the next in a trace log, where call stacks are found by thread and time: no two may share both."""


def share_bursts(profile: Profile) -> NDArray[np.bool_]:
    """bool, an event: several of its samples may be of one burst. Those of other events are one each, and all are where
    times are not known."""
    return np.array([profile.clock.has_time and event.name == _IN_RECORDS for event in profile.events], bool)


def bursts_of(profile: Profile, batch: SampleBatch) -> NDArray[np.int64]:
    """int64, a sample: the number of its burst in the batch, from 0 on; samples of other events are one each."""
    if not len(batch):
        return np.zeros(0, np.int64)
    several = np.append(share_bursts(profile), False)[batch.event[1:]]
    same = several & (batch.event[1:] == batch.event[:-1])
    apart = batch.time[1:] - batch.time[:-1]
    same &= (apart >= 0) & (apart <= _APART) & (batch.tid[1:] == batch.tid[:-1])
    return np.concatenate([[0], np.cumsum(~same)])
