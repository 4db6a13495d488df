"""The schedule of bursts: one per period of a thread's CPU time, within a limit on the share of wall time.

`ClockTrigger` is a kernel event that counts the thread's CPU time and signals it in user mode. `PollTrigger` reads CPU
times at each tick. Both interrupt overdue threads, but only running ones: PTRACE_INTERRUPT makes some system calls of
blocked threads fail with EINTR.
"""

from __future__ import annotations

import os
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable

from .. import ptrace
from ..perf_events import syscall
from ..perf_events.syscall import CPU_CLOCK, FLAG, USER_ONLY
from ..procfs import stat_of
from ..ptrace import event_of, signal_of, stopped
from .tree import Thread

__all__ = ["ClockTrigger", "Duty", "PollTrigger", "Trigger"]


_POLL_IN = 1
_OVERDUE = 4
"""After this many periods without its signal, a thread is assumed to block it."""
_CHECK_INTERVAL = 0.1
"""Seconds between two checks for overdue threads: reading the clock of a running thread interrupts it."""


class Trigger(ABC):
    """Decides when threads get their bursts. This base has the parts that need no kernel event."""

    name: str

    @abstractmethod
    def arm(self, thread: Thread, period: int) -> None:
        """Start to count for a thread, whose first burst is due after ``period`` ns. Raises `OSError` where the kernel
        refuses."""

    @abstractmethod
    def hold(self, thread: Thread) -> None:
        """Stop counting: a burst begins."""

    def rearm(self, thread: Thread, period: int) -> None:
        """Count again; the next burst is due after ``period`` ns of CPU time."""
        thread.period = period

    def due(self, thread: Thread, status: int) -> bool:
        """Whether the trigger caused this stop: here, whether we interrupted the thread."""
        if not thread.interrupted or not stopped(status) or event_of(status) != ptrace.EVENT_STOP:
            return False
        thread.interrupted = False
        return signal_of(status) == signal.SIGTRAP

    @abstractmethod
    def used(self, thread: Thread) -> int:
        """CPU time in ns since some fixed moment."""

    @abstractmethod
    def tick(self, threads: Iterable[Thread]) -> None:
        """Interrupt overdue threads."""

    def disarm(self, thread: Thread) -> None:
        """Stop for good; a signal may still be pending."""
        thread.period = 0

    def pending(self, thread: Thread) -> bool:
        """Whether a signal of the trigger is pending for a stopped thread."""
        return False


class ClockTrigger(Trigger):
    """A cpu-clock event on each thread, whose overflow sends it ``signal``; `due` tells it from other such signals.

    SIGSTOP cannot be blocked, but one that is pending when the collector crashes would stop the thread for good.
    """

    def __init__(self, signal: signal.Signals) -> None:
        self.signal = signal
        self.name = f"cpu-clock, {signal.name}"
        self._next_check = 0.0

    def arm(self, thread: Thread, period: int) -> None:
        thread.clock = syscall.open_event(
            syscall.attribute(USER_ONLY | FLAG["disabled"], sample_period=period, wakeup_events=1, **CPU_CLOCK),
            thread.tid,
        )
        thread.period = period
        syscall.signal_thread(thread.clock, thread.tid, self.signal)
        syscall.enable(thread.clock)

    def hold(self, thread: Thread) -> None:
        syscall.disable(thread.clock)

    def rearm(self, thread: Thread, period: int) -> None:
        thread.period = period
        syscall.set_period(thread.clock, period)
        syscall.enable(thread.clock)

    def due(self, thread: Thread, status: int) -> bool:
        if super().due(thread, status):
            return True
        if not stopped(status) or event_of(status) or signal_of(status) != self.signal:
            return False
        code, _, fd = ptrace.siginfo(thread.tid)
        return code == _POLL_IN and fd in (thread.clock, thread.former_clock)

    def used(self, thread: Thread) -> int:
        return syscall.read_count(thread.clock)

    def tick(self, threads: Iterable[Thread]) -> None:
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_INTERVAL
        for thread in threads:
            if thread.clock >= 0 and self.used(thread) - thread.spent > _OVERDUE * thread.period:
                _interrupt(thread)

    def disarm(self, thread: Thread) -> None:
        if thread.clock >= 0:
            os.close(thread.clock)
            thread.clock, thread.former_clock = -1, thread.clock
        thread.period = 0

    def pending(self, thread: Thread) -> bool:
        stat = stat_of(thread.tid)
        return stat is not None and bool(stat.pending & ~stat.blocked & 1 << self.signal - 1)


