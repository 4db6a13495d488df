"""Engines: how the taken branches of a short piece of a thread's run are seen.

Block stepping (`block_step`) runs from branch to branch with breakpoints. Single stepping looks at every instruction;
it is slower and needs no model of a branch. Both end before a system call: a thread that blocks in one while others
wait in a stop would hang them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from signal import SIGTRAP
from typing import Protocol

from .. import ptrace
from ..ptrace import RIP, event_of, next_stop, signal_of, stopped
from .control_flow import Edge
from .instructions import NOT_TAKEN, Branch
from .successors import Ways

__all__ = ["Burst", "Engine", "Limits", "SingleStep", "Target"]

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
    kinds: int = field(init=False)
    """``counted`` as bits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", sum(1 << kind for kind in self.counted))

    def full(self, burst: Burst) -> bool:
        """Whether there are as many as were wanted."""
        return len(burst.edges) >= self.depth and self.missing(burst) <= 0

    def missing(self, burst: Burst) -> int:
        """How many there are not yet."""
        burst.counted += sum(self.kinds >> edge[2] & 1 for edge in burst.edges[burst.looked_at :])
        burst.looked_at = len(burst.edges)
        return self.depth - burst.counted


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
    walks: bool
    """Whether it takes forks from `walk_tables`."""

    def burst(self, thread: Target, ways: Ways, limits: Limits) -> Burst:
        """Run ``thread``, whose code is ``ways``, until ``limits`` are reached. It is stopped again then, unless the
        burst is `dropped`."""

    def clean(self, tid: int) -> None:
        """Take away what a dropped burst left in a thread, which is stopped again."""


class SingleStep:
    """Instruction by instruction with the trap flag. PUSHF and POPF would carry the flag into the program: it ends
    there."""

    name = "single stepping"
    signal = int(SIGTRAP)
    ends = 1
    walks = False

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


_TRAP_TRACE = 2


def _opcode(code: bytes) -> int:
    """The opcode of a one-byte instruction, behind an operand size prefix and REX."""
    for byte in code:
        if byte != 0x66 and byte & 0xF0 != 0x40:
            return byte
    return -1
