"""Wait statuses of traced threads, and waiting for one with a deadline."""

from __future__ import annotations

import ctypes
import errno
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
    one call."""

    def __init__(self, registers: ctypes.Array[ctypes.c_uint64]) -> None:
        """``registers`` are filled at each stop."""
        self._registers = registers
        self._status = ctypes.c_int()
        self._batch = Batch(_POKES + 3)
        self._tid = -1

    def go(self, tid: int, pokes: Sequence[Poke], seconds: float) -> int | None:
        """As `next_stop`; at most `_POKES` words."""
        if tid != self._tid:
            self._aim(tid)
        batch, first = self._batch, _POKES - len(pokes)
        words, at = batch.words, first * WORDS
        for offset, value in pokes:
            words[at + _OFFSET], words[at + _VALUE] = offset, value
            at += WORDS
        failed, end = batch.run(first), 0.0
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

    def _aim(self, tid: int) -> None:
        for row in range(_POKES):
            self._batch.set(row, _PTRACE, ptrace.POKEUSER, tid)
        self._batch.set(_CONT, _PTRACE, ptrace.CONT, tid)
        self._batch.set(_WAIT, _WAIT4, tid, ctypes.addressof(self._status), ptrace.WALL)
        self._batch.set(_REGISTERS, _PTRACE, ptrace.GETREGS, tid, 0, ctypes.addressof(self._registers))
        self._tid = tid


def stopped(status: int) -> bool:
    """Whether it is stopped: it has not ended."""
    return status & 0xFF == 0x7F


def signal_of(status: int) -> int:
    """The signal that it stopped at."""
    return status >> 8 & 0xFF


def event_of(status: int) -> int:
    """The PTRACE_EVENT it stopped at, 0 for a signal."""
    return status >> 16
