"""Exports of one module: what AutoFDO, llvm-profgen and BOLT make of them equals what they make of the capture."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from captures import Data
from export_tools import BINARIES, ONE_PROCESS, binary_of, exported, numbers, plt_of, ran, tool
from small_captures import build

PERF2BOLT = shutil.which("/usr/lib/llvm-19/bin/perf2bolt")


# -- llvm-profgen


@pytest.mark.parametrize("binary", BINARIES)
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_profgen_counts_are_llvm_profgens(run, data: Data, tmp_path: Path, name: str, binary: str) -> None:
    """All of its lines are there with its counts; what is more are the procedure linkage table's, which it skips."""
    text = exported(run, data, name, binary, "profgen", tmp_path / "x").read_text()
    ranges, branches = numbers(text)
    want_ranges, want_branches = numbers(data.golden(name, f"{binary}.profgen19-unsym.txt"))
    first = min(a for a, _ in want_ranges) & ~0xFFF  # the golden's addresses are link addresses
    moved = Counter({((a - first) % 2**64, (b - first) % 2**64): n for (a, b), n in want_branches.items()})
    plt = plt_of(binary_of(data, name, binary), first)
    assert {k: n for k, n in ranges.items() if k[0] not in plt} == {
        (a - first, b - first): n for (a, b), n in want_ranges.items()
    }
    # Where a branch comes out of the table, the table is outside for llvm-profgen.
    outside = (1 - first) % 2**64
    mine: Counter[tuple[int, int]] = Counter()
    for (a, b), n in branches.items():
        if b not in plt:
            mine[outside if a in plt else a, b] += n
    assert mine == moved


@pytest.mark.parametrize("binary", BINARIES)
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_llvm_profgen_makes_the_same_profile_of_it(run, data: Data, tmp_path: Path, name: str, binary: str) -> None:
    text, made = exported(run, data, name, binary, "profgen", tmp_path / "x"), tmp_path / "prof"
    ran(
        tool("llvm-profgen-19"),
        f"--binary={binary_of(data, name, binary)}",
        f"--unsymbolized-profile={text}",
        "--format=text",
        f"--output={made}",
    )
    assert made.read_text() == data.golden(name, f"{binary}.profgen19.prof")


def test_two_processes_are_counted_whole(run, data: Data, tmp_path: Path) -> None:
    """The stored profile was made of counts without branches from outside: without them ours gives it to the byte."""
    text, made = exported(run, data, "demo_2proc", "lbrdemo", "profgen", tmp_path / "x"), tmp_path / "prof"
    ranges, _ = numbers(text.read_text())
    llvm, _ = numbers(data.golden("demo_2proc", "lbrdemo.profgen19-unsym.txt"))
    assert sum(llvm.values()) == 529  # those of one process only
    assert sum(ranges.values()) == 1178
    inside = [line for line in text.read_text().splitlines() if not line.startswith("fffffffffffff001->")]
    dropped = len(text.read_text().splitlines()) - len(inside)
    inside = [
        str(int(line) - dropped) if i and line.isdigit() and len(line) < 6 else line for i, line in enumerate(inside)
    ]
    text.write_text("\n".join(inside) + "\n")
    ran(
        tool("llvm-profgen-19"),
        f"--binary={binary_of(data, 'demo_2proc', 'lbrdemo')}",
        f"--unsymbolized-profile={text}",
        "--format=text",
        f"--output={made}",
    )
    assert made.read_text() == data.golden("demo_2proc", "lbrdemo.profgen19-from-own-unsym.prof")


# -- AutoFDO


