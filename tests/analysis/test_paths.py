"""Trips of loops, visit by visit, against the complete trace of a program and against small paths by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from capture_tools import needs_ptrace
from lastbranch.analysis.function.annotation import Annotation, annotate_each
from lastbranch.analysis.function.flow import Flow, flow_of
from lastbranch.analysis.function.loops import loops as loops_of
from lastbranch.analysis.function.paths import StackSample, Trips, path_of
from lastbranch.analysis.naming import Label, Place
from lastbranch.isa import Decoder
from lastbranch.model import Profile
from view_truth import Run, bound, run_program, symbols

Visits = Counter[tuple[int, bool]]
"""(iterations, whether it was cut) of visits whose entry was seen."""


def visits(trips: Trips) -> Visits:
    found = trips.of_visit
    out: Visits = Counter()
    for value, *counts in zip(found.value.tolist(), found.count.tolist(), found.cut.tolist(), strict=True):
        out.update({(int(value), bool(cut)): count for cut, count in enumerate(counts)})
    return +out


# -- a program whose every instruction is known


@pytest.fixture(scope="module", params=["-O0", "-O1"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_program(tmp_path_factory.mktemp("paths"), "loops", "12", flags=[request.param, "-fno-jump-tables"])


def annotations(profile: Profile) -> list[Annotation]:
    (binary,) = (module.binary for module in profile.modules if module.binary)
    places = [Place(0, start, end, Label(0, name)) for start, end, name in symbols(binary)]
    return [*map(annotate_each(profile, places), places)]


def seen(run: Run, stacks: list[tuple[int, int]], flow: Flow, members: set[int], head: int) -> tuple[Visits, int]:
    """By the instructions themselves: (what stacks see of the visits of a loop, how many visits without their entry).

    A stack begins with the source of its first edge and ends with the target of its last one.
    """
    positions, edges = list[int](), iter(run.edges)
    edge = next(edges, None)
    for i, pair in enumerate(pairwise(run.executed)):
        if pair == edge:
            positions.append(i)
            edge = next(edges, None)
    every, mine = list[tuple[list[int], int]](), list[int]()
    """(its iterations, where it was left) of each visit."""
    for i, at in enumerate(run.executed):
        if at in members:
            mine += [i] * (at == head or not mine)
        elif mine and flow.start <= at < flow.end:
            every.append((mine, i))
            mine = []
    out, unstarted = Visits(), 0
    for first, past in stacks:
        begin, end = positions[first], positions[past - 1] + 1
        near = [i for i in positions[first:past] if {run.executed[i], run.executed[i + 1]} & members]
        for iterations, ended in every:
            if not any(iterations[0] <= i + 1 and i < ended for i in near):
                continue
            if iterations[0] > begin:
                out[sum(i <= end for i in iterations), ended > end] += 1
            else:
                unstarted += 1
    return out, unstarted


@needs_ptrace
@pytest.mark.parametrize("size", [4, 32, 1000])
def test_trips_are_those_of_the_trace(run: Run, size: int, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    stacks = run.whole() if size == 1000 else [(int(e) - size, int(e)) for e in random.integers(size, 2000, 150)]
    profile = run.capture(tmp_path / "perf.data", stacks)
    compared = 0
    for found in annotations(profile):
        flow, blocks = found.flow, found.flow.blocks
        for loop, trips in zip(found.loops, found.trips, strict=True):
            rows = [row for block in loop.blocks for row in range(blocks.first[block], blocks.last[block] + 1)]
            head = int(flow.address[blocks.first[loop.header]])
            wanted, unstarted = seen(run, stacks, flow, set(flow.address[rows].tolist()), head)
            assert visits(trips) == wanted
            assert trips.unstarted == unstarted
            compared += wanted.total()
    assert compared > 30


@needs_ptrace
def test_quantiles_of_short_stacks_are_those_of_the_program(run: Run, tmp_path: Path) -> None:
    """Although most visits are cut: what is cut must not make loops look shorter."""
    random = np.random.default_rng(7)
    ends = random.integers(32, len(run.edges), 2000)
    profile = run.capture(tmp_path / "perf.data", [(int(e) - 32, int(e)) for e in ends])
    by_name = {found.place.label.function: found for found in annotations(profile)}
    (trips,) = by_name["fixed"].trips
    passes = visits(trips).most_common(1)[0][0][0]  # 3, and one more where the condition is the header
    assert passes in (3, 4)
    assert trips.of_visit.quantile(0.5) == passes
    assert trips.of_visit.quantile(0.9) is None  # 100, which no stack holds
    assert trips.longest > 25
    inner = by_name["nested"].trips[1].of_visit
    assert inner.quantile(0.5) == inner.quantile(0.9) == passes + 2


@needs_ptrace
def test_a_part_of_the_stacks_says_the_same(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(9)
    ends = random.integers(32, len(run.edges), 2000)
    profile = run.capture(tmp_path / "perf.data", [(int(e) - 32, int(e)) for e in ends])
    whole = {found.place.label.function: found for found in annotations(profile)}
    monkeypatch.setattr("lastbranch.analysis.function.annotation._KEPT", 5000)
    for found in annotations(profile):
        name = found.place.label.function
        assert whole[name].part == 1
        for trips, every in zip(found.trips, whole[name].trips, strict=True):
            shown, wanted = visits(trips), visits(every)
            if wanted.total() > 500:
                assert found.part in (0.5, 0.25, 0.125)
                assert shown.total() == pytest.approx(wanted.total() * found.part, rel=0.2)
                assert trips.of_visit.quantile(0.5) == every.of_visit.quantile(0.5)


def test_whole_stacks_are_kept_of_all_over_the_capture() -> None:
    kept = StackSample(1000)
    column = np.zeros(400, np.uint64)
    for _ in range(50):
        kept.add(100, np.repeat(np.arange(100), 4), np.arange(400), column.astype(np.int64), column, column, column)
    found = kept.result()
    assert set(Counter(found.stack.tolist()).values()) == {4}
    assert 500 < len(found.stack) <= 1000
    assert found.part == 1 / 32
    assert max(np.diff(np.unique(found.stack))) < 100


# -- small paths by hand: what a stack can hold beside plain jumps

CODE = bytes.fromhex("4885ff 7408 90 e8f5ffffff 75f8 90 c3".replace(" ", ""))
"""test; je out; again: nop; call; jne again; out: nop; ret."""
TEST, JE, HEAD, CALL, JNE, NOP, RET = range(7)
OUT, TORN = -1, -2


def walked(*entries: tuple[int, int], gap: int = -1) -> tuple[Visits, int]:
    """(visits, unstarted) of the loop for one stack, oldest entry first, by rows; a gap before the entry ``gap``."""
    at = {OUT: 0x9000, TORN: 0x1001, **dict(enumerate((0x1000, 0x1003, 0x1005, 0x1006, 0x100B, 0x100D, 0x100E)))}
    flow = flow_of(bound([(at[s], at[t], 1) for s, t in entries]), bound([]), Decoder(), CODE, 0, 0x1000)
    assert flow.address.tolist() == [at[row] for row in range(7)]
    source, target = (np.array(column) for column in zip(*entries, strict=True))
    row = np.arange(len(entries)) + (np.arange(len(entries)) >= gap) * (gap >= 0)
    zeros, ones = np.zeros(len(entries), np.int64), np.ones(len(entries), np.int64)
    path = path_of(flow, zeros, row, source, target, zeros, ones)
    (loop,) = loops_of(flow)
    trips = path.trips(loop)
    return visits(trips), trips.unstarted


CALLED, RETURNED = (CALL, OUT), (OUT, JNE)
AGAIN, ENTERED, LEFT = (JNE, HEAD), (OUT, TEST), (RET, OUT)
ROUND = (CALLED, RETURNED, AGAIN)
LAST = (CALLED, RETURNED)


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ((ENTERED, *ROUND, *LAST, LEFT), ({(2, False): 1}, 0)),
        ((ENTERED, (JE, NOP), LEFT), ({}, 0)),
        ((ENTERED, *ROUND, *LAST), ({(2, True): 1}, 0)),  # it arrived behind the call
        ((ENTERED, *ROUND, CALLED), ({(2, True): 1}, 0)),
        ((*ROUND, *LAST, LEFT), ({}, 1)),
        ((AGAIN, *LAST, LEFT), ({}, 1)),
        ((ENTERED, *LAST, LEFT, ENTERED, *ROUND, *LAST, LEFT), ({(1, False): 1, (2, False): 1}, 0)),
        # Called again before the call has returned: the outer visit is cut, and goes on without its entry.
        ((ENTERED, CALLED, ENTERED, *LAST, LEFT, RETURNED, LEFT), ({(1, True): 1, (1, False): 1}, 1)),
        ((ENTERED, (CALL, TEST), *LAST, (RET, JNE), LEFT), ({(1, True): 1, (1, False): 1}, 1)),
        ((ENTERED, (CALL, JNE), LEFT), ({(1, False): 1}, 0)),  # a call that only pushes its address
        # An interrupt comes back to where it was; one that does not is the end of what is known.
        ((ENTERED, *ROUND, (HEAD, OUT), (OUT, CALL), *LAST, LEFT), ({(2, False): 1}, 0)),
        ((ENTERED, *ROUND, (HEAD, OUT), (OUT, NOP), LEFT), ({(2, True): 1}, 0)),
        # Out by a jump and back by one, as to code that was split off; in another call it has ended.
        ((ENTERED, *LAST, (JNE, OUT), (OUT, HEAD), *LAST, LEFT), ({(2, False): 1}, 0)),
        ((ENTERED, *LAST, (JNE, OUT), ENTERED, *LAST, LEFT), ({(1, False): 2}, 0)),
        ((ENTERED, *LAST, (JNE, OUT)), ({(1, True): 1}, 0)),
        ((ENTERED, *LAST, (JNE, OUT), RETURNED, LEFT), ({(1, False): 1}, 1)),
        ((ENTERED, (NOP, OUT)), ({}, 0)),  # no straight line leads through the call
        # Code within the function, but not an instruction.
        ((ENTERED, *ROUND, (TORN, HEAD), *LAST, LEFT), ({(2, True): 1}, 1)),
    ],
)
def test_what_a_stack_can_hold(entries: tuple[tuple[int, int], ...], wanted: tuple[dict, int]) -> None:
    assert walked(*entries) == wanted


def test_entries_between_are_the_end_of_what_is_known() -> None:
    """Between the arrival and the next source lies an entry that is not near: no range is between them."""
    whole = (ENTERED, *ROUND, *LAST, LEFT)
    assert walked(*whole)[0] == {(2, False): 1}
    assert walked(*whole, gap=2)[0] == {(2, False): 1}  # in the callee
    assert walked(*whole, gap=4)[0] == {(2, True): 1}  # behind `again`
