"""Captures with branch stacks and call chains of a program that nobody ran: a random walk through its instructions.

A walk goes where the code can go: it takes conditional branches by chance, calls and returns, and leaves the program
for the libraries that it calls, which may call it back. So the stack of every sample is exactly known.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections import deque
from itertools import pairwise
from pathlib import Path

from export_tools import tool

BASE, LIBRARY = 0x555555554000, 0x7F0000001000
"""The load address of the program, and an address in another module."""


class Walk:
    """Walks through ``program`` from ``main``; ``seed`` decides the way."""

    def __init__(self, program: Path, seed: int = 1) -> None:
        listing = subprocess.run(
            [tool("llvm-objdump-19"), "-d", "--no-show-raw-insn", "--no-leading-headers", program],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        code = [(int(m[1], 16), m[2]) for m in re.finditer(r"^ *([0-9a-f]+): +\t?(.*)$", listing, re.M)]
        self.text, self.code = dict(code), [at for at, _ in code]
        self.next = dict(pairwise(at for at, _ in code))
        named = re.findall(r"^([0-9a-f]+) <(.*)>:$", listing, re.M)
        self.starts = {name: int(at, 16) for at, name in named}
        self.callbacks = [at for name, at in self.starts.items() if not name.startswith("_") and "@" not in name]
        self.stubs = {at for name, at in self.starts.items() if name.endswith("@plt")}
        self.program, self.random = program, random.Random(seed)

    def lines(self, samples: int, every: int = 60, depth: int = 32, start: str = "main") -> list[str]:
        """The text of ``perf script`` of that many samples, ``every`` so many branches."""
        ring: deque[tuple[int, int]] = deque(maxlen=depth)
        found, branches = [], 0
        at, stack = self.starts[start], list[int]()
        while len(found) < samples:
            source, target, stack = self._step(at, stack)
            if target is None:
                at = self.next.get(at, self.starts[start])
            else:
                ring.appendleft((source, target))
                branches, at = branches + 1, target
                if branches % every == 0:
                    # Some samples are some instructions after the newest branch.
                    for _ in range(self.random.randrange(3)):
                        text = self.text.get(at, "ret")
                        at = at if re.match(r"(call|ret|j|hlt|ud2)", text) else self.next.get(at, at)
                    chain = [at, *reversed(stack)]
                    if self.random.random() < 0.05:  # as from a register that was no frame pointer
                        chain[self.random.randrange(len(chain))] = self.random.choice(self.code)
                    frames = "".join(f"\t{self._moved(a):16x}\n" for a in chain)
                    entries = "".join(f" {self._moved(a):#x}/{self._moved(b):#x}/P/-/-/1 " for a, b in ring)
                    found.append(frames + entries.rstrip() + "\n")
                    every += self.random.randrange(-2, 3) if every > 9 else 1
        return found

    def _step(self, at: int, stack: list[int]) -> tuple[int, int | None, list[int]]:
        """(source, target, stack after it) of the branch at ``at``; no target if none is taken there."""
        text, chance = self.text.get(at, ""), self.random.random()
        if at >= LIBRARY or at in self.stubs:  # in a library: it returns, or calls back
            if at in self.stubs:
                return at, LIBRARY + 0x100, stack
            if chance < 0.2 and self.callbacks and len(stack) < 40:
                return at + 8, self.random.choice(self.callbacks), [*stack, LIBRARY + 0x40]
            if not stack:
                return at + 8, self.starts["main"], [LIBRARY + 0x40]
            return at + 16, stack[-1], stack[:-1]
        direct = re.search(r"0x([0-9a-f]+) <", text)
        if text.startswith("call"):
            past = self.next[at]
            if len(stack) > 60:
                return at, None, stack
            return at, int(direct[1], 16) if direct else self.random.choice(self.callbacks), [*stack, past]
        if text.startswith("ret"):
            return at, stack[-1] if stack else LIBRARY, stack[:-1]
        if text.startswith("jmp"):
            if direct:
                return at, int(direct[1], 16), stack
            return at, self.random.choice(self.callbacks), stack
        if text.startswith("j") and direct:
            return at, int(direct[1], 16) if chance < 0.5 else None, stack
        if text.startswith(("ud2", "hlt", "int3")):
            return at, LIBRARY, [*stack, at]
        return at, None, stack

    def _moved(self, address: int) -> int:
        return address if address >= LIBRARY else address + BASE

    def mapping(self) -> str:
        """The line of the mapping of its code."""
        headers = subprocess.run([tool("readelf"), "-lW", self.program], capture_output=True, text=True, check=True)
        (load,) = [w for w in map(str.split, headers.stdout.splitlines()) if w[:1] == ["LOAD"] and "E" in w[6:8]]
        offset, address, size = (int(load[i], 16) for i in (1, 2, 4))
        page = address & ~0xFFF
        length = (size + address - page + 0xFFF) & ~0xFFF
        return (
            f"PERF_RECORD_MMAP2 7/7: [{page + BASE:#x}({length:#x}) @ {offset & ~0xFFF:#x} 08:01 1 1]: "
            f"r-xp /x/{self.program.name}\n"
        )

    def script(self, samples: int, every: int = 60, depth: int = 32) -> str:
        """The whole text: the mapping, then the samples."""
        return self.mapping() + "\n".join(["", *self.lines(samples, every, depth)])
