"""Calls for Go's compiler: counts against a walk through code with inlined functions, and what Go says of them."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lastbranch
from arm_walks import INLINED, Frame, Program, program, spe_capture, walk
from capture_tools import needs_ptrace
from lastbranch.export import gopgo
from lastbranch.export.gopgo import Calls
from lastbranch.model import Change
from lastbranch.model.columns import BRANCH, ENTRY
from perfdata_writer import Builder, inode_of
from proto_profile import read

PROGRAM = Path(__file__).parent.parent / "programs" / "calls.go"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return program(tmp_path_factory.mktemp("gopgo"), INLINED)


def edges_of(found: dict) -> Counter[tuple[str, int, str, bool]]:
    """(caller, line from its declaration on, callee, whether inlined) of a profile, as Go's compiler reads it: the last
    two frames of each sample."""
    texts, tables = found["string_table"], found["tables"]
    assert [(texts[t["type"]], texts[t["unit"]]) for t in found["sample_type"]] == [("samples", "count")]
    out = Counter[tuple[str, int, str, bool]]()
    for sample in found["sample"]:
        lines = [line for n in sample["location_id"] for line in tables["location"][n]["line"]]
        callee, caller = (tables["function"][line["function_id"]] for line in lines)
        assert lines[0]["line"] == callee["start_line"]
        key = texts[caller["name"]], lines[1]["line"] - caller["start_line"], texts[callee["name"]]
        out[*key, len(sample["location_id"]) == 1] += sample["value"][0]
    return out


def bodies(frames: list[Frame]) -> Iterator[tuple[Frame, ...]]:
    """The inlined functions that an instruction belongs to."""
    for depth in range(1, len(frames)):
        yield (*frames[:depth], (frames[depth][0], -1))


def test_calls_and_inlined_functions_are_counted(run, made: Program, tmp_path: Path) -> None:
    path, branches = walk(made, 12_000, 7)
    capture = spe_capture(made, branches, tmp_path / "spe.data", previous_targets=True)
    done = run("export", capture, "--to", "gopgo", "--no-symbol-cache", "--binary", made.path, "-o", tmp_path / "x")
    assert done.code == 0, done.err
    taken = [one.at for one in branches if one.taken]
    first, past = taken[0] + 1, taken[-1] + 1
    expected = Counter[tuple[str, int, str, bool]]()
    for one in branches:
        if one.kind == "call":
            expected[*made.frames[one.pc][-1], made.code[one.target].function, False] += 1
    entered, times = Counter[tuple[Frame, ...]](), Counter(path[first:past])
    for i in range(first, past + 1):
        before = [*bodies(made.frames[path[i - 1]])]
        if made.code[path[i - 1]].mnemonic == "ret":
            before += bodies(made.frames[path[i] - 4])
        entered.update(body for body in bodies(made.frames[path[i]]) if body not in before)
    for body, n in entered.items():
        most = max(times[at] for at, frames in made.frames.items() if body in bodies(frames))
        expected[*body[-2], body[-1][0], True] += min(n, most)
    found = read(tmp_path / "x")
    assert edges_of(found) == expected
    names = {edge[2] for edge in expected if edge[3]}
    assert names == {"step", "twice", "again"}
    returned = [made.frames[path[i]] for i in range(first, past) if made.code[path[i - 1]].mnemonic == "ret"]
    assert any(frames[-1][0] == "again" for frames in returned), "which is no way into it"
    assert {found["string_table"][f["filename"]].rpartition("/")[2] for f in found["function"]} == {"walked.c"}


def test_assembler_functions_have_the_names_that_the_compiler_knows() -> None:
    assert gopgo._plain("runtime.memmove.abi0") == "runtime.memmove"


def test_without_lines_it_says_so(run, made: Program, tmp_path: Path) -> None:
    _, branches = walk(made, 300, 8)
    capture = spe_capture(made, branches, tmp_path / "spe.data", previous_targets=True)
    stripped = tmp_path / "walked"
    subprocess.run(["llvm-objcopy-19", "--strip-debug", made.path, stripped], check=True)
    done = run("export", capture, "--to", "gopgo", "--no-symbol-cache", "--binary", stripped, "-o", tmp_path / "x")
    assert done.code == 5
    assert "walked has no line numbers" in done.err
    assert "-ldflags=-w" in done.err


# -- Go


def go(*words: str | Path, cwd: Path) -> str:
    """The output of Go's tool. It and its cache are left as they are by variables of the user."""
    here = Path(__file__).parents[2] / ".venv-go" / "bin" / "go"
    path = str(here) if here.exists() else shutil.which("go")
    if path is None:
        pytest.skip("Go is not installed (make go)")
    environment = {**os.environ, "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOMAXPROCS": "2"}
    environment.setdefault("HOME", str(cwd))
    done = subprocess.run(
        [path, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_gos_compiler_inlines_what_is_hot(tmp_path: Path) -> None:
    """A function that is too large to inline, by name and by the line of the call."""
    source = "package main\n\nfunc big(n int) int {\n" + "\tn += n*7 ^ n>>3\n" * 20 + "\treturn n\n}\n\n"
    (tmp_path / "main.go").write_text(source + "func main() {\n\tprintln(big(4))\n\tprintln(big(5))\n}\n")
    declared = {"main.main": ("main.go", 27), "main.big": ("main.go", 3)}
    calls = Calls(Counter({("main.main", 1, "main.big", False): 99}), declared)
    with (tmp_path / "x.pgo").open("wb") as out:
        gopgo.write_calls("main", b"", calls, out)
    words = ("tool", "compile", "-p", "main", "-pgoprofile", "x.pgo", "-d=pgodebug=1", "-o", "main.o", "main.go")
    said = go(*words, cwd=tmp_path)
    assert set(re.findall(r"hot-budget check allows inlining for call main\.big .*main\.go:(\d+):", said)) == {"28"}


def without_build_id(taken: Path, program: Path, out: Path) -> Path:
    """The branches of ``program`` in a capture of Linux's perf events, which find no build id in it."""
    b = Builder()
    profile = lastbranch.open(taken)
    row = next(i for i, module in enumerate(profile.modules) if module.short == program.name)
    changes = profile.timeline.columns()
    (place, *_) = np.flatnonzero((changes["kind"] == Change.MAP) & (changes["module"] == row)).tolist()
    start, end, offset = (int(changes[name][place]) for name in ("start", "end", "offset"))
    b.comm(pid=7, name=program.name, time=1, exec=True)
    b.mmap2(pid=7, addr=start, length=end - start, pgoff=offset, name=str(program), time=2, **inode_of(program))
    for batch in profile.batches(ENTRY, having=ENTRY[0]):
        columns = [batch[name].tolist() for name in ENTRY]
        for first, past in itertools.pairwise(batch.offsets[BRANCH].tolist()):
            entries = list(zip(*(column[first:past] for column in columns), strict=True))
            if entries:
                b.sample(ip=entries[0][1], pid=7, time=10, branches=entries)
    out.write_bytes(b.build())
    return out


@pytest.mark.thorough
@needs_ptrace
def test_go_build_takes_a_recorded_program(run, tmp_path: Path) -> None:
    """A program of the real thing: its runtime is compiled, which takes a while."""
    shutil.copyfile(PROGRAM, tmp_path / "calls.go")
    go("build", "-o", "calls", "calls.go", cwd=tmp_path)
    words = ("--duty", "50", "--period", "1000000", "-o", tmp_path / "x.data", tmp_path / "calls")
    assert run("record", *words, alone=True).code == 0
    done = run("export", tmp_path / "x.data", "--to", "gopgo", "--binary", tmp_path / "calls", "-o", tmp_path / "x.pgo")
    assert done.code == 0, done.err
    found = edges_of(read(tmp_path / "x.pgo"))
    (mixed,) = (n for (caller, line, callee, _), n in found.items() if (caller, callee) == ("main.sum", "main.mix"))
    assert mixed == max(found.values())
    assert ("main.mix", 2, "main.small", True) in found
    bare = without_build_id(tmp_path / "x.data", tmp_path / "calls", tmp_path / "bare.data")
    for binary, note in ((tmp_path / "calls", False), (tmp_path / "copies" / "calls", True)):
        if note:
            (tmp_path / "copies").mkdir()
            shutil.copyfile(tmp_path / "calls", binary)
            (tmp_path / "calls").unlink()
        done = run("export", bare, "--to", "gopgo", "--binary", binary, "-o", tmp_path / "bare.pgo", "--force")
        assert done.code == 0, done.err
        assert edges_of(read(tmp_path / "bare.pgo")) == found
        assert ("recorded without a build id: only the size of its code" in " ".join(done.err.split())) == note
        done = run("export", bare, "--to", "sampleprof", "--binary", binary)
        assert done.code == 0, done.err
        assert "main.mix:" in done.out
    said = go("build", "-pgo=x.pgo", "-gcflags=-d=pgodebug=1", "-o", "calls.pgo", "calls.go", cwd=tmp_path)
    assert "allows inlining for call main.mix" in said
    assert "main.mix" in go("tool", "pprof", "-top", "x.pgo", cwd=tmp_path)
