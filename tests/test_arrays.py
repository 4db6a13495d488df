"""Columns of `lastbranch.arrays` against plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.arrays import Sums, distinct_rows, distinct_unordered, lowest_rows, sum_covering

WORDS = st.integers(0, (1 << 64) - 1) | st.integers(0, 3)
SIGNED = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 2)


@given(st.lists(st.tuples(WORDS, SIGNED, st.integers(-(1 << 31), (1 << 31) - 1), WORDS, st.booleans())))
def test_distinct_rows_are_the_sorted_set_of_rows(rows: list[tuple[int, ...]]) -> None:
    kinds = ("u8", "i8", "i4", "u8", "?")
    columns = [np.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    first, which = distinct_rows(*columns)
    wanted = sorted(set(rows))
    assert [rows[i] for i in first.tolist()] == wanted
    assert first.tolist() == [rows.index(row) for row in wanted]
    assert [wanted[i] for i in which.tolist()] == rows


@given(st.lists(st.tuples(st.sampled_from([0, 1, (1 << 64) - 1]), st.integers(-1, 1))))
def test_distinct_rows_in_no_order(rows: list[tuple[int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], kind) for i, kind in enumerate(("u8", "i8"))]
    found, which = distinct_unordered(*columns)
    assert sorted(rows[i] for i in found.tolist()) == sorted(set(rows))
    assert [rows[found[i]] for i in which.tolist()] == rows


@given(st.lists(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2), st.integers(-5, 5)))))
def test_sums_add_up_by_key_whatever_the_batches(batches: list[list[tuple[int, int, int]]]) -> None:
    sums, wanted = Sums([np.int64, np.uint64], [np.int64]), Counter[tuple[int, int]]()
    for batch in batches:
        sums.add(*(np.array([row[i] for row in batch], kind) for i, kind in enumerate(("i8", "u8", "i8"))))
        for a, b, value in batch:
            wanted[a, b] += value
    a, b, total = sums.result()
    assert list(zip(a.tolist(), b.tolist(), total.tolist(), strict=True)) == [(*k, wanted[k]) for k in sorted(wanted)]
    assert sums.result()[2].tolist() == total.tolist()  # and again


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 5)), max_size=8))
def test_rows_that_ranges_cover(spans: list[tuple[int, int, int]]) -> None:
    ordered = [(min(a, b), max(a, b), weight) for a, b, weight in spans]
    first, past, weight = np.array(ordered, np.int64).reshape(-1, 3).T
    expected = [sum(w for a, b, w in ordered if a <= row < b) for row in range(9)]
    assert sum_covering(first, past, weight, 9).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 2), WORDS, st.sampled_from([-1.5, 0.0, 2.0]))), st.integers(1, 9))
def test_lowest_rows_are_the_first_of_all_sorted(rows: list[tuple[int, int, float]], number: int) -> None:
    found = lowest_rows([np.array([row[i] for row in rows], kind) for i, kind in enumerate(("i8", "u8", "f8"))], number)
    assert [rows[i] for i in found.tolist()] == sorted(rows)[:number]
    assert len(set(found.tolist())) == len(found)
