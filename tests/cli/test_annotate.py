"""report by name, annotate, callers, callees, stacks, and names in branches: what is printed, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfdata_writer as pw
from burst_captures import NAME, opened, walks, write
from captures import Data
from command_line import Ran, run_in_terminal
from lastbranch.analysis.function.annotation import annotate
from lastbranch.lbr import PERF_SELECT
from small_elf import tiny_elf

RunCli = Callable[..., Ran]

DISPATCH = "dispatch(unsigned int, unsigned int)"


@pytest.fixture(autouse=True)
def names_kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of names for the tests of this file: what this machine's C library is called takes long to find out."""
    global _cache
    _cache = _cache or tmp_path_factory.mktemp("names")
    monkeypatch.setenv("XDG_CACHE_HOME", str(_cache))


_cache: Path | None = None


@pytest.fixture
def demo(data: Data, symfs: Callable[[str], Path]) -> list[str]:
    """The capture with its binaries."""
    return [str(data.path("demo_pie")), "--symfs", str(symfs("demo_pie"))]


def rows_of(ran: Ran, form: str = "json") -> list[dict[str, Any]]:
    assert ran.code == 0, ran.err
    return json.loads(ran.out) if form == "json" else list(csv.DictReader(io.StringIO(ran.out)))


# -- report


@pytest.mark.parametrize("by", ["function", "module"])
def test_the_first_rows_of_each_event_are_reported(by: str, tmp_path: Path, run: RunCli) -> None:
    """The rows of the event with more samples leave room for the other, and notes are about what is listed."""
    common = pw.IP | pw.TID | pw.TIME | pw.IDENTIFIER
    b = pw.Builder(sample_type=common, type=1)
    bursts = b.attr(sample_type=common | pw.BRANCH_STACK, type=1, config=1)
    for i in range(4):
        name = f"/bin/prog{i}"
        b.mmap2(pid=7, addr=0x400000 + 0x10000 * i, length=0x1000, pgoff=0, name=name, time=0)
        for at in range(9 * (4 - i)):
            b.sample(ip=0x400000 + 0x10000 * i, pid=7, time=10 + at)
        b.sample(ip=0x400000 + 0x10000 * i, pid=7, time=1000, event=bursts, branches=[])
    path = tmp_path / "x.data"
    path.write_bytes(b.build())
    every = rows_of(run("report", "--by", by, "--format", "json", "--limit", "0", path))
    two = rows_of(run("report", "--by", by, "--format", "json", "--limit", "2", path))
    events = list(dict.fromkeys(row["event"] for row in every))
    assert len(events) == 2
    assert two == [row for event in events for row in [one for one in every if one["event"] == event][:2]]


@pytest.mark.parametrize("by", ["function", "inline", "line"])
def test_report_by_name_in_every_form(by: str, demo: list[str], run: RunCli) -> None:
    every = rows_of(run("report", "--by", by, "--format", "json", *demo))
    assert rows_of(run("report", "--by", by, "--format", "csv", *demo), "csv") == [
        {k: "" if v is None else str(v) for k, v in row.items()} for row in every
    ]
    assert sum(row["samples"] for row in every) == 403
    assert sum(row["samples_percent"] for row in every) == pytest.approx(100, abs=0.2)
    assert {"total", "total_percent", "instructions", "linkage_name", "file", "line_number"} <= every[0].keys()
    ran = run("report", "--by", by, "--limit", "3", *demo)
    assert len(ran.out.splitlines()) == 4
    assert "note: totals: rebuilt from branch stacks" in ran.err
    if by == "function":
        row = next(r for r in every if r["function"] == DISPATCH)
        assert (row["module"], row["samples"], row["instructions"]) == ("lbrdemo", 11, 3811)
    else:
        assert any("mix<" in r["function"] for r in every)  # inlined into dispatch


