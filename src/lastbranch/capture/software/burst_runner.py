"""Runs a burst: binds tracer and thread to one processor, unblocks the stop's signal, and undoes both afterwards."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf

from ... import native
from .. import ptrace
from ..procfs import OwnRights, Stat, fixed_program, running_threads, spare_processor
from .bursts import Burst, BurstLimits
from .control_flow import Code
from .engines import Engine, Target
from .record_writer import Sideband
from .run_ahead import Comparison, Foreseen, RunAhead
from .successors import Successors
from .tree import Process, Thread

__all__ = ["BurstRunner", "NoBurst", "Processors", "SharedProcessor", "ThreadsProcessor", "Watch"]


# -- tracer and thread on one processor
#
# A stop is a switch to the tracer and back. On one processor that costs a third of what it costs across two, and a
# third program that runs in between costs more than the whole burst.


_OURS, _THEIRS = 2, 1
"""Real-time priorities. Ours is higher, so that a thread that does not stop cannot lock us out."""


_processor = ctypes.CDLL(None).sched_getcpu


_BREATH = 0.0003
"""Seconds for which others may run before we go on with what no thread waits for."""


class Processors:
    """The processor of a burst. This base gives us real-time priority, if allowed, and binds nothing to a processor."""

    def __init__(self) -> None:
        self._own = os.sched_getaffinity(0)
        self._may_hurry = os.sched_getscheduler(0) == os.SCHED_OTHER
        self._is_realtime = False

    @contextmanager
    def realtime(self) -> Iterator[None]:
        """Keep other programs off our processor, where allowed."""
        if self._is_realtime or not self._may_hurry:
            yield
            return
        # if not allowed, do not ask again
        self._is_realtime = self._may_hurry = _priority(0, os.SCHED_FIFO, _OURS)
        try:
            yield
        finally:
            if self._is_realtime:
                self._is_realtime = False
                _priority(0, os.SCHED_OTHER, 0)

    @contextmanager
    def giving_way(self) -> Iterator[bool]:
        """Within `realtime`, do what no stopped thread waits for: with the usual priority if a processor is spare. The
        result says whether one is. On a busy machine others would run for longer than that takes, while a thread that
        stops waits for us."""
        spare = spare_processor()
        if not self._is_realtime:
            yield spare
            return
        if not spare:
            time.sleep(_BREATH)  # else what we do now would make the stop before it longer
            yield spare
            return
        _priority(0, os.SCHED_OTHER, 0)
        try:
            yield spare
        finally:
            _priority(0, os.SCHED_FIFO, _OURS)

    @contextmanager
    def with_thread(self, tid: int, last: int) -> Iterator[int]:
        """Run a burst of ``tid``, which ran on processor ``last``; the number of its processor."""
        with self.realtime():
            yield last

    def close(self) -> None:
        """There are no more bursts."""


def _priority(tid: int, policy: int, priority: int) -> bool:
    try:
        os.sched_setscheduler(tid, policy, os.sched_param(priority))
    except OSError:
        return False
    return True


class SharedProcessor(Processors):
    """We and the thread are bound to one processor, ours if it may run there: moving us would cost more, and lose the
    caches that a burst needs. Both get real-time priority, where allowed.

    Not for threads that may outlive us: if we are killed in mid-burst, they keep both.
    """

    @contextmanager
    def with_thread(self, tid: int, last: int) -> Iterator[int]:
        with self.realtime():
            theirs = os.sched_getaffinity(tid)
            here = _processor()
            cpu = here if here in theirs else last
            share = cpu in theirs and cpu in self._own
            held = share and len(theirs) > 1
            if held:
                os.sched_setaffinity(tid, {cpu})
            if share:
                os.sched_setaffinity(0, {cpu})
            raised = self._is_realtime and os.sched_getscheduler(tid) == os.SCHED_OTHER
            raised = raised and _priority(tid, os.SCHED_FIFO, _THEIRS)
            try:
                yield cpu
            finally:
                if raised:
                    _priority(tid, os.SCHED_OTHER, 0)
                if share:
                    os.sched_setaffinity(0, self._own)
                if held:
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(tid, theirs)


# Nothing may change about a thread that may outlive us. The scheduler wakes it on an idle processor, if there is one:
# after each stop on another one than ours, where both sleep and are woken in turn. But a processor counts as idle if
# all that runs there has the policy SCHED_IDLE. So we take that policy, and the thread takes the processor from us,
# until it stops. Any other program does, too: for seconds, if it computes. So a thread of ours gives us back the
# real-time priority if we do not run for a moment.


class ThreadsProcessor(Processors):
    """We are bound to the processor of the thread, about which nothing changes."""

    def __init__(self) -> None:
        super().__init__()
        self._watch = Watch() if self._may_hurry and native.library() is not None else None
        self._busy = 0
        """Bursts left in which we do not give way: others wanted the processor."""

    @contextmanager
    def with_thread(self, tid: int, last: int) -> Iterator[int]:
        with self.realtime():
            if last not in self._own:
                yield last
                return
            os.sched_setaffinity(0, {last})
            self._busy = max(self._busy - 1, 0)
            watch = None if self._busy or not self._is_realtime or not _one_is_idle() else self._watch
            if watch is not None:
                watch.begin()
                _priority(0, os.SCHED_IDLE, 0)
            try:
                yield last
            finally:
                if watch is not None:
                    self._busy = _STAYS * watch.end()
                    _priority(0, os.SCHED_FIFO, _OURS)
                os.sched_setaffinity(0, self._own)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _one_is_idle() -> bool:
    """Whether a processor is idle, on which the scheduler might wake the thread. If no processor is idle, giving way
    only lets others run."""
    return (running_threads() or sys.maxsize) < (os.cpu_count() or 1)


_STAYS = 16
"""Bursts after one in which we did not run for a moment."""
_MOMENT = 1_000_000
"""ns."""


class Watch:
    """A thread of ours that gives the one that made it real-time priority, if that does not run for `_MOMENT` between
    `begin` and `end`."""

    _NOTHING, _TRACER, _LEAVE = range(3)

    def __init__(self) -> None:
        self._library = native.library()
        self._state = ctypes.c_uint32(self._NOTHING)
        self._at = ctypes.c_void_p(ctypes.addressof(self._state))
        self._thread = threading.Thread(target=self._run, args=(threading.get_native_id(),), daemon=True)
        self._thread.start()

    def _run(self, tracer: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the tracer's
        assert self._library is not None
        if _priority(0, os.SCHED_FIFO, _OURS):
            self._library.lb_watch_tracer(self._at, tracer, _OURS, _MOMENT)

    def _set(self, state: int) -> bool:
        assert self._library is not None
        return bool(self._library.lb_set_watch(self._at, state))

    def begin(self) -> None:
        self._set(self._TRACER)

    def end(self) -> bool:
        """Whether it had to."""
        return self._set(self._NOTHING)

    def close(self) -> None:
        self._set(self._LEAVE)
        self._thread.join()


class NoBurst(Exception):
    """Why a thread gets no burst; it is unchanged."""


_PROGRAMS = 32
_SHORT_AFTER_FAULT = 32
"""Bursts of a process that are as short as followed ones after one that met a fault, such as that of a write barrier.
There a burst ends: long ones would show much of what happens where none comes, and little of what follows one."""

_RIGHTS_HOLD = 0.2
"""Seconds for which the rights of a thread are not read again."""


class BurstRunner:
    """Runs bursts: ``ahead`` of the thread, if that is given, and with an engine, if that is given, where that cannot
    be. ``of_all``: also of threads that lack rights of ours, whose code is else not executed here."""

    def __init__(
        self,
        engine: Engine | None,
        limits: BurstLimits,
        processor: Processors,
        sideband: Sideband | None = None,
        ahead: RunAhead | None = None,
        of_all: bool = False,
        hold: Callable[[Thread], None] = lambda thread: None,
    ) -> None:
        """``hold`` is called before a thread is followed: what runs in a burst is not to be counted as its own."""
        self.engine, self.limits = engine, limits
        self.ahead, self.compared = ahead, Comparison()
        self._of_all, self._rights = of_all, OwnRights()
        self.lacked_rights = False
        """Whether a thread was not run ahead of because it lacks rights of ours."""
        self.processor, self.sideband = processor, sideband or Sideband()
        self._hold = hold
        self._code = Code()
        self._programs: dict[tuple[int, int], Successors] = {}
        """The successors of programs that are always at the same addresses: all processes of such a program share
        them."""
        self._registers = ptrace.Registers()

    def run(
        self, thread: Thread, is_trigger: Callable[[int], bool], depth: int = 0, followed: int = 0
    ) -> tuple[Burst, int]:
        """``(burst, processor)`` of a stopped thread, which is stopped again afterwards unless the burst was dropped.
        ``depth``: the number of branches, if it is not that of the limits; ``followed``: if fewer where the burst
        cannot be foreseen. One that is followed as a check is the result if the thread took other branches than were
        foreseen, or if a signal ended it.

        Raises `NoBurst`, and `ptrace.Gone` where the thread ended meanwhile.
        """
        thread.seen = stat = thread.stat()
        if stat is None:
            raise ptrace.Gone(thread.tid)
        limits = self.limits.of(depth) if depth else self.limits
        if thread.process.short_bursts and followed:
            thread.process.short_bursts -= 1
            limits = limits.of(min(limits.depth, followed))
        begun = time.monotonic()
        foreseen = self._foreseen(thread, limits)
        if foreseen is not None and (self.engine is None or not self.compared.due()):
            self.compared.spent(time.monotonic() - begun, compared=False)
            return foreseen, stat.cpu
        in_place = self.ahead is not None and self._may_execute(thread)
        limits = limits.of(followed or limits.depth, begun + limits.in_place if in_place else inf)
        burst, cpu = self._follow(thread, stat, is_trigger, limits)
        if foreseen is None:
            return burst, cpu
        self.compared.spent(time.monotonic() - begun, compared=True)
        if not len(burst) and burst.why == "time":
            return burst, cpu
        same = self.compared.add(foreseen, burst)
        if self.compared.fails:
            self.ahead = None  # the engine does all from now on
        if same and burst.why in ("full", "time") and len(burst) < len(foreseen):
            foreseen.stops += burst.stops
            return foreseen, cpu  # so far as the thread was followed it is the same, and it goes further
        return burst, cpu

    def _foreseen(self, thread: Thread, limits: BurstLimits) -> Foreseen | None:
        """A burst for which the thread need not move, where that is possible."""
        ahead, process = self.ahead, thread.process
        if ahead is None:
            return None
        ptrace.registers(thread.tid, ahead.registers)
        if not ptrace.is_64_bit(ahead.registers) or ptrace.restarts(ahead.registers):
            return None
        if not self._may_execute(thread):
            return None
        try:
            files = process.files
        except OSError:  # too many are open, or it has just ended
            return None
        # Through new code, to follow a thread takes ten times as long for each branch, and bursts are drawn from many
        # processes that are new.
        partly = thread.drawn and process.successors is None
        space = process.space_number
        found = ahead.burst(thread.tid, files, limits, alone=process.alone, space=space, partly=partly)
        self.compared.foreseen += found is not None
        if ahead.met_fault:
            process.short_bursts = _SHORT_AFTER_FAULT
        return found

    def _may_execute(self, thread: Thread) -> bool:
        """Whether the code of ``thread`` may be executed here: it could do as much where it is."""
        if self._of_all:
            return True
        if (moment := time.monotonic()) >= thread.rights_until:
            thread.may_as_much = self._rights.within_those_of(thread.tid)
            thread.rights_until = moment + _RIGHTS_HOLD
            self.lacked_rights |= not thread.may_as_much
        return thread.may_as_much

    def _follow(
        self, thread: Thread, stat: Stat, is_trigger: Callable[[int], bool], limits: BurstLimits
    ) -> tuple[Burst, int]:
        """A burst by the engine."""
        engine = self.engine
        if engine is None:
            raise NoBurst("it cannot be foreseen")
        engine.suit(stat)
        thread.stops_by = engine.signal
        bit = 1 << thread.stops_by - 1
        if thread.stops_by == signal.SIGTRAP and stat.ignored & bit:
            raise NoBurst("SIGTRAP is ignored")  # a stop would make the kernel take it for not ignored
        ptrace.registers(thread.tid, self._registers)
        if not ptrace.is_64_bit(self._registers):
            raise NoBurst("32-bit code")
        needed = bit | stat.pending & thread.sent  # a signal of the trigger that came while the thread blocked it
        if stat.blocked & needed:
            thread.mask = ptrace.sigmask(thread.tid)
            ptrace.set_sigmask(thread.tid, thread.mask & ~needed)
        self._hold(thread)
        process = thread.process
        target = Target(thread.tid, is_trigger)
        try:
            successors = self.successors(process)
            with self.processor.with_thread(thread.tid, stat.cpu) as cpu, self.sideband.paused(thread, cpu):
                burst = engine.burst(target, successors, limits)
        except OSError as error:
            self.clean(thread)
            raise NoBurst(f"{engine.name}: {error.strerror}") from error
        if burst.why == "deadline":
            thread.timed_out = True
            ptrace.interrupt(thread.tid)
        elif burst.why != "gone":
            burst.faulted = burst.status is not None and ptrace.is_fault(thread.tid, burst.status)
            self.clean(thread)
        return burst, cpu

    def successors(self, process: Process) -> Successors:
        """Return what is known of the code of ``process``, for the next burst of the process."""
        assert self.engine is not None
        memory = process.descriptor if self.engine.walks else -1
        if process.successors is None:
            key = fixed_program(process.pid)
            found = self._programs.pop(key, None) if key else None
            found = found or Successors(self._code, process.memory, self.engine.ends, widen=True, memory=memory)
            if key:
                self._programs[key] = found
                if len(self._programs) > _PROGRAMS:
                    del self._programs[next(iter(self._programs))]
            process.successors = found
        process.successors.aim(process.memory, memory)
        process.successors.begin(alone=process.alone)
        return process.successors

    def clean(self, thread: Thread) -> None:
        """Undo what a burst left in a stopped thread."""
        if thread.timed_out and self.engine is not None:
            self.engine.clean(thread.tid)
            thread.timed_out = False
        if thread.mask is not None:
            ptrace.set_sigmask(thread.tid, thread.mask)
            thread.mask = None
