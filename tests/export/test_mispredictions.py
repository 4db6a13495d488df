"""The profile of mispredictions: what llvm-profgen makes of the same addresses, and counts that `branches` has, too."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

import perfdata_writer as pw
from export_tools import ran, tool
from lastbranch.analysis import Estimate
from lastbranch.analysis.executions.estimate import Factors, Places
from lastbranch.errors import UnavailableError
from lastbranch.export import mispredictions
from lastbranch.export.interface import ExportOptions
from lastbranch.opening import open_profile
from perfdata_writer import Builder

SOURCE = """\
static int odd, even;
__attribute__((always_inline)) static inline int half(int x) {
  if (x & 64)
    even += 2;
  return x / 2;
}
__attribute__((noinline)) int split(int x) {
  if (x & 1) odd += x;
  else even ^= x;
  for (int i = 0; i < x; i++)
    odd += half(i);
  return odd;
}
int main(int n, char **words) {
  return split(n) + even;
}
"""
RIGHT, WRONG = 2, 1
"""Bits of the flags of a branch entry."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mispredicted")
    (folder / "p.c").write_text(SOURCE)
    ran(
        tool("clang-19"),
        "-O1",
        "-g",
        "-fdebug-info-for-profiling",
        "-fno-pie",
        "-no-pie",
        "-Wl,--build-id",
        "-o",
        folder / "program",
        folder / "p.c",
    )
    return folder / "program"


def branches_of(program: Path) -> list[tuple[int, int]]:
    """(address, target) of the conditional branches of ``split``."""
    listing = ran(tool("llvm-objdump-19"), "-d", "--no-show-raw-insn", "--disassemble-symbols=split", program)
    return [
        (int(a, 16), int(b, 16)) for a, b in re.findall(r"^ *([0-9a-f]+): +\s+j[^m]\w*\s+0x([0-9a-f]+)", listing, re.M)
    ]


