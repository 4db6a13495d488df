"""The graph of a function's blocks: the edges that were seen, and the probability of each edge."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ...arrays import Table, group
from ...model import Array
from ..counting.branch_kinds import CALLS, JUMPS
from .flow import Flow

__all__ = ["BlockEdges", "BlockGraph", "EdgeKind", "block_graph"]


class EdgeKind(IntEnum):
    """How a block is left and another one reached."""

    TAKEN = 0
    """By a jump within the function."""
    FALL_THROUGH = 1
    """Without a taken branch, into the block after it; from outside into the first one, out of the last one."""
    CALLED = 2
    """Out of the function by a call."""
    RETURNED = 3
    """From outside, into the block after a call."""
    LEFT = 4
    """Out of the function by any other branch: returns, tail calls, interrupts."""
    ENTERED = 5
    """From outside, into any other block."""


@dataclass(slots=True)
class BlockEdges(Table):
    """Edges between blocks, by their ends; equal-length arrays.

    ``source``, ``target`` int64: rows of the blocks, -1 outside the function. ``kind`` uint8 (`EdgeKind`). ``count``,
    ``mispredicted``, ``predicted`` int64: entries of branch stacks, for `EdgeKind.FALL_THROUGH` ranges. ``probability``
    float64: of the executions of ``source``, the share that took this edge; NaN from outside, and where the end of the
    block was never seen.
    """

    source: Array
    target: Array
    kind: Array
    count: Array
    mispredicted: Array
    predicted: Array
    probability: Array


@dataclass(slots=True)
class BlockGraph:
    """``came`` and ``went``, int64, count the recorded arrivals at each block and departures from it.

    The two are equal in a complete record. They differ by the ends of branch stacks (the newest branch arrives, and its
    block's exit is not recorded) and by lost or contradictory records.
    """

    edges: BlockEdges
    came: Array
    went: Array


def block_graph(flow: Flow) -> BlockGraph:
    """The edges between the blocks of ``flow``, summed over their branches."""
    edges = _edges(flow)
    came, went = (_sums(rows, edges.count, len(flow.blocks)) for rows in (edges.target, edges.source))
    return BlockGraph(edges, came, went)


def _edges(flow: Flow) -> BlockEdges:
    blocks, edges = flow.blocks, flow.edges
    n = len(blocks)
    if not n:
        none = np.empty(0, np.int64)
        return BlockEdges(none, none, none.astype(np.uint8), none, none, none, np.empty(0))
    block_of = np.repeat(np.arange(n), blocks.last - blocks.first + 1)
    source, target = (np.where(rows >= 0, block_of[rows], -1) for rows in (edges.source, edges.target))
    kind = np.where(edges.source >= 0, flow.kind[edges.source], 0)
    within = (source >= 0) & (target >= 0) & JUMPS[kind]
    # A function that calls itself, or returns into itself, is left and entered.
    out, into = (source >= 0) & ~within, (target >= 0) & ~within
    calls = CALLS[flow.kind[blocks.last]]
    after_call = calls[(target - 1).clip(0)] & (target > 0) & (edges.target == blocks.first[target])
    counts = (edges.count, edges.mispredicted, edges.predicted)
    zero = np.zeros(n, np.int64)
    next_block = np.append(np.arange(1, n), -1)
    before = int(blocks.count[0] - flow.arrivals[0])  # ran into it from the code that lies before
    parts: list[tuple[Array, Array, Array, tuple[Array, ...]]] = [
        (source[within], target[within], _all(EdgeKind.TAKEN, within.sum()), tuple(c[within] for c in counts)),
        (
            source[out],
            _all(-1, out.sum()),
            np.where(CALLS[kind[out]], EdgeKind.CALLED, EdgeKind.LEFT),
            tuple(c[out] for c in counts),
        ),
        (
            _all(-1, into.sum()),
            target[into],
            np.where(after_call[into], EdgeKind.RETURNED, EdgeKind.ENTERED),
            tuple(c[into] for c in counts),
        ),
        (np.arange(n), next_block, _all(EdgeKind.FALL_THROUGH, n), (blocks.through, zero, zero)),
        (_all(-1, 1), _all(0, 1), _all(EdgeKind.FALL_THROUGH, 1), (_all(before, 1), zero[:1], zero[:1])),
    ]
    keys = [np.concatenate([part[i] for part in parts]) for i in range(3)]
    values = [np.concatenate([part[3][i] for part in parts]) for i in range(3)]
    keys, sums = group(keys, values, [np.add] * 3)
    source, target, how = keys
    count, wrong, right = sums
    made = BlockEdges(source, target, how.astype(np.uint8), count, wrong, right, np.full(len(how), np.nan))
    made = made.take(made.count > 0)
    made.probability = _probability(flow, made)
    return made


def _all(value: int, count: int) -> NDArray[np.int64]:
    return np.full(int(count), value, np.int64)


def _probability(flow: Flow, edges: BlockEdges) -> NDArray[np.float64]:
    """Whether the branch is taken: by the ranges, which see both; where it goes then: by the entries."""
    blocks, source = flow.blocks, edges.source
    past = edges.kind == EdgeKind.FALL_THROUGH
    branched = _sums(np.where(past, -1, source), edges.count, len(blocks))[source]
    ended, through = blocks.ended[source].astype(np.float64), blocks.through[source]
    part = np.where(past, through * branched.clip(1), ended * edges.count)
    whole = (ended + through) * branched.clip(1)
    out = np.full(len(edges), np.nan)
    np.divide(part, whole, out=out, where=(source >= 0) & (whole > 0))
    return out


def _sums(rows: Array, values: Array, n: int) -> NDArray[np.int64]:
    out = np.zeros(n, np.int64)
    np.add.at(out, rows[rows >= 0], values[rows >= 0])
    return out
