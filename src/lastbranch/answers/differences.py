"""Code with a larger or smaller share in one recording than in another: captures, or selections of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..analysis import Difference, Thing, compare, compare_sums
from ..analysis.counting.over_time import time_span
from ..analysis.statistics.significance import time_to_halve
from ..model import Array, counted
from .columns import Column, TableKind, To
from .names import Names
from .table import Table, make_table

if TYPE_CHECKING:
    from ..analysis import CodeLocation
    from ..analysis.statistics.sample_sums import SampleSums
    from ..model import SampleFilter

__all__ = ["DIFFERENCES", "RATE", "Comparison", "compare_captures", "compare_stored", "difference_table"]

RATE = 0.05
"""The false discovery rate where nobody asks for another: the share of false alarms among what is significant."""


@dataclass(slots=True)
class _DifferenceRows:
    """The first rows of ``found``."""

    found: Difference
    shown: slice
    significant: Array

    @property
    def spots(self) -> list[tuple[CodeLocation, ...]]:
        return self.found.spots[self.shown]

    def side(self, columns: Array, side: int) -> Array:
        return columns[side, self.shown]


def _end(end: int, prefix: str, title: str, which: str) -> tuple[Column, Column]:
    """The place of one end, and its module."""
    return (
        Column(
            name=f"{prefix}name",
            title=title,
            meaning=which,
            form="text",
            to=To.ALL,
            value=lambda rows: [ends[end].called for ends in rows.spots],
        ),
        Column(
            name=f"{prefix}module",
            title=f"{title} module",
            meaning="file name of its binary",
            form="text",
            to=To.ALL,
            value=lambda rows: [ends[end].module or None for ends in rows.spots],
        ),
    )


_ENDS: dict[Thing, tuple[Column, ...]] = {
    "function": _end(0, "", "function", "function, demangled"),
    "edge": (*_end(0, "", "from", "where the edge begins"), *_end(1, "to_", "to", "where it goes")),
    "block": _end(0, "", "block", "where the block begins: function+offset"),
}
_OF: dict[Thing, str] = {
    "function": "part of the samples (by period)",
    "edge": "part of the branch entries",
    "block": "part of the ranges",
}


def _points(
    name: str, title: str, meaning: str, value: Callable[[_DifferenceRows], Array], unit: str = "points"
) -> Column:
    """A column of shares, or of their changes."""
    return Column(
        name=name, title=title, meaning=meaning, unit=unit, form="percent", decimals=4, to=To.ALL, value=value
    )


def _samples(name: str, side: str, row: int) -> Column:
    return Column(
        name=name,
        title=f"{side} samples",
        meaning=f"samples of {side} that have it",
        unit="samples",
        to=To.ALL,
        value=lambda rows: rows.side(rows.found.samples, row),
    )


_EVENT = Column(
    name="event",
    title="event",
    meaning="name of the sampled event",
    form="text",
    to=To.ALL,
    value=lambda rows: rows.found.event[rows.shown],
)
_CHANGES = (
    _points("change", "change", "B % less A %", lambda rows: rows.found.change[rows.shown]),
    _points("noise", "noise", "standard error of the change", lambda rows: rows.found.noise[rows.shown]),
    _samples("before_samples", "A", 0),
    _samples("samples", "B", 1),
)
_SURENESS = (
    Column(
        name="p",
        title="p",
        meaning="probability of such a difference between two recordings of the same behaviour",
        form="probability",
        to=To.ALL,
        value=lambda rows: rows.found.probability[rows.shown],
    ),
    Column(
        name="significant",
        title="significant",
        meaning="whether the difference is more than chance, with all rows of the event judged together",
        form="flag",
        to=To.ALL,
        value=lambda rows: rows.significant,
    ),
)


def _kind(by: Thing) -> TableKind:
    shares = (
        _points("before", "A %", f"{_OF[by]} in A", lambda rows: rows.side(rows.found.share, 0), "%"),
        _points("share", "B %", f"{_OF[by]} in B", lambda rows: rows.side(rows.found.share, 1), "%"),
    )
    return TableKind(
        name=f"differences by {by}",
        row=f"an event and {'an' if by == 'edge' else 'a'} {by}",
        columns=(_EVENT, *_ENDS[by], *shares, *_CHANGES, *_SURENESS),
        last=("event", *(column.name for column in _ENDS[by])),
        spare=("before_samples", "samples", "p"),
    )


DIFFERENCES: dict[Thing, TableKind] = {by: _kind(by) for by in _ENDS}
"""`diff`, `fleet diff` and the viewer's differences, by what a row is."""


