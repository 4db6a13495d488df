"""The schedule of bursts: one per period of a thread's CPU time, within a limit on the share of wall time.

`ClockTrigger` is a kernel event that counts the thread's CPU time and signals it in user mode. `PollTrigger` reads CPU
times at each tick. Both interrupt overdue threads, but only running ones: PTRACE_INTERRUPT makes some system calls of
blocked threads fail with EINTR.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace

from ...lbr import CALL_STACK, KIND, convert
from .. import ptrace
from ..options import DEFAULT_SELECT, Options
from ..perf_events import syscall
from ..perf_events.syscall import CPU_CLOCK, FLAG, USER_ONLY
from ..procfs import stat_of
from ..ptrace import event_of, signal_of, stopped
from .bursts import BurstLimits
from .quiet_signals import INTERNAL, handled_signal, pending_signals, quiet_signal
from .tree import Thread

__all__ = [
    "Budget",
    "BurstLengths",
    "ClockTrigger",
    "Duty",
    "PollTrigger",
    "Trigger",
    "is_ring",
    "kinds_recorded",
    "limits_of",
]


_POLL_IN, _SI_KERNEL = 1, 0x80
_NO_FILES = (errno.EMFILE, errno.ENFILE)
_OVERDUE = 4
"""After this many periods without its signal, a thread is assumed to block it."""
_CHECK_INTERVAL = 0.1
"""Seconds between two checks for overdue threads: reading the clock of a running thread interrupts it."""


class Trigger(ABC):
    """Decides when threads get their bursts. This base has the parts that need no kernel event."""

    name: str
    signals: frozenset[int] = frozenset()
    """By which signals a kernel event may stop threads; none where their CPU times are looked at."""

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

    def pending(self, thread: Thread) -> int:
        """The trigger's signals that wait for a thread, bit n - 1 for signal n."""
        return 0

    def stops(self, thread: Thread) -> bool:
        """Whether a signal of the trigger has stopped a thread, or is about to."""
        return False


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
            return thread.ran()
        except OSError:
            return thread.spent

    def tick(self, threads: Iterable[Thread]) -> None:
        for thread in threads:
            if thread.period and self.used(thread) - thread.spent > thread.period:
                _interrupt(thread)


class ClockTrigger(PollTrigger):
    """A cpu-clock event on each thread, whose overflow sends it its `quiet_signal`; `due` knows it from other such
    signals. A thread that blocks all of these is interrupted, and so is one for which no file may be opened."""

    name = "cpu-clock"
    signals = frozenset((INTERNAL, signal.SIGURG, signal.SIGWINCH, signal.SIGIO))

    def __init__(self, *, ends_with_us: bool) -> None:
        """``ends_with_us``: the program is killed if we are."""
        self._ends_with_us = ends_with_us
        self._next_check = 0.0

    def arm(self, thread: Thread, period: int) -> None:
        attr = syscall.attribute(USER_ONLY | FLAG["disabled"], sample_period=period, wakeup_events=1, **CPU_CLOCK)
        try:
            thread.clock = syscall.sparing(syscall.open_event(attr, thread.tid))
        except OSError as error:
            if error.errno not in _NO_FILES:
                raise
            super().arm(thread, period)
            return
        thread.period = period
        self._send(thread)
        syscall.enable(thread.clock)

    def _send(self, thread: Thread) -> None:
        """Have the event send the signal that suits the thread as it was last seen."""
        number = quiet_signal(thread.seen)
        if self._ends_with_us and (thread.process.by_loader or not number) and not thread.blocks_internal:
            number = INTERNAL
        number = number or handled_signal(thread.seen)
        if number != thread.sends:
            syscall.signal_thread(thread.clock, thread.tid, number)
            thread.sends, thread.sent = number, thread.sent | 1 << number >> 1

    def hold(self, thread: Thread) -> None:
        if thread.clock >= 0:
            syscall.disable(thread.clock)

    def rearm(self, thread: Thread, period: int) -> None:
        super().rearm(thread, period)
        if thread.clock >= 0:
            if self._ends_with_us:
                thread.blocks_internal = bool(ptrace.sigmask(thread.tid) >> INTERNAL - 1 & 1)
            self._send(thread)
            syscall.set_period(thread.clock, period)
            syscall.enable(thread.clock)

    def due(self, thread: Thread, status: int) -> bool:
        if super().due(thread, status):
            return True
        if not stopped(status) or event_of(status):
            return False
        number = signal_of(status)
        bit = 1 << number - 1
        if thread.sent & bit:
            code, _, fd = ptrace.siginfo(thread.tid)
            return code == _POLL_IN and (number == INTERNAL or fd in (thread.clock, thread.former_clock))
        # The kernel sends SIGIO in place of INTERNAL to a user with too many pending signals (RLIMIT_SIGPENDING).
        return (
            number == signal.SIGIO
            and thread.sends == INTERNAL
            and ptrace.siginfo(thread.tid)[0] == _SI_KERNEL
            and not (thread.seen and (thread.seen.caught | thread.seen.ignored | thread.seen.blocked) & bit)
        )

    def used(self, thread: Thread) -> int:
        return syscall.read_count(thread.clock) if thread.clock >= 0 else super().used(thread)

    def tick(self, threads: Iterable[Thread]) -> None:
        now = time.monotonic()
        check_all = now >= self._next_check
        if check_all:
            self._next_check = now + _CHECK_INTERVAL
        super().tick(thread for thread in threads if not thread.sends)
        for thread in threads if check_all else ():
            if thread.sends and self.used(thread) - thread.spent > _OVERDUE * thread.period:
                _interrupt(thread)

    def disarm(self, thread: Thread) -> None:
        if thread.clock >= 0:
            os.close(thread.clock)
            thread.clock, thread.former_clock = -1, thread.clock
        thread.period = thread.sends = 0

    def pending(self, thread: Thread) -> int:
        return thread.sent and pending_signals(thread.tid) & thread.sent

    def stops(self, thread: Thread) -> bool:
        stat = thread.stat()
        return stat is not None and bool(stat.pending & ~stat.blocked & thread.sent or ptrace.reports(thread.tid))


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
_PART, _SPARING, _USUAL_SHARE = 400, 25_000_000, 0.05
"""Where bursts are cheap, periods last at least one part in so many of the recording, and in the end so many ns at a
share of `_USUAL_SHARE`: a file need not grow faster than that."""
_LARGEST_BUDGET = 0.1
"""Most seconds of burst time that accumulate while nothing runs."""
_JITTER = 0.25
_NEW_WEIGHT = 0.1
"""Weight of the newest burst in the running means."""
_SWITCHES = 0.1
"""Largest share of a burst that its threads wait for a processor on an idle machine, three times what was seen."""


