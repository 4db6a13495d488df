"""A program that writes over what its branches read: still, every recorded entry lies on its complete trace."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, Recorded, Trace, build, needs_ptrace, record, stacks, trace, walk

pytestmark = needs_ptrace
DENSE = ("--engine", "software", "--duty", "50", "--period", "300000")
LEAST = 5000
"""Entries that are looked at."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return build(folder, "hostile", *FREESTANDING)


@pytest.fixture(scope="module")
def truth(folder: Path, program: Path) -> Trace:
    return trace(program, "200", folder=folder)


@pytest.fixture(scope="module")
def recorded(folder: Path, program: Path) -> Recorded:
    """Of as many rounds as it takes for `LEAST` entries."""
    for rounds in (100_000, 400_000, 1_600_000):
        done = record(folder / "it.data", *DENSE, "--", program, str(rounds))
        assert done.code == 0, done.err
        if sum(map(len, stacks(done.profile()))) > LEAST:
            break
    return done


def test_no_entry_is_on_an_edge_that_was_not_taken(truth: Trace, recorded: Recorded) -> None:
    found = stacks(recorded.profile())
    entries = Counter(entry for stack in found for entry in stack)
    assert entries.total() > LEAST
    assert {(hex(a), hex(b)): n for (a, b), n in entries.items() if not truth.edge(a, b)} == {}
    lines = Counter((a[1], b[0]) for stack in found for a, b in pairwise(stack))
    assert [(hex(a), hex(b)) for a, b in lines if walk(truth, a, b) is None] == []


def test_the_ways_out_of_each_branch_are_those_of_the_trace(truth: Trace, recorded: Recorded) -> None:
    """A branch that was computed wrongly would favour one of its targets."""
    found = Counter(entry for stack in stacks(recorded.profile()) for entry in stack)
    sources = Counter[int]()
    for (source, _), count in found.items():
        sources[source] += count
    compared = 0
    for (source, target), count in found.items():
        ways = {way: n for way, n in truth.follows.items() if way[0] == source}
        straight_on = source, source + truth.length[source]
        if sources[source] < 100 or straight_on in ways or len(ways) < 2:
            continue
        share = truth.follows[source, target] / sum(ways.values())
        error = (share * (1 - share) / sources[source]) ** 0.5
        assert abs(count / sources[source] - share) < 0.05 + 5 * error, (hex(source), hex(target), share)
        compared += 1
    assert compared > 6
