"""When a thread gets a burst: after so much CPU time of its own, and within a limit on the share of wall time.

`ClockTrigger` is an event of the kernel that counts the thread's CPU time and signals it in user mode. `PollTrigger`
looks at each tick who has run. What is late is interrupted by both, if it runs right now: a blocked thread must be
left alone, since PTRACE_INTERRUPT makes some system calls fail with EINTR.
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
_LATE = 4
"""So many periods without its signal, and a thread is taken to block it."""
_LOOK = 0.1
"""Seconds between two looks for such: reading the clock of a thread that runs interrupts it."""


class Trigger(ABC):
    """Of what either has to do, this does what needs no event of the kernel."""

    name: str

    @abstractmethod
    def arm(self, thread: Thread, period: int) -> None:
        """Begin to count for a thread, whose first burst is due after ``period`` ns. `OSError` where that is
        refused."""

    @abstractmethod
    def hold(self, thread: Thread) -> None:
        """Do not count for now: a burst begins."""

    def rearm(self, thread: Thread, period: int) -> None:
        """Count again; the next burst is due after ``period`` ns of CPU time."""
        thread.period = period

    def due(self, thread: Thread, status: int) -> bool:
        """Whether this stop is the trigger's: here, whether it stopped because it was asked to."""
        if not thread.asked or not stopped(status) or event_of(status) != ptrace.EVENT_STOP:
            return False
        thread.asked = False
        return signal_of(status) == signal.SIGTRAP

    @abstractmethod
    def used(self, thread: Thread) -> int:
        """CPU time in ns, from any zero."""

    @abstractmethod
    def tick(self, threads: Iterable[Thread]) -> None:
        """Look for threads that are due and were not told."""

    def disarm(self, thread: Thread) -> None:
        """Never again; a signal may still be on its way."""
        thread.period = 0

    def pending(self, thread: Thread) -> bool:
        """Whether one is, to a stopped thread."""
        return False


class ClockTrigger(Trigger):
    """A cpu-clock event on each thread, whose overflow sends it ``signal``; `due` tells it from a real one.

    SIGSTOP cannot be blocked, but one that is on its way when the collector dies would stop the thread for good.
    """

    def __init__(self, signal: signal.Signals) -> None:
        self.signal = signal
        self.name = f"cpu-clock, {signal.name}"
        self._next_look = 0.0

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


class PollTrigger(Trigger):
    """CPU times from /proc/PID/schedstat, for where perf events are refused."""

    name = "schedstat, PTRACE_INTERRUPT"

    def arm(self, thread: Thread, period: int) -> None:
        thread.spent = self.used(thread)
        thread.period = period

    def hold(self, thread: Thread) -> None:
        """Nothing counts."""

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


def _ask(thread: Thread) -> None:
    """Stop a thread that runs."""
    stat = None if thread.asked else stat_of(thread.tid)
    if stat is not None and stat.state == "R":
        try:
            ptrace.interrupt(thread.tid)
        except (ptrace.Gone, OSError):
            return
        thread.asked = True


# -- how often bursts may be: a limit on the share of wall time, and the period that keeps to it


_LEAST = 10_000
"""What the kernel makes of any shorter period of this clock (perf_swevent_start_hrtimer)."""
_SHORTEST, _LONGEST = 1_000_000, 1_000_000_000
_SAVED = 0.1
"""Seconds of time for bursts that may be saved up while nothing ran."""
_JITTER = 0.25
_NEWEST = 0.1
"""Weight of the newest burst in the running means."""


class Duty:
    """Allows bursts within ``share`` of wall time, and proposes CPU-time periods that come out just there.

    ``period`` ns is fixed if given. Otherwise it follows what a burst costs and how many threads run at once.
    """

    def __init__(self, share: float, period: int = 0, first_cost: float = 0.002) -> None:
        self.share = share
        self._fixed = period
        self._cost = first_cost
        self._cpu = self._apart = first_cost / share
        self._saved = 0.0
        self._last = self._last_burst = time.monotonic()

    @property
    def period(self) -> int:
        """Mean ns of a thread's CPU time between two bursts."""
        if self._fixed:
            return self._fixed
        running = max(self._cpu / self._apart, 1.0)
        # A thread that runs alone does not run beside its bursts; of several, the others do.
        bursts_apart = running / self.share - (running == 1)
        return min(max(int(self._cost * bursts_apart * 1e9), _SHORTEST), _LONGEST)

    def next_period(self) -> int:
        """A period with jitter, so that bursts do not fall in step with the program; none before what was overdrawn has
        come in again."""
        owed = max(-self._saved, 0.0) / self.share * 1e9
        return int(max(self.period, owed, _LEAST) * random.uniform(1 - _JITTER, 1 + _JITTER))

    def first_period(self) -> int:
        """The first one of a thread is anywhere within a period: short-lived ones are seen as often as they run."""
        return max(int(self.period * random.random()), 1)

    def allows(self) -> bool:
        """Whether a burst may begin now."""
        now = time.monotonic()
        self._saved = min(self._saved + (now - self._last) * self.share, _SAVED)
        self._last = now
        return self._saved > 0

    def spent(self, seconds: float, cpu: int) -> None:
        """A burst took ``seconds``; its thread had run ``cpu`` ns since its last one."""
        self._saved -= seconds
        self._cost += (seconds - self._cost) * _NEWEST
        now = time.monotonic()
        apart, self._last_burst = now - self._last_burst, now
        # CPU time of all threads over wall time, as the bursts see it: how many run at once
        self._cpu += (cpu / 1e9 - self._cpu) * _NEWEST
        self._apart += (apart - self._apart) * _NEWEST
