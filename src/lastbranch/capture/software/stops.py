"""Wait statuses of traced threads, and waiting for one with a deadline."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .. import ptrace

__all__ = ["TICK", "event_of", "next_stop", "signal_of", "stopped", "ticking"]

TICK = 0.02
"""Seconds between two ticks: no wait is longer than its deadline and one of these."""


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


def stopped(status: int) -> bool:
    """Whether it is stopped: it has not ended."""
    return status & 0xFF == 0x7F


def signal_of(status: int) -> int:
    """The signal that it stopped at."""
    return status >> 8 & 0xFF


def event_of(status: int) -> int:
    """The PTRACE_EVENT it stopped at, 0 for a signal."""
    return status >> 16
