"""Recordings of a real program against its complete trace by valgrind, which knows nothing of this package."""

from __future__ import annotations

import re
import subprocess
from collections import Counter, defaultdict
from itertools import pairwise
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from capture_tools import FREESTANDING, Recorded, Trace, build, functions, needs_ptrace, record, stacks, trace, walk
from lastbranch.lbr import KIND

pytestmark = needs_ptrace
DENSE = ("--burst", "32", "--engine", "software", "--duty", "50", "--period", "500000")
"""As many bursts as can be had: the truth is the same."""
ROUNDS = 6
LEAST = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("truth")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return build(folder, "branches", *FREESTANDING)


@pytest.fixture(scope="module")
def truth(folder: Path, program: Path) -> Trace:
    return trace(program, f"{ROUNDS:05}", folder=folder)


@pytest.fixture(scope="module")
def recorded(folder: Path, program: Path) -> Recorded:
    for steps in (80_000, 320_000):  # the second for machines where a burst takes long
        done = record(folder / "dense.data", *DENSE, "--", program, str(steps))
        if done.bursts() > 450:
            break
    return done


def test_every_entry_is_a_real_edge_and_there_are_no_gaps(truth: Trace, recorded: Recorded) -> None:
    assert recorded.code == 0, recorded.err
    found = stacks(recorded.profile())
    entries = [entry for stack in found for entry in stack]
    assert len(entries) > 5000
    assert not Counter(entry for entry in entries if not truth.edge(*entry))
    lines = Counter((a[1], b[0]) for stack in found for a, b in pairwise(stack))
    assert [line for line in lines if walk(truth, *line) is None] == []


def test_conditional_branches_go_the_ways_they_really_go(truth: Trace, recorded: Recorded) -> None:
    """|p - p_true| <= 0.02 + 3 standard errors over bursts, where a branch has enough records."""
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    target_of: dict[int, int] = {}
    lines: dict[tuple[int, int], list[int]] = {}
    for stack in stacks(recorded.profile()):
        counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for before, (source, target) in pairwise(stack):
            line = before[1], source
            if line not in lines:
                lines[line] = walk(truth, *line) or []
            for passed in lines[line]:
                counts[passed][1] += 1
            if truth.conditional(source):
                counts[source][0] += 1
                target_of[source] = target
        for branch, (yes, no) in counts.items():
            taken[branch].append((yes, yes + no))
    compared = 0
    for branch, bursts in taken.items():
        pairs = np.array(bursts, float)
        yes, seen = pairs.sum(axis=0)
        if seen < LEAST or branch not in target_of:
            continue
        p = yes / seen
        error = sqrt(((pairs[:, 0] - p * pairs[:, 1]) ** 2).sum()) / seen
        wanted, executions = truth.probability(branch, target_of[branch])
        theirs = sqrt(wanted * (1 - wanted) / executions)
        assert abs(p - wanted) <= 0.02 + 3 * (error + theirs), (hex(branch), p, wanted, seen)
        compared += 1
    assert compared >= 3


def test_types_are_exact(truth: Trace, recorded: Recorded) -> None:
    """Calls are followed by their returns: the address behind the call."""
    kinds = Counter[int]()
    for batch in recorded.profile().streams[-1].batches():
        for i in range(len(batch)):
            source, _, flags = batch.stack(i)
            for at, word in zip(source.tolist(), flags.tolist(), strict=True):
                kind = word >> 20 & 15
                kinds[kind] += 1
                assert (kind == KIND["cond"]) == truth.conditional(at) or truth.ways(at) == 1
    assert {KIND[name] for name in ("cond", "uncond", "call", "ind_call", "ind", "ret")} <= set(kinds)


def test_the_hottest_edges_are_those_of_the_trace_by_time(truth: Trace, recorded: Recorded) -> None:
    """A burst begins at a moment of time and takes the next edges. The kernel's time samples say where time was
    spent."""
    profile = recorded.profile()
    moments = np.concatenate([b.ip for b in profile.streams[0].batches()])
    expected = truth.windows(32, moments)
    found = Counter(entry for stack in stacks(profile) for entry in stack)
    fifth = expected.most_common(5)[-1][1]
    assert all(expected[edge] > 0.8 * fifth for edge, _ in found.most_common(5))


def test_samples_weigh_the_time_that_the_program_ran(recorded: Recorded) -> None:
    profile = recorded.profile()
    ran = sum(int(b.period.sum()) for b in profile.streams[0].batches())
    weighed = sum(int(b.period.sum()) for b in profile.streams[-1].batches())
    assert weighed == pytest.approx(ran, rel=0.25)
    assert profile.streams[-1].deepest == 32
    for batch in profile.streams[-1].batches():
        assert not (batch["branch_flags"] & np.uint64(0xFFFFF)).any(), "neither mispredictions nor cycles are known"


