"""Clusters and symbol order for Propeller: counts of blocks against a slow oracle, and what clang makes of them."""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from captures import Data
from export_tools import made_up_stacks, ran, tool
from lastbranch.analysis.function.block_layout import block_counts
from lastbranch.binaries import read_image
from lastbranch.binaries.block_map import read_block_map
from lastbranch.binaries.image import Code
from lastbranch.opening import FileSource

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
static unsigned total;
__attribute__((noinline)) static void seldom(unsigned i) { total ^= i; if (i & 64) total += 3; }
__attribute__((noinline)) unsigned mix(unsigned i, unsigned n) {
  if (__builtin_expect(i % 8 != 0, 0)) { total += i; total ^= i >> 3; if (i == n) printf("last\n"); }
  else { total = total * 33 + i; seldom(i); }
  switch (i % 5) { case 0: total++; break; case 1: total += 7; break; case 2: total ^= 9; break;
                   case 3: total *= 3; break;
                   default: total += i; }
  return total;
}
int unused(int x) { return x ? x * 3 : (int)total; }
int main(int argc, char **argv) {
  unsigned n = argc > 1 ? (unsigned)atoi(argv[1]) : 50;
  for (unsigned i = 0; i < n; i++) mix(i, n - 1);
  printf("%u\n", total);
}
"""
OTHER = "static int seldom(int x) { return x * 5; } int (*there)(int) = seldom;"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with a map; beside it ``stacks.txt``, a made-up capture that runs through all but ``unused``."""
    folder = tmp_path_factory.mktemp("propeller")
    (folder / "main.c").write_text(SOURCE)
    (folder / "other.c").write_text(OTHER)
    tool("lld-19")
    build(folder, "app", "-fbasic-block-address-map")
    (folder / "stacks.txt").write_text(made_up_stacks(folder / "app", without=("unused", "_init", "_fini")))
    return folder / "app"


def build(folder: Path, out: str, *flags: str) -> None:
    ran(
        tool("clang-19"),
        "-O2",
        "-fuse-ld=lld-19",
        *flags,
        "-o",
        folder / out,
        folder / "main.c",
        folder / "other.c",
    )


def listed(text: str) -> dict[str, list[int]]:
    return {name: [int(i) for i in ids.split()] for name, ids in re.findall(r"^f (\S+).*\nc (.*)$", text, re.M)}


def test_clang_and_lld_take_both_files(run, program: Path) -> None:
    folder = program.parent
    made = folder / "cc_prof.txt", folder / "ld_prof.txt"
    done = run(
        "export",
        folder / "stacks.txt",
        "--to",
        "propeller",
        "--binary",
        program,
        "-o",
        made[0],
        "--symbol-order",
        made[1],
    )
    assert done.code == 0, done.err
    text, order = made[0].read_text(), made[1].read_text().split()
    clusters = listed(text)
    assert text == "v1\n" + "".join(f"f {name}\nc {' '.join(map(str, ids))}\n" for name, ids in clusters.items())
    assert {"main", "mix"} <= set(clusters)
    assert "unused" not in clusters
    assert all(ids[0] == 0 and len(set(ids)) == len(ids) for ids in clusters.values())
    assert order[: len(clusters)] == list(clusters)
    assert all(name.endswith(".cold") for name in order[len(clusters) :])
    # Two functions have this name.
    assert "seldom" not in clusters
    assert "others have the same name (seldom); build with -funique-internal-linkage-names" in done.err

    oldest = run("export", folder / "stacks.txt", "--to", "propeller", "--binary", program, "--list-version", "0")
    assert oldest.code == 0, oldest.err
    assert oldest.out == "".join(f"!{name}\n!!{' '.join(map(str, ids))}\n" for name, ids in clusters.items())
    (folder / "v0.txt").write_text(oldest.out)

    plain = ran(program, "1000")
    for form, flags in (("cc_prof", (f"-Wl,--symbol-ordering-file={made[1]}", "-Wl,--fatal-warnings")), ("v0", ())):
        build(folder, form, f"-fbasic-block-sections=list={folder / form}.txt", "-fbasic-block-address-map", *flags)
        assert ran(folder / form, "1000") == plain
        assert laid_out(folder / form, clusters) == clusters
    addresses = subprocess.run([tool("nm"), folder / "cc_prof"], capture_output=True, text=True, check=True).stdout
    at = {
        name: int(address, 16)
        for address, _, name in map(str.split, re.findall(r"^[0-9a-f]+ [tT] .*$", addresses, re.M))
    }
    in_file = [name for name in order if not name.endswith(".cold") and name in ("main", "mix")]
    assert sorted(in_file, key=at.__getitem__) == in_file


