"""The straight line that runs after a branch, taken or not: up to the next branch of the code."""

from __future__ import annotations

import numpy as np

from ..arrays import distinct
from ..binaries import Code
from ..isa import NOT_A_BRANCH, UNDECODABLE, Decoder
from ..model import Array, Profile
from .branch_kinds import CodeOf

__all__ = ["next_branches"]

_FIRST_LOOK, _FARTHEST = 64, 1 << 16
"""Bytes of code that are decoded for each start: most blocks are short."""


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
