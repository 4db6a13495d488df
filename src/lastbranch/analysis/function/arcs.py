"""Jumps within a function as arcs beside its code: where each begins, ends and lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...arrays import Table
from ...model import Array
from ..counting.branch_kinds import JUMPS
from .flow import Flow

__all__ = ["Arcs", "arcs_of", "lanes"]


@dataclass(slots=True)
class Arcs(Table):
    """Jumps between two instructions of a function, hottest first; equal-length arrays.

    ``source``, ``target`` int64: rows of instructions (a ``target`` at or above its ``source`` closes a loop).
    ``count``, ``mispredicted``, ``predicted`` int64: branch entries, 0 for a jump of the code that was not seen.
    ``share`` float64: the share of the executions of ``source`` that went to ``target``; NaN if none was seen. ``lane``
    int64: how far from the code the arc lies, from 0; -1 where all lanes are taken.
    """

    source: Array
    target: Array
    count: Array
    mispredicted: Array
    predicted: Array
    share: Array
    lane: Array


def arcs_of(flow: Flow, most: int = 16) -> Arcs:
    """The arcs of ``flow`` in up to ``most`` lanes: direct jumps of its code, and jumps that were seen."""
    edges, blocks = flow.edges, flow.blocks
    seen = np.flatnonzero((edges.source >= 0) & (edges.target >= 0) & JUMPS[flow.kind[edges.source]])
    found = {
        (source, target): sums
        for source, target, *sums in np.column_stack(
            [
                edges.source[seen],
                edges.target[seen],
                edges.count[seen],
                edges.mispredicted[seen],
                edges.predicted[seen],
            ]
        ).tolist()
    }
    direct = np.flatnonzero(JUMPS[flow.kind] & (flow.target != 0))
    targets = flow.row_of(flow.target[direct])
    for source, target in zip(direct[targets >= 0].tolist(), targets[targets >= 0].tolist(), strict=True):
        found.setdefault((source, target), [0, 0, 0])
    keys = sorted(found, key=lambda key: (-found[key][0], key))
    table = np.array([[*key, *found[key]] for key in keys], np.int64).reshape(-1, 5)
    source, target, count, mispredicted, predicted = (np.ascontiguousarray(column) for column in table.T)
    every = np.zeros(len(flow), np.int64)
    np.add.at(every, edges.source[edges.source >= 0], edges.count[edges.source >= 0])
    ran = blocks.ended + blocks.through
    taken = np.full(len(flow), np.nan)
    taken[blocks.last[ran > 0]] = blocks.ended[ran > 0] / ran[ran > 0]
    share = np.full(len(keys), np.nan)
    np.divide(count, every[source], out=share, where=every[source] > 0)
    unseen = (every[source] == 0) & (taken[source] == 0)  # it ran, and never jumped
    share = np.where(unseen, 0.0, share * taken[source])
    return Arcs(source, target, count, mispredicted, predicted, share, lanes(source, target, most))


def lanes(source: Array, target: Array, most: int) -> NDArray[np.int64]:
    """int64: a lane for each arc, so that no two in a lane share a row; -1 where ``most`` lanes are taken there.

    Short arcs are nearest to the code. If lanes run out, the earlier arc has precedence.
    """
    low, high = np.minimum(source, target).tolist(), np.maximum(source, target).tolist()
    masks = [((1 << (b - a + 1)) - 1) << a for a, b in zip(low, high, strict=True)]
    kept, taken = list[int](), [0] * most
    for i, mask in enumerate(masks):  # which arcs fit at all, the earlier ones first
        lane = next((n for n, rows in enumerate(taken) if not rows & mask), -1)
        if lane >= 0:
            taken[lane] |= mask
            kept.append(i)
    out = np.full(len(masks), -1)
    first = out.copy()
    for arcs, into in ((sorted(kept, key=lambda i: (high[i] - low[i], i)), out), (kept, first)):
        taken = [0] * most
        for i in arcs:
            into[i] = next((n for n, rows in enumerate(taken) if not rows & masks[i]), -1)
            if into[i] >= 0:
                taken[into[i]] |= masks[i]
    return out if len(kept) == np.count_nonzero(out >= 0) else first