def difference_table(found: Difference, by: Thing, rate: float, limit: int | None) -> Table:
    """The first ``limit`` rows (``None``: all), significant at the false discovery rate ``rate``."""
    shown = slice(limit)
    return make_table(
        DIFFERENCES[by], _DifferenceRows(found, shown, found.significant(rate)[shown]), len(found.event[shown])
    )


@dataclass(slots=True)
class Comparison:
    """Two recordings compared ``by`` function, edge or block; ``rate`` is the false discovery rate."""

    found: Difference
    by: Thing
    rate: float
    notes: list[str] = field(default_factory=list)
    """Notes for the user, without the `verdict`."""

    def table(self, limit: int) -> Table:
        """The first ``limit`` rows, 0: all."""
        return difference_table(self.found, self.by, self.rate, limit or None)

    @property
    def verdict(self) -> str:
        """How many differ, and how many could, as a sentence without its end."""
        tested = int((~np.isnan(self.found.probability)).sum())
        number = int(self.found.significant(self.rate).sum())
        said = f"{number} of {tested} differ significantly (false discovery rate {self.rate:g})"
        rare = len(self.found) - tested
        return said + (f"; {rare} {'has' if rare == 1 else 'have'} too few samples to tell" if rare else "")

    def growth_over(self, points: float | None) -> list[str]:
        """A sentence about shares that grew significantly by more than ``points``; empty if none did."""
        if points is None:
            return []
        over = int((self.found.significant(self.rate) & (100 * self.found.change > points)).sum())
        return [f"{counted(over, 'share')} grew significantly by more than {points:g} points"] if over else []

    def name_notes(self, sides: Sequence[Names], limit: int) -> list[str]:
        """Notes on names of the first ``limit`` rows, 0: all."""
        shown = {spot.module for spots in self.found.spots[: limit or None] for spot in spots}
        return [note for side in sides for note in side.notes(shown)]


def compare_captures(
    sides: Sequence[Names],
    by: Thing,
    sample_filters: Sequence[SampleFilter | None],
    rate: float,
    limit: int,
    *,
    lines: bool,
) -> Comparison:
    """Compare two captures; notes are about names of the first ``limit`` rows. ``lines``: find source lines of edges
    and blocks, too. Raises what `compare` raises."""
    found = compare([side.namer for side in sides], by, sample_filters=sample_filters, lines=lines)
    made = Comparison(found, by, rate)
    made.notes = [*_noise_note(sides, sample_filters), *found.notes, *made.name_notes(sides, limit)]
    return made


def compare_stored(
    sides: Sequence[Names], sums: Sequence[SampleSums], event: str, by: Thing, rate: float, limit: int, *, lines: bool
) -> Comparison:
    """The same of two selections of a store, of which only ``sums`` over samples of ``event`` are left. Raises what
    `compare_sums` raises."""
    found = compare_sums([side.namer for side in sides], sums, event, by, lines=lines)
    made = Comparison(found, by, rate)
    made.notes = made.name_notes(sides, limit)
    return made


def _noise_note(sides: Sequence[Names], filters: Sequence[SampleFilter | None]) -> list[str]:
    """How much longer to record for half of the noise; nothing where a side has no times."""
    profiles = [side.profile for side in sides]
    spans = [time_span(profile, chosen) for profile, chosen in zip(profiles, filters, strict=True)]
    seconds = [p.clock.to_ns(span[1]) / 1e9 if span else 0.0 for p, span in zip(profiles, spans, strict=True)]
    if not all(map(time_to_halve, seconds)):
        return []
    more = " and ".join(f"{3 * s:.3g} s more of {side}" for s, side in zip(seconds, "AB", strict=True))
    return [f"noise is the standard error of change, in points; {more} would halve it"]
