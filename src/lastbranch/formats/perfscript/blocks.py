"""A text in blocks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage
from ...model import Source
from .entries import PAD

__all__ = ["BLOCK", "Block", "walk_blocks"]

BLOCK = 1 << 21
_LONGEST_LINE = 1 << 24
"""A stack of 64 entries has 4,000 bytes."""
_NEWLINE, _BLANK = 10, 32
_TAIL = 1 << 16
_Place = TypeVar("_Place", int, NDArray[np.int64])


class Block(NamedTuple):
    """Whole lines. ``text`` has `PAD` blanks around them; ``offset`` is where the first line stands in the file.

    ``starts`` and ``ends`` int64: first byte of each line in ``text``, and the place of its end of line.
    """

    offset: int
    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def position(self, at: _Place) -> _Place:
        """Where the byte ``at`` of ``text`` stands in the file."""
        return at + (self.offset - PAD)

    def line(self, i: int) -> bytes:
        """Line ``i`` without its end."""
        return self.text[self.starts[i] : self.ends[i]].tobytes()


def walk_blocks(source: Source, damage: list[Damage] | None = None) -> Iterator[Block]:
    """The lines of ``source``; what is too long for a line is stepped over and noted in ``damage``."""
    offset, size, rest = 0, source.size, np.empty(0, np.uint8)
    while offset < size:
        begins, kept = offset - len(rest), len(rest)
        text = np.empty(PAD + kept + BLOCK + 1 + PAD, np.uint8)
        text[:PAD] = _BLANK
        text[PAD : PAD + kept] = rest
        got = source.readinto(offset, text.data[PAD + kept : PAD + kept + min(BLOCK, size - offset)])
        if not got:
            return
        offset, end = offset + got, PAD + kept + got
        cut = end if offset >= size else _behind_last_line(text, end)
        rest = text[cut:end].copy()
        if cut > PAD:
            yield _block(text, cut, begins)
        elif len(rest) > _LONGEST_LINE:
            if damage is not None:
                damage.append(Damage("line that does not end", begins, "line", None, len(rest)))
            rest = rest[:0]


def _behind_last_line(text: NDArray[np.uint8], end: int) -> int:
    """The place behind the last end of line before ``end``; `PAD` where there is none."""
    for begin in range(end - _TAIL, PAD - _TAIL, -_TAIL):
        at = max(begin, PAD)
        found = text[at : at + _TAIL].tobytes().rfind(b"\n", 0, min(end - at, _TAIL))
        if found >= 0:
            return at + found + 1
    return PAD


def _block(text: NDArray[np.uint8], end: int, offset: int) -> Block:
    """The lines of ``text`` up to ``end``, with an end of line behind the last one if it lacks it, and blanks."""
    if text[end - 1] != _NEWLINE:
        text[end] = _NEWLINE
        end += 1
    text[end : end + PAD] = _BLANK
    text = text[: end + PAD]
    ends = np.flatnonzero(text == _NEWLINE)
    starts = np.empty_like(ends)
    starts[0] = PAD
    starts[1:] = ends[:-1] + 1
    return Block(offset, text, starts, ends)
