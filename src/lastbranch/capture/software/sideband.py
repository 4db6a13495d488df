"""What goes on beside the bursts: time samples, mappings, names, forks and exits, from perf events.

Where the kernel allows no perf events, the same is told from what ptrace and /proc show.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Sequence

from ...errors import UnavailableError
from .. import perf_events
from ..perf_events import CPU_CLOCK, DISABLE, ENABLE, FLAG, Ring
from ..procfs import Mapping
from .maps import build_id_of, executable_maps
from .spill import CLOCK, TIME_SAMPLES, Spill, sideband_flags
from .tree import Thread, stat_of

__all__ = ["KernelSideband", "OwnSideband", "Sideband", "describe_running", "now"]

_PAGES = 64


def now() -> int:
    """ns of the clock of all records."""
    return time.clock_gettime_ns(CLOCK)


class KernelSideband:
    """cpu-clock events on given threads and all that they make later, one for each processor, into one ring each."""

    name = "perf events"

    def __init__(self, tids: Sequence[int], period: int, *, at_exec: bool) -> None:
        """``at_exec``: begin when the thread executes a program. `OSError` where the kernel refuses."""
        flags = sideband_flags() | FLAG["inherit"] | (FLAG["disabled"] | FLAG["enable_on_exec"] if at_exec else 0)
        attr = perf_events.attribute(
            CPU_CLOCK, flags, period=period, sample_type=TIME_SAMPLES, clockid=CLOCK, wakeup=1 << 20
        )
        self.ids: list[int] = []
        self._fds: dict[tuple[int, int], int] = {}
        """By thread and processor."""
        self._rings: list[Ring] = []
        try:
            for cpu in sorted(os.sched_getaffinity(0)):
                self._open(attr, tids, cpu)
        except BaseException:
            self.close()
            raise

    def _open(self, attr: bytes, tids: Sequence[int], cpu: int) -> None:
        ring: Ring | None = None
        for tid in tids:
            try:
                fd = perf_events.open_event(attr, tid, cpu)
            except ProcessLookupError:
                continue
            self._fds[tid, cpu] = fd
            self.ids.append(perf_events.event_id(fd))
            if ring is None:
                ring = Ring(fd, _PAGES)
                self._rings.append(ring)
            else:
                ring.share(fd)

    def drain(self, spill: Spill) -> None:
        for ring in self._rings:
            ring.drain(spill.write)

    def pause(self, thread: Thread, cpu: int) -> None:
        """No time samples of ``thread`` on ``cpu``: each switch to it would start a timer, and each from it stop
        one, which costs as much as a stop does without them."""
        self._switch(thread, cpu, DISABLE)

    def resume(self, thread: Thread, cpu: int) -> None:
        self._switch(thread, cpu, ENABLE)

    def _switch(self, thread: Thread, cpu: int, request: int) -> None:
        fd = self._fds.get((thread.origin, cpu))
        if fd is not None:
            fcntl.ioctl(fd, request, 0)

    # the kernel tells all of these itself

    def forked(self, spill: Spill, thread: Thread, parent: Thread) -> None: ...

    def executed(self, spill: Spill, thread: Thread) -> None: ...

    def ended(self, spill: Spill, thread: Thread) -> None: ...

    def reached(self, spill: Spill, thread: Thread, when: int) -> None: ...

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        for fd in self._fds.values():
            os.close(fd)
        self._rings, self._fds = [], {}


class OwnSideband:
    """No time samples; the rest from ptrace events, and from /proc/PID/maps at each burst: other code may be where some
    was."""

    name = "ptrace and /proc"

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._known: dict[int, list[Mapping]] = {}

    def drain(self, spill: Spill) -> None: ...

    def pause(self, thread: Thread, cpu: int) -> None: ...

    def resume(self, thread: Thread, cpu: int) -> None: ...

    def forked(self, spill: Spill, thread: Thread, parent: Thread) -> None:
        pid, old = thread.process.pid, parent.process.pid
        spill.fork(now(), pid, old, thread.tid, parent.tid)
        if pid != old:
            self._known[pid] = list(self._known.get(old, ()))

    def executed(self, spill: Spill, thread: Thread) -> None:
        pid = thread.process.pid
        stat = stat_of(pid)
        spill.comm(now(), pid, thread.tid, stat.name if stat else "?", exec=True)
        self._known[pid] = []
        self._read(spill, pid, now())

    def ended(self, spill: Spill, thread: Thread) -> None:
        spill.exit(now(), thread.process.pid, thread.tid)
        if not thread.process.threads:
            self._known.pop(thread.process.pid, None)

    def reached(self, spill: Spill, thread: Thread, when: int) -> None:
        self._read(spill, thread.process.pid, when)

    def _read(self, spill: Spill, pid: int, when: int) -> None:
        found = executable_maps(pid)
        for m in set(found) - set(self._known.get(pid, ())):
            spill.mmap(when, pid, m, build_id_of(m.name))
        self._known[pid] = found

    def close(self) -> None: ...


Sideband = KernelSideband | OwnSideband


def describe_running(spill: Spill, when: int, pid: int, threads: Iterable[int]) -> None:
    """Records of ``when`` for a process that was there before: its threads with their names, and its mappings."""
    stat = stat_of(pid)
    spill.fork(when, pid, stat.parent if stat else -1, pid, pid, alone=True)
    spill.comm(when, pid, pid, stat.name if stat else "?")
    for tid in threads:
        if tid != pid and (stat := stat_of(tid)) is not None:
            spill.fork(when, pid, pid, tid, pid)
            spill.comm(when, pid, tid, stat.name)
    for m in executable_maps(pid):
        spill.mmap(when, pid, m, build_id_of(m.name))


def sideband(tids: Sequence[int], period: int, *, at_exec: bool) -> Sideband:
    """The kernel's where it allows that."""
    try:
        return KernelSideband(tids, period, at_exec=at_exec)
    except (OSError, UnavailableError):
        return OwnSideband()
