"""Block stepping: from branch to branch with breakpoints.

It decodes what comes, stops at a branch further on, and tells from the place which way the branches before went, and
from the registers where this one goes. `walker` does the same in machine code for what came before; this goes on where
it cannot, and is what it is compared with.
"""

from __future__ import annotations

import ctypes

from .. import ptrace
from ..ptrace import EFLAGS, RESUME_FLAG, RIP, RSP
from .branching import NOT_TAKEN
from .breakpoints import Breakpoints, DebugRegisters
from .engines import Burst, Limits, Target
from .forks import Edge, End, Fork
from .stops import Onward, Poke, stopped
from .walker import Came, Walker, but_counter
from .ways import Ahead, Ways

__all__ = ["BlockStep"]


class BlockStep:
    """From branch to branch with ``breakpoints``; see `ways` for where they are put."""

    def __init__(self, breakpoints: Breakpoints, *, walks: bool = True) -> None:
        """``walks``: in machine code, where that can be."""
        self.breakpoints = breakpoints
        self.signal, self.ends = breakpoints.signal, breakpoints.slots
        self._struck = self.signal << 8 | 0x7F
        self._registers = ptrace.Registers()
        self._onward = Onward(self._registers)
        self._walker = _walker(self._registers, breakpoints) if walks else None
        self.walks = self._walker is not None
        self.name = f"block stepping, {breakpoints.name}{', compiled walk' * self.walks}"

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
            while True:
                if not ahead.fork.ends:
                    burst.why = "unreadable code"
                    break
                came: Came | None = None
                walked = (
                    None if here or not self._walker else self._walker.walk(thread, ways, ahead, chosen, burst, limits)
                )
                if walked is not None:
                    ahead, chosen, here, came = walked
                    ways.read.moved()
                fork = ahead.fork
                if not here:
                    burst.why = self._run(thread, fork, burst, limits, came)
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
                if limits.full(burst):
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

    def _run(self, thread: Target, fork: Fork, burst: Burst, limits: Limits, came: Came | None = None) -> str:
        """Go on to one of the ends of ``fork``; ``full`` when it is there. ``came``: it is on its way already."""
        registers, pokes = self._registers, tuple[Poke, ...]()
        if came is None:
            if burst.stops == limits.stops:
                return "stops"
            burst.stops += 1
            before, was = registers[RIP], b""  # the registers at a place that it may come back to at once
            pokes = (*self.breakpoints.place(fork),)
            if before in fork.ends:
                if registers[EFLAGS] & RESUME_FLAG:
                    was = but_counter(registers)
                else:  # this instruction must run once before a breakpoint on it counts
                    pokes = (*pokes, (EFLAGS * 8, registers[EFLAGS] | RESUME_FLAG))
            status = self._onward.go(thread.tid, pokes, limits.seconds)
        else:
            status, before, was = came
            if status is None:
                status = self._onward.wait(thread.tid, limits.seconds)
        while True:
            if status is None:
                return "deadline"
            if status == self._struck and (at := registers[RIP]) in fork.ends:
                # The kernel sets the resume flag where a breakpoint struck, and one executed instruction clears it. It
                # may stand from the last stop, too, if nothing was executed since.
                ran = at != before or (was and but_counter(registers) != was)
                if (ran and registers[EFLAGS] & RESUME_FLAG) or self.breakpoints.struck():
                    return "full"
            if not thread.is_trigger(status):
                burst.status = status
                return "signal" if stopped(status) else "gone"
            before, was = registers[RIP], b""
            status = self._onward.go(thread.tid, (), limits.seconds)


def _walker(registers: ctypes.Array[ctypes.c_uint64], breakpoints: Breakpoints) -> Walker | None:
    """``None`` where these breakpoints cannot be moved by it, or no memory may be executed."""
    if not isinstance(breakpoints, DebugRegisters):
        return None
    try:
        return Walker(registers, breakpoints)
    except OSError:
        return None
