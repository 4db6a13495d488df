"""The ring against a list and the words of the Intel manual."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch.errors import SelectionError
from lastbranch.lbr import BRANCH_TYPES, KIND, Record, Ring, ring_contents

Branch = tuple[int, int, int, int, int]
"""source, target, kind, cpl, bytes of the instruction (0: not known)"""

SUPPRESSED_BY = {
    "cond": 2, "call": 3, "cond_call": 3, "ind_call": 4, "ret": 5, "cond_ret": 5, "ind": 6, "uncond": 7,
}  # fmt: skip
"""Branch type -> bit of MSR_LBR_SELECT; bit 8 for all others."""
CALL_STACK = 0x3C4


def oracle(branches: list[Branch], depth: int, select: int) -> list[Branch]:
    """Newest first. A list that forgets its first element when it is longer than the ring."""
    ring: list[Branch] = []
    for branch in branches:
        source, target, kind, cpl, length = branch
        if select >> (0 if cpl == 0 else 1) & 1:
            continue
        if select >> SUPPRESSED_BY.get(BRANCH_TYPES[kind], 8) & 1:
            continue
        if select >> 9 & 1:
            if BRANCH_TYPES[kind] in ("ret", "cond_ret"):
                ring = ring[:-1]
                continue
            if length and "call" in BRANCH_TYPES[kind].split("_") and target == source + length:
                continue
            if not length and BRANCH_TYPES[kind] == "call" and target == source + 5:
                continue
        ring = [*ring, branch][-depth:]
    return ring[::-1]


def ring_of(branches: list[Branch], depth: int, select: int) -> Ring:
    ring = Ring(depth, select)
    for i, (source, target, kind, cpl, length) in enumerate(branches):
        ring.record(source, target, kind, cpl, info=i, length=length)
    return ring


def burst(branches: list[Branch], depth: int, select: int) -> list[Branch]:
    columns = np.array(branches, np.uint64).reshape(-1, 5).T
    source, target, kind, cpl, length = columns
    found = ring_contents(source, target, kind.astype(np.uint8), depth=depth, select=select, cpl=cpl, length=length)
    return [branches[i] for i in found]


def check(branches: list[Branch], depth: int, select: int) -> None:
    expected = oracle(branches, depth, select)
    assert [
        (r.source, r.target, r.kind, *branches[r.info][3:]) for r in ring_of(branches, depth, select).read()
    ] == expected
    assert burst(branches, depth, select) == expected


ADDRESS = st.integers(0, 3).map(lambda i: 0x400000 + 5 * i)
LENGTH = st.sampled_from([0, 2, 5, 6, 10])
BRANCHES = st.lists(st.tuples(ADDRESS, ADDRESS, st.integers(0, 15), st.sampled_from([0, 3]), LENGTH), max_size=60)
CALLS = st.lists(
    st.tuples(
        ADDRESS,
        ADDRESS,
        st.sampled_from([KIND["call"], KIND["ind_call"], KIND["ret"], KIND["cond"]]),
        st.just(3),
        LENGTH,
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(BRANCHES, st.integers(1, 9), st.integers(0, 0x1FF))
def test_filters(branches: list[Branch], depth: int, select: int) -> None:
    check(branches, depth, select)


@settings(max_examples=300, deadline=None)
@given(st.one_of(BRANCHES, CALLS), st.integers(1, 9), st.sampled_from([CALL_STACK, CALL_STACK | 1, CALL_STACK | 2]))
def test_call_stack_mode(branches: list[Branch], depth: int, select: int) -> None:
    check(branches, depth, select)


def test_every_short_sequence() -> None:
    """All sequences of up to six calls, returns and zero-length calls, in rings of one to three slots."""
    steps = [(0x100, 0x200, KIND["call"], 3, 5), (0x204, 0x104, KIND["ret"], 3, 1), (0x100, 0x106, KIND["call"], 3, 6)]
    for length in range(7):
        for branches in product(steps, repeat=length):
            numbered = [(s + 16 * i, t + 16 * i, *rest) for i, (s, t, *rest) in enumerate(branches)]
            for depth in (1, 2, 3):
                assert burst(numbered, depth, CALL_STACK) == oracle(numbered, depth, CALL_STACK)


def test_the_top_of_stack_goes_round_and_back() -> None:
    ring = Ring(4)
    tops = []
    for i in range(6):
        ring.record(i, i, KIND["cond"])
        tops.append(ring.tos)
    assert tops == [0, 1, 2, 3, 0, 1]
    assert [r.source for r in ring.read()] == [5, 4, 3, 2]
    haswell = Ring(16)
    for i in range(18):
        haswell.record(i, i, KIND["cond"])
        assert haswell.tos == i % 16

    stack = Ring(4, CALL_STACK)
    moves = []
    for kind in ("call", "ind_call", "ret", "call", "ret", "ret", "ret", "call"):
        stack.record(1, 2, KIND[kind])
        moves.append(stack.tos)
    assert moves == [0, 1, 0, 1, 0, 3, 3, 0]
    stack.clear()
    assert (stack.read(), stack.tos) == ([], 3)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("e8 00000000", "call"),
        ("66 e8 00000000", "call"),
        ("48 e8 00000000", "call"),
        ("66 66 48 e8 00000000", "call"),
        ("e8 0000", "call"),
        ("ff d0", "ind_call"),
        ("41 ff d3", "ind_call"),
        ("ff 15 00000000", "ind_call"),
    ],
)
def test_a_zero_length_call_has_any_encoding(code: str, kind: str) -> None:
    length = len(bytes.fromhex(code))
    for target, expected in ((0x1000 + length, 0), (0x1000 + length + 1, 1), (0x1000, 1)):
        ring = Ring(4, CALL_STACK)
        ring.record(0x1000, target, KIND[kind], length=length)
        assert len(ring.read()) == expected


def test_overwritten_calls_do_not_come_back() -> None:
    ring = Ring(2, CALL_STACK)
    for i in range(4):
        ring.record(i, 100, KIND["call"])
    for expected in ([2], [], []):
        ring.record(101, 0, KIND["ret"])
        assert [r.source for r in ring.read()] == expected


def test_nothing_is_recorded_while_frozen_or_off() -> None:
    ring = Ring(4)
    ring.record(1, 2, KIND["cond"])
    ring.frozen = True
    ring.record(3, 4, KIND["cond"])
    ring.frozen, ring.enabled = False, False
    ring.record(5, 6, KIND["cond"])
    ring.enabled = True
    ring.record(7, 8, KIND["cond"], info=9)
    assert ring.read() == [Record(7, 8, KIND["cond"], 9), Record(1, 2, KIND["cond"])]


@pytest.mark.parametrize("select", [0x200, 0x3C7, 0x3CC, 0x400])
def test_an_invalid_selection_is_refused(select: int) -> None:
    nothing = np.zeros(0, np.uint64)
    with pytest.raises(SelectionError):
        Ring(16, select)
    with pytest.raises(SelectionError):
        ring_contents(nothing, nothing, nothing.astype(np.uint8), depth=16, select=select)


def test_a_ring_has_slots() -> None:
    with pytest.raises(ValueError, match="0 slots"):
        Ring(0)
