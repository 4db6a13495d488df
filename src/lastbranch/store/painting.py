"""Rectangles of addresses by moments that may overlap, as disjoint pieces in which the newest owns its place."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from ..arrays import ranges
from ..model import Array

__all__ = ["paint"]


def paint(
    space: Array, lo: Array, hi: Array, first: Array, last: Array
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """(space, lo, hi, first, last, row) of disjoint pieces of rectangles ``lo <= address < hi``, ``first <= moment <
    last``.

    Of rectangles that overlap in a space the one with the larger ``first`` is on top, at equal ones the later row.
    ``space``, ``first``, ``last`` int64, ``lo``, ``hi`` uint64; ``row`` int64 says which rectangle a piece is of.
    """
    real = np.flatnonzero((lo < hi) & (first < last))
    space, lo, hi, first, last = (c[real] for c in (space, lo, hi, first, last))
    addresses = np.unique(np.concatenate([lo, hi]))
    width = len(addresses) + 1
    start = space * width + np.searchsorted(addresses, lo)
    end = space * width + np.searchsorted(addresses, hi)
    slabs = np.unique(np.concatenate([start, end]))
    one, past = np.searchsorted(slabs, start), np.searchsorted(slabs, end)
    count = past - one
    row = np.repeat(np.arange(len(real)), count)
    slab = ranges(one, count)
    order = np.lexsort((row, first[row], slab))
    row, slab = row[order], slab[order]
    since, until = first[row], last[row]
    clash = (slab[1:] == slab[:-1]) & (until[:-1] > since[1:])
    if clash.any():
        slab, row, since, until = _untangle(slab, row, since, until, np.unique(slab[1:][clash]))
    low, high = slabs[slab], slabs[np.minimum(slab + 1, len(slabs) - 1)]
    return low // width, addresses[low % width], addresses[high % width], since, until, real[row]


def _untangle(
    slab: Array, row: Array, since: Array, until: Array, tangled: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut what overlaps in the ``tangled`` slabs: rows of a slab stand in the order of what lies on what."""
    inside = np.isin(slab, tangled)
    cut: list[tuple[int, int, int, int]] = []
    bounds = np.flatnonzero(np.diff(slab[inside], prepend=-1, append=-1))
    columns = [c[inside].tolist() for c in (slab, row, since, until)]
    for lo, hi in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        here = [c[lo:hi] for c in columns]
        cut += [(here[0][0], here[1][k], a, b) for k, a, b in _on_top(here[2], here[3])]
    kept = [c[~inside] for c in (slab, row, since, until)]
    added = np.array(cut, np.int64).reshape(-1, 4).T
    out = [np.concatenate([a, b]) for a, b in zip(kept, added, strict=True)]
    return out[0], out[1], out[2], out[3]


def _on_top(since: list[int], until: list[int]) -> list[tuple[int, int, int]]:
    """(number, from, to) where interval ``number`` is the last of those that cover it; they are sorted by start."""
    out: list[tuple[int, int, int]] = []
    active: list[tuple[int, int]] = []
    at, arriving = since[0], 0
    while active or arriving < len(since):
        if not active:
            at = max(at, since[arriving])
        while arriving < len(since) and since[arriving] <= at:
            heapq.heappush(active, (-arriving, until[arriving]))
            arriving += 1
        while active and active[0][1] <= at:
            heapq.heappop(active)
        if active:
            following = since[arriving] if arriving < len(since) else active[0][1]
            past = min(active[0][1], following)
            if out and out[-1][0] == -active[0][0] and out[-1][2] == at:
                out[-1] = (out[-1][0], out[-1][1], past)
            else:
                out.append((-active[0][0], at, past))
            at = past
    return out
