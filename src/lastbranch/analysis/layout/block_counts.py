"""Counts of branches and ranges, mapped onto the machine blocks of `binaries.block_map`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...arrays import Ints, covered, group
from ...binaries.block_map import BlockFlags, BlockMap
from ...binaries.image import Code
from ...isa import Decoder
from ...lbr import KIND
from ...model import Array, counted
from ..counting.branch_kinds import CALLS, JUMPS

__all__ = ["BlockCounts", "block_counts"]


@dataclass(slots=True)
class BlockCounts:
    """Executions of the blocks of a map, and the edges between them; counts are int64.

    ``executed``: of each block. ``source``, ``target``, ``edge``: edges within functions by their rows in the map, each
    once, sorted. ``caller``, ``callee``, ``calls``: calls and tail calls by functions (rows of `BlockMap.entry`), each
    pair once, none of a function by itself. ``ranges``: executions of ranges in each function.
    """

    executed: Array
    source: Ints
    target: Ints
    edge: Array
    caller: Ints
    callee: Ints
    calls: Array
    ranges: Array
    notes: list[str] = field(default_factory=list)
    """For the user: which counts contradict the map."""


def block_counts(
    blocks: BlockMap, code: Code, ranges: tuple[Array, Array, Array], branches: tuple[Array, Array, Array]
) -> BlockCounts:
    """The counts of the ``blocks`` of a binary with this ``code``.

    ``ranges`` (start, end, times) and ``branches`` (source, target, taken) have link addresses of instructions (uint64)
    and int64 counts. A block runs on into the next block if a range leads through both, or if a return arrives at the
    beginning of the next block (a call was the last instruction). Ranges that lead out of a function, or on from a
    block that cannot run on, are left out with a note. Raises `UnavailableError` where instructions cannot be decoded.
    """
    n = len(blocks)
    runs_on = _runs_on(blocks)
    start, end, times = ranges
    first, last = blocks.at(start), blocks.at(end)
    known = (first >= 0) & (last >= first)
    stops = np.concatenate([[0], np.cumsum(~runs_on)])
    good = known & (stops[last] == stops[first])
    notes = []
    if wrong := int(times[known & ~good].sum()):
        notes.append(f"{counted(wrong, 'range')} left out: no block runs on there")
    through = covered(first[good], last[good], times[good], n)
    touched = covered(first[good], last[good] + 1, times[good], n) > 0

    source, target, taken = branches
    at, to = blocks.at(source), blocks.at(target)
    kind = _kinds(code, source, at >= 0)
    head = (to >= 0) & (blocks.start[to] == target) if n else to >= 0
    entry = head & (blocks.entry[blocks.function[to]] == target) if n else head
    same = (at >= 0) & (to >= 0) & (blocks.function[at] == blocks.function[to]) if n else head
    jump = JUMPS[kind] & same & head
    # A return to the beginning of a block: the block before it ended with the call.
    back = (kind == KIND["ret"]) & head & ~entry & (to > 0)
    back[back] = runs_on[to[back] - 1]
    np.add.at(through, to[back] - 1, taken[back])
    on = np.flatnonzero(through)
    (a, b), (edge,) = group(
        [np.concatenate([at[jump], on]), np.concatenate([to[jump], on + 1])],
        [np.concatenate([taken[jump], through[on]])],
        [np.add],
    )
    called = (CALLS[kind] | (JUMPS[kind] & ~same)) & (at >= 0) & entry
    executed = _executed(n, a, b, edge, (to[called], taken[called]))
    np.maximum(executed, touched, out=executed)
    for row in (at[at >= 0], to[to >= 0]):
        executed[row] = np.maximum(executed[row], 1)
    caller, callee = blocks.function[at[called]], blocks.function[to[called]]
    other = caller != callee
    (caller, callee), (calls,) = group([caller[other], callee[other]], [taken[called][other]], [np.add])
    each = np.zeros(len(blocks.entry), np.int64)
    np.add.at(each, blocks.function[first[good]], times[good])
    return BlockCounts(executed, a, b, edge, caller, callee, calls, each, notes)


def _runs_on(blocks: BlockMap) -> Array:
    """Which blocks can run on into that of the next row."""
    out = (blocks.flags & BlockFlags.FALL_THROUGH) != 0
    out[-1:] = False
    out[:-1] &= blocks.range[1:] == blocks.range[:-1]
    return np.asarray(out)


def _kinds(code: Code, address: Array, wanted: Array) -> Array:
    """uint8: the kind of branch at each address, 0 where it is not ``wanted``."""
    kind = np.zeros(len(address), np.uint8)
    decoder = Decoder(code.arch)
    if wanted.any():
        at = address[wanted]
        size = np.full(len(at), decoder.arch.longest, np.int64)
        found, each = decoder.classify(*code.read_many(at, size), at, np.ones(len(at), np.int64))
        kind[np.flatnonzero(wanted)[each > 0]] = found.kind
    return kind


def _executed(n: int, source: Ints, target: Ints, edge: Array, called: tuple[Ints, Array]) -> Array:
    """Executions of each block: what came, or what went, whichever is more."""
    came, went = np.zeros(n, np.int64), np.zeros(n, np.int64)
    np.add.at(came, target, edge)
    np.add.at(came, called[0], called[1])
    np.add.at(went, source, edge)
    return np.maximum(came, went)
