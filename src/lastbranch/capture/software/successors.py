"""Where a program can get to from an address, so that one stop tells the way of several branches.

Straight lines end at branches. Direct jumps and calls have one way on, and so has a return or an indirect branch that
whose target is known before it executes (`control_flow`). A conditional branch has two, which make a `Fork`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...lbr import KIND
from ..ptrace import RCX, RSP
from .control_flow import CALLS, RETURN, Code, Edge, End, Fork, Line, Nearby, State, Told, freed, joined, lines
from .instructions import ADDRESSES, NOT_TAKEN, WORD, Branch, Memory, Registers
from .walk_tables import ROOTS, Tables

__all__ = ["Ahead", "Ways"]


# -- pages of code of one address space, each read once in a burst, and whether they are as they were


_PAGE = 4096


class Pages:
    """A page that did not change is the same object in each burst. ``tables``, if there are any, compare pages, too:
    what they found holds here, and what is found here holds there."""

    def __init__(self, read: Memory) -> None:
        self.tables: Tables | None = None
        self.used: dict[int, bytes] = {}
        """By their numbers: pages that windows were taken from since this was set anew."""
        self._read = read
        self._burst = 0
        self._before: dict[int, bytes] = {}
        self._now: dict[int, bytes] = {}

    def begin(self, burst: int) -> None:
        """Pages may be others now."""
        self._burst = burst
        self._now.clear()

    def clear(self) -> None:
        self.tables = None
        self._before.clear()

    def unchanged(self, pages: tuple[tuple[int, bytes], ...]) -> bool:
        for number, page in pages:  # noqa: SIM110  a generator costs more than all of this
            if self._page(number) is not page:
                return False
        return True

    def window(self, address: int, length: int) -> bytes:
        """So many bytes at ``address``, or what can be read of them."""
        number, offset = divmod(address, _PAGE)
        page = self.used[number] = self._page(number)
        if offset + length <= _PAGE or len(page) < _PAGE:
            return page[offset : offset + length]
        return page[offset:] + self.window((number + 1) * _PAGE, length - (_PAGE - offset))

    def _page(self, number: int) -> bytes:
        page = self._now.get(number)
        if page is None:
            page = self._now[number] = self._before[number] = self._compared(number, self._before.get(number))
        return page

    def _compared(self, number: int, before: bytes | None) -> bytes:
        """The page as it is, which is ``before`` if it did not change."""
        tables = self.tables
        if before is not None and tables is not None and tables.compared(number, before, self._burst):
            return before
        page = self._read(number * _PAGE, _PAGE)
        if page != before:
            return page
        if tables is not None:
            tables.compare(number, before, self._burst)
        return before


_DIRECT = frozenset((KIND["uncond"], KIND["call"]))
"""Kinds that are always taken and whose target is in the instruction."""
_CONDITIONAL = KIND["cond"]
_FOLLOWED = 64
"""Branches that are followed in one go: a chain of nothing else must end somewhere."""
_TOLD = 3
"""Returns and indirect branches of a fork that are told ahead."""
_OFTEN = 3
_KEPT = 1 << 14
"""Forks of one address space that are kept at most."""
_Targets = Mapping[Told, int]
"""Where branches go that were told. Another way to the same branch may tell it otherwise, or not at all."""


class Ahead(NamedTuple):
    """What comes behind a place."""

    fork: Fork
    stack: int | None
    """What the stack pointer is at the place, ``None`` if that is not known."""
    shared: tuple[tuple[int, int, int], ...] = ()
    """Branches by words that were believed, where those are, and what they held: other threads may have written to them
    meanwhile."""


class _Place(NamedTuple):
    """Where a fork is kept, and what it is made of."""

    among: dict[int, Fork]
    family: int
    """A number of that."""
    key: int
    place: int
    believed: tuple[tuple[Told, int], ...]
    """Branches behind the place, and where they go."""


class _Known(NamedTuple):
    """A straight line, and the pages of code that it was found in, with their numbers."""

    line: Line
    pages: tuple[tuple[int, bytes], ...]


class Ways:
    """Forks of one address space. They are kept; but each burst reads the code again, and takes none of other code."""

    def __init__(self, code: Code, read: Memory, most_ends: int, *, widen: bool = False, memory: int = -1) -> None:
        """``widen``: a new fork gets one end only, until it was come to often, or `widen` is called. To find more takes
        longer than some stops do, and can be done while the program runs.

        ``memory``: a descriptor of what ``read`` reads, for forks to be kept in `walk_tables`, too."""
        self.read = Nearby(read)
        """Memory as it is at a stop; `Nearby.moved` says that there is another one."""
        self._code, self._most, self._widens = code, most_ends, widen
        self.alone = True
        self.burst = self._kept = self._families = 0
        self._descriptor = memory
        self._forks: dict[int, Fork] = {}
        self._narrow: dict[tuple[int, int], _Place] = {}
        self._lines: dict[int, _Known] = {}
        self._pages = Pages(read)

    def begin(self, *, alone: bool = True) -> None:
        """A burst begins: code may be another one now. ``alone``: the process has one thread."""
        self.alone = alone
        self.burst += 1
        self._pages.begin(self.burst)
        self.read.moved()
        if self._kept > _KEPT or (self.tables is not None and self.tables.full):
            self._kept = 0
            self._forks.clear()
            self._narrow.clear()
            self._lines.clear()
            self._pages.clear()

    @property
    def tables(self) -> Tables | None:
        return self._pages.tables

    def after(self, branch: Branch, goes: int, registers: Registers) -> Ahead:
        """Where it gets to when ``branch``, before which ``registers`` were read, has gone where it ``goes``."""
        stack = registers[RSP]
        if branch.kind == _CONDITIONAL and branch.reads == RCX:
            registers[RCX] = registers[RCX] - 1 & ADDRESSES
        if goes == NOT_TAKEN:
            return self.of(branch.address + branch.length, registers, stack)
        if branch.kind in CALLS:
            return self.of(goes, registers, stack - WORD, branch.address + branch.length)
        if branch.kind == RETURN:
            freeing = freed(branch)
            return self.of(goes, registers, None if freeing is None else stack + freeing)
        return self.of(goes, registers, stack)

    def of(self, place: int, registers: Registers, stack: int | None, pushed: int | None = None) -> Ahead:
        """Where the program gets to from ``place``, where its stack pointer is ``stack`` and the others ``registers``.

        ``pushed``: what stands at the stack pointer then, but not in memory yet.
        """
        fork = self._forks.get(place)
        if fork is None or fork.burst != self.burst:
            fork = self._checked(_Place(self._forks, ROOTS, place, place, ()))
        told = fork.told
        believed: tuple[tuple[Told, int], ...] = ()
        shared: tuple[tuple[int, int, int], ...] = ()
        while told is not None and len(believed) < _TOLD:
            target = told.goes(registers, stack, pushed, self.read)
            if target is None:
                break
            believed = (*believed, (told, target))
            word = told.word
            if not (self.alone or word is None or word.on_stack):
                shared = (*shared, (told.branch.address, word.at, target))
            found = fork.further.get(target)
            if found is None or found.burst != self.burst:
                found = self._checked(_Place(fork.further, fork.family, target, place, believed))
            fork, told = found, found.told
        return Ahead(fork, stack, shared)

    def astray(self, ahead: Ahead, end: End, stack: int) -> bool:
        """Whether the way to ``end``, where the stack pointer is ``stack``, cannot have been the one that was told."""
        moved = end.state.effects.moved
        if ahead.stack is not None and moved is not None and (ahead.stack + moved - stack) & ADDRESSES != 0:
            return True
        if not ahead.shared:
            return False
        passed = {edge[0] for edge in end.path}
        return any(
            branch in passed and int.from_bytes(self.read(at, WORD), "little") != was
            for branch, at, was in ahead.shared
        )

    def line(self, place: int) -> Branch | None:
        """The first branch on the straight line from ``place``."""
        return self._line(place).branch

    def _line(self, place: int) -> Line:
        known = self._lines.get(place)
        if known is None or not self._pages.unchanged(known.pages):
            used, self._pages.used = self._pages.used, {}
            known = self._lines[place] = _Known(
                self._code.line(self._pages.window, place), tuple(self._pages.used.items())
            )
            self._pages.used = used
        self._pages.used.update(known.pages)
        return known.line

    def _checked(self, at: _Place) -> Fork:
        """The fork there, made anew if code has changed."""
        fork = at.among.get(at.key)
        if fork is None or not self._pages.unchanged(fork.pages):
            fork = self._made(at, 1 if self._widens else self._most)
            if self._widens:
                self._narrow[at.family, at.key] = at
        fork.visits += 1
        if fork.most < self._most and fork.visits >= _OFTEN and self.tables is None:
            fork = self._made(at, self._most)
        if fork.most == self._most:
            fork.burst = self.burst
        return fork

    def widen(self) -> None:
        """Give the forks that are new all their ends; of those in `tables` only the ones that it often came to: the few
        stops of others take the walk less time than it takes to find their ends."""
        for key, at in list(self._narrow.items()):
            fork = at.among[at.key]
            if self.tables is None or fork.visits + self.tables.visits(fork) >= _OFTEN:
                del self._narrow[key]
                if fork.most < self._most:
                    self._made(at, self._most)

    def _made(self, at: _Place, most: int) -> Fork:
        self._kept += 1
        self._pages.used = {}
        before = at.among.get(at.key)
        fork = at.among[at.key] = self._fork(at.place, dict(at.believed), most)
        fork.pages, fork.most = tuple(self._pages.used.items()), most
        if before is not None and before.told == fork.told:
            fork.further, fork.family = before.further, before.family
        elif fork.told is not None:
            self._families += 1
            fork.family = ROOTS + self._families
        if self._descriptor >= 0:
            self._put(at, fork)
        return fork

    def _put(self, at: _Place, fork: Fork) -> None:
        if self._pages.tables is None:
            try:
                self._pages.tables = Tables(self._descriptor)
            except OSError:  # no memory for so much, even though most is never used
                self._descriptor = -1
                return
        self._pages.tables.put(at.family, at.key, fork)

    def _way(self, place: int, state: State, passed: frozenset[int], targets: _Targets) -> End | None:
        """The first branch from ``place`` that has not just one way on; ``None`` where code cannot be read. None of
        ``passed`` is passed again. ``targets``: where branches at these addresses go."""
        path: list[Edge] = []
        before: list[End] = []
        while True:
            branch, effects = self._line(place)
            if branch is None:
                return before[-1] if before and before[-1].branch.kind not in _DIRECT else None
            state = state.after(effects)
            end = End(branch, tuple(path), state)
            if branch.address in passed or any(branch.address == source for source, _, _ in path):
                return before[-1] if before else end  # its breakpoint would strike the first time already
            if branch.kind in _DIRECT:
                target: int | None = branch.target
            else:
                told = state.told(branch)
                target = None if told is None else targets.get(told, told.static())
            if target is None or branch.goes is None or len(path) == _FOLLOWED:
                return end
            if branch.kind == RETURN:
                state = state.returned(branch)
            elif branch.kind in CALLS:
                state = state.called(branch.address + branch.length)
            before.append(end)
            path.append((branch.address, target, branch.kind))
            place = target

    def _fork(self, place: int, targets: _Targets, most: int) -> Fork:
        first = self._way(place, State(), frozenset(), targets)
        if first is None:
            return Fork({}, frozenset())
        fork = Fork({first.branch.address: first}, frozenset(edge[0] for edge in first.path), lines(place, first))
        queue = [first]
        for end in queue:
            if len(fork.ends) >= most:
                break
            further = self._further(fork, end, targets)
            if further is not None:
                queue += [new for new in further.ends.values() if new.branch.address not in fork.ends]
                fork = further
        told = (told for e in fork.ends.values() if (told := e.state.told(e.branch)) and told not in targets)
        fork.told = next(told, None)
        return fork

    def _further(self, fork: Fork, end: End, targets: _Targets) -> Fork | None:
        """``fork`` with the two ends behind ``end`` in its place; ``None`` where they would not tell its way."""
        branch = end.branch
        if branch.kind != _CONDITIONAL or branch.goes is None:
            return None
        passed = fork.passed | {branch.address}
        jump = (branch.address, branch.target, branch.kind)
        taken = self._way(branch.target, end.state, passed, targets)
        straight_on = branch.address + branch.length
        other = self._way(straight_on, end.state, passed, targets)
        if taken is None or other is None:
            return None
        taken = taken._replace(path=(jump, *taken.path))
        return joined(fork, end, (branch.target, taken), (straight_on, other))