def test_source_lines_come_from_below_the_given_folder(demo: list[str], data: Data, run: RunCli) -> None:
    root = data.path("demo_pie").parent
    every = rows_of(run("report", "--by", "line", "--source-root", root, "--format", "json", *demo))
    text = (root / "lbrdemo.cc").read_text().splitlines()
    shown = [r for r in every if r["source"]]
    assert len(shown) > 8
    assert all(r["source"] == text[r["line_number"] - 1] for r in shown if Path(r["file"]).name == "lbrdemo.cc")
    assert not any(r["source"] for r in rows_of(run("report", "--by", "line", "--format", "json", *demo)))


def test_an_empty_report_says_why_and_nothing_else_of_names(demo: list[str], run: RunCli) -> None:
    err = run("report", *demo, "--pid", "99").err
    assert "nothing passes the filters" in err
    assert "no function has a name" not in err


def test_report_by_name_obeys_filters(demo: list[str], run: RunCli) -> None:
    every = rows_of(run("report", "--by", "function", "--format", "json", *demo))
    only = rows_of(run("report", "--by", "function", "--module", "liblbrdemo.so", "--format", "json", *demo))
    wanted = {r["function"]: r["samples"] for r in every if r["module"] == "liblbrdemo.so" and r["samples"]}
    assert {r["function"]: r["samples"] for r in only if r["samples"]} == wanted
    time = json.loads(run("info", "--format", "json", demo[0]).out)["time"]
    middle = time["first_sample_ns"] + time["span_ns"] / 2
    half = rows_of(run("report", "--by", "function", "--time", f"..{middle / 1e9:.9f}", "--format", "json", *demo))
    assert 0 < sum(r["samples"] for r in half) < 403


# -- annotate


def test_annotate_says_the_same_in_every_form(demo: list[str], run: RunCli) -> None:
    whole = json.loads(run("annotate", "--format", "json", demo[0], "dispatch", *demo[1:]).out)
    assert (whole["function"], whole["linkage_name"], whole["module"]) == (DISPATCH, "_Z8dispatchjj", "lbrdemo")
    assert whole["ipc"] == 1.0  # the capture's cycles are instructions
    lines = rows_of(run("annotate", "--format", "csv", demo[0], "dispatch", *demo[1:]), "csv")
    assert lines == [{k: "" if v is None else str(v) for k, v in row.items()} for row in whole["instructions"]]
    assert whole["instructions_executed"] == sum(row["count"] for row in whole["instructions"])
    table = run("annotate", "--all", demo[0], "dispatch", *demo[1:])
    assert table.code == 0
    shown = [
        line.split("0x", 1)[1].split()[0] for line in table.out.splitlines() if re.search(r"^[ \d.]*0x\w+  ", line)
    ]
    assert [f"0x{a}" for a in shown] == [row["address"] for row in whole["instructions"]]
    head = table.out.splitlines()[0]
    assert DISPATCH in head
    assert f"{whole['instructions_executed']} instructions seen, 1.00 IPC" in head
    for title in ("Hottest edges", "Indirect targets"):
        assert f"\n{title}\n" in table.out
    assert "\x1b" not in table.out
    by_place = run("annotate", "--all", demo[0], "lbrdemo+0x1122", *demo[1:])
    assert by_place.out == table.out


def test_annotate_tells_loops_edges_and_targets(demo: list[str], run: RunCli) -> None:
    loop = json.loads(run("annotate", "--format", "json", demo[0], "sumloop", *demo[1:]).out)
    hot = next(row for row in loop["loops"] if row["iterations"])
    assert hot["trips"] == pytest.approx(8, rel=0.1)  # 64 elements, 8 at a time
    assert hot["cycles"] == pytest.approx(7)
    jumps = json.loads(run("annotate", "--format", "json", "--limit", "0", demo[0], "dispatch", *demo[1:]).out)
    targets = jumps["indirect_targets"]
    assert len(targets) == 7
    assert [t["count"] for t in targets] == sorted((t["count"] for t in targets), reverse=True)
    assert sum(t["share_percent"] for t in targets) == pytest.approx(100, abs=0.1)
    assert {t["branch"] for t in targets} == {f"{DISPATCH}+0x29"}
    edges = jumps["edges"]
    assert [e["count"] for e in edges] == sorted((e["count"] for e in edges), reverse=True)
    # Also of branches that come from elsewhere.
    assert {e["kind"] for e in edges} == {"cond", "uncond", "ind", "ret", "call", "fall through"}
    from_elsewhere = {e["kind"] for e in edges if not e["from"].startswith("dispatch")}
    assert from_elsewhere == {"call"}
    assert {e["kind"] for e in edges if e["from"].startswith("main+") and e["to"] == DISPATCH} == {"call"}
    few = json.loads(run("annotate", "--format", "json", "--limit", "2", demo[0], "dispatch", *demo[1:]).out)
    assert few["edges"] == edges[:2]
    assert few["indirect_targets"] == targets[:2]


