"""New trace files from events.

    header = LogHeader(processors=4, start_time=filetime, session_name="lbr")
    with TraceWriter("out.etl", header, compress=True) as writer:
        for event in events:
            writer.add(event)

The events of a processor are added in the order of their time. The file gets its name when the block ends without an
exception.
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
from ..layout import LogFileMode
from ..single_event import Event, encode_event
from .header import LogHeader
from .trace_file import TraceFile, pad_event

__all__ = ["Packer", "TraceWriter"]


@dataclass(slots=True)
class _Open:
    """The buffer of one processor that is being filled."""

    parts: list[bytes] = field(default_factory=list)
    used: int = 0
    time: int = 0
    flags: int = 0
    number: int | None = None
    """Its SequenceNumber, if that was reserved before the buffer was complete."""


class Packer:
    """Cuts the events of each processor into buffers of ``file``.

    Readers order events of equal time on different processors by the SequenceNumbers of their buffers. So the packer
    numbers and ends buffers in a way that gives readers the events in the order in which they were added.
    """

    def __init__(self, file: TraceFile) -> None:
        self.file = file
        self._open: dict[int, _Open] = {}
        self._last: tuple[int, int] | None = None
        """Processor and time of the newest event."""

    def add(self, cpu: int, event: bytes, time: int) -> None:
        """Add one event, padded to 8 bytes."""
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
        """Cut a run of events into parts. The caller adds one part after the other, each by processor (`extend`).

        A new part begins at an event with the same time as the previous event, on another processor.
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
        """Put the next event of ``then`` in a buffer of a higher number than the newest event of ``first``."""
        before, after = self._open[first], self._open.get(then)
        if before.number is None:
            before.number = self.file.next_number()
        if after is not None and after.number is not None and after.number < before.number:
            self._flush(then)

    def extend(self, cpu: int, data: bytes, ends: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Add the events in ``data``, each padded to 8 bytes; ``ends`` are the ends, ``times`` the times of each."""
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
        """Set the flag of a loss before the open buffer of ``cpu`` (BUFFER_FLAG)."""
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
    """Writes events to a trace file, a ring or a series of files, as the mode of ``header`` says (`TraceFile`).

    ``compress`` sets or clears COMPRESSED; ``None`` leaves the header's mode. ``header_events`` go to the header
    buffer: the kernel's hooks 0x0001 to 0x00FF (group masks, partition, build). FormatError if an event cannot be
    written: larger than a buffer, earlier than the previous event of its processor, or earlier than the start of the
    log.
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
            packed = LogFileMode.COMPRESSED_MODE
            header = replace(header, mode=header.mode & ~packed | (packed if compress else 0))
        self.file = TraceFile(path, header, [encode_event(event) for event in header_events])
        self._packer = Packer(self.file)
        self._shared = bool(header.mode & LogFileMode.NO_PER_PROCESSOR_BUFFERING)
        self._last: dict[int, int] = {}

    def add(self, event: Event, **more: Any) -> None:
        """Write ``event``; ``more`` are header fields that `Event` lacks (`encode_event`)."""
        cpu = 0 if self._shared else event.cpu
        before = self._last.get(cpu, self.file.header.timestamp)
        if event.time < before:
            reason = "event is earlier than the previous one on its processor, or than the start of the log"
            raise FormatError(reason, file=self.file.path, field="TimeStamp", value=event.time)
        if event.hook == 0:
            raise FormatError("a log can have only one header", file=self.file.path, field="HookId", value=event.hook)
        self._packer.add(cpu, pad_event(encode_event(event, **more)), event.time)
        self._last[cpu] = event.time

    def close(self) -> None:
        """Write the open buffers and complete the file."""
        try:
            self._packer.flush()
        except BaseException:
            self.file.discard()
            raise
        self.file.close()

    def discard(self) -> None:
        """Remove a file that is not complete."""
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
