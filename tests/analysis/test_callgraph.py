"""Call graphs and call stacks against callgrind's exact counts and the trace of the whole run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lastbranch
import perfdata_writer as pw
from capture_tools import needs_ptrace
from captures import Data
from lastbranch.analysis.counting.branch_kinds import BranchKinds
from lastbranch.analysis.naming import Namer, find_functions
from lastbranch.analysis.stacks.call_stacks import call_stacks, why_no_call_stacks
from lastbranch.analysis.stacks.callgraph import CallTable, callees, callers
from lastbranch.analysis.stacks.functions import fold
from lastbranch.binaries import read_image
from lastbranch.binaries.files import File
from lastbranch.bind import bind
from lastbranch.errors import NotRecordedError
from lastbranch.lbr import KIND, PERF_SELECT
from lastbranch.model import Profile, SampleFilter
from lastbranch.opening import open_profile
from lastbranch.symbols import Symbolizer, SymbolOptions
from small_elf import tiny_elf
from symbol_programs import command
from view_truth import NmSymbols, Run, instructions, name_at, run_program, symbols


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_program(tmp_path_factory.mktemp("calls"), "loops", "9", flags=["-fno-jump-tables"])


def callgrind(program: Path, *words: str, folder: Path) -> dict[tuple[str, str], int]:
    """(caller, callee) -> calls, of a complete run."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    out = folder / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--compress-strings=no", str(program)]
    subprocess.run([*command, *words], check=True, capture_output=True)
    calls: Counter[tuple[str, str]] = Counter()
    caller = callee = ""
    for line in out.read_text().splitlines():
        if found := re.match(r"(c?)fn=(.*)", line):
            name = found[2].partition("'")[0]  # 'N: levels of a recursion
            caller, callee = (caller, name) if found[1] else (name, callee)
        elif line.startswith("calls="):
            calls[caller, callee] += int(line[6:].split()[0])
    return dict(calls)


def graph(profile: Profile, direction: str) -> dict[tuple[str, str], int]:
    """(caller, callee) -> calls, asked function by function."""
    namer = Namer(profile, NmSymbols(profile))  # type: ignore[arg-type]
    calls: dict[tuple[str, str], int] = {}
    for _, _, name in symbols(profile.modules[0].binary):
        table = table_of(profile, namer, name, direction)
        assert table.calls is not None
        for row, count in zip(table.function.tolist(), table.calls.tolist(), strict=True):
            other = table.labels[row].function
            if count:
                calls[(other, name) if direction == "callers" else (name, other)] = count
    return calls


def table_of(profile: Profile, namer: Namer, name: str, direction: str) -> CallTable:
    (place,) = find_functions(profile, namer, name)
    return {"callers": callers, "callees": callees}[direction](profile, namer, namer.row(place.label))


@needs_ptrace
@pytest.mark.parametrize("direction", ["callers", "callees"])
def test_call_branches_are_the_calls_that_callgrind_counts(run: Run, direction: str, tmp_path: Path) -> None:
    profile = run.capture(tmp_path / "perf.data", run.whole())
    truth = callgrind(run.program, "9", folder=tmp_path)
    names = {name for _, _, name in symbols(run.program)}
    assert len(truth) > 8
    found = graph(profile, direction)
    found.pop(("", "start"), None)  # nm gives no size for what is assembled by hand
    assert found == {k: n for k, n in truth.items() if set(k) <= names}


@needs_ptrace
def test_indirect_calls_are_told(run: Run, tmp_path: Path) -> None:
    profile = run.capture(tmp_path / "perf.data", run.whole())
    table = table_of(profile, Namer(profile, NmSymbols(profile)), "calling", "callees")  # type: ignore[arg-type]
    assert table.calls is not None
    assert table.indirect is not None
    found = {
        table.labels[r].function: (int(c), int(i))
        for r, c, i in zip(table.function, table.calls, table.indirect, strict=True)
    }
    assert found == {"add": (27, 27), "flip": (27, 27), "fixed": (54, 0)}


