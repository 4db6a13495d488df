"""Finds where the instructions of byte code begin, for all programs at once, by speculative decoding.

DWARF's line number programs and range lists are byte code: what a byte means depends on the bytes before it. A state
table describes that. Programs are cut into pieces, and thousands of pieces are decoded in step.

At first each piece assumes that an instruction begins at its first byte. A piece whose predecessor ended in another
state is decoded again from that state. This repeats until all pieces agree; the result is that of decoding in sequence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, offsets_of, positions
from ....binaries.files import Space

__all__ = ["instruction_starts", "state_table"]

PIECE = 256
"""Bytes of a piece. With short pieces more of them run in step, but more of them run twice."""

BAD = 1
"""The state after a byte that no instruction begins with. It continues like state 0, so that a piece that began in the
wrong state recovers. A program ends there."""


def state_table(instructions: dict[int, tuple[int, ...]], counted: int | None = None) -> NDArray[np.uint16]:
    """uint16[states, 256]: the state after each byte; state 0: an instruction begins.

    ``instructions``: first byte -> operands, each a number of bytes or -1 for a LEB128 number. ``counted`` is the first
    byte that is followed by a byte with the number of bytes that follow. Bytes that are not listed lead to `BAD`.
    """
    states: dict[tuple[int, ...], int] = {(): 0}
    first_bytes = np.full(256, BAD, np.uint16)
    rows: list[NDArray[np.uint16]] = [first_bytes, first_bytes]

    def state(operands: tuple[int, ...]) -> int:
        """The state in which ``operands`` follow."""
        operands = tuple(o for o in operands if o)
        if operands not in states:
            states[operands] = len(rows)
            row = np.empty(256, np.uint16)
            rows.append(row)
            if operands[0] < 0:
                row[:128], row[128:] = state(operands[1:]), states[operands]
            else:
                row[:] = state((operands[0] - 1, *operands[1:]))
        return states[operands]

    for first, operands in instructions.items():
        first_bytes[first] = state(operands)
    if counted is not None:
        lengths = np.full(256, BAD, np.uint16)
        for n in range(1, 128):
            lengths[n] = state((n,))
        first_bytes[counted] = len(rows)
        rows.append(lengths)
    return np.stack(rows)


def instruction_starts(space: Space, begin: Ints, end: Ints, table: NDArray[np.uint16]) -> tuple[Ints, Ints]:
    """(offsets at which instructions begin, ascending within a program; row of the program).

    Programs are ``space[begin:end]``. One that comes to a `BAD` byte ends there.
    """
    end = np.minimum(end, space.size)
    pieces = np.maximum(0, -(-(end - begin) // PIECE))
    program, number = np.repeat(np.arange(len(begin)), pieces), positions(offsets_of(pieces))
    first = begin[program] + number * PIECE
    length = np.minimum(end[program] - first, PIECE)
    state_in = np.zeros(len(first), np.int64)
    marks, state_out = _run(space, table, first, length, state_in)
    while True:
        wanted = np.where(number > 0, np.roll(state_out, 1), 0)
        wrong = np.flatnonzero(wanted != state_in)
        if not len(wrong):
            break
        state_in[wrong] = wanted[wrong]
        marks[wrong], state_out[wrong] = _run(space, table, first[wrong], length[wrong], wanted[wrong])
    piece, inside = np.nonzero(marks == 1)
    at, program_at = first[piece] + inside, program[piece]
    piece, inside = np.nonzero(marks == 2)
    if len(piece):
        stop = end.copy()
        np.minimum.at(stop, program[piece], first[piece] + inside - 1)
        kept = at < stop[program_at]
        at, program_at = at[kept], program_at[kept]
    return at, program_at


def _run(
    space: Space, table: NDArray[np.uint16], first: Ints, length: Ints, state: Ints
) -> tuple[NDArray[np.uint8], Ints]:
    """Run each piece from its state. Returns uint8[pieces, PIECE] (1: an instruction begins; 2: after a bad byte),
    and the state at each end."""
    order = np.argsort(-length, kind="stable")
    running = np.searchsorted(-length[order], -np.arange(PIECE), side="left")  # pieces longer than each step
    at, state, flat = first[order], state[order].astype(np.intp), table.ravel()
    marks = np.zeros((PIECE, len(first)), np.uint8)
    for step in range(PIECE):
        n = int(running[step])
        if n == 0:
            break
        now = state[:n]
        marks[step, :n] = np.where(now <= BAD, now + 1, 0)
        state[:n] = flat[now * 256 + space.data[at[:n] + step]]
    back = np.argsort(order)
    return marks.T[back], state[back]
