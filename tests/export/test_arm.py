"""Profiles of arm64 captures: Arm SPE's single branches and BRBE's stacks, against the exact counts of a walk."""

from __future__ import annotations

import csv
import itertools
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import spe_writer as spe
from arm_walks import (
    CODE,
    PID,
    SOURCE,
    Branch,
    Program,
    brbe_capture,
    counted_lines,
    operation,
    profile_lines,
    program,
    spe_capture,
    times_of,
    walk,
)
from spe_writer import Area


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return program(tmp_path_factory.mktemp("arm"), SOURCE, "-fno-inline")


def exported(run, capture: Path, made: Program, out: Path) -> dict[str, dict[int, int]]:
    done = run("export", capture, "--to", "sampleprof", "--no-symbol-cache", "--binary", made.path, "-o", out)
    assert done.code == 0, done.err
    return profile_lines(out.read_text())


def test_previous_targets_of_spe_give_exact_counts(run, made: Program, tmp_path: Path) -> None:
    """From the first to the last taken branch: what each says is a straight line that ran, and nothing else did."""
    path, branches = walk(made, 6000, 1)
    capture = spe_capture(made, branches, tmp_path / "spe.data", previous_targets=True)
    taken = [one.at for one in branches if one.taken]
    times = times_of([path[taken[0] + 1 : taken[-1] + 1]])
    assert exported(run, capture, made, tmp_path / "x.prof") == counted_lines(made, times, branches)


def test_single_branches_of_spe_give_exact_counts_by_the_code(run, made: Program, tmp_path: Path) -> None:
    """Without previous targets each branch runs on to the next one, whether it was taken or not."""
    path, branches = walk(made, 6000, 2)
    capture = spe_capture(made, branches[:-1], tmp_path / "spe.data", previous_targets=False)
    times = times_of([path[branches[0].at + 1 : branches[-1].at + 1]])
    assert exported(run, capture, made, tmp_path / "x.prof") == counted_lines(made, times, branches)


def test_a_sampled_part_has_its_share(run, made: Program, tmp_path: Path) -> None:
    """Of every fifth branch: the lines that these ended, once each."""
    path, branches = walk(made, 20_000, 3)
    parts, pieces, began = [], list[list[int]](), None
    for i, one in enumerate(branches):
        if i % 5 == 0:
            parts.append(operation(made, one, None if began is None else path[began]).bytes())
            if one.taken and began is not None:
                pieces.append(path[began : one.at + 1])
        began = one.at + 1 if one.taken else began
    maps = [(PID, CODE, 0x10000, f"/bin/{made.path.name}")]
    capture = spe.write(tmp_path / "spe.data", Area(b"".join(parts)), maps=maps, period=5)
    assert exported(run, capture, made, tmp_path / "x.prof") == counted_lines(made, times_of(pieces), branches[::5])


def test_branch_stacks_of_arm64_give_exact_counts(run, made: Program, tmp_path: Path) -> None:
    """BRBE's records are branch stacks as any: a sample each 40 branches, 32 deep."""
    path, branches = walk(made, 6000, 4)
    stacks = brbe_capture(made, branches, tmp_path / "brbe.data")
    seen = [one for stack in stacks for one in stack]
    pieces = [path[a.at + 1 : b.at + 1] for stack in stacks for a, b in itertools.pairwise(stack)]
    found = exported(run, tmp_path / "brbe.data", made, tmp_path / "x.prof")
    assert found == counted_lines(made, times_of(pieces), seen)


def most_mispredicted(made: Program, branches: list[Branch]) -> dict[str, dict[int, int]]:
    """Function -> line -> mispredictions of the branch on it that has most, taken or not."""
    out = defaultdict[str, dict[int, int]](dict)
    for pc, number in Counter(one.pc for one in branches if one.mispredicted).items():
        for name, line in made.frames[pc]:
            out[name][line] = max(out[name].get(line, 0), number)
    return out


def test_branches_that_were_not_taken_are_counted(run, made: Program, tmp_path: Path) -> None:
    """By instruction, in `branches --by site` and in `annotate`; those never taken have a row, too."""
    _, branches = walk(made, 6000, 5)
    never = next(one.pc for one in branches if one.kind == "cond")
    branches = [one for one in branches if one.pc != never or not one.taken]
    capture = spe_capture(made, branches, tmp_path / "spe.data", previous_targets=False)
    words = ("--no-symbol-cache", "--symfs", made.path.parent, "--format", "csv", "--limit", "0")
    (made.path.parent / "bin").mkdir(exist_ok=True)
    (made.path.parent / "bin" / made.path.name).write_bytes(made.path.read_bytes())
    done = run("branches", capture, "--by", "site", *words)
    rows = {int(row["from_address"], 16): row for row in csv.DictReader(done.out.splitlines())}
    for pc in {one.pc for one in branches}:
        mine, row = [one for one in branches if one.pc == pc], rows[pc]
        wrong = sum(one.mispredicted for one in mine)
        assert int(row["count"]) == sum(one.taken for one in mine)
        assert int(row["not_taken"]) == sum(not one.taken for one in mine)
        assert int(row["mispredictions"]) == wrong
        assert float(row["mispredicted_percent"]) == pytest.approx(100 * wrong / len(mine), abs=0.01)
    assert rows[never]["targets"] == "0"
    assert "entries are of branches that were not taken" in run("branches", capture, *words).err
    done = run("export", capture, "--to", "mispredictions", "--no-symbol-cache", "--binary", made.path)
    found = {name: {line: n for line, n in lines.items() if n} for name, lines in profile_lines(done.out).items()}
    assert found == most_mispredicted(made, branches)
    of_line = Counter[int](one.pc for one in branches if not one.taken)
    done = run("annotate", capture, "mix", *words)
    assert done.code == 0, done.err
    shown = {int(row["address"], 16): row for row in csv.DictReader(done.out.splitlines()) if row["address"]}
    for pc, number in of_line.items():
        if made.code[pc].function == "mix":
            mine = [one for one in branches if one.pc == pc]
            assert float(shown[pc]["taken_percent"]) == pytest.approx(100 * (1 - number / len(mine)), abs=0.01)
            wrong = sum(one.mispredicted for one in mine)
            assert float(shown[pc]["mispredicted_percent"]) == pytest.approx(100 * wrong / len(mine), abs=0.01)
