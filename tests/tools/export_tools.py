"""LLVM's tools and the demo's binaries, for tests that compare exports with them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from captures import Data

BINARIES = ("lbrdemo", "liblbrdemo.so")


ONE_PROCESS = ("demo_pie", "demo_hwidx", "lldlayout/demo_pie")


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def ran(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def binary_of(data: Data, name: str, binary: str) -> Path:
    return data.path(name).parent / binary


def exported(run, data: Data, name: str, binary: str, form: str, out: Path) -> Path:
    done = run("export", "--to", form, "--binary", binary_of(data, name, binary), "-o", out, data.path(name))
    assert done.code == 0, done.err
    return out


def numbers(text: str) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """(ranges, branches) of an unsymbolized profile."""
    found: dict[str, Counter[tuple[int, int]]] = {"-": Counter(), "->": Counter()}
    for a, arrow, b, count in re.findall(r"^([0-9a-f]+)(->?)([0-9a-f]+):(\d+)$", text, re.M):
        found[arrow][int(a, 16), int(b, 16)] += int(count)
    return found["-"], found["->"]


def plt_of(binary: Path, first: int) -> range:
    done = subprocess.run([tool("readelf"), "-SW", binary], capture_output=True, text=True, check=True)
    found = re.search(r"\.plt +PROGBITS +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+)", done.stdout)
    if found is None:
        return range(0)
    start, size = int(found[1], 16) - first, int(found[2], 16)
    return range(start, start + size)


PROGRAM = r"""
#include <algorithm>
#include <cstdio>
#include <vector>
template <int N> struct Poly { static unsigned eval(unsigned x) { return Poly<N - 1>::eval(x) * x + N; } };
template <> struct Poly<0> { static unsigned eval(unsigned x) { return x; } };
struct Shape { virtual unsigned area(unsigned) const = 0; virtual ~Shape() {} };
template <int I> struct Sided : Shape {
  unsigned area(unsigned k) const override { return k & 1 ? Poly<I>::eval(k) : k % (I + 3) ? k + I : k * I; }
};
__attribute__((noinline)) static unsigned work(const std::vector<Shape *> &v, const std::vector<unsigned> &d) {
  unsigned t = 0;
  for (unsigned x : d) t += v[x % v.size()]->area(x) ^ (t % 97 ? 0 : x);
  return t;
}
int main() {
  std::vector<unsigned> d(4000);
  for (unsigned i = 0; i < d.size(); i++) d[i] = i * 2654435761u;
  std::vector<Shape *> v{new Sided<3>, new Sided<5>, new Sided<9>};
  unsigned t = 0;
  for (int r = 0; r < 60; r++) {
    std::sort(d.begin(), d.end(), [r](unsigned a, unsigned b) { return (a ^ r) < (b ^ r); });
    t += work(v, d);
  }
  std::printf("%u\n", t);
}
"""


def made_up_stacks(program: Path, straight: bool = True, without: tuple[str, ...] = ()) -> str:
    """Text of perf script in which every function of ``program`` but those ``without`` is run through, at a made-up
    base; where that is not ``straight``, also through branches that always leave."""
    listing = subprocess.run([tool("nm"), "-S", "--defined-only", program], capture_output=True, text=True, check=True)
    functions = [
        w for w in map(str.split, listing.stdout.splitlines()) if len(w) == 4 and w[2] in "tTwW" and w[3] not in without
    ]
    headers = subprocess.run([tool("readelf"), "-lW", program], capture_output=True, text=True, check=True).stdout
    (load,) = [w for w in map(str.split, headers.splitlines()) if w[:1] == ["LOAD"] and "E" in w[6:8]]
    offset, address, size = (int(load[i], 16) for i in (1, 2, 4))
    base = 0x555555554000 if address < 0x400000 else 0
    page = address & ~0xFFF
    lines = [
        f"PERF_RECORD_MMAP2 7/7: [{page + base:#x}({(size + address - page + 0xFFF) & ~0xFFF:#x}) @ "
        f"{offset & ~0xFFF:#x} 08:01 1 1]: r-xp /x/{program.name}"
    ]
    jumps = leaving_branches(program)
    for i, (start, length, _, _) in enumerate(sorted(functions)):
        first, past = int(start, 16), int(start, 16) + int(length, 16)
        leaving = [(at, behind) for at, behind in jumps if first <= at < past]
        edges = [first, *(behind for _, behind in leaving if behind < past and straight), past]
        for begin, end in pairwise(edges):
            # Neither end of a straight range needs to be an instruction.
            ends = {begin + (end - begin) // 2, end - 1} if straight else {at for at, _ in leaving[:2]}
            for last in ends:
                a, b = begin + base, last + base
                lines += [f" {b:x} {b:#x}/{a:#x}/P/-/-/1 {b:#x}/{a:#x}/M/-/-/2"] * (i % 5 + 1)
    return "\n".join(lines) + "\n"


def leaving_branches(program: Path) -> list[tuple[int, int]]:
    """(address, that of the next instruction) of each jump, call and return; no range leads across one."""
    command = [tool("llvm-objdump-19"), "-d", "--no-show-raw-insn", program]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code = [(int(m[1], 16), m[2]) for m in re.finditer(r"^ *([0-9a-f]+): +\t(.*)$", listing, re.M)]
    return [(a, b) for (a, text), (b, _) in pairwise(code) if re.match(r"(jmp|call|ret)", text)]


BASE = 0x7FF712340000


def pe_stacks(binary: Path, only: tuple[str, ...] = ()) -> str:
    """Text of perf script in which every function of a PE file (``only`` those) is run through, loaded at `BASE`."""
    headers = subprocess.run([tool("llvm-objdump-19"), "-p", binary], capture_output=True, text=True, check=True).stdout
    linked, size = (int(re.search(rf"{n}\s+([0-9a-f]+)", headers)[1], 16) for n in ("ImageBase", "SizeOfImage"))
    listing = subprocess.run([tool("llvm-nm-19"), binary], capture_output=True, text=True, check=True).stdout
    symbols = [w for w in map(str.split, listing.splitlines()) if w[1] in ("t", "T")]
    starts = sorted({int(address, 16) for address, _, _ in symbols})
    wanted = {int(address, 16) for address, _, name in symbols if name in only or not only}
    jumps = leaving_branches(binary)
    lines = [f"PERF_RECORD_MMAP2 7/7: [{BASE:#x}({size:#x}) @ 0x1000 00:00 0 0]: r-xp C:\\x\\{binary.name}"]
    for i, (first, past) in enumerate(pairwise(starts)):
        edges = [first, *(behind for at, behind in jumps if first <= at < past and behind < past), past]
        for begin, end in pairwise(edges if first in wanted else ()):
            at = max((x for x, behind in jumps if begin <= x and behind <= end), default=begin)
            a, b = (BASE + x - linked for x in (begin, at))
            lines += [f" {b:x} {b:#x}/{a:#x}/P/-/-/1 {b:#x}/{a:#x}/M/-/-/2"] * (i % 5 + 1)
    return "\n".join(lines) + "\n"
