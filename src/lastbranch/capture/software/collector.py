"""The loop over all stops of the threads of a software recording."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

from .. import ptrace
from ..procfs import process_of, spare_processor
from ..ptrace import (
    EVENT_CLONE,
    EVENT_EXEC,
    EVENT_STOP,
    EVENT_VFORK,
    NEW_TASK,
    TICK,
    at_call,
    event_of,
    signal_of,
    stopped,
)
from .attacher import Attacher
from .drawn_bursts import NO_SIGNAL, DrawnBursts
from .sampler import Sampler
from .schedule import BurstLengths
from .state import RecordingListener, RecordingState
from .tasks import TaskEvents
from .tracing import STOPPING, detach_all, resume_with_signal
from .tree import Thread
from .watched import Watched

__all__ = ["Collector"]

_ALWAYS_FOLLOWED = 100
"""The first so many new threads, on busy machines, too, where each costs more."""
_FEWER_RIGHTS = (
    "no bursts are foreseen of threads that may do less than the recorder (another user, group, user namespace or "
    "security label, fewer capabilities, no new privileges, filtered system calls); --run-ahead always foresees them, "
    "too"
)
_TOO_FAST = "threads began faster than the duty limit allows to follow: of those that soon ended not all had bursts"


class Collector:
    """Traces the threads of a tree and all their descendants until its root ends, or the listener stops the recording.
    With ``watched`` it traces those processes as they begin."""

    def __init__(
        self, state: RecordingState, lengths: BurstLengths, listener: RecordingListener, watched: Watched | None = None
    ) -> None:
        self.state, self._listener = state, listener
        self.tasks = TaskEvents(state, listener, watched)
        self.drawn = DrawnBursts(state, self.tasks, searches=watched is not None and watched.searches)
        self._sampler = Sampler(state, lengths, self.drawn)
        self._attacher = None if watched is None else Attacher(state, listener, watched)
        self._waiting = ptrace.PassingSignals()
        self._own_signals = sum(1 << n - 1 for n in signal.valid_signals() - state.trigger.signals - STOPPING)
        self._begun = self._next_tick = 0.0

    @property
    def _over(self) -> bool:
        """Whether nothing is left to record."""
        if self._attacher is not None:
            return self._attacher.over
        left = self.state.settings.kills or self.state.tree.threads or self.drawn.any_left()
        return not left or self.tasks.root_status is not None

    def run(self) -> None:
        """Trace until the end, and detach from all threads."""
        state = self.state
        self._begun = time.monotonic()
        duration = state.settings.options.duration
        end = None if duration is None else self._begun + duration
        for process in state.tree.processes.values():
            state.chains.mapped(process)
            state.foreign.look(process.pid)
        with state.runner.processor.realtime():  # also while we wait: a thread that stops waits until we run
            while not self._over and not state.stopping:
                if time.monotonic() >= self._next_tick:
                    with state.beside():
                        self._tick()
                    if end is not None and time.monotonic() >= end:
                        break
                self.drawn.draw_if_due()
                if not self._handle_next():
                    break
                if self._sampler.unwritten is not None:
                    with state.beside() as spare:
                        self._write_burst(spare=spare)
        state.stops.close()
        detach_all(state.tree, state.trigger, state.runner, killed=state.settings.kills)
        self.drawn.close()
        self._tick()
        self._note_end()

    def _handle_next(self) -> bool:
        """Wait for the next stop, and handle it; whether there can be others."""
        try:
            self.handle(*self._next_event())
        except ptrace.Interrupted:  # by the tick, which may come a little early, or after hundreds of signals
            if not self.state.draws and self._next_tick - time.monotonic() < TICK / 4:
                self._next_tick = 0.0
        except ptrace.Gone:
            if self._attacher is None and not self.state.draws:
                return False
            # There is nothing to wait for until a tick or a draw finds it.
            time.sleep(min(max(self.drawn.due_in if self.state.draws else TICK, 0.0), TICK / 4))
        return True

    def _next_event(self) -> tuple[int, int]:
        """Wait for it: the thread and its wait status. Raises as `PassingSignals.wait` does."""
        self.state.stops.begin_wait()
        asked = time.process_time(), time.perf_counter()
        try:
            event = self._waiting.wait(self._passes)
        finally:
            self._count_passed(*asked)
        self.state.stops.begin()
        return event

    @property
    def _passes(self) -> int:
        """The program's signals at whose stops there is nothing to do now."""
        state = self.state
        return 0 if state.draws or state.lapsed or state.settings.options.calls else self._own_signals

    def _count_passed(self, worked: float, since: float) -> None:
        """Account for the signals that were passed on while we waited, ``since`` then. Our CPU time was ``worked``."""
        if stops := self._waiting.passed():
            self.state.stops.count_passed(stops, worked, since)
            if self.state.stops.too_many and not self.state.draws:
                self.drawn.begin()

    def _tick(self) -> None:
        state, summary = self.state, self.state.summary
        self._next_tick = time.monotonic() + TICK
        state.sideband.drain(state.out)
        state.chains.prepare()
        state.trigger.tick(list(state.tree.threads.values()))
        if self._attacher is not None:
            self._attacher.attach_new()
        self.tasks.find_unfollowed()
        self.drawn.forget_ended()
        summary.seconds = time.monotonic() - self._begun
        summary.ended = dict(state.ended)
        state.losses.note_times()
        summary.stacks = dict(state.chains.counts)
        if state.runner.lacked_rights and _FEWER_RIGHTS not in summary.notes:
            summary.notes = (*summary.notes, _FEWER_RIGHTS)
        if state.runner.compared.foreseen:
            summary.foreseen = str(state.runner.compared)
        state.out.flush()  # others may read the file while it grows
        self._listener.on_tick(summary)

    def _note_end(self) -> None:
        """Say at the end what the recording lacks."""
        state = self.state
        state.losses.note_threads()
        state.summary.notes += state.chains.notes() + state.foreign.keep()
        if self._attacher is not None:
            self._attacher.note_missing()
        state.losses.note_bursts()

    # -- one stop

    def handle(self, tid: int, status: int) -> None:
        """Handle one event of a thread. If it has ended meanwhile, a later event reports that. A failure that concerns
        one thread ends the tracing of this thread alone."""
        state = self.state
        try:
            if not stopped(status):
                self.tasks.handle_end(tid, status)
                return
            thread = state.tree.threads.get(tid)
            if thread is None:
                thread = self.tasks.add_early(tid)
            self._handle_stop(thread, status)
        except ptrace.Gone:
            pass
        except Exception as error:  # one thread's failure ends its tracing, not the recording
            if state.losses.ends_recording(error):
                raise
            self._give_up(tid, status, error)

    def _handle_stop(self, thread: Thread, status: int) -> None:
        state = self.state
        if thread.spared:
            thread.spared = False
            ptrace.set_options(thread.tid, ptrace.EXITKILL if thread.drawn else state.settings.options_of(thread))
        if thread.timed_out:
            self._recover(thread, status)
            return
        if at_call(status):
            self._sampler.reach_call(thread)
            return
        if thread.call is not None:
            state.writer.write_left_call(thread)
        if not thread.follows and state.stops.few:
            thread.follows = True
            ptrace.set_options(thread.tid, state.settings.options_of(thread))
        event = event_of(status)
        if event in NEW_TASK:
            self.tasks.add_child(thread, event)
            self._limit_stops(thread, event)
            if event == EVENT_VFORK and state.settings.kills and not thread.leaves:
                # Until its child ends or executes a program it cannot be stopped, not even at the end of the recording.
                thread.spared = True
                ptrace.set_options(thread.tid, state.settings.options_of(thread) & ~ptrace.EXITKILL)
            self._go_on(thread, status)
        elif event == EVENT_EXEC:
            if self.tasks.handle_exec(thread, status):
                self._go_on(thread, status)
        elif thread.leaves:
            self._go_on(thread, status)
        elif state.trigger.due(thread, status):
            self._sample(thread)
        elif event == EVENT_STOP:
            self._handle_other(thread, status)
        else:
            self._limit_stops(thread, event)
            self._go_on(thread, status)

    def _sample(self, thread: Thread) -> None:
        """Take the burst of a thread that its trigger has stopped."""
        try:
            if (ended_by := self._sampler.take(thread)) is not None:
                self._write_burst(spare=spare_processor())
                self.handle(thread.tid, ended_by)
        except Exception as error:  # as for any stop, but the signal is ours, and the thread may have moved on
            if isinstance(error, ptrace.Gone) or self.state.losses.ends_recording(error):
                raise
            self._give_up(thread.tid, NO_SIGNAL, error)

    def _write_burst(self, *, spare: bool) -> None:
        """Write the last burst. If no processor is ``spare``, others lose the time that this takes."""
        taken = self._sampler.unwritten
        assert taken is not None
        try:
            self._sampler.write(spare=spare)
        except Exception as error:  # as above: a burst that cannot be written is lost, and the recording goes on
            if self.state.losses.ends_recording(error):
                raise
            self._give_up(taken.thread.tid, NO_SIGNAL, error)

    def _handle_other(self, thread: Thread, status: int) -> None:
        """A group-stop, the first stop of a new thread, or one that is left from `_recover`."""
        if signal_of(status) in STOPPING:
            resume_with_signal(thread, status)
            return
        self.state.arm(thread)
        self._go_on(thread, status)

    def _go_on(self, thread: Thread, status: int) -> None:
        """Let it run on after a stop that is no burst's, with its signal if that caused the stop."""
        self.state.stops.end()
        if thread.leaves:
            self.drawn.let_go(thread, status)
        else:
            resume_with_signal(thread, status)

    def _recover(self, thread: Thread, status: int) -> None:
        """The first stop after a burst's deadline."""
        state = self.state
        state.runner.clean(thread)
        state.lapsed.discard(thread.tid)
        if thread.leaves:
            self.drawn.let_go(thread, status)
            return
        state.rearm(thread)
        if not event_of(status) and (signal_of(status) == thread.stops_by or state.trigger.due(thread, status)):
            ptrace.cont(thread.tid)
        else:
            resume_with_signal(thread, status)

    def _limit_stops(self, parent: Thread, event: int) -> None:
        """If stops cost too much already, let the program go between bursts. If that cannot be, do not follow the
        threads that ``parent``, which is stopped, creates next."""
        state = self.state
        if not state.stops.too_many or (event in NEW_TASK and state.summary.threads < _ALWAYS_FOLLOWED):
            return
        if state.draws or self.drawn.begin() or event != EVENT_CLONE or not parent.follows:
            return
        parent.follows, parent.process.unfollowed = False, True
        ptrace.set_options(parent.tid, state.settings.options_of(parent))
        if _TOO_FAST not in state.summary.notes:
            state.summary.notes = (*state.summary.notes, _TOO_FAST)

    def _give_up(self, tid: int, status: int, error: Exception) -> None:
        """Trace a thread no longer, about which ``error`` is said at the end. ``status`` is its last one."""
        state = self.state
        thread = state.tree.threads.get(tid)
        if tid not in state.losses.given_up:
            state.losses.note_failure(tid, process_of(tid) if thread is None else thread.process.pid, error)
        elif stopped(status):  # letting it go has failed before
            state.tree.remove(tid)
            with suppress(ptrace.Gone, OSError):
                ptrace.detach(tid, 0 if event_of(status) else signal_of(status))
            return
        if thread is None or not stopped(status):
            return
        thread.leaves = thread.drawn = True
        thread.first_weight = 0
        try:
            self.drawn.let_go(thread, status)
        except Exception:  # it runs, or its burst's remains cannot be removed now
            with suppress(ptrace.Gone, OSError):
                ptrace.interrupt(tid)