def test_annotate_with_source(demo: list[str], data: Data, run: RunCli) -> None:
    root = data.path("demo_pie").parent
    ran = run("annotate", "--source", "--source-root", root, demo[0], "sumloop", *demo[1:])
    assert ran.code == 0
    assert re.search(r"; lbrdemo\.cc:\d+  s \+= p\[i\];", ran.out)
    assert re.search(r"\.\.\. (1 instruction|\d+ instructions) not seen$", ran.out, re.M)
    assert "never" not in ran.out  # branch records are samples: what is not among them may have run
    bare = run("annotate", "--source", demo[0], "sumloop", *demo[1:])
    assert re.search(r"; lbrdemo\.cc:\d+$", bare.out, re.M)
    rows = json.loads(run("annotate", "--source", "--format", "json", demo[0], "sumloop", *demo[1:]).out)
    assert {Path(r["file"]).name for r in rows["instructions"] if r["file"]} == {"lbrdemo.cc"}


def test_a_name_that_is_not_one_function(demo: list[str], run: RunCli) -> None:
    for verb in ("annotate", "callers", "callees"):
        several = run(verb, demo[0], "*::area*", *demo[1:])
        assert several.code == 2
        assert "'*::area*' means 3 functions" in several.err
        assert len(re.findall(r"^  lbrdemo\+0x\w+  \w+::area", several.err, re.M)) == 3
        none = run(verb, demo[0], "dispatchh", *demo[1:])
        assert none.code == 2
        assert "there are: dispatch" in none.err
        control = run(verb, demo[0], "no\x1b[31m", *demo[1:])
        assert "\x1b" not in control.err


def test_annotate_without_code(data: Data, run: RunCli) -> None:
    ran = run("annotate", data.path("skx_6154_32deep_pie"), "propeller_sample.bin+0x1000")
    assert (ran.code, ran.out) == (5, "")
    assert "the code of propeller_sample.bin+0x1000 is not available: binary not" in ran.err
    assert "--symfs" in ran.err
    ran = run("annotate", data.path("skx_6154_32deep_pie"), "main")
    assert ran.code == 2
    assert "no module has names" in ran.err


def test_annotate_where_no_code_is(demo: list[str], run: RunCli) -> None:
    ran = run("annotate", demo[0], "lbrdemo+0xfffff0", *demo[1:])
    assert (ran.code, ran.out) == (2, "")
    assert "no code lies at lbrdemo+0xfffff0" in ran.err


def test_where_names_would_come_from_is_told_once(demo: list[str], tmp_path: Path, run: RunCli) -> None:
    """A name that is not found may be that of a module without names, and a note says where its files belong."""
    (tmp_path / "none").mkdir()
    alone = [demo[0], "--symfs", str(tmp_path / "none"), "--debug-dir", str(Path(demo[2]))]
    places = "for more names, give --symfs DIR (binaries) or --debug-dir DIR (debug files)"
    for capture, nameless in ((demo, False), (alone, False), ([demo[0], "--symfs", str(tmp_path / "none")], True)):
        ran = run("report", "--by", "function", *capture)
        assert ran.err.count(places) == nameless
    some = tmp_path / "some"
    shutil.copytree(demo[2], some)
    (library,) = some.rglob("liblbrdemo.so")
    library.unlink()
    ran = run("callers", demo[0], "no_such_function", "--symfs", str(some))
    assert ran.code == 2
    assert "no names are known in liblbrdemo.so (not found)" in ran.err
    assert places in ran.err


