"""Quantiles and bins against sorted lists, and against the product-limit estimate done one observation at a time."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.analysis.function.paths import BINS, Distribution, distribution

OBSERVED = st.lists(st.tuples(st.integers(0, 400), st.booleans()), min_size=1, max_size=60)
PARTS = st.sampled_from([0.1, 0.5, 0.9, 1.0])


def made(observed: list[tuple[float, bool]]) -> Distribution:
    cut = np.array([one for _, one in observed])
    return distribution(np.array([value for value, _ in observed], float), ~cut, cut)


@given(st.lists(st.integers(0, 50), min_size=1), PARTS)
def test_quantiles_of_what_is_all_known(values: list[int], part: float) -> None:
    found = made([(value, False) for value in values])
    assert found.quantile(part) == sorted(values)[ceil(Fraction(str(part)) * len(values)) - 1]
    assert (found.value.tolist(), found.count.sum()) == (sorted(set(values)), len(values))


@given(OBSERVED, PARTS)
def test_quantiles_where_observations_were_cut(observed: list[tuple[int, bool]], part: float) -> None:
    """What was cut at ``v`` is known to have been more than what ends below ``v``, and nothing else."""
    over, wanted = Fraction(1), None
    for value in sorted({value for value, cut in observed if not cut}):
        at_risk = sum(other > value or (other == value and not cut) for other, cut in observed)
        ended = sum(other == value and not cut for other, cut in observed)
        over *= 1 - Fraction(ended, at_risk)
        if over <= 1 - Fraction(str(part)):
            wanted = value
            break
    assert made(observed).quantile(part) == wanted


def test_cut_observations_do_not_make_it_look_shorter() -> None:
    """Of visits of 4 to 12, a window at a random place sees the short ones whole more often."""
    random = np.random.default_rng(3)
    length, room = random.integers(4, 13, 20_000), random.integers(1, 21, 20_000)
    cut = room <= length  # the end of a visit is not in the window that it fills
    found = distribution(np.minimum(length, room), ~cut, cut)
    whole = distribution(length[~cut], ~cut[~cut], cut[~cut])
    assert (found.quantile(0.5), found.quantile(0.85)) == (8, 11)
    assert whole.quantile(0.5) == 7


@given(st.lists(st.one_of(st.integers(0, 70_000), st.floats(0, 500)), min_size=1), st.integers(4, 40))
def test_bins_hold_all_observations_once(values: list[float], most: int) -> None:
    bins = made([(value, False) for value in values]).bins(most)
    assert 0 < len(bins) <= most
    assert bins.count.sum() == len(values)
    assert (bins.low[1:] == bins.below[:-1]).all()
    assert bins.low[0] <= min(values) + 1e-6
    assert bins.below[-1] > max(values) - 1e-6
    if all(value == int(value) for value in values):
        assert (bins.low == np.floor(bins.low)).all()
    edge = np.abs(np.subtract.outer(np.array(values, float), bins.low)).min(1) < 1e-6
    for low, below, count in zip(bins.low, bins.below, bins.count, strict=True):
        inside = sum(low <= value < below for value in values)
        assert abs(inside - count) <= edge.sum()
    width = np.diff(bins.low[1:])
    assert len(width) == 0 or np.allclose(width, width[0])


def test_bins_of_whole_numbers_are_those_numbers() -> None:
    bins = made([(5, False), (7, False), (7, True)]).bins()
    assert (bins.low.tolist(), bins.below.tolist()) == ([5, 6, 7], [6, 7, 8])
    assert (bins.count.tolist(), bins.cut.tolist()) == ([1, 0, 1], [0, 0, 1])
    rare = made([(4, False)] * 500 + [(9, False)] * 500 + [(60_000, False)]).bins()
    assert rare.below[-1] == 60_001
    assert rare.count.tolist() == [500, 0, 0, 0, 0, 500, 1]
    assert len(made([(value, False) for value in range(1000)]).bins()) <= BINS
    assert len(distribution(*np.zeros((3, 0))).bins()) == 0
    assert distribution(*np.zeros((3, 0))).quantile(0.5) is None
