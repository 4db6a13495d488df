"""What is recorded goes to a file as it comes: perf.data in its pipe form, which every reader of perf.data takes.

It is the bursts, and the sideband: time samples, mappings, names, forks and exits.
Records: include/uapi/linux/perf_event.h; attributes, names and features as records: tools/perf/Documentation/
perf.data-file-format.txt. Two events: the time samples, which the kernel writes, and the bursts, which we write.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import IO

from ...errors import UnavailableError
from ...formats.perfdata.layout import MISC, SAMPLE
from ...formats.perfdata.writer import Described, SideRecords, pipe_begin, pipe_event, pipe_feature, record
from ...lbr import FLAG_FIELDS
from ..perf_events import syscall
from ..perf_events.synthesis import machine_features
from ..perf_events.syscall import CLOCK, CPU_CLOCK, FLAG, Ring
from ..procfs import Mapping, executable_maps, read, stat_of
from .tree import Thread

__all__ = ["Sideband", "Spill", "describe_running", "now"]


TIME_SAMPLES = SAMPLE.IDENTIFIER | SAMPLE.IP | SAMPLE.TID | SAMPLE.TIME | SAMPLE.CPU | SAMPLE.PERIOD
BURSTS = TIME_SAMPLES | SAMPLE.ADDR | SAMPLE.BRANCH_STACK
"""Fields of the two kinds of samples. ``ADDR`` is the address at which the burst began."""

_BURST_ID = 1 << 62
"""Id of the bursts' event; the kernel's ids count from 1."""
_BESIDE = SideRecords(BURSTS, _BURST_ID)
_PRIV_USER = 1 << FLAG_FIELDS["priv"][0]
_TYPE_SHIFT = FLAG_FIELDS["type"][0]
_BUFFER = 1 << 18


def sideband_flags() -> int:
    """Flags of an event that tells forks, execs, names and mappings too, all with times of `CLOCK`."""
    names = "exclude_kernel exclude_hv mmap mmap2 comm comm_exec task sample_id_all use_clockid build_id"
    return sum(FLAG[name] for name in names.split())


class Spill:
    """Appends records to ``file``. Nothing is kept in memory."""

    def __init__(self, file: IO[bytes], select: int, period: int, time_period: int) -> None:
        """``select``: PERF_SAMPLE_BRANCH_* of the bursts. ``period``: CPU time between bursts, of the time samples
        ``time_period``, in ns."""
        self.write = file.write
        self.flush = file.flush
        self.write(pipe_begin())
        self.time_attr = syscall.attribute(
            sideband_flags(), sample_period=time_period, sample_type=TIME_SAMPLES, clockid=CLOCK, **CPU_CLOCK
        )
        self._burst_attr = syscall.attribute(
            sideband_flags(),
            sample_period=period,
            sample_type=BURSTS,
            clockid=CLOCK,
            branch_sample_type=select,
            **CPU_CLOCK,
        )

    def begin(self, time_ids: Sequence[int], command: Sequence[str]) -> None:
        """What must precede samples: events, with the ids of the kernel's, and the machine."""
        self.write(pipe_event(Described("cpu-clock", self.time_attr, time_ids)))
        self.write(pipe_event(Described("software-lbr", self._burst_attr, (_BURST_ID,))))
        system = os.uname()
        for name, body in machine_features(read, system.release, system.machine, command).items():
            self.write(pipe_feature(name, body))

    def sample(
        self, when: int, pid: int, tid: int, cpu: int, start: int, end: int, weight: int,
        stack: Sequence[tuple[int, int, int]],
    ) -> None:  # fmt: skip
        """A burst: ``weight`` ns of CPU time, ``stack`` of (from, to, perf's branch type), newest first."""
        words = [word for source, target, kind in stack for word in (source, target, kind << _TYPE_SHIFT | _PRIV_USER)]
        body = struct.pack(
            f"=QQiiQQiIQQ{len(words)}Q",
            _BURST_ID, end, pid, tid, when, start, cpu, 0, weight, len(stack), *words,
        )  # fmt: skip
        self.write(record("SAMPLE", body, MISC.USER))

    # -- what the kernel tells where it lets us listen

    def mmap(self, when: int, pid: int, m: Mapping, build_id: bytes) -> None:
        place = (m.major, m.minor, m.inode)
        self.write(
            _BESIDE.mmap2(
                pid, m.start, m.end, m.offset, m.name, prot=m.prot, flags=m.flags, build_id=build_id, inode=place,
                time=when,
            )
        )  # fmt: skip

    def comm(self, when: int, pid: int, tid: int, name: str, *, exec: bool = False) -> None:
        self.write(_BESIDE.comm(pid, tid, name, when, exec=exec))

    def fork(self, when: int, pid: int, parent: int, tid: int, parent_tid: int, *, alone: bool = False) -> None:
        """``alone``: a task that was there before the recording; its own mappings follow."""
        self.write(_BESIDE.fork(pid, parent, tid, parent_tid, when, alone=alone))

    def exit(self, when: int, pid: int, tid: int) -> None:
        self.write(_BESIDE.exit(pid, tid, when))


