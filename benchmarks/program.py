"""The benchmark's program: generated C, compiled by gcc or clang, its control flow read back from the linked ELF.

The program is never run, but its code is real: a position-independent executable with more than 20,000 basic blocks in
1,000 functions, whose conditional branches, unconditional branches, direct calls and returns are read from a
disassembly of the file that the tools under test will open. All edges are direct (no tables of branch targets, no PLT),
so a walk over them needs nothing but the disassembly.
"""

from __future__ import annotations

import random
import re
import subprocess
from bisect import bisect_left
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

FUNCTIONS_PER_LEVEL = 200
LEVELS = 5
STATEMENTS = 14
SEED = 20250117
CFLAGS = [
    *("-O1", "-g1", "-fPIE", "-pie", "-fno-jump-tables", "-fno-stack-protector", "-fcf-protection=none"),
    *("-Wl,--emit-relocs", "-Wl,--build-id=sha1", "-Wl,-z,separate-code"),
]

_PRELUDE = """\
static volatile unsigned memory[64];
#define KEEP __attribute__((noinline, noclone)) unsigned
"""
_INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\t(?:bnd |notrack |rep[a-z]* |data16 )*(\S+)(?: +([0-9a-f]+) <)?")
_LABEL = re.compile(r"^([0-9a-f]+) <(.+)>:$")


class Kind(IntEnum):
    """The kind of a control instruction."""

    COND = 0
    UNCOND = 1
    CALL = 2
    RETURN = 3
    STOP = 4  # indirect or trap: a walk must never get here


@dataclass(frozen=True)
class Control:
    """All control instructions of .text in address order, as parallel lists.

    `target` is a link-time address (0 for returns), `goes_to` the index of the first control instruction at or after
    that target, `after` the address that follows the instruction (where a call returns to).
    """

    address: list[int]
    kind: list[Kind]
    target: list[int]
    goes_to: list[int]
    after: list[int]
    entry: int
    """Index of the first control instruction of `drive`, where every walk starts."""
    drive: range
    """The control instructions of `drive` itself."""
    basic_blocks: int


def _condition(rng: random.Random) -> str:
    return rng.choice(("x & {}", "x % 11 > {} % 11", "(int)x < {}", "memory[{} & 63] > x")).format(
        rng.randrange(1, 999)
    )


def _work(rng: random.Random) -> str:
    """A store to volatile memory, so that the compiler cannot turn the branch around it into a conditional move."""
    return f"memory[{rng.randrange(64)}] = x; x = x * {rng.randrange(3, 99, 2)} + {rng.randrange(1, 9999)};"


def _statement(rng: random.Random, callees: list[str], depth: int) -> str:
    inner = _statement(rng, callees, depth + 1) if depth < 2 and rng.random() < 0.35 else _work(rng)
    roll = rng.random()
    if roll < 0.35:
        return f"if ({_condition(rng)}) {{ {_work(rng)} {inner} }}"
    if roll < 0.55:
        return f"if ({_condition(rng)}) {{ {inner} }} else {{ {_work(rng)} }}"
    if roll < 0.68:
        return f"for (unsigned i{depth} = x & 15; i{depth}; i{depth}--) {{ {_work(rng)} {inner} }}"
    if roll < 0.80:
        cases = " ".join(f"case {rng.randrange(3) + 4 * i}: {_work(rng)} break;" for i in range(rng.randrange(3, 7)))
        return f"switch (x % 29) {{ {cases} default: {inner} }}"
    if roll < 0.94 and callees:
        return f"x += {rng.choice(callees)}(x);"
    return f"if ({_condition(rng)}) return x ^ {rng.randrange(999)};"


def source() -> str:
    """The C program: levels of functions that call only into the next level, and `drive`, which calls the first."""
    rng = random.Random(SEED)
    names = [[f"f{level}_{i:03d}" for i in range(FUNCTIONS_PER_LEVEL)] for level in range(LEVELS)]
    parts = [_PRELUDE]
    for level in reversed(range(LEVELS)):
        callees = names[level + 1] if level + 1 < LEVELS else []
        for name in names[level]:
            body = "\n  ".join(_statement(rng, callees, 0) for _ in range(STATEMENTS))
            parts.append(f"KEEP {name}(unsigned x) {{\n  {body}\n  return x;\n}}\n")
    cases = "\n".join(f"    case {i}: x += {name}(x); break;" for i, name in enumerate(names[0]))
    parts.append(f"KEEP drive(unsigned x) {{\n  for (;;) switch (memory[x & 63]) {{\n{cases}\n  }}\n}}\n")
    parts.append("int main(int argc, char **argv) { (void)argv; return (int)drive((unsigned)argc); }\n")
    return "".join(parts)


def build(directory: Path, binary: Path, compiler: tuple[str, ...] = ("gcc",)) -> None:
    """Write the source into `directory` and compile it to `binary`, unless that was done from the same source."""
    text, path = source(), directory / "program.c"
    if binary.exists() and path.exists() and path.read_text() == text:
        return
    binary.parent.mkdir(parents=True, exist_ok=True)
    binary.unlink(missing_ok=True)
    path.write_text(text)
    subprocess.run([*compiler, *CFLAGS, "-o", str(binary), path.name], cwd=directory, check=True)


def _kind(mnemonic: str, direct: bool) -> Kind | None:
    if mnemonic.startswith("jmp"):
        return Kind.UNCOND if direct else Kind.STOP
    if mnemonic.startswith("j"):
        return Kind.COND
    if mnemonic.startswith("call"):
        return Kind.CALL if direct else Kind.STOP
    if mnemonic.startswith("ret"):
        return Kind.RETURN
    return Kind.STOP if mnemonic in ("hlt", "ud2", "int3") else None


def control_flow(binary: Path) -> Control:
    """Disassemble .text once and index its control instructions."""
    command = ["objdump", "-d", "--no-show-raw-insn", "-j", ".text", str(binary)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    instructions: list[int] = []
    labels: dict[str, int] = {}
    found: list[tuple[int, Kind, int]] = []  # position in `instructions`, kind, target
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            kind = _kind(match[2], match[3] is not None)
            if kind is not None:
                found.append((len(instructions), kind, int(match[3] or "0", 16)))
            instructions.append(int(match[1], 16))
        elif match := _LABEL.match(line):
            labels[match[2]] = int(match[1], 16)
    address = [instructions[position] for position, _, _ in found]
    starts = set(labels.values())
    starts.update(target for _, kind, target in found if kind in (Kind.COND, Kind.UNCOND))
    instructions.append(instructions[-1] + 1)
    starts.update(instructions[position + 1] for position, kind, _ in found if kind is not Kind.CALL)
    entry = bisect_left(address, labels["drive"])
    end = min(value for value in labels.values() if value > labels["drive"])
    return Control(
        address=address,
        kind=[kind for _, kind, _ in found],
        target=[target for _, _, target in found],
        goes_to=[bisect_left(address, target) for _, _, target in found],
        after=[instructions[position + 1] for position, _, _ in found],
        entry=entry,
        drive=range(entry, bisect_left(address, end)),
        basic_blocks=len(starts),
    )
