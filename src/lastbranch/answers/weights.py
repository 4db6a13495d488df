"""Samples by process, thread or module, which need no names of functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..analysis import Key, WeightTable, weights
from ..analysis.counting.cpu_time import CpuTime, cpu_time
from ..analysis.statistics.bursts import share_bursts
from ..analysis.statistics.share_noise import Noise, noise_of_rows
from ..model import Array, Profile, SampleFilter
from .columns import Cell, Column, TableKind, share
from .names import EVENT
from .sample_columns import (
    BURSTS,
    NOISE,
    PERIOD,
    PERIOD_SHARE,
    SAMPLES,
    SAMPLES_SHARE,
    UnsampledTime,
    event_sums,
    first_rows,
)
from .table import Ratio, Table, make_table

__all__ = ["WEIGHTS", "samples_by_key"]


def _of_key(by: Key, number: int) -> Any:
    """The values of a column of the key, of which a row has several."""
    return lambda rows: [_key(rows.profile, by, key)[number] for key in rows.key.tolist()]


def _key(profile: Profile, by: Key, row: int) -> list[Cell]:
    if row < 0:
        return [*[None] * (len(_KEYS[by]) - 1), "[unknown]"]
    if by == "process":
        return [profile.processes[row].pid, profile.processes[row].name]
    if by == "thread":
        thread = profile.threads[row]
        return [profile.processes[thread.process].pid, thread.tid, thread.name]
    return [profile.modules[row].name]


_KEYS: dict[Key, tuple[tuple[str, str], ...]] = {
    "process": (("pid", "process id"), ("process", "name of the process")),
    "thread": (("pid", "process id"), ("tid", "thread id"), ("thread", "name of the thread")),
    "module": (("module", "full path of the binary"),),
}
"""Columns of each key, with their meaning."""

_ENTRIES = (
    Column(
        name="entries",
        title="branch entries",
        meaning="entries of the branch stacks of the samples",
        unit="entries",
        value=lambda rows: rows.entries,
    ),
    Column(
        name="entries_share",
        title="entries %",
        meaning="of all branch entries of the event",
        unit="%",
        form="percent",
        heat=100.0,
        rests_on=("bursts", "samples"),
        value=lambda rows: Ratio(rows.entries, rows.all_entries),
    ),
)

_TIMES = (
    Column(
        name="cpu_ms",
        title="cpu ms",
        meaning="CPU time that it spent, where the capture has it",
        unit="ms",
        form="decimal",
        value=lambda rows: [None if ns < 0 else round(ns / 1e6, 3) for ns in rows.spent_ns],
    ),
    Column(
        name="cpu_share",
        title="cpu %",
        meaning="of all CPU time that is known",
        unit="%",
        form="percent",
        value=lambda rows: [None if ns < 0 else share(ns, rows.spent.total) for ns in rows.spent_ns],
    ),
)
"""The columns of CPU time in tables of processes and threads."""

WEIGHTS: dict[Key, TableKind] = {
    by: TableKind(
        name=f"samples by {by}",
        row=f"an event and a {by}",
        columns=(
            EVENT,
            *(
                Column(name=name, title=name, meaning=meaning, value=_of_key(by, number))
                for number, (name, meaning) in enumerate(columns)
            ),
            *(() if by == "module" else _TIMES),
            SAMPLES,
            SAMPLES_SHARE,
            BURSTS,
            NOISE,
            PERIOD,
            PERIOD_SHARE,
            *_ENTRIES,
        ),
        last=("event_name", *(name for name, _ in columns)),
        spare=("entries", "bursts", "period", "period_share", "noise"),
    )
    for by, columns in _KEYS.items()
}
"""`report --by process`, `thread` and `module`."""


@dataclass(slots=True)
class _WeightRows:
    """Rows of one of `WEIGHTS`: see `sample_columns`."""

    profile: Profile
    event: Array
    key: Array
    samples: Array
    period: Array
    has_period: Array
    entries: Array
    error: Array
    observed: Array
    shared: Array
    all_samples: Array
    all_period: Array
    all_entries: Array
    spent: CpuTime | None

    @property
    def spent_ns(self) -> list[int]:
        """CPU time of each row, -1 where it is not known."""
        spent = self.spent
        return [-1 if spent is None or key < 0 else int(spent.spent[key]) for key in self.key.tolist()]

    @classmethod
    def of(cls, profile: Profile, table: WeightTable, noise: Noise, spent: CpuTime | None) -> _WeightRows:
        event, shared = table.event, share_bursts(profile)[table.event]
        samples, period, entries = (
            event_sums(event, column) for column in (table.samples, table.period, table.entries)
        )
        return cls(
            profile,
            event,
            table.key,
            table.samples,
            table.period,
            table.has_period,
            table.entries,
            noise.error,
            noise.observed,
            shared,
            samples,
            period,
            entries,
            spent,
        )

    def take(self, rows: list[int]) -> _WeightRows:
        columns = {name: getattr(self, name)[rows] for name in self.__slots__ if name not in ("profile", "spent")}
        return replace(self, **columns)


def samples_by_key(
    profile: Profile, by: Key, sample_filter: SampleFilter | None, limit: int, *, time_is_said: bool = False
) -> Table:
    """Count samples by process, thread or module in one pass; the first ``limit`` rows of each event, 0: all. Notes say
    how much CPU time has no samples, unless ``time_is_said``."""
    sums = noise_of_rows(profile, by)
    beside = None if time_is_said else UnsampledTime(profile, sample_filter)
    watch = sums.add if beside is None else beside.beside(sums.add)
    table = weights(profile, by, sample_filter=sample_filter, watch=watch)
    spent = cpu_time(profile, table, by) if by != "module" and sample_filter is None else None
    if spent is not None:
        table = spent.every_row(table, profile)
    noise = sums.of(table.event, table.key, table.samples, lambda key: key)
    rows = _WeightRows.of(profile, table, noise, spent).take(first_rows(table.event, limit))
    kind = WEIGHTS[by] if spent is not None else WEIGHTS[by].without(*(column.name for column in _TIMES))
    notes = [*(beside.notes if beside is not None else []), *noise.notes]
    return make_table(kind, rows, len(rows.event), notes=notes)