def test_a_store_has_the_same_layout(run, program: Path, tmp_path: Path) -> None:
    stacks = program.parent / "stacks.txt"
    assert run("fleet", "add", tmp_path / "store", stacks).code == 0
    made = []
    for words in (("export", stacks), ("fleet", "export", tmp_path / "store")):
        done = run(*words, "--to", "propeller", "--binary", program, "--symbol-order", tmp_path / "order", "--force")
        assert done.code == 0, done.err
        made.append((done.out, (tmp_path / "order").read_text()))
    assert made[0] == made[1]
    assert "mix" in made[0][1].split()


def laid_out(path: Path, names: dict[str, list[int]]) -> dict[str, list[int]]:
    """The ids of the blocks in the first range of each of the functions, as the rebuilt program has them."""
    said = ran(tool("llvm-readobj-19"), "--bb-addr-map", path)
    found = {}
    for function in said.split("Function {")[1:]:
        name = re.search(r"Name: (\S+)", function)[1]
        first = function.split("Base Address: ")[1]
        if name in names:
            found[name] = [int(i) for i in re.findall(r"ID: (\d+)", first)]
    return found


def test_counts_of_blocks_are_those_of_instructions_one_by_one(run, program: Path) -> None:
    """The oracle goes through each range by LLVM's listing, and knows branches by their mnemonics."""
    done = run("export", program.parent / "stacks.txt", "--to", "counts", "--binary", program)
    rows = [line.split() for line in done.out.splitlines()]
    ranges = [(int(a, 16), int(b, 16), int(n)) for kind, _, a, b, n in (r for r in rows if r[0] == "R")]
    branches = [
        (int(a, 16), int(b, 16), int(n)) for _, m, a, o, b, n, _ in (r for r in rows if r[0] == "B") if m == o != "-"
    ]
    blocks = read_block_map(FileSource(str(program)))
    assert blocks is not None
    listing = ran(tool("llvm-objdump-19"), "-d", "--no-show-raw-insn", program)
    code = {int(m[1], 16): m[2] for m in re.finditer(r"^ *([0-9a-f]+): +\t(\S+)", listing, re.M)}
    # Each kind of jump, call and return that the code has, to the begin of each block of its function, and elsewhere.
    inside = [a for a in code if blocks.at(np.array([a], np.uint64))[0] >= 0]
    branches += [
        (a, int(to), 3) for a in inside if re.match(r"(j|call|ret)", code[a]) for to in blocks.start[::3].tolist()
    ]
    source = FileSource(str(program))
    branches = [branch for branch in branches if branch[0] in code]  # in the middle of one anything can be decoded
    columns = [
        [np.array(c, t) for c, t in zip(zip(*x, strict=True), ("u8", "u8", "i8"), strict=True)]
        for x in (ranges, branches)
    ]
    edges, calls = oracle(blocks, code, ranges, branches)
    found = block_counts(blocks, Code(source, read_image(source)), *columns)
    got = zip(found.source.tolist(), found.target.tolist(), found.edge.tolist(), strict=True)
    assert {(a, b): n for a, b, n in got} == edges
    assert len(edges) > 40
    got = zip(found.caller.tolist(), found.callee.tolist(), found.calls.tolist(), strict=True)
    assert {(a, b): n for a, b, n in got} == calls
    assert len(calls) > 5


