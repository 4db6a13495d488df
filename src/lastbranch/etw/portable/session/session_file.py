"""The log file of a running session: created under its final name, readable if the session crashes.

Otherwise it is a `TraceFile`, which writes header buffer, rings, series of files and compression. `session_header`
makes its header.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from typing import IO, NamedTuple
from uuid import UUID

from ....errors import FormatError
from ....formats.etl import (
    BUFFER_HEADER_SIZE,
    HEADERS,
    LOGFILE_HEADER,
    LogFileMode,
    LogHeader,
    TraceFile,
    packed,
    read_header,
)
from ....model import BytesSource
from ...properties import SessionRequest
from ..clock import FILETIME_EPOCH, Clock, filetime
from .log_file import open_log

__all__ = ["SessionFile", "Totals", "find_append_offset", "session_header"]


_MOST = (1 << 32) - 1
_ENOUGH = 1 << 17  # bytes with the whole first event of a file


def find_append_offset(fd: int, path: str, buffer_size: int, compressed: bool) -> int:
    """The offset at which an appended session begins in the log in ``fd``. Raises `FormatError` for a log of another
    form."""
    size = os.fstat(fd).st_size
    if not size:
        return 0
    log = read_header(BytesSource(os.pread(fd, _ENOUGH, 0), path))
    if log.compressed != compressed or log.buffer_size != buffer_size:
        reason = "a session can be appended only to a log with the same buffer size and compression"
        raise FormatError(reason, file=path, field="BufferSize", value=log.buffer_size)
    return size if compressed else size + -size % buffer_size


class Totals(NamedTuple):
    """The final fields in the header of a log, written when the session has ended; ``end_time`` is FILETIME."""

    end_time: int
    processors: int
    events_lost: int
    buffers_lost: int


class SessionFile(TraceFile):
    """The file, or series of files, of a session with ``header``. ``fd``, from `open_log`, is the first file.

    A failed write (`OSError`) leaves the file as it was, and the next write tries again.
    """

    def __init__(self, path: str, header: LogHeader, fd: int | None, events: tuple[bytes, ...] = ()) -> None:
        self._given = fd
        self._ended = False
        super().__init__(path, header, events)

    def _open(self) -> IO[bytes]:
        fd, self._given = self._given, None
        if fd is None:
            fd = open_log(self._name, append=bool(self.header.mode & LogFileMode.FILE_MODE_APPEND), call="ControlTrace")
        return open(fd, "r+b", buffering=0)

    def _put(self, at: int, *parts: bytes | memoryview) -> None:
        assert self._file is not None
        left = [memoryview(part) for part in parts if len(part)]
        while left:
            done = os.pwritev(self._file.fileno(), left, at)
            at += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if left:
                left[0] = left[0][done:]

    def _copy_earlier(self) -> int:
        """Bytes of earlier sessions in the file, padded to whole buffers."""
        assert self._file is not None
        return find_append_offset(self._file.fileno(), self._name, self.header.buffer_size, self.header.compressed)

    def _appear(self) -> None:
        assert self._file is not None
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, cpu: int, body: bytes | memoryview, time: int, flags: int = 0, number: int | None = None) -> bool:
        """As `TraceFile.write`. If the next file of a series could not be opened, try again."""
        if self._file is None and not self._ended:
            self.number -= 1
            self._start()
        return super().write(cpu, body, time, flags, number)

    def finish(self, totals: Totals) -> None:
        """Complete the file: the header gets ``totals``."""
        self.header = replace(self.header, end_time=totals.end_time, processors=totals.processors)
        self.events_lost, self.buffers_lost = min(totals.events_lost, _MOST), min(totals.buffers_lost, _MOST)
        self._ended = True
        self.close()


# -- the header: session, machine, clock


_LEAST = BUFFER_HEADER_SIZE + HEADERS[2].size + packed(LOGFILE_HEADER).size + 4  # with two empty names
_SPARE = 256  # bytes for the events of the header buffer
_SECOND = 10_000_000


def session_header(request: SessionRequest, handle: int, clock: Clock, processors: int) -> LogHeader:
    """The header of a log that begins now. Names that do not fit into its buffer are cut."""
    room = (request.buffer_size * 1024 - _LEAST - _SPARE) // 2
    session = request.name[:room]
    return LogHeader(
        buffer_size=request.buffer_size * 1024,
        processors=processors,
        timestamp=clock.now(),
        start_time=clock.filetime(),
        boot_time=_boot_time(),
        clock_type=clock.kind,
        perf_freq=clock.frequency,
        mode=int(request.mode),
        maximum_file_size=request.maximum_file_size,
        session_name=session,
        file_name=request.file[: room - len(session)],
        process_id=os.getpid(),
        thread_id=threading.get_native_id(),
        logger_id=handle,
        cpu_mhz=_cpu_mhz(),
    )


def _cpu_mhz() -> int:
    """MHz of the first processor; 1 if not known, because other readers divide by it."""
    with contextlib.suppress(OSError, ValueError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        return max(1, next((int(float(line.split(":")[1])) for line in lines if line.startswith("cpu MHz")), 1))
    return 1


def _boot_time() -> int:
    """When the machine was started, as FILETIME. The value is the same for all sessions of one boot, and merging relies
    on this.

    The second comes from the kernel. The fraction comes from the boot id, so that machines that start together differ.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open("/proc/stat", encoding="ascii", errors="replace") as lines:
            second = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return FILETIME_EPOCH + second * _SECOND + UUID(file.read().strip()).int % _SECOND
    return filetime() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 100
