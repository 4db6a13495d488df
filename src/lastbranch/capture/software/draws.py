"""Draws: which threads of a program run at a moment, without tracing any of them.

A thread that is traced stops at each of its signals, and at each task that it creates. Programs that take many signals
or begin many processes are slow then. So the recorder lets such a program go, and draws: at random moments it asks the
kernel which of the program's threads run, traces those until they have had their burst, and lets them go again.

The kernel answers through a cpu-clock event with a short period that all tasks inherit, however late they begin. The
event is off between draws, when it costs nothing but its place in each task.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...closing import on_failure
from ...formats.perfdata.layout import RECORD, SAMPLE
from ..perf_events import syscall
from ..perf_events.ring_records import HEAD, records_in
from ..perf_events.syscall import CLOCK, CPU_CLOCK, FLAG, USER_ONLY, Ring

__all__ = ["DrawIntervals", "Draws"]


_EACH = 20_000
"""ns of CPU time after which a running thread reports itself; at least 10,000 (perf_swevent_start_hrtimer)."""
_LATEST = 35_000
"""ns from the beginning of a draw in which a thread that runs in user mode has reported itself. A later report is of a
thread that was in a system call at its first one, or has begun to run: a draw would find these places too often."""
_SAMPLE = struct.Struct("=iiQ")
"""Process, thread and time."""
_ppoll = ctypes.CDLL(None).ppoll
_IN = select.POLLIN


class _PollFd(ctypes.Structure):
    """struct pollfd."""

    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class Draws:
    """Draws among the tasks that are `cover`ed, and all that they create from then on."""

    def __init__(self) -> None:
        """Raises `OSError` or `UnavailableError` where the kernel refuses."""
        self._attr = syscall.attribute(
            USER_ONLY | FLAG["disabled"] | FLAG["inherit"] | FLAG["use_clockid"],
            clockid=CLOCK,
            sample_type=SAMPLE.TID | SAMPLE.TIME,
            sample_period=_EACH,
            wakeup_events=1,
            **CPU_CLOCK,
        )
        self._count_attr = syscall.attribute(USER_ONLY | FLAG["inherit"], **CPU_CLOCK)
        self._covered: dict[int, tuple[int, list[int]]] = {}
        """By task, the event that counts its CPU time, and the events that report the task, one for each processor."""
        self._ended = 0
        """ns of those that have ended."""
        self._rings: dict[int, Ring] = {}
        """By processor. Events on ourselves own the rings, and are never on: events of a task that ends would end
        waits."""
        with on_failure(self.close):
            for cpu in sorted(os.sched_getaffinity(0)):
                self._rings[cpu] = Ring(syscall.open_event(self._attr, 0, cpu), 1)
        self._waits = (_PollFd * len(self._rings))(*(_PollFd(ring.fd, _IN, 0) for ring in self._rings.values()))

    def cover(self, tid: int) -> None:
        """Draw among ``tid`` and what it creates, too. Raises `OSError`; a task that has ended is none."""
        if tid in self._covered:
            return
        opened: list[int] = []
        try:
            opened.append(syscall.open_event(self._count_attr, tid))
            for cpu, ring in self._rings.items():
                opened.append(syscall.sparing(syscall.open_event(self._attr, tid, cpu)))
                ring.share(opened[-1])
        except OSError as error:
            for fd in opened:
                os.close(fd)
            if not isinstance(error, ProcessLookupError):
                raise
            return
        self._covered[tid] = opened[0], opened[1:]

    @contextmanager
    def running(self) -> Iterator[list[tuple[int, int]]]:
        """``(process, thread)`` of the threads that run in user mode now, at most one on each processor. Events are on
        until the end, which may come after the threads are traced: until then they run on."""
        events = [fd for _, reporting in self._covered.values() for fd in reporting]
        self._drop_late()
        try:
            for fd in events:
                syscall.enable(fd)
            until = time.clock_gettime_ns(CLOCK) + _LATEST
            self._wait(_LATEST)
            found: list[tuple[int, int]] = []
            for ring in self._rings.values():
                ring.drain(lambda records: found.extend(_first(records, until)))
            yield list(dict.fromkeys(found))
        finally:
            for fd in events:
                syscall.disable(fd)

    def _wait(self, ns: int) -> None:
        """Wait until a thread has reported itself, or for ``ns``."""
        _ppoll(self._waits, len(self._waits), ctypes.byref((ctypes.c_long * 2)(0, ns)), None)

    def _drop_late(self) -> None:
        """Drop reports that came after the last wait: they would end the next wait, and name threads that need not run
        then."""
        for ring in self._rings.values():
            ring.drain(lambda records: None)
        self._wait(0)

    def cpu(self) -> int:
        """ns of CPU time that all covered tasks have taken since they were covered."""
        return self._ended + sum(syscall.read_count(counter) for counter, _ in self._covered.values())

    def any_left(self) -> bool:
        """Whether one of them is left. Events of the others are closed."""
        looked = select.poll()
        whose = {reporting[0]: tid for tid, (_, reporting) in self._covered.items()}
        for fd in whose:
            looked.register(fd, 0)
        for fd, state in looked.poll(0):
            if state & select.POLLHUP:  # the task and all that descends from it have ended
                self._close(whose[fd])
        return bool(self._covered)

    def _close(self, tid: int) -> None:
        counter, reporting = self._covered.pop(tid)
        self._ended += syscall.read_count(counter)
        for fd in (counter, *reporting):
            os.close(fd)

    def close(self) -> None:
        for tid in list(self._covered):
            self._close(tid)
        for ring in self._rings.values():
            ring.close()
            os.close(ring.fd)
        self._rings = {}


def _first(records: bytes, until: int) -> list[tuple[int, int]]:
    """The process and thread of the first sample, if it is of before ``until``."""
    for at, kind, _ in records_in(records):
        if kind == RECORD["SAMPLE"]:
            pid, tid, when = _SAMPLE.unpack_from(records, at + HEAD.size)
            return [(pid, tid)] if when < until else []
    return []


# -- how often to draw


_KEPT = 0.97
"""The part of the sums of `DrawIntervals` that is left after another draw."""
_BEGINNING = 4.0
"""Draws as if which had found a thread at the beginning."""
_FEWEST = 1 / 16
"""The smallest share of user code that is reckoned with."""
_SHORTEST = 500_000
"""ns between two draws, in the mean."""
_NOTHING = 20_000
"""ns of CPU time in which nothing can be found."""


class DrawIntervals:
    """Proposes the times between draws, so that there is one burst for each period of the program's CPU time.

    A draw finds no thread where all are in system calls, or sleep. The next draw must not come sooner for that reason:
    it would find the code after system calls too often. So the intervals follow from what the last hundred draws have
    found, and are drawn at random.
    """

    def __init__(self) -> None:
        self._found = self._ran = _BEGINNING
        """Threads that draws have found, and threads that ran at the time, in the mean: the newest draws count most."""

    def add(self, found: int, cpu: int, passed: int) -> None:
        """A draw has found so many threads. In the ``passed`` ns since the one before, all threads have run for ``cpu``
        ns."""
        if cpu >= _NOTHING and passed > 0:
            self._found = _KEPT * self._found + found
            self._ran = _KEPT * self._ran + cpu / passed

    def next(self, period: int) -> int:
        """ns to the next draw, for a burst each ``period`` ns of a thread's CPU time."""
        share = min(max(self._found / self._ran, _FEWEST), 1.0)
        mean = max(period * share, _SHORTEST)
        return int(min(random.expovariate(1 / mean), _MOST_MEANS * mean))


_MOST_MEANS = 4
"""The longest interval, in means."""
