"""Executions estimated from branch stacks, of chains whose stationary distribution is known."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import lastbranch
import perfdata_writer as pw
from command_line import run_cli
from lastbranch.analysis import Estimate, basis_of, branches, call_stacks, estimate_executions, ranges
from lastbranch.analysis.executions.markov_chain import Chain, Runs, Steps
from lastbranch.model import Event, Profile, SampleFilter
from perfdata_writer import Builder

BASE, BLOCK, DEPTH = 0x400000, 0x100, 32
CONDITIONAL = 1 << 20
HALF = 12
"""States of the slow part and of the fast one; the program is seldom in one part after the other."""


def chain(seed: int, switch: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(transitions, stationary distribution) of two parts of `HALF` states."""
    rng, states = np.random.default_rng(seed), 2 * HALF
    matrix = np.zeros((states, states))
    for state in range(states):
        part = state // HALF * HALF
        matrix[state, part + rng.choice(HALF, 3, replace=False)] = rng.uniform(0.1, 1, 3)
        matrix[state, part + (state + 1) % HALF] += 0.3
    matrix /= matrix.sum(axis=1, keepdims=True)
    for state, other in ((0, HALF), (HALF, 0)):
        matrix[state] *= 1 - switch
        matrix[state, other] = switch
    equations = np.vstack([(matrix.T - np.eye(states))[:-1], np.ones(states)])
    return matrix, np.linalg.solve(equations, [*[0] * (states - 1), 1])


def capture(path: Path, matrix: NDArray[np.float64], begin: NDArray[np.float64], stacks: int, **attr: int) -> Profile:
    """``stacks`` branch stacks that begin at states with the probabilities ``begin``. A state is a block; where it goes
    on to is seen from the branch that it ends with, an exit for each target."""
    rng = np.random.default_rng(1)
    kinds = pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK
    b = Builder(**{"sample_type": kinds, **attr})
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=BASE, length=0x10000, pgoff=0, name="/bin/prog", time=2)
    state = rng.choice(len(begin), stacks, p=begin)
    walks, steps = [state], np.cumsum(matrix, axis=1)
    for _ in range(DEPTH):
        state = np.minimum((steps[state] < rng.random(stacks)[:, None]).sum(axis=1), len(begin) - 1)
        walks.append(state)
    for i, walk in enumerate(np.array(walks).T.tolist()):
        at = [(BASE + BLOCK * s + 4 * t + 4, BASE + BLOCK * t, CONDITIONAL) for s, t in pairwise(walk)]
        b.sample(ip=BASE + BLOCK * walk[-1], pid=7, tid=7, time=1000 * (i + 1), branches=at[::-1])
    path.write_bytes(b.build())
    return lastbranch.open(path)


def shares(profile: Profile, estimate: Estimate | None = None) -> NDArray[np.float64]:
    """The share of each state, by the branches that lead to it."""
    table = branches(profile, estimate=estimate)
    at = ((table.to_address - table.to_address.min()) // BLOCK).astype(np.int64)
    counts = np.bincount(at, table.count)
    return counts / counts.sum()


def far(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.abs(one - other).sum() / 2)


SLOW = np.repeat([40.0, 1.0], HALF)
"""Time of a state."""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, NDArray[np.float64]]:
    matrix, true = chain(3, 0.05)
    begin = true * SLOW / (true * SLOW).sum()
    return capture(tmp_path_factory.mktemp("slow") / "perf.data", matrix, begin, 1500), true


def test_executions_are_nearer_than_what_was_observed(slow: tuple[Profile, NDArray[np.float64]]) -> None:
    profile, true = slow
    estimate = estimate_executions(profile)
    assert estimate.replaced
    assert estimate.basis == "executions"
    assert estimate.number == 1500
    observed, executed = shares(profile), shares(profile, estimate=estimate)
    assert far(observed, true) > 0.25
    assert far(executed, true) < 0.08
    assert estimate.moved is not None
    assert estimate.noise is not None
    assert estimate.moved == pytest.approx(far(observed, executed), abs=0.05)
    assert 0 < estimate.noise < estimate.moved / 2


def test_branches_and_ranges_agree_and_keep_their_sum(slow: tuple[Profile, NDArray[np.float64]]) -> None:
    profile, _ = slow
    estimate = estimate_executions(profile)
    taken, passed = branches(profile, estimate=estimate), ranges(profile, estimate=estimate)
    entries = int(branches(profile).count.sum())
    assert len(taken) == len(branches(profile))
    assert taken.count.min() >= 1
    assert taken.count.sum() == pytest.approx(entries, abs=len(taken))
    assert passed.count.sum() == pytest.approx(entries, abs=len(passed))
    for column, at in ((taken.from_address, passed.end), (taken.to_address, passed.start)):
        for address in np.unique(at).tolist():
            out, ran = taken.count[column == address].sum(), passed.count[at == address].sum()
            assert out == pytest.approx(ran, rel=0.02, abs=20)  # as many come to a place as go on from it
    stacks = call_stacks(profile, estimate=estimate)
    assert stacks.executions is not None
    assert stacks.executions.sum() == pytest.approx(entries, abs=len(stacks) + 1500)


