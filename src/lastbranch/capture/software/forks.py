"""Forks: the branches that a program can get to from a place, so that a breakpoint on each tells which way it went.

A conditional branch has two ways on. If different branches end the two lines behind it, there is no need to stop at it:

                      ┌─ taken ────── line ── end 1
   place ── line ── cond
                      └─ not taken ── line ── end 2

Ends must differ, and none may lie on the way to another: it would stop too early, or leave open which way it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...isa import NOT_A_BRANCH
from .branching import NOT_TAKEN, Branch, Memory, Registers
from .code import Effects
from .told import State, Told

__all__ = ["Edge", "End", "Fork", "Placed", "Way", "goes_on", "joined", "lines"]

Edge = tuple[int, int, int]
"""A taken branch: from, to, perf's branch type."""
Placed = tuple[tuple[tuple[int, int], ...], tuple[int, ...]]
"""``(slot, address)`` of the breakpoints that are moved, and where all of them stand then."""


class End(NamedTuple):
    """A branch that can be reached, the branches taken on the way, oldest first, and what is known there."""

    branch: Branch
    path: tuple[Edge, ...]
    state: State = State()


Way = tuple[int, End]
"""Where it begins, and its end with the path from before the beginning."""


@dataclass(slots=True)
class Fork:
    """The ends that can be reached, by address. No ends: what comes cannot be read.

    ``passed`` are the addresses of all branches on the ways, ``lines`` the straight lines of them, from first address
    to last.
    """

    ends: dict[int, End]
    passed: frozenset[int]
    lines: tuple[tuple[int, int], ...] = ()
    told: Told | None = None
    """Of an end that need not be one: it can be told at the place where its branch will go."""
    pages: tuple[tuple[int, bytes], ...] = ()
    """The pages of code that this was found in, with their numbers."""
    further: dict[int, Fork] = field(default_factory=dict)
    """By where ``told`` goes: the fork that it is then."""
    family: int = 0
    """A number of ``further``."""
    node: int = 0
    """Of this fork in `tables`; 0 where it is not there."""
    most: int = 0
    """How many ends it might have had."""
    visits: int = 0
    """How often the program was there before it had the most."""
    burst: int = 0
    """The newest burst in which the pages were found unchanged."""
    placed: dict[tuple[int, ...], Placed] = field(default_factory=dict)
    """By where breakpoints stand: how they are moved to the ends."""

    def passes(self, address: int) -> bool:
        """Whether a breakpoint at ``address`` might strike on a way."""
        return any(first <= address <= last for first, last in self.lines)


def joined(fork: Fork, end: End, taken: Way, other: Way) -> Fork | None:
    """``fork`` with the two ways behind ``end`` in its place; ``None`` where their ends would not tell which it was.

    Where they lead to the same end, a breakpoint on the first instruction of one of them does.
    """
    for ways in ((taken, other), (taken, _marked(other)), (_marked(taken), other)):
        found = _joined(fork, end, ways)
        if found is not None:
            return found
    return None


def _marked(way: Way) -> Way:
    """``way`` up to its first instruction only."""
    place, end = way
    into = tuple(edge for edge in end.path[:1] if edge[1] == place)
    return place, End(Branch(place, 0, NOT_A_BRANCH, 0, goes_on), into, State(Effects(None)))


def goes_on(registers: Registers, branch: Branch, read: Memory) -> int:
    return NOT_TAKEN


def _joined(fork: Fork, end: End, ways: tuple[Way, Way]) -> Fork | None:
    """``None`` where a breakpoint on an end of one would strike on the way to another."""
    others = {address: other for address, other in fork.ends.items() if address != end.branch.address}
    reached = {way.branch.address for _, way in ways}
    if len(reached) != len(ways) or not reached.isdisjoint(others):
        return None
    passed = fork.passed.union({end.branch.address}, *((edge[0] for edge in way.path) for _, way in ways))
    on_ways = fork.lines + tuple(line for place, way in ways for line in lines(place, way))
    ends = {**others, **{w.branch.address: w._replace(path=(*end.path, *w.path)) for _, w in ways}}
    markers = [address for address, e in ends.items() if e.branch.kind == NOT_A_BRANCH]
    if not passed.isdisjoint(ends) or any(a <= marker <= b and a != b for marker in markers for a, b in on_ways):
        return None
    return Fork(ends, passed, on_ways)


def lines(place: int, end: End) -> tuple[tuple[int, int], ...]:
    """The straight lines of a way that begins at ``place``; of one that ends right there, that address alone."""
    path = [edge for edge in end.path if edge[1] != place or edge is not end.path[0]]
    starts = [place, *(edge[1] for edge in path)]
    return tuple(zip(starts, [*(edge[0] for edge in path), end.branch.address], strict=True))
