"""Ranges held against the code: which are the straight lines that they should be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..lbr import KIND
from ..model import Array

__all__ = ["leaves", "row_of", "stops", "straight"]

_LEAVES = np.zeros(256, bool)
_LEAVES[[KIND[name] for name in ("uncond", "ind", "call", "ind_call", "ret")]] = True


def row_of(instructions: Array, address: Array) -> NDArray[np.int64]:
    """int64: which of the ``instructions`` (ascending uint64) begins at each address, -1 where none does."""
    if not len(instructions):
        return np.full(len(address), -1, np.int64)
    row = np.minimum(np.searchsorted(instructions, address), len(instructions) - 1)
    return np.where(instructions[row] == address, row, -1)


def stops(address: Array, length: Array, kind: Array, target: Array) -> NDArray[np.bool_]:
    """Instructions that no straight line runs through: unconditional branches, unless they go to the next instruction.

    An indirect jump may do that (the first case of a jump table), and a record that was made by comparing addresses
    does not see it as taken.
    """
    found: NDArray[np.bool_] = _LEAVES[kind] & (kind != KIND["ind"]) & (target != address + length)
    return found


def straight(
    stop: NDArray[np.bool_], first: Array, last: Array, count: Array
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """(which ranges are straight-line code, the ``count`` of the others by reason).

    ``first`` and ``last`` int64: rows of ``stop`` (see `stops`), -1 for an address within an instruction.
    """
    torn = (first < 0) | (last < 0)
    before = np.concatenate([[0], np.cumsum(stop)])
    through = ~torn & (before[last] > before[first])
    reasons = {
        "begin or end within an instruction": int(count[torn].sum()),
        "run through a branch that always leaves": int(count[through].sum()),
    }
    return ~(torn | through), reasons


def leaves(kind: int) -> bool:
    """Whether a branch of that type always goes elsewhere."""
    return bool(_LEAVES[kind])
