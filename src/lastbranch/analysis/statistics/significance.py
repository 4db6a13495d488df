"""Whether two recordings differ by more than chance.

The sampling unit is the sample, not the branch: the entries of one branch stack are neighbours in one run of the
program, so a stack of 32 entries is one observation. So are all samples of a burst (`bursts`): below, "sample" means
such a unit. Values are summed within a sample first. The spread of these sums over the samples gives the variance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import erfc, exp, lgamma, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...model import Array

__all__ = [
    "ENOUGH",
    "FEWEST",
    "Clusters",
    "Totals",
    "adjust_probabilities",
    "time_to_halve",
    "probabilities",
    "ratio_variance",
]

ENOUGH = 100
"""Smaller counts mean little: a count of 100 has a standard error of 10 (Poisson). Shares and rates that rest on fewer
are greyed, in terminals and in the viewer."""

FEWEST = 6
"""Samples of both recordings together that must have a thing for it to be tested: fewer can never be significant."""


_SHORTEST = 0.01
"""Seconds. Nobody records for less."""


def time_to_halve(seconds: float, what: str = "it") -> str:
    """How much more recording would halve ``what`` is the standard error of what ``seconds`` gave: it takes four times
    as long. Empty where no time is known."""
    return f"{3 * seconds:.3g} s more of recording would halve {what}" if seconds >= _SHORTEST else ""


class Totals(NamedTuple):
    """How many ``samples`` there are. The sums of what each stands for and of that squared; of their weights, and of
    these squared."""

    samples: int
    stand_for: float
    stand_for_squared: float
    weight: float
    weight_squared: float


@dataclass
class Clusters:
    """Sums over the samples of a recording, for ``keys`` things that occur in them.

    A sample has a weight, and of each thing a part of that weight: of its period, of its branch entries, or of its
    ranges. A sample that stands for several counts its weight and its parts as many times. ``samples`` counts them;
    ``weight`` float64 and ``weight_squared`` sum their weights. By thing: ``present`` int64 samples that have it,
    ``present_for`` float64 how many these stand for, ``part``, ``part_squared`` and ``part_weight`` float64 sums of its
    part, of the part squared, and of the part times the weight.
    """

    keys: int
    samples: int = 0
    stand_for: float = 0.0
    stand_for_squared: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0
    present: Array = field(init=False)
    present_for: Array = field(init=False)
    part: Array = field(init=False)
    part_squared: Array = field(init=False)
    part_weight: Array = field(init=False)

    def __post_init__(self) -> None:
        self.present = np.zeros(self.keys, np.int64)
        self.present_for, self.part, self.part_squared, self.part_weight = (np.zeros(self.keys) for _ in range(4))

    def add(self, weight: Array, sample: Array, key: Array, part: Array | None = None, times: int = 1) -> None:
        """Add samples of these weights. Each element of ``sample`` (row of ``weight``) and ``key`` is one occurrence,
        of ``part`` (``None``: 1); each sample stands for ``times`` samples, and a sample of weight 0 does not count."""
        weight = weight.astype(np.float64) * times
        number = int(np.count_nonzero(weight))
        self.samples, self.stand_for = self.samples + number, self.stand_for + number * times
        self.stand_for_squared += number * times * times
        self.weight += float(weight.sum())
        self.weight_squared += float((weight * weight).sum())
        pairs, back, count = np.unique(sample * self.keys + key, return_inverse=True, return_counts=True)
        sample, key = np.divmod(pairs, max(self.keys, 1))
        sums = count.astype(np.float64) if part is None else np.bincount(back.reshape(-1), part, len(pairs))
        sums *= times
        present = np.bincount(key, minlength=self.keys)
        self.present += present
        self.present_for += present * times
        for total, values in (
            (self.part, sums),
            (self.part_squared, sums * sums),
            (self.part_weight, sums * weight[sample]),
        ):
            total += np.bincount(key, values, self.keys)

    def add_sums(
        self,
        totals: Totals,
        key: Array,
        present: Array,
        present_for: Array,
        part: Array,
        part_squared: Array,
        part_weight: Array,
    ) -> None:
        """Add finished sums over samples; each element of ``key`` and the arrays is a thing with its sums. If several
        elements have one key, the samples that they share are not known: the variance is then its upper bound (Cauchy
        and Schwarz), and ``present`` its lower bound."""
        for name, value in totals._asdict().items():
            setattr(self, name, getattr(self, name) + value)
        np.maximum.at(self.present, key, present)
        np.maximum.at(self.present_for, key, present_for)
        self.part += np.bincount(key, part, self.keys)
        self.part_weight += np.bincount(key, part_weight, self.keys)
        alone = np.bincount(key, minlength=self.keys) == 1
        most = np.bincount(key, np.sqrt(part_squared), self.keys) ** 2
        self.part_squared += np.where(alone, np.bincount(key, part_squared, self.keys), most)

    @property
    def effective(self) -> tuple[int, NDArray[np.float64]]:
        """(how many samples of equal numbers would say as much (Kish 1965), how many of these would have each thing):
        whole numbers, and those of the samples where all stand for the same."""
        if not self.stand_for_squared:
            return self.samples, np.zeros(self.keys)
        number = round(self.stand_for * self.stand_for / self.stand_for_squared)
        return number, np.minimum(np.rint(number * self.present_for / self.stand_for), number)

    @property
    def share(self) -> NDArray[np.float64]:
        """float64, a thing: its part of all weight."""
        return self.part / self.weight if self.weight else np.zeros(self.keys)

    @property
    def error(self) -> NDArray[np.float64]:
        """float64, a thing: standard error of its share. The error is at least the error of half a sample more or less:
        if all samples have a thing, their spread is unknown, and three samples say less than a thousand (the score
        interval of Wilson 1927, which for a share of 0 or 1 ends there)."""
        if not self.samples:
            return np.zeros(self.keys)
        return np.maximum(np.sqrt(self.variance(self.share)), 1 / (2 * (self.samples + 1)))

    def variance(self, share: Array) -> NDArray[np.float64]:
        """float64, a thing: variance of its share over the samples if its true value is ``share`` (ratio estimator)."""
        if self.samples < 2:
            return np.zeros(self.keys)
        sums = self.part_squared, self.part_weight, self.weight_squared
        return ratio_variance(share, *sums, self.weight, self.samples)


def ratio_variance(
    share: Array,
    part_squared: Array,
    part_weight: Array,
    weight_squared: Array | float,
    weight: Array | float,
    samples: Array | int,
) -> NDArray[np.float64]:
    """float64: variance of a part of a weight whose true ``share`` is that, from sums over 2 ``samples`` or more, as in
    `Clusters`."""
    left = part_squared - 2 * share * part_weight + share * share * weight_squared
    spread: NDArray[np.float64] = np.maximum(left, 0) / weight**2 * samples / (samples - 1)
    return spread


def probabilities(a: Clusters, b: Clusters) -> NDArray[np.float64]:
    """float64, a thing: probability of a difference as large as that between ``a`` and ``b`` where there is none.

    Two tests; the smaller probability is doubled (Bonferroni): do more samples have the thing (Fisher's exact test),
    and do samples have more of the thing (difference of the shares by its variance over samples)? Not a number where
    fewer than `FEWEST` samples have it. Samples that stand for different numbers count as fewer (`Clusters.effective`):
    otherwise a change of these numbers alone would look like a change of the program.
    """
    both = a.present + b.present
    (of_a, in_a), (of_b, in_b) = a.effective, b.effective
    out = np.full(a.keys, np.nan)
    weight = a.weight + b.weight
    if not (a.weight and b.weight):
        return out
    common = (a.part + b.part) / weight
    spread = np.sqrt(a.variance(common) + b.variance(common))
    difference = np.abs(a.share - b.share)
    fewer = (in_a + in_b) * (min(of_a, of_b) / (of_a + of_b))  # those of the smaller recording, if they do not differ
    for i in np.flatnonzero(both >= FEWEST).tolist():
        larger = _student(difference[i] / spread[i], float(fewer[i])) if spread[i] > 0 else 1.0
        oftener = _fisher(int(in_a[i]), of_a, int(in_b[i]), of_b)
        out[i] = min(1.0, 2 * min(larger, oftener))
    return out


def adjust_probabilities(probability: Array) -> NDArray[np.float64]:
    """float64: the false discovery rate at which each would be significant (Benjamini and Hochberg 1995)."""
    out = np.full(len(probability), np.nan)
    tested = np.flatnonzero(~np.isnan(probability))
    order = tested[np.argsort(probability[tested])]
    ranked = probability[order] * len(order) / np.arange(1, len(order) + 1)
    out[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1)
    return out


def _student(t: float, freedom: float) -> float:
    """Two-sided probability of Student's t by Wallace's normal approximation (Ann. Math. Statist. 30, 1959).

    The degrees of freedom are the samples of the smaller side: few samples have skewed sums, and the heavy tails of
    this distribution make up for the skew.
    """
    freedom = max(freedom, 1.0)
    normal = sqrt(freedom * np.log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return erfc(normal / sqrt(2))


def _fisher(a: int, of_a: int, b: int, of_b: int) -> float:
    """Twice the smaller tail of the hypergeometric distribution: ``a`` of ``of_a`` against ``b`` of ``of_b``."""
    if a * of_b < b * of_a:
        a, of_a, b, of_b = b, of_b, a, of_a
    # More than a of the a + b are among of_a: from a on upwards, until nothing is added.
    steps = np.arange(min(b, of_a - a), dtype=np.float64)
    ratios = (b - steps) * (of_a - a - steps) / ((a + 1 + steps) * (of_b - b + 1 + steps))
    first = _log_choose(of_a, a) + _log_choose(of_b, b) - _log_choose(of_a + of_b, a + b)
    return min(1.0, 2 * exp(min(first, 0.0)) * (1 + float(np.cumprod(ratios).sum())))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