def oracle(blocks, code, ranges, branches):
    """Edges between rows of the map, and calls between functions."""
    instructions = sorted(code)
    row = {}
    for i, (start, end) in enumerate(zip(blocks.start.tolist(), blocks.end.tolist(), strict=True)):
        row |= dict.fromkeys(range(start, end), i)
    runs_on = [bool(f & 8) for f in blocks.flags.tolist()]
    edges, calls = Counter(), Counter()
    for a, b, n in ranges:
        if a not in row or b not in row:
            continue
        path = [
            row[i]
            for i in (a, *instructions[bisect_left(instructions, a) : bisect_left(instructions, b)], b)
            if i in row
        ]
        steps = [(i, j) for i, j in pairwise(path) if i != j]
        if all(runs_on[i] and j == i + 1 and blocks.range[i] == blocks.range[j] for i, j in steps):
            for step in steps:
                edges[step] += n
    for a, b, n in branches:
        if b not in row or blocks.start[row[b]] != b:
            continue
        to, same = row[b], a in row and blocks.function[row[a]] == blocks.function[row[b]]
        entry = blocks.entry[blocks.function[to]] == b
        if code.get(a, "").startswith("ret") and a in row:
            if not entry and to and runs_on[to - 1] and blocks.range[to] == blocks.range[to - 1]:
                edges[to - 1, to] += n
        elif code.get(a, "").startswith("j") and same:
            edges[row[a], to] += n
        elif a in row and re.match(r"(j|call)", code[a]) and entry and not same:
            calls[int(blocks.function[row[a]]), int(blocks.function[to])] += n
    return edges, calls


def test_a_folder_has_both_files_of_each_module(run, program: Path, tmp_path: Path) -> None:
    (tmp_path / "symfs/x").mkdir(parents=True)
    (tmp_path / "symfs/x/app").write_bytes(program.read_bytes())
    for force in ([], ["--force"]):
        done = run(
            "export",
            program.parent / "stacks.txt",
            "--to",
            "propeller",
            "--symfs",
            tmp_path / "symfs",
            *force,
            "-o",
            tmp_path / "out",
        )
        assert done.code == 0, done.err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["app.cc_prof.txt", "app.ld_prof.txt", "index.tsv"]


def test_modules_without_a_map_are_left_out_of_a_folder(run, data: Data, symfs, program: Path, tmp_path: Path) -> None:
    folder = symfs("demo_pie")
    both = ["export", data.path("demo_pie"), program.parent / "stacks.txt", "--event", "*", "--to", "propeller"]
    done = run(*both, "--symfs", folder, "-o", tmp_path / "out")
    assert done.code != 0
    assert "lbrdemo has no map of its blocks" in done.err
    assert not (tmp_path / "out").exists()
    (folder / "x").mkdir()
    (folder / "x/app").write_bytes(program.read_bytes())
    done = run(*both, "--symfs", folder, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert "lbrdemo is left out: /opt/lbrdemo/lbrdemo has no map of its blocks" in done.err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["app.cc_prof.txt", "app.ld_prof.txt", "index.tsv"]


def test_what_cannot_be_laid_out_is_said(run, program: Path, tmp_path: Path) -> None:
    folder = program.parent
    stripped, bare = tmp_path / "1" / "app", tmp_path / "2" / "app"
    for path, options in (
        (stripped, ["--strip-all", "--keep-section=.llvm_bb_addr_map"]),
        (bare, ["--remove-section=.llvm_bb_addr_map"]),
    ):
        path.parent.mkdir()
        ran(tool("llvm-objcopy-19"), *options, program, path)
    says = {
        stripped: "no executed function of its block map has a name",
        bare: "has no map of its blocks, .llvm_bb_addr_map",
    }
    for path, what in says.items():
        done = run("export", folder / "stacks.txt", "--to", "propeller", "--binary", path)
        assert done.code != 0
        assert what in done.err
        assert "Traceback" not in done.err
    done = run("export", folder / "stacks.txt", "--to", "bolt", "--binary", program, "--symbol-order", tmp_path / "x")
    assert done.code == 2
    assert "--symbol-order goes with --to propeller and --binary." in done.err
