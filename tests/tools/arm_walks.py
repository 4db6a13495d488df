"""A program for arm64, and random walks through its code: which instructions ran, and every branch with its outcome.

The walk knows nothing of registers: conditional branches go either way. So no machine is needed, and all counts are
exact. Lines are from llvm-symbolizer.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import perfdata_writer as pw
import spe_writer as spe
from export_tools import ran, tool
from lastbranch.lbr import BRANCH_TYPES
from spe_writer import Area, Operation

CODE = 0xAAAAE0000000
PID = 1234
DETAIL = {"cond": spe.CONDITIONAL, "call": spe.CALL, "ret": spe.RETURN | spe.INDIRECT, "uncond": 3 << 3}

INLINED = """\
unsigned total;
static inline __attribute__((always_inline)) unsigned step(unsigned i) {
  if (i & 1)
    total = total * 7 + i;
  else
    total ^= i;
  return total;
}
static inline __attribute__((always_inline)) unsigned twice(unsigned i) {
  unsigned one = step(i);
  for (unsigned k = 0; k < i; k++)
    one += step(k);
  return one;
}
__attribute__((noinline)) static unsigned leaf(unsigned n) {
  return total ^ n * 9;
}
static inline __attribute__((always_inline)) unsigned again(unsigned i) {
  unsigned one = leaf(i);
  do
    one = leaf(one ^ i);
  while (one & 8);
  return one;
}
__attribute__((noinline)) static unsigned outer(unsigned n) {
  unsigned sum = 0;
  for (unsigned i = 0; i < n; i++)
    sum += twice(i);
  return sum;
}
__attribute__((noinline)) static unsigned calls(unsigned n) {
  return again(n) + 1;
}
__attribute__((noinline)) static unsigned other(unsigned n) {
  return n & 4 ? step(n) : outer(n) + calls(n);
}
void _start(void) {
  for (;;)
    total += other(total % 100);
}
"""

SOURCE = """\
unsigned total;
static unsigned mix(unsigned i, unsigned n) {
  if (i % 8) {
    total += i;
    total ^= i >> 3;
  } else {
    total = total * 33 + i;
  }
  switch (i % 5) {
  case 0: total++; break;
  case 1: total += 7 * n; break;
  case 2: total ^= 9; break;
  case 3: total *= 3; break;
  default: total += i;
  }
  return total;
}
static unsigned fold(unsigned n) {
  unsigned sum = 0;
  for (unsigned i = 0; i < n; i++)
    sum += mix(i, n);
  return sum;
}
void _start(void) {
  for (;;)
    total += fold(total % 100);
}
"""


class Instruction(NamedTuple):
    mnemonic: str
    target: int
    function: str


class Branch(NamedTuple):
    """A branch that ran as instruction number ``at`` of the walk; if not taken, ``target`` is the next instruction."""

    at: int
    pc: int
    target: int
    taken: bool
    mispredicted: bool
    kind: str


Frame = tuple[str, int]
"""(function, line from its declaration on)."""


class Program(NamedTuple):
    path: Path
    code: dict[int, Instruction]
    frames: dict[int, list[Frame]]
    """Address of an instruction -> the functions that the instruction is inlined in, outermost first; empty if it has
    no line."""


def program(folder: Path, source: str = SOURCE, *flags: str) -> Program:
    """Compiled with clang and linked with lld."""
    (folder / "walked.c").write_text(source)
    tool("lld-19")
    path = folder / "walked"
    ran(
        tool("clang-19"),
        "--target=aarch64-linux-gnu",
        "-O1",
        "-fno-jump-tables",
        "-g",
        "-nostdlib",
        "-static",
        "-fuse-ld=lld-19",
        *flags,
        "-o",
        path,
        folder / "walked.c",
    )
    return listed(path)


def listed(path: Path) -> Program:
    """A program as LLVM's tools list it."""
    code, function = dict[int, Instruction](), ""
    for line in ran(tool("llvm-objdump-19"), "-d", "--no-show-raw-insn", path).splitlines():
        if name := re.match(r"[0-9a-f]+ <(\w+)>:", line):
            function = name[1]
        elif m := re.match(r" *([0-9a-f]+): +\t(\S+)\t?(.*)", line):
            to = re.search(r"0x([0-9a-f]+) <", m[3])
            code[int(m[1], 16)] = Instruction(m[2], int(to[1], 16) if to else 0, function)
    asked = [hex(address) for address in code]
    said = json.loads(ran(tool("llvm-symbolizer-19"), "--output-style=JSON", "-e", path, *asked))
    frames = {
        int(one["Address"], 16): [(f["FunctionName"], f["Line"] - f["StartLine"]) for f in reversed(one["Symbol"])]
        if all(f["Line"] for f in one["Symbol"])
        else []
        for one in said
    }
    return Program(path, code, frames)