@pytest.mark.parametrize(
    ("select", "why"),
    [
        (None, "the capture has no branch stacks"),
        (PERF_SELECT["ANY_CALL"], "only some branch classes were recorded"),
        (PERF_SELECT["CALL_STACK"] | PERF_SELECT["USER"], "call-stack mode"),
    ],
)
def test_annotate_without_ranges(
    select: int | None, why: str, demo: list[str], symfs: Callable[[str], Path], tmp_path: Path, run: RunCli
) -> None:
    """Samples are shown all the same, and the exit code says that executions are not."""
    kind = pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK * (select is not None)
    b = pw.Builder(sample_type=kind, branch_sample_type=select or 0)
    b.mmap2(pid=7, addr=0x501000, length=0x1000, pgoff=0x1000, name="/opt/lbrdemo/lbrdemo", time=0)
    for _ in range(5):
        b.sample(ip=0x501122, pid=7, time=1)
    (tmp_path / "x.data").write_bytes(b.build())
    words = [tmp_path / "x.data", "--symfs", symfs("demo_pie")]
    ran = run("annotate", words[0], "dispatch", *words[1:])
    assert ran.code == 4
    assert why in ran.err
    assert "hint: record with" in ran.err
    assert "5 samples" in ran.out.splitlines()[0]
    assert re.search(r"^ *5 +0x1122 ", ran.out, re.M)
    assert "executed" not in ran.out
    report = run("report", "--by", "function", *words, "--format", "json")
    assert [(r["function"], r["samples"], r["instructions"]) for r in rows_of(report)] == [(DISPATCH, 5, None)]


# -- callers, callees, stacks


def test_callers_and_callees(demo: list[str], run: RunCli) -> None:
    up = rows_of(run("callers", "--format", "json", demo[0], "fib", *demo[1:]))
    assert (up[0]["caller"], up[0]["calls"], up[0]["calls_percent"]) == ("fib(unsigned int)", 57, 100.0)
    assert next(r for r in up if r["caller"] == DISPATCH)["jumps"] == 22  # a tail call
    down = rows_of(run("callees", "--format", "csv", demo[0], "main", *demo[1:]), "csv")
    found = {r["callee"]: (int(r["calls"]), int(r["indirect"])) for r in down}
    assert found[DISPATCH] == (217, 0)
    assert found["Sq::area(unsigned int) const"] == (82, 82)
    ran = run("callers", demo[0], "main", "--limit", "1", *demo[1:])
    assert len(ran.out.splitlines()) == 2
    assert "note: samples: rebuilt from branch stacks" in ran.err


def test_callers_by_call_chains_alone(
    demo: list[str], symfs: Callable[[str], Path], tmp_path: Path, run: RunCli
) -> None:
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.CALLCHAIN)
    b.mmap2(pid=7, addr=0x501000, length=0x1000, pgoff=0x1000, name="/opt/lbrdemo/lbrdemo", time=0)
    for chain in ([0x501122, 0x50132F], [0x501122, 0x50132F], [0x5010F0, 0x501103, 0x501103, 0x50132F]):
        b.sample(ip=chain[0], pid=7, time=1, callchain=[(1 << 64) - 512, *chain])
    path = tmp_path / "x.data"
    path.write_bytes(b.build())
    rest = ["--symfs", symfs("demo_pie")]
    (row,) = rows_of(run("callers", path, "dispatch", *rest, "--format", "json"))
    assert (row["caller"], row["calls"], row["samples"], row["samples_percent"]) == ("main", None, 2, 100.0)
    rows = rows_of(run("callers", path, "fib", *rest, "--format", "json"))
    assert {(r["caller"], r["samples"]) for r in rows} == {("fib(unsigned int)", 1), ("main", 1)}
    folded = run("stacks", path, *rest)
    assert folded.out.splitlines() == [
        f"[unknown];main;{DISPATCH} 2",
        "[unknown];main;fib(unsigned int);fib(unsigned int);fib(unsigned int) 1",
    ]
    assert "note: stacks: call chains" in folded.err
    table = rows_of(run("report", "--by", "function", path, *rest, "--format", "json"))
    assert {(r["function"], r["samples"], r["total"]) for r in table} == {
        (DISPATCH, 2, 2),
        ("fib(unsigned int)", 1, 1),
        ("main", 0, 3),
    }


