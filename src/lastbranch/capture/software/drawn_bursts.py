"""Bursts of programs that are let go: threads are drawn, and each is traced until it has had its burst."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

from ...errors import UnavailableError
from .. import ptrace
from ..procfs import program_of, spare_processor
from ..ptrace import EVENT_STOP, TICK, stopped
from .draws import DrawIntervals, Draws
from .quiet_signals import INTERNAL
from .record_writer import now
from .state import RecordingState
from .tasks import ENDED, TaskEvents
from .tracing import detach_thread, is_traced_here, resume_with_signal
from .tree import Process, Thread

__all__ = ["NO_SIGNAL", "DrawnBursts"]

_SECOND = 1_000_000_000
_SHORTEST = 1e-6
"""Seconds to the next draw at least: with 0, the timer would end, and the ticks with it."""
_SOON = (10_000, 30_000)
"""ns of CPU time from when a drawn thread is traced to its burst: the kernel stops it in user mode then, and never in a
system call."""
NO_SIGNAL = EVENT_STOP << 16 | signal.SIGTRAP << 8 | 0x7F
"""The status of a stop without a signal."""
_LONG_DRAWN = 0.5
"""Seconds after which a thread that runs has had its burst, if it has a trigger."""
_KEPT = 64
"""Processes of which is known, between drawn bursts, what they have mapped."""
_NO_TRIGGER, _WAITED = "no trigger stopped the thread", "the thread waited"
_DRAWN = (
    "the program takes signals or begins tasks too often to stop at each: it is traced during bursts only, which are "
    "drawn from all that it runs"
)


class DrawnBursts:
    """Lets the threads of a recording go, and traces each drawn thread until the thread has had its burst."""

    def __init__(self, state: RecordingState, tasks: TaskEvents, *, searches: bool) -> None:
        """``searches``: the recording looks for processes that descend from others, which it does not trace. Then
        nothing can be let go."""
        self._state, self._tasks = state, tasks
        options = state.settings.options
        self._may_begin = bool(state.trigger.signals) and not options.calls and not options.no_follow
        self._may_begin &= not state.sideband.needs_stops and not searches
        self._draws: Draws | None = None
        """Since `begin`."""
        self._intervals = DrawIntervals()
        self._next = 0.0
        """When the next draw is due."""
        self.cpu, self._at = 0, 0
        """The program's CPU time at the last draw, and the time then, in ns."""
        self.began = 0
        """When the last draw began, in ns since the machine was started."""
        self._spare = True
        """Whether a processor was spare at the last tick."""

    def begin(self) -> bool:
        """Let each thread go at its next stop, and draw bursts from now on; whether that can be."""
        if not self._may_begin:
            return False
        self._may_begin = False
        try:
            self._draws = Draws()
        except (OSError, UnavailableError):
            return False
        state = self._state
        state.draws = True
        state.leave(state.tree.threads)
        state.summary.notes += (_DRAWN,)
        state.summary.trigger += ", later drawn"
        return True

    def close(self) -> None:
        if self._draws is not None:
            self._draws.close()

    def any_left(self) -> bool:
        """Whether a thread that was let go is left, or one that descends from it. Events of the others are closed."""
        return self._draws is not None and self._draws.any_left()

    @property
    def due_in(self) -> float:
        """Seconds until the next draw."""
        return self._next - time.monotonic()

    def draw_if_due(self) -> None:
        if self._draws is not None and self.due_in <= 0:
            self._draw(self._draws)

    def _draw(self, draws: Draws) -> None:
        """Trace the threads that run at this moment until each has had its burst."""
        state = self._state
        begun, period = time.thread_time(), state.duty.next_period()
        # If no thread has run since the last draw, none runs now.
        if draws.cpu() > self.cpu and state.duty.allows():
            self.began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            with state.runner.processor.realtime(), draws.running() as found:
                running = [one for one in found if one[1] not in state.tree.threads]
                cpu, moment = draws.cpu(), now()
                if self._at:
                    self._intervals.add(len(running), cpu - self.cpu, moment - self._at)
                state.owed += cpu - self.cpu
                self.cpu, self._at = cpu, moment
                for left, (pid, tid) in zip(range(len(running), 0, -1), running, strict=True):
                    weight = state.owed // left
                    state.owed -= weight
                    with state.losses.contain(pid):
                        self.trace(tid, pid, weight)
            self.lapse(period)
            if not self._spare:
                took = time.thread_time() - begun
                state.duty.lost(took)
                state.summary.beside += took
        until = self._intervals.next(period) / _SECOND
        self._next = time.monotonic() + until
        signal.setitimer(signal.ITIMER_REAL, min(max(until, _SHORTEST), TICK), TICK)

    def lapse(self, period: int) -> None:
        """Take the weight of threads that were drawn a ``period`` of the program's CPU time ago and have not run since:
        their bursts would be far from their draws."""
        for thread in self._state.tree.threads.values():
            if thread.drawn and thread.first_weight and self.cpu - thread.drawn_at > period:
                self._state.miss(_WAITED, thread.first_weight)
                thread.first_weight, thread.leaves = 0, True

    def trace(self, tid: int, pid: int, weight: int) -> None:
        """Trace a thread for one burst of ``weight``."""
        state, settings = self._state, self._state.settings
        try:
            ptrace.seize(tid, 0)
        except (OSError, ptrace.Gone) as error:
            state.miss((isinstance(error, OSError) and error.strerror) or ENDED, weight)
            if is_traced_here(tid):  # it took this number when it executed a program
                self._release(state.tree.add(tid, pid))
            return
        thread = state.tree.add(tid, pid)
        thread.drawn, thread.since, thread.process.drawn = True, time.monotonic(), True
        thread.origin, thread.spared = settings.root if settings.kills else tid, settings.kills
        thread.seen = stat = thread.stat()
        thread.first_weight, thread.drawn_at = max(weight, 1), self.cpu
        thread.blocks_internal = stat is None or bool(stat.blocked >> INTERNAL - 1 & 1)
        if stat is not None and stat.start > self.began:  # another thread has the number of the drawn one
            thread.first_weight = 0
            state.miss(ENDED, weight)
            self._release(thread)
            return
        try:
            state.trigger.arm(thread, random.randint(*_SOON))
        except ProcessLookupError:  # it has ended, and its end is reported next
            return
        except OSError as error:
            thread.first_weight = 0
            state.miss(error.strerror or str(error), weight)
            self._release(thread)

    def _release(self, thread: Thread) -> None:
        """Let a running thread that bursts are drawn from go."""
        thread.leaves = thread.drawn = True
        with suppress(ptrace.Gone, OSError):
            ptrace.interrupt(thread.tid)

    def forget_ended(self) -> None:
        """Forget what has ended unseen, and let threads go that are traced too long."""
        if self._draws is None:
            return
        self._draws.any_left()  # it closes what belongs to none
        self._spare = spare_processor()
        self._forget_vanished()
        self._state.tree.keep(_KEPT)

    def _forget_vanished(self) -> None:
        """Forget drawn threads that ended without an event, since one of their process has executed a program. The
        executing thread has another number now, and no trigger."""
        late = time.monotonic() - _LONG_DRAWN
        for thread in [one for one in self._state.tree.threads.values() if one.drawn]:
            if not is_traced_here(thread.tid):
                self._tasks.handle_end(thread.tid, 0)
            elif thread.since < late and (stat := thread.stat()) is not None and stat.state == "R":
                self._release(thread)

    def look(self, thread: Thread) -> None:
        """Forget what is known of a drawn process if it executes another program than at its last burst: it was not
        traced since."""
        process, image = thread.process, thread.image()
        if image != process.image:
            process.forget()
            process.image, process.by_loader = image, False

    def describe(self, process: Process) -> None:
        """Look at the new program of a drawn process, if it has one: not before its thread runs again, since that takes
        a moment."""
        if process.described != process.image:
            process.described, process.name = process.image, os.path.basename(program_of(process.pid))
            self._state.foreign.look(process.pid)
            self._state.chains.mapped(process)

    # -- threads are let go

    def let_go(self, thread: Thread, status: int = NO_SIGNAL) -> float:
        """Trace it no longer; it gets the signal of a stop that is its own. The result is when it ran again
        (`time.perf_counter`)."""
        state = self._state
        if self._draws is not None and not thread.drawn and not self._cover(self._draws, thread):
            thread.leaves = False
            state.arm(thread)
            resume_with_signal(thread, status)
            return time.perf_counter()
        if thread.first_weight:
            state.miss(_NO_TRIGGER, thread.first_weight)
            thread.first_weight = 0
        state.trigger.hold(thread)
        last = detach_thread(thread, status, state.trigger, state.runner)
        runs_since = time.perf_counter()
        state.trigger.disarm(thread)
        if last is None:
            thread.leaves = thread.drawn = True  # at its next stop
        elif stopped(last):
            state.tree.remove(thread.tid)
        else:
            self._tasks.handle_end(thread.tid, last)
        return runs_since

    def _cover(self, draws: Draws, thread: Thread) -> bool:
        """Draw bursts from a thread that has stopped to be let go, and from all that it creates from then on; whether
        that can be. A stopped thread creates nothing. Tasks that it has created before are traced, and covered when
        they are let go in turn."""
        try:
            draws.cover(thread.tid)
        except OSError:
            return False
        if thread.period:
            self._state.owed += max(self._state.trigger.used(thread) - thread.spent, 0)
        thread.drawn, thread.first_weight = True, 0
        return True