def capture(program: Path, *, flags: tuple[int, ...] = (RIGHT, WRONG), names: int = 0) -> Builder:
    """The n-th conditional branch of ``split`` is an entry with each of the flags, n + 1 times the last of them."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK | (pw.IDENTIFIER if names else 0))
    b.comm(pid=7, name="program", time=1, exec=True)
    found = re.search(r"Build ID: ([0-9a-f]+)", ran(tool("readelf"), "-n", program))
    assert found
    b.build_id(str(program), bytes.fromhex(found[1]))
    headers = ran(tool("readelf"), "-lW", program)
    (load,) = [w for w in map(str.split, headers.splitlines()) if w[:1] == ["LOAD"] and "E" in w[6:8]]
    offset, address, size = (int(load[i], 16) & ~0xFFF for i in (1, 2, 4))
    b.mmap2(pid=7, addr=address, length=size + 0x2000, pgoff=offset, name=str(program), time=1)
    time = 10
    for n, (at, to) in enumerate(branches_of(program)):
        for flag in (*flags[:-1], *flags[-1:] * (n + 1)):
            b.sample(ip=at, pid=7, time=time, branches=[(at, to, flag), (at, to, RIGHT if len(flags) > 1 else 0)])
            time += 1
    return b


def export(run, program: Path, path: Path, *more: str | Path) -> str:
    done = run("export", "--to", "mispredictions", "--no-symbol-cache", "--binary", program, *more, path)
    assert done.code == 0, done.err
    return done.out


def test_it_is_what_llvm_profgen_makes_of_the_mispredictions_that_branches_lists(
    run, program: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.data"
    path.write_bytes(capture(program).build())
    listed = run("branches", "--by", "site", "--format", "csv", "--limit", "0", path)
    sites = {
        int(row["from_address"], 16): int(row["mispredictions"]) for row in csv.DictReader(io.StringIO(listed.out))
    }
    assert sorted(sites.values()) == list(range(1, len(branches_of(program)) + 1))
    headers = ran(tool("readelf"), "-lW", program)
    (load,) = [w for w in map(str.split, headers.splitlines()) if w[:1] == ["LOAD"] and "E" in w[6:8]]
    first = int(load[2], 16) & ~0xFFF
    lines = [f"{at - first:x}-{at - first:x}:{n}\n" for at, n in sorted(sites.items())]
    (tmp_path / "unsym").write_text(f"{len(lines)}\n{''.join(lines)}0\n")
    ran(
        tool("llvm-profgen-19"),
        f"--binary={program}",
        f"--unsymbolized-profile={tmp_path / 'unsym'}",
        "--format=text",
        f"--output={tmp_path / 'theirs'}",
    )
    ours = export(run, program, path)
    assert ours == (tmp_path / "theirs").read_text()
    # By hand: the first branch is that of line 8, one behind the function's, the second that of the loop.
    assert ours.startswith("split:")
    assert re.search(r"^ 1: 1$", ours, re.M)
    assert re.search(r"^ 4(\.\d+)?: half:", ours, re.M)
    tool("llvm-profdata-19")
    (tmp_path / "ours").write_text(ours)
    shown = ran("llvm-profdata-19", "show", "--sample", tmp_path / "ours")
    assert "Function: split" in shown


def test_samples_of_an_event_that_counts_mispredictions_are_counted_by_their_addresses(
    run, program: Path, tmp_path: Path
) -> None:
    """And not the entries of their stacks, most of which are of mispredicted branches then."""
    path = tmp_path / "x.data"
    b = capture(program, names=1)
    event = b.attr(
        sample_type=pw.IDENTIFIER | pw.IP | pw.TID | pw.TIME, type=0, config=5
    )  # PERF_COUNT_HW_BRANCH_MISSES
    at = branches_of(program)[0][0]
    for i in range(9):
        b.sample(event=event, ip=at, pid=7, time=1000 + i)
    path.write_bytes(b.build())
    info = run("info", path).out
    assert "branch-misses" in info
    text = export(run, program, path)
    assert re.search(r"^ 1: 9$", text, re.M)
    assert len(re.findall(r": [1-9]\d*$", text, re.M)) == 1
    entries = run("export", "--to", "mispredictions", "--event", "0", "--binary", program, path)
    assert re.search(r"^ 1: 1$", entries.out, re.M)
    none = np.zeros(0)
    estimate = Estimate("executions", of_branches=Factors(Places(np.ones(1, bool), 0), none, none, none))
    assert mispredictions.FORMAT.count
    with pytest.raises(UnavailableError, match="samples of branch-misses are mispredictions"):
        mispredictions.FORMAT.count(open_profile(path), ExportOptions(estimate=estimate), [0])


def test_a_capture_without_outcomes_is_refused(run, program: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    path.write_bytes(capture(program, flags=(0,)).build())
    for verb in (("export", "--to", "mispredictions", "--binary", program), ("report", "--mispredictions")):
        done = run(*verb, path)
        assert done.code == 4, done.err
        assert "no branch record says whether its branch was mispredicted" in done.err


def test_annotate_lists_the_branches_of_a_function_by_what_they_cost(run, program: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    path.write_bytes(capture(program).build())
    done = run("annotate", path, "split", "--mispredictions", "--format", "json", "--no-symbol-cache")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    counts = {f"{at:#x}": n + 1 for n, (at, _) in enumerate(branches_of(program))}
    shown = {row["address"]: row["mispredictions"] for row in found["instructions"] if row["mispredictions"]}
    assert shown == counts
    assert [row["mispredictions"] for row in found["costly"]] == sorted(counts.values(), reverse=True)
    assert all(row["kind"] == "cond" and row["cycles_lost"] is None for row in found["costly"])
    text = run("annotate", path, "split", "--mispredictions", "--no-symbol-cache")
    assert "\nCostliest mispredictions\n" in text.out
    assert "cycles lost are not known" in text.err
    without = run("annotate", path, "split", "--no-symbol-cache")
    assert "Costliest" not in without.out
    assert "mispredictions" not in without.out
