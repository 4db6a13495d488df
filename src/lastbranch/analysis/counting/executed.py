"""Instructions that ranges show as executed, in all modules whose code is available."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct, sum_covering
from ...binaries.image import Code
from ...isa import NOT_A_BRANCH, UNDECODABLE, Decoder
from ...lbr import KIND
from ...model import PATCHED, Array, Profile
from .bound_pairs import BoundPairs
from .branch_kinds import CodeOf, kinds_table

__all__ = ["decode_ranges", "executed_instructions", "leaves", "next_branches", "row_of", "ends_range", "straight"]


_FIRST_LOOK, _FARTHEST = 64, 1 << 16
"""Bytes of code that are decoded for each start: most blocks are short."""


# -- Ranges held against the code: which are the straight lines that they should be


_LEAVES = kinds_table("uncond", "ind", "call", "ind_call", "ret")


def row_of(instructions: Array, address: Array) -> NDArray[np.int64]:
    """int64: which of the ``instructions`` (ascending uint64) begins at each address, -1 where none does."""
    if not len(instructions):
        return np.full(len(address), -1, np.int64)
    row = np.minimum(np.searchsorted(instructions, address), len(instructions) - 1)
    return np.where(instructions[row] == address, row, -1)


def ends_range(address: Array, length: Array, kind: Array, target: Array) -> NDArray[np.bool_]:
    """Instructions that no straight line runs through: unconditional branches, unless they go to the next instruction.

    An indirect jump may go to the next instruction (the first case of a jump table), and a record made by comparing
    addresses does not see such a jump as taken.
    """
    found: NDArray[np.bool_] = _LEAVES[kind] & (kind != KIND["ind"]) & (target != address + length)
    return found


def straight(
    stop: NDArray[np.bool_], first: Array, last: Array, count: Array
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """(which ranges are straight-line code, the ``count`` of the others by reason).

    ``first`` and ``last`` int64: rows of ``stop`` (see `ends_range`), -1 for an address within an instruction.
    """
    torn = (first < 0) | (last < 0)
    before = np.concatenate([[0], np.cumsum(stop)])
    through = ~torn & (before[last] > before[first])
    reasons = {
        "begin or end inside an instruction": int(count[torn].sum()),
        "run past an unconditional branch": int(count[through].sum()),
    }
    return ~(torn | through), reasons


def leaves(kind: int) -> bool:
    """Whether a branch of that type always goes elsewhere."""
    return bool(_LEAVES[kind])


@dataclass(slots=True)
class ExecutedInstructions:
    """Equal-length arrays, one element for each instruction that ran, in any order.

    ``process``, ``module`` int64 rows; ``address`` uint64; ``count`` int64 executions. ``hidden`` is how many ranges
    lie in code that is not available (in the modules ``hidden_modules``), ``left_out`` how many are no straight line,
    by reason (`straight`).
    """

    process: Array
    module: Array
    address: Array
    count: Array
    hidden: int = 0
    hidden_modules: set[int] = field(default_factory=set)
    left_out: dict[str, int] = field(default_factory=dict)


def executed_instructions(profile: Profile, ranges: BoundPairs, code_of: CodeOf) -> ExecutedInstructions:
    """The instructions that ``ranges`` cover, summed over processes (``process`` is -1: files have the same code)."""
    parts, none = list[tuple[int, Array, Array]](), np.empty(0, np.int64)
    out = ExecutedInstructions(none, none, none.astype(np.uint64), none)
    for row in distinct(ranges.a_module).tolist():
        mine = ranges.take(ranges.a_module == row)
        found = code_of(row)
        if found is None:
            out.hidden += int(mine.count.sum())
            out.hidden_modules.add(row)
            continue
        address, stop = decode_ranges(*found, mine.a, mine.b)
        first, last = row_of(address, mine.a), row_of(address, mine.b)
        patched = profile.modules[row].kind in PATCHED
        good, reasons = straight(stop & (not patched), first, last, mine.count)
        for reason, number in reasons.items():
            out.left_out[reason] = out.left_out.get(reason, 0) + number
        count = sum_covering(first[good], last[good] + 1, mine.count[good], len(address))
        parts.append((row, address[count > 0], count[count > 0]))
    if parts:
        out.module = np.concatenate([np.full(len(address), row) for row, address, _ in parts])
        out.address = np.concatenate([address for _, address, _ in parts])
        out.count = np.concatenate([count for _, _, count in parts])
    out.process = np.full(len(out.count), -1, np.int64)
    return out


def decode_ranges(code: Code, decoder: Decoder, start: Array, end: Array) -> tuple[Array, Array]:
    """(address uint64, bool: see `ends_range`) of the instructions from the starts to the ends, each once, ascending.

    Adjacent ranges make one stretch, decoded from its first instruction on.
    """
    order = np.argsort(start, kind="stable")
    starts, reach = start[order], np.maximum.accumulate(end[order])
    new = np.concatenate([[True], starts[1:] > reach[:-1]])
    ends = reach[np.append(np.flatnonzero(new)[1:] - 1, len(reach) - 1)]
    begin, span = starts[new], (ends - starts[new]).astype(np.int64)
    found, _ = decoder.classify(*code.read_many(begin, span + decoder.arch.longest), begin, span + 1)
    return found.address, ends_range(*found)


# -- The straight line that runs after a branch, taken or not: up to the next branch of the code


def next_branches(profile: Profile, module: Array, start: Array) -> tuple[Array, Array]:
    """(uint64 address of the first branch from each ``start`` on, bool where the code has one and is available).

    ``start`` uint64 lies in the row ``module`` of the modules table.
    """
    end, known, code_of = start.copy(), np.zeros(len(start), bool), CodeOf(profile)
    for row in distinct(module).tolist():
        mine, code = module == row, code_of(row)
        if code is not None:
            end[mine], known[mine] = _next_branch(*code, start[mine])
    return end, known


def _next_branch(code: Code, decoder: Decoder, start: Array) -> tuple[Array, Array]:
    """(address of the first branch from each start on, bool where there is one before the code ends)."""
    end, known = start.copy(), np.zeros(len(start), bool)
    left, look = np.arange(len(start)), _FIRST_LOOK
    while len(left) and look <= _FARTHEST:
        span = np.full(len(left), look, np.int64)
        room = span + decoder.arch.longest  # the last instruction is whole
        instructions, number = decoder.classify(*code.read_many(start[left], room), start[left], span)
        first = np.append(0, np.cumsum(number))[:-1]
        stop = np.append(np.flatnonzero(instructions.kind != NOT_A_BRANCH), len(instructions.kind))
        at = stop[np.searchsorted(stop, first)]
        found = at < first + number
        ends = np.minimum(at, max(len(instructions.kind) - 1, 0))
        good = found & (instructions.kind[ends] != UNDECODABLE) if len(ends) and len(instructions.kind) else found
        end[left[good]], known[left[good]] = instructions.address[ends[good]], True
        left, look = left[~found & (number > 0)], look * 4
    return end, known