class PollTrigger(Trigger):
    """CPU times from /proc/PID/schedstat, where perf events are refused."""

    name = "schedstat, PTRACE_INTERRUPT"

    def arm(self, thread: Thread, period: int) -> None:
        thread.spent = self.used(thread)
        thread.period = period

    def hold(self, thread: Thread) -> None:
        """There is no counter to stop."""

    def used(self, thread: Thread) -> int:
        try:
            with open(f"/proc/{thread.tid}/schedstat", "rb", buffering=0) as file:
                return int(file.read().split()[0])
        except OSError:
            return thread.spent

    def tick(self, threads: Iterable[Thread]) -> None:
        for thread in threads:
            if thread.period and self.used(thread) - thread.spent > thread.period:
                _interrupt(thread)


def _interrupt(thread: Thread) -> None:
    """Interrupt a running thread."""
    stat = None if thread.interrupted else stat_of(thread.tid)
    if stat is not None and stat.state == "R":
        try:
            ptrace.interrupt(thread.tid)
        except (ptrace.Gone, OSError):
            return
        thread.interrupted = True


# -- how often bursts may occur: a limit on the share of wall time, and the period that keeps to it


_KERNEL_MINIMUM = 10_000
"""The shortest period of this clock in the kernel (perf_swevent_start_hrtimer)."""
_SHORTEST, _LONGEST = 1_000_000, 1_000_000_000
_LARGEST_BUDGET = 0.1
"""Most seconds of burst time that accumulate while nothing runs."""
_JITTER = 0.25
_NEW_WEIGHT = 0.1
"""Weight of the newest burst in the running means."""


class Duty:
    """Allows bursts within ``share`` of wall time, and proposes CPU-time periods that reach it.

    ``period`` in ns is fixed if it is not 0. Otherwise it follows the cost of bursts and the number of running threads.
    """

    def __init__(self, share: float, period: int = 0, first_cost: float = 0.002) -> None:
        self.share = share
        self._fixed = period
        self._cost = first_cost
        self._cpu = self._apart = first_cost / share
        self._budget = 0.0
        self._last = self._last_burst = time.monotonic()

    @property
    def period(self) -> int:
        """Mean ns of a thread's CPU time between two bursts."""
        if self._fixed:
            return self._fixed
        running = max(self._cpu / self._apart, 1.0)
        # A single thread does not run during its bursts; of several threads, the others do.
        bursts_apart = running / self.share - (running == 1)
        return min(max(int(self._cost * bursts_apart * 1e9), _SHORTEST), _LONGEST)

    def next_period(self) -> int:
        """A period with jitter, so that bursts do not synchronize with the program; after too much burst time, at least
        as long as it takes to make up for it."""
        owed = max(-self._budget, 0.0) / self.share * 1e9
        return int(max(self.period, owed, _KERNEL_MINIMUM) * random.uniform(1 - _JITTER, 1 + _JITTER))

    def first_period(self) -> int:
        """Uniform within one period, so that short-lived threads are sampled as often as they run."""
        return max(int(self.period * random.random()), 1)

    def allows(self) -> bool:
        """Whether a burst may begin now."""
        now = time.monotonic()
        self._budget = min(self._budget + (now - self._last) * self.share, _LARGEST_BUDGET)
        self._last = now
        return self._budget > 0

    def spent(self, seconds: float, cpu: int) -> None:
        """A burst took ``seconds``, and its thread has run for ``cpu`` ns since the one before."""
        self._budget -= seconds
        self._cost += (seconds - self._cost) * _NEW_WEIGHT
        now = time.monotonic()
        apart, self._last_burst = now - self._last_burst, now
        # CPU time of all threads over wall time, as the bursts see it: how many run at once
        self._cpu += (cpu / 1e9 - self._cpu) * _NEW_WEIGHT
        self._apart += (apart - self._apart) * _NEW_WEIGHT
