"""Columns that all tables of samples share: samples, their share of the event, noise and periods; and a note on CPU
time without samples.

Rows have ``event``, ``samples``, ``period`` and ``has_period``; ``observed`` and ``error`` of the noise; ``shared``
(bool: samples of the event come in bursts); and the sums of the event, ``all_samples`` and ``all_period``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from ..analysis.counting.count_tables import WeightCounter
from ..analysis.counting.cpu_time import cpu_time
from ..model import Array, Profile, SampleBatch, SampleFilter
from .columns import GUESS, Column, To
from .table import Known, Ratio

__all__ = [
    "BURSTS",
    "MISPREDICTED",
    "NOISE",
    "PERIOD",
    "PERIOD_SHARE",
    "SAMPLES",
    "SAMPLES_SHARE",
    "UnsampledTime",
    "event_sums",
    "first_rows",
]

SAMPLES = Column(
    name="samples",
    title="samples",
    meaning="samples whose own address is there",
    unit="samples",
    to=To.ALL,
    value=lambda rows: rows.samples,
)
SAMPLES_SHARE = Column(
    name="samples_share",
    title="samples %",
    meaning="of all samples of the event",
    unit="%",
    form="percent",
    heat=100.0,
    rests_on=("bursts", "samples"),
    bar=True,
    value=lambda rows: Ratio(rows.samples, rows.all_samples),
)
MISPREDICTED = Column(
    name="mispredicted",
    title="mispredicted %",
    meaning="of the entries with a known outcome",
    unit="%",
    form="percent",
    to=To.ALL,
    heat=GUESS,
    rests_on=("bursts", "count"),
    may_lack=True,
    value=lambda rows: Ratio(rows.mispredicted, rows.mispredicted + rows.predicted),
)
"""Rows have the entries of branch stacks that were ``mispredicted``, and those that were ``predicted``."""
BURSTS = Column(
    name="bursts",
    title="bursts",
    unit="bursts",
    to=To.ALL,
    meaning="in a recording by software: bursts with samples there; samples of one burst are not independent",
    value=lambda rows: Known(rows.observed, rows.shared),
)
NOISE = Column(
    name="noise",
    title="noise",
    meaning="standard error of samples %",
    unit="points",
    form="percent",
    to=To.ALL,
    rests_on=("bursts", "samples"),
    value=lambda rows: rows.error,
)
PERIOD = Column(
    name="period",
    title="period",
    meaning="sum of the periods of the samples",
    unit="events",
    value=lambda rows: Known(rows.period, rows.has_period),
)
PERIOD_SHARE = Column(
    name="period_share",
    title="period %",
    meaning="of the periods of all samples of the event",
    unit="%",
    form="percent",
    heat=100.0,
    rests_on=("bursts", "samples"),
    value=lambda rows: Ratio(rows.period, np.where(rows.has_period, rows.all_period, 0)),
)


def event_sums(event: Array, column: Array | None) -> Array:
    """The sum of a column over all rows of the event of each row, as integers of any size; 0 without a column."""
    if column is None:
        return np.zeros(len(event), np.int64)
    whole = Counter[int]()
    for row, value in zip(event.tolist(), column.tolist(), strict=True):
        whole[row] += value
    sums = [whole[row] for row in event.tolist()]
    return np.array(sums, np.int64 if max(sums, default=0) < 1 << 63 else object)


def first_rows(event: Array, limit: int) -> list[int]:
    """The first ``limit`` rows of each event, 0: all. Events differ in how many samples they have: of two, the rows of
    one would leave no room for the other, which may be the only one with branches."""
    if not limit:
        return list(range(len(event)))
    seen, rows = Counter[int](), list[int]()
    for row, one in enumerate(event.tolist()):
        seen[one] += 1
        if seen[one] <= limit:
            rows.append(row)
    return rows


class UnsampledTime:
    """Measures CPU time without samples in the pass of another count; does nothing if samples are filtered."""

    def __init__(self, profile: Profile, sample_filter: SampleFilter | None) -> None:
        known = sample_filter is None and any(process.cpu_ns is not None for process in profile.processes)
        self._profile, self._counter = profile, WeightCounter(profile, ("process",)) if known else None

    def beside(self, watch: Callable[[SampleBatch], None]) -> Callable[[SampleBatch], None]:
        """A function that counts a batch, too, beside ``watch``."""
        counter = self._counter
        if counter is None:
            return watch

        def both(batch: SampleBatch) -> None:
            watch(batch)
            counter.add(batch)

        return both

    @property
    def notes(self) -> list[str]:
        found = cpu_time(self._profile, self._counter.result()[0], "process") if self._counter is not None else None
        return [f"{found.note}"] if found is not None and found.note else []
