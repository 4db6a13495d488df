"""Running a burst: tracer and thread on one processor, the stop's signal unblocked, and all of it undone."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .. import ptrace
from ..ptrace import CS, USER_CODE_64
from .bursts import Burst, BurstLimits
from .control_flow import Code
from .engines import Engine, Target
from .record_writer import Sideband
from .successors import Successors
from .tree import Thread

__all__ = ["BurstRunner", "NoBurst", "SharedProcessor"]


# -- tracer and thread on one processor, with real-time priority
#
# A stop is a switch to the tracer and back. On one processor that costs a third of what it costs across two, and a
# third program that runs in between costs more than the whole burst. We move the thread to our processor if we may:
# moving the tracer would cost more, and lose the caches that a burst needs.


_OURS, _THEIRS = 2, 1
"""Real-time priorities. Ours is higher, so that a thread that does not stop cannot lock us out."""


_processor = ctypes.CDLL(None).sched_getcpu


class SharedProcessor:
    """We are bound to the processor and get real-time priority, where allowed; ``both``: the thread, too.

    Not for threads that may outlive us: if we are killed in mid-burst, they keep both.
    """

    def __init__(self, *, both: bool) -> None:
        self._own = os.sched_getaffinity(0)
        self._both, self._may_hurry = both, os.sched_getscheduler(0) == os.SCHED_OTHER
        self._is_realtime = False

    @contextmanager
    def realtime(self) -> Iterator[None]:
        """Keep other programs off our processor, where allowed."""
        if self._is_realtime or not self._may_hurry:
            yield
            return
        self._is_realtime = self._may_hurry = self._priority(
            0, os.SCHED_FIFO, _OURS
        )  # if not allowed, do not ask again
        try:
            yield
        finally:
            if self._is_realtime:
                self._is_realtime = False
                self._priority(0, os.SCHED_OTHER, 0)

    @contextmanager
    def with_thread(self, tid: int, last: int) -> Iterator[int]:
        """Share a processor with ``tid``, which ran on ``last``; its number."""
        with self.realtime():
            theirs = os.sched_getaffinity(tid)
            here = _processor()
            cpu = here if self._both and here in theirs else last
            share = cpu in theirs and cpu in self._own
            held = share and self._both and len(theirs) > 1
            if held:
                os.sched_setaffinity(tid, {cpu})
            if share:
                os.sched_setaffinity(0, {cpu})
            raised = self._both and self._is_realtime and os.sched_getscheduler(tid) == os.SCHED_OTHER
            raised = raised and self._priority(tid, os.SCHED_FIFO, _THEIRS)
            try:
                yield cpu
            finally:
                if raised:
                    self._priority(tid, os.SCHED_OTHER, 0)
                if share:
                    os.sched_setaffinity(0, self._own)
                if held:
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(tid, theirs)

    @staticmethod
    def _priority(tid: int, policy: int, priority: int) -> bool:
        try:
            os.sched_setscheduler(tid, policy, os.sched_param(priority))
        except OSError:
            return False
        return True


class NoBurst(Exception):
    """Why a thread gets no burst; it is unchanged."""


class BurstRunner:
    """Runs bursts with one engine."""

    def __init__(
        self, engine: Engine, limits: BurstLimits, processor: SharedProcessor, sideband: Sideband | None = None
    ) -> None:
        self.engine, self.limits = engine, limits
        self.processor, self.sideband = processor, sideband or Sideband()
        self._code = Code()
        self._registers = ptrace.Registers()

    def run(self, thread: Thread, is_trigger: Callable[[int], bool], depth: int = 0) -> tuple[Burst, int]:
        """``(burst, processor)`` of a stopped thread, which is stopped again afterwards unless the burst was dropped.
        ``depth``: the number of branches, if it is not that of the limits.

        Raises `NoBurst`, and `ptrace.Gone` where the thread ended meanwhile.
        """
        thread.seen = stat = thread.stat()
        if stat is None:
            raise ptrace.Gone(thread.tid)
        self.engine.suit(stat)
        thread.stops_by = self.engine.signal
        bit = 1 << thread.stops_by - 1
        if thread.stops_by == signal.SIGTRAP and stat.ignored & bit:
            raise NoBurst("SIGTRAP is ignored")  # a stop would make the kernel take it for not ignored
        ptrace.registers(thread.tid, self._registers)
        if self._registers[CS] != USER_CODE_64:
            raise NoBurst("32-bit code")
        needed = bit | stat.pending & thread.sent  # of the trigger, one that came when it was blocked
        if stat.blocked & needed:
            thread.mask = ptrace.sigmask(thread.tid)
            ptrace.set_sigmask(thread.tid, thread.mask & ~needed)
        process = thread.process
        target = Target(thread.tid, is_trigger)
        try:
            if process.successors is None:
                memory = process.descriptor if self.engine.walks else -1
                process.successors = Successors(self._code, process.memory, self.engine.ends, widen=True, memory=memory)
            process.successors.begin(alone=len(process.threads) == 1)
            with self.processor.with_thread(thread.tid, stat.cpu) as cpu, self.sideband.paused(thread, cpu):
                limits = self.limits.of(depth) if depth else self.limits
                burst = self.engine.burst(target, process.successors, limits)
        except OSError as error:
            self.clean(thread)
            raise NoBurst(f"{self.engine.name}: {error.strerror}") from error
        if burst.why == "deadline":
            thread.timed_out = True
            ptrace.interrupt(thread.tid)
        elif burst.why != "gone":
            self.clean(thread)
        return burst, cpu

    def clean(self, thread: Thread) -> None:
        """Undo what a burst left in a stopped thread."""
        if thread.timed_out:
            self.engine.clean(thread.tid)
            thread.timed_out = False
        if thread.mask is not None:
            ptrace.set_sigmask(thread.tid, thread.mask)
            thread.mask = None
