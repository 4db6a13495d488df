"""How the periods of samples are told: an interval of a profile source holds from its event on, and a sample of the
timer may stand for several (Count)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model import Array, SampleBatch

__all__ = ["MOST_INTERVAL", "Periods", "Told"]

MOST_INTERVAL = 0xFFFFFFFF
_MOST_COUNT = 0xFFFF
_TIMER = 0

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Told:
    """What says the periods of a batch.

    ``count`` int64 of each sample; ``interval`` int64: that of its source from it on, where ``changed`` (bool) says so;
    ``before`` int64: the one until then; ``lost``: samples whose period nothing says.
    """

    count: Ints
    interval: Ints
    before: Ints
    changed: NDArray[np.bool_]
    lost: int


class Periods:
    """The intervals of the profile sources as they are written. ``intervals``: those at the begin, by source."""

    def __init__(self, intervals: dict[int, int]) -> None:
        self._base = intervals
        self.now = dict(intervals)
        """Those that hold at the end of what was written so far."""
        self._last: dict[int, int] = {}

    def of(self, batch: SampleBatch, time: Ints, source: Ints) -> Told:
        """Of the samples of ``batch`` that are written at ``time``; ``source`` is -1 for those of none. A period of 0
        is not known, and not told."""
        number = len(batch)
        count, interval, before = np.ones((3, number), np.int64)
        told = Told(count, interval, before, np.zeros(number, bool), 0)
        period = np.minimum(batch.period, np.uint64(MOST_INTERVAL + 1)).astype(np.int64)
        for which in np.unique(source[(source >= 0) & (period > 0)]).tolist():
            rows = np.flatnonzero((source == which) & (period > 0))
            too_large = period[rows] > MOST_INTERVAL
            told.lost += int(too_large.sum())
            rows = rows[~too_large]
            rows = rows[np.argsort(time[rows], kind="stable")]
            if len(rows):
                self._source(told, which, rows, period[rows], time[rows])
        return told

    def _source(self, told: Told, source: int, rows: Ints, period: Ints, time: Ints) -> None:
        """Fill in the ``rows`` of one source, in the order of their times."""
        interval, base = period.copy(), self._base.get(source, 0)
        if source == _TIMER and base:
            several = (period % base == 0) & (period <= base * _MOST_COUNT)
            told.count[rows[several]] = period[several] // base
            interval[several] = base
        # One interval holds for all samples of a tick: that of its last one.
        first = np.flatnonzero(np.append(True, time[1:] != time[:-1]))
        size = np.diff(np.append(first, len(rows)))
        held = interval[first + size - 1]
        if time[0] == self._last.get(source):
            held[0] = self.now[source]
        told.lost += int(np.count_nonzero(np.repeat(held, size) != interval))
        before = np.append(self.now.get(source, 0), held[:-1])
        where = rows[first]
        told.interval[where], told.before[where], told.changed[where] = held, before, held != before
        self.now[source], self._last[source] = int(held[-1]), int(time[-1])


def column_of(values: list[int], batch: SampleBatch) -> Array:
    """A value of the event of each sample."""
    taken: Array = np.array(values, np.int64).take(batch.event)
    return taken
