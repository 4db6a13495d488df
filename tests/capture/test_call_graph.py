"""Call stacks in recordings: each record's chain against what the program can have called, in every format."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import lastbranch
from capture_tools import PROGRAMS, Recorded, needs_ptrace, record
from command_line import run_cli
from export_tools import ran, tool
from lastbranch.analysis import Namer, call_stacks, fold
from lastbranch.analysis.checks import check
from lastbranch.capture.software.call_chains import CallChains, rewound
from lastbranch.capture.software.tree import Process
from lastbranch.capture.software.unwinder import AddressSpace, Stack, Unwinder
from lastbranch.errors import SelectionError
from lastbranch.lbr import KIND
from lastbranch.symbols import Symbolizer

pytestmark = needs_ptrace

DENSE = ("--engine", "software", "--duty", "50", "--period", "1000000")
CALLERS = {
    "leaf": {"recurse", "even", "odd", "compare", "last", "tail", "room", "big", "many", "handler", "catches", "lands"},
    "recurse": {"recurse", "main", "handler"}, "even": {"odd", "main"}, "odd": {"even"}, "sort": {"main"},
    "last": {"main"}, "tail": {"main"}, "room": {"main"}, "big": {"main"}, "many": {"main"}, "signals": {"main"},
    "catches": {"main"}, "throws": {"throws", "catches"}, "lands": {"main"}, "jumps": {"jumps", "lands"},
    "compare": {"sort"}, "handler": {"signals"}, "main": set(),
}  # fmt: skip
"""Of each function of stacks.cpp, those that are next to it on the stack if the others are left out. `tail` ends by a
jump to `last`, so `main` is the caller of both."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "stacks"
    subprocess.run(["g++", "-w", "-g", "-O2", str(PROGRAMS / "stacks.cpp"), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="module", params=[pytest.param("data", marks=pytest.mark.thorough), "tb5", "etl"])
def recorded(request: pytest.FixtureRequest, program: Path) -> Recorded:
    return record(program.with_suffix(f".{request.param}"), *DENSE, "--", program, "20000")


def test_every_record_has_a_stack_that_the_program_can_have(recorded: Recorded) -> None:
    assert recorded.code == 0, recorded.err
    profile = recorded.profile()
    found = subprocess.run(["nm", "-S", recorded.path.with_suffix("")], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in found.stdout.splitlines()} & CALLERS.keys()
    assert names == CALLERS.keys()
    namer = Namer(profile, Symbolizer(profile))
    folded = fold(call_stacks(profile), namer)
    whole = Counter[bool]()
    for (_, rows), samples in folded.items():
        stack = [namer.labels[row].name.partition("(")[0].removesuffix(".cold") for row in rows]
        own = [name for name in stack if name in CALLERS]
        whole["main" in stack] += samples
        for caller, callee in pairwise(own):
            assert caller in CALLERS[callee], stack
    assert whole[True] > 20
    assert whole[False] <= 0.3 * whole[True], "bursts in which an exception was thrown know their end only"


def test_a_chain_begins_at_its_sample_and_has_the_calls_of_its_branches(program: Path) -> None:
    done = record(program.with_suffix(".calls.tb5"), *DENSE, "--", program, "6000")
    compared = 0
    for batch in done.profile().streams[-1].batches():
        for i in range(len(batch)):
            chain = [f for f in batch.chain(i).tolist() if f < 1 << 63]
            if not chain:
                continue
            assert chain[0] == batch.ip[i]
            source, _, flags = batch.stack(i)
            depth = 0  # of calls that returned, from the newest branch on
            for place, kind in zip(source.tolist(), (flags >> np.uint64(20) & np.uint64(15)).tolist(), strict=True):
                depth += kind == KIND["ret"]
                if kind in (KIND["call"], KIND["ind_call"]):
                    if depth == 0:
                        if abs(chain[1] - place) >> 32:
                            break  # the unwinder's own call, left by the exception that it delivered
                        assert 0 < chain[1] - place <= 15
                        compared += 1
                        break
                    depth -= 1
    assert compared > 5


def test_which_samples_have_stacks_is_chosen(program: Path) -> None:
    has = {}
    for how in ("fp", "lbr", "none"):
        done = record(program.with_suffix(f".{how}.tb5"), *DENSE, "--call-graph", how, "--", program, "2000")
        assert done.code == 0, done.err
        profile = done.profile()
        has[how] = [event.has_callchain for event in profile.events]
        assert profile.header["call stacks"]
    assert has == {"fp": [True, False], "lbr": [False, False], "none": [False, False]}


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match="call_graph = 'gdb'"):
        lastbranch.record(["true"], tmp_path / "x.tb5", call_graph="gdb")
    refused = record(tmp_path / "x.tb5", "--call-graph", "dwarf", "--engine", "hardware", "--", "true")
    assert refused.code == 2
    assert "need the software engine" in refused.err


