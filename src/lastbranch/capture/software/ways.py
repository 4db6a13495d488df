"""Where a program can get to from an address, so that one stop tells the way of several branches.

Straight lines end at branches. Direct jumps and calls have one way on. A conditional branch has two: if different
branches end the two lines behind it, a breakpoint on each tells which way it went, and the program need not stop at it.

                      ┌─ taken ────── line ── end 1
   place ── line ── cond
                      └─ not taken ── line ── end 2

Ends must differ, and none may lie on the way to another: it would stop too early, or leave open which way it came.
"""

from __future__ import annotations

from typing import NamedTuple

from ...lbr import KIND
from .branching import Branch, Memory
from .code import Code

__all__ = ["Edge", "Fork", "Ways"]

Edge = tuple[int, int, int]
"""A taken branch: from, to, perf's branch type."""

_DIRECT = frozenset((KIND["uncond"], KIND["call"]))
"""Kinds that are always taken and whose target is in the instruction."""
_CONDITIONAL = KIND["cond"]
_FOLLOWED = 64
"""Direct branches that are followed in one go: a loop of nothing else must end somewhere."""
_PAGE = 4096
_KEPT = 1 << 14
"""Forks of one address space that are kept at most."""


class Fork(NamedTuple):
    """The ends that can be reached: address -> (the branch there, the branches taken on the way, oldest first).

    ``passed`` are the addresses of all branches on the ways. No ends: what comes cannot be read. ``pages`` are the
    pages of code that this was found in, with their numbers.
    """

    ends: dict[int, tuple[Branch, tuple[Edge, ...]]]
    passed: frozenset[int]
    pages: tuple[tuple[int, bytes], ...] = ()


class _Line(NamedTuple):
    """The direct branches that are followed, and the first other one; ``None`` where code cannot be read."""

    followed: tuple[Edge, ...]
    branch: Branch | None


class Ways:
    """Forks of one address space. They are kept; but each burst reads the code again, and takes none of other code."""

    def __init__(self, code: Code, read: Memory, most_ends: int) -> None:
        self.read = read
        self._code, self._most = code, most_ends
        self._forks: dict[int, Fork] = {}
        self._pages: dict[int, bytes] = {}
        self._now: dict[int, bytes] = {}
        self._used: dict[int, bytes] = {}

    def begin(self) -> None:
        """A burst begins: code may be another one now."""
        self._now.clear()
        if len(self._forks) > _KEPT:
            self._forks.clear()
            self._pages.clear()

    def of(self, place: int) -> Fork:
        """Where the program gets to from ``place``."""
        found = self._forks.get(place)
        if found is not None:
            for number, page in found.pages:
                if (self._now.get(number) or self._page(number)) is not page:
                    break
            else:
                return found
        self._used = {}
        fork = self._fork(place)
        found = self._forks[place] = fork._replace(pages=tuple(self._used.items()))
        return found

    def line(self, place: int) -> Branch | None:
        """The first branch on the straight line from ``place``."""
        return self._code.next_branch(self._window, place)

    def _page(self, number: int) -> bytes:
        """The bytes of a page as they are in this burst: the same object as before, if they did not change."""
        page = self._now.get(number)
        if page is None:
            page = self.read(number * _PAGE, _PAGE)
            if page == (before := self._pages.get(number)):
                page = before
            self._pages[number] = self._now[number] = page
        return page

    def _window(self, address: int, length: int) -> bytes:
        number, offset = divmod(address, _PAGE)
        page = self._used[number] = self._page(number)
        if offset + length <= _PAGE or len(page) < _PAGE:
            return page[offset : offset + length]
        return page[offset:] + self._window((number + 1) * _PAGE, length - (_PAGE - offset))

    def _line(self, place: int) -> _Line:
        followed: list[Edge] = []
        while True:
            branch = self.line(place)
            if branch is None or branch.kind not in _DIRECT or branch.goes is None or len(followed) == _FOLLOWED:
                return _Line(tuple(followed), branch)
            followed.append((branch.address, branch.target, branch.kind))
            place = branch.target

    def _fork(self, place: int) -> Fork:
        path, branch = self._line(place)
        if branch is None:
            return Fork({}, frozenset())
        fork = Fork({branch.address: (branch, path)}, frozenset(edge[0] for edge in path))
        queue = [branch]
        for branch in queue:
            if len(fork.ends) == self._most:
                break
            further = self._further(fork, branch)
            if further is not None:
                queue += [end for end, _ in further.ends.values() if end.address not in fork.ends]
                fork = further
        return fork

    def _further(self, fork: Fork, branch: Branch) -> Fork | None:
        """``fork`` with the two ends behind ``branch`` in its place; ``None`` where they would not tell its way."""
        if branch.kind != _CONDITIONAL or branch.goes is None:
            return None
        taken, other = self._line(branch.target), self._line(branch.address + branch.length)
        if taken.branch is None or other.branch is None:
            return None
        ends = {address: end for address, end in fork.ends.items() if address != branch.address}
        steps = (branch.address, *(edge[0] for edge in taken.followed), *(edge[0] for edge in other.followed))
        passed = fork.passed.union(steps)
        reached = {taken.branch.address, other.branch.address, *ends}
        if len(reached) != len(ends) + 2 or not passed.isdisjoint(reached):
            return None
        path = fork.ends[branch.address][1]
        ends[taken.branch.address] = (
            taken.branch, (*path, (branch.address, branch.target, branch.kind), *taken.followed)
        )  # fmt: skip
        ends[other.branch.address] = other.branch, (*path, *other.followed)
        return Fork(ends, passed)
