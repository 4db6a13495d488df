"""Ranges that cannot have been executed: a jump, call or return stands in the midst of them, which always leaves.

Some processors write an entry twice, and then a range seems to lead from one branch far past others. llvm-profgen
leaves such ranges out when it reads a capture (``rangeCrossUncondBranch``), but not when it reads counts, so we do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..isa import Decoder
from ..lbr import KIND
from ..model import Array, counted
from ..opening import code_of
from .modules import ModuleCounts

__all__ = ["possible"]

_LEAVES = [KIND[name] for name in ("uncond", "call", "ind_call", "ret")]
"""Not indirect jumps: the first case of a jump table may be the next instruction."""


def possible(counts: ModuleCounts) -> tuple[ModuleCounts, list[str]]:
    """``counts`` without ranges that lead across a branch which always leaves, and a note if there were any.

    Where the code is not at hand they stay.
    """
    code = code_of(counts.module)
    if code is None or not len(counts.start):
        return counts, []
    decoder, leaving = Decoder(code.arch), [np.empty(0, np.uint64)]
    for start, end in _joined(counts.start, counts.end):
        found = decoder.classify(code.read(start, end - start), start)
        leaving.append(np.uint64(start) + found.offset[np.isin(found.kind, _LEAVES)].astype(np.uint64))
    before = np.searchsorted(np.concatenate(leaving), [counts.start, counts.end], side="left")
    straight = before[0] == before[1]
    if straight.all():
        return counts, []
    left = int(counts.times[~straight].sum())
    kept = replace(counts, start=counts.start[straight], end=counts.end[straight], times=counts.times[straight])
    return kept, [
        f"{counted(left, 'range is', 'ranges are')} left out: no code runs through a branch that always leaves"
    ]


def _joined(start: Array, end: Array) -> list[tuple[int, int]]:
    """What ranges (sorted by ``start``) cover, as runs that do not overlap."""
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.append(first[1:], True)
    return list(zip(start[first].tolist(), reach[last].tolist(), strict=True))
