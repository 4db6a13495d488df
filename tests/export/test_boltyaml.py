"""BOLT's profile in YAML: what perf2bolt 19 writes for the same counts, but for its hashes; llvm-bolt 19 takes it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from random import Random

import pytest

from captures import Data
from export_tools import binary_of, exported, made_up_stacks, ran, tool
from lastbranch.binaries.elf import read_elf
from lastbranch.model import BytesSource

LLVM = Path("/usr/lib/llvm-19/bin")
PROGRAM = r"""
extern "C" int printf(const char *, ...);
struct Guard { int &x; Guard(int &x) : x(x) {} ~Guard() { x += 3; } };
__attribute__((noinline)) int risky(int i) { if (i % 1000 == 999) throw i; return i * 3; }
__attribute__((noinline)) int guarded(int i) { int t = i; { Guard g(t); t += risky(i); t ^= risky(i + 1); } return t; }
__attribute__((noinline)) static int cases(int x) {
  switch (x & 7) { case 0: return risky(1); case 1: return 7 * x; case 2: return x ^ 5; case 3: return risky(x & 7) + 2;
                   case 4: x += risky(9); default: return x > 70 ? x * x : -x; }
}
__attribute__((noinline)) int traps(int x) { if (x == 5) __builtin_trap(); return x < 3 ? cases(x) : guarded(x); }
int main(int argc, char **) {
  unsigned t = 0;
  for (int i = 0; i < 1000 * argc; i++) {
    try { t += guarded(i); t ^= cases(i); t += traps(6); } catch (int e) { t += e; }
  }
  printf("%u\n", t);
}
"""
Function = dict[object, object]


def read(text: str) -> dict[str, Function]:
    """By function: executions, number of blocks; (source, target) and (block, offset, callee): counts above zero."""
    found: dict[str, Function] = {}
    names = {0: "elsewhere"}
    for entry in text.split("  - name: ")[1:]:
        name = re.sub(r"\(\*\d+\)$", "", entry.split("\n")[0].strip().strip("'"))
        names[int(re.search(r"fid: +(\d+)", entry)[1])] = name
        function = found[name] = {what: int(re.search(rf"{what}: +(\d+)", entry)[1]) for what in ("exec", "nblocks")}
        for block in entry.split("- bid: ")[1:]:
            number = int(block.split("\n")[0])
            for to, n, missed in re.findall(r"bid: (\d+), cnt: (\d+)(?:, mis: (\d+))?", block):
                if int(n):
                    function[number, int(to)] = int(n), int(missed or 0)
            for at, callee, n, missed in re.findall(r"off: (\w+), fid: (\d+), cnt: (\d+)(?:, mis: (\d+))?", block):
                function[number, int(at, 16), int(callee)] = int(n), int(missed or 0)
    return {
        name: {(*k[:2], names.get(k[2])) if isinstance(k, tuple) and len(k) == 3 else k: n for k, n in function.items()}
        for name, function in found.items()
    }


def perf2bolts(counts: Path, binary: Path, folder: Path) -> Path:
    """What perf2bolt makes of the pre-aggregated ``counts``."""
    if shutil.which(str(LLVM / "perf2bolt")) is None:
        pytest.skip("perf2bolt 19 is not installed under that name")
    ran(LLVM / "perf2bolt", "-pa", "-p", counts, "-o", folder / "fdata", "-w", folder / "theirs.yaml", binary)
    return folder / "theirs.yaml"


@pytest.mark.parametrize(
    ("name", "binary"), [("demo_pie", "lbrdemo"), ("demo_2proc", "lbrdemo"), ("demo_hwidx", "liblbrdemo.so")]
)
def test_it_is_perf2bolts(run, data: Data, tmp_path: Path, name: str, binary: str) -> None:
    counts = exported(run, data, name, binary, "bolt", tmp_path / "counts")
    theirs = perf2bolts(counts, binary_of(data, name, binary), tmp_path)
    ours = exported(run, data, name, binary, "boltyaml", tmp_path / "ours.yaml")
    assert read(ours.read_text()) == read(theirs.read_text())


def test_llvm_bolt_makes_the_same_program_of_it(run, data: Data, tmp_path: Path) -> None:
    binary = binary_of(data, "demo_pie", "lbrdemo")
    theirs = perf2bolts(exported(run, data, "demo_pie", "lbrdemo", "bolt", tmp_path / "counts"), binary, tmp_path)
    ours = exported(run, data, "demo_pie", "lbrdemo", "boltyaml", tmp_path / "ours.yaml")
    made = {}
    for profile, options in ((theirs, []), (ours, ["-profile-ignore-hash"])):
        said = ran(
            LLVM / "llvm-bolt", binary, "-o", tmp_path / "made", f"-data={profile}", *options,
            "-reorder-blocks=ext-tsp", "-reorder-functions=hfsort", "-split-functions",
        )  # fmt: skip
        assert "stale" not in said
        code = ran(tool("llvm-objdump-19"), "-d", "--no-leading-headers", tmp_path / "made")
        made[profile] = re.findall(r"\d+ out of \d+ functions .* have non-empty execution profile", said), code
    assert made[ours] == made[theirs]


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [("clang++-19", ("-fuse-ld=lld-19",)), ("g++", ("-no-pie", "-fno-pie"))],
    ids=["clang", "gcc, tables of addresses"],
)
def test_blocks_of_jump_tables_traps_and_landing_pads(
    run, tmp_path: Path, compiler: str, flags: tuple[str, ...]
) -> None:
    """Through a capture that runs through every function: each has as many blocks as BOLT finds."""
    (tmp_path / "x.cc").write_text(PROGRAM)
    binary, counts, ours = tmp_path / "x", tmp_path / "counts", tmp_path / "ours.yaml"
    ran(tool(compiler), "-O2", *flags, "-Wl,--emit-relocs", "-o", binary, tmp_path / "x.cc")
    (tmp_path / "stacks.txt").write_text(made_up_stacks(binary))
    for form, out in (("bolt", counts), ("boltyaml", ours)):
        done = run("export", tmp_path / "stacks.txt", "--to", form, "--binary", binary, "-o", out)
        assert done.code == 0, done.err
    assert re.search(r"\d+ branches left out: the code has none that goes there", done.err)
    theirs = read(perf2bolts(counts, binary, tmp_path).read_text())
    mine = read(ours.read_text())
    assert {"main", "_Z5riskyi", "_ZL5casesi/1", "_Z5trapsi"} <= mine.keys() & theirs.keys()
    for name in mine.keys() & theirs.keys():
        assert mine[name]["nblocks"] == theirs[name]["nblocks"], name


def test_sizes_of_symbols_are_not_trusted(run, data: Data, tmp_path: Path) -> None:
    """Nor is anything else in the symbol table, call frame information and code."""
    whole, rnd = binary_of(data, "demo_pie", "lbrdemo").read_bytes(), Random(1)
    sections = {s.name: s for s in read_elf(BytesSource(whole)).sections}
    parts = [sections[name] for name in (".symtab", ".eh_frame", ".text")]
    for _ in range(25):
        damaged = bytearray(whole)
        for _ in range(20):
            part = rnd.choice(parts)
            damaged[part.offset + rnd.randrange(part.file_size)] = rnd.choice((0, 0x7F, 0x80, 0xFF))
        (tmp_path / "lbrdemo").write_bytes(damaged)
        done = run("export", data.path("demo_pie"), "--to", "boltyaml", "--binary", tmp_path / "lbrdemo")
        assert done.code in (0, 3, 5), done.err


def test_other_processors_have_no_blocks(run, tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int f(int x) { return x ? 3 : x; }")
    ran(
        tool("clang-19"),
        "-m32",
        "-O2",
        "-shared",
        "-nostdlib",
        "-fuse-ld=lld-19",
        "-o",
        tmp_path / "x.so",
        tmp_path / "x.c",
    )
    (tmp_path / "stacks.txt").write_text(made_up_stacks(tmp_path / "x.so"))
    done = run("export", tmp_path / "stacks.txt", "--to", "boltyaml", "--binary", tmp_path / "x.so")
    assert done.code != 0
    assert "blocks are found in ELF files of x86-64 alone" in done.err
