"""Branches and their sums over samples, compiled and by NumPy, against a count of one sample after the other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.analysis.statistics.sample_sums import _NativeSums, _sum_batch
from lastbranch.model import SampleBatch

ADDRESSES = st.one_of(st.integers(0, 3), st.sampled_from([(1 << 64) - 1, 1 << 63, 1 << 47]))
FLAGS = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))
STACKS = st.lists(
    st.tuples(st.integers(-1, 2), st.lists(st.tuples(ADDRESSES, ADDRESSES, FLAGS), max_size=8)), max_size=12
)


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=200)
@given(STACKS, st.booleans())
def test_sums_of_branches(compiled: bool, stacks: list[tuple[int, list[tuple[int, int, int]]]], strided: bool) -> None:
    if compiled and native.library() is None:
        pytest.skip("no compiled library")
    entries = np.array([entry for _, stack in stacks for entry in stack], np.uint64).reshape(-1, 3)
    if not len(entries):
        return
    columns = [column if strided else np.ascontiguousarray(column) for column in entries.T]
    names = ("branch_from", "branch_to", "branch_flags")
    offsets = np.cumsum([0, *(len(stack) for _, stack in stacks)])
    required = dict.fromkeys(
        ("time", "ip", "pid", "tid", "cpu", "event", "period", "mode"), np.zeros(len(stacks), np.int64)
    )
    batch = SampleBatch({**required, **dict(zip(names, columns, strict=True))}, {"branch": offsets})
    scope = np.array([scope for scope, _ in stacks], np.int64)
    if compiled:
        sums = _NativeSums.available()
        assert sums is not None
        for part in range(0, len(stacks), 5):  # in several batches
            sums.add(scope[part : part + 5], batch.slice(part, min(part + 5, len(stacks))))
        found = sums.take()
        assert sums.add(scope[:0], batch.slice(0, 0)) == 0
    else:
        found = _sum_batch(scope, batch)
    want: dict[tuple[int, int, int], list[int]] = {}
    for owner, stack in stacks:
        inside = Counter((a, b) for a, b, _ in stack)
        for (a, b), n in inside.items():
            flags = [flag for *ends, flag in stack if tuple(ends) == (a, b)]
            cycles = [flag >> 4 & 0xFFFF for flag in flags]
            sums = [n, sum(f & 1 for f in flags), sum(f >> 1 & 1 for f in flags), sum(cycles), sum(map(bool, cycles))]
            row = want.setdefault((owner, a, b), [0] * 8)
            for i, value in enumerate([*sums, 1, n * n, n * len(stack)]):
                row[i] += value
    rows = zip(*(column.tolist() for column in found), strict=True)
    assert {tuple(row[:3]): list(row[3:]) for row in rows} == want
    assert len(found[0]) == len(want)
