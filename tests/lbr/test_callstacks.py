"""Call stacks out of branch records, against programs whose stack is known because they are played here."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch.lbr import KIND, Ring, call_frames, follow_links, open_calls, stitch

USER, KERNEL = 3, 0
CALL_STACK = 0x3C4


class Branch(NamedTuple):
    source: int
    target: int
    kind: str
    cpl: int
    """Privilege level that it ends in."""


class Play(NamedTuple):
    """A program's branches, oldest first, and behind each of them its stack: numbers of the branches still open."""

    branches: list[Branch]
    stacks: list[list[int]]


def play(seed: int, length: int, *, interrupts: bool, climb: float = 0.5) -> Play:
    """Random calls, returns, jumps, tail calls and zero-length calls; every call site is used once.

    Handlers of interrupts and system calls return to whom they interrupted after all their calls have returned.
    """
    rng = random.Random(seed)
    branches: list[Branch] = []
    stacks: list[list[int]] = []
    stack: list[int] = []
    levels = [0]  # how deep the stack was where each handler began

    def take(kind: str, target: int | None = None, cpl: int | None = None) -> None:
        level = USER if len(levels) == 1 else KERNEL
        source = 0x1000 * (len(branches) + 1)
        branches.append(
            Branch(source, source + 0x800 if target is None else target, kind, level if cpl is None else cpl)
        )

    while len(branches) < length:
        number, depth = len(branches), len(stack) - levels[-1]
        what = rng.random()
        if interrupts and what < 0.08:
            take(rng.choice(["irq", "syscall"]), cpl=KERNEL)
            stack.append(number)
            levels.append(len(stack))
        elif len(levels) > 1 and depth == 0 and what < 0.6:
            levels.pop()
            take(rng.choice(["eret", "sysret"]), cpl=USER if len(levels) == 1 else KERNEL)
            stack.pop()
        elif what < 0.3:
            take(rng.choice(["cond", "uncond", "ind"]))  # the last two: a tail call, or not
        elif what < 0.35:
            take("call", target=0x1000 * (number + 1) + 5)
        elif what < 0.35 + 0.65 * climb:
            take(rng.choice(["call", "ind_call"]))
            stack.append(number)
        elif depth:
            take("ret")
            stack.pop()
        else:
            continue
        stacks.append(list(stack))
    return Play(branches, stacks)


def columns(branches: list[Branch]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.array([b.source for b in branches], np.uint64),
        np.array([b.target for b in branches], np.uint64),
        np.array([KIND[b.kind] for b in branches], np.uint8),
    )


def replayed(windows: list[list[int]], branches: list[Branch]) -> tuple[list[list[int]], list[int]]:
    """`open_calls` on windows of branch numbers, each newest first: the open ones of each, and unmatched returns."""
    numbers = [n for window in windows for n in window]
    offsets = np.cumsum([0, *map(len, windows)])
    keep, unmatched = open_calls(*columns([branches[n] for n in numbers]), offsets)
    kept = [[numbers[i] for i in range(a, b) if keep[i]] for a, b in pairwise(offsets)]
    return kept, unmatched.tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.booleans(), st.sampled_from([0.3, 0.5, 0.7]), st.integers(1, 40))
def test_open_calls_are_those_of_the_program(seed: int, interrupts: bool, climb: float, depth: int) -> None:
    program = play(seed, 120, interrupts=interrupts, climb=climb)
    ends = range(1, 121, 7)
    windows = [list(range(end - 1, max(end - depth, 0) - 1, -1)) for end in ends]
    kept, unmatched = replayed(windows, program.branches)
    for end, found, window, lost in zip(ends, kept, windows, unmatched, strict=True):
        stack = program.stacks[end - 1]
        assert found == [n for n in reversed(stack) if n >= window[-1]]
        before = program.stacks[window[-1] - 1] if window[-1] else []
        # Whatever ran before the window and is gone now has returned in it, by a return that found no call. Handlers
        # end with another return, and the calls of one that began before the window cannot be distinguished.
        if not interrupts:
            assert lost == len([n for n in before if n not in stack])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 40))
def test_open_calls_of_the_user_without_the_kernel(seed: int, depth: int) -> None:
    """A CPL filter drops what ends in the kernel: the way back is there, the way in is not."""
    program = play(seed, 150, interrupts=True)
    recorded = [n for n, b in enumerate(program.branches) if b.cpl == USER]
    if not recorded:
        return
    window = recorded[::-1][:depth]
    (found,), _ = replayed([window], program.branches)
    user = [n for n in program.stacks[-1] if program.branches[n].cpl == USER]
    assert found == [n for n in reversed(user) if n >= window[-1]]


