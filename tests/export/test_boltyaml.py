"""BOLT's profile in YAML: what perf2bolt 19 writes for the same counts, but for its hashes; llvm-bolt 19 takes it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from random import Random

import pytest

from captures import Data
from code_walks import Walk
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
MOST, EXACT, NEIGHBOURS = 0xFFFFFFFF, 0xFFFF << 32, 0xFFFF << 48
"""Parts of a block's hash: its place and mnemonics, LLVM's names and numbers, the blocks before and after it."""


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


def hashes(text: str) -> dict[tuple[str, int], int]:
    """Counts of the blocks, by function and number."""
    return {
        (re.sub(r"\(\*\d+\)$", "", entry.split("\n")[0].strip().strip("'")), int(number)): int(value, 16)
        for entry in text.split("  - name: ")[1:]
        for number, value in re.findall(r"bid: +(\d+)\n +insns: +\d+\n +hash: +(0x[0-9A-Fa-f]+)", entry)
    }


def same_hashes(ours: str, theirs: str, *tables: str) -> int:
    """The blocks that both have: all of their hashes are the same, but for what only LLVM knows, and in the functions
    ``tables`` for what is made of neighbours, to which jump tables lead."""
    mine, other = hashes(ours), hashes(theirs)
    both = mine.keys() & other.keys()
    known = {key: MOST if key[0] in tables else MOST | NEIGHBOURS for key in both}
    assert {key: mine[key] & mask for key, mask in known.items()} == {
        key: other[key] & mask for key, mask in known.items()
    }
    assert not any(mine[key] & EXACT for key in both)
    return len(both)


def perf2bolts(counts: Path, binary: Path, folder: Path) -> Path:
    """The profile that perf2bolt makes of the pre-aggregated ``counts``."""
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
    assert same_hashes(ours.read_text(), theirs.read_text(), "_Z8dispatchjj") >= 2


def test_llvm_bolt_makes_the_same_program_of_it(run, data: Data, tmp_path: Path) -> None:
    binary = binary_of(data, "demo_pie", "lbrdemo")
    theirs = perf2bolts(exported(run, data, "demo_pie", "lbrdemo", "bolt", tmp_path / "counts"), binary, tmp_path)
    ours = exported(run, data, "demo_pie", "lbrdemo", "boltyaml", tmp_path / "ours.yaml")
    made = {}
    for profile, options in ((theirs, []), (ours, ["-profile-ignore-hash"])):
        said = ran(
            LLVM / "llvm-bolt",
            binary,
            "-o",
            tmp_path / "made",
            f"-data={profile}",
            *options,
            "-reorder-blocks=ext-tsp",
            "-reorder-functions=hfsort",
            "-split-functions",
        )
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
    text = perf2bolts(counts, binary, tmp_path).read_text()
    assert same_hashes(ours.read_text(), text, "_ZL5casesi/1") >= 10
    theirs = read(text)
    mine = read(ours.read_text())
    assert {"main", "_Z5riskyi", "_ZL5casesi/1", "_Z5trapsi"} <= mine.keys() & theirs.keys()
    for name in mine.keys() & theirs.keys():
        assert mine[name]["nblocks"] == theirs[name]["nblocks"], name


REBUILT = r"""
#include <stdio.h>
#define RARELY(x) __builtin_expect(!!(x), 0)
unsigned odd, even, last, seen[64];
#ifdef CHANGED
__attribute__((noinline)) static void added(unsigned x) { seen[x % 64]++; if (x == 77) puts("77"); }
#endif
__attribute__((noinline)) unsigned mix(unsigned x, unsigned total) {
#ifdef CHANGED
  if (RARELY(x == 99999)) added(x);
#endif
  if (RARELY(x % 8)) { odd += total; total ^= x >> 3; }
  else { even += x; total = total * 33 + x; }
  if (RARELY(x % 16 != 5)) last = x * 3; else even ^= last;
  for (unsigned i = 0; i < x % 4; i++) {
    if (RARELY(total & 3)) total += seen[i] / 3; else total ^= seen[i + 1] << 2;
  }
  return total + last;
}
int main(int argc, char **argv) {
  unsigned total = 0;
  for (unsigned i = 1; i < 100000u * argc; i++) total = mix(i, total);
  printf("%u %u %u\n", total, odd, even);
}
"""


def test_bolt_finds_the_blocks_of_a_changed_function_by_their_hashes(run, tmp_path: Path) -> None:
    """As well as by perf2bolt's, which are exact, and not without any."""
    (tmp_path / "x.c").write_text(REBUILT)
    before, after = tmp_path / "before", tmp_path / "after"
    for binary, flags in ((before, ()), (after, ("-DCHANGED",))):
        ran(tool("clang-19"), "-O2", *flags, "-fuse-ld=lld-19", "-Wl,--emit-relocs", "-o", binary, tmp_path / "x.c")
    (tmp_path / "walk.txt").write_text(Walk(before).script(300))
    counts, ours = tmp_path / "counts", tmp_path / "ours.yaml"
    for form, out in (("bolt", counts), ("boltyaml", ours)):
        done = run("export", tmp_path / "walk.txt", "--to", form, "--binary", before, "-o", out)
        assert done.code == 0, done.err
    (tmp_path / "none.yaml").write_text(re.sub(r"hash: .*", "hash: 0x0", ours.read_text()))
    made = list[list[str]]()
    for profile in (ours, perf2bolts(counts, before, tmp_path), tmp_path / "none.yaml"):
        said = ran(
            LLVM / "llvm-bolt",
            after,
            "-o",
            tmp_path / "made",
            f"-data={profile}",
            "-profile-ignore-hash",
            "-infer-stale-profile",
            "-reorder-blocks=ext-tsp",
            "-split-functions",
        )
        assert "inferred profile for 1 " in said
        code = ran(tool("llvm-objdump-19"), "-d", "--no-show-raw-insn", "--disassemble-symbols=mix", tmp_path / "made")
        made.append(re.findall(r"^ *[0-9a-f]+:\s+(\w+)", code, re.M))
    assert made[0] == made[1] != made[2]


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
