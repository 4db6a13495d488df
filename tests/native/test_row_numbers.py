"""Numbers of rows, compiled and by a dictionary, against a list of the rows that have come."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.arrays import RowNumbers

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")


def new_numbers(compiled: bool, columns: int) -> RowNumbers:
    with mock.patch.object(native, "library", native.library if compiled else lambda: None):
        return RowNumbers(columns)


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=60)
@given(st.integers(1, 3), st.data())
def test_equal_rows_have_one_number(compiled: bool, columns: int, data: st.DataObject) -> None:
    value = st.sampled_from([0, 1, 1 << 40, (1 << 64) - 1])
    batches = data.draw(st.lists(st.lists(st.tuples(*[value] * columns), max_size=30), max_size=3))
    numbers, known = new_numbers(compiled, columns), list[Any]()
    for batch in batches:
        number, first = numbers.of(*np.array(batch, np.uint64).reshape(-1, columns).T)
        fresh = [batch[row] for row in first.tolist()]
        assert len({*known, *fresh}) == len(known) + len(fresh)
        assert [batch.index(row) for row in fresh] == first.tolist()
        known += fresh
        assert [known[n] for n in number.tolist()] == batch


@pytest.mark.parametrize("compiled", [True, False])
def test_many_rows(compiled: bool) -> None:
    numbers, chance = new_numbers(compiled, 2), np.random.default_rng(1)
    known = np.empty((2, 0), np.int64)
    for _ in range(4):
        rows = chance.integers(0, 1 << 7, (2, 10_000))
        number, first = numbers.of(*rows)
        known = np.concatenate([known, rows[:, first]], 1)
        assert (known[:, number] == rows).all()
    assert len(set(map(tuple, known.T.tolist()))) == known.shape[1] > 1 << 13
