"""Captures of a made-up function in bursts that are known, as the software engine records them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import lastbranch
import perfdata_writer as pw
from lastbranch.analysis.naming import Label, Place
from lastbranch.model import Profile
from small_elf import tiny_elf

__all__ = ["BASE", "CODE", "INSTRUCTIONS", "NAME", "Burst", "opened", "walks", "write"]

BASE = 0x401000
CODE = bytes.fromhex("85c0 7404 9090 ffe0 90 ebf5")
"""test; je +8; nop; nop; jmp rax; nop; jmp +0"""
INSTRUCTIONS = (0, 2, 4, 5, 6, 8, 9)
"""Offsets of the instructions."""
NAME = "prog+0x401000"

Burst = list[list[tuple[int, int]]]
"""Records, each of branches (from, to) as offsets in the code, the oldest first."""


def walks(number: int, seed: int, *, most: int = 24) -> list[Burst]:
    """Random walks through the code. Each burst has its own probabilities, so the samples of one burst are much
    alike."""
    chance, bursts = np.random.default_rng(seed), []
    for _ in range(number):
        skips, loops = chance.beta(0.6, 0.6, 2)
        branches, at = list[tuple[int, int]](), 0
        for _ in range(int(chance.integers(2, most))):
            if at == 0 and chance.random() < skips:
                source, at = 2, 8
            elif at == 0:
                source, at = 6, 0 if chance.random() < loops else 8
            else:
                source, at = 9, 0
            branches.append((source, at))
        cut = int(chance.integers(1, len(branches)))
        bursts.append([branches[:cut], branches[cut:]])
    return bursts


def write(folder: Path, bursts: Sequence[Burst], event: str = "software-lbr") -> Path:
    """A perf.data in ``folder`` beside its program: a burst each millisecond."""
    program, path = folder / "prog", folder / "bursts.data"
    program.write_bytes(tiny_elf(CODE))
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=BASE, length=0x1000, pgoff=0x1000, name=str(program), time=2)
    for number, burst in enumerate(bursts):
        for record in burst:
            branches = [(BASE + source, BASE + target, 0) for source, target in reversed(record)]
            b.sample(ip=branches[0][1], pid=7, tid=7, time=10**6 * (number + 1), branches=branches)
    raw = b.capture.attrs[0].raw
    b.feature("EVENT_DESC", nr=1, attr_size=len(raw), events=[{"attr": raw, "nr_ids": 0, "name": event, "ids": []}])
    path.write_bytes(b.build())
    return path


def opened(path: Path) -> tuple[Profile, Place]:
    """The capture, and its function."""
    profile = lastbranch.open(path, symfs="/")
    return profile, Place(0, BASE, BASE + len(CODE), Label(0, NAME))
