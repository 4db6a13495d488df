"""Where a program can get to from an address, so that one stop tells the way of several branches.

Straight lines end at branches. Direct jumps and calls have one way on, and so has a return or an indirect branch if it
can be told ahead where it goes. A conditional branch has two: if different branches end the two lines behind it, a
breakpoint on each tells which way it went, and the program need not stop at it.

                      ┌─ taken ────── line ── end 1
   place ── line ── cond
                      └─ not taken ── line ── end 2

Ends must differ, and none may lie on the way to another: it would stop too early, or leave open which way it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...isa import NOT_A_BRANCH
from ...lbr import KIND
from ..ptrace import RSP
from .branching import NOT_TAKEN, Branch, Memory, Registers
from .code import Code, Effects
from .effects import WORD

__all__ = ["Edge", "End", "Fork", "Placed", "Ways"]

Edge = tuple[int, int, int]
"""A taken branch: from, to, perf's branch type."""
Placed = tuple[tuple[tuple[int, int], ...], tuple[int, ...]]
"""``(slot, address)`` of the breakpoints that are moved, and where all of them stand then."""

_DIRECT = frozenset((KIND["uncond"], KIND["call"]))
"""Kinds that are always taken and whose target is in the instruction."""
_CONDITIONAL, _RETURN = KIND["cond"], KIND["ret"]
_CALLS = frozenset((KIND["call"], KIND["ind_call"]))
_RETURN_AND_FREE = 3
"""Bytes of RET imm16, which moves the stack pointer further than RET does."""
_FOLLOWED = 64
"""Branches that are followed in one go: a chain of nothing else must end somewhere."""
_TOLD = 3
"""Returns and indirect branches of a fork that are told ahead."""
_PAGE = 4096
_KEPT = 1 << 14
"""Forks of one address space that are kept at most."""


class _State(NamedTuple):
    """What is known of the stack and the registers on a way, from how they are at the place."""

    effects: Effects = Effects()
    pushed: tuple[tuple[int, int], ...] = ()
    """Return addresses by where they are from the stack pointer at the place, newest last."""

    @property
    def stack(self) -> int | None:
        return self.effects.moved

    def after(self, effects: Effects) -> _State:
        """Behind a straight line."""
        return _State(self.effects.then(effects), self.pushed)

    def called(self, back: int) -> _State:
        if self.stack is None:
            return self
        return _State(self.effects.then(_PUSHED), (*self.pushed, (self.stack - WORD, back)))

    def returned(self, branch: Branch) -> _State:
        return self.after(_POPPED if branch.length < _RETURN_AND_FREE else _LOST)

    def top(self) -> int | None:
        """The return address that the stack pointer stands at, if it was pushed on the way and is still there."""
        if self.stack is None or self.stack in self.effects.stores:
            return None
        return next((word for at, word in reversed(self.pushed) if at == self.stack), None)

    def told(self, branch: Branch) -> bool:
        """Whether registers and memory tell at the place already where ``branch`` will go."""
        if branch.goes is None:
            return False
        if branch.kind == _RETURN:
            at = self.stack
            return at is not None and at >= 0 and at not in self.effects.stores
        return branch.reads is not None and self.effects.written.get(branch.reads, 0) is not None

    def word(self, branch: Branch) -> int | None:
        """Where on the stack the target of a branch stands that is `told`; ``None``: it is in its own operand."""
        return self.stack if branch.kind == _RETURN else self.effects.written.get(branch.reads or 0)


_PUSHED, _POPPED, _LOST = Effects(-WORD), Effects(WORD), Effects(None)


class End(NamedTuple):
    """A branch that can be reached, the branches taken on the way, oldest first, and what is known there."""

    branch: Branch
    path: tuple[Edge, ...]
    state: _State = _State()


