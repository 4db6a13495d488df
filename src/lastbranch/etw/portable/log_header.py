"""What the header of a session's log says: session, machine, clock."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING
from uuid import UUID

from ...formats.etl.layout import BUFFER_HEADER_SIZE, HEADERS, LOGFILE_HEADER, packed
from ..properties import SessionRequest
from .clock import FILETIME_EPOCH, Clock, filetime

if TYPE_CHECKING:
    from ...formats.etl.container.header import LogHeader

__all__ = ["session_header"]

_LEAST = BUFFER_HEADER_SIZE + HEADERS[2].size + packed(LOGFILE_HEADER).size + 4  # with two empty names
_SPARE = 256  # bytes for the events of the header buffer
_SECOND = 10_000_000


def session_header(request: SessionRequest, handle: int, clock: Clock, processors: int) -> LogHeader:
    """The header of a log that begins now. Names that are too long for its buffer are cut."""
    from ...formats.etl.container.writer import log_header

    room = (request.buffer_size * 1024 - _LEAST - _SPARE) // 2
    session = request.name[:room]
    return log_header(
        buffer_size=request.buffer_size * 1024, processors=processors, timestamp=clock.now(),
        start_time=clock.filetime(), boot_time=_boot_time(), clock_type=clock.kind, frequency=clock.frequency,
        mode=int(request.mode), maximum_file_size=request.maximum_file_size, session_name=session,
        file_name=request.file[: room - len(session)], process_id=os.getpid(), thread_id=threading.get_native_id(),
        logger_id=handle, cpu_mhz=_cpu_mhz(),
    )  # fmt: skip


def _cpu_mhz() -> int:
    """Of the first processor; 1 where nothing tells: other readers divide by it."""
    with contextlib.suppress(OSError, ValueError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        return max(1, next((int(float(line.split(":")[1])) for line in lines if line.startswith("cpu MHz")), 1))
    return 1


def _boot_time() -> int:
    """When the machine was started, as FILETIME: the same for all sessions of one uptime, by which logs are merged.

    The kernel tells the second; the rest is of the boot's id, so that machines that start together differ.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open("/proc/stat", encoding="ascii", errors="replace") as lines:
            second = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return FILETIME_EPOCH + second * _SECOND + UUID(file.read().strip()).int % _SECOND
    return filetime() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 100