def walk(
    made: Program, steps: int, seed: int, start: int = 0, called: Sequence[int] = ()
) -> tuple[list[int], list[Branch]]:
    """(addresses of executed instructions, branches among them); a third of the branches is mispredicted.

    The walk begins at ``start`` (0: the first instruction), and again after its return. Indirect calls go to one of
    ``called``.
    """
    draw, calls, start = random.Random(seed), list[int](), start or min(made.code)
    at, ran_there, branches = start, list[int](), list[Branch]()
    while len(ran_there) < steps:
        one, following = made.code[at], at + 4
        ran_there.append(at)
        kind = (
            "call"
            if one.mnemonic in ("bl", "blr")
            else "ret"
            if one.mnemonic == "ret"
            else "uncond"
            if one.mnemonic == "b"
            else "cond"
            if one.mnemonic.startswith(("b.", "cb", "tb"))
            else ""
        )
        if kind:
            taken = kind != "cond" or draw.random() < 0.6
            to = following if not taken else draw.choice(called) if one.mnemonic == "blr" else one.target
            if kind == "ret":
                to = calls.pop() if calls else start
            if kind == "call":
                calls.append(following)
            branches.append(Branch(len(ran_there) - 1, at, to, taken, draw.random() < 0.3, kind))
            following = to
        at = following
    return ran_there, branches


def counted_lines(made: Program, times: Counter[int], branches: Iterable[Branch]) -> dict[str, dict[int, int]]:
    """Function -> line -> executions of the line's most frequent instruction, or the number of the line's calls among
    ``branches`` if larger; for functions that ran at all. Nothing is inlined."""
    out: dict[str, dict[int, int]] = {}
    seen = {made.code[at].function for at, n in times.items() if n}
    calls = Counter(made.frames[one.pc][0] for one in branches if one.kind == "call")
    for at, frames in made.frames.items():
        for name, line in frames:
            if name in seen:
                lines = out.setdefault(name, {})
                lines[line] = max(lines.get(line, 0), times[at], calls[name, line])
    return out


def profile_lines(text: str) -> dict[str, dict[int, int]]:
    """The same of a text sample profile."""
    out: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        if head := re.match(r"(\w+):\d+:\d+$", line):
            lines = out.setdefault(head[1], {})
        else:
            offset, count = map(int, re.match(r" (\d+): (\d+)", line).groups())
            if offset < 0x8000:  # else before the function's beginning: code of no line
                lines[offset] = count
    return out


def times_of(pieces: Iterable[list[int]]) -> Counter[int]:
    """How often each instruction of these pieces of a walk ran."""
    return Counter(at for piece in pieces for at in piece)


# -- captures of walks


def loaded(made: Program, address: int) -> int:
    """The run-time address: the file is mapped from its beginning."""
    return address - (min(made.code) & ~0xFFF) + CODE


def operation(made: Program, one: Branch, previous: int | None) -> Operation:
    events = spe.RETIRED | (0 if one.taken else spe.NOT_TAKEN) | (spe.MISPREDICTED if one.mispredicted else 0)
    return Operation(
        loaded(made, one.pc),
        spe.BRANCH,
        DETAIL[one.kind],
        events,
        target=loaded(made, one.target),
        tid=PID,
        previous=None if previous is None else loaded(made, previous),
        time=10 * one.at,
    )


def spe_capture(made: Program, branches: list[Branch], path: Path, *, previous_targets: bool) -> Path:
    """Every branch was sampled."""
    out, before = [], None
    for one in branches:
        out.append(operation(made, one, before if previous_targets else None).bytes())
        before = one.target if one.taken else before
    return spe.write(path, Area(b"".join(out)), maps=[(PID, CODE, 0x10000, f"/bin/{made.path.name}")], period=1)


def brbe_capture(made: Program, branches: list[Branch], path: Path) -> list[list[Branch]]:
    """A branch stack each 40 taken branches, 32 deep. Returns the stacks, oldest branch first."""
    taken = [one for one in branches if one.taken]
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK, sample_period=40)
    b.comm(pid=PID, name="walked", time=0)
    b.mmap2(pid=PID, addr=CODE, length=0x10000, pgoff=0, name=f"/bin/{made.path.name}", time=0)
    stacks = [taken[newest - 32 : newest] for newest in range(40, len(taken), 40)]
    for stack in stacks:
        entries = [
            (
                loaded(made, one.pc),
                loaded(made, one.target),
                pw.flags(mispred=one.mispredicted, predicted=not one.mispredicted, type=BRANCH_TYPES.index(one.kind)),
            )
            for one in reversed(stack)
        ]
        b.sample(ip=entries[0][1], pid=PID, tid=PID, time=10 * stack[-1].at, branches=entries)
    b.feature("ARCH", value="aarch64")
    path.write_bytes(b.build())
    return stacks