@dataclass(slots=True)
class Fork:
    """The ends that can be reached, by address. No ends: what comes cannot be read.

    ``passed`` are the addresses of all branches on the ways, ``lines`` the straight lines of them, from first address
    to last.
    """

    ends: dict[int, End]
    passed: frozenset[int]
    lines: tuple[tuple[int, int], ...] = ()
    told: End | None = None
    """One of the ends that need not be one: it can be told at the place where its branch will go."""
    pages: tuple[tuple[int, bytes], ...] = ()
    """The pages of code that this was found in, with their numbers."""
    placed: dict[tuple[int, ...], Placed] = field(default_factory=dict)
    """By where breakpoints stand: how they are moved to the ends."""

    def passes(self, address: int) -> bool:
        """Whether a breakpoint at ``address`` might strike on a way."""
        return any(first <= address <= last for first, last in self.lines)


class Ways:
    """Forks of one address space. They are kept; but each burst reads the code again, and takes none of other code."""

    def __init__(self, code: Code, read: Memory, most_ends: int) -> None:
        self.read = read
        self._code, self._most = code, most_ends
        self._forks: dict[tuple[int, ...], Fork] = {}
        self._pages: dict[int, bytes] = {}
        self._now: dict[int, bytes] = {}
        self._valid: dict[tuple[int, ...], Fork] = {}
        self._used: dict[int, bytes] = {}

    def begin(self) -> None:
        """A burst begins: code may be another one now."""
        self._now.clear()
        self._valid.clear()
        if len(self._forks) > _KEPT:
            self._forks.clear()
            self._pages.clear()

    def after(self, branch: Branch, goes: int, registers: Registers) -> Fork:
        """Where it gets to when ``branch``, before which ``registers`` were read, has gone where it ``goes``."""
        stack = registers[RSP]
        if goes == NOT_TAKEN:
            return self.of(branch.address + branch.length, registers, stack)
        if branch.kind in _CALLS:
            return self.of(goes, registers, stack - WORD, branch.address + branch.length)
        if branch.kind == _RETURN:
            return self.of(goes, registers, stack + WORD if branch.length < _RETURN_AND_FREE else None)
        return self.of(goes, registers, stack)

    def of(self, place: int, registers: Registers, stack: int | None, pushed: int | None = None) -> Fork:
        """Where the program gets to from ``place``, where its stack pointer is ``stack`` and the others ``registers``.

        ``pushed``: what stands at the stack pointer then, but not in memory yet.
        """
        key: tuple[int, ...] = (place,)
        fork = self._valid.get(key) or self._found(key, {})
        targets: dict[int, int] = {}
        while (told := fork.told) is not None and stack is not None and len(targets) < _TOLD:
            branch, at = told.branch, told.state.word(told.branch)
            if at is None:
                target = branch.goes(registers, branch, self.read) if branch.goes else None
            elif at == 0 and pushed is not None:
                target = pushed
            else:
                target = int.from_bytes(self.read(stack + at, WORD), "little")
            if target is None:
                break
            targets[branch.address] = target
            key = (*key, target)
            fork = self._valid.get(key) or self._found(key, targets)
        return fork

    def line(self, place: int) -> Branch | None:
        """The first branch on the straight line from ``place``."""
        return self._code.line(self._window, place).branch

    def _found(self, key: tuple[int, ...], targets: dict[int, int]) -> Fork:
        fork = self._forks.get(key)
        if fork is None or any(self._page(number) is not page for number, page in fork.pages):
            self._used = {}
            fork = self._forks[key] = self._fork(key[0], targets)
            fork.pages = tuple(self._used.items())
        self._valid[key] = fork
        return fork

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

    def _way(self, place: int, state: _State, passed: frozenset[int], targets: dict[int, int]) -> End | None:
        """The first branch from ``place`` that has not just one way on; ``None`` where code cannot be read. None of
        ``passed`` is passed again. ``targets``: where branches at these addresses go."""
        path: list[Edge] = []
        before: list[End] = []
        while True:
            branch, effects = self._code.line(self._window, place)
            if branch is None:
                return before[-1] if before and before[-1].branch.kind not in _DIRECT else None
            state = state.after(effects)
            end = End(branch, tuple(path), state)
            if branch.address in passed or any(branch.address == source for source, _, _ in path):
                return before[-1] if before else end  # its breakpoint would strike the first time already
            if branch.kind in _DIRECT:
                target: int | None = branch.target
            else:
                target = targets.get(branch.address) or (state.top() if branch.kind == _RETURN else None)
            if target is None or branch.goes is None or len(path) == _FOLLOWED:
                return end
            if branch.kind == _RETURN:
                state = state.returned(branch)
            elif branch.kind in _CALLS:
                state = state.called(branch.address + branch.length)
            before.append(end)
            path.append((branch.address, target, branch.kind))
            place = target

    def _fork(self, place: int, targets: dict[int, int]) -> Fork:
        first = self._way(place, _State(), frozenset(), targets)
        if first is None:
            return Fork({}, frozenset())
        fork = Fork({first.branch.address: first}, frozenset(edge[0] for edge in first.path), _lines(place, first))
        queue = [first]
        for end in queue:
            if len(fork.ends) == self._most:
                break
            further = self._further(fork, end, targets)
            if further is not None:
                queue += [new for new in further.ends.values() if new.branch.address not in fork.ends]
                fork = further
        told = (e for e in fork.ends.values() if e.branch.address not in targets and e.state.told(e.branch))
        fork.told = next(told, None)
        return fork

    def _further(self, fork: Fork, end: End, targets: dict[int, int]) -> Fork | None:
        """``fork`` with the two ends behind ``end`` in its place; ``None`` where they would not tell its way."""
        branch = end.branch
        if branch.kind != _CONDITIONAL or branch.goes is None:
            return None
        passed = fork.passed | {branch.address}
        jump = (branch.address, branch.target, branch.kind)
        taken = self._way(branch.target, end.state, passed, targets)
        other = self._way(branch.address + branch.length, end.state, passed, targets)
        if taken is None or other is None:
            return None
        ways = (
            (branch.target, taken._replace(path=(jump, *taken.path))),
            (branch.address + branch.length, other),
        )  # fmt: skip
        marked = ((ways[0], _marked(ways[1])), (_marked(ways[0]), ways[1]))
        return next((found for both in (ways, *marked) if (found := _joined(fork, end, both)) is not None), None)


