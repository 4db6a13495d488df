"""Engines: how the taken branches of a short piece of a thread's run are seen.

Block stepping runs from branch to branch with breakpoints: it decodes what comes, stops at a branch further on, and
tells from the place which way the branches before went, and from the registers where this one goes. Single stepping
looks at every instruction; it is slower and needs no model of a branch. Both end before a system call: a thread that
blocks in one while others wait in a stop would hang them all.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from signal import SIGTRAP
from typing import Protocol

from .. import ptrace
from ..ptrace import EFLAGS, RCX, RESUME_FLAG, RIP, RSP
from .branching import NOT_TAKEN, Branch
from .breakpoints import Breakpoints
from .forks import Edge, End, Fork
from .stops import Onward, event_of, next_stop, signal_of, stopped
from .ways import Ahead, Ways

__all__ = ["BlockStep", "Burst", "Engine", "Limits", "SingleStep", "Target"]

_PUSHF, _POPF = 0x9C, 0x9D


class Target(Protocol):
    """The thread that a burst runs in. It is stopped when the burst begins."""

    tid: int

    def is_trigger(self, status: int) -> bool:
        """Whether it stopped because its trigger came, which means nothing in a burst."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a burst is over: ``depth`` branches of the kinds ``counted`` (perf's branch types), or ``stops`` stops.

    ``seconds`` is the deadline of each wait, and of the whole burst.
    """

    depth: int = 32
    counted: frozenset[int] = frozenset(range(1, 16))
    stops: int = 512
    seconds: float = 0.1

    def full(self, burst: Burst) -> bool:
        """Whether there are as many as were wanted."""
        if len(burst.edges) < self.depth:
            return False
        burst.counted += sum(edge[2] in self.counted for edge in burst.edges[burst.looked_at :])
        burst.looked_at = len(burst.edges)
        return burst.counted >= self.depth


@dataclass(slots=True)
class Burst:
    """What was seen. ``edges`` are taken branches, oldest first, without a gap."""

    start: int = 0
    """Address of the trigger."""
    end: int = 0
    """Where the thread stands, or goes next: the straight line from the newest target leads there."""
    edges: list[Edge] = field(default_factory=list)
    why: str = "full"
    """Why it ended: ``full``, ``stops``, ``system call``, ``unreadable code``, ``signal``, ``astray`` (it did
    not go the way it was told to go), ``deadline``, ``gone``."""
    counted: int = 0
    """Of the kinds that are wanted, among the first ``looked_at``."""
    looked_at: int = 0
    status: int | None = None
    """A wait status that came instead of the next stop, for whoever handles all others."""
    stops: int = 0

    @property
    def dropped(self) -> bool:
        return self.why in ("deadline", "gone")


class Engine(Protocol):
    """One way to run a burst. `ptrace.Gone` where the thread ended under it."""

    name: str
    signal: int
    """What its stops are. It must not be blocked."""
    ends: int
    """How many ends its forks may have."""

    def burst(self, thread: Target, ways: Ways, limits: Limits) -> Burst:
        """Run ``thread``, whose code is ``ways``, until ``limits`` are reached. It is stopped again then, unless the
        burst is `dropped`."""

    def clean(self, tid: int) -> None:
        """Take away what a dropped burst left in a thread, which is stopped again."""


class BlockStep:
    """From branch to branch with ``breakpoints``; see `ways` for where they are put."""

    def __init__(self, breakpoints: Breakpoints) -> None:
        self.breakpoints = breakpoints
        self.name, self.signal = f"block stepping, {breakpoints.name}", breakpoints.signal
        self.ends = breakpoints.slots
        self._struck = self.signal << 8 | 0x7F
        self._registers = ptrace.Registers()
        self._onward = Onward(self._registers)

    def burst(self, thread: Target, ways: Ways, limits: Limits) -> Burst:
        registers = self._registers
        ptrace.registers(thread.tid, registers)
        burst = Burst(registers[RIP], registers[RIP])
        edges = burst.edges
        first = ways.line(burst.start)
        if first is not None and first.address == burst.start:  # it stands before its first branch already
            ahead, here = Ahead(Fork({first.address: End(first, ())}, frozenset()), None), True
        else:
            ahead, here = ways.of(burst.start, registers, registers[RSP]), False
        chosen: Edge | None = None  # the branch it stands before, if that will be taken: not the burst's yet
        self.breakpoints.arm(thread.tid)
        try:
            while len(edges) < limits.depth or not limits.full(burst):
                fork = ahead.fork
                if not fork.ends:
                    burst.why = "unreadable code"
                    break
                if not here:
                    burst.why = self._run(thread, fork, burst, limits)
                    ways.read.moved()
                    if chosen and (burst.why == "full" or registers[RIP] != chosen[0]):
                        edges.append(chosen)
                        burst.end = chosen[1]
                    if burst.why != "full":
                        break
                end = fork.ends[registers[RIP]]
                branch = end.branch
                if ways.astray(ahead, end, registers[RSP]):
                    burst.why = "astray"
                    break
                edges += end.path
                burst.end = branch.address
                if branch.goes is None:
                    burst.why = "system call"
                    break
                goes = branch.goes(registers, branch, ways.read)
                if goes is None:
                    burst.why = "unreadable code"
                    break
                chosen = None if goes == NOT_TAKEN else (branch.address, goes, branch.kind)
                ahead, here = ways.after(branch, goes, registers), False
        finally:
            if burst.dropped:
                self.breakpoints.abandon()
            else:
                self.breakpoints.disarm()
        return burst

    def clean(self, tid: int) -> None:
        self.breakpoints.clear(tid)

    def _run(self, thread: Target, fork: Fork, burst: Burst, limits: Limits) -> str:
        """Go on to one of the ends of ``fork``; ``full`` when it is there."""
        if burst.stops == limits.stops:
            return "stops"
        burst.stops += 1
        registers, before = self._registers, self._registers[RIP]
        pokes = self.breakpoints.place(fork)
        was = b""  # the registers at a place that it may come back to at once
        if before in fork.ends:
            if registers[EFLAGS] & RESUME_FLAG:
                was = _but_counter(registers)
            else:  # this instruction must run once before a breakpoint on it counts
                pokes = [*pokes, (EFLAGS * 8, registers[EFLAGS] | RESUME_FLAG)]
        while True:
            status = self._onward.go(thread.tid, pokes, limits.seconds)
            if status is None:
                return "deadline"
            if status == self._struck and (at := registers[RIP]) in fork.ends:
                # The kernel sets the resume flag where a breakpoint struck, and one executed instruction clears it. It
                # may stand from the last stop, too, if nothing was executed since.
                ran = at != before or (was and _but_counter(registers) != was)
                if (ran and registers[EFLAGS] & RESUME_FLAG) or self.breakpoints.struck():
                    return "full"
            if not thread.is_trigger(status):
                burst.status = status
                return "signal" if stopped(status) else "gone"
            before, was, pokes = registers[RIP], b"", ()


class SingleStep:
    """Instruction by instruction with the trap flag. PUSHF and POPF would carry the flag into the program: it ends
    there."""

    name = "single stepping"
    signal = int(SIGTRAP)
    ends = 1

    def __init__(self) -> None:
        self._registers = ptrace.Registers()

    def burst(self, thread: Target, ways: Ways, limits: Limits) -> Burst:
        registers, read, tid = self._registers, ways.read, thread.tid
        ptrace.registers(tid, registers)
        burst = Burst(registers[RIP], registers[RIP])
        lines: dict[int, tuple[Branch | None, bytes]] = {}
        while not limits.full(burst):
            place = registers[RIP]
            burst.end = place
            if place not in lines:
                lines[place] = ways.line(place), read(place, 4)
            branch, first = lines[place]
            if branch is None:
                burst.why = "unreadable code"
            elif branch.goes is None and branch.address == place:
                burst.why = "system call"
            elif _opcode(first) in (_PUSHF, _POPF):
                burst.why = "flags"
            elif burst.stops == limits.stops * 8:
                burst.why = "stops"
            if burst.why != "full" or branch is None:
                break
            taken = branch.goes(registers, branch, read) if branch.goes and branch.address == place else NOT_TAKEN
            burst.stops += 1
            burst.why = self._step(thread, burst, limits)
            read.moved()
            if burst.why != "full":
                break
            if branch.address == place and taken != NOT_TAKEN:
                burst.edges.append((place, registers[RIP], branch.kind))
                burst.end = registers[RIP]
        return burst

    def clean(self, tid: int) -> None:
        """The trap flag goes with the step's own stop."""

    def _step(self, thread: Target, burst: Burst, limits: Limits) -> str:
        while True:
            ptrace.single_step(thread.tid)
            status = next_stop(thread.tid, limits.seconds)
            if status is None:
                return "deadline"
            if stopped(status) and not event_of(status) and signal_of(status) == SIGTRAP:
                code, _, _ = ptrace.siginfo(thread.tid)
                if code == _TRAP_TRACE:
                    ptrace.registers(thread.tid, self._registers)
                    return "full"
            if not thread.is_trigger(status):
                burst.status = status
                return "signal" if stopped(status) else "gone"


def _but_counter(registers: ctypes.Array[ctypes.c_uint64]) -> bytes:
    """All but RCX, which `Ways.after` sets to what LOOP will make of it."""
    found = bytes(registers)
    return found[: RCX * 8] + found[RCX * 8 + 8 :]


_TRAP_TRACE = 2


def _opcode(code: bytes) -> int:
    """The opcode of a one-byte instruction, behind an operand size prefix and REX."""
    for byte in code:
        if byte != 0x66 and byte & 0xF0 != 0x40:
            return byte
    return -1
