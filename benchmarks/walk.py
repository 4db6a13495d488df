"""Random walks over a program's real edges: what its taken branches would be, without running it.

A walk follows straight-line code from each branch target to the next control instruction. A conditional branch is
taken with a probability of its own (many rarely, some nearly always, loops mostly), calls push onto a shadow stack and
returns pop it, so between two successive taken branches there is never an instruction that always leaves the line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from program import Control, Kind

_RANDOM_BLOCK = 1 << 20

MISPREDICTED, PREDICTED = 1, 2  # bits 0 and 1 of a perf branch entry's flags word
_CYCLES_SHIFT = 4


def _probabilities(control: Control, rng: np.random.Generator) -> list[float]:
    """How often each conditional branch is taken: program behaviour, so the same for every process."""
    result = []
    for index, (address, target) in enumerate(zip(control.address, control.target, strict=True)):
        low, high = (0.5, 0.9) if target < address else ((0.02, 0.1), (0.2, 0.8), (0.9, 0.97))[rng.choice(3)]
        result.append(0.5 if index in control.drive else rng.uniform(low, high))
    return result


def walk(control: Control, length: int, seed: int) -> NDArray[np.uint64]:
    """`length` taken branches in time order: rows of (from, to, flags) with link-time addresses."""
    rng = np.random.default_rng(seed)
    probability = _probabilities(control, np.random.default_rng(0))
    kind, target, goes_to, after = control.kind, control.target, control.goes_to, control.after
    cond, call, ret, stop = Kind.COND, Kind.CALL, Kind.RETURN, Kind.STOP
    shadow: list[int] = []
    taken: list[int] = []
    to: list[int] = []
    draws = iter(())
    at = control.entry
    while len(taken) < length:
        what = kind[at]
        if what is cond:
            draw = next(draws, None)
            if draw is None:
                draws = iter(rng.random(_RANDOM_BLOCK).tolist())
                draw = next(draws)
            if draw >= probability[at]:
                at += 1
                continue
        elif what is call:
            shadow.append(at)
        elif what is ret:
            caller = shadow.pop()
            taken.append(at)
            to.append(after[caller])
            at = caller + 1
            continue
        elif what is stop:
            raise RuntimeError(f"the walk reached an instruction it cannot follow at {control.address[at]:#x}")
        taken.append(at)
        to.append(target[at])
        at = goes_to[at]
    entries = np.empty((length, 3), np.uint64)
    entries[:, 0] = np.array(control.address, np.uint64)[taken]
    entries[:, 1] = to
    entries[:, 2] = _flags(np.array(control.kind)[taken], rng)
    return entries


def _flags(kind: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint64]:
    """Flags words: 5 % mispredicted (conditional branches and returns only), cycles since the branch before."""
    can_miss = (kind == Kind.COND) | (kind == Kind.RETURN)
    missed = can_miss & (rng.random(len(kind)) < 0.05 / can_miss.mean())
    cycles = 1 + rng.geometric(0.15, len(kind)) + np.where(missed, rng.integers(14, 24, len(kind)), 0)
    stalled = rng.random(len(kind)) < 0.01
    cycles = np.minimum(np.where(stalled, cycles + rng.geometric(0.004, len(kind)), cycles), 0xFFFF)
    return (np.where(missed, MISPREDICTED, PREDICTED) | (cycles << _CYCLES_SHIFT)).astype(np.uint64)
