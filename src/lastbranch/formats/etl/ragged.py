"""Ranges of unlike lengths one after the other, and places in sorted pairs: without a loop over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...model import Array

__all__ = ["insertion_points", "offsets_of", "ranges"]

Ints = NDArray[np.int64]


def ranges(first: Ints, count: Ints, step: int = 1) -> Ints:
    """``first[i], first[i] + step, ...``, ``count[i]`` numbers of each, int64."""
    behind = np.cumsum(count)
    index = np.repeat(first - (behind - count) * step, count)
    index += np.arange(0, len(index) * step, step)
    return index


def offsets_of(count: Ints) -> Ints:
    """Where each range begins and, at the end, how many numbers there are: int64, one more than ``count``."""
    offsets = np.zeros(len(count) + 1, np.int64)
    np.cumsum(count, out=offsets[1:])
    return offsets


def insertion_points(a: Array, b: Array, wanted_a: Array, wanted_b: Array, *, right: bool = False) -> Ints:
    """Left (``right``: right) insertion points of pairs in the sorted pairs ``(a, b)``, int64.

    All pairs are bisected in step among those of their ``a``, of which there are few in what this is used for.
    """
    low, high = np.searchsorted(a, wanted_a, "left"), np.searchsorted(a, wanted_a, "right")
    live = np.flatnonzero(low < high)
    while len(live):
        middle = (low[live] + high[live]) >> 1
        there, mine = b[middle], wanted_b[live]
        behind = (there <= mine) if right else (there < mine)
        low[live] = np.where(behind, middle + 1, low[live])
        high[live] = np.where(behind, high[live], middle)
        live = live[low[live] < high[live]]
    return low
