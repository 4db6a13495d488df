"""CPU times of threads, as they end: an event that all threads inherit, and whose counts the kernel writes down.

With ``inherit_stat`` the kernel writes a READ record for each thread that has inherited the event, when that ends
(`perf record -s`). It does so on the processor where the thread ends, into the ring of the event's processor, and rings
have no lock: in a ring of samples other records were overwritten, or no more came, within a second of many short
threads. So the event has a ring of its own, into which nothing else writes; the records of one event wait for each
other (``child_mutex`` of `perf_event_exit_event`, kernel/events/core.c of Linux 5.13 and later).

The value is ``time_enabled``: the time that a thread has run on any processor, although the event is bound to a single
processor. Between Linux 5.13 and 6.18 some kernels write no such records: `CpuTimes.works` says so.
"""

from __future__ import annotations

import _thread
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from ...closing import Closing
from ...errors import UnavailableError
from ...formats.perfdata.layout import READ, RECORD, SAMPLE, SOFTWARE_EVENTS, TYPE
from . import syscall
from .ring_records import records_in
from .syscall import CLOCK, FLAG, USER_ONLY, Ring

__all__ = ["CpuTimes", "Ran", "run_so_far"]

_COUNTS = {"type": int(TYPE.SOFTWARE), "config": SOFTWARE_EVENTS.index("dummy"), "clockid": CLOCK}
_READS = syscall.attribute(
    USER_ONLY | FLAG["inherit"] | FLAG["inherit_stat"] | FLAG["sample_id_all"] | FLAG["use_clockid"],
    read_format=READ.TOTAL_TIME_ENABLED,
    sample_type=SAMPLE.TIME,
    **_COUNTS,
)
_AT_EXEC = syscall.attribute(
    USER_ONLY
    | FLAG["inherit"]
    | FLAG["inherit_stat"]
    | FLAG["sample_id_all"]
    | FLAG["use_clockid"]
    | FLAG["disabled"]
    | FLAG["enable_on_exec"],
    read_format=READ.TOTAL_TIME_ENABLED,
    sample_type=SAMPLE.TIME,
    **_COUNTS,
)
_OWN = syscall.attribute(USER_ONLY, read_format=READ.TOTAL_TIME_ENABLED, **_COUNTS)
_RECORD = struct.Struct("=8xiiQQQ")
"""A record: pid, tid, value, time_enabled; and its time, the trailer of `SAMPLE.TIME`."""
_PAGES, _PAGES_OF_ONE = 32, 1
"""Pages of the ring for a launched program (3,000 threads may end between two looks), and of a thread's ring."""
_MOST_RINGS = 64
"""So many threads that ran before have rings for those that they create."""
_ONE_BY_ONE = 5, 13
"""The kernel since which such records of one event wait for each other."""
_MOMENT = 0.05
"""Seconds within which the record of a thread that has ended comes."""


class Ran(NamedTuple):
    """A thread has used ``ns`` more of CPU time by ``when``, in ns of `CLOCK`."""

    pid: int
    tid: int
    ns: int
    when: int


