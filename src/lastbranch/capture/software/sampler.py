"""Takes the burst of a thread whose trigger has stopped it, and has it written."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...lbr import CALL_STACK
from .. import ptrace
from ..options import Calls
from .burst_runner import NoBurst
from .bursts import Burst
from .drawn_bursts import DrawnBursts
from .record_writer import now
from .schedule import BurstLengths
from .state import RecordingState
from .tree import Call, Thread

__all__ = ["Sampler", "TakenBurst"]

_AT_ONCE = 0.002
"""Seconds for which ends are looked for at once if no processor is spare."""
_OF_A_STOP = 20_000
"""Most ns of a followed thread's CPU time that a stop takes. The rest is its own: it may repeat an instruction long."""


@dataclass(slots=True)
class TakenBurst:
    """A burst that was taken."""

    thread: Thread
    burst: Burst
    when: int
    """ns of the clock of all records."""
    weight: int
    """ns of CPU time that the burst represents."""
    cpu_time: int
    """ns that its thread has run since the one before."""
    ran: int
    """ns that its thread ran in it."""
    waited: int
    """ns that its thread waited for a processor in it."""
    cpu: int
    """Its processor; -1: there was no burst."""
    length: int
    """Branches that it was to have."""
    took: float = 0.0
    """Seconds for which its thread was stopped."""


class Sampler:
    """Takes bursts, within the limit on their share of wall time."""

    def __init__(self, state: RecordingState, lengths: BurstLengths, drawn: DrawnBursts) -> None:
        self._state, self._lengths, self._drawn = state, lengths, drawn
        self.unwritten: TakenBurst | None = None
        """The last burst, until `write` has written it."""

    def take(self, thread: Thread) -> int | None:
        """Take the burst of a stopped thread, which then runs on: the burst is `unwritten`. The result is the status of
        another stop, or of the thread's end, if the burst has ended with that."""
        state = self._state
        if thread.drawn:
            self._drawn.look(thread)
        elif not state.duty.allows():
            state.summary.throttled += 1
            state.trigger.rearm(thread, state.duty.next_period())
            ptrace.cont(thread.tid)
            state.stops.end_without_burst()
            return None
        taken = self._run(thread)
        ended = self._let_run(taken) or time.perf_counter()
        waited = state.stops.queued_now() - state.stops.queued + taken.waited
        taken.took = took = state.stops.end_burst(ended)
        state.duty.spent(took, taken.cpu_time, max(waited, 0) / 1e9)
        lost = max(took - max(taken.ran - taken.burst.stops * _OF_A_STOP, 0) / 1e9, 0.0)
        state.summary.in_bursts += lost
        state.summary.longest = max(state.summary.longest, lost)
        if taken.cpu >= 0:
            state.ended[taken.burst.why] += 1
        self.unwritten = taken
        return taken.burst.status

    def _run(self, thread: Thread) -> TakenBurst:
        """Run the burst."""
        state = self._state
        ran, waited = thread.ran_and_queued()
        cpu_time = state.trigger.used(thread) - thread.spent
        weight, thread.first_weight = (thread.first_weight or cpu_time) + thread.carried, 0
        cpu_time = weight if thread.drawn else cpu_time
        length, followed = self._lengths.next(state.summary.in_bursts)
        most, followed = (0, 0) if state.settings.options.calls else (length, followed)
        if not thread.drawn and not thread.stack_copied:
            # the stack is unwound at once, and the program may just have mapped code
            state.sideband.drain(state.out)
        state.chains.begin(thread)
        try:
            burst, cpu = state.runner.run(thread, lambda status: state.trigger.due(thread, status), most, followed)
        except NoBurst as reason:
            state.losses.skipped[str(reason)] += 1
            burst, cpu = Burst(), -1
        ran_then, waited_then = thread.ran_and_queued()
        when = now()  # before it runs again, and may map other code there
        written = bool(len(burst)) and not burst.dropped
        if written:
            state.sideband.write_mappings(state.out, thread, when)
        state.chains.end(thread, burst)
        thread.carried = 0 if written or thread.drawn else weight
        return TakenBurst(thread, burst, when, weight, cpu_time, ran_then - ran, waited_then - waited, cpu, length)

    def _let_run(self, taken: TakenBurst) -> float:
        """Let the thread run on after its burst, unless that has ended with something else. The result is when it ran
        again (`time.perf_counter`); 0 if that is now."""
        state, thread, burst = self._state, taken.thread, taken.burst
        if thread.timed_out:
            state.lapsed.add(thread.tid)
        if thread.drawn:
            if burst.dropped or not len(burst):
                state.owed += taken.weight
            thread.leaves = True
            if not burst.dropped and burst.status is None:
                return self._drawn.let_go(thread)
        elif not burst.dropped:
            state.rearm(thread)
            if burst.status is None:
                self._resume(thread, taken)
        return 0.0

    def write(self, *, spare: bool) -> None:
        """Write the last burst, and learn from it: what its thread need not wait for. If no processor is ``spare``,
        others lose the time that this takes, and have lost that of the burst."""
        taken, self.unwritten, begun = self.unwritten, None, time.thread_time()
        if taken is None:
            return
        try:
            self._write(taken, spare=spare)
        finally:
            if not spare:
                self._state.duty.lost(time.thread_time() - begun + taken.took)

    def _write(self, taken: TakenBurst, *, spare: bool) -> None:
        state, burst = self._state, taken.burst
        state.sideband.drain(state.out)  # the program may have mapped code just before
        if taken.thread.drawn:
            self._drawn.describe(taken.thread.process)
        if len(burst) and not burst.dropped:
            state.writer.write(taken.thread, burst, taken.when, taken.weight, taken.cpu, taken.length)
        successors = taken.thread.process.successors
        if burst.stops > 1 and burst.status is None and successors is not None and successors.burst > 1:
            # Finding ends is to cost less than the bursts, which programs that soon end would not repay.
            successors.widen(taken.took if spare else min(taken.took, _AT_ONCE))

    # -- system calls at which bursts ended

    def _resume(self, thread: Thread, taken: TakenBurst) -> None:
        """Let it run on after a burst: up to a system call, if that is to be recorded."""
        settings = self._state.settings
        if not (settings.options.calls and taken.burst.why == "system call"):
            ptrace.cont(thread.tid)
            return
        ptrace.set_options(thread.tid, settings.options_of(thread))
        thread.call = Call(taken.burst, taken.cpu)
        ptrace.cont_to_call(thread.tid)

    def reach_call(self, thread: Thread) -> None:
        """The thread enters the system call before which its burst ended, or leaves the call. The kernel reports the
        beginning of a call to us before, and its end after, it reports them to tracepoints."""
        state, call, when = self._state, thread.call, now()
        enters = call is not None and not call.entered
        if not enters:
            state.writer.write_left_call(thread)
        state.duty.lost(state.stops.own_time())
        if call is not None and enters and state.settings.options.calls == Calls.LEFT:
            call.entered = True
            ptrace.cont_to_call(thread.tid)
        else:
            thread.call = None
            ptrace.cont(thread.tid)
        if call is not None and enters:
            by_length = call.burst.edges and state.settings.select & CALL_STACK
            code = state.runner.successors(thread.process) if by_length else None
            state.writer.write_call(thread, call, when, code)
