"""Merged profiles against LLVM's tools that merge: equal where these are right, and the cases where they are not."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from captures import Data
from command_line import Ran
from export_tools import binary_of, exported, ran, tool

Run = Callable[..., Ran]
NAMES = ("demo_pie", "demo_2proc", "demo_hwidx")


def merged(run: Run, data: Data, form: str, folder: Path) -> tuple[Path, list[Path]]:
    """(the export of a store of three captures, those of each)."""
    store, out = folder / "store", folder / f"all.{form}"
    assert run("fleet", "add", store, *map(data.path, NAMES)).code == 0
    done = run("fleet", "export", store, "--to", form, "--binary", binary_of(data, NAMES[0], "lbrdemo"), "-o", out)
    assert done.code == 0, done.err
    return out, [exported(run, data, name, "lbrdemo", form, folder / f"{name}.{form}") for name in NAMES]


def by_line(text: str) -> tuple[Counter[str], Counter[str]]:
    """(counts of lines, and of all else: totals, heads, calls) of a text profile, by where they are."""
    lines, others, path = Counter[str](), Counter[str](), list[str]()
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            name, total, head = line.rsplit(":", 2)
            path = [name]
            others.update({f"{name} total": int(total), f"{name} head": int(head)})
            continue
        where, said = line.strip().split(": ", 1)
        path = path[:depth]
        at = " @ ".join([*path, where])
        if said.split()[0].isdigit():
            count, *calls = said.split()
            lines[at] += int(count)
            for call in calls:
                callee, n = call.rsplit(":", 1)
                others[f"{at} calls {callee}"] += int(n)
        else:
            name, total = said.rsplit(":", 1)
            path.append(f"{where} {name}")
            others[f"{at} {name} total"] += int(total)
    return lines, others


def test_sample_profiles_are_those_that_llvm_merges(run: Run, data: Data, tmp_path: Path) -> None:
    """But for lines of several instructions: each capture may have another one that ran most often, and the sum of
    these is more than any of them ran."""
    whole, parts = merged(run, data, "sampleprof", tmp_path)
    theirs = tmp_path / "merged"
    ran(tool("llvm-profdata-19"), "merge", "-sample", "-text", *parts, "-o", theirs)
    (lines, others), (their_lines, their_others) = by_line(whole.read_text()), by_line(theirs.read_text())
    assert others == their_others
    assert lines.keys() == their_lines.keys()
    more = {at for at, n in their_lines.items() if n > lines[at]}
    assert 0 < len(more) < len(lines) / 10
    assert all(their_lines[at] == n for at, n in lines.items() if at not in more)


def lines_of(path: Path) -> tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]:
    """(times taken, mispredictions) of the branches of BOLT's profile."""
    taken, mispredicted = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for line in path.read_text().splitlines():
        *ends, missed, n = line.split()
        taken[tuple(ends)] += int(n)
        mispredicted[tuple(ends)] += int(missed)
    return taken, mispredicted


def perf2bolt(preaggregated: Path, binary: Path) -> Path:
    program, out = Path("/usr/lib/llvm-19/bin/perf2bolt"), preaggregated.with_suffix(".fdata")
    if not program.exists():
        pytest.skip("perf2bolt is not installed")
    ran(program, "-pa", "-p", preaggregated, "-o", out, binary)
    return out


def test_branches_of_bolt_are_those_that_merge_fdata_merges(run: Run, data: Data, tmp_path: Path) -> None:
    """But for mispredictions: merge-fdata takes them for a part of the name, so those of equal lines count once."""
    binary = Path(shutil.copy(binary_of(data, NAMES[0], "lbrdemo"), tmp_path / "lbrdemo"))
    whole, parts = merged(run, data, "bolt", tmp_path)
    theirs = tmp_path / "merged"
    theirs.write_text(_merge_fdata([perf2bolt(part, binary) for part in parts]))
    (taken, mispredicted), (their_taken, their_mispredicted) = (
        lines_of(one) for one in (perf2bolt(whole, binary), theirs)
    )
    assert taken == their_taken
    assert taken.total() > 1000
    assert mispredicted > their_mispredicted


def test_merge_fdata_loses_branches_of_counts_by_address(run: Run, data: Data, tmp_path: Path) -> None:
    """The same file twice is every count twice; merge-fdata adds up the last number of a line, which is that of the
    mispredictions."""
    one = exported(run, data, NAMES[0], "lbrdemo", "bolt", tmp_path / "one")
    again = Path(shutil.copy(one, tmp_path / "again"))
    capture = data.path(NAMES[0])
    words = ("--to", "bolt", "--binary", binary_of(data, NAMES[0], "lbrdemo"), "--weight", f"{capture.name}=2")
    twice = run("export", capture, *words)
    assert twice.code == 0, twice.err
    once, ours, theirs = (
        Counter({tuple(w[:3]): int(w[3]) for w in map(str.split, text.splitlines()) if w[0] == "B"})
        for text in (one.read_text(), twice.out, _merge_fdata([one, again]))
    )
    assert ours == Counter({key: 2 * n for key, n in once.items()})
    assert theirs == once


def _merge_fdata(paths: list[Path]) -> str:
    """What it prints; its notes are on standard error."""
    done = subprocess.run([tool("merge-fdata-19"), *paths], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout
