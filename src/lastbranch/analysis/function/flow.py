"""Executed code of one function, its control flow and its cycles, from ranges and branches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays import Table, covered, distinct, group
from ...isa import UNDECODABLE, Decoder
from ...lbr import KIND
from ...model import Array
from ..counting.bound_pairs import Bound
from ..counting.executed import row_of, stops, straight

__all__ = ["Blocks", "Edges", "Flow", "Stretches", "flow_of", "stretches"]


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
    branches: Bound,
    ranges: Bound,
    decoder: Decoder,
    code: bytes,
    module: int,
    start: int,
    *,
    patched: bool = False,
    not_taken: Bound | None = None,
) -> Flow:
    """The control flow of ``code`` (at link address ``start`` of row ``module``) by its ``branches`` and ``ranges``.

    Ranges may reach beyond it: the part inside counts, though not its cycles. Ranges that are not `straight` are left
    out. ``patched``: other branches may have run than are in the file (kernels patch themselves), so none is held
    against it. ``not_taken`` are branches that were not taken, where these are recorded (`Counted`).
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


def _edges(branches: Bound, module: int, start: int, size: int) -> Edges:
    """All branches with an end in the code, summed over processes, hottest first."""

    def inside(row: Array, at: Array) -> Array:
        return np.asarray((row == module) & (at >= np.uint64(start)) & (at < np.uint64(start + size)))

    mine = branches.take(inside(branches.a_module, branches.a) | inside(branches.b_module, branches.b))
    keys = [mine.a_module, mine.a, mine.b_module, mine.b]
    keys, sums = group(keys, [mine.count, mine.mispredicted, mine.predicted], [np.add] * 3)
    none = np.full(len(sums[0]), -1, np.int64)
    columns = [none, *keys[:2], none, *keys[2:], *sums]
    return Edges(*columns).take(np.argsort(-sums[0], kind="stable"))


def _fill(flow: Flow, ranges: Bound, patched: bool, not_taken: Bound | None) -> None:
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
    stop = np.zeros(n, bool) if patched else stops(flow.address, flow.length, flow.kind, flow.target)
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


def _cycles(mine: Bound, first: Array, last: Array, cut: Array, n: int) -> tuple[Array, Array]:
    """(cycles float64, ranges that have theirs int64) of each instruction; a range shares its cycles out evenly."""
    if not mine.values:
        return np.zeros(n), np.zeros(n, np.int64)
    whole = ~cut
    spent, timed = mine.values["cycles"][whole], mine.values["timed"][whole]
    first, last = first[whole], last[whole]
    each = spent / (last - first + 1)
    cycles, ranges = (covered(first, last + 1, values, n) for values in (each, timed))
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


def _count_not_taken(flow: Flow, not_taken: Bound) -> None:
    """Replace counts of conditional branches from ranges by the recorded ones: ranges may end at each branch."""
    blocks, row = flow.blocks, np.where(not_taken.a_module == flow.module, flow.row_of(not_taken.a), -1)
    mine = not_taken.take(row >= 0)
    columns = mine.count, mine.mispredicted, mine.predicted
    passed, wrong, right = (_sum(row[row >= 0], column, len(flow))[blocks.last] for column in columns)
    taken = _of_branch(flow, flow.edges.count)[blocks.last]
    counted = (flow.kind[blocks.last] == KIND["cond"]) & (passed + taken > 0)
    blocks.ended, blocks.through = np.where(counted, taken, blocks.ended), np.where(counted, passed, blocks.through)
    blocks.mispredicted, blocks.predicted = blocks.mispredicted + wrong, blocks.predicted + right
