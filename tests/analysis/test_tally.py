"""Equal stacks found by hashes are those that a dictionary finds, even where all hashes are the same."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import arrays as same
from lastbranch.arrays import distinct_stacks, take_rows

STACKS = st.lists(
    st.tuples(st.integers(-1, 1), st.lists(st.sampled_from([0, 1, 2, 1 << 63, (1 << 64) - 1]), max_size=4)), max_size=30
)


def columns(stacks: list[tuple[int, list[int]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(key, frames, offsets)."""
    offsets = np.cumsum([0, *(len(frames) for _, frames in stacks)])
    frames = np.array([f for _, frames in stacks for f in frames], np.uint64)
    return np.array([key for key, _ in stacks], np.int64), frames, offsets


def check(stacks: list[tuple[int, list[int]]]) -> None:
    key, frame, offsets = columns(stacks)
    rows, which = distinct_stacks([key], frame, offsets)
    plain = [(k, tuple(f)) for k, f in stacks]
    firsts = list(dict.fromkeys(plain))
    assert [plain[row] for row in rows.tolist()] == firsts
    assert rows.tolist() == sorted(rows.tolist())
    assert [firsts[i] for i in which.tolist()] == plain
    values, bounds = take_rows(frame, offsets, rows)
    assert [tuple(values[a:b].tolist()) for a, b in pairwise(bounds.tolist())] == [f for _, f in firsts]
    assert Counter(which.tolist()).total() == len(stacks)


@settings(max_examples=60, deadline=None)
@given(STACKS)
def test_stacks_are_told_apart(stacks: list[tuple[int, list[int]]]) -> None:
    check(stacks)


@settings(max_examples=40, deadline=None)
@given(STACKS)
def test_stacks_of_one_hash_are_told_apart(stacks: list[tuple[int, list[int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(same, "_digest", lambda keys, frame, offsets: np.zeros(len(offsets) - 1, np.uint64))
        check(stacks)