def test_create_gcov_makes_the_same_gcov_of_it(run, data: Data, tmp_path: Path) -> None:
    gcov, name, binary = tool("create_gcov"), "demo_pie", binary_of(data, "demo_pie", "lbrdemo")
    text = exported(run, data, name, "lbrdemo", "autofdo", tmp_path / "x")
    for option, profile, out in (("--profiler=perf", data.path(name), "a"), ("--profiler=text", text, "b")):
        ran(gcov, f"--binary={binary}", option, f"--profile={profile}", f"--gcov={tmp_path / out}", "-gcov_version=2")
    assert (tmp_path / "a").stat().st_size > 2000  # not an empty profile
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_autofdo_is_simpleperfs_text(run, data: Data, tmp_path: Path) -> None:
    """simpleperf subtracts the first segment's address, we give offsets in the file: 0x1000 less in this binary."""
    name = "simpleperf_32deep_lbrloop"
    done = run("export", "--to", "autofdo", "--binary", "lbr_test_loop", data.path(name))
    moved = re.sub(r"\b9([0-9a-f]{2})\b(?=[-:])", r"19\1", done.out)
    moved = re.sub(r"(?<=[->])9([0-9a-f]{2})\b(?=:)", r"19\1", moved)
    want = data.golden(name, "simpleperf-autofdo.txt").split("\n")
    # The last range follows an entry that came from outside of the binary; simpleperf leaves such ranges out.
    got = moved.splitlines()
    assert [line for line in want if line and line not in got] == []
    assert [line for line in got if line not in want] == ["3", "1948-194d:1"]


# -- BOLT


@pytest.mark.parametrize("binary", BINARIES)
@pytest.mark.parametrize("name", ["demo_pie", "demo_hwidx", "demo_2proc"])
def test_perf2bolt_makes_the_same_fdata_of_it(run, data: Data, tmp_path: Path, name: str, binary: str) -> None:
    if PERF2BOLT is None:
        pytest.skip("perf2bolt 19 is not installed under that name")
    text, made = exported(run, data, name, binary, "bolt", tmp_path / "x"), tmp_path / "fdata"
    said = ran(PERF2BOLT, "-pa", "-p", text, "-o", made, binary_of(data, name, binary))
    assert "traces mismatching disassembled function contents: 0 (0.0%)" in said
    assert sorted(made.read_text().splitlines()) == data.golden(name, f"{binary}.bolt19.fdata").splitlines()


CALL_AND_BLOCK = """
    .globl _start, near, far
    .type near,@function
near: test $1, %edi
    je .Lafter
    call far
.Lafter: nop
    ret
    .size near, .-near
    .type far,@function
far: nop
    ret
    .size far, .-far
    .type _start,@function
_start: call near
    jmp _start
    .size _start, .-_start
"""


def test_ways_from_a_call_into_the_block_behind_it_are_counted(run, tmp_path: Path) -> None:
    """A returned 5 times to ``after``, and a jump went there twice: perf2bolt counts the 5 from the call on."""
    if PERF2BOLT is None:
        pytest.skip("perf2bolt 19 is not installed under that name")
    (tmp_path / "x.s").write_text(CALL_AND_BLOCK)
    program, made = tmp_path / "x", tmp_path / "fdata"
    ran(
        tool("clang-19"),
        "-nostdlib",
        "-static",
        "-fuse-ld=lld-19",
        "-Wl,--emit-relocs",
        "-o",
        program,
        tmp_path / "x.s",
    )
    lines = map(str.split, ran(tool("nm"), program).splitlines())
    at = {name: int(address, 16) for address, _, name in lines}
    page = at["near"] & ~0xFFF
    near, far = at["near"], at["far"]
    at |= {"at": near + 6, "there": near + 8, "after": near + 13, "back": near + 14, "home": far + 1}

    def stack(*edges: tuple[str, str], times: int) -> list[str]:
        newest_first = [f"{at[a]:#x}/{at[b]:#x}/P/-/-/1" for a, b in reversed(edges)]
        return [f" {at['near']:x} {' '.join(newest_first)}"] * times

    first = ("_start", "near")
    text = [f"PERF_RECORD_MMAP2 7/7: [{page:#x}(0x1000) @ 0 08:01 1 1]: r-xp {program}"]
    text += stack(first, ("there", "far"), ("home", "after"), ("back", "_start"), times=5)
    text += stack(first, ("at", "after"), ("back", "_start"), times=2)
    (tmp_path / "stacks.txt").write_text("\n".join(text) + "\n")
    done = run("export", tmp_path / "stacks.txt", "--to", "bolt", "--binary", program, "-o", tmp_path / "bolt.txt")
    assert done.code == 0, done.err
    ranges = [line for line in (tmp_path / "bolt.txt").read_text().splitlines() if line.endswith((" 5", " 2"))]
    assert f"f {at['after']:x} {at['back']:x} 5" in ranges
    assert f"F {at['after']:x} {at['back']:x} 2" in ranges
    ran(PERF2BOLT, "-pa", "-p", tmp_path / "bolt.txt", "-o", made, program)
    assert "1 near 8 1 near d 0 5" in made.read_text().splitlines()


