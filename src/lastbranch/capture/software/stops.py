"""Wait statuses of traced threads, and waiting for one with a deadline."""

from __future__ import annotations

import ctypes
import errno
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from .. import ptrace
from ..batch import WORDS, Batch

__all__ = ["TICK", "Onward", "Poke", "event_of", "next_stop", "signal_of", "stopped", "ticking"]

TICK = 0.02
"""Seconds between two ticks: no wait is longer than its deadline and one of these."""

Poke = tuple[int, int]
"""Offset of a word of struct user, and its value to be."""
_PTRACE, _WAIT4 = 101, 61
"""Numbers of the calls on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl)."""
_POKES = 6
"""Four debug registers, their control, and the flags."""
_CONT, _WAIT, _REGISTERS = range(_POKES, _POKES + 3)
"""Rows of the table, behind those that poke."""
_OFFSET, _VALUE = 3, 4


@contextmanager
def ticking() -> Iterator[None]:
    """Interrupt every wait of this process each `TICK`, as long as this lasts."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def next_stop(tid: int, seconds: float) -> int | None:
    """Wait status of the next event of ``tid``; ``None`` where it does not come in time. Needs `ticking`."""
    end = 0.0
    while True:
        try:
            return ptrace.wait(tid)[1]
        except ptrace.Interrupted:
            now = time.monotonic()
            end = end or now - TICK + seconds  # the clock is only read where a tick comes first
            if now >= end:
                return None


class Onward:
    """From one stop of a thread to the next: words of its struct user set, PTRACE_CONT, the wait, and its registers, in
    one call where memory may be executed."""

    def __init__(self, registers: ctypes.Array[ctypes.c_uint64]) -> None:
        """``registers`` are filled at each stop."""
        self._registers = registers
        self._status = ctypes.c_int()
        self._batch: Batch | None = None
        with suppress(OSError):
            self._batch = Batch(_POKES + 3)
        self._tid = -1

    def go(self, tid: int, pokes: Sequence[Poke], seconds: float) -> int | None:
        """As `next_stop`; at most `_POKES` words."""
        batch = self._aimed(tid)
        if batch is None:
            for offset, value in pokes:
                ptrace.poke_user(tid, offset, value)
            ptrace.cont(tid)
            return self.wait(tid, seconds)
        first = _POKES - len(pokes)
        words, at = batch.words, first * WORDS
        for offset, value in pokes:
            words[at + _OFFSET], words[at + _VALUE] = offset, value
            at += WORDS
        return self._waited(tid, batch, batch.run(first), seconds)

    def wait(self, tid: int, seconds: float) -> int | None:
        """The same for a thread that runs already."""
        batch = self._aimed(tid)
        if batch is not None:
            return self._waited(tid, batch, batch.run(_WAIT), seconds)
        status = next_stop(tid, seconds)
        if status is not None and stopped(status):
            ptrace.registers(tid, self._registers)
        return status

    def _waited(self, tid: int, batch: Batch, failed: int, seconds: float) -> int | None:
        end = 0.0
        while failed == _WAIT and batch.error(_WAIT) == errno.EINTR:
            now = time.monotonic()
            end = end or now - TICK + seconds
            if now >= end:
                return None
            failed = batch.run(_WAIT)
        status = self._status.value
        if failed <= _WAIT or (failed == _REGISTERS and stopped(status)):
            raise ptrace.refusal(tid, batch.error(failed))
        return status

    def _aimed(self, tid: int) -> Batch | None:
        """The table for ``tid``."""
        batch = self._batch
        if batch is None or tid == self._tid:
            return batch
        for row in range(_POKES):
            batch.set(row, _PTRACE, ptrace.POKEUSER, tid)
        batch.set(_CONT, _PTRACE, ptrace.CONT, tid)
        batch.set(_WAIT, _WAIT4, tid, ctypes.addressof(self._status), ptrace.WALL)
        batch.set(_REGISTERS, _PTRACE, ptrace.GETREGS, tid, 0, ctypes.addressof(self._registers))
        self._tid = tid
        return batch


def stopped(status: int) -> bool:
    """Whether it is stopped: it has not ended."""
    return status & 0xFF == 0x7F


def signal_of(status: int) -> int:
    """The signal that it stopped at."""
    return status >> 8 & 0xFF


def event_of(status: int) -> int:
    """The PTRACE_EVENT it stopped at, 0 for a signal."""
    return status >> 16