def test_stacks_in_every_form(demo: list[str], run: RunCli) -> None:
    ran = run("stacks", *demo)
    assert "note: stacks: rebuilt from branch stacks" in ran.err
    lines = [line.rpartition(" ") for line in ran.out.splitlines()]
    assert sum(int(n) for _, _, n in lines) == 403
    assert [int(n) for _, _, n in lines] == sorted((int(n) for _, _, n in lines), reverse=True)
    rows = rows_of(run("stacks", "--format", "json", *demo))
    assert [(f"{r['process']};{r['stack']}", r["samples"], r["depth"]) for r in rows] == [
        (stack, int(n), stack.count(";")) for stack, _, n in lines
    ]
    assert rows_of(run("stacks", "--format", "csv", *demo), "csv") == [{k: str(v) for k, v in r.items()} for r in rows]
    period = rows_of(run("stacks", "--count", "period", "--limit", "1", "--format", "json", *demo))
    assert [r["period"] for r in period] == [4000 * rows[0]["samples"]]
    inline = run("stacks", "--inline", *demo).out
    assert "mix<" in inline
    assert "mix<" not in ran.out


def test_verbs_refuse_what_was_not_recorded(
    tmp_path: Path, demo: list[str], symfs: Callable[[str], Path], run: RunCli
) -> None:
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    b.mmap2(pid=7, addr=0x501000, length=0x1000, pgoff=0x1000, name="/opt/lbrdemo/lbrdemo", time=0)
    b.sample(ip=0x501122, pid=7, time=1)
    path = tmp_path / "x.data"
    path.write_bytes(b.build())
    rest = ["--symfs", symfs("demo_pie")]
    for words in (["stacks", path], ["callers", path, "fib"], ["callees", path, "fib"]):
        ran = run(*words, *rest)
        assert (ran.code, ran.out) == (4, ""), words
        assert "has neither call chains nor branch stacks" in ran.err
        assert "hint:" in ran.err
    empty = run("stacks", "--pid", "99", *demo)
    assert (empty.code, empty.out) == (0, "")
    assert "nothing passes the filters" in empty.err


# -- branches


def test_branches_with_names(demo: list[str], run: RunCli) -> None:
    named = rows_of(run("branches", "--format", "json", *demo))
    bare = rows_of(run("branches", "--no-symbols", "--format", "json", *demo))
    ends = ("from_function", "to_function")
    assert [{k: v for k, v in row.items() if k not in ends} for row in named] == [
        {k: v for k, v in row.items() if k not in ends} for row in bare
    ]
    assert all(row[end] is None for row in bare for end in ends)
    calls = [r for r in named if r["to_function"] == DISPATCH]
    assert [r["from_function"].partition("+")[0] for r in calls] == ["main"]
    inside = next(r for r in named if r["from"] == "lbrdemo+0x1149")
    assert inside["from_function"] == f"{DISPATCH}+0x29"
    assert "from function" not in run("branches", "--no-symbols", *demo).out
    assert f"{DISPATCH}+0x29" in run("branches", "--limit", "0", *demo).out


# -- code that has no function of its own


def test_a_function_that_was_inlined_says_where(tmp_path: Path, run: RunCli) -> None:
    """``local.cpp`` by ``g++ -O1 -gdwarf-4 -flto``: nothing but inlined calls is left of Fold<0>::go."""
    program = tmp_path / "program"
    program.write_bytes(lzma.decompress((Path(__file__).parents[1] / "data" / "local-lto4.xz").read_bytes()))
    kept = json.loads((Path(__file__).parents[1] / "data" / "symbols.json").read_text())["local-lto4"]
    at = next(at for at, frames in kept if frames[0][0] == "_ZN4FoldILi0EE2goEi" and frames[-1][0] == "start")
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.mmap2(pid=7, addr=0x401000, length=0x1000, pgoff=0x1000, name=str(program), time=0)
    b.sample(ip=at, pid=7, time=1, branches=[(at, 0x401000, 0)])
    path = tmp_path / "x.data"
    path.write_bytes(b.build())
    for verb in ("annotate", "callers", "callees"):
        ran = run(verb, str(path), "Fold<0>::go", "--symfs", "/")
        assert ran.code == 2
        said = " ".join(ran.err.split())
        assert "'Fold<0>::go' has no code of its own: it was inlined into start (see" in said


