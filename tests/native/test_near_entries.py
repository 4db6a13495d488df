"""The entries near a piece of code, compiled and by NumPy, against their definition."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.analysis.function.annotation import Nearby

ADDRESSES = st.one_of(st.integers(0, 24), st.sampled_from([(1 << 64) - 1, 1 << 63]))
PIECES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=4)
"""Where pieces of code begin in their module, and their sizes."""
STACKS = st.lists(st.lists(st.tuples(ADDRESSES, ADDRESSES), max_size=6), max_size=5)


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=150)
@given(STACKS, st.sets(st.integers(0, 40), min_size=1, max_size=12), PIECES, st.booleans())
def test_branches_and_ranges_of_the_code(
    compiled: bool, stacks: list[list[tuple[int, int]]], starts: set[int], pieces: list[tuple[int, int]], strided: bool
) -> None:
    if compiled and native.library() is None:
        pytest.skip("no compiled library")
    bias = np.array(sorted(starts), np.uint64)
    binder = SimpleNamespace(mapping_module=np.zeros(len(bias), np.int64), mapping_bias=bias)
    code = [(0, start, start + size) for start, size in pieces]
    nearby = Nearby(SimpleNamespace(binder=binder, events=[]), [*code, (1, 0, 99)])  # type: ignore[arg-type]
    entries = [entry for stack in stacks for entry in stack]
    columns = np.array(entries, np.uint64).reshape(-1, 2).T
    source, target = columns if strided else np.ascontiguousarray(columns)
    offsets = np.cumsum([0, *map(len, stacks)])
    if not entries:
        return
    with mock.patch.object(native, "library", native.library if compiled else lambda: None):
        found: Any = [column.tolist() for column in nearby._near(offsets, source, target)]

    def inside(address: int) -> bool:
        return any(at + start <= address < at + start + size for at in starts for start, size in pieces)

    branches, ranges = [], []
    for number, stack in enumerate(stacks):
        first = int(offsets[number])
        branches += [(first + i, number) for i, ends in enumerate(stack) if inside(ends[0]) or inside(ends[1])]
        for i, ((end, after), (before, start)) in enumerate(pairwise(stack)):
            covered = any(inside(at) for at in range(start, min(end, 64) + 1))  # there is no code further up
            if end and after and before and start and covered:
                ranges.append((first + i, number))
    assert list(zip(*found[:2], strict=True)) == branches
    assert list(zip(*found[2:], strict=True)) == ranges