_Way = tuple[int, End]
"""Where it begins, and its end with the path from before the beginning."""


def _marked(way: _Way) -> _Way:
    """``way`` up to its first instruction only: a breakpoint there tells it from another that leads to the same end."""
    place, end = way
    into = tuple(edge for edge in end.path[:1] if edge[1] == place)
    return place, End(Branch(place, 0, NOT_A_BRANCH, 0, _goes_on), into, _State(Effects(None)))


def _goes_on(registers: Registers, branch: Branch, read: Memory) -> int:
    return NOT_TAKEN


def _joined(fork: Fork, end: End, ways: tuple[_Way, _Way]) -> Fork | None:
    """``fork`` with ``ways`` behind ``end`` in its place; ``None`` where a breakpoint on an end of one would strike on
    the way to another."""
    others = {address: other for address, other in fork.ends.items() if address != end.branch.address}
    reached = {way.branch.address for _, way in ways}
    if len(reached) != len(ways) or not reached.isdisjoint(others):
        return None
    passed = fork.passed.union({end.branch.address}, *((edge[0] for edge in way.path) for _, way in ways))
    lines = fork.lines + tuple(line for place, way in ways for line in _lines(place, way))
    ends = {**others, **{w.branch.address: w._replace(path=(*end.path, *w.path)) for _, w in ways}}
    markers = [address for address, e in ends.items() if e.branch.kind == NOT_A_BRANCH]
    if not passed.isdisjoint(ends) or any(a <= marker <= b and a != b for marker in markers for a, b in lines):
        return None
    return Fork(ends, passed, lines)


def _lines(place: int, end: End) -> tuple[tuple[int, int], ...]:
    """The straight lines of a way that begins at ``place``; of one that ends right there, that address alone."""
    path = [edge for edge in end.path if edge[1] != place or edge is not end.path[0]]
    starts = [place, *(edge[1] for edge in path)]
    return tuple(zip(starts, [*(edge[0] for edge in path), end.branch.address], strict=True))