@pytest.mark.parametrize("options", [("-fsplit-stack", "-s"), ("-DMARKED",)], ids=" ".join)
def test_split_stacks_are_refused_by_name(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Nothing but its code says so of a stripped program, and the mark alone is not taken for it."""
    program = tmp_path / "pieces"
    command = ["gcc", "-O1", *options, PROGRAMS / "pieces.c", "-o", program]
    if options[0] != "-DMARKED":
        probe = ["gcc", "-fsplit-stack", "-x", "c", "-", "-o", os.devnull]
        if subprocess.run(probe, input=b"int main(void) { return 0; }", capture_output=True).returncode:
            pytest.skip("this gcc links no program with -fsplit-stack")
    subprocess.run(command, check=True)
    done = record(tmp_path / "made.tb5", *DENSE, "--", program, "15000")
    assert (done.code, done.out) == (0, b"0\n"), done.err
    said = run_cli("info", done.path).out
    found = [finding.name for finding in check(done.path)]
    stacks = [len(b.chain(i)) > 0 for b in done.profile().streams[-1].batches() for i in range(len(b))]
    assert len(stacks) > 5
    is_split = options[0] != "-DMARKED"
    assert (f"no call stacks of {program}: built with -fsplit-stack" in done.err) is is_split
    assert ("of a program of -fsplit-stack" in said) is is_split
    assert ("split stacks" in found) is is_split
    if is_split:  # before its first function a program has one piece
        assert not any(stacks[stacks.index(False) :])
    else:
        assert sum(stacks) > 0.9 * len(stacks)


def test_llvm_profgen_tells_the_callers_apart(tmp_path: Path) -> None:
    """`work` takes the one way in each context that its caller makes it take."""
    clang, profgen, program = tool("clang-19"), tool("llvm-profgen-19"), tmp_path / "contexts"
    ran(clang, "-O1", "-fno-inline", "-g", "-fpseudo-probe-for-profiling", PROGRAMS / "contexts.c", "-o", program)
    made = record(tmp_path / "made.tb5", *DENSE, "--", program)
    assert made.code == 0, made.err
    ran(sys.executable, "-m", "lastbranch", "export", made.path, "--to", "perfscript", "-o", tmp_path / "text")
    plain = ("--csspgo-preinliner=0", "--gen-cs-nested-profile=0", "--format=text")
    ran(profgen, f"--binary={program}", f"--perfscript={tmp_path / 'text'}", *plain, f"--output={tmp_path / 'profile'}")
    counts: dict[str, dict[str, int]] = {}
    for line in (tmp_path / "profile").read_text().splitlines():
        if line.startswith("["):
            probes = counts[re.sub(r":\d+(?= )", "", line[1 : line.index("]")])] = {}
        elif not line.startswith(" !"):
            probe, count = line.split()[:2]
            probes[probe] = int(count)
    assert "work" not in counts
    first, second = counts["main @ first @ work"], counts["main @ second @ work"]
    assert first["5:"] > 100 < second["6:"]
    assert first["6:"] == second["5:"] == 0


class Asked(Unwinder):
    """Keeps what it was asked to prepare for."""

    def __init__(self) -> None:
        self.spaces: list[AddressSpace] = []

    def prepare(self, space: AddressSpace) -> Iterator[None]:
        self.spaces.append(space)
        return iter(())


def test_stacks_are_prepared_for_some_processes_of_each_program() -> None:
    """A build has thousands, and all map the same files."""
    asked = Asked()
    chains = CallChains(asked)
    pids = [os.getpid(), 1, os.getppid(), os.getpid()]
    processes = [Process(pid, name, {pid}) for pid, name in zip(pids, ["cc", "cc", "cc", "ld"], strict=True)]
    for process in processes:
        process._space = AddressSpace(process.pid, lambda address, size: b"", -1)
    for process in [*processes, processes[0]]:
        chains.mapped(process)
        chains.prepare()
        chains.prepare()
    own, init, _, linker = (process.space for process in processes)
    assert asked.spaces == [own, init, linker, own]


# -- from the end of a burst to its beginning

CALL, RETURN, JUMP = KIND["call"], KIND["ret"], KIND["uncond"]
EDGES = [(0x100, 0x200, CALL), (0x210, 0x105, RETURN), (0x110, 0x120, JUMP), (0x125, 0x300, CALL), (0x305, 0x400, CALL)]
BEFORE, AFTER = Stack([0xF0, 0x900], 0), Stack([0x400, 0x30A, 0x12A, 0x900], 0)


def test_the_stacks_between_the_ends_of_a_burst() -> None:
    assert rewound(EDGES, [1, 2, 3, 4], BEFORE, AFTER) == [
        (0x200, 0x105, 0x900),
        (0x105, 0x900),
        (0x120, 0x900),
        (0x300, 0x12A, 0x900),
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEFORE, Stack([0x400, 0x900], 0)),  # a caller that no call of the burst led from
        (Stack([0xF0, 0x905], 0), AFTER),  # another caller before
        (Stack([0xF0, 0x900, 0x950], 0), AFTER),  # one caller more
        (Stack([0xF0], 0), AFTER),
    ],
)
def test_ends_that_do_not_fit_give_none(before: Stack, after: Stack) -> None:
    assert rewound(EDGES, [1, 3], before, after) is None


def test_stacks_that_are_cut_off_fit_as_far_as_they_are_known() -> None:
    assert rewound(EDGES, [3], Stack([0xF0, 0x900, 0x950], 2), AFTER) == [(0x120, 0x900)]