# -- code that was made at run time


def test_jit_code_has_names_in_branches_and_is_refused_by_annotate(
    tmp_path: Path, run: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code has the name in the perf map of its own process: two processes have different code at an address."""
    from lastbranch.symbols import jit

    monkeypatch.setattr(jit, "PERF_MAPS", str(tmp_path))
    for pid, name in ((7, "first"), (8, "second")):
        (tmp_path / f"perf-{pid}.map").write_text(f"501000 100 {name}\n")
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    for pid, at in ((7, 0x501010), (8, 0x501020)):
        b.mmap2(pid=pid, addr=0x501000, length=0x1000, pgoff=0, name="//anon", time=0)
        b.sample(ip=at, pid=pid, time=1, branches=[(at, 0x501000, 0)])
    path = tmp_path / "x.data"
    path.write_bytes(b.build())
    maps = ["--debug-dir", str(tmp_path)]  # the capture does not say that it is of this machine
    found = rows_of(run("branches", str(path), *maps, "--format", "json"))
    named = {(row["from_function"], row["to_function"]) for row in found}
    assert named == {("first+0x10", "first"), ("second+0x20", "second")}
    ran = run("annotate", str(path), "//anon+0x501000", *maps)
    assert ran.code == 5
    assert "generated at run time" in ran.err
    for verb in ("annotate", "callers", "callees"):
        ran = run(verb, str(path), "first", *maps)
        assert ran.code == 2
        assert "'first' is code that process 7 generated at run time (JIT)" in " ".join(ran.err.split())
        ran = run(verb, str(path), "third", *maps)
        assert ran.code == 2
        assert "no function is called 'third'" in ran.err


def test_missing_code_is_that_of_a_file_or_was_never_in_one(tmp_path: Path, run: RunCli) -> None:
    """--symfs helps with the first kind alone."""
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.mmap2(pid=7, addr=0x501000, length=0x1000, pgoff=0, name="//anon", time=0)
    b.mmap2(pid=7, addr=0x601000, length=0x1000, pgoff=0, name="/lib/gone.so", time=0)
    for at, times in ((0x501000, 3), (0x601000, 1)):
        for _ in range(times):
            b.sample(ip=at, pid=7, time=1, branches=[(at + 0x20, at, 0), (at + 0x20, at, 0)])
    path = tmp_path / "x.data"
    path.write_bytes(b.build())
    notes = run("report", str(path), "--by", "function").err
    assert "instructions: 3 of 4 ranges are in code generated at run time (JIT), which is in no file" in notes
    assert "instructions: 1 of 4 ranges are in binaries that are not available (see --symfs)" in notes


def test_names_that_are_most_like_it_are_offered(demo: list[str], run: RunCli) -> None:
    """The shortest name that contains the text is chosen, not the first of the alphabet."""
    done = run("annotate", "--limit", "1", *demo[:1], "m", *demo[1:])
    names = re.search(r"there are: ([^;]*)", " ".join(done.err.split()))[1].split(", ")
    assert names == sorted(names, key=len)
    assert "cmp" in names


def test_an_event_without_branches_is_refused_beside_one_that_has_them(tmp_path: Path, run: RunCli) -> None:
    elf = tmp_path / "prog"
    elf.write_bytes(tiny_elf(bytes.fromhex("e8fb0f0000 90 c3")))  # call; nop; ret
    common = pw.IP | pw.TID | pw.TIME | pw.IDENTIFIER
    b = pw.Builder(sample_type=common | pw.BRANCH_STACK)
    plain = b.attr(sample_type=common, type=1)
    b.mmap2(pid=7, addr=0x401000, length=0x1000, pgoff=0x1000, name=str(elf), time=0)
    b.sample(ip=0x401005, pid=7, time=1, branches=[(0x401006, 0x401000, 0)])
    b.sample(ip=0x401005, pid=7, time=2, event=plain)
    path = tmp_path / "x.data"
    path.write_bytes(b.build())
    given = [str(path), "--symfs", "/", "--event", "cpu-clock"]
    ran = run("annotate", *given, "prog+0x401000")
    assert ran.code == 4
    assert "event cpu-clock has no branch stacks" in ran.err
    assert "executed" not in ran.out
    ran = run("callers", *given, "prog+0x401000")
    assert ran.code == 4
    assert "cpu-clock" in ran.err


# -- distributions, and what else the viewer draws, as JSON


def test_json_has_the_distributions(demo: list[str], run: RunCli) -> None:
    found = json.loads(run("annotate", "--format", "json", demo[0], "sumloop", *demo[1:]).out)
    (loop,) = (row for row in found["loops"] if row["iterations"])
    assert loop["longest"] == 8  # 64 elements, 8 at a time
    assert loop["visits"] == loop["cut"] + sum(one["count"] for one in loop["trips_histogram"])
    assert loop["cut"] == sum(one["cut"] for one in loop["trips_histogram"])
    assert found["distributions_percent"] == 100
    assert found["no_cycles"] is None
    timed = [block for block in found["blocks"] if block["cycles"] is not None]
    for block in timed:
        assert all(one["from"] < one["below"] for one in block["cycles_histogram"])
        assert block["cycles_p50"] <= block["cycles_p90"]
        assert block["cycles_histogram"][0]["from"] <= block["cycles_p50"] < block["cycles_histogram"][-1]["below"]
    (hot,) = (block for block in timed if block["from"] == loop["from"])
    (only,) = hot["cycles_histogram"]
    assert (hot["cycles_p50"], only["from"], only["below"], only["cut"]) == (7, 7, 8, 0)
    assert hot["count"] * 0.9 < only["count"] <= hot["count"]
    table = run("annotate", demo[0], "sumloop", *demo[1:]).out.partition("Loops\n")[2]
    assert " ".join(table.splitlines()[0].split()).endswith("trips trips p50 trips p90 longest cycles")


def test_json_has_blocks_arcs_and_lines(demo: list[str], run: RunCli) -> None:
    words = ["--source", "--limit", "0", "--format", "json", demo[0], "dispatch", *demo[1:]]
    found = json.loads(run("annotate", *words).out)
    rows = found["instructions"]
    by_address = {row["address"]: row for row in rows}
    for block in found["blocks"]:
        first = by_address[block["from"]]
        assert (first["block"], first["count"], first["cycles"]) == (block["block"], block["count"], block["cycles"])
        assert by_address[block["to"]]["block"] == block["block"]
        assert abs(block["came"] - block["went"]) <= 0.1 * max(block["came"], 10)
    inside = Counter[tuple[str, str]]()
    name = found["function"]
    for edge in found["edges"]:
        if edge["from"].startswith(name) and edge["to"].startswith(name) and edge["kind"] in ("cond", "uncond", "ind"):
            ends = (int(edge[end].partition("+")[2] or "0", 16) + int(found["start"], 16) for end in ("from", "to"))
            inside[hex(next(ends)), hex(next(ends))] += edge["count"]
    assert {(arc["from"], arc["to"]): arc["count"] for arc in found["arcs"] if arc["count"]} == inside
    assert all(by_address[arc["from"]] and by_address[arc["to"]] for arc in found["arcs"])
    lines = {(row["file"], row["line"]) for row in rows if row["line"]}
    assert [(row["file"], row["line"]) for row in found["source_lines"]] == sorted(lines)
    for line in found["source_lines"]:
        own = [row for row in rows if (row["file"], row["line"]) == (line["file"], line["line"])]
        assert line["samples"] == sum(row["samples"] for row in own)
        assert line["count"] == max(row["count"] for row in own)
    assert json.loads(run("annotate", *words[1:]).out)["source_lines"] == []


def test_json_says_why_distributions_are_missing(data: Data, tmp_path: Path, run: RunCli) -> None:
    elf = tmp_path / "prog"
    elf.write_bytes(tiny_elf(bytes.fromhex("e8fb0f0000 90 c3")))
    for stacks, why in ((True, "no branch record of it has cycles"), (False, "the capture has no branch stacks")):
        b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK * stacks)
        b.mmap2(pid=7, addr=0x401000, length=0x1000, pgoff=0x1000, name=str(elf), time=0)
        given = {"branches": [(0x401006, 0x401000, 0)]} if stacks else {}
        b.sample(ip=0x401005, pid=7, time=1, **given)  # type: ignore[arg-type]
        path = tmp_path / f"{stacks}.data"
        path.write_bytes(b.build())
        found = json.loads(run("annotate", path, "prog+0x401000", "--symfs", "/", "--format", "json").out)
        assert why in found["no_cycles"]
        assert all(block["cycles_histogram"] == [] for block in found["blocks"])
        assert {block["came"] for block in found["blocks"]} <= ({0, 1} if stacks else {None})


# -- what a recording in bursts rests on


def test_annotations_have_the_bursts_and_the_noise_of_all_that_they_count(tmp_path: Path, run: RunCli) -> None:
    path = write(tmp_path, walks(150, 2))
    given = ["annotate", path, NAME, "--symfs", "/"]
    noise = annotate(*opened(path)).noise
    assert noise is not None
    found = json.loads(run(*given, "--format", "json").out)
    assert [row["bursts"] for row in found["blocks"]] == noise.blocks.tolist()
    assert [row["noise_percent"] for row in found["blocks"]] == [round(100 * one, 2) for one in noise.count.tolist()]
    listed = rows_of(run(*given, "--format", "csv"), "csv")
    branch = next(row for row in listed if row["instruction"].startswith("je"))
    assert float(branch["taken_noise"]) == round(100 * float(noise.taken[int(branch["block"])]), 2)
    assert int(branch["bursts"]) == noise.blocks[int(branch["block"])] < int(branch["count"])
    assert not any(row["taken_noise"] for row in listed if not row["taken_percent"])
    edges = {(row["from"], row["to"]): row for row in found["edges"]}
    assert sorted(row["bursts"] for row in edges.values() if row["kind"] != "fall through") == sorted(noise.edges)
    assert all(row["noise"] > 0 for row in [*edges.values(), *found["indirect_targets"]])
    assert "0.447 s more of recording would halve them" in " ".join(run(*given).err.split())
    estimated = run(*given, "--format", "csv", "--estimate", "executions")
    replaced = "estimated from" in estimated.err
    assert replaced != any(row["noise_percent"] for row in rows_of(estimated, "csv"))
    assert [row["bursts"] for row in rows_of(estimated, "csv")] == [row["bursts"] for row in listed]


def test_what_few_bursts_saw_is_faint_however_often_it_was_counted(tmp_path: Path) -> None:
    """In a recording by hardware it is not: each branch stack is an observation."""
    bursts = [[[(2, 8), (9, 0)] * 150], *[[[(6, 0)] * 3]] * 120]
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | {"TERM": "xterm"}
    for event in ("software-lbr", "cycles"):
        path = write(tmp_path, bursts, event)
        shown = run_in_terminal("annotate", path, NAME, "--symfs", "/", width=200, env=clean)
        assert shown.code == 0, shown.err
        (back,) = (line for line in shown.out.splitlines() if "0x401009" in line and "prog+0x401000" in line)
        (other,) = (line for line in shown.out.splitlines() if "  cond  " in line)
        (block,) = (line for line in shown.out.splitlines() if " nop" in line and "0x401008" in line)
        in_bursts = event == "software-lbr"
        assert [FAINT in line for line in (back, other, block)] == [in_bursts] * 3
        (branch,) = (line for line in shown.out.splitlines() if " je 0x401008" in line)
        assert FAINT not in branch


FAINT = "\x1b[2m"