def test_captures_merged_are_their_profiles_merged(run, data: Data, tmp_path: Path) -> None:
    """merge-fdata adds up what perf2bolt makes of each capture."""
    if PERF2BOLT is None:
        pytest.skip("perf2bolt 19 is not installed under that name")
    names = ["demo_pie", "demo_hwidx"]
    binary, text, each = binary_of(data, names[0], "lbrdemo"), tmp_path / "bolt.txt", []
    for name in names:
        each.append(tmp_path / name)
        each[-1].write_text(data.golden(name, "lbrdemo.bolt19.fdata"))
    merged = subprocess.run([tool("merge-fdata-19"), *each], capture_output=True, text=True, check=True).stdout
    done = run("export", *map(data.path, names), "--to", "bolt", "--binary", binary, "-o", text)
    assert done.code == 0, done.err
    ran(PERF2BOLT, "-pa", "-p", text, "-o", tmp_path / "fdata", binary)
    assert summed((tmp_path / "fdata").read_text()) == summed(merged)


def summed(*profiles: str) -> Counter[str]:
    """Counts by branch. merge-fdata keeps mispredictions apart, and those of equal lines once."""
    found: Counter[str] = Counter()
    for line in "".join(profiles).splitlines():
        branch, _, n = line.rsplit(" ", 2)
        found[branch] += int(n)
    return found


def test_stubs_have_no_ranges_in_text_for_bolt(run, data: Data, tmp_path: Path) -> None:
    """perf2bolt takes each range in the procedure linkage table for one that contradicts the binary."""
    listed = subprocess.run(
        [tool("readelf"), "-SW", binary_of(data, "demo_pie", "lbrdemo")], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"\] (\.plt\S*) +PROGBITS +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+)", listed)
    stubs = [range(int(at, 16), int(at, 16) + int(size, 16)) for _, at, size in found]
    text = exported(run, data, "demo_pie", "lbrdemo", "bolt", tmp_path / "x").read_text()
    lines = [line.split() for line in text.splitlines()]
    inside = Counter(
        words[0] for words in lines for address in words[1:3] if any(int(address, 16) in stub for stub in stubs)
    )
    assert inside["F"] == inside["f"] == 0
    assert inside["B"] > 0, "calls go through them"


def test_perf2bolt_reads_what_it_cannot_map_itself(run, data: Data, tmp_path: Path) -> None:
    """Of an ordinary lld layout perf2bolt 19 makes an empty profile, and exits with 0; of our text the right one."""
    if PERF2BOLT is None:
        pytest.skip("perf2bolt 19 is not installed under that name")
    name, made = "lldlayout/demo_pie", tmp_path / "fdata"
    text = exported(run, data, name, "lbrdemo", "bolt", tmp_path / "x")
    ran(PERF2BOLT, "-pa", "-p", text, "-o", made, binary_of(data, name, "lbrdemo"))
    assert len(made.read_text().splitlines()) > 40


# -- one module, or a folder of them


def test_a_folder_holds_each_module_and_an_index(run, data: Data, symfs, tmp_path: Path) -> None:
    capture, folder = data.path("demo_2proc"), tmp_path / "out"
    for force in ([], ["--force"]):
        done = run("export", "--to", "bolt", *force, "--symfs", symfs("demo_2proc"), "-o", folder, capture)
        assert done.code == 0
        assert "libc.so.6 is left out: link addresses are not known, binary not found" in done.err
        assert "is a folder" not in done.err
    named_as_file = tmp_path / "out.txt"
    done = run("export", "--to", "bolt", "--symfs", symfs("demo_2proc"), "-o", named_as_file, capture)
    assert f"{named_as_file} is a folder, with a file for each module: --binary NAME" in " ".join(done.err.split())
    shutil.rmtree(named_as_file)
    rows = [line.split("\t") for line in (folder / "index.tsv").read_text().splitlines()]
    assert rows[0] == ["file", "module", "build_id", "ranges", "branches"]
    assert {(r[0], r[1]) for r in rows[1:]} == {(f"{b}.preagg.txt", f"/opt/lbrdemo/{b}") for b in BINARIES}
    assert sorted(os.listdir(tmp_path)) == ["out", "symfs"]
    for binary in BINARIES:
        alone = run("export", "--to", "bolt", "--binary", binary, "--symfs", symfs("demo_2proc"), capture)
        assert (folder / f"{binary}.preagg.txt").read_bytes() == alone.raw
    (folder / "mine").touch()
    done = run("export", "--to", "bolt", "--force", "--symfs", symfs("demo_2proc"), "-o", folder, capture)
    assert done.code == 5
    assert "contains files that no export wrote, such as mine" in done.err
    assert "index.tsv" in os.listdir(folder)


