"""Breakpoints that move through one thread, over debug registers or over perf events.

Debug registers are faster. But their stop is a SIGTRAP: if the collector dies at that moment, the signal kills the
thread. The perf event's stop is a signal that programs ignore, and the event goes with the collector.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Protocol

from .. import perf_events, ptrace
from .forks import Fork, Placed
from .stops import Poke

__all__ = ["Breakpoints", "DebugRegisters", "PerfBreakpoints"]

_SLOTS = 4
_DR = tuple(ptrace.DEBUG_REGISTER + slot * 8 for slot in range(_SLOTS))
_DR7 = ptrace.DEBUG_REGISTER + 7 * 8
_ENABLE = (0x00, 0x01, 0x05, 0x15, 0x55)
"""DR7 with the first so many debug registers on, for execution, length 1 (Intel SDM volume 3, 18.2.4)."""
_TRAP_HWBKPT, _POLL_IN = 4, 1

_BREAKPOINT = (5, 0)
"""PERF_TYPE_BREAKPOINT."""
_EXECUTION, _LENGTH = 4, 8
"""HW_BREAKPOINT_X, which wants the length sizeof(long)."""


class Breakpoints(Protocol):
    """Up to ``slots`` execution breakpoints; the thread is stopped when a method is called, but for `abandon`."""

    name: str
    slots: int
    signal: int
    """What stops the thread at one. It must not be blocked there."""

    def arm(self, tid: int) -> None: ...

    def place(self, fork: Fork) -> Sequence[Poke]:
        """Stop at the ends of ``fork`` and nowhere before, once words of its struct user are set as is told."""

    def struck(self) -> bool:
        """Whether the stop, which is by ``signal``, is one of ours."""

    def disarm(self) -> None: ...

    def abandon(self) -> None:
        """`disarm` for a thread that runs: `clear` must follow when it stops."""

    def clear(self, tid: int) -> None: ...


def moves(before: tuple[int, ...], fork: Fork) -> Placed:
    """How breakpoints that stand at the addresses ``before`` are made to fit ``fork``.

    What stood elsewhere before may stay, if no way leads past it. Each answer is kept in the fork.
    """
    found = fork.placed.get(before)
    if found is None:
        found = fork.placed[before] = _moves(list(before), fork)
    return found


def _moves(at: list[int], fork: Fork) -> Placed:
    wanted = [address for address in fork.ends if address not in at]
    done = []
    free = [slot for slot, address in enumerate(at) if address not in fork.ends or address in at[:slot]]
    free.sort(key=lambda slot: not fork.passes(at[slot]))  # what must not stay is taken first
    for slot in free:
        if wanted:
            at[slot] = wanted.pop()
        elif fork.passes(at[slot]):
            at[slot] = next(iter(fork.ends))
        else:
            continue
        done.append((slot, at[slot]))
    for address in wanted:
        done.append((len(at), address))
        at.append(address)
    return tuple(done), tuple(at)


class DebugRegisters:
    """DR0 to DR3, set by ptrace. For threads that may end with us."""

    name = "debug registers"
    slots = _SLOTS
    signal = int(signal.SIGTRAP)

    def __init__(self) -> None:
        self._tid = -1
        self.at: tuple[int, ...] = ()
        """Where they stand."""

    def arm(self, tid: int) -> None:
        self._tid, self.at = tid, ()

    def place(self, fork: Fork) -> Sequence[Poke]:
        before = self.at
        moved, self.at = moves(before, fork)
        pokes = [(_DR[slot], address) for slot, address in moved]
        if len(self.at) != len(before):
            pokes.append((_DR7, _ENABLE[len(self.at)]))
        return pokes

    def struck(self) -> bool:
        return ptrace.siginfo(self._tid)[0] == _TRAP_HWBKPT

    def disarm(self) -> None:
        if self.at:
            self.clear(self._tid)

    def abandon(self) -> None:
        self.at = ()

    def clear(self, tid: int) -> None:
        ptrace.poke_user(tid, _DR7, 0)


class PerfBreakpoints:
    """PERF_TYPE_BREAKPOINT events, moved by PERF_EVENT_IOC_MODIFY_ATTRIBUTES. They stop nobody once we are gone."""

    name = "perf breakpoints"
    slots = _SLOTS

    def __init__(self, signal: int) -> None:
        self.signal = signal
        self._tid, self._at, self._fds = -1, tuple[int, ...](), list[int]()

    def arm(self, tid: int) -> None:
        self._tid, self._at = tid, ()

    def place(self, fork: Fork) -> Sequence[Poke]:
        moved, self._at = moves(self._at, fork)
        for slot, address in moved:
            if slot < len(self._fds):
                perf_events.modify(self._fds[slot], _attribute(address))
            else:
                fd = perf_events.open_event(_attribute(address), self._tid)
                self._fds.append(fd)
                perf_events.signal_thread(fd, self._tid, self.signal)
        return ()

    def struck(self) -> bool:
        code, _, fd = ptrace.siginfo(self._tid)
        return code == _POLL_IN and fd in self._fds

    def disarm(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    abandon = disarm

    def clear(self, tid: int) -> None:
        """Nothing is left of closed events."""


def _attribute(address: int) -> bytes:
    flags = perf_events.FLAG["exclude_kernel"] | perf_events.FLAG["exclude_hv"]
    return perf_events.attribute(
        _BREAKPOINT, flags, period=1, bp_type=_EXECUTION, config1=address, config2=_LENGTH, wakeup=1
    )
