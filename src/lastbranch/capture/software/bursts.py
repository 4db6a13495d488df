"""A burst with what surrounds it: both parties together, the stop's signal unblocked, and all of it undone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from .. import ptrace
from ..ptrace import CS, USER_CODE_64
from .code import Code
from .engines import Burst, Engine, Limits
from .together import Together
from .tree import Thread
from .ways import Ways

__all__ = ["Bursts", "NoBurst"]


class NoBurst(Exception):
    """Why a thread gets none; it is as it was."""


@dataclass(slots=True)
class _Target:
    """A thread as engines see it."""

    tid: int
    is_trigger: Callable[[int], bool]


class Beside(Protocol):
    """What goes on beside the bursts of a thread on one processor."""

    def pause(self, thread: Thread, cpu: int) -> None: ...

    def resume(self, thread: Thread, cpu: int) -> None: ...


class Bursts:
    """Runs bursts with ``engine``."""

    def __init__(self, engine: Engine, limits: Limits, together: Together, beside: Beside | None = None) -> None:
        self.engine, self.limits, self.signal = engine, limits, engine.signal
        self.together, self.beside = together, beside
        self._bit = 1 << self.signal - 1
        self._code = Code()
        self._registers = ptrace.Registers()

    def run(self, thread: Thread, is_trigger: Callable[[int], bool]) -> tuple[Burst, int]:
        """``(burst, processor)`` of a stopped thread, which is stopped again afterwards unless the burst was dropped.

        Raises `NoBurst`, or `ptrace.Gone` where it ended meanwhile.
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
        if process.ways is None:
            descriptor = process.descriptor if self.engine.walks else -1
            process.ways = Ways(self._code, process.memory, self.engine.ends, widen=True, memory=descriptor)
        process.ways.begin(alone=len(process.threads) == 1)
        target = _Target(thread.tid, is_trigger)
        try:
            with self.together.on(thread.tid, stat.cpu) as cpu, self._undisturbed(thread, cpu):
                burst = self.engine.burst(target, process.ways, self.limits)
        except OSError as error:
            self.clean(thread)
            raise NoBurst(f"{self.engine.name}: {error.strerror}") from error
        if burst.why == "deadline":
            thread.lost = True
            ptrace.interrupt(thread.tid)
        elif burst.why != "gone":
            self.clean(thread)
        return burst, cpu

    @contextmanager
    def _undisturbed(self, thread: Thread, cpu: int) -> Iterator[None]:
        if self.beside is None:
            yield
            return
        self.beside.pause(thread, cpu)
        try:
            yield
        finally:
            self.beside.resume(thread, cpu)

    def clean(self, thread: Thread) -> None:
        """Take away what a burst left in a stopped thread."""
        if thread.lost:
            self.engine.clean(thread.tid)
            thread.lost = False
        if thread.mask is not None:
            ptrace.set_sigmask(thread.tid, thread.mask)
            thread.mask = None
