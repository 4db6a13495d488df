"""The truth for tests of names and views: symbols by nm, code by llvm-objdump, and complete traces cut into branch
stacks."""

from __future__ import annotations

import subprocess
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

import perfdata_writer as pw
from capture_tools import FREESTANDING, PROGRAMS
from capture_tools import trace as traced
from isa_oracle import OBJDUMP, kind_of
from isa_oracle import sections as objdump_sections
from lastbranch.analysis.counting.bound_pairs import BoundPairs
from lastbranch.model import Profile
from lastbranch.opening import open_profile
from lastbranch.symbols import Function, FunctionTable, Names

Edge = tuple[int, int]


@dataclass
class NmSymbols:
    """A `Symbolizer` with the names that nm prints, and no lines."""

    profile: Profile
    notes: list[str] = field(default_factory=list)

    def functions(self, module: int) -> FunctionTable:
        binary = self.profile.modules[module].binary
        found = symbols(binary) if binary else []
        starts, ends = (np.array(column, np.uint64) for column in ([s for s, _, _ in found], [e for _, e, _ in found]))
        return FunctionTable(starts, ends, [Function(n, n, s, e - s) for s, e, n in found])

    def names(self, module: int, address: np.ndarray) -> Names:
        table = self.functions(module)
        return Names.of_functions(table.at(address), table.functions)


def symbols(binary: str | Path) -> list[tuple[int, int, str]]:
    """(start, end, name) of the functions of a binary that have a size, by address; one name each."""
    text = subprocess.run(["nm", "-S", "--defined-only", binary], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in text.splitlines()]
    found = {int(w[0], 16): (int(w[0], 16), int(w[0], 16) + int(w[1], 16), w[3]) for w in words if len(w) == 4}
    code = {int(w[0], 16) for w in words if len(w) == 4 and w[2] in "tTwW"}
    return sorted(found[start] for start in code)


def name_at(found: list[tuple[int, int, str]], address: int) -> str:
    """The function that ``address`` lies in; empty where none does."""
    row = bisect_right(found, (address, 1 << 64, "")) - 1
    return found[row][2] if row >= 0 and address < found[row][1] else ""


def instructions(binary: str | Path) -> dict[int, str]:
    """Address -> branch type of all instructions of an x86-64 binary, by the words of llvm-objdump."""
    assert OBJDUMP
    text = subprocess.run([OBJDUMP, "-d", "-z", binary], capture_output=True, text=True, check=True).stdout
    lines = [line for lines in objdump_sections(text, "x86_64") for line in lines]
    return {line.address: kind_of(line.text, "x86_64") for line in sorted(lines)}


@dataclass
class Run:
    """A complete run of a program without a C library: its taken branches in order, oldest first."""

    program: Path
    edges: list[Edge]
    executed: list[int]
    """Every instruction, in order."""

    def capture(self, path: Path, stacks: Sequence[tuple[int, int]]) -> Profile:
        """A capture whose samples have the edges ``first:past`` as their stacks; the instruction behind is the ip."""
        b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.PERIOD | pw.BRANCH_STACK)
        b.comm(exec=True, pid=7, tid=7, name=self.program.name[:15], time=0)
        for start, offset, length in _code_maps(self.program):
            b.mmap2(pid=7, tid=7, addr=start, length=length, pgoff=offset, name=str(self.program), time=0)
        known = pw.flags(predicted=1)
        for i, (first, past) in enumerate(stacks):
            stack = [(s, t, known) for s, t in reversed(self.edges[first:past])]
            b.sample(ip=self.edges[past - 1][1], pid=7, tid=7, time=1 + i, period=100, branches=stack)
        path.write_bytes(b.build())
        return open_profile(path, symfs="/")

    def whole(self, size: int = 1000, overlap: int = 0) -> list[tuple[int, int]]:
        """Stacks that cover the run; with an overlap of 1 no range between two entries is lost."""
        last = len(self.edges)
        return [(max(0, i - overlap), min(i + size, last)) for i in range(0, last, size)]


def _code_maps(program: Path) -> list[tuple[int, int, int]]:
    """(address, file offset, size) of the executable segments, by readelf, in whole pages."""
    text = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True).stdout
    found = []
    for words in map(str.split, text.splitlines()):
        if words[:1] == ["LOAD"] and "E" in "".join(words[6:-1]):
            offset, address, size = (int(words[i], 16) for i in (1, 2, 4))
            found.append((address & ~0xFFF, offset & ~0xFFF, (size + (address & 0xFFF) + 0xFFF) & ~0xFFF))
    return found


def run_program(folder: Path, name: str, *words: str, flags: Sequence[str] = ()) -> Run:
    """Build ``name`` of tests/programs and trace it from its first to its last instruction."""
    program = folder / name
    source = PROGRAMS / f"{name}.c"
    subprocess.run(["gcc", "-O1", "-g", *FREESTANDING, *flags, "-o", str(program), str(source)], check=True)
    found = traced(program, *words, folder=folder)
    addresses = found.addresses.tolist()
    length = found.length
    edges = [(a, b) for a, b in pairwise(addresses) if b != a + length[a]]
    return Run(program, edges, addresses)


def bound(pairs: list[tuple[int, int, int]], cycles: list[int] | None = None, module: int = 0) -> BoundPairs:
    """Pairs (a, b, count) of one module, with the cycles of each; all predicted."""
    rows = np.full(len(pairs), module)
    a, b, count = (np.array([p[i] for p in pairs], np.uint64 if i < 2 else np.int64) for i in range(3))
    zero = np.zeros(len(pairs), np.int64)
    told = np.array(cycles if cycles is not None else zero, np.int64)
    values = {"cycles": told * count, "timed": (told > 0) * count}
    return BoundPairs(np.full(len(pairs), -1), rows, a, rows, b, count, zero, count, values)
