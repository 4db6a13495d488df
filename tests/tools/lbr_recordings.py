"""Recordings of the software LBR made by hand: what its collector writes, with the rounds of one that is followed."""

from __future__ import annotations

import io
import struct

from lastbranch.capture.options import DEFAULT_SELECT
from lastbranch.capture.software import RECORDS, RecordWriter
from lastbranch.capture.software.record_writer import BurstSample
from lastbranch.etw.portable.lbr.conversion import FINISHED_ROUND
from lastbranch.formats.perfdata.writer import MappedCode

TIME_ID = 7
CALL, RET, COND, IND = 4, 6, 1, 3


class Recording:
    """``data`` is the file so far, ``rounds`` where a round ends in it."""

    def __init__(self, select: int = DEFAULT_SELECT) -> None:
        self._file = io.BytesIO()
        self.out = RecordWriter(self._file, select, 20_000_000, 1_000_000)
        self.out.begin([TIME_ID], ["lastbranch", "record", "--", "prog"])

    @property
    def data(self) -> bytes:
        return self._file.getvalue()

    def time(self, when: int, ip: int, pid: int, tid: int, cpu: int = 0) -> None:
        """A sample of time, as the kernel writes it."""
        body = struct.pack("=QQiiQiIQ", TIME_ID, ip, pid, tid, when, cpu, 0, 1_000_000)
        self._file.write(struct.pack("=IHH", 9, 2, 8 + len(body)) + body)

    def round(self, when: int) -> None:
        self._file.write(struct.pack("=IHHq", FINISHED_ROUND, 0, 16, when))


def mapping(pid: int, start: int, end: int, offset: int, name: str, time: int, build_id: bytes = b"") -> bytes:
    """Private, to be read and executed."""
    mapped = MappedCode(start, end, offset, name, prot=5, flags=2, inode=(8, 1, 77))
    return RECORDS.mmap2(pid, mapped, build_id=build_id, time=time)


def program(recording: Recording, *, rounds: bool = True) -> None:
    """A process with two threads that forks; its child executes another program. A round each 1,000 ns."""
    out, base = recording.out, 1_000_000
    out.write(RECORDS.comm(40, 40, "prog", base, exec=True))
    out.write(mapping(40, 0x400000, 0x410000, 0x1000, "/bin/prog", base + 10, bytes(range(20))))
    out.write(mapping(40, 0x7F0000000000, 0x7F0000100000, 0, "/lib/libc.so", base + 20))
    out.write(RECORDS.fork(40, 40, 41, 40, base + 500))
    for i in range(400):
        when, tid, cpu = base + 1000 + 100 * i, 40 + i % 2, i % 3
        if i == 150:
            out.write(RECORDS.fork(50, 40, 50, 40, when + 1))
        if i == 160:
            out.write(RECORDS.comm(50, 50, "other", when + 1, exec=True))
            out.write(mapping(50, 0x400000, 0x408000, 0, "/bin/other", when + 2, bytes(range(1, 21))))
        if i == 390:
            out.write(RECORDS.exit(50, 50, when + 1))
        pid, tid = (50, 50) if 160 < i < 390 and i % 4 == 0 else (40, tid)
        if i % 7 == 3:
            stack = [(0x400100 + 16 * n, 0x400200 + 8 * n, (CALL, RET, COND, IND, 0, 9)[n % 6]) for n in range(i % 40)]
            burst = BurstSample(when, pid, tid, cpu, 0x400100, 0x400200 + i, 20_000_000 + i)
            out.sample(burst, stack)
        else:
            recording.time(when, 0x7F0000000100 + i if i % 3 else 0x400300, pid, tid, cpu)
        if rounds and i % 10 == 9:
            recording.round(when)
    for tid in (41, 40):
        out.write(RECORDS.exit(40, tid, when + 10))
