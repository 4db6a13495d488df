"""Folded stacks: what `stacks` prints, as flamegraph.pl reads it."""

from __future__ import annotations

import csv
import re

import pytest

from captures import Data
from stack_truth import STACKED, symfs_of, two_threads

LINE = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")
"""How flamegraph.pl takes a line apart (github.com/brendangregg/FlameGraph)."""


@pytest.mark.parametrize("name", STACKED)
def test_it_is_what_stacks_prints(run, data: Data, symfs, tmp_path, name: str) -> None:
    words = ["--no-symbol-cache", *symfs_of(name, symfs)]
    printed = run("stacks", *words, data.path(name))
    done = run("export", "--to", "folded", *words, "-o", tmp_path / "x", data.path(name))
    assert done.code == printed.code == 0, done.err
    assert (tmp_path / "x").read_text() == printed.out != ""
    assert done.err == printed.err
    found = [LINE.match(line) for line in printed.out.splitlines()]
    assert all(found)
    total = sum(int(m[2]) for m in found if m)
    weights = run("report", "--by", "process", "--format", "csv", data.path(name))
    assert total == sum(int(row["samples"]) for row in csv.DictReader(weights.out.splitlines()))


def test_names_cannot_make_frames_or_lines(run, tmp_path) -> None:
    done = run("export", "--to", "folded", "--no-symbol-cache", two_threads(tmp_path / "x.data"))
    lines = [line.rpartition(" ")[0].split(";") for line in done.out.splitlines()]
    assert {names[0] for names in lines} == {'m"\\x1b:ain'}
    assert sorted(len(names) for names in lines) == [2, 3, 4]


def test_what_has_no_call_stacks_is_told_why(run, data: Data) -> None:
    done = run("export", "--to", "folded", data.path("wsm_x5660_16deep"))
    assert done.code == 4
    assert "no call stacks" in done.err
    assert "hint: " in done.err
