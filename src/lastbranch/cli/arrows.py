"""Jumps as arrows beside the lines of a listing, in boxes' characters or in ASCII."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .paint import can_print, heat, painted

if TYPE_CHECKING:
    from ..analysis.flow import Flow

__all__ = ["Arrows"]

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_BOXES = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"
_ASCII = " |||-+++-+++-+++"
"""A character for each sum of directions in which a line leaves it."""


class Arrows:
    """The jumps of ``flow`` between instructions (rows) that are ``listed``; the hottest ones have precedence.

    ``every``: also those that were not seen. They take up to ``most`` columns beside each other; `width` is what they
    take here, 0 without any.
    """

    def __init__(self, flow: Flow, listed: Collection[int], every: bool, most: int) -> None:
        from ..analysis.arcs import arcs_of, lanes

        arcs = arcs_of(flow)
        ends = zip(arcs.source.tolist(), arcs.target.tolist(), arcs.count.tolist(), strict=True)
        kept = [i for i, (a, b, count) in enumerate(ends) if a in listed and b in listed and (count or every)]
        source, target, count = arcs.source[kept], arcs.target[kept], arcs.count[kept]
        lane = lanes(source, target, most)
        self._lanes = int(lane.max(initial=-1)) + 1
        self.width = self._lanes + 2 if self._lanes else 0
        self._lines: dict[int, list[int]] = {}
        """Row -> directions, by lane."""
        self._heads: dict[int, str] = {}
        self._heat: dict[tuple[int, int], float] = {}
        """(row, lane; -1: the head) -> share of the hottest jump."""
        self._signs = _BOXES if can_print(_BOXES) else _ASCII
        most_often = max(count.tolist(), default=0) or 1
        columns = (source.tolist(), target.tolist(), lane.tolist(), (count / most_often).tolist())
        for start, end, at, part in reversed(list(zip(*columns, strict=True))):
            if at >= 0:
                self._draw(start, end, at, part)

    def _draw(self, source: int, target: int, lane: int, part: float) -> None:
        low, high = sorted((source, target))
        for row in range(low, high + 1):
            self._mark(row, lane, (row > low) * _UP | (row < high) * _DOWN | (row in (low, high)) * _RIGHT, part)
        for row in {low, high}:
            for nearer in range(lane):
                self._mark(row, nearer, _LEFT | _RIGHT, part)
            self._heat[row, -1] = part
        self._heads.setdefault(source, self._signs[_LEFT | _RIGHT])
        self._heads[target] = ">"

    def _mark(self, row: int, lane: int, directions: int, part: float) -> None:
        self._lines.setdefault(row, [0] * self._lanes)[lane] |= directions
        self._heat[row, lane] = part

    def at(self, row: int) -> str:
        """What belongs beside an instruction."""
        return self._text(row, self._lines.get(row, []), self._heads.get(row, " "))

    def before(self, row: int) -> str:
        """What belongs beside a line between an instruction and the one before it."""
        passing = [(_UP | _DOWN) * bool(directions & _UP) for directions in self._lines.get(row, [])]
        return self._text(row, passing, " ")

    def _text(self, row: int, directions: list[int], head: str) -> str:
        if not directions:
            return " " * self.width
        signs = [(self._signs[one], lane) for lane, one in enumerate(directions)]
        return (
            "".join(painted(sign, heat(self._heat.get((row, lane)))) for sign, lane in [*signs[::-1], (head, -1)]) + " "
        )