def test_estimate_does_not_depend_on_order_and_scale(tmp_path: Path) -> None:
    matrix, true = chain(5, 0.05)
    begin = true * SLOW / (true * SLOW).sum()
    plain = capture(tmp_path / "perf.data", matrix, begin, 400)
    b, stacks = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK), list[list[tuple[int, int, int]]]()
    for batch in plain.batches():
        for i in range(len(batch)):
            lo, hi = batch.offsets["branch"][i : i + 2].tolist()
            stacks.append([(int(batch["branch_from"][k]), int(batch["branch_to"][k]), 0) for k in range(lo, hi)])
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=BASE, length=0x10000, pgoff=0, name="/bin/prog", time=2)
    for i, stack in enumerate(stacks[::-1]):
        b.sample(ip=BASE, pid=7, tid=7, time=1000 * (i + 1), branches=stack)
    (tmp_path / "backwards").write_bytes(b.build())
    backwards = lastbranch.open(tmp_path / "backwards")
    one, other = (shares(profile, estimate=estimate_executions(profile)) for profile in (plain, backwards))
    np.testing.assert_allclose(one, other, atol=1e-3)
    again = estimate_executions(plain)
    assert (again.moved, again.noise) == (estimate_executions(plain).moved, again.noise)


def test_pieces_of_one_burst_are_one_run(tmp_path: Path) -> None:
    """Of the software LBR, of one thread and time (or a tick apart), oldest first; nothing is between two of them."""
    matrix, true = chain(3, 0.05)
    whole = capture(tmp_path / "perf.data", matrix, true * SLOW / (true * SLOW).sum(), 400)
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=BASE, length=0x10000, pgoff=0, name="/bin/prog", time=2)
    for batch in whole.batches():
        for i, (lo, hi) in enumerate(pairwise(batch.offsets["branch"].tolist())):
            rows = [(int(batch["branch_from"][k]), int(batch["branch_to"][k]), 0) for k in range(lo, hi)]
            for apart, piece in enumerate((rows[DEPTH // 2 :], rows[: DEPTH // 2])):
                b.sample(ip=BASE, pid=7, tid=7, time=int(batch.time[i]) + apart * (i % 2), branches=piece)
    (tmp_path / "pieces").write_bytes(b.build())
    pieces = lastbranch.open(tmp_path / "pieces")
    pieces.events[0].name = "software-lbr"
    estimate = estimate_executions(pieces)
    assert estimate.number == 400
    assert "from 400 bursts: " in estimate.note
    assert replace(estimate, seconds=20).note.endswith("; 60 s more of recording would halve it")
    assert estimate.of_ranges is not None
    assert len(estimate.of_ranges.factor) == len(ranges(pieces))


def test_what_was_seen_has_at_least_one_execution(slow: tuple[Profile, NDArray[np.float64]]) -> None:
    profile, _ = slow
    estimate = estimate_executions(profile)
    assert estimate.of_branches is not None
    estimate.of_branches.factor[:] = 0
    assert set(branches(profile, estimate=estimate).count.tolist()) == {1}


def test_returns_are_as_many_as_calls() -> None:
    """Two callers of a function that is left for either place as often as they call it, which was seen otherwise."""
    x, w, f, y, z = range(5)
    rows = [
        (x, f, -1, y),
        (w, f, -1, z),
        (f, y, y, -1),
        (f, z, z, -1),
        (y, x, -1, -1),
        (y, w, -1, -1),
        (z, x, -1, -1),
        (z, w, -1, -1),
    ]
    state, to, returns, calls = np.array(rows).T
    count = np.array([1000, 1000, 500, 1500, 250, 250, 750, 750])
    each, none = np.arange(8), np.zeros(8, np.int64)
    made = Chain(Runs(5, 8, Steps(state, each, to, returns, calls), none, each, state, none, np.ones(1), np.ones(1)))
    visits = np.bincount(state, count)
    found = made.estimate(count, visits, visits)
    assert found[:2] == pytest.approx(found[2:4], rel=0.02)
    assert found.sum() == pytest.approx(1)


def test_what_chance_could_have_made_is_refused(tmp_path: Path) -> None:
    """Stacks that begin as often as states are executed need no estimate, and get none."""
    matrix, true = chain(3, 0.05)
    profile = capture(tmp_path / "perf.data", matrix, true, 800)
    estimate = estimate_executions(profile)
    assert not estimate.replaced
    assert estimate.basis == "time"
    assert estimate.refused
    assert "sampling noise" in estimate.refused
    assert estimate.moved is not None
    assert (shares(profile, estimate=estimate) == shares(profile)).all()


@pytest.mark.parametrize(
    ("attr", "stacks", "why"),
    [
        ({}, 99, "99 branch stacks are too few"),
        ({"type": 4, "config": 0x20C4}, 200, "event r20c4 counts branches, not time"),
        ({"branch_sample_type": 0x10 | 0x1}, 200, "not every taken branch was recorded"),
    ],
)
def test_reasons_of_a_refusal(attr: dict[str, int], stacks: int, why: str, tmp_path: Path) -> None:
    matrix, true = chain(3, 0.05)
    estimate = estimate_executions(capture(tmp_path / "perf.data", matrix, true, stacks, **attr))
    assert not estimate.replaced
    assert why in estimate.note


@pytest.mark.parametrize(
    ("name", "basis"),
    [
        ("cycles:u", "time"),
        ("cpu_core/cycles/P", "time"),
        ("cpu-clock", "time"),
        ("software-lbr", "time"),
        ("Timer", "time"),
        ("ref-cycles", "time"),
        ("br_inst_retired.near_taken:ppp", "executions"),
        ("r20c4:u", "executions"),
        ("cpu_atom/rc0c4/", "executions"),
        ("rc4", "executions"),
        ("br_inst_exec:taken", "executions"),
        ("cpu/event=0xc4,umask=0x20/u", "executions"),
        ("branches", "executions"),
        ("branch-misses", "entries"),
        ("cache-misses", "entries"),
        ("", "entries"),
    ],
)
def test_what_counts_follow(name: str, basis: str) -> None:
    profile = Profile("x", "perf.data", events=[Event(name, branch_select=0), Event("cache-references")])
    assert basis_of(profile) == basis


def test_events_that_differ_have_no_basis() -> None:
    profile = Profile("x", "perf.data", events=[Event("cycles", branch_select=0), Event("branches", branch_select=0)])
    assert basis_of(profile) == "entries"
    assert basis_of(profile, SampleFilter(events=frozenset([1]))) == "executions"


# -- what verbs say


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, slow: tuple[Profile, NDArray[np.float64]]) -> Path:
    del slow
    matrix, true = chain(3, 0.05)
    path = tmp_path_factory.mktemp("cli") / "perf.data"
    capture(path, matrix, true * SLOW / (true * SLOW).sum(), 600)
    return path


def test_each_verb_says_what_its_counts_are(file: Path) -> None:
    said = "note: counts are executions, estimated from 600 branch stacks"
    for words in (
        ["branches", file],
        ["branches", "--by", "site", file],
        ["report", "--by", "function", file],
        ["stacks", file],
        ["query", file, "select count(*) from edges"],
        ["export", "--to", "counts", file],
        ["export", "--to", "folded", file],
    ):
        assert said in run_cli(*words, "--estimate", "executions").err, words
        assert said not in run_cli(*words).err
    assert "counts are as observed, and follow time" in run_cli("export", "--to", "counts", file).err


def test_columns_are_named_for_what_they_share(file: Path) -> None:
    rows = {
        estimate: json.loads(run_cli("branches", file, "--format", "json", "--estimate", estimate).out)
        for estimate in ("observed", "executions")
    }
    assert {"count", "share_of_time_percent"} <= rows["observed"][0].keys()
    assert {"executions", "share_of_executions_percent"} <= rows["executions"][0].keys()
    assert not {"count", "share_of_time_percent"} & rows["executions"][0].keys()
    assert "share of executions %" in run_cli("branches", file, "--estimate", "executions").out.split("\n")[0]
    edges = "select sum(count) from edges"
    for estimate, column in (("observed", "count"), ("executions", "executions")):
        (total,) = json.loads(run_cli("query", file, edges, "--format", "json", "--estimate", estimate).out)
        assert sum(row[column] for row in rows[estimate]) == total["sum(count)"]
    lines = [
        line.split() for line in run_cli("export", "--to", "counts", file, "--estimate", "executions").out.split("\n")
    ]
    assert sum(int(line[5]) for line in lines if line[:1] == ["B"]) == sum(r["executions"] for r in rows["executions"])


def test_samples_are_not_estimated(file: Path) -> None:
    for words in (["export", "--to", "pprof", "-o", "x"], ["stacks", "--count", "period"]):
        ran = run_cli(*words, file, "--estimate", "executions")
        assert ran.code == 2
        assert "--estimate executions" in ran.err