def test_a_handler_that_does_not_unwind_takes_its_calls_with_it() -> None:
    kinds = ["call", "irq", "call", "call", "eret", "call", "ret", "ret", "ret"]
    branches = [Branch(0x100 * i, 0x100 * i + 0x80, kind, USER) for i, kind in enumerate(kinds)]
    assert replayed([[4, 3, 2, 1, 0]], branches) == ([[0]], [0])
    assert replayed([[8, 7, 6, 5, 4, 3, 2, 1, 0]], branches) == ([[]], [1])
    assert replayed([[4, 0], [2, 1]], branches) == ([[0], [2, 1]], [0, 0])  # a way back without the way in
    assert replayed([[8, 1, 0], [], [1, 0]], branches) == ([[1, 0], [], [1, 0]], [0, 0, 0])


def test_no_stacks_at_all() -> None:
    keep, unmatched = open_calls(*columns([]), np.zeros(1, np.int64))
    assert (keep.size, unmatched.size) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([0.4, 0.5, 0.65]), st.sampled_from([2, 4, 8, 16]))
def test_frames_of_call_stack_mode(seed: int, climb: float, depth: int) -> None:
    program = play(seed, 150, interrupts=True, climb=climb)
    ring = Ring(depth, CALL_STACK | 1)  # far branches never get in, and what ends in the kernel does not either
    reads, expected = [], []
    for number, branch in enumerate(program.branches):
        ring.record(branch.source, branch.target, KIND[branch.kind], branch.cpl, info=number)
        reads.append(ring.read())
        user = [n for n in reversed(program.stacks[number]) if program.branches[n].cpl == USER]
        assert [r.info for r in reads[-1]] == user[: len(reads[-1])]
        frames = [program.branches[n].source for n in user[: len(reads[-1])]]
        expected.append([program.branches[user[0]].target, *frames] if frames else [])
    offsets = np.cumsum([0, *map(len, reads)])
    entries = [r for read in reads for r in read]
    frames, ends = call_frames(
        np.array([r.source for r in entries], np.uint64), np.array([r.target for r in entries], np.uint64), offsets
    )
    assert [frames[a:b].tolist() for a, b in pairwise(ends)] == expected


class Sample(NamedTuple):
    thread: int
    hw_idx: int
    entries: list[tuple[int, int, int]]
    """source, target, flags; newest first"""


def stitched(samples: list[Sample], depth: int) -> list[list[tuple[int, int, int]]]:
    """By the text: slot by slot, with everything that was known of the thread before."""
    known: dict[int, tuple[Sample, list[tuple[int, int, int]]]] = {}
    results = []
    for sample in samples:
        result = list(sample.entries)
        if sample.thread in known and sample.entries and sample.hw_idx >= 0:
            before, all_before = known[sample.thread]
            slots = {(before.hw_idx - i) % depth: i for i in range(len(before.entries) if before.hw_idx >= 0 else 0)}
            oldest = (sample.hw_idx - len(sample.entries) + 1) % depth
            if oldest in slots and before.entries[slots[oldest]] == sample.entries[-1]:
                result += all_before[slots[oldest] + 1 :]
        known[sample.thread] = sample, result
        results.append(result)
    return results


def check(samples: list[Sample], depth: int) -> list[list[tuple[int, int, int]]]:
    entries = [e for s in samples for e in s.entries]
    source, target, flags = np.array(entries, np.uint64).reshape(-1, 3).T
    offsets = np.cumsum([0, *(len(s.entries) for s in samples)])
    links = stitch(
        source,
        target,
        flags,
        offsets,
        np.array([s.hw_idx for s in samples], np.int64),
        np.array([s.thread for s in samples], np.int64),
        depth,
    )
    result = [[entries[i] for i in follow_links(row, links, offsets)] for row in range(len(samples))]
    assert result == stitched(samples, depth)
    return result


ENTRY = st.tuples(st.integers(0, 1), st.just(0), st.integers(0, 1))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.builds(Sample, st.integers(0, 1), st.integers(-1, 3), st.lists(ENTRY, max_size=4)), max_size=12))
def test_stitching_follows_the_slots(samples: list[Sample]) -> None:
    check(samples, 4)


@pytest.mark.parametrize("seed", range(8))
def test_stitched_stacks_are_the_programs(seed: int) -> None:
    """Every call site is used once here, so no two calls look alike and stitching cannot be wrong."""
    depth, deeper = 4, 0
    programs = [play(seed + 100 * t, 300, interrupts=False, climb=0.55) for t in range(2)]
    rings = [Ring(depth, CALL_STACK) for _ in programs]
    samples, truth = [], []
    every: Callable[[int], bool] = random.Random(seed).choice([lambda n: n % 2 == 0, lambda n: n % 3 == 0])
    for number in range(300):
        for thread, (program, ring) in enumerate(zip(programs, rings, strict=True)):
            branch = program.branches[number]
            ring.record(branch.source, branch.target, KIND[branch.kind])
            if every(number):
                entries = [(r.source, r.target, 0) for r in ring.read()]
                samples.append(Sample(thread, ring.tos, entries))
                stack = program.stacks[number]
                truth.append([(*program.branches[n][:2], 0) for n in reversed(stack)])
    for result, stack in zip(check(samples, depth), truth, strict=True):
        assert result == stack[: len(result)]
        deeper += len(result) > depth
    assert deeper > 20