class Budget:
    """Seconds that may be spent: ``share`` of wall time. ``most`` of them are saved up, of which there are ``left`` at
    the beginning."""

    def __init__(self, share: float, most: float, left: float = 0.0) -> None:
        self._share, self._most, self._left = share, most, left
        self._last = time.monotonic()

    def left(self) -> float:
        """Seconds; negative: too many were spent."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._last) * self._share, self._most)
        self._last = now
        return self._left

    def spend(self, seconds: float) -> None:
        self._left -= seconds


class Duty:
    """Allows bursts within ``share`` of wall time, and proposes CPU-time periods that reach it where the program runs
    all the time.

    ``period`` in ns is fixed if it is not 0. Otherwise it follows the cost of bursts and the number of running threads.
    ``cheap``: bursts cost so little that not all of the share is used.
    """

    def __init__(self, share: float, period: int = 0, first_cost: float = 0.002, *, cheap: bool = False) -> None:
        self.share, self._cheap, self._begun = share, cheap, time.monotonic()
        if cheap:
            first_cost /= 4
        self._fixed = period
        self._cost = first_cost
        self._cpu = self._apart = first_cost / share
        self._budget = Budget(share, _LARGEST_BUDGET)
        self._last_burst = time.monotonic()
        self._refused = 0
        """Triggers since the last burst that was allowed."""

    @property
    def period(self) -> int:
        """Mean ns of a thread's CPU time between two bursts."""
        if self._fixed:
            return self._fixed
        running = max(self._cpu / self._apart, 1.0)
        # A single thread does not run during its bursts; of several threads, the others do.
        bursts_apart = running / self.share - (running == 1)
        return min(max(int(self._cost * bursts_apart * 1e9), self._shortest), _LONGEST)

    @property
    def _shortest(self) -> int:
        if not self._cheap:
            return _SHORTEST
        enough = int(_SPARING * min(_USUAL_SHARE / self.share, 1.0))
        return min(max(int((time.monotonic() - self._begun) * 1e9) // _PART, _SHORTEST), enough)

    def next_period(self, coming: float = 0.0) -> int:
        """A period with jitter, so that bursts do not synchronize with the program; after too much burst time, about as
        long as it takes to make up for it: shorter where a thread runs only part of the time, and where several wait
        for that, so that one of them is there when the time has come. ``coming``: seconds that are about to be
        `spent`."""
        owed = max(coming - self._budget.left(), 0.0) / self.share * 1e9
        owed *= min(self._cpu / self._apart, 1.0) / max(self._refused, 1)
        return int(max(self.period, owed, _KERNEL_MINIMUM) * random.uniform(1 - _JITTER, 1 + _JITTER))

    def first_period(self) -> int:
        """A period that is uniform within one period, so that short-lived threads are sampled as often as they run."""
        return max(int(self.period * random.random()), 1)

    def allows(self) -> bool:
        """Whether a burst may begin now."""
        may = self._budget.left() > 0
        self._refused = 0 if may else self._refused + 1
        return may

    def lost(self, seconds: float) -> None:
        """The program lost ``seconds`` otherwise: they count, too."""
        self._budget.spend(seconds)

    def spent(self, seconds: float, cpu: int, waited: float = 0.0) -> float:
        """A burst took ``seconds``, and its thread has run for ``cpu`` ns since the one before. ``waited``: how many of
        them it and we waited for a processor, those that both did counted twice. The result is what counts as its cost.

        On a busy machine the program would wait as long for each second of its own: it gets as many bursts for its CPU
        time as on an idle one. A switch of threads is a wait, too, and counts.
        """
        seconds -= max(min(waited, seconds) - _SWITCHES * seconds, 0.0)
        self._budget.spend(seconds)
        self._cost += (seconds - self._cost) * _NEW_WEIGHT
        now = time.monotonic()
        apart, self._last_burst = now - self._last_burst, now
        # CPU time of all threads over wall time, as the bursts see it: how many run at once
        self._cpu += (cpu / 1e9 - self._cpu) * _NEW_WEIGHT
        self._apart += (apart - self._apart) * _NEW_WEIGHT
        return seconds


# -- how long bursts are


_SHORT, _LONG = 64, 704
"""Mean branches of the first bursts, and of bursts late in a long recording."""
_AT_ONE_SECOND = 400
"""Mean branches once bursts have taken a second (benchmarks/bench_truth.py)."""
_FOLLOWED = 288
"""Most branches of a burst that has to be followed where others are foreseen."""


class BurstLengths:
    """Draws the number of branches of each burst: bursts of one length lock to loops.

    Few bursts show most if they are short, since each begins elsewhere; many, if they are long, since their later
    branches depend less on where the burst began. So they grow with the recording, unless ``fixed`` has the fewest and
    the most branches of all of them. Where bursts can be foreseen (``cheap``) a branch costs next to nothing, and all
    that are have their full length.
    """

    def __init__(self, fixed: tuple[int, int] | None = None, *, cheap: bool = False) -> None:
        self._fixed, self._cheap = fixed, cheap
        self.most = fixed[1] if fixed else _LONG * 3 // 2

    def next(self, spent: float) -> tuple[int, int]:
        """Of a burst before which bursts have taken ``spent`` seconds, and of one in its place that has to be followed
        though others are foreseen: code that is new is decoded first, so a long one would take as long as a program
        lasts that soon ends."""
        grown = int(min(max(_AT_ONE_SECOND * spent**0.5, _SHORT), _LONG))
        length = random.randint(*self._fixed) if self._fixed else self._around(_LONG if self._cheap else grown)
        return length, min(length, _FOLLOWED, self._around(grown)) if self._cheap else length

    @staticmethod
    def _around(mean: int) -> int:
        return random.randint(mean // 2, mean * 3 // 2)


def is_ring(options: Options, select: int) -> bool:
    """Whether a burst makes one record, as a processor's ring does."""
    return options.ring is not None or select != convert(DEFAULT_SELECT, "perf", "msr").value


def kinds_recorded(select: int) -> frozenset[int]:
    """perf's branch types that MSR_LBR_SELECT ``select`` records; of call-stack mode, before returns delete calls."""
    import numpy as np

    from ...lbr import ring_contents

    one, far = np.ones(1, np.uint64), np.full(1, 256, np.uint64)
    return frozenset(
        kind
        for kind in KIND.values()
        if len(ring_contents(one, far, np.array([kind], np.uint8), depth=1, select=select & ~CALL_STACK))
    )


_IN_PLACE = 0.002
"""Seconds of a burst that is followed where others are foreseen: about as long as these may take."""
_UP_TO_A_CALL = 1 << 20
"""Branches of a burst that only a system call, or the number of stops, is to end."""


def limits_of(options: Options, select: int, *, cheap: bool = False) -> tuple[BurstLimits, BurstLengths]:
    """When bursts end, and who draws their lengths. ``cheap``: a branch costs next to nothing. A ring is read when
    one to two times ``depth`` branches have passed its filter, in call-stack mode, where returns delete calls, two to
    three times: at a fixed number a loop would show one of its branches as the newest in all records."""
    if not is_ring(options, select):
        lengths = BurstLengths(options.burst, cheap=cheap)
        return BurstLimits(lengths.most, stops=64 + 16 * lengths.most, in_place=_IN_PLACE), lengths
    least = options.depth * 2 if select & CALL_STACK else options.depth
    lengths = BurstLengths((least, least + options.depth))
    limits = BurstLimits(lengths.most, stops=64 + 16 * lengths.most, in_place=_IN_PLACE)
    if select != convert(DEFAULT_SELECT, "perf", "msr").value:
        limits = replace(limits, counted=kinds_recorded(select), stops=64 + 32 * lengths.most)
    if options.calls:
        limits = replace(limits, depth=_UP_TO_A_CALL, stops=64 + 32 * lengths.most)
    return limits, lengths
