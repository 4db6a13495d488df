"""How a request becomes a session: the adjustments that the documents let the system make, as pure functions.

Source of each rule: the page of EVENT_TRACE_PROPERTIES_V2, by the member that it adjusts. Where the page says only "a
limit that ETW determines", the limit is ours and named here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .flags import ClientContext, LogFileMode
from .modes import normalised
from .properties import SessionRequest

__all__ = ["BUFFER_KB", "DEFAULT_BUFFER_KB", "MILLISECONDS", "Host", "adjusted", "flush_seconds", "real_flush_timer"]

BUFFER_KB = (4, 16384)
"""Smallest and largest BufferSize, KB."""
DEFAULT_BUFFER_KB = 64
"""For a BufferSize of 0: what the page recommends at most. Our choice."""
SPARE_BUFFERS = 20
"""For a MaximumBuffers of 0: so many more than the minimum, as a value "appropriate" for it. Our choice."""
MEMORY_SHARE = 4
"""A pool takes at most this part (1/n) of the machine's memory. Our choice."""
MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class Host:
    """What adjustments depend on: logical processors, bytes of memory, block size of the log file's disk in bytes."""

    processors: int
    memory: int
    block: int = 4096


def adjusted(request: SessionRequest, host: Host) -> SessionRequest:
    """``request`` with the sizes, counts, timer, mode and clock that its session has."""
    mode = normalised(request.mode, bool(request.file))
    size = _buffer_size(request, host)
    most = max(2, host.memory // MEMORY_SHARE // (size * 1024))
    one_stream = mode & LogFileMode.NO_PER_PROCESSOR_BUFFERING
    least = min(2 if one_stream else 2 * host.processors, most)
    minimum = min(max(request.minimum_buffers, least), most)
    maximum = min(max(request.maximum_buffers or minimum + SPARE_BUFFERS, minimum), most)
    return replace(
        request,
        mode=mode,
        clock=request.clock or ClientContext.QPC,
        buffer_size=size,
        minimum_buffers=minimum,
        maximum_buffers=minimum if mode & LogFileMode.BUFFERING_MODE else maximum,
        flush_timer=real_flush_timer(request.flush_timer, mode),
    )


def _buffer_size(request: SessionRequest, host: Host) -> int:
    """KB, a multiple of the disk's blocks where events go to a file."""
    smallest, largest = BUFFER_KB
    size = min(max(request.buffer_size or DEFAULT_BUFFER_KB, smallest), largest)
    block = -(-host.block // 1024) if request.file else 1
    return min(-(-size // block) * block, largest // block * block or largest)


def real_flush_timer(timer: int, mode: LogFileMode) -> int:
    """In the unit of the mode: 0 stays off for files, is one second in real time, and is unused in buffering mode."""
    if mode & LogFileMode.REAL_TIME_MODE and not timer:
        return MILLISECONDS if mode & LogFileMode.USE_MS_FLUSH_TIMER else 1
    return timer


def flush_seconds(request: SessionRequest) -> float | None:
    """Seconds between flushes by time of an adjusted request, ``None`` where there are none."""
    if request.mode & LogFileMode.BUFFERING_MODE or not request.flush_timer:
        return None
    return request.flush_timer / (MILLISECONDS if request.mode & LogFileMode.USE_MS_FLUSH_TIMER else 1)
