"""How observed numbers are distributed, where some of them are only known to be at least something."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from ...arrays import Table, distinct
from ...model import Array

__all__ = ["BINS", "Bins", "Distribution", "distribution"]

BINS = 24
"""Bins of a picture, at most."""
_TAIL = 0.99
"""The part of the observations that has bins of equal width: rare large numbers share one more."""
_STEPS = (1, 2, 5, 10)
_FINEST = 0.1
_ROUNDING = 1e-9


@dataclass(slots=True)
class Bins(Table):
    """Bins of equal width, ascending, without gaps; the first bin may begin later, the last bin is as wide as need be.

    ``low``, ``below`` float64: a number is in it from ``low`` on, and below ``below``. ``count``, ``cut`` int64 as in
    `Distribution`.
    """

    low: Array
    below: Array
    count: Array
    cut: Array


@dataclass(slots=True)
class Distribution(Table):
    """Observations by their number; equal-length arrays.

    ``value`` float64, ascending. ``count`` int64: observations of exactly that. ``cut`` int64: observations that ended
    there before they were complete: what they would have come to is that or more.
    """

    value: Array
    count: Array
    cut: Array

    def quantile(self, part: float) -> float | None:
        """The least number that ``part`` of the observations do not exceed; ``None`` where too many were cut to know.

        Cut observations count as far as they were seen (Kaplan and Meier, J. Am. Stat. Assoc. 53, 1958). The estimate
        is right if the cause of a cut does not depend on the full value of the observation.
        """
        from_here = np.cumsum((self.count + self.cut)[::-1])[::-1]
        over = np.cumprod(1 - self.count / np.maximum(from_here - self.cut, 1))
        reached = np.flatnonzero(over <= 1 - part + _ROUNDING)
        return float(self.value[reached[0]]) if len(reached) else None

    def bins(self, most: int = BINS) -> Bins:
        """A histogram of up to ``most`` bins, whose edges are round numbers; whole ones for whole numbers."""
        if not len(self):
            none = np.empty(0)
            return Bins(none, none, none.astype(np.int64), none.astype(np.int64))
        every = np.cumsum(self.count + self.cut)
        least, tail = float(self.value[0]), float(self.value[np.searchsorted(every, _TAIL * every[-1])])
        finest = 1.0 if (self.value == np.floor(self.value)).all() else _FINEST
        width = max(finest, _round_up((tail - least) / max(1, most - 3)))
        first = floor(least / width + _ROUNDING)
        place = np.floor(self.value / width + _ROUNDING).astype(np.int64) - first
        number = min(most, int(place[-1]) + 1, floor(tail / width + _ROUNDING) - first + 2)
        low = (first + np.arange(number)) * width
        below = np.append(low[1:], (first + place[-1] + 1) * width)
        low[0] = least if finest == 1 else low[0]
        place = np.minimum(place, number - 1)
        count, cut = (np.bincount(place, column, number).astype(np.int64) for column in (self.count, self.cut))
        return Bins(low, below, count, cut)


def distribution(value: Array, count: Array, cut: Array) -> Distribution:
    """Observations with equal numbers made one row."""
    found = distinct(np.asarray(value, np.float64))
    place = np.searchsorted(found, value)
    counts, cuts = (np.bincount(place, column, len(found)).astype(np.int64) for column in (count, cut))
    return Distribution(found, counts, cuts)


def _round_up(width: float) -> float:
    """The least of 1, 2, 5, 10, 20... that is not below ``width``; 0 for 0."""
    if width <= 0:
        return 0.0
    unit = 10.0 ** floor(log10(width))
    steps = (step * unit for step in _STEPS)
    return float(next((step for step in steps if step >= width * (1 - _ROUNDING)), ceil(width)))
