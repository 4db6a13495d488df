"""What is recorded goes to a file as it comes: perf.data in its pipe form, which every reader of perf.data takes.

Records: include/uapi/linux/perf_event.h; attributes, names and features as records: tools/perf/Documentation/
perf.data-file-format.txt. Two events: the time samples, which the kernel writes, and the bursts, which we write.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Sequence
from typing import IO

from ...formats.perfdata.layout import FEATURES, MISC, SAMPLE
from ...lbr import FLAG_FIELDS
from .. import perf_events
from ..perf_events import CPU_CLOCK, FLAG

__all__ = ["BURSTS", "CLOCK", "MAP_EXECUTABLE", "TIME_SAMPLES", "Spill", "sideband_flags"]

_MAGIC = b"PERFILE2" + struct.pack("=Q", 16)
_ATTR, _EVENT_UPDATE, _FEATURE = 64, 78, 80
_COMM, _EXIT, _FORK, _SAMPLE, _MMAP2 = 3, 4, 7, 9, 10
_USER = 2
CLOCK = time.CLOCK_MONOTONIC
"""Clock of all records."""

TIME_SAMPLES = SAMPLE.IDENTIFIER | SAMPLE.IP | SAMPLE.TID | SAMPLE.TIME | SAMPLE.CPU | SAMPLE.PERIOD
BURSTS = TIME_SAMPLES | SAMPLE.ADDR | SAMPLE.BRANCH_STACK
"""Fields of the two kinds of samples. ``ADDR`` is the address at which the burst began."""

MAP_EXECUTABLE = (5, 2)
"""PROT_READ | PROT_EXEC and MAP_PRIVATE, for mappings that nobody told the protection of."""

_BURST_ID = 1 << 62
"""Id of the bursts' event; the kernel's ids count from 1."""
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
        self.write(_MAGIC)
        self.time_attr = perf_events.attribute(
            CPU_CLOCK, sideband_flags(), period=time_period, sample_type=TIME_SAMPLES, clockid=CLOCK
        )
        self._burst_attr = perf_events.attribute(
            CPU_CLOCK, sideband_flags(), period=period, sample_type=BURSTS, clockid=CLOCK, branch_sample_type=select
        )

    def begin(self, time_ids: Sequence[int], command: Sequence[str]) -> None:
        """What must precede samples: events, with the ids of the kernel's, and the machine."""
        for attr, ids, name in (
            (self.time_attr, time_ids or (0,), "cpu-clock"),
            (self._burst_attr, (_BURST_ID,), "software-lbr"),
        ):
            self._record(_ATTR, 0, attr + struct.pack(f"={len(ids)}Q", *ids))
            self._record(_EVENT_UPDATE, 0, struct.pack("=QQ", 2, ids[0]) + _padded(name))
        for feature, body in _features(command):
            self._record(_FEATURE, 0, struct.pack("=Q", FEATURES.index(feature)) + body)

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
        self._record(_SAMPLE, _USER, body)

    # -- what the kernel tells where it lets us listen

    def mmap(
        self, when: int, pid: int, tid: int, start: int, end: int, offset: int, name: str, build_id: bytes = b""
    ) -> None:
        misc = _USER | (MISC.MMAP_BUILD_ID if build_id else 0)
        identity = struct.pack("=BxH20s", len(build_id), 0, build_id) if build_id else bytes(24)
        body = struct.pack("=iiQQQ", pid, tid, start, end - start, offset) + identity
        self._side(_MMAP2, misc, body + struct.pack("=II", *MAP_EXECUTABLE) + _padded(name), when, pid, tid)

    def comm(self, when: int, pid: int, tid: int, name: str, *, exec: bool = False) -> None:
        misc = MISC.COMM_EXEC if exec else 0
        self._side(_COMM, misc, struct.pack("=ii", pid, tid) + _padded(name), when, pid, tid)

    def fork(self, when: int, pid: int, parent: int, tid: int, parent_tid: int, *, alone: bool = False) -> None:
        """``alone``: a task that was there before the recording; its own mappings follow."""
        body = struct.pack("=iiiiQ", pid, parent, tid, parent_tid, 0 if alone else when)
        self._side(_FORK, MISC.FORK_EXEC if alone else 0, body, when, pid, tid)

    def exit(self, when: int, pid: int, tid: int) -> None:
        self._side(_EXIT, 0, struct.pack("=iiiiQ", pid, pid, tid, tid, when), when, pid, tid)

    def _side(self, kind: int, misc: int, body: bytes, when: int, pid: int, tid: int) -> None:
        # sample_id of an event with TID, TIME, CPU and IDENTIFIER
        self._record(kind, misc, body + struct.pack("=iiQiIQ", pid, tid, when, 0, 0, _BURST_ID))

    def _record(self, kind: int, misc: int, body: bytes) -> None:
        self.write(struct.pack("=IHH", kind, misc, 8 + len(body)) + body)


def _padded(text: str) -> bytes:
    raw = os.fsencode(text)[:4000] + b"\0"
    return raw + bytes(-len(raw) % 8)


def _text(text: str) -> bytes:
    raw = _padded(text)
    return struct.pack("=I", len(raw)) + raw


def _features(command: Sequence[str]) -> list[tuple[str, bytes]]:
    system = os.uname()
    wall, now = time.time_ns(), time.clock_gettime_ns(CLOCK)
    cpus = os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    return [
        ("HOSTNAME", _text(system.nodename)),
        ("OSRELEASE", _text(system.release)),
        ("ARCH", _text(system.machine)),
        ("NRCPUS", struct.pack("=II", cpus, len(os.sched_getaffinity(0)))),
        ("CPUDESC", _text(_processor())),
        ("TOTAL_MEM", struct.pack("=Q", memory)),
        ("CMDLINE", struct.pack("=I", len(command)) + b"".join(map(_text, command))),
        ("CLOCK_DATA", struct.pack("=IIQQ", 1, CLOCK, wall, now)),
    ]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return sys.platform
