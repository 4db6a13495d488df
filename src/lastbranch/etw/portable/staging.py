"""Events out of shared memory into memory of the daemon's own, where nobody can change them, and checked there.

A buffer goes to a file only if its events chain: each one's header is known and its size leads to the next, and the
last one ends where the writer said. So what a broken or hostile writer does costs its own buffers and no reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...formats.etl.events.walk import HEADER_BYTES, KIND, MESSAGE_BYTES, SHIFT, chains
from ...formats.etl.layout import MESSAGE
from .slots import Piece

__all__ = ["Staged", "Staging"]

MOST_STAGED = 4 << 20
"""Bytes that are copied and checked at a time, or one buffer if that is larger."""
_PAD = 1024  # `chains` looks for events ahead of what there is


@dataclass(slots=True)
class Staged:
    """Some pieces, copied: ``good`` are those whose events chain, and are as many as the writer said.

    ``words`` uint64 holds all; piece i is ``words[first[i]:end[i]]`` (int64). ``at`` int64 and ``head`` uint64 are
    position and first word of each event, ``count`` int64 how many each piece has.
    """

    pieces: list[Piece]
    good: NDArray[np.bool_]
    words: NDArray[np.uint64]
    first: NDArray[np.int64]
    end: NDArray[np.int64]
    at: NDArray[np.int64]
    head: NDArray[np.uint64]
    count: NDArray[np.int64]

    def events(self, i: int) -> NDArray[np.int64]:
        """Where the events of piece ``i`` are in ``words``."""
        begin = int(self.count[:i].sum())
        return self.at[begin : begin + int(self.count[i])]

    def body(self, i: int) -> memoryview:
        """The bytes of piece ``i``, valid until the next pieces are staged."""
        return self.words[self.first[i] : self.end[i]].view(np.uint8).data


class Staging:
    """Copies pieces of the pools into memory that it uses again and again."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint64)

    def stages(self, pieces: list[Piece]) -> Iterator[Staged]:
        """All of ``pieces``, a few MB at a time; each stage is valid until the next is asked for."""
        begin = 0
        while begin < len(pieces):
            past, total = begin, 0
            while past < len(pieces) and (past == begin or total + pieces[past].size <= MOST_STAGED):
                total += pieces[past].size
                past += 1
            room = (total + _PAD) // 8
            if len(self._memory) < room:
                self._memory = np.zeros(room, np.uint64)
            yield _checked(self._memory[:room], pieces[begin:past])
            begin = past


def _checked(memory: NDArray[np.uint64], pieces: list[Piece]) -> Staged:
    end = np.cumsum([piece.size // 8 for piece in pieces], dtype=np.int64)
    first = np.concatenate([np.zeros(1, np.int64), end[:-1]])
    for piece, at, past in zip(pieces, first.tolist(), end.tolist(), strict=True):
        memory[at:past] = np.frombuffer(piece.pool.bytes, np.uint64, past - at, piece.start)
    memory[int(end[-1]) :] = 0
    found = chains(memory, first, end)
    mark = found.head.view(np.uint16)[1::4].astype(np.int64)
    kind = KIND.take(mark)
    size = ((found.head >> SHIFT.take(mark)) & np.uint64(0xFFFF)).view(np.int64)
    small = size < HEADER_BYTES.take(kind)
    message = np.flatnonzero(kind == MESSAGE)
    if len(message):
        options = (found.head[message] >> np.uint64(48)).astype(np.int64)
        small[message] = size[message] < MESSAGE_BYTES.take(options & 0xFF)
    claimed = np.array([piece.events for piece in pieces], np.int64)
    good = (found.stop == end) & (found.count == claimed)
    if small.any():
        owner = np.repeat(np.arange(len(pieces)), found.count)
        good[owner[small]] = False
    return Staged(pieces, good, memory, first, end, found.at, found.head, found.count)
