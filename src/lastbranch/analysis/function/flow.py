"""Executed code of one function, its control flow and its cycles, from ranges and branches."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays import Table, distinct, group, sum_covering
from ...isa import UNDECODABLE, Decoder
from ...lbr import KIND
from ...model import Array
from ..counting.bound_pairs import BoundPairs
from ..counting.branch_kinds import CALLS, JUMPS
from ..counting.executed import ends_range, row_of, straight

__all__ = [
    "Arcs",
    "BlockEdges",
    "BlockGraph",
    "Blocks",
    "EdgeKind",
    "Edges",
    "Flow",
    "Stretches",
    "arcs_of",
    "block_graph",
    "flow_of",
    "lanes",
    "stretches",
]


@dataclass(slots=True)
class Blocks(Table):
    """Straight-line pieces, by address; equal-length arrays. Within a block every instruction ran equally often.

    ``first``, ``last`` int64: rows of its first and last instruction. ``count`` int64: ranges that cover the block;
    ``ended`` of these ranges end with the block (its branch was taken), ``through`` went on into the next block; if the
    capture records branches not taken, ``ended`` and ``through`` count records of the branch. ``mispredicted``,
    ``predicted`` int64: entries of the branch at the block's end that say so, taken or not. ``cycles`` float64: the
    block's share of the cycles of the ranges that cover the block, by instructions; ``timed`` int64 of these ranges
    have recorded cycles.
    """

    first: Array
    last: Array
    count: Array
    ended: Array
    through: Array
    mispredicted: Array
    predicted: Array
    cycles: Array
    timed: Array


@dataclass(slots=True)
class Edges(Table):
    """Taken branches out of, into and within the function, hottest first; equal-length arrays.

    ``source``, ``target`` int64: rows of instructions, -1 outside the function. ``from_module``, ``to_module`` int64
    and ``from_address``, ``to_address`` uint64 as in `BranchTable`; ``count``, ``mispredicted``, ``predicted`` int64
    entries.
    """

    source: Array
    from_module: Array
    from_address: Array
    target: Array
    to_module: Array
    to_address: Array
    count: Array
    mispredicted: Array
    predicted: Array


@dataclass(slots=True)
class Flow:
    """Code at ``start`` up to ``end`` (link addresses, exclusive) of a row of the modules table, and its counts.

    Columns have one value an instruction: ``address`` uint64, ``length`` uint8, ``kind`` uint8 (perf's branch type, 0
    no branch, 255 no instruction), ``target`` uint64 (of a direct branch, else 0), ``text``, and ``arrivals`` int64:
    ranges that begin with the instruction. ``left_out`` counts ranges that are not straight-line code, by reason.
    """

    module: int
    start: int
    end: int
    address: Array
    length: Array
    kind: Array
    target: Array
    text: list[str]
    arrivals: Array
    blocks: Blocks
    edges: Edges
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.text)

    @property
    def executed(self) -> int:
        """Instructions executed in all."""
        return int((self.blocks.count * self._sizes()).sum())

    @property
    def ipc(self) -> float | None:
        """Instructions per cycle over all ranges with recorded cycles; ``None`` where none does."""
        cycles = float(self.blocks.cycles.sum())
        return float((self.blocks.timed * self._sizes()).sum()) / cycles if cycles else None

    def _sizes(self) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = self.blocks.last - self.blocks.first + 1
        return sizes

    def row_of(self, address: Array) -> NDArray[np.int64]:
        """int64: the instruction that begins at each address, -1 where none does."""
        return row_of(self.address, address)


def flow_of(
    branches: BoundPairs,
    ranges: BoundPairs,
    decoder: Decoder,
    code: bytes,
    module: int,
    start: int,
    *,
    patched: bool = False,
    not_taken: BoundPairs | None = None,
) -> Flow:
    """The control flow of ``code`` (at link address ``start`` of row ``module``) by its ``branches`` and ``ranges``.

    Ranges may reach beyond it: the part inside counts, though not its cycles. Ranges that are not `straight` are left
    out. ``patched``: other branches may have run than are in the file (kernels patch themselves), so none is held
    against it. ``not_taken`` are branches that were not taken, where these are recorded (`StackCounts`).
    """
    lines = list(decoder.lines(code, start))
    flow = Flow(
        module,
        start,
        start + len(code),
        np.array([i.address for i in lines], np.uint64),
        np.array([i.length for i in lines], np.uint8),
        np.array([i.kind for i in lines], np.uint8),
        np.array([i.target for i in lines], np.uint64),
        [i.text for i in lines],
        np.zeros(len(lines), np.int64),
        _no_blocks(),
        _edges(branches, module, start, len(code)),
    )
    if not lines:
        return flow
    flow.edges.source, flow.edges.target = (
        np.where(rows == module, flow.row_of(at), -1)
        for rows, at in (
            (flow.edges.from_module, flow.edges.from_address),
            (flow.edges.to_module, flow.edges.to_address),
        )
    )
    _fill(flow, ranges, patched, not_taken)
    return flow


def _no_blocks() -> Blocks:
    none = np.empty(0, np.int64)
    return Blocks(none, none, none, none, none, none, none, np.empty(0), none)


def _edges(branches: BoundPairs, module: int, start: int, size: int) -> Edges:
    """All branches with an end in the code, summed over processes, hottest first."""

    def inside(row: Array, at: Array) -> Array:
        return np.asarray((row == module) & (at >= np.uint64(start)) & (at < np.uint64(start + size)))

    mine = branches.take(inside(branches.a_module, branches.a) | inside(branches.b_module, branches.b))
    keys = [mine.a_module, mine.a, mine.b_module, mine.b]
    keys, sums = group(keys, [mine.count, mine.mispredicted, mine.predicted], [np.add] * 3)
    none = np.full(len(sums[0]), -1, np.int64)
    columns = [none, *keys[:2], none, *keys[2:], *sums]
    return Edges(*columns).take(np.argsort(-sums[0], kind="stable"))


def _fill(flow: Flow, ranges: BoundPairs, patched: bool, not_taken: BoundPairs | None) -> None:
    """Count blocks by differences: each range adds at its first instruction and subtracts after its last."""
    n = len(flow)
    found = stretches(flow, ranges.a_module, ranges.a, ranges.b, ranges.count, patched=patched)
    first, last, before, after, flow.left_out = found.first, found.last, found.before, found.after, found.left_out
    count = ranges.count[found.rows]
    flow.arrivals = _sum(first[~before], count[~before], n)
    ended = _sum(last[~after], count[~after], n)
    past = np.cumsum(_sum(first, count, n)) - np.cumsum(ended)  # went on after each instruction
    cycles, timed = _cycles(ranges.take(found.rows), first, last, before | after, n)
    leaders = _leaders(flow, first, last)
    flow.blocks = _blocks(flow, leaders, ended, past, cycles, timed)
    if not_taken is not None and len(not_taken.count):
        _count_not_taken(flow, not_taken)


class Stretches(NamedTuple):
    """The parts of ranges that are in a function: ``first`` and ``last`` int64 rows of instructions, of the ranges
    ``rows``; ``before``, ``after`` (bool): the range begins before the function, or ends after the function.
    ``left_out`` as in `Flow`."""

    rows: Array
    first: Array
    last: Array
    before: Array
    after: Array
    left_out: dict[str, int]


def stretches(flow: Flow, module: Array, start: Array, end: Array, count: Array, *, patched: bool) -> Stretches:
    """The parts in ``flow`` of ranges from ``start`` to ``end`` (addresses of their ``module``) that are straight-line
    code."""
    n, lo, hi = len(flow), np.uint64(flow.start), np.uint64(flow.end)
    rows = np.flatnonzero((module == flow.module) & (end >= lo) & (start < hi))
    before, after = start[rows] < lo, end[rows] >= hi
    first = np.where(before, 0, row_of(flow.address, start[rows]))
    last = np.where(after, n - 1, row_of(flow.address, end[rows]))
    stop = np.zeros(n, bool) if patched else ends_range(flow.address, flow.length, flow.kind, flow.target)
    good, left_out = straight(stop, first, np.where(after, n, last), count[rows])
    return Stretches(rows[good], first[good], last[good], before[good], after[good], left_out)


def _of_branch(flow: Flow, values: Array) -> NDArray[np.int64]:
    """Sums of a column of the edges by the instruction that they leave from."""
    inside = flow.edges.source >= 0
    return _sum(flow.edges.source[inside], values[inside], len(flow))


def _sum(rows: Array, values: Array, n: int) -> NDArray[np.int64]:
    out = np.zeros(n, values.dtype)
    np.add.at(out, rows, values)
    return out


def _cycles(mine: BoundPairs, first: Array, last: Array, cut: Array, n: int) -> tuple[Array, Array]:
    """(cycles float64, ranges that have theirs int64) of each instruction; a range shares its cycles out evenly."""
    if not mine.values:
        return np.zeros(n), np.zeros(n, np.int64)
    whole = ~cut
    spent, timed = mine.values["cycles"][whole], mine.values["timed"][whole]
    first, last = first[whole], last[whole]
    each = spent / (last - first + 1)
    cycles, ranges = (sum_covering(first, last + 1, values, n) for values in (each, timed))
    cycles[ranges == 0] = 0  # what rounding leaves
    return cycles, ranges


def _leaders(flow: Flow, first: Array, last: Array) -> NDArray[np.int64]:
    """Rows that begin a block: targets, what follows a branch, and where ranges begin or have ended."""
    ends = np.flatnonzero((flow.kind != 0) & (flow.kind != UNDECODABLE))
    targets = flow.row_of(flow.target[flow.target != 0])
    rows = np.concatenate([[0], targets, ends + 1, first, last + 1, flow.edges.target])
    leaders: NDArray[np.int64] = distinct(rows[(rows >= 0) & (rows < len(flow))])
    return leaders


def _blocks(flow: Flow, leaders: Array, ended: Array, past: Array, cycles: Array, timed: Array) -> Blocks:
    last = np.append(leaders[1:], len(flow)) - 1
    wrong, right = (_of_branch(flow, values)[last] for values in (flow.edges.mispredicted, flow.edges.predicted))
    return Blocks(
        leaders,
        last,
        (past + ended)[last],
        ended[last],
        past[last],
        wrong,
        right,
        np.add.reduceat(cycles, leaders),
        timed[leaders],
    )


def _count_not_taken(flow: Flow, not_taken: BoundPairs) -> None:
    """Replace counts of conditional branches from ranges by the recorded ones: ranges may end at each branch."""
    blocks, row = flow.blocks, np.where(not_taken.a_module == flow.module, flow.row_of(not_taken.a), -1)
    mine = not_taken.take(row >= 0)
    columns = mine.count, mine.mispredicted, mine.predicted
    passed, wrong, right = (_sum(row[row >= 0], column, len(flow))[blocks.last] for column in columns)
    taken = _of_branch(flow, flow.edges.count)[blocks.last]
    counted = (flow.kind[blocks.last] == KIND["cond"]) & (passed + taken > 0)
    blocks.ended, blocks.through = np.where(counted, taken, blocks.ended), np.where(counted, passed, blocks.through)
    blocks.mispredicted, blocks.predicted = blocks.mispredicted + wrong, blocks.predicted + right


# -- The graph of a function's blocks: the edges that were seen, and the probability of each edge


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
    edges = _block_edges(flow)
    came, went = (_sums(rows, edges.count, len(flow.blocks)) for rows in (edges.target, edges.source))
    return BlockGraph(edges, came, went)


def _block_edges(flow: Flow) -> BlockEdges:
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


# -- Jumps within a function as arcs beside its code: where each begins, ends and lies


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
