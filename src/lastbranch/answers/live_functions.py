"""The hottest functions of a running recording: since its beginning, and since the last look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..analysis.running.counts import LiveFunctions, Snapshot
from ..model import Array, Profile
from .columns import Column, TableKind
from .names import EVENT, FILE, FUNCTION, LINE_NUMBER, LINKAGE_NAME, MODULE
from .sample_columns import MISPREDICTED, SAMPLES, SAMPLES_SHARE
from .table import Known, Ratio, Table, make_table

if TYPE_CHECKING:
    from ..analysis import Label

__all__ = ["LIVE_FUNCTIONS", "live_functions"]


@dataclass(slots=True)
class _LiveRows:
    profile: Profile
    seen: Snapshot
    found: LiveFunctions

    @property
    def event(self) -> Array:
        return self.found.event

    @property
    def labels(self) -> list[Label]:
        return [self.seen.labels[row] for row in self.found.name.tolist()]

    @property
    def samples(self) -> Array:
        return self.found.samples

    @property
    def all_samples(self) -> Array:
        return self.seen.samples[self.event]

    @property
    def mispredicted(self) -> Array:
        return self.found.mispredicted

    @property
    def predicted(self) -> Array:
        return self.found.predicted

    @property
    def now(self) -> Ratio:
        return Ratio(self.found.recent, self.seen.recent[self.event])

    @property
    def then(self) -> Ratio:
        return Ratio(self.found.before, self.seen.before[self.event])


def _change(rows: _LiveRows) -> list[float | None]:
    """The difference of the shares that are shown."""
    shares = (
        [round(100 * a / b, 2) if b else None for a, b in zip(part.tolist(), whole.tolist(), strict=True)]
        for part, whole in (rows.now, rows.then)
    )
    return [None if a is None or b is None else round(a - b, 2) for a, b in zip(*shares, strict=True)]


LIVE_FUNCTIONS = TableKind(
    name="functions of a recording",
    row="an event and a function",
    columns=(
        EVENT,
        SAMPLES,
        SAMPLES_SHARE,
        Column(
            name="now_share",
            title="now %",
            meaning="of the samples since the last look",
            unit="%",
            form="percent",
            may_lack=True,
            value=lambda rows: rows.now,
        ),
        Column(
            name="change",
            title="change",
            meaning="change of now % since the previous look",
            unit="points",
            form="decimal",
            may_lack=True,
            value=_change,
        ),
        Column(
            name="branches",
            title="branches",
            meaning="taken branches that begin there",
            unit="entries",
            value=lambda rows: Known(rows.found.branches, rows.found.branches != 0),
        ),
        MISPREDICTED,
        Column(
            name="cycles",
            title="cycles",
            meaning="from one taken branch to the next, on average",
            unit="cycles",
            form="decimal",
            rests_on=("bursts", "count"),
            may_lack=True,
            value=lambda rows: Ratio(rows.found.cycles, rows.found.timed),
        ),
        FUNCTION,
        MODULE,
        LINKAGE_NAME,
        FILE,
        LINE_NUMBER,
    ),
    last=("function", "module"),
    spare=("branches", "cycles", "mispredicted", "change", "event_name", "samples"),
)
"""`top`."""


def live_functions(profile: Profile | None, seen: Snapshot | None, found: LiveFunctions) -> Table:
    """Some of the functions of a snapshot."""
    if profile is None or seen is None:
        return Table(LIVE_FUNCTIONS, LIVE_FUNCTIONS.columns, dict.fromkeys(c.name for c in LIVE_FUNCTIONS.columns), 0)
    return make_table(LIVE_FUNCTIONS, _LiveRows(profile, seen, found), len(found))