# -- stubs of calls into shared libraries


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``program``, which calls ``far`` of ``lib.so`` by its stub."""
    folder = tmp_path_factory.mktemp("linked")
    (folder / "lib.c").write_text("int far(int n) { return n + 1; } int other(int n) { return n; }")
    (folder / "program.c").write_text(
        "int far(int), other(int); __attribute__((noinline)) int near(int n) { return far(n) + other(n); }"
        "int ending(int n) { return far(n); } int start(int n) { return near(n) + ending(n); }"
    )
    command(["gcc", "-O2", "-nostdlib", "-shared", "-fPIC", "-o", "lib.so", "lib.c"], folder)
    command(["gcc", "-O2", "-nostdlib", "-no-pie", "-Wl,-e,start", "-o", "program", "program.c", "./lib.so"], folder)
    return folder


def branches_of(folder: Path, *, jumps: bool) -> Profile:
    """Three calls of ``far`` by ``near``, two by the tail call of ``ending``, with or without the stub's own jumps, and
    the first call, which goes through the linker's code."""
    places: dict[str, int] = {}
    for name, module in (("program", 0), ("lib.so", 0x700000)):
        listed = command(["objdump", "-d", name], folder)
        for m in re.finditer(r"^0*([0-9a-f]+) <(.*)>:$", listed, re.MULTILINE):
            places[m[2]] = module + int(m[1], 16)
        for m in re.finditer(r"^ *([0-9a-f]+):.*(?:call|jmp) .*<(\w+@plt)>", listed, re.MULTILINE):
            places.setdefault(f"to {m[2]}", module + int(m[1], 16))
    inside = places["near"] <= places["to far@plt"] < places["near"] + 40
    assert inside, "the first one that calls the stub"
    stub, far = places["far@plt"], places["far"]
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.mmap2(pid=7, addr=0x400000, length=0x5000, pgoff=0, name=str(folder / "program"), time=0)
    b.mmap2(pid=7, addr=0x700000, length=0x5000, pgoff=0, name=str(folder / "lib.so"), time=0)
    call, jump = KIND["call"] << 20, KIND["ind"] << 20
    linkage = next(s.vaddr for s in read_image(File(str(folder / "program"))).sections if s.name == ".plt")
    entries = [(places["to far@plt"], stub, call)] * 3 + [(places["ending"], stub, KIND["uncond"] << 20)] * 2
    entries += [(stub, far, jump)] * 4 * jumps + [(stub + 11, linkage, jump)] * 9
    b.sample(ip=far, pid=7, time=1, branches=entries)
    (folder / "x.data").write_bytes(b.build())
    return open_profile(folder / "x.data", symfs="/")


@pytest.mark.parametrize("jumps", [True, False])
def test_stubs_are_looked_through(linked: Path, jumps: bool) -> None:
    profile = branches_of(linked, jumps=jumps)
    with Symbolizer(profile, SymbolOptions(cache=None)) as symbolizer:
        namer = Namer(profile, symbolizer)
        seen = {}
        for name, direction in (("far", "callers"), ("near", "callees"), ("ending", "callees"), ("far@plt", "callers")):
            table = table_of(profile, namer, name, direction)
            assert table.calls is not None
            assert table.jumps is not None
            seen[name, direction] = {
                table.labels[row].function: (calls, jumped)
                for row, calls, jumped in zip(table.function.tolist(), table.calls.tolist(), table.jumps, strict=True)
                if calls or jumped  # not what stacks say of calls that never return
            }
    assert seen["far", "callers"] == {"near": (3, 0), "ending": (0, 2)}
    assert seen["near", "callees"] == {"far": (3, 0)}
    assert seen["ending", "callees"] == {"far": (0, 2)}
    assert seen["far@plt", "callers"] == {"near": (3, 0), "ending": (0, 2)}


# -- stacks rebuilt from branch stacks


def true_stacks(run: Run, ends: list[int]) -> list[tuple[str, ...]]:
    """The functions on the stack behind each of the edges ``ends``, leaf first, by following the whole run."""
    found, kinds, wanted = symbols(run.program), instructions(run.program), set(ends)
    out: dict[int, tuple[str, ...]] = {}
    stack: list[str] = []
    for i, (source, target) in enumerate(run.edges, 1):
        if kinds[source] in ("call", "ind_call"):
            stack.append(name_at(found, target))
        elif kinds[source] == "ret":
            stack.pop()
        if i in wanted:
            out[i] = tuple(reversed(stack))
    return [out[end] for end in ends]