def build_id_of(path: str) -> bytes:
    """The build id of the file at ``path`` as it is now, empty where it has none."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return b""
    return _build_id(path, info.st_ino, info.st_mtime_ns)


@lru_cache(maxsize=1024)
def _build_id(path: str, inode: int, changed: int) -> bytes:
    from ...opening import build_id_at  # loads the readers of binaries, which few recordings need

    return build_id_at(path)


# -- the sideband, from perf events
#
# Where the kernel allows no perf events, the same is told from what ptrace and /proc show.


_PAGES = 64


def now() -> int:
    """ns of the clock of all records."""
    return time.clock_gettime_ns(CLOCK)


class Sideband:
    """What goes on beside the bursts. This one sees nothing; what each has to do of it, it does."""

    name = ""

    def __init__(self) -> None:
        self.ids: list[int] = []
        """Of the kernel's events."""

    def drain(self, spill: Spill) -> None:
        """Write what has come."""

    @contextmanager
    def paused(self, thread: Thread, cpu: int) -> Iterator[None]:
        """No time samples of ``thread`` on ``cpu`` for now."""
        yield

    def forked(self, spill: Spill, thread: Thread, parent: Thread) -> None: ...

    def executed(self, spill: Spill, thread: Thread) -> None: ...

    def ended(self, spill: Spill, thread: Thread) -> None: ...

    def reached(self, spill: Spill, thread: Thread, when: int) -> None:
        """A burst of ``when`` was in ``thread``."""

    def close(self) -> None: ...


class KernelSideband(Sideband):
    """cpu-clock events on given threads and all that they make later, one for each processor, into one ring each.

    The kernel itself tells of forks, execs, exits and mappings."""

    name = "perf events"

    def __init__(self, tids: Sequence[int], period: int, *, at_exec: bool) -> None:
        """``at_exec``: begin when the thread executes a program. `OSError` where the kernel refuses."""
        flags = sideband_flags() | FLAG["inherit"] | (FLAG["disabled"] | FLAG["enable_on_exec"] if at_exec else 0)
        attr = syscall.attribute(
            flags, sample_period=period, sample_type=TIME_SAMPLES, clockid=CLOCK, wakeup_events=1 << 20, **CPU_CLOCK
        )
        super().__init__()
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
                fd = syscall.open_event(attr, tid, cpu)
            except ProcessLookupError:
                continue
            self._fds[tid, cpu] = fd
            self.ids.append(syscall.event_id(fd))
            if ring is None:
                ring = Ring(fd, _PAGES)
                self._rings.append(ring)
            else:
                ring.share(fd)

    def drain(self, spill: Spill) -> None:
        for ring in self._rings:
            ring.drain(spill.write)

    @contextmanager
    def paused(self, thread: Thread, cpu: int) -> Iterator[None]:
        """Each switch to it would start a timer, and each from it stop one, which costs as much as a stop does without
        them."""
        fd = self._fds.get((thread.origin, cpu))
        if fd is None:
            yield
            return
        syscall.disable(fd)
        try:
            yield
        finally:
            syscall.enable(fd)

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        for fd in self._fds.values():
            os.close(fd)
        self._rings, self._fds = [], {}


class OwnSideband(Sideband):
    """No time samples; the rest from ptrace events, and from /proc/PID/maps at each burst: other code may be where some
    was."""

    name = "ptrace and /proc"

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, list[Mapping]] = {}

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
