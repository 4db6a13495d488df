"""Mispredictions and what they cost, held against a count entry by entry."""

from __future__ import annotations

import csv
import io
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import perfdata_writer as pw
from lastbranch.analysis.counting.mispredictions import misprediction_events, mispredictions
from lastbranch.model import Event, Profile
from lastbranch.opening import open_profile
from perfdata_writer import Builder

Entry = tuple[int, int, int]


def capture(path: Path, stacks: list[list[Entry]]) -> Path:
    """``stacks`` of (from, to, flags), newest first; a process has one mapping that begins at 0x400000."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.comm(pid=7, name="x", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name="/bin/x", time=1)
    for i, entries in enumerate(stacks):
        b.sample(ip=0x400000, pid=7, time=10 + i, branches=entries)
    path.write_bytes(b.build())
    return path


def entry(source: int, target: int, wrong: bool, cycles: int) -> Entry:
    return 0x400000 + source, 0x400000 + target, (1 if wrong else 2) | cycles << 4


def by_hand(stacks: list[list[Entry]]) -> dict[int, tuple[int, int, int, float]]:
    """Address -> entries, mispredicted, those of them that compare, cycles more than after predicted branches."""
    spent = defaultdict[tuple[int, int, bool], list[tuple[int, int]]](list)
    counts = defaultdict[int, list[int]](lambda: [0, 0, 0])
    lost = defaultdict[int, float](float)
    for stack in stacks:
        for newer, (source, target, flags) in zip([None, *stack], stack, strict=False):
            counts[source - 0x400000][0] += 1
            counts[source - 0x400000][1] += flags & 1
            if newer is not None and newer[2] >> 4:
                spent[target, newer[0], bool(flags & 1)].append((source - 0x400000, newer[2] >> 4))
    for (target, end, wrong), found in spent.items():
        usual = spent.get((target, end, False))
        if wrong and usual:
            mean = sum(cycles for _, cycles in usual) / len(usual)
            for source, cycles in found:
                counts[source][2] += 1
                lost[source] += cycles - mean
    return {address: (entries, wrong, more, lost[address]) for address, (entries, wrong, more) in counts.items()}


def test_a_case_by_hand(run, tmp_path: Path) -> None:
    """The code from 0x40 to 0x80 takes 10 cycles, and 30 after the branch at 0x20 where that was mispredicted."""
    ways = [(0x10, False, 8), (0x20, False, 12), (0x20, True, 30), (0x20, True, 30)]
    stacks = [[entry(0x80, 0x10, False, cycles), entry(source, 0x40, wrong, 5)] for source, wrong, cycles in ways]
    path = capture(tmp_path / "x.data", stacks)
    table, cycles = mispredictions(open_profile(path))
    found = {
        int(a): (int(n), int(w), int(t), float(c))
        for a, n, w, t, c in zip(table.address, table.count, table.mispredicted, table.timed, table.lost, strict=True)
    }
    assert found[0x20] == (3, 2, 2, 40.0)
    assert found[0x10] == (1, 0, 0, 0.0)
    assert cycles == 8 + 12 + 30 + 30 + 4 * 5
    done = run("report", "--mispredictions", "--by", "module", "--format", "csv", path)
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert (row["branches"], row["mispredictions"], row["cycles_lost"], row["lost_percent"]) == ("8", "2", "40", "40.0")
    assert row["mispredicted_percent"] == "25.0"
    assert "cycles lost are estimated from 2 of 2 mispredictions" in done.err


def test_what_is_not_timed_is_taken_to_cost_as_much(run, tmp_path: Path) -> None:
    """Of two mispredictions one is the newest of its stack, so that no branch follows it."""
    stacks = [
        [entry(0x80, 0x10, False, 8), entry(0x10, 0x40, False, 5)],
        [entry(0x20, 0x40, True, 5)],
        [entry(0x80, 0x10, False, 30), entry(0x20, 0x40, True, 5)],
    ]
    path = capture(tmp_path / "x.data", stacks)
    table, _ = mispredictions(open_profile(path))
    assert table.estimated()[table.address == 0x20].tolist() == [2 * (30 - 8)]
    done = run("report", "--mispredictions", "--by", "module", "--format", "csv", path)
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert (row["mispredictions"], row["cycles_lost"]) == ("2", "44")
    assert "cycles lost are estimated from 1 of 2 mispredictions" in done.err


@pytest.mark.parametrize("native", ["1", "0"])
def test_all_entries_are_counted_as_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str) -> None:
    monkeypatch.setenv("LASTBRANCH_NATIVE", native)
    draw = random.Random(7)
    stacks = [
        [
            entry(draw.choice((0x20, 0x80, 0x90)), draw.choice((0x10, 0x40)), draw.random() < 0.3, draw.randint(0, 20))
            for _ in range(draw.randint(0, 6))
        ]
        for _ in range(400)
    ]
    table, _ = mispredictions(open_profile(capture(tmp_path / "x.data", stacks)))
    want = by_hand(stacks)
    assert table.address.tolist() == sorted(want)
    for i, address in enumerate(sorted(want)):
        count, wrong, compared, lost = want[address]
        assert (table.count[i], table.mispredicted[i], table.timed[i]) == (count, wrong, compared)
        assert np.isclose(table.lost[i], lost)


def test_without_cycles_the_cost_is_not_known(run, tmp_path: Path) -> None:
    path = capture(tmp_path / "x.data", [[entry(0x80, 0x10, False, 0), entry(0x20, 0x40, True, 0)]])
    done = run("report", "--mispredictions", "--by", "module", "--format", "csv", path)
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert (row["mispredictions"], row["cycles_lost"]) == ("1", "")
    assert "cycles lost are not known" in done.err


def test_what_does_not_go_together_is_refused(run, tmp_path: Path) -> None:
    path = capture(tmp_path / "x.data", [[entry(0x20, 0x40, True, 0)]])
    for more in (("--by", "process"), ("--estimate", "executions")):
        assert run("report", "--mispredictions", *more, path).code == 2


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("branch-misses", True),
        ("branch-misses:upp", True),
        ("cpu_core/branch-misses/upp", True),
        ("BR_MISP_RETIRED.ALL_BRANCHES:upp", True),
        ("br_misp_retired.conditional", True),
        ("r00c5", True),
        ("r20c5", True),
        ("ex_ret_brn_misp", True),
        ("ex_ret_brn_ind_misp", True),
        ("br_mis_pred_retired", True),
        ("BranchMispredictions", True),
        ("cpu/event=0xc5,umask=0x0/", True),
        ("branches", False),
        ("br_inst_retired.near_taken", False),
        ("cycles", False),
        ("r00c4", False),
        ("cache-misses", False),
        ("ex_ret_brn", False),
        ("rc500", False),
    ],
)
def test_events_that_count_mispredictions_are_known(name: str, counts: bool) -> None:
    assert bool(misprediction_events(Profile("x", "perf.data", events=[Event(name)]))) is counts
