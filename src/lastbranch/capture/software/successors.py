"""The branches that a program can reach from an address, so one stop can reveal several of them.

Straight lines end at branches. Direct jumps and calls have one successor, and so has a return or an indirect branch
whose target is known before it executes (`control_flow`). A conditional branch has two, which make a `Fork`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from ...lbr import KIND
from ..ptrace import RCX, STACK
from .control_flow import (
    CALLS,
    RETURN,
    Code,
    Edge,
    Effects,
    End,
    Fork,
    KnownTarget,
    Line,
    Nearby,
    State,
    freed,
    joined,
    lines,
)
from .instructions import ADDRESSES, LONGEST, NOT_TAKEN, WORD, Branch, Memory, Registers
from .walk_tables import ROOTS, Tables

__all__ = ["Expectation", "Successors"]


# -- pages of code of one address space, each read once in a burst and compared with the burst before


_PAGE = 4096


class Pages:
    """An unchanged page is the same object in each burst. The walk compares pages, too; ``tables`` share results."""

    def __init__(self, read: Memory) -> None:
        self.tables: Tables | None = None
        self.used: dict[int, bytes] = {}
        """Pages by their numbers that windows were taken from since this was reset."""
        self._read = read
        self._burst = 0
        self._before: dict[int, bytes] = {}
        self._now: dict[int, bytes] = {}

    def aim(self, read: Memory) -> None:
        """Read that memory from the next burst on."""
        self._read = read

    def begin(self, burst: int) -> None:
        """Begin ``burst``: pages may have changed, so each page is compared again at its next use."""
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
        """``length`` bytes at ``address``, fewer where not all can be read."""
        number, offset = divmod(address, _PAGE)
        page = self.used[number] = self._page(number)
        if offset + length <= _PAGE or len(page) < _PAGE:
            return page[offset : offset + length]
        return page[offset:] + self.window((number + 1) * _PAGE, length - (_PAGE - offset))

    def _page(self, number: int) -> bytes:
        page = self._now.get(number)
        if page is None:
            page = self._now[number] = self._before[number] = self._reread(number, self._before.get(number))
        return page

    def _reread(self, number: int, before: bytes | None) -> bytes:
        """The page as it is now, which is the object ``before`` if it did not change."""
        tables = self.tables
        if before is not None and tables is not None and tables.is_unchanged(number, before, self._burst):
            return before
        page = self._read(number * _PAGE, _PAGE)
        if page != before:
            return page
        if tables is not None:
            tables.mark_unchanged(number, before, self._burst)
        return before


_DIRECT = frozenset((KIND["uncond"], KIND["call"]))
"""Kinds that are always taken and have their target in the instruction."""
_CONDITIONAL = KIND["cond"]
_FOLLOWED = 64
"""Branches on one path: an endless chain of direct jumps must end somewhere."""
_MOST_KNOWN = 3
"""Known targets of returns and indirect branches that one fork may use."""
_OFTEN = 3
_KEPT = 1 << 14
"""Most forks of one address space."""
_NARROW = 1 << 10
"""Most of them that wait for `Successors.widen`."""
_Targets = Mapping[KnownTarget, int]
"""Values of known targets. On another path the same branch may have another one, or none."""


_UNKNOWN = State(Effects(None))


class Expectation(NamedTuple):
    """The fork from an address, and what it relies on."""

    fork: Fork
    stack: int | None
    """The stack pointer there, ``None`` if it is not known."""
    shared: tuple[tuple[int, int, int], ...] = ()
    """Branches with targets from words outside the stack, the addresses of these words, and their values: another
    thread may write to them."""


class _Place(NamedTuple):
    """The key of a fork, and what it is made from."""

    among: dict[int, Fork]
    family: int
    """The id of ``among``."""
    key: int
    place: int
    assumed: tuple[tuple[KnownTarget, int], ...]
    """Known targets on the paths, and their values."""


class _Known(NamedTuple):
    """A straight line, and the pages of code that it is in, with their numbers."""

    line: Line
    pages: tuple[tuple[int, bytes], ...]


class Successors:
    """Forks of one address space, or of several with the same code. They are cached; each burst compares the code, and
    drops forks of changed code."""

    def __init__(self, code: Code, read: Memory, most_ends: int, *, widen: bool = False, memory: int = -1) -> None:
        """``widen``: a new fork has one end only until the program has started there often, or `widen` is called. To
        find more takes longer than some stops, and can be done while the program runs.

        ``memory``: the descriptor that ``read`` reads, for `walk_tables`."""
        self.read = Nearby(read)
        """Memory at the present stop, until `Nearby.moved`."""
        self._code, self._most, self._widens = code, most_ends, widen
        self._nothing = State() if code.follows_data else None
        """The facts known at the start of a path; ``None``: what instructions change is not known."""
        self.alone = True
        self.burst = self._kept = self._families = 0
        self._descriptor = memory
        self._forks: dict[int, Fork] = {}
        self._narrow: dict[tuple[int, int], _Place] = {}
        self._lines: dict[int, _Known] = {}
        self._pages = Pages(read)

    def aim(self, read: Memory, memory: int) -> None:
        """Read the memory of another process from the next burst on; ``memory`` as at the start."""
        self.read.aim(read)
        self._pages.aim(read)
        if self._descriptor >= 0:
            self._descriptor = memory
        if self.tables is not None:
            self.tables.fd = memory

    def begin(self, *, alone: bool = True) -> None:
        """A burst begins, and code may have changed. ``alone``: the process has one thread."""
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

    def after(self, branch: Branch, goes: int, registers: Registers) -> Expectation:
        """What follows when ``branch``, before which ``registers`` were read, goes to ``goes``."""
        stack = registers[STACK]
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

    def of(self, place: int, registers: Registers, stack: int | None, pushed: int | None = None) -> Expectation:
        """What follows from ``place``, where the stack pointer is ``stack`` and the other registers are ``registers``.

        ``pushed`` is the word at the stack pointer that is not in memory yet.
        """
        fork = self._forks.get(place)
        if fork is None or fork.burst != self.burst:
            fork = self._checked(_Place(self._forks, ROOTS, place, place, ()))
        known = fork.known_target
        assumed: tuple[tuple[KnownTarget, int], ...] = ()
        shared: tuple[tuple[int, int, int], ...] = ()
        while known is not None and len(assumed) < _MOST_KNOWN:
            target = known.target(registers, stack, pushed, self.read)
            if target is None:
                break
            assumed = (*assumed, (known, target))
            word = known.word
            if not (self.alone or word is None or word.on_stack):
                shared = (*shared, (known.branch.address, word.at, target))
            found = fork.further.get(target)
            if found is None or found.burst != self.burst:
                found = self._checked(_Place(fork.further, fork.family, target, place, assumed))
            fork, known = found, found.known_target
        return Expectation(fork, stack, shared)

    def diverged(self, expected: Expectation, end: End, stack: int) -> bool:
        """Whether the program, which is at ``end`` with the stack pointer ``stack``, cannot have come by the path."""
        moved = end.state.effects.moved
        if expected.stack is not None and moved is not None and (expected.stack + moved - stack) & ADDRESSES != 0:
            return True
        if not expected.shared:
            return False
        passed = {edge[0] for edge in end.path}
        return any(
            branch in passed and int.from_bytes(self.read(at, WORD), "little") != was
            for branch, at, was in expected.shared
        )

    def line(self, place: int) -> Branch | None:
        """The first branch on the straight line from ``place``."""
        return self._line(place).branch

    def step_refusal(self, place: int) -> str:
        """Why the instruction at ``place`` must not be executed by a single step; empty: it may be."""
        return self._code.step_refusal(self._pages.window(place, LONGEST))

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
        """The cached fork, or a new one if its code has changed."""
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

    def widen(self, seconds: float = inf) -> None:
        """Find all ends of new forks, for so many ``seconds``; with `tables` only of those where the program started
        often, since a few stops of the walk cost less than finding ends. The places where it started most often come
        first."""
        tables, often = self.tables, list[tuple[int, tuple[int, int]]]()
        for key, at in self._narrow.items():
            fork = at.among[at.key]
            visits = fork.visits + (tables.visits(fork) if tables is not None else 0)
            if tables is None or visits >= _OFTEN:
                often.append((visits, key))
        often.sort(reverse=True)
        end = time.thread_time() + seconds
        for _, key in often:
            at = self._narrow.pop(key)
            if at.among[at.key].most < self._most:
                self._made(at, self._most)
                if time.thread_time() > end:
                    break
        for key in list(self._narrow)[:-_NARROW]:
            del self._narrow[key]

    def _made(self, at: _Place, most: int) -> Fork:
        self._kept += 1
        self._pages.used = {}
        before = at.among.get(at.key)
        fork = at.among[at.key] = self._fork(at.place, dict(at.assumed), most)
        fork.pages, fork.most = tuple(self._pages.used.items()), most
        if before is not None and before.known_target == fork.known_target:
            fork.further, fork.family = before.further, before.family
        elif fork.known_target is not None:
            self._families += 1
            fork.family = ROOTS + self._families
        if self._descriptor >= 0:
            self._put(at, fork)
        return fork

    def _put(self, at: _Place, fork: Fork) -> None:
        if self._pages.tables is None:
            try:
                self._pages.tables = Tables(self._descriptor)
            except OSError:  # the system refuses so much memory, though most is never used
                self._descriptor = -1
                return
        self._pages.tables.put(at.family, at.key, fork)

    def _path(
        self, place: int, state: State | None, passed: frozenset[int], targets: _Targets, awaits: bool = False
    ) -> End | None:
        """The first branch from ``place`` with more than one successor; ``None`` where code cannot be read. The path
        has no branch of ``passed``. ``targets`` are the values of known targets. ``state`` ``None``: what instructions
        change is not looked at, and no target but that of a direct branch is known. ``awaits``: an exclusive store is
        awaited."""
        path: list[Edge] = []
        before: list[End] = []
        while True:
            line = self._line(place)
            branch = line.branch
            if branch is None:
                return before[-1] if before and before[-1].branch.kind not in _DIRECT else None
            if state is not None:
                state = state.after(line.effects)
            awaits = awaits if line.awaits_store is None else line.awaits_store
            # Behind an indirect branch no code stores what was loaded before it: GCC leaves a failed comparison so.
            end = End(branch, tuple(path), state or _UNKNOWN, awaits and branch.kind == _CONDITIONAL)
            if branch.address in passed or any(branch.address == source for source, _, _ in path):
                return before[-1] if before else end  # its breakpoint would stop the first pass
            if branch.kind in _DIRECT:
                target: int | None = branch.target
            elif state is None:
                target = None
            else:
                known = state.known_target(branch)
                target = None if known is None else targets.get(known, known.static())
            if target is None or branch.goes is None or len(path) == _FOLLOWED:
                return end
            if state is not None and branch.kind == RETURN:
                state = state.returned(branch)
            elif state is not None and branch.kind in CALLS:
                state = state.called(branch.address + branch.length)
            before.append(end)
            path.append((branch.address, target, branch.kind))
            place = target

    def _fork(self, place: int, targets: _Targets, most: int) -> Fork:
        quick = most == 1 and not targets
        first = self._path(place, self._nothing if not quick else None, frozenset(), targets)
        if first is None:
            return Fork({}, frozenset())
        fork: Fork | None
        fork = Fork({first.branch.address: first}, frozenset(edge[0] for edge in first.path), lines(place, first))
        if first.awaits_store:
            fork = self._stored(fork, targets)
            if fork is None:
                return Fork({}, frozenset(), why="exclusive access")
        if quick:
            return fork
        queue = list(fork.ends.values())
        for end in queue:
            if len(fork.ends) >= most:
                break
            further = self._further(fork, end, targets)
            if further is not None and self._nothing is None:
                further = self._stored(further, targets)
            if further is not None:
                queue += [new for new in further.ends.values() if new.branch.address not in fork.ends]
                fork = further
        known = (
            known for e in fork.ends.values() if (known := e.state.known_target(e.branch)) and known not in targets
        )
        fork.known_target = next(known, None)
        return fork

    def _stored(self, fork: Fork, targets: _Targets) -> Fork | None:
        """``fork`` with ends after the exclusive store, where some are before it; ``None`` where there are none."""
        found: Fork | None = fork
        while found is not None and (end := next((e for e in found.ends.values() if e.awaits_store), None)):
            found = self._further(found, end, targets) if len(found.ends) < self._most else None
        return found

    def _further(self, fork: Fork, end: End, targets: _Targets) -> Fork | None:
        """``fork`` with ``end`` replaced by the two ends after it; ``None`` where those would not reveal the path."""
        branch = end.branch
        if branch.kind != _CONDITIONAL or branch.goes is None:
            return None
        passed = fork.passed | {branch.address}
        jump = (branch.address, branch.target, branch.kind)
        state = None if self._nothing is None else end.state
        taken = self._path(branch.target, state, passed, targets, end.awaits_store)
        straight_on = branch.address + branch.length
        other = self._path(straight_on, state, passed, targets, end.awaits_store)
        if taken is None or other is None:
            return None
        taken = taken._replace(path=(jump, *taken.path))
        return joined(fork, end, (branch.target, taken), (straight_on, other))