@needs_ptrace
def test_rebuilt_stacks_are_the_newest_part_of_the_true_ones(run: Run, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    ends = [int(e) for e in random.integers(32, len(run.edges), 400)]
    profile = run.capture(tmp_path / "perf.data", [(e - 32, e) for e in ends])
    stacks = call_stacks(profile)
    assert stacks.sources == ["rebuilt from branch stacks"]
    assert int(stacks.samples.sum()) == len(ends)
    namer = Namer(profile, NmSymbols(profile))  # type: ignore[arg-type]
    assert int(stacks.period.sum()) == 100 * len(ends)
    longest: Counter[tuple[str, ...]] = Counter()
    for (_, rows), count in fold(stacks, namer).items():
        longest[tuple(namer.labels[row].function for row in reversed(rows))] += count
    truth = Counter(true_stacks(run, ends))
    # Each rebuilt one is the leaf's end of as many true ones: match the longest first.
    for rebuilt, count in sorted(longest.items(), key=lambda item: -len(item[0])):
        for true in [t for t in truth if t[: len(rebuilt)] == rebuilt]:
            used = min(count, truth[true])
            truth[true] -= used
            count -= used
        assert count == 0, rebuilt
    assert not +truth
    assert sum(n for s, n in longest.items() if len(s) > 1) > len(ends) / 2


def test_code_that_is_not_at_hand_is_judged_by_where_it_goes(tmp_path: Path) -> None:
    """A library calls back into the program and returns to it: types of its branches by their targets."""
    code = bytes.fromhex("e8 fb0f0000 90 c3".replace(" ", ""))  # call; nop; ret
    elf = tmp_path / "prog"
    elf.write_bytes(tiny_elf(code))
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.mmap2(pid=7, addr=0x401000, length=0x1000, pgoff=0x1000, name=str(elf), time=0)
    b.mmap2(pid=7, addr=0x500000, length=0x1000, pgoff=0, name="/no/such/library.so", time=0)
    b.sample(ip=0x401005, pid=7, time=1, branches=[(0x500010, 0x401005, 0)])
    (tmp_path / "x.data").write_bytes(b.build())
    profile = open_profile(tmp_path / "x.data", symfs="/")
    (batch,) = profile.batches()
    kinds = BranchKinds(profile)

    scope, offsets = bind(profile).binder.scopes(batch), np.array([0, 5])
    pairs = [
        (0x500010, 0x401005),
        (0x500010, 0x401006),
        (0x500010, 0x500020),
        (0x401000, 0x500000),
        (0x401006, 0x500000),
    ]
    source, target = (np.array(c, np.uint64) for c in zip(*pairs, strict=True))
    expected = ["ret", "ind_call", "unknown", "call", "ret"]
    for _ in range(2):  # decoded, then remembered
        assert kinds.of(scope, offsets, source, target, np.zeros(5, np.uint64)).tolist() == [KIND[k] for k in expected]
    told = np.full(5, KIND["ind"] << 20, np.uint64)
    beyond = np.append(source, np.uint64(1 << 60)), np.append(target, np.uint64(0x401000))  # cannot be compacted
    found = kinds.of(scope, np.array([0, 6]), *beyond, np.zeros(6, np.uint64)).tolist()
    assert found == [*(KIND[k] for k in expected), KIND["ind_call"]]
    assert kinds.of(scope, offsets, source, target, told).tolist() == [KIND["ind"]] * 5


# -- call chains and LBR call-stack mode


def frames_of(profile: Profile) -> Counter[tuple[int, ...]]:
    """Stacks as the low 12 bits of their frames, which binding does not change."""
    stacks = call_stacks(profile)
    found: Counter[tuple[int, ...]] = Counter()
    for i, count in enumerate(stacks.samples.tolist()):
        rows = stacks.frame[stacks.offsets[i] : stacks.offsets[i + 1]]
        found[tuple((stacks.address[rows] & np.uint64(0xFFF)).tolist())] += count
    return found


def test_call_stack_mode_gives_the_frames_that_perf_gives(data: Data) -> None:
    name = "cfl_9700_callgraph_lbr"
    profile = lastbranch.open(data.path(name))
    expected: Counter[tuple[int, ...]] = Counter()
    depths = np.concatenate([batch.depth for batch in profile.batches()]).tolist()
    samples = data.golden(name, "perf612-script-callchain.txt").strip().split("\n\n")
    for text, depth in zip(samples, depths, strict=True):
        frames = [int(line.split()[0], 16) for line in text.splitlines()[1:]]
        if not depth:
            del frames[-1]  # what perf reads out of bounds
        kernel = len(frames) - (depth + 1 if depth else 0)
        inside = [f if i == 0 or i >= kernel else f - 1 for i, f in enumerate(frames)]  # a caller's place is its call
        expected[tuple(f & 0xFFF for f in inside)] += 1
    assert call_stacks(profile).sources == ["LBR call-stack mode"]
    assert frames_of(profile) == expected


def test_call_chains_without_their_markers() -> None:
    user, kernel = (1 << 64) - 512, (1 << 64) - 128
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.CALLCHAIN)
    b.comm(pid=7, name="prog", time=0)
    b.mmap2(pid=7, addr=0x401000, length=0x1000, pgoff=0, name="/bin/prog", time=0)
    chain = [kernel, 0xFFFFFFFF81000010, 0xFFFFFFFF81000020, user, 0x401010, 0x401020]
    for _ in range(3):
        b.sample(ip=0xFFFFFFFF81000010, pid=7, time=1, callchain=chain)
    b.sample(ip=0x401004, pid=7, time=2, callchain=[])
    profile = opened(b)
    stacks = call_stacks(profile)
    assert (stacks.sources, stacks.samples.tolist(), stacks.bare) == (["call chains"], [3, 1], 1)
    addresses = [hex(a) for a in stacks.address[stacks.frame].tolist()]
    assert addresses == ["0xffffffff81000010", "0xffffffff8100001f", "0x10", "0x1f", "0x4"]


