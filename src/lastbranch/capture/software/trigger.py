"""When a thread gets a burst: after so much CPU time of its own.

`ClockTrigger` is an event of the kernel that counts the thread's CPU time and signals it in user mode. `PollTrigger`
looks at each tick who has run. What is late is interrupted by both, if it runs right now: a blocked thread must be
left alone, since PTRACE_INTERRUPT makes some system calls fail with EINTR.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterable
from typing import Protocol

from .. import perf_events, ptrace
from ..perf_events import CPU_CLOCK, DISABLE, ENABLE, FLAG
from .stops import event_of, signal_of, stopped
from .tree import Thread, stat_of

__all__ = ["ClockTrigger", "PollTrigger", "Trigger"]

_POLL_IN = 1
_LATE = 4
"""So many periods without its signal, and a thread is taken to block it."""
_LOOK = 0.1
"""Seconds between two looks for such: reading the clock of a thread that runs interrupts it."""


class Trigger(Protocol):
    name: str

    def arm(self, thread: Thread, period: int) -> None:
        """Begin to count for a thread, whose first burst is due after ``period`` ns. `OSError` where that is
        refused."""

    def hold(self, thread: Thread) -> None:
        """Do not count for now: a burst begins."""

    def rearm(self, thread: Thread, period: int) -> None:
        """Count again; the next burst is due after ``period`` ns of CPU time."""

    def due(self, thread: Thread, status: int) -> bool:
        """Whether this stop is the trigger's."""

    def used(self, thread: Thread) -> int:
        """CPU time in ns, from any zero."""

    def tick(self, threads: Iterable[Thread]) -> None:
        """Look for threads that are due and were not told."""

    def disarm(self, thread: Thread) -> None:
        """Never again; a signal may still be on its way."""

    def pending(self, thread: Thread) -> bool:
        """Whether one is, to a stopped thread."""


class ClockTrigger:
    """A cpu-clock event on each thread, whose overflow sends it ``signal``; `due` tells it from a real one.

    SIGSTOP cannot be blocked, but one that is on its way when the collector dies would stop the thread for good.
    """

    def __init__(self, signal: signal.Signals) -> None:
        self.signal = signal
        self.name = f"cpu-clock, {signal.name}"
        self._next_look = 0.0

    def arm(self, thread: Thread, period: int) -> None:
        flags = FLAG["exclude_kernel"] | FLAG["exclude_hv"]
        thread.clock = perf_events.open_event(
            perf_events.attribute(CPU_CLOCK, flags | FLAG["disabled"], period=period, wakeup=1), thread.tid
        )
        thread.period = period
        perf_events.signal_thread(thread.clock, thread.tid, self.signal)
        fcntl.ioctl(thread.clock, ENABLE, 0)

    def hold(self, thread: Thread) -> None:
        fcntl.ioctl(thread.clock, DISABLE, 0)

    def rearm(self, thread: Thread, period: int) -> None:
        thread.period = period
        perf_events.set_period(thread.clock, period)
        fcntl.ioctl(thread.clock, ENABLE, 0)

    def due(self, thread: Thread, status: int) -> bool:
        if _asked(thread, status):
            return True
        if not stopped(status) or event_of(status) or signal_of(status) != self.signal:
            return False
        code, _, fd = ptrace.siginfo(thread.tid)
        return code == _POLL_IN and fd in (thread.clock, thread.former_clock)

    def used(self, thread: Thread) -> int:
        return perf_events.read_count(thread.clock)

    def tick(self, threads: Iterable[Thread]) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK
        for thread in threads:
            if thread.clock >= 0 and self.used(thread) - thread.spent > _LATE * thread.period:
                _ask(thread)

    def disarm(self, thread: Thread) -> None:
        if thread.clock >= 0:
            os.close(thread.clock)
            thread.clock, thread.former_clock = -1, thread.clock
        thread.period = 0

    def pending(self, thread: Thread) -> bool:
        stat = stat_of(thread.tid)
        return stat is not None and bool(stat.pending & ~stat.blocked & 1 << self.signal - 1)


class PollTrigger:
    """CPU times from /proc/PID/schedstat, for where perf events are refused."""

    name = "schedstat, PTRACE_INTERRUPT"

    def arm(self, thread: Thread, period: int) -> None:
        thread.spent = self.used(thread)
        thread.period = period

    def hold(self, thread: Thread) -> None:
        pass

    def rearm(self, thread: Thread, period: int) -> None:
        thread.period = period

    def due(self, thread: Thread, status: int) -> bool:
        return _asked(thread, status)

    def used(self, thread: Thread) -> int:
        try:
            with open(f"/proc/{thread.tid}/schedstat", "rb", buffering=0) as file:
                return int(file.read().split()[0])
        except OSError:
            return thread.spent

    def tick(self, threads: Iterable[Thread]) -> None:
        for thread in threads:
            if thread.period and self.used(thread) - thread.spent > thread.period:
                _ask(thread)

    def disarm(self, thread: Thread) -> None:
        thread.period = 0

    def pending(self, thread: Thread) -> bool:
        return False


def _ask(thread: Thread) -> None:
    """Stop a thread that runs."""
    stat = None if thread.asked else stat_of(thread.tid)
    if stat is not None and stat.state == "R":
        try:
            ptrace.interrupt(thread.tid)
        except (ptrace.Gone, OSError):
            return
        thread.asked = True


def _asked(thread: Thread, status: int) -> bool:
    """Whether it stopped because it was asked to."""
    if not thread.asked or not stopped(status) or event_of(status) != ptrace.EVENT_STOP:
        return False
    thread.asked = False
    return signal_of(status) == signal.SIGTRAP
