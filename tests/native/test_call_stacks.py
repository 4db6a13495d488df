"""Branch types, call stacks, distinct stacks and sums over them, compiled, against plain Python and the NumPy form."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.analysis.counting.branch_kinds import NativeSites
from lastbranch.analysis.stacks.call_stacks import rebuilt_stacks
from lastbranch.arrays import StackSums, distinct_stacks
from lastbranch.lbr import BRANCH_TYPES, KIND, branch_type, open_calls

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")

ADDRESSES = st.one_of(
    st.sampled_from([0, 0x1000, 0x1005, 0x100_1000, 0xFFFF_FFFF_8100_0000, (1 << 64) - 1]), st.integers(0, 40)
)
HIDDEN = 255


def columns(draw: st.DrawFn, stacks: list[list[tuple[int, ...]]]) -> list[Any]:
    """The columns of the entries, each contiguous or not."""
    entries = np.array([entry for stack in stacks for entry in stack], np.uint64).reshape(-1, 3)
    return list(entries.T if draw(st.booleans()) else np.ascontiguousarray(entries.T))


def offsets_of(stacks: list[list[Any]]) -> Any:
    return np.cumsum([0, *map(len, stacks)])


@st.composite
def batches(draw: st.DrawFn, last: st.SearchStrategy[int]) -> tuple[list[Any], Any]:
    """Columns of source, target and ``last``, and their offsets."""
    entry = st.tuples(ADDRESSES, ADDRESSES, last)
    stacks = draw(st.lists(st.lists(entry, max_size=12), min_size=1, max_size=6))
    return columns(draw, stacks), offsets_of(stacks)


FLAGS = st.one_of(st.just(0), st.integers(0, (1 << 64) - 1))


@settings(max_examples=150)
@given(st.lists(batches(FLAGS), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_types_are_recorded_or_those_of_the_site(given: list[Any], chance: Any) -> None:
    sites, known = NativeSites.available(), dict[tuple[int, int], int]()
    assert sites is not None

    def find(scope: Any, source: Any) -> Any:
        keys = list(zip(scope.tolist(), source.tolist(), strict=True))
        assert len({*known, *keys}) == len(known) + len(keys), "each site is looked up once"
        known.update((key, chance.choice([1, 2, 5, 32, HIDDEN])) for key in keys)
        return np.array([known[key] for key in keys], np.uint8)

    for (source, _, flags), offsets in given:
        scope = np.array([chance.choice([0, 1, 0xFFFF_FFFF]) for _ in offsets[1:]])
        found = sites.kinds(scope, offsets, source, flags, find)
        assert found is not None
        kind, hidden = found
        recorded, owner = branch_type(flags).tolist(), np.repeat(scope, np.diff(offsets)).tolist()
        expected = [
            type_ or (known[place] if place[1] else 1)
            for type_, place in zip(recorded, zip(owner, source.tolist(), strict=True), strict=True)
        ]
        looked_up = [not type_ for type_ in recorded]
        assert hidden.tolist() == [i for i, value in enumerate(expected) if looked_up[i] and value == HIDDEN]
        assert kind.tolist() == [
            (0 if value == HIDDEN else value - 1) if up else value
            for value, up in zip(expected, looked_up, strict=True)
        ]


def test_sites_of_a_full_table_are_forgotten_and_found_again() -> None:
    sites = NativeSites.available()
    assert sites is not None
    stack, flags = np.array([0, 1 << 17]), np.zeros(1 << 17, np.uint64)

    def find(_: Any, source: Any) -> Any:
        return (1 + source % np.uint64(7)).astype(np.uint8)

    for number in [*range(20), 0]:
        source = np.arange(1, (1 << 17) + 1, dtype=np.uint64) + np.uint64(number << 17)
        found = sites.kinds(np.zeros(1, np.int64), stack, source, flags, find)
        assert found is not None
        assert (found[0] == source % np.uint64(7)).all()


def test_sites_of_many_regions_are_told_apart() -> None:
    sites = NativeSites.available()
    assert sites is not None
    source = np.arange(1, 5001, dtype=np.uint64) << np.uint64(24) | np.uint64(7)

    def find(scope: Any, source: Any) -> Any:
        return (1 + (source >> np.uint64(24)) % np.uint64(7) + scope.view(np.uint64)).astype(np.uint8)

    for _ in range(2):
        for scope in (0, 9):
            found = sites.kinds(np.array([scope]), np.array([0, 5000]), source, np.zeros(5000, np.uint64), find)
            assert found is not None
            assert (found[0] == (source >> np.uint64(24)) % np.uint64(7) + np.uint64(scope)).all()


def test_scopes_that_are_no_words_are_declined() -> None:
    sites = NativeSites.available()
    assert sites is not None
    one = np.ones(1, np.uint64)
    for scope in (-1, 1 << 32):
        assert sites.kinds(np.array([scope]), np.array([0, 1]), one, one, lambda *_: one) is None


def played(stack: list[tuple[int, int, int]]) -> list[int]:
    """Sources of the open calls of one stack (newest first), by a machine that plays it from the oldest on."""
    frames: list[tuple[int, bool]] = []  # source, and whether it entered a handler
    for source, target, kind in reversed(stack):
        name = BRANCH_TYPES[kind] if kind < len(BRANCH_TYPES) else ""
        if name in ("syscall", "irq"):
            frames.append((source, True))
        elif name in ("call", "ind_call", "cond_call"):
            if not (name == "call" and (target - source) % (1 << 64) == 5):
                frames.append((source, False))
        elif name in ("ret", "cond_ret"):
            if frames and not frames[-1][1]:
                frames.pop()
        elif name in ("sysret", "eret") and any(handler for _, handler in frames):
            while not frames.pop()[1]:
                pass
    return [source for source, _ in reversed(frames)]


KINDS = st.one_of(
    st.sampled_from([KIND[name] for name in ("call", "call", "ret", "ret", "ind_call", "syscall", "sysret", "eret")]),
    st.integers(0, 31),
)


@settings(max_examples=300)
@given(batches(KINDS), st.randoms(use_true_random=False))
def test_rebuilt_stacks_are_those_of_a_machine(given: tuple[list[Any], Any], chance: Any) -> None:
    (source, target, kinds), offsets = given
    kind = kinds.astype(np.uint8)
    ip = np.array([chance.choice([0, 0x77]) for _ in offsets[1:]], np.uint64)
    keep, _ = open_calls(source, target, kind, offsets)
    found = rebuilt_stacks(ip, source, target, kind.copy(), offsets)
    assert found is not None
    frame, bounds = found
    for sample, (lo, hi) in enumerate(pairwise(offsets.tolist())):
        stack = list(zip(source[lo:hi].tolist(), target[lo:hi].tolist(), kind[lo:hi].tolist(), strict=True))
        leaf = int(ip[sample]) or (stack[0][1] if stack else 0)
        assert frame[bounds[sample] : bounds[sample + 1]].tolist() == [leaf] * (leaf != 0) + played(stack)
        assert source[lo:hi][keep[lo:hi]].tolist() == played(stack)


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=100)
@given(st.data())
def test_sums_over_equal_stacks(compiled: bool, data: st.DataObject) -> None:
    stack = st.tuples(st.sampled_from([0, -1, 1 << 40]), st.lists(st.sampled_from([0, 1, (1 << 64) - 1]), max_size=3))
    amounts = st.sampled_from([0, 1, 7, -1, (1 << 63) - 1])
    with mock.patch.object(native, "library", native.library if compiled else lambda: None):
        sums = StackSums(1, 2, 1, 1)
    for _ in range(2):  # what was taken is forgotten
        expected = dict[tuple[int, tuple[int, ...]], list[int]]()
        for _ in range(data.draw(st.integers(0, 3))):
            batch = data.draw(st.lists(st.tuples(stack, amounts, amounts), max_size=40))
            frame = np.array([value for (_, frames), _, _ in batch for value in frames], np.uint64)
            rows = [(owner, *values) for (owner, _), *values in batch]
            key, one, other = np.array(rows, np.int64).reshape(-1, 3).T
            columns = [one, other.view(np.uint64), one, other]
            sums.add([key], frame, offsets_of([frames for (_, frames), _, _ in batch]), columns)
            for (owner, frames), *values in batch:
                total = expected.setdefault((owner, tuple(frames)), [0, 0, *values])
                added = [(a + b + (1 << 63)) % (1 << 64) - (1 << 63) for a, b in zip(total[:2], values, strict=True)]
                total[:] = *added, min(total[2], values[0]), max(total[3], values[1])
        assert (sums.size == 0) == (not expected)
        read, taken = sums.read(), sums.take()
        assert all((a == b).all() for a, b in zip(read, taken, strict=True))
        (owners,), frame, offsets, values = taken
        stacks = [tuple(frame[lo:hi].tolist()) for lo, hi in pairwise(offsets.tolist())]
        assert list(zip(owners.tolist(), stacks, strict=True)) == list(expected)
        assert values.T.tolist() == list(expected.values())


@pytest.mark.parametrize("compiled", [True, False])
def test_sums_of_a_table_that_grows(compiled: bool) -> None:
    random = np.random.default_rng(1)
    with mock.patch.object(native, "library", native.library if compiled else lambda: None):
        sums = StackSums(1, 1)
    seen = np.zeros((1 << 10, 1 << 10), np.int64)
    for _ in range(20):
        key, frame = random.integers(0, 1 << 10, (2, 40_000))
        sums.add([key], frame, np.arange(40_001), [np.full(40_000, 3)])
        np.add.at(seen, (key, frame), 3)
    (key,), frame, offsets, (total,) = sums.take()
    assert (np.diff(offsets) == 1).all()
    assert len(key) == np.count_nonzero(seen)
    assert (seen[key, frame] == total).all()


FRAMES = st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=40)


@settings(max_examples=150)
@given(FRAMES, st.integers(0, 2), st.sampled_from([np.uint64, np.int64, np.int32, np.int16]), st.data())
def test_distinct_stacks(stacks: list[list[int]], keys: int, dtype: Any, data: st.DataObject) -> None:
    number = st.lists(st.sampled_from([0, 1, (1 << 63) - 1]), min_size=len(stacks), max_size=len(stacks))
    key = [data.draw(number) for _ in range(keys)]
    whole = [(tuple(stack), *(column[i] for column in key)) for i, stack in enumerate(stacks)]
    frame = np.array([value for stack in stacks for value in stack], dtype)
    rows, which = distinct_stacks([np.array(column, np.uint64) for column in key], frame, offsets_of(stacks))
    first = {one: whole.index(one) for one in whole}
    assert rows.tolist() == sorted(first.values())
    assert [int(rows[place]) for place in which] == [first[one] for one in whole]


def test_many_distinct_stacks() -> None:
    frame = np.random.default_rng(1).integers(0, 1 << 12, 40000).astype(np.uint64)
    offsets = np.arange(0, 40001, 2)
    rows, which = distinct_stacks([], frame, offsets)
    pairs = frame.reshape(-1, 2).tolist()
    assert [pairs[rows[place]] for place in which] == pairs
    assert len({tuple(pairs[row]) for row in rows}) == len(rows)
