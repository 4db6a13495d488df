"""What is recorded goes to a file as it comes: perf.data in its pipe form, which every reader of perf.data takes.

Records: include/uapi/linux/perf_event.h; attributes, names and features as records: tools/perf/Documentation/
perf.data-file-format.txt. Two events: the time samples, which the kernel writes, and the bursts, which we write.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import IO

from ...formats.perfdata.layout import MISC, SAMPLE
from ...formats.perfdata.writer import Described, SideRecords, pipe_begin, pipe_event, pipe_feature, record
from ...lbr import FLAG_FIELDS
from .. import perf_events
from ..machine import CLOCK, machine_features
from ..perf_events import CPU_CLOCK, FLAG
from ..procfs import Mapping

__all__ = ["BURSTS", "CLOCK", "TIME_SAMPLES", "Spill", "sideband_flags"]

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
        self.time_attr = perf_events.attribute(
            CPU_CLOCK, sideband_flags(), period=time_period, sample_type=TIME_SAMPLES, clockid=CLOCK
        )
        self._burst_attr = perf_events.attribute(
            CPU_CLOCK, sideband_flags(), period=period, sample_type=BURSTS, clockid=CLOCK, branch_sample_type=select
        )

    def begin(self, time_ids: Sequence[int], command: Sequence[str]) -> None:
        """What must precede samples: events, with the ids of the kernel's, and the machine."""
        self.write(pipe_event(Described("cpu-clock", self.time_attr, time_ids)))
        self.write(pipe_event(Described("software-lbr", self._burst_attr, (_BURST_ID,))))
        system = os.uname()
        for name, body in machine_features(_read, system.release, system.machine, command).items():
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


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None
