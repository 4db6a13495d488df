"""New trace files from events.

    header = log_header(processors=4, start_time=filetime, session_name="lbr")
    with TraceWriter("out.etl", header, compress=True) as writer:
        for event in events:
            writer.add(event)

The events of a processor come in the order of their time. The file appears when the block ends without an exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import FormatError
from ..event import Event, encode_event
from ..layout import LOG_FILE_MODE, TIME_ZONE_SIZE
from .header import LogHeader, TimeZone
from .trace_file import TraceFile, aligned

__all__ = ["Packer", "TraceWriter", "log_header"]


_UTC = TimeZone(0, "", 0, "", 0, bytes(TIME_ZONE_SIZE))
_TIMER_RESOLUTION = 156_250  # 100 ns: 64 Hz
_HEADER_HOOK = 0


def log_header(
    *, buffer_size: int = 1 << 16, processors: int = 1, timestamp: int = 0, start_time: int = 0, end_time: int = 0,
    boot_time: int = 0, clock_type: int = 1, frequency: int = 10_000_000, cpu_mhz: int = 0,
    mode: int = LOG_FILE_MODE.SEQUENTIAL, maximum_file_size: int = 0, pointer_size: int = 8, build: int = 19_045,
    session_name: str = "", file_name: str = "", process_id: int = 0, thread_id: int = 0, logger_id: int = 1,
    time_zone: TimeZone = _UTC,
) -> LogHeader:  # fmt: skip
    """The header of a new log. ``timestamp`` is the session's clock at ``start_time``; FILETIMEs are in UTC.

    ``clock_type`` is 1 for a performance counter of ``frequency`` Hz, 2 for system time (100 ns), 3 for cycles of
    ``cpu_mhz``. ``maximum_file_size`` is in MB, or in KB if ``mode`` has `trace_file.USE_KBYTES`.
    """
    return LogHeader(
        offset=0, stride=buffer_size, logger_id=logger_id, state=3, timestamp=timestamp, thread_id=thread_id,
        process_id=process_id, buffer_size=buffer_size, major=10, minor=0, sub_version=1, sub_minor=5,
        provider_version=build, processors=processors, end_time=end_time, timer_resolution=_TIMER_RESOLUTION,
        maximum_file_size=maximum_file_size, mode=mode, buffers_written=0, start_buffers=1, pointer_size=pointer_size,
        events_lost=0, cpu_mhz=cpu_mhz, logger_name_word=0, file_name_word=0, time_zone=time_zone, padding=0,
        boot_time=boot_time, perf_freq=frequency, start_time=start_time, clock_type=clock_type, buffers_lost=0,
        session_name=session_name, file_name=file_name,
    )  # fmt: skip


@dataclass(slots=True)
class _Open:
    """The buffer of one processor that is being filled."""

    parts: list[bytes] = field(default_factory=list)
    used: int = 0
    time: int = 0
    flags: int = 0
    number: int | None = None
    """Its SequenceNumber, where others need to know it before it is complete."""


class Packer:
    """Cuts the events of each processor into buffers of ``file``.

    Events of equal time come in the order of the SequenceNumbers of their buffers, which is how readers order those of
    different processors: numbers are given and buffers ended so that this is the order in which the events were added.
    """

    def __init__(self, file: TraceFile) -> None:
        self.file = file
        self._open: dict[int, _Open] = {}
        self._last: tuple[int, int] | None = None
        """Processor and time of the newest event."""

    def add(self, cpu: int, event: bytes, time: int) -> None:
        """One event, filled up to 8 bytes."""
        if len(event) > self.file.capacity:
            raise FormatError("event larger than a buffer", file=self.file.path, field="Size", value=len(event))
        if self._last is not None and self._last[1] == time and self._last[0] != cpu:
            self._follow(self._last[0], cpu)
        self._last = cpu, time
        current = self._open.setdefault(cpu, _Open())
        if current.used + len(event) > self.file.capacity:
            current = self._flush(cpu)
        current.parts.append(event)
        current.used += len(event)
        current.time = time

    def turns(self, cpu: NDArray[Any], time: NDArray[np.int64]) -> Iterator[slice]:
        """Parts of a run of events that are added one part after the other, each processor's events of it together.

        Where an event has the time of the one before it, which is another processor's, the next part begins.
        """
        if not len(cpu):
            return
        tied = np.flatnonzero((time[1:] == time[:-1]) & (cpu[1:] != cpu[:-1])) + 1
        if self._last is not None and self._last[1] == time[0] and self._last[0] != cpu[0]:
            self._follow(self._last[0], int(cpu[0]))
        begin = 0
        for end in (*tied.tolist(), len(cpu)):
            if begin:
                self._follow(int(cpu[begin - 1]), int(cpu[begin]))
            yield slice(begin, end)
            begin = end
        self._last = int(cpu[-1]), int(time[-1])

    def _follow(self, first: int, then: int) -> None:
        """Have the next event of ``then`` in a buffer of a higher number than the newest event of ``first``."""
        before, behind = self._open[first], self._open.get(then)
        if before.number is None:
            before.number = self.file.next_number()
        if behind is not None and behind.number is not None and behind.number < before.number:
            self._flush(then)

    def extend(self, cpu: int, data: bytes, ends: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Events side by side in ``data``, each filled up to 8 bytes and ending at ``ends``."""
        begin = done = 0
        while done < len(ends):
            current = self._open.setdefault(cpu, _Open())
            count = int(np.searchsorted(ends, begin + self.file.capacity - current.used, "right"))
            if count > done:
                end = int(ends[count - 1])
                current.parts.append(data[begin:end])
                current.used += end - begin
                current.time = int(times[count - 1])
                begin, done = end, count
            elif current.used:
                self._flush(cpu)
            else:
                size = int(ends[done]) - begin
                raise FormatError("event larger than a buffer", file=self.file.path, field="Size", value=size)

    def mark(self, cpu: int, flags: int) -> None:
        """Have the open buffer of ``cpu`` say that something was lost before it (BUFFER_FLAG)."""
        self._open.setdefault(cpu, _Open()).flags |= flags

    def _flush(self, cpu: int) -> _Open:
        """Write the buffer of ``cpu`` and begin the next one."""
        ended, self._open[cpu] = self._open[cpu], _Open()
        self.file.write(cpu, b"".join(ended.parts), ended.time, ended.flags, ended.number)
        return self._open[cpu]

    def flush(self) -> None:
        """Write the open buffers, the one whose last event is oldest first."""
        for cpu in sorted(self._open, key=lambda cpu: (self._open[cpu].time, cpu)):
            if self._open[cpu].parts:
                self._flush(cpu)


