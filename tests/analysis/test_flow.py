"""Executions of blocks, branch probabilities, cycles and loops against interpreters of ranges and complete traces."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastbranch
import perfdata_writer as pw
from capture_tools import needs_ptrace
from captures import Data
from isa_oracle import OBJDUMP
from lastbranch import demo
from lastbranch.analysis.function.annotation import annotate, annotate_each
from lastbranch.analysis.function.flow import Flow, flow_of
from lastbranch.analysis.function.loops import loops
from lastbranch.analysis.naming import Label, Place
from lastbranch.isa import Decoder
from lastbranch.model import Profile
from view_truth import Run, bound, instructions, run_program, symbols

needs_objdump = pytest.mark.skipif(OBJDUMP is None, reason="llvm-objdump is not installed")


def by_instruction(flow: Flow, column: str) -> dict[int, int]:
    """Address -> the value that its block has in ``column``."""
    blocks = flow.blocks
    values = np.repeat(getattr(blocks, column), blocks.last - blocks.first + 1)
    return dict(zip(flow.address.tolist(), values.tolist(), strict=True))


def places(profile: Profile) -> list[Place]:
    found = []
    for row, module in enumerate(profile.modules):
        for start, end, name in symbols(module.binary) if module.binary else []:
            found.append(Place(row, start, end, Label(row, name)))
    return found


# -- the synthetic captures, whose exact counts are stored


def walk(code: list[int], start: int, end: int) -> list[int]:
    """The instructions from ``start`` to ``end``, one after the other."""
    first, last = code.index(start), code.index(end)
    return code[first : last + 1]


@needs_objdump
@pytest.mark.parametrize("name", ["demo_pie", "demo_2proc", "demo_features", "lldlayout/demo_pie"])
def test_blocks_count_what_an_interpreter_of_the_ranges_counts(
    name: str, data: Data, symfs: Callable[[str], Path]
) -> None:
    profile = lastbranch.open(data.path(name), symfs=str(symfs(name)))
    code = {m.name: list(instructions(m.binary)) for m in profile.modules if m.binary}
    ran: Counter[tuple[str, int]] = Counter()
    ended: Counter[tuple[str, int]] = Counter()
    wrong: Counter[tuple[str, int]] = Counter()
    taken: Counter[tuple[str, int]] = Counter()
    for words in map(str.split, data.golden(name, "truth.txt").splitlines()):
        if words[0] == "R" and words[1] in code:
            start, end, count = int(words[2], 16), int(words[3], 16), int(words[4])
            for address in walk(code[words[1]], start, end):
                ran[words[1], address] += count
            ended[words[1], end] += count
        elif words[0] == "B" and words[1] in code:
            taken[words[1], int(words[2], 16)] += int(words[5])
            wrong[words[1], int(words[2], 16)] += int(words[6])
    checked = 0
    for place in places(profile):
        found = annotate(profile, place)
        module = profile.modules[place.module].name
        flow, blocks = found.flow, found.flow.blocks
        assert not any(flow.left_out.values())
        assert by_instruction(flow, "count") == {a: ran[module, a] for a in flow.address.tolist()}
        assert flow.executed == sum(ran[module, a] for a in flow.address.tolist())
        for i, row in enumerate(blocks.last.tolist()):
            at = (module, int(flow.address[row]))
            assert blocks.ended[i] == ended[at]
            assert blocks.through[i] == ran[at] - ended[at]
            assert (blocks.mispredicted[i] + blocks.predicted[i], blocks.mispredicted[i]) == (taken[at], wrong[at])
        checked += int((blocks.count > 0).sum())
    assert checked > 30


@needs_objdump
@pytest.mark.parametrize("name", ["demo_pie", "demo_2proc"])
def test_cycles_belong_to_the_straight_line_before_the_branch(
    name: str, data: Data, symfs: Callable[[str], Path]
) -> None:
    """By another reader, entry by entry: ``cycles`` of entry i over the instructions of ``to_(i+1)..from_i``."""
    profile = lastbranch.open(data.path(name), symfs=str(symfs(name)))
    binaries = {m.name: m.binary for m in profile.modules if m.binary}
    code = {path: list(instructions(binary)) for path, binary in binaries.items()}
    maps: list[tuple[int, int, int, int, str]] = []
    spent: dict[tuple[str, int], list[Fraction]] = defaultdict(list)
    capture = pw.parse(data.path(name).read_bytes())
    for record in capture.named("MMAP2", "MMAP", "SAMPLE"):
        f = record.fields
        if record.name != "SAMPLE":
            maps.append((f["pid"], f["addr"], f["addr"] + f["length"], f["pgoff"], f["name"]))
            continue
        stack = [(e["from"], e["to"], e["flags"] >> 4 & 0xFFFF) for e in f["branches"]]
        for (source, _, cycles), (_, target, _) in pairwise(stack):
            here = [m for m in reversed(maps) if m[0] == f["pid"] and m[1] <= source < m[2]][:1]
            if not here or here[0][4] not in code or not cycles or not here[0][1] <= target <= source:
                continue
            _, start, _, offset, path = here[0]
            line = walk(code[path], target - start + offset, source - start + offset)
            for address in line:
                spent[path, address].append(Fraction(cycles, len(line)))
    assert sum(map(len, spent.values())) > 1000
    for place in places(profile):
        found = annotate(profile, place)
        module, flow, blocks = profile.modules[place.module].name, found.flow, found.flow.blocks
        for i in range(len(blocks)):
            rows = flow.address[blocks.first[i] : blocks.last[i] + 1].tolist()
            each = sorted(float(cycles * len(rows)) for cycles in spent[module, rows[0]])
            assert blocks.timed[i] == len(each)
            expected = sum(sum(spent[module, a], Fraction(0)) for a in rows)
            assert blocks.cycles[i] == pytest.approx(float(expected), rel=1e-9, abs=1e-9)
            assert np.repeat(found.cycles[i].value, found.cycles[i].count) == pytest.approx(each)
            assert not found.cycles[i].cut.any()
        executed = sum(len(spent[module, a]) for a in flow.address.tolist())
        cycles = sum(sum(spent[module, a], Fraction(0)) for a in flow.address.tolist())
        assert flow.ipc == (pytest.approx(executed / float(cycles)) if cycles else None)
        assert (found.no_cycles is None) == bool(cycles)


# -- any ranges over a small function


CODE = bytes.fromhex("4889f8 83ff01 7e05 83e801 ebf6 ffe0 90 c3 0f1f4000".replace(" ", ""))
"""mov; cmp; jle +5; sub; jmp back; jmp *rax; nop; ret; a nop of 4 bytes."""
START = 0x1000
BOUNDARIES = [0x1000, 0x1003, 0x1006, 0x1008, 0x100B, 0x100D, 0x100F, 0x1010, 0x1011]
ALWAYS_LEAVE = (0x100B, 0x1010)
ADDRESSES = st.one_of(st.sampled_from(BOUNDARIES), st.integers(START - 4, START + len(CODE) + 4))
RANGES = st.lists(
    st.tuples(ADDRESSES, ADDRESSES, st.integers(1, 9), st.integers(0, 50)).filter(lambda r: r[0] <= r[1]), max_size=12
)


@settings(max_examples=300, deadline=None)
@given(RANGES)
def test_any_ranges(given_ranges: list[tuple[int, int, int, int]]) -> None:
    end = START + len(CODE)
    ranges = bound([r[:3] for r in given_ranges], [r[3] for r in given_ranges])
    flow = flow_of(bound([], []), ranges, Decoder(), CODE, 0, START)
    assert flow.address.tolist() == BOUNDARIES
    ran: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    spent: Counter[int] = Counter()
    told: Counter[int] = Counter()
    torn = through = 0
    for lo, hi, count, cycles in given_ranges:
        if hi < START or lo >= end:
            continue
        inside = [a for a in BOUNDARIES if lo <= a <= hi]
        if (lo >= START and lo not in BOUNDARIES) or (hi < end and hi not in BOUNDARIES):
            torn += count
        elif any(a in ALWAYS_LEAVE and a != hi for a in inside):
            through += count
        else:
            whole = lo >= START and hi < end
            for a in inside:
                ran[a] += count
                if whole and cycles:
                    spent[a] += Fraction(cycles * count, len(inside))  # type: ignore[assignment]
                    told[a] += count
            ended[hi] += count
    assert list(flow.left_out.values()) == [torn, through]
    assert by_instruction(flow, "count") == {a: ran[a] for a in BOUNDARIES}
    assert by_instruction(flow, "timed") == {a: told[a] for a in BOUNDARIES}
    lasts = flow.address[flow.blocks.last].tolist()
    assert flow.blocks.ended.tolist() == [ended[a] for a in lasts]
    assert flow.blocks.through.tolist() == [ran[a] - ended[a] for a in lasts]
    assert float(flow.blocks.cycles.sum()) == pytest.approx(float(sum(spent.values())), abs=1e-9)


def test_kernels_may_have_run_other_branches_than_are_in_the_file() -> None:
    ranges = bound([(0x1008, 0x100D, 3)], [0])
    assert flow_of(bound([]), ranges, Decoder(), CODE, 0, START).executed == 0
    assert flow_of(bound([]), ranges, Decoder(), CODE, 0, START, patched=True).executed == 9


def test_a_function_without_code_or_counts() -> None:
    assert len(flow_of(bound([]), bound([]), Decoder(), b"", 0, START)) == 0
    flow = flow_of(bound([]), bound([]), Decoder(), CODE, 0, START)
    assert (flow.executed, flow.ipc, len(flow.edges)) == (0, None, 0)
    other = flow_of(
        bound([(START, 0x1006, 4)], module=1), bound([(START, 0x1006, 4)], module=1), Decoder(), CODE, 0, START
    )
    assert (other.executed, len(other.edges)) == (0, 0)


def test_many_functions_are_counted_in_one_pass() -> None:
    """As each alone; neighbours, which share branches and ranges, keep their own."""
    profile = lastbranch.open(demo.capture(), symfs=demo.symfs())
    every, passes = places(profile), 0

    def read(done: int, in_all: int) -> None:
        nonlocal passes
        passes += done == in_all

    for stream in profile.streams:
        stream.progress = read
    annotation = annotate_each(profile, every)
    assert passes == len(profile.streams)
    ran = 0
    for place in every:
        one, other = annotate(profile, place), annotation(place)
        for name in ("blocks", "edges"):
            expected, found = (getattr(each.flow, name).arrays() for each in (one, other))
            assert {column: repr(values) for column, values in found.items()} == {
                column: repr(values) for column, values in expected.items()
            }
        assert (other.samples.tolist(), other.flow.left_out, other.notes) == (
            one.samples.tolist(),
            one.flow.left_out,
            one.notes,
        )
        ran += one.flow.executed > 0
    assert ran > 3


def test_padding_enters_no_loop() -> None:
    """jmp check; nop; body: nop; check: dec; jne body; ret. Nothing leads to the padding before the body."""
    code = bytes.fromhex("eb02 90 90 ffcf 75fb c3".replace(" ", ""))
    for ran in ([], [(START, START, 1), (START + 4, START + 6, 1), (START + 3, START + 6, 8)]):
        flow = flow_of(bound([(START + 6, START + 3, 8)]), bound(ran, [0] * len(ran)), Decoder(), code, 0, START)
        ((header, blocks, depth, *_),) = loops(flow)
        assert flow.address[flow.blocks.first[header]] == START + 4
        assert [int(flow.address[flow.blocks.first[block]]) for block in blocks] == [START + 3, START + 4]
        assert depth == 1


# -- loops of a program whose run is known


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_program(tmp_path_factory.mktemp("loops"), "loops", "12", flags=["-fno-jump-tables"])


def loops_of(profile: Profile, name: str) -> list[tuple[int, int, float | None]]:
    """(depth, iterations, trips) of the loops of a function."""
    (place,) = (p for p in places(profile) if p.label.function == name)
    return [(x.depth, x.iterations, x.trips) for x in annotate(profile, place).loops]


@needs_ptrace
def test_loops_of_a_complete_run(run: Run, tmp_path: Path) -> None:
    """Every range once: iterations are exact, trips but for the entries that two stacks share."""
    profile = run.capture(tmp_path / "perf.data", run.whole(overlap=1))
    rounds, near = 12, 0.01
    assert loops_of(profile, "down") == []  # recursion is no loop
    outer, inner = loops_of(profile, "nested")
    assert (outer[0], inner[0]) == (1, 2)
    assert (outer[1], inner[1]) == (rounds * 7, rounds * 35)
    assert outer[2] == pytest.approx(7, rel=near)
    assert inner[2] == pytest.approx(5, rel=near)
    ((depth, iterations, trips),) = loops_of(profile, "calling")
    assert (depth, iterations) == (1, rounds * 6)
    assert trips == pytest.approx(6, rel=near)
    ((depth, iterations, trips),) = loops_of(profile, "fixed")
    calls = rounds * (1 + 6 + 1)
    assert (depth, iterations) == (1, rounds * (100 + 6 * 3 + 2))
    assert trips == pytest.approx(iterations / calls, rel=near)


@needs_ptrace
def test_loops_that_are_entered_at_their_end(tmp_path: Path) -> None:
    """Unoptimised: a jump leads to the condition, which is the header; a call returns to it, too."""
    found = run_program(tmp_path, "loops", "12", flags=["-O0", "-fno-jump-tables"])
    profile = found.capture(tmp_path / "perf.data", found.whole(overlap=1))
    ((_, iterations, trips),) = loops_of(profile, "repeat")
    assert iterations == 12 * 5
    assert trips == pytest.approx(5, rel=0.01)
    outer, inner = loops_of(profile, "nested")
    assert (outer[1], inner[1]) == (12 * 8, 12 * 7 * 6)
    assert outer[2] == pytest.approx(8, rel=0.01)
    assert inner[2] == pytest.approx(6, rel=0.01)


@needs_ptrace
def test_loops_of_samples(run: Run, tmp_path: Path) -> None:
    """32 entries at places drawn at random: what a processor gives. Trip counts stay what they are."""
    random = np.random.default_rng(7)
    ends = random.integers(32, len(run.edges), 4000)
    profile = run.capture(tmp_path / "perf.data", [(int(e) - 32, int(e)) for e in ends])
    outer, inner = loops_of(profile, "nested")
    assert outer[2] == pytest.approx(7, rel=0.1)
    assert inner[2] == pytest.approx(5, rel=0.1)
    ((_, _, trips),) = loops_of(profile, "calling")
    assert trips == pytest.approx(6, rel=0.1)


@needs_ptrace
def test_every_execution_of_a_complete_run_is_counted(run: Run, tmp_path: Path) -> None:
    """Against the trace itself, but for what ran before the first branch and behind the last one."""
    profile = run.capture(tmp_path / "perf.data", run.whole(overlap=1))
    first, last = run.edges[0][1], run.edges[-1][0]
    begin = run.executed.index(first)
    end = len(run.executed) - run.executed[::-1].index(last)
    truth = Counter(run.executed[begin:end])
    follows = Counter(zip(run.executed[begin : end - 1], run.executed[begin + 1 : end], strict=True))
    for place in places(profile):
        flow = annotate(profile, place).flow
        assert by_instruction(flow, "count") == {a: truth[a] for a in flow.address.tolist()}
        for i, row in enumerate(flow.blocks.last.tolist()):
            at, behind = int(flow.address[row]), int(flow.address[row] + flow.length[row])
            if flow.blocks.through[i]:
                assert flow.blocks.through[i] == follows[at, behind]
