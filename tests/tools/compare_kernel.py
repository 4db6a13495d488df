"""A Linux kernel with a module, and a system-wide capture of both with exact counts: exports held against these, and
against llvm-profgen.

    python tests/tools/compare_kernel.py [--folder build/kernel] [--source /usr/src/linux-source-6.12.tar.xz]

``make kernel`` runs this script. The script builds a tinyconfig vmlinux with clang-19 and debugging information, which
takes five minutes, and keeps the build. Debian's sources come with ``apt-get install linux-source flex bison libelf-dev
bc``.

The capture is made up: walks over the branches that llvm-objdump lists, through calls and returns, from the module into
the kernel and back, at addresses that KASLR would give. The walks count every step.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from glob import glob
from itertools import pairwise
from pathlib import Path

import perfdata_writer as pw
from command_line import run_cli
from perfdata_writer import Builder

SHIFT, LOADED = 0x1A000000, 0xFFFFFFFFC0400000
DEPTH, SAMPLES = 32, 20_000
FLAGS = "-fdebug-info-for-profiling -fbasic-block-address-map"
OPTIONS = (
    "-e 64BIT -d DEBUG_INFO_NONE -e DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT -e MODULES -m CRC7 -m CRC_ITU_T "
    "-e JUMP_LABEL -e RELOCATABLE -e RANDOMIZE_BASE"
)
MODULE = "crc7.ko"
KERNEL = "[kernel.kallsyms]"


def ran(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def build(folder: Path, source: str) -> tuple[Path, Path]:
    """vmlinux and the module, built if they are not there."""
    tree = folder / "linux"
    if not (tree / "vmlinux").is_file():
        found = sorted(glob(source))
        if not found:
            sys.exit(f"no {source}: sudo apt-get install linux-source flex bison libelf-dev bc")
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        ran("tar", "xf", found[-1], "-C", tree, "--strip-components=1")
        make = ("make", "-s", "LLVM=-19", "ARCH=x86_64")
        ran(*make, "tinyconfig", cwd=tree)
        ran("scripts/config", *OPTIONS.split(), cwd=tree)
        ran(*make, "olddefconfig", cwd=tree)
        ran(*make, f"-j{os.cpu_count()}", f"KCFLAGS={FLAGS}", "vmlinux", "modules", cwd=tree)
    return tree / "vmlinux", next(tree.rglob(MODULE))


@dataclass
class Code:
    """The instructions of a file as llvm-objdump lists them, at their run-time addresses."""

    address: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    target: list[int | None] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Rows of the functions' first instructions."""
    row: dict[int, int] = field(default_factory=dict)

    def add(self, listing: str, moved: int, symbols: dict[str, int]) -> None:
        begins = False
        for line in listing.splitlines():
            if re.fullmatch(r"[0-9a-f]+ <.*>:", line):
                begins = True
            elif found := re.match(r"\s+[0-9a-f]+:\s+R_X86_64_(?:PLT|PC)32\s+([\w.]+)-0x4", line):
                self.target[-1] = symbols.get(found[1], -1)  # of a call or jump out of the file
            elif found := re.match(r"\s*([0-9a-f]+):\s+([a-z]\w*)(?:\s+(?:0x([0-9a-f]+)\b)?)?", line):
                self.row[int(found[1], 16) + moved] = len(self.address)
                if begins:
                    self.starts.append(len(self.address))
                begins = False
                self.address.append(int(found[1], 16) + moved)
                self.words.append(found[2])
                branch = found[2].startswith(("j", "call")) and found[3]
                self.target.append(int(found[3], 16) + moved if branch else None)


def walks(code: Code, first: list[int], draw: random.Random, samples: int) -> list[list[tuple[int, int]]]:
    """Taken branches (from, to) of each sample, oldest first: each begins at one of the rows ``first``."""
    found = []
    while len(found) < samples:
        row, stack, taken = draw.choice(first), list[int](), list[tuple[int, int]]()
        for _ in range(400):
            word, to = code.words[row], code.target[row]
            if word in ("ud2", "hlt", "int3", "iretq", "sysretq", "ljmp", "lretq"):
                break
            if word.startswith("ret"):
                if not stack:
                    break
                to = stack.pop()
            elif word.startswith("call"):
                stack.append(code.address[row + 1])
            elif not word.startswith("j") or (word != "jmp" and draw.random() < 0.5):
                row += 1
                if row >= len(code.address):
                    break
                continue
            if to is None or to not in code.row:  # indirect, or to where nothing is listed
                break
            taken.append((code.address[row], to))
            row = code.row[to]
            if len(taken) == DEPTH:
                break
        if len(taken) > 1:
            found.append(taken)
    return found


def lastbranch(*words: str | Path) -> None:
    done = run_cli(*words)
    if done.code:
        sys.exit(f"lastbranch {' '.join(map(str, words))}: exit code {done.code}\n{done.err}")


def alike(ours: Path, theirs: Path) -> bool:
    """Whether all lines are equal, in any order. llvm-profgen may have more lines with a count of 0, for weak functions
    of the same names, whose code is still there. No more than one in 5,000."""
    mine, other = (Counter(path.read_text().splitlines()) for path in (ours, theirs))
    more = other - mine
    print(f"{theirs.name}: {(mine - other).total()} lines differ, and {more.total()} of {other.total()} are only there")
    dead = all(re.fullmatch(r" +[0-9.]+: 0", line) for line in more)
    return not mine - other and dead and 5000 * more.total() < other.total()


