"""Branches replayed backwards, compiled and by NumPy, against stacks that are kept as lists."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.arrays import offsets_of
from lastbranch.export.virtual_unwinding import ROOT, Step, Steps, Unwinder, Unwound, new_unwinder

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")

Sample = tuple[list[int], list[int]]
"""Frames, leaf first, and numbers of steps."""
Row = tuple[int, int, int]
"""How, source and call of a step."""
ADDRESS = st.sampled_from([0, 1, 2, 1 << 40, (1 << 64) - 1])
HOW = st.builds(
    lambda a, b: a | b, st.sampled_from([0, 1, 1, 2]), st.sampled_from([Step.CALL, Step.RETURN, Step.OTHER])
)


def unwinder(compiled: bool) -> Unwinder:
    with mock.patch.object(native, "library", native.library if compiled else lambda: None):
        return new_unwinder()


def table(rows: list[Row]) -> Steps:
    how, source, call = np.array(rows, np.uint64).reshape(-1, 3).T
    return Steps(how.astype(np.uint8), source, source, source, call)


def add(to: Unwinder, samples: list[Sample], steps: Steps) -> None:
    (frames, chains), (numbers, ends) = (
        ([v for sample in samples for v in sample[i]], offsets_of(np.array([len(s[i]) for s in samples], np.int64)))
        for i in range(2)
    )
    to.add(np.array(frames, np.uint64), chains, np.array(numbers, np.int64), ends, steps)


def expected(samples: list[Sample], rows: list[Row]) -> Counter[tuple[tuple[int, ...], bool, int, tuple[int, ...]]]:
    """How often a step was taken from a stack (outermost first, and whether it was lost) to another one."""
    found: Counter[tuple[tuple[int, ...], bool, int, tuple[int, ...]]] = Counter()
    for frames, numbers in samples:
        stack, lost = frames[::-1], False
        for number in numbers:
            (how, source, call), before, was = rows[number], tuple(stack), lost
            lost = lost or how & Step.RANGE == Step.BROKEN
            if lost:
                stack = [source]
            elif how & ~Step.RANGE == Step.CALL and len(stack) > 1 and stack[-2] == source:
                stack.pop()
            elif how & ~Step.RANGE == Step.RETURN:
                stack[-1:] = [call, source]
            else:
                stack[-1] = source
            found[before, was, number, tuple(stack)] += 1
    return found


def said(found: Unwound) -> Counter[tuple[tuple[int, ...], bool, int, tuple[int, ...]]]:
    stacks: list[tuple[int, ...]] = [()]
    for parent, address in zip(found.parent.tolist()[1:], found.address.tolist()[1:], strict=True):
        stacks.append((*stacks[parent], address))
    assert len(set(stacks)) == len(stacks)
    rows = zip(*(c.tolist() for c in (found.state, found.step, found.after, found.times)), strict=True)
    return Counter({(stacks[s >> 1], bool(s & 1), step, stacks[a >> 1]): n for s, step, a, n in rows})


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=80)
@given(st.data())
def test_each_step_leads_from_stack_to_stack(compiled: bool, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(HOW, ADDRESS, ADDRESS), min_size=1, max_size=8))
    sample = st.tuples(st.lists(ADDRESS, min_size=1, max_size=4), st.lists(st.integers(0, len(rows) - 1), max_size=9))
    batches = data.draw(st.lists(st.lists(sample, max_size=20), max_size=3))
    found, steps = unwinder(compiled), table(rows)
    for batch in batches:
        add(found, batch, steps)
    assert said(found.rows()) == expected([sample for batch in batches for sample in batch], rows)


def test_many_stacks_are_the_same_in_both_forms() -> None:
    chance = np.random.default_rng(1)
    rows = [(int(chance.choice([1, 5, 9])), *chance.integers(0, 40, 2).tolist()) for _ in range(60)]
    samples = [(chance.integers(0, 40, 3).tolist(), chance.integers(0, 60, 8).tolist()) for _ in range(1500)]
    found = [said(one.rows()) for one in map(unwinder, (True, False)) if add(one, samples, table(rows)) is None]
    assert found[0] == found[1]
    assert len(found[0]) > 5000


def test_what_is_out_of_range_is_refused() -> None:
    one, none = table([(1, 7, 8)]), np.empty(0, np.int64)
    for frames, chains, step, ends in (
        ([1], [0, 2], [0], [0, 1]),
        ([1], [0, 0], [0], [0, 1]),
        ([1, 2], [0, 2, 1], none, [0, 0, 0]),
        ([1], [0, 1], [1], [0, 1]),
        ([1], [0, 1], [-1], [0, 1]),
        ([1], [0, 1], [0], [0, 2]),
        ([1], [-1, 1], [0], [0, 1]),
    ):
        given_ = np.array(frames, np.uint64), np.array(chains), np.array(step, np.int64), np.array(ends)
        with pytest.raises(ValueError, match="out of range"):
            unwinder(True).add(*given_, one)


def test_the_root_is_the_first_stack() -> None:
    for compiled in (True, False):
        found = unwinder(compiled).rows()
        assert found.parent.tolist() == [ROOT]
        assert not len(found.state)