class TraceWriter:
    """Writes events to a trace file, or to a ring or a series of them: what ``header`` says, see `TraceFile`.

    ``compress`` sets or clears COMPRESSED, else the header's mode decides. ``header_events`` go to the header buffer
    (group masks, partition, build): the kernel's hooks 0x0001 to 0x00FF. FormatError where an event cannot be written:
    larger than a buffer, earlier than the one before it on its processor, or earlier than the log's begin.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: LogHeader,
        *,
        compress: bool | None = None,
        header_events: Iterable[Event] = (),
    ) -> None:
        if compress is not None:
            packed = LOG_FILE_MODE.COMPRESSED
            header = replace(header, mode=header.mode & ~packed | (packed if compress else 0))
        self.file = TraceFile(path, header, [encode_event(event) for event in header_events])
        self._packer = Packer(self.file)
        self._shared = bool(header.mode & LOG_FILE_MODE.NO_PER_PROCESSOR_BUFFERING)
        self._last: dict[int, int] = {}

    def add(self, event: Event, **more: Any) -> None:
        """Write ``event``; ``more`` are header fields that `Event` lacks (`encode_event`)."""
        cpu = 0 if self._shared else event.cpu
        before = self._last.get(cpu, self.file.header.timestamp)
        if event.time < before:
            reason = "event is earlier than the one before it on its processor, or than the log"
            raise FormatError(reason, file=self.file.path, field="TimeStamp", value=event.time)
        if event.hook == _HEADER_HOOK:
            raise FormatError("a log has one header", file=self.file.path, field="HookId", value=event.hook)
        self._packer.add(cpu, aligned(encode_event(event, **more)), event.time)
        self._last[cpu] = event.time

    def close(self) -> None:
        """Write what is held and let the file appear."""
        try:
            self._packer.flush()
        except BaseException:
            self.file.discard()
            raise
        self.file.close()

    def discard(self) -> None:
        """Drop everything that is not complete."""
        self.file.discard()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
