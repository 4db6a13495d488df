"""Stationary distributions and components, compiled and by Python, against dense linear algebra and reachability."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.analysis.executions import markov_chain as stationary
from lastbranch.analysis.executions.markov_chain import Elimination, strong_components

compiled_or_not = pytest.mark.parametrize("compiled", [True, False])
PAIRS = st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda p: p[0] != p[1]), max_size=60)


def form(compiled: bool) -> mock._patch[object]:
    if compiled and native.library() is None:
        pytest.skip("no compiled library")
    return mock.patch.object(native, "library", native.library if compiled else lambda: None)


@compiled_or_not
@settings(max_examples=60, deadline=None)
@given(PAIRS, st.integers(0, 2**32 - 1))
def test_distribution_is_that_of_a_dense_solve(compiled: bool, pairs: set[tuple[int, int]], seed: int) -> None:
    """Of chains with a hub, whose transitions are between likely and one in 10**12."""
    chance, states, hub = np.random.default_rng(seed), 13, 12
    pairs = pairs | {(s, hub) for s in range(hub)} | {(hub, s) for s in range(0, hub, 2)}
    source, target = np.array(sorted(pairs)).T
    matrix = np.zeros((states, states))
    matrix[source, target] = 10 ** chance.uniform(-12, 0, len(source))
    matrix /= matrix.sum(axis=1).max() * 1.5
    with form(compiled):
        elimination = Elimination(states, source, target, hub)
        for _ in range(2):  # a plan is good for all chains with these transitions
            found = elimination.stationary(matrix[source, target])
            np.testing.assert_allclose(
                found @ matrix, found * matrix.sum(axis=1), rtol=1e-9, atol=1e-300, err_msg="what comes also goes"
            )
            matrix[source, target] *= chance.uniform(0.2, 1, len(source))
    with_rest = matrix + np.diag(1 - matrix.sum(axis=1))
    equations = np.vstack([(with_rest.T - np.eye(states))[:-1], np.ones(states)])
    solved = np.linalg.solve(equations, [*[0] * hub, 1])
    with form(compiled):
        assert np.abs(elimination.stationary(matrix[source, target]) - solved).max() < 1e-4  # a solve subtracts


@compiled_or_not
def test_a_ring_has_the_inverse_of_its_chances(compiled: bool) -> None:
    leave = np.array([0.5, 1e-9, 0.25, 1.0, 1e-3])
    with form(compiled):
        found = Elimination(5, np.arange(5), (np.arange(5) + 1) % 5, 2).stationary(leave)
    np.testing.assert_allclose(found, (1 / leave) / (1 / leave).sum(), rtol=1e-14)


@compiled_or_not
def test_states_that_nothing_leads_to_have_no_share(compiled: bool) -> None:
    with form(compiled):
        elimination = Elimination(3, np.array([0, 2, 1, 2]), np.array([2, 0, 2, 1]), 2)
        assert elimination.stationary(np.array([0.5, 0.5, 0.5, 0.0])).tolist() == [0.5, 0.0, 0.5]


@compiled_or_not
@settings(max_examples=80)
@given(PAIRS)
def test_components_are_what_reaches_each_other(compiled: bool, pairs: set[tuple[int, int]]) -> None:
    reached = np.eye(12, dtype=bool)
    for source, target in pairs:
        reached[source, target] = True
    for middle in range(12):
        reached |= reached[:, [middle]] & reached[[middle], :]
    source, target = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    with form(compiled):
        found = strong_components(12, source, target)
    assert ((found[:, None] == found) == (reached & reached.T)).all()
    assert sorted({*found.tolist()}) == list(range(int(found.max()) + 1))


def test_a_chain_that_fills_up_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.library() is None:
        pytest.skip("no compiled library")
    monkeypatch.setattr(stationary, "_MOST", 1000)
    source, target = np.divmod(np.flatnonzero(~np.eye(40, dtype=bool).reshape(-1)), 40)
    with pytest.raises(OverflowError):
        Elimination(40, source, target, 0)
