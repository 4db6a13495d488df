"""Running a burst: tracer and thread on one processor, the stop's signal unblocked, and all of it undone.

An engine is used only if it passes the start-up test, `test_engines`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from ...lbr import KIND
from .. import ptrace
from ..launch import end_with_parent
from ..ptrace import CS, USER_CODE_64, next_stop, stopped
from .control_flow import Code
from .engines import Burst, Engine, Limits, Target
from .records import Sideband
from .successors import Successors
from .tree import Process, Thread

__all__ = ["BurstRunner", "NoBurst", "OK", "SharedProcessor", "test_engines"]


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
        self, engine: Engine, limits: Limits, processor: SharedProcessor, sideband: Sideband | None = None
    ) -> None:
        self.engine, self.limits, self.signal = engine, limits, engine.signal
        self.processor, self.sideband = processor, sideband or Sideband()
        self._bit = 1 << self.signal - 1
        self._code = Code()
        self._registers = ptrace.Registers()

    def run(self, thread: Thread, is_trigger: Callable[[int], bool]) -> tuple[Burst, int]:
        """``(burst, processor)`` of a stopped thread, which is stopped again afterwards unless the burst was dropped.

        Raises `NoBurst`, and `ptrace.Gone` where the thread ended meanwhile.
        """
        stat = thread.stat()
        if stat is None:
            raise ptrace.Gone(thread.tid)
        if self.signal == signal.SIGTRAP and stat.ignored & self._bit:
            raise NoBurst("SIGTRAP is ignored")  # a stop would make the kernel take it for not ignored
        ptrace.registers(thread.tid, self._registers)
        if self._registers[CS] != USER_CODE_64:
            raise NoBurst("32-bit code")
        if stat.blocked & self._bit:
            thread.mask = ptrace.sigmask(thread.tid)
            ptrace.set_sigmask(thread.tid, thread.mask & ~self._bit)
        process = thread.process
        if process.successors is None:
            descriptor = process.descriptor if self.engine.walks else -1
            process.successors = Successors(self._code, process.memory, self.engine.ends, widen=True, memory=descriptor)
        process.successors.begin(alone=len(process.threads) == 1)
        target = Target(thread.tid, is_trigger)
        try:
            with self.processor.with_thread(thread.tid, stat.cpu) as cpu, self.sideband.paused(thread, cpu):
                burst = self.engine.burst(target, process.successors, self.limits)
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


# -- the start-up test: each engine runs known code in a child, and must record exactly its branches
#
# Debug registers and trap flags depend on the hypervisor (in some, BTF stepping silently does not work), so no engine
# is used that was not seen to work on this machine.


OK = "ok"
_SECONDS = 2.0
_NO_SYSCALL = (1 << 64) - 1

# A loop of a counter in ECX from 7 down: a condition taken for odd numbers, a call and a return, an indirect jump.
#   0: mov ecx, 7        5: test cl, 1      8: jz 0xc       a: nop  b: nop
#   c: call 0x18        11: dec ecx        13: jnz 5       15: jmp 0     17: nop
#  18: lea rax, [rip+1] (0x20)             1f: nop
#  20: push rax  21: pop rdx               22: lea rax, [rip+4] (0x2d)   29: jmp rax   2b: nop  2c: nop
#  2d: ret
_CODE = bytes.fromhex(
    "b907000000" "f6c101" "7402" "9090" "e807000000" "ffc9" "75f0" "ebe9" "90" "488d0501000000" "90"
    "505a" "488d0504000000" "ffe0" "9090" "c3"
)  # fmt: skip
_DEPTH = 48


def expected(base: int, count: int) -> list[tuple[int, int, int]]:
    """The first ``count`` taken branches from the start of the code at ``base``."""
    seen: list[tuple[int, int, int]] = []
    while len(seen) < count:
        for counter in range(7, 0, -1):
            if not counter & 1:
                seen.append((0x8, 0xC, KIND["cond"]))
            seen.append((0xC, 0x18, KIND["call"]))
            seen.append((0x29, 0x2D, KIND["ind"]))
            seen.append((0x2D, 0x11, KIND["ret"]))
            seen.append((0x13, 0x5, KIND["cond"]) if counter > 1 else (0x15, 0x0, KIND["uncond"]))
    return [(base + source, base + target, kind) for source, target, kind in seen[:count]]


def test_engines(engines: Iterable[Engine]) -> dict[str, str]:
    """Engine name -> `OK`, or what was wrong. Needs `ptrace.ticking`. Raises `OSError` where ptrace is refused."""
    code = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                     mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)  # fmt: skip
    code.write(_CODE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(code))
    pid = os.fork()
    if pid == 0:
        try:
            end_with_parent()
            ctypes.CFUNCTYPE(None)(base)()
        finally:
            os._exit(1)
    try:
        ptrace.seize(pid, ptrace.EXITKILL)
        return {engine.name: _test(engine, pid, base) for engine in engines}
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ptrace.Gone, ptrace.Interrupted):
            next_stop(pid, _SECONDS)


def _test(engine: Engine, pid: int, base: int) -> str:
    thread = Thread(pid, Process(pid))
    bursts = BurstRunner(engine, Limits(_DEPTH, seconds=_SECONDS / 2), SharedProcessor(both=True))
    try:
        ptrace.interrupt(pid)
        status = next_stop(pid, _SECONDS)
        if status is None or not stopped(status):
            return "the test program did not stop"
        ptrace.poke_user(pid, ptrace.ORIG_RAX * 8, _NO_SYSCALL)  # or the kernel would restart an interrupted one
        said = OK
        for _ in range(2 if engine.walks else 1):  # the walk needs code that was decoded before
            ptrace.poke_user(pid, ptrace.RIP * 8, base)
            burst, _ = bursts.run(thread, lambda status: False)
            if said == OK:
                said = "a stop did not come in time" if burst.dropped else _compared(burst, base)
            if burst.dropped:
                return said
            if thread.process.successors is not None:
                thread.process.successors.widen()
        ptrace.cont(pid)
        return said
    except NoBurst as reason:
        return str(reason)
    except (OSError, ptrace.Gone) as error:
        return str(error) or "the test program ended"
    finally:
        thread.process.forget()


def _compared(burst: Burst, base: int) -> str:
    seen = burst.edges
    if len(seen) < _DEPTH:
        return f"ended after {len(seen)} of {_DEPTH} branches: {burst.why}"
    wanted = expected(base, len(seen))
    wrong = next((i for i, (a, b) in enumerate(zip(seen, wanted, strict=True)) if a != b), None)
    return OK if wrong is None else f"branch {wrong} is wrong"
