"""Shared tools of the collector's tests: programs to compile, recordings to make, and a complete trace as the truth."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lastbranch import native
from lastbranch.model import Profile
from lastbranch.opening import open_profile

PROGRAMS = Path(__file__).parents[1] / "programs"
FREESTANDING = ("-static", "-no-pie", "-nostdlib", "-ffreestanding", "-fno-stack-protector")
"""How to build a program without a C library."""

DENY = (
    "import ctypes, struct, sys; libc = ctypes.CDLL(None);"
    "rules = [(0x20, 0, 0, 0), (0x15, 0, 1, {}), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)];"
    "text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *r) for r in rules));"
    "head = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(rules), ctypes.addressof(text)));"
    "assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, head, 0, 0) == 0;"
    "from lastbranch.cli import main; main()"
)
"""``python -c`` this: lastbranch under a seccomp filter that answers EPERM to the system call of that number, as
containers do."""

needs_ptrace = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64" or shutil.which("gcc") is None,
    reason="programs are compiled by gcc and traced by ptrace on x86-64 Linux",
)

needs_walk = pytest.mark.skipif(native.library() is None, reason="no compiled library, which has the walk")
WALK = Path(native.__file__).with_name("branch_walk.c")
"""The source of the walk."""


def build(folder: Path, name: str, *flags: str) -> Path:
    """The program ``name`` of tests/programs, compiled once for each set of flags."""
    path = folder / ("-".join([name, *flags]).replace("/", "_"))
    if not path.exists():
        (source,) = PROGRAMS.glob(f"{name}.c*")
        compiler = "gcc" if source.suffix == ".c" else "g++"
        command = [compiler, "-O1", *flags, "-pthread", "-o", str(path), str(source), "-lrt"]
        subprocess.run(command, check=True)
    return path


def functions(program: Path) -> list[int]:
    """The beginnings of the functions of ``program``, in order, by nm."""
    listed = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    return sorted(int(words[0], 16) for words in map(str.split, listed.splitlines()) if words[1:2] in (["t"], ["T"]))


@dataclass
class Recorded:
    """A finished `lastbranch record`, and what it wrote."""

    code: int
    out: bytes
    err: str
    path: Path

    def profile(self) -> Profile:
        return open_profile(self.path)

    def bursts(self) -> int:
        return sum(s.samples for s in self.profile().streams if "branch_from" in s.columns)


def record(output: Path, *words: str | Path, env: dict[str, str] | None = None, timeout: float = 120) -> Recorded:
    """``lastbranch record -o output words...``, in a process of its own."""
    command = [sys.executable, "-m", "lastbranch", "record", "--no-progress", "-o", str(output), *map(str, words)]
    done = subprocess.run(command, capture_output=True, timeout=timeout, env={**os.environ, **(env or {})})
    return Recorded(done.returncode, done.stdout, done.stderr.decode(), output)


class Trace:
    """Every instruction that a run executed, in order."""

    def __init__(self, addresses: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.addresses = addresses
        self.length = dict(zip(addresses.tolist(), lengths.tolist(), strict=True))
        pairs, counts = np.unique(np.stack([addresses[:-1], addresses[1:]]), axis=1, return_counts=True)
        self.follows = dict(zip(zip(*pairs.tolist(), strict=True), counts.tolist(), strict=True))
        self._ways = Counter(source for source, _ in self.follows)
        self._jumps = addresses[1:] != addresses[:-1] + lengths[:-1]

    def edge(self, source: int, target: int) -> bool:
        """Whether ``target`` was executed right behind ``source``."""
        return (source, target) in self.follows

    def ways(self, source: int) -> int:
        """How many different instructions were executed behind ``source``."""
        return self._ways[source]

    def conditional(self, source: int) -> bool:
        """Whether the branch at ``source`` went two ways, including straight on."""
        return self.ways(source) == 2 and self.edge(source, source + self.length[source])

    def probability(self, source: int, target: int) -> tuple[float, int]:
        """(share of the executions of the branch ``source`` that went to ``target``, number of executions)."""
        taken = self.follows[source, target]
        passed = self.follows.get((source, source + self.length[source]), 0)
        return taken / (taken + passed), taken + passed

    def windows(self, depth: int, moments: NDArray[np.uint64]) -> Counter[tuple[int, int]]:
        """The weight of each taken edge among the ``depth`` that follow on a moment of the run.

        ``moments`` are addresses at which the run was found: the executions of an address share the moments found
        there.
        """
        address, times = np.unique(moments.astype(np.int64), return_counts=True)
        executed, back, count = np.unique(self.addresses, return_inverse=True, return_counts=True)
        found = np.isin(executed, address)
        share = np.zeros(len(executed))
        share[found] = times[np.isin(address, executed)] / count[found]
        until = np.concatenate([[0], np.cumsum(share[back])])
        at = np.flatnonzero(self._jumps)
        first = np.concatenate([np.zeros(depth, np.int64), at[:-depth] + 1])
        weight = until[at + 1] - until[first]
        pairs = np.stack([self.addresses[:-1][at], self.addresses[1:][at]])
        edges, which = np.unique(pairs, axis=1, return_inverse=True)
        total = np.bincount(which.reshape(-1), weights=weight)
        return Counter({(int(s), int(t)): n for (s, t), n in zip(edges.T, total.tolist(), strict=True)})


def children(pid: int) -> list[int]:
    """The process ids of what the main thread of process ``pid`` started and has not waited for."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def trace(program: Path, *words: str, folder: Path) -> Trace:
    """The complete trace of a static program by valgrind's lackey."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    log = folder / "lackey.log"
    command = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no", f"--log-file={log}"]
    subprocess.run([*command, str(program), *words], check=True, capture_output=True)
    found = re.findall(rb"^I  ([0-9a-f]+),(\d+)", log.read_bytes(), re.M)
    log.unlink()
    addresses = np.array([int(a, 16) for a, _ in found], np.int64)
    return Trace(addresses, np.array([int(n) for _, n in found], np.int64))


def stacks(profile: Profile) -> list[list[tuple[int, int]]]:
    """Entries of each burst, oldest first."""
    found = []
    for batch in profile.streams[-1].batches():
        for i in range(len(batch)):
            source, target, _ = batch.stack(i)
            found.append(list(zip(source[::-1].tolist(), target[::-1].tolist(), strict=True)))
    return found


def walk(truth: Trace, target: int, source: int) -> list[int] | None:
    """Branches that a straight line from ``target`` to ``source`` passes; ``None`` where the trace has no such line."""
    passed, at = [], target
    while at != source:
        following = at + truth.length.get(at, 1 << 20)
        if not truth.edge(at, following):
            return None
        if truth.ways(at) > 1:
            passed.append(at)
        at = following
    return passed