def opened(b: pw.Builder) -> Profile:
    from lastbranch.model import BytesSource
    from lastbranch.opening import read_profile

    profile = read_profile(BytesSource(b.build()))
    profile.processes = bind(profile).binder.processes
    return profile


def test_what_has_no_call_stacks_says_so(data: Data) -> None:
    calls = pw.Builder(sample_type=pw.IP | pw.TID | pw.BRANCH_STACK, branch_sample_type=PERF_SELECT["COND"])
    plain = pw.Builder(sample_type=pw.IP | pw.TID)
    for b, why in ((calls, "calls or returns were not recorded"), (plain, "neither call chains nor")):
        b.sample(ip=0x1000, pid=7, time=1)
        profile = opened(b)
        assert why in str(why_no_call_stacks(profile))
        with pytest.raises(NotRecordedError, match=why) as refused:
            call_stacks(profile)
        assert "perf record" in str(refused.value.hint)
        profile.machine.os = "Windows"
        with pytest.raises(NotRecordedError) as refused:
            call_stacks(profile)
        assert "xperf -stackwalk" in str(refused.value.hint)
        assert "perf record" not in str(refused.value.hint)
        profile.recorder = "lastbranch session"
        with pytest.raises(NotRecordedError, match=why) as refused:
            call_stacks(profile)
        assert "sessions need --lbr" in str(refused.value.hint)
    profile = lastbranch.open(data.path("skx_6154_32deep_pie"))  # no binaries, no types
    with pytest.raises(NotRecordedError, match="no types, and none"):
        call_stacks(profile)
    with pytest.raises(ValueError, match="'samples', 'period'"):
        fold(call_stacks(lastbranch.open(data.path("cfl_9700_callgraph_lbr"))), Namer(profile, None), weight="x")


def test_filters_hold_for_stacks(data: Data) -> None:
    profile = lastbranch.open(data.path("snb_callchain_and_branch-3.4"))
    every = call_stacks(profile)
    pids = {p.pid for p in profile.processes}
    parts = [call_stacks(profile, sample_filter=SampleFilter(pids=frozenset([pid]))) for pid in pids]
    assert int(every.samples.sum()) == profile.samples == sum(int(p.samples.sum()) for p in parts)