class CpuTimes(Closing):
    """CPU times of programs that this thread launches from now on, each from its exec, and of threads that the recorder
    attaches to, with all their descendants. No time is reported twice."""

    def __init__(self) -> None:
        self._files: list[int] = []
        self._rings: list[Ring] = []
        self._own: dict[tuple[int, int], int] = {}
        """By process and thread that was attached to, the event of that thread alone."""
        self._said: dict[tuple[int, int], int] = {}
        """By process and thread that runs, what was said of it."""
        self._before: dict[int, int] = {}
        """By thread, the CPU time that it had before the recording."""
        self._cpu = min(os.sched_getaffinity(0))
        self.lost = 0
        """Records that did not fit their ring."""
        self._without_ring = 0
        """Threads that ran before, and were too many."""
        self.works = False
        """Whether the kernel says it of threads that end."""
        if kernel_version() < _ONE_BY_ONE:
            return
        with suppress(OSError, UnavailableError):
            # An event that is not inherited keeps the kernel from taking a child's events for copies of ours: the
            # kernel would exchange copies instead of switching them.
            self._open(syscall.attribute(USER_ONLY | FLAG["disabled"], **_COUNTS), 0, -1)
            self._rings.append(Ring(self._open(_AT_EXEC, 0, self._cpu), _PAGES))
            self.works = self._try()
        if not self.works:
            self.close()

    def _open(self, attr: bytes, tid: int, cpu: int) -> int:
        fd = syscall.open_event(attr, tid, cpu)
        self._files.append(fd)
        return fd

    def _try(self) -> bool:
        """Whether the end of a thread is recorded."""
        _thread.start_new_thread(int, ())  # which returns at once
        until = time.monotonic() + _MOMENT
        while time.monotonic() < until:
            if list(self.ended()):
                return True
            time.sleep(_MOMENT / 50)
        return False

    def launched(self, pid: int) -> None:
        """``pid`` has been launched, and has not yet executed its program."""
        self._before[pid] = run_so_far(pid, pid) or 0

    def attach(self, pid: int, tids: Iterable[int]) -> None:
        """Count the threads ``tids`` of ``pid``, and what they create."""
        for tid in tids if self.works else ():
            try:
                if len(self._rings) > _MOST_RINGS:
                    raise UnavailableError("too many rings")
                self._own[pid, tid] = self._open(_OWN, tid, -1)
                self._rings.append(Ring(self._open(_READS, tid, self._cpu), _PAGES_OF_ONE))
            except ProcessLookupError:
                continue  # it has ended
            except (OSError, UnavailableError):
                self._without_ring += 1
        for tid in tids:
            self._before.setdefault(tid, run_so_far(pid, tid) or 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """The CPU times that are missing, and the reasons."""
        said = []
        if self._without_ring:
            before = f"{self._without_ring} of the threads that ran before, which were too many"
            said.append(f"CPU times are not stated of what ends and was begun by {before}")
        if self.lost:
            said.append(f"CPU times are not stated of some threads: {self.lost} records of ends were lost")
        return tuple(said)

    def ended(self) -> Iterator[Ran]:
        """The threads that have ended since the last call."""
        found = list[bytes]()
        for ring in self._rings:
            ring.drain(found.append)
        for records in found:
            for at, kind, size in records_in(records):
                if kind == RECORD["READ"] and size >= _RECORD.size:
                    pid, tid, _, ran, when = _RECORD.unpack_from(records, at)
                    yield Ran(pid, tid, max(ran - self._said.pop((pid, tid), 0), 0), when)
                elif kind == RECORD["LOST"]:
                    self.lost += struct.unpack_from("=16xQ", records, at)[0]

    def running(self, tasks: Iterable[tuple[int, int]]) -> Iterator[Ran]:
        """The unreported CPU times of running threads: of ``tasks`` (pid, tid) and of attached threads."""
        when = time.clock_gettime_ns(CLOCK)
        for pid, tid in dict.fromkeys([*tasks, *self._own]):
            ran = self._ran(pid, tid)
            if ran is not None and (more := ran - self._said.get((pid, tid), 0)) > 0:
                self._said[pid, tid] = ran
                yield Ran(pid, tid, more, when)

    def _ran(self, pid: int, tid: int) -> int | None:
        if (pid, tid) in self._own:
            return int.from_bytes(os.read(self._own[pid, tid], 16)[8:], "little")
        ran = run_so_far(pid, tid)
        return None if ran is None else ran - self._before.get(tid, 0)

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        for fd in self._files:
            os.close(fd)
        self._rings, self._files, self._own = [], [], {}


def kernel_version() -> tuple[int, ...]:
    """As far as it is of numbers: (6, 1)."""
    return tuple(int(part) for part in os.uname().release.partition("-")[0].split(".")[:2] if part.isdecimal())


def run_so_far(pid: int, tid: int) -> int | None:
    """CPU time of a thread in ns, ``None`` where it has ended (Documentation/scheduler/sched-stats.rst)."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