def test_a_long_burst_makes_records_without_a_gap(folder: Path, program: Path, truth: Trace) -> None:
    """Its records have one thread, time and start, follow each other, and share its weight."""
    words = (*DENSE[2:], "--depth", "16", "--burst", "90-100", "--", program, "30000")
    profile = record(folder / "long.tb5", *words).profile()
    bursts: dict[tuple[int, int, int], list[list[tuple[int, int]]]] = defaultdict(list)
    weights: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for batch in profile.streams[-1].batches():
        keys = zip(batch.tid.tolist(), batch.time.tolist(), batch["addr"].tolist(), strict=True)
        for i, key in enumerate(keys):
            source, target, _ = batch.stack(i)
            bursts[key].append(list(zip(source.tolist()[::-1], target.tolist()[::-1], strict=True)))
            weights[key].append(int(batch.period[i]))
            assert batch.ip[i] == target[0] or i + 1 == len(batch) or batch.time[i + 1] != batch.time[i]
    whole = [parts for parts in bursts.values() if 90 <= sum(map(len, parts)) <= 100]
    assert len(whole) > 20
    assert {len(part) for parts in whole for part in parts[1:]} == {16}, "the oldest has the rest"
    for parts in whole:
        entries = [entry for part in parts for entry in part]
        assert all(walk(truth, a[1], b[0]) is not None for a, b in pairwise(entries))
    assert all(max(shared) - min(shared) <= 1 for shared in weights.values())


def test_call_stack_mode_holds_chains_without_gaps(folder: Path, program: Path, truth: Trace) -> None:
    """Each call of a stack was made in the function that the next older one entered."""
    done = record(folder / "calls.data", *DENSE, "--call-graph", "lbr", "--", program, "30000")
    found = [stack for stack in stacks(done.profile()) if stack]
    assert sum(len(stack) > 1 for stack in found) > 5
    starts = functions(program)
    for stack in found:
        for (_, entered), (call, _) in pairwise(stack):
            assert max(s for s in starts if s <= call) == entered
            assert truth.edge(*stack[0])


def test_call_stack_mode_leaves_calls_of_the_next_instruction_out(folder: Path) -> None:
    """In any encoding: what the longest of them skips is 6 bytes."""
    program = build(folder, "empty_calls", "-mno-red-zone")
    found: list[list[tuple[int, int]]] = []
    for _ in range(10):
        done = record(folder / "empty.data", *DENSE, "--call-graph", "lbr", "--", program, "2000000")
        found += stacks(done.profile())
        if sum(len(stack) > 1 for stack in found) > 5:  # a busy machine has few bursts
            break
    assert any(len(stack) > 1 for stack in found)
    assert all(not 0 < target - source <= 6 for stack in found for source, target in stack)


def test_a_filter_keeps_its_class(folder: Path, program: Path) -> None:
    done = record(folder / "calls.data", *DENSE, "--filter", "user,any_call", "--", program, "10000")
    profile = done.profile()
    flags = [b["branch_flags"] for b in profile.streams[-1].batches()]
    kinds = set((np.concatenate(flags) >> np.uint64(20) & np.uint64(15)).tolist())
    assert kinds == {KIND["call"], KIND["ind_call"]}


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "record.md"


def test_the_example_of_the_guide_shows_the_hottest_edges_of_the_trace_by_time(folder: Path) -> None:
    """The same commands, until there are 400 bursts (the fifth edge is in one of 28); and the guide's table."""
    text = GUIDE.read_text()
    found = re.search(r"^\$ gcc (.*) -o shares tests/programs/shares\.c$", text, re.M)
    assert found is not None
    program = build(folder, "shares", *found[1].split())
    bursts: list[list[tuple[int, int]]] = []
    moments: list[NDArray[np.uint64]] = []
    for _ in range(20):
        profile = record(folder / "shares.tb5", "--burst", "64", *DENSE[2:], "--", program, "300000").profile()
        bursts += stacks(profile)
        moments += [b.ip for b in profile.streams[0].batches()]
        if len(bursts) >= 400 <= sum(map(len, moments)):
            break
    when = np.concatenate(moments)
    expected = [edge for edge, _ in trace(program, "00020", folder=folder).windows(64, when).most_common(5)]
    hottest = Counter(entry for stack in bursts for entry in stack).most_common(5)
    assert {edge for edge, _ in hottest} == set(expected)
    if "Debian 12.2" in subprocess.run(["gcc", "--version"], capture_output=True, text=True).stdout:
        shown = re.findall(r"^ *\d+ +[\d.]+ +\w+ +shares\+0x(\w+) +shares\+0x(\w+) ", text, re.M)
        assert {(int(a, 16), int(b, 16)) for a, b in shown} == set(expected)