def test_names_of_files_are_safe_and_unlike() -> None:
    from lastbranch.export.folder import _names
    from lastbranch.model import Module

    names = ["/a/x.so", "/b/X.SO", "c:\\d e\\x.so", "/..", "/a/\x1b[2J", "/a/" + "é" * 300, "index.tsv", "/x/index"]
    made = _names([Module(n) for n in names], "tsv")
    assert len({n.lower() for n in made} | {"index.tsv"}) == len(names) + 1
    assert all(re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,110}", n) for n in made)


def test_nothing_is_left_of_a_folder_that_failed(run, data: Data, tmp_path: Path) -> None:
    done = run("export", "--to", "profgen", "-o", tmp_path / "out", data.path("wsm_x5660_16deep"))
    assert done.code == 4
    assert "no module with recorded data can be written" in done.err
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    done = run("export", "--to", "bolt", "-o", tmp_path / "file", data.path("demo_pie"))
    assert (done.code, "is not a folder" in done.err) == (5, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--binary", "nothing"], 2, "the capture has no module nothing\n"),
        (["--binary", "./nothing"], 2, "the capture has no module ./nothing, and it is not a regular file"),
        (["--binary", "/dev/null"], 2, "the capture has no module /dev/null, and it is not a regular file"),
        (["--binary", "libc.so.6", "--symfs", "{empty}"], 5, "link addresses are not known, binary not found"),
        ([], 2, "give -o FOLDER, or --binary NAME"),
        (["--binary", "{other}"], 2, "its build id"),
        (["--binary", "{text}"], 2, "not a binary"),
    ],
)
def test_what_cannot_be_chosen_is_told(run, data: Data, tmp_path: Path, words: list[str], code: int, said: str) -> None:
    other, text = data.path("lldlayout/demo_pie").parent / "lbrdemo", tmp_path / "lbrdemo"
    text.write_text("no binary")
    filled = [w.format(other=other, text=text, empty=tmp_path) for w in words]
    done = run("export", "--to", "bolt", *filled, data.path("demo_pie"))
    assert (done.code, said in done.err) == (code, True), done.err


def test_an_event_without_branch_stacks(run, data: Data) -> None:
    """Other events of the capture have them, so that is what the message speaks of, and not of an empty result."""
    capture = data.path("arm_etm_inject_kernel_64deep")
    one = ("--event", "dummy:u", capture)
    for verb in (["branches"], ["export", "--to", "counts"], ["export", "--to", "perfscript"]):
        done = run(*verb, *one)
        assert (done.code, done.out) == (4, "")
        assert "event dummy:u has no branch stacks" in done.err
    done = run("diff", "--by", "edge", *one, capture)
    assert (done.code, "event dummy:u has no branch stacks" in done.err) == (4, True), done.err


@pytest.mark.parametrize("form", ["autofdo", "profgen", "bolt", "sampleprof", "perfscript"])
def test_no_ranges_no_profile(run, data: Data, tmp_path: Path, form: str) -> None:
    """Call-stack mode, a filter, or no branch stacks at all: a sentence that says what is missing and how to get it."""
    filtered, without = tmp_path / "filtered.data", tmp_path / "without.data"
    build(filtered, branch_sample_type=1 << 10)
    build(without, stacks=False)
    for capture, said in (
        (data.path("cfl_9700_callgraph_lbr"), "call-stack mode"),
        (filtered, "only some branch classes were recorded (cond)"),
        (without, "the capture has no branch stacks"),
    ):
        done = run("export", "--to", form, "-o", tmp_path / "out", capture)
        assert (done.code, said in done.err, "hint: record with `perf record -b`" in done.err) == (4, True, True), (
            done.err
        )
        assert not (tmp_path / "out").exists()
