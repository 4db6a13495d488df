"""CPU time beside samples: how much processes and threads spent, and how much of this has no samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...model import Event, Profile, visible
from .count_tables import WeightTable

__all__ = ["CpuTime", "counts_time", "cpu_time"]

_SOFTWARE, _CLOCKS = 1, (0, 1)
"""perf_event_attr: PERF_TYPE_SOFTWARE, and PERF_COUNT_SW_CPU_CLOCK and TASK_CLOCK."""
_WORTH_SAYING = 20
"""One part in so many without a sample is said."""
_BEGINNING = 20_000_000
"""ns that are not said: a few programs take as long in the kernel to begin, where no sample is."""
_DEVIATIONS = 2
"""Differences of fewer standard errors of the sampled time are not reported, either."""
_LITTLE = 100_000_000
"""ns that `report` says, but that are no finding: a short program's launch and stops take as long in the kernel."""
_NAMED = 3


def counts_time(event: Event) -> bool:
    """Whether the periods of its samples are CPU time in ns."""
    how = event.programming
    return how.get("type") == _SOFTWARE and how.get("config") in _CLOCKS and bool(event.period or event.has_period)


@dataclass(slots=True)
class CpuTime:
    """CPU time of each process or thread (int64 ns by row of its table, a capture's weight included): ``spent``, -1 if
    not known, and ``sampled``, the time that the samples of a clock stand for; of several clocks, the one with the most
    time."""

    spent: NDArray[np.int64]
    sampled: NDArray[np.int64]
    names: list[str]
    chance: float = 0.0
    """The standard error of the sum of ``sampled`` in ns, as far as chance decides which time is sampled."""

    @property
    def total(self) -> int:
        return int(self.spent[self.spent >= 0].sum())

    @property
    def without_samples(self) -> NDArray[np.int64]:
        """int64 ns: what no sample of the row stands for."""
        return np.where(self.spent >= 0, np.maximum(self.spent - self.sampled, 0), 0)

    @property
    def note(self) -> str:
        """A sentence about `said`, where there is something to say."""
        time, _, whose = self.said.partition(": ")
        return f"{time} have no samples: {whose}" if self.said else ""

    @property
    def found(self) -> str:
        """`said`, where it is long enough to be a finding."""
        return self.said if int(self.without_samples.sum()) >= _LITTLE else ""

    def every_row(self, table: WeightTable, profile: Profile) -> WeightTable:
        """``table`` with a row for everything that spent CPU time, under each clock of the table; rows of clocks are
        sorted by time spent, most first."""
        clocks = np.array([counts_time(event) for event in profile.events], bool)
        known, events = np.flatnonzero(self.spent >= 0), np.unique(table.event)
        for event in events[clocks[events]].tolist() or np.flatnonzero(clocks)[:1].tolist():
            more = np.setdiff1d(known, table.key[table.event == event])
            nothing = [np.zeros(len(more), column.dtype) for column in (table.samples, table.period, table.entries)]
            samples, period, entries = nothing
            columns = np.full(len(more), event), more, samples, period, np.ones(len(more), bool), entries
            table = WeightTable(
                *map(np.concatenate, zip(table.arrays().values(), columns, strict=True)), row_names=table.row_names
            )
        spent = np.where(table.key >= 0, self.spent[table.key], -1)
        return table.take(np.lexsort((-table.samples, np.where(clocks[table.event], -spent, 0), table.event)))

    @property
    def said(self) -> str:
        """A sentence about CPU time without samples and the names with most of this time; empty if the time is
        small."""
        rest, total = int(self.without_samples.sum()), self.total
        if rest * _WORTH_SAYING <= total or rest < _BEGINNING + _DEVIATIONS * self.chance:
            return ""
        by_name, rows = Counter[str](), Counter[str]()
        for name, one in zip(self.names, self.without_samples.tolist(), strict=True):
            by_name[name] += one
            rows[name] += one > 0
        most = by_name.most_common(_NAMED)
        named = [f"{_seconds(ns)} of {_many(rows[name])}{visible(name) or 'no name'}" for name, ns in most if ns]
        if (left := len(by_name) - len(most)) > 0:
            named.append(f"{left} more names")
        share = 100 * rest / total
        return f"{_seconds(rest)} of {_seconds(total)} of CPU time ({share:.0f} %): {', '.join(named)}"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.3f} s"


def _many(rows: int) -> str:
    return "" if rows == 1 else f"{rows} x "


def cpu_time(profile: Profile, table: WeightTable, by: Literal["process", "thread"]) -> CpuTime | None:
    """The CPU time of the rows of processes or threads, and what of it the samples of ``table`` (`weights` by the same)
    stand for. ``None`` where the capture has no CPU times, or no event whose periods are time."""
    rows = profile.processes if by == "process" else profile.threads
    process_of = range(len(rows)) if by == "process" else [thread.process for thread in profile.threads]
    spent = np.array([-1 if row.cpu_ns is None else row.cpu_ns for row in rows], np.int64)
    clocks = [number for number, event in enumerate(profile.events) if counts_time(event)]
    if not clocks or not (spent >= 0).any():
        return None
    captures = profile.captures
    if any(capture.weight != 1 for capture in captures):
        weights = np.array([captures[profile.processes[row].capture].weight for row in process_of], np.int64)
        spent = np.where(spent >= 0, spent * weights, -1)
    sampled, chance = np.zeros(len(rows), np.int64), 0.0
    for clock in clocks:
        mine = (table.event == clock) & (table.key >= 0)
        one = np.zeros(len(rows), np.int64)
        one[table.key[mine]] = table.period[mine].astype(np.int64)
        sampled = np.maximum(sampled, one)
        chance = max(chance, float(one.sum()) / max(float(table.samples[mine].sum()), 1.0) ** 0.5)
    return CpuTime(spent, sampled, [row.name for row in rows], chance)