def check(folder: Path, vmlinux: Path, module: Path) -> bool:
    """Whether counts are equal, and profiles `alike`."""
    objdump = ("llvm-objdump-19", "-d", "--no-show-raw-insn")
    listed = (line.split() for line in ran("llvm-nm-19", "--defined-only", vmlinux).splitlines())
    symbols = {name: int(at, 16) + SHIFT for at, _, name in listed}
    code = Code()
    code.add(ran(*objdump, "--section=.text", vmlinux), SHIFT, symbols)
    kernel = list(code.starts)
    code.add(ran(*objdump, "-r", "--section=.text", module), LOADED, symbols)
    inside = code.starts[len(kernel) :]
    text = symbols["_text"]
    draw = random.Random(1)
    stacks = walks(code, kernel, draw, SAMPLES) + walks(code, inside, draw, SAMPLES // 10)
    draw.shuffle(stacks)

    name = f"/lib/modules/6.12.0-toy/kernel/lib/{MODULE}"
    b = Builder()
    b.feature("ARCH", value="x86_64")
    b.feature("OSRELEASE", value="6.12.0-toy")
    for path, called in ((vmlinux, KERNEL), (module, name)):
        found = re.search(r"Build ID: ([0-9a-f]+)", ran("llvm-readelf-19", "-n", path))
        if found is None:
            sys.exit(f"{path} has no build id")
        b.build_id(called, bytes.fromhex(found[1]), misc=pw.MISC_KERNEL)
    b.kernel_map(text, 0x4000000)
    b.kernel_map(LOADED, 0x10000, name)
    b.comm(pid=7, name="x", time=1, exec=True)
    ranges, branches = Counter[tuple[str, int, int]](), Counter[tuple[str, int, str, int]]()

    def linked(address: int) -> tuple[str, int]:
        return (name, address - LOADED) if address >= LOADED else (KERNEL, address - SHIFT)

    for time_, stack in enumerate(stacks):
        b.sample(pw.MISC_KERNEL, ip=stack[-1][1], pid=7, time=10 + time_, branches=[(*e, 2) for e in reversed(stack)])
        branches.update((*linked(a), *linked(z)) for a, z in stack)
        ranges.update((*linked(z), linked(a)[1]) for (_, z), (a, _) in pairwise(stack))
    capture, files = folder / "system.data", folder / "root"
    capture.write_bytes(b.build())
    shutil.rmtree(files, ignore_errors=True)
    (files / name[1:]).parent.mkdir(parents=True)
    shutil.copy(module, files / name[1:])
    ran("xz", "--check=crc32", files / name[1:])  # as distributions have them
    shutil.copy(vmlinux, files / "vmlinux")
    print(f"{len(stacks)} samples, {branches.total()} branches, {ranges.total()} ranges; the kernel at {text:#x}")

    results = {}
    where = ("--symfs", files)
    lastbranch("export", capture, "--to", "counts", *where, "-o", folder / "counts.txt", "--force")
    mine = (folder / "counts.txt").read_text().splitlines()
    want = [f"R {m} {a:x} {z:x} {n}" for (m, a, z), n in ranges.items()]
    want += [f"B {m} {a:x} {t} {z:x} {n} 0" for (m, a, t, z), n in branches.items()]
    results["counts: what was walked"] = sorted(mine) == sorted(want)

    for module_name, binary in ((KERNEL, vmlinux),):
        first = int(ran("llvm-readelf-19", "-SW", binary).split(" .text ")[1].split()[1], 16) & ~0xFFF
        own = sorted((a, z, n) for (m, a, z), n in ranges.items() if m == module_name)
        to = Counter[tuple[int, int]]()
        for (m, a, t, z), n in branches.items():
            if t == module_name:
                to[(a - first if m == t else 1 - first) % 2**64, z - first] += n
        lines = [str(len(own)), *(f"{a - first:x}-{z - first:x}:{n}" for a, z, n in own)]
        lines += [str(len(to)), *(f"{a:x}->{z:x}:{n}" for (a, z), n in sorted(to.items()))]
        (folder / "truth.unsym").write_text("\n".join(lines) + "\n")
        profgen = ("llvm-profgen-19", f"--binary={binary}", "--format=text")
        ran(*profgen, f"--unsymbolized-profile={folder / 'truth.unsym'}", f"--output={folder / 'truth.prof'}")
        given = ("--binary", module_name, *where)
        started = time.perf_counter()
        lastbranch("export", capture, "--to", "sampleprof", *given, "-o", folder / "vmlinux.prof", "--force")
        print(f"sampleprof of vmlinux: {time.perf_counter() - started:.1f} s")
        results["sampleprof: llvm-profgen of what was walked"] = alike(folder / "vmlinux.prof", folder / "truth.prof")
        lastbranch("export", capture, "--to", "perfscript", *given, "-o", folder / "vmlinux.txt", "--force")
        ran(*profgen, "--kernel", f"--perfscript={folder / 'vmlinux.txt'}", f"--output={folder / 'script.prof'}")
        results["sampleprof: llvm-profgen of the samples"] = alike(folder / "vmlinux.prof", folder / "script.prof")
        ran("llvm-profdata-19", "show", "--sample", folder / "vmlinux.prof")
    lastbranch("export", capture, "--to", "sampleprof", *where, "-o", folder / "all", "--force")
    lastbranch("export", capture, "--to", "propeller", *where, "-o", folder / "layout", "--force")
    print((folder / "all" / "index.tsv").read_text(), end="")
    print((folder / "layout" / "index.tsv").read_text(), end="")
    for what, good in results.items():
        print(f"{'good  ' if good else 'DIFFER'}  {what}")
    return all(results.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/kernel"))
    parser.add_argument("--source", default="/usr/src/linux-source-*.tar.xz")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.exit(not check(given.folder, *build(given.folder.resolve(), given.source)))
