"""From the pool to the sinks: events are copied and checked, made into buffers, written, or counted as lost."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from ...formats.etl.container.header import LogHeader, buffer_head
from ...formats.etl.container.trace_file import aligned, header_buffer
from ...formats.etl.layout import BUFFER_HEADER_SIZE, BUFFER_TYPE
from ..flags import ClientContext, LogFileMode
from ..properties import SessionRequest
from .clock import Clock
from .event_times import at_least
from .log_file import open_log
from .log_header import session_header
from .one_stream import OneStream
from .pool import Geometry
from .realtime import RealTimeSink
from .session_file import SessionFile
from .sinks import FileSink, Finished
from .slots import Piece
from .staging import Staging

if TYPE_CHECKING:
    from .logger import HeaderEvents

__all__ = ["Delivery"]

READERS_WAIT = 2.0
"""Seconds that a stop waits for readers to take what is left."""
_LATE = 50
"""A part (1/n) of a second after which no other writer is expected to commit an older event."""
_FLUSHED = 3  # State


class Delivery:
    """The sinks of session ``handle`` as ``request`` has it, and the counts of what reached them.

    The session has ``begun`` at these ticks of its clock, which were this FILETIME; events may have been written since.
    """

    def __init__(
        self, request: SessionRequest, handle: int, clock: Clock, geometry: Geometry, file: FileSink | None,
        processors: int, begun: tuple[int, int], header_events: HeaderEvents,
    ) -> None:  # fmt: skip
        self.written = 0
        """Buffers that a sink took, headers of files included."""
        self.log_buffers_lost = self._live_buffers_lost = self._events_lost = 0
        self._handle, self._clock, self._header_events = handle, clock, header_events
        self._staging = Staging()
        one = bool(request.mode & LogFileMode.NO_PER_PROCESSOR_BUFFERING)
        self._streams: dict[int, OneStream] = {}
        """By process where each has a file of its own, else all are one."""
        self._private = bool(request.mode & LogFileMode.PRIVATE_LOGGER_MODE)
        self._capacity = geometry.capacity
        self.merges = one
        """Whether events of all writers become one stream: then those of unfinished buffers are needed as well."""
        self._processors = 1 if one else processors
        self._sequence = self._in_files = 0
        self._steady = clock.kind == ClientContext.SYSTEM_TIME
        """The clock may go back, and the time of the session stands still then until it has caught up."""
        self._last: dict[int, int] = {}
        """Of such a session, by processor index: the last time of its events."""
        self._promised = 0
        """What a marker said that was later than the clock: nothing before it comes any more."""
        self._file = file
        self._live: RealTimeSink | None = None
        self._only_live = False
        timestamp, start_time = begun
        header = session_header(request, handle, clock, self._processors)
        self._header = replace(header, timestamp=timestamp, start_time=start_time)
        if file is not None:
            file.begin(self._header, self._events(self._header))
        if request.mode & LogFileMode.REAL_TIME_MODE:
            self._go_live(request, self._header)

    def _events(self, header: LogHeader) -> tuple[bytes, ...]:
        """What stands beside ``header`` in its buffer."""
        return tuple(aligned(event) for event in self._header_events(header.timestamp))

    # -- counts

    @property
    def events_lost(self) -> int:
        """Events of buffers that were not delivered: to the file if there is one, else to the readers."""
        return self._events_lost + (self._live.events_lost if self._live and self._only_live else 0)

    @property
    def live_buffers_lost(self) -> int:
        """Buffers that readers could not be given."""
        return self._live_buffers_lost + (self._live.buffers_lost if self._live else 0)

    @property
    def full(self) -> bool:
        """Whether events go to readers alone, and wait for one: no more are to be delivered now."""
        return self._live is not None and self._only_live and self._live.full

    @property
    def buffers_written(self) -> int:
        """Buffers that were written, those with the headers of files included."""
        return self._in_files + self.written + (self._file.written if self._file else 0)

    # -- buffers

    def deliver(self, pieces: list[Piece]) -> None:
        """Bring the events of ``pieces`` to the sinks."""
        now = self._clock.now()
        for stage in self._staging.stages(pieces):
            for i, piece in enumerate(stage.pieces):
                if not stage.good[i]:
                    self._lose(piece.events)
                elif not piece.events:
                    continue
                elif self.merges:
                    self._stream(piece.owner).add(stage, i)
                else:
                    if self._steady:
                        least = max(self._promised, self._last.get(piece.cpu, 0))
                        self._last[piece.cpu] = at_least(least, stage.words, stage.events(i))
                    body = stage.body(i)
                    self._write(Finished(piece.cpu, body, piece.events, now, piece.marked, piece.owner))
                    self._processors = max(self._processors, piece.cpu + 1)
        self._release(now - self._clock.frequency // _LATE, now)

    def _stream(self, owner: int) -> OneStream:
        owner = owner if self._private else 0
        if owner not in self._streams:
            self._streams[owner] = OneStream(self._capacity, owner, steady=self._steady)
        return self._streams[owner]

    def _release(self, before: int | None, now: int) -> None:
        """Write what the streams have: what is older than ``before``, or all."""
        for stream in self._streams.values():
            for buffer in stream.buffers(before, now):
                self._write(buffer)

    def _lose(self, events: int) -> None:
        self._events_lost += events
        self.log_buffers_lost += 1

    def _write(self, buffer: Finished) -> None:
        if self._live is not None:
            self._sequence += 1
            used, kind = len(buffer.body), BUFFER_TYPE.GENERIC
            head = buffer_head(
                used + BUFFER_HEADER_SIZE, buffer.time, self._sequence, buffer.cpu, self._handle, _FLUSHED, used,
                buffer.flags, kind,
            )  # fmt: skip
            taken = self._live.write(head + buffer.body, buffer.events)
            self.written += taken and self._only_live
        if self._file is not None and not self._file.write(buffer):
            self._lose(buffer.events)

    def flush(self, before: int) -> None:
        """Everything that was committed before ``before`` (ticks) has been delivered: let go of what is held back."""
        self._release(None, self._clock.now())
        if self._live is not None:
            last = max([*self._last.values(), *(stream.last for stream in self._streams.values())], default=0)
            if last > self._clock.now():  # the clock was set back: readers would wait until it has caught up
                before = self._promised = last
            self._live.flushed(before)

    def snapshot(self, request: SessionRequest, path: str, pieces: list[Piece], lost: tuple[int, int]) -> None:
        """Write ``pieces``, which stay where they are, as a file of their own; events and buffers were ``lost`` before.
        `EtwError`, `OSError`."""
        begun, kept = self._header, request.mode & (LogFileMode.COMPRESSED_MODE | LogFileMode.BUFFERING_MODE)
        made = replace(request, mode=kept, file=path, maximum_file_size=0)
        header = session_header(made, self._handle, self._clock, self._processors)
        header = replace(header, timestamp=begun.timestamp, start_time=begun.start_time)
        file = SessionFile(path, header, open_log(path, append=False, call="ControlTrace"), self._events(header))
        now, top = self._clock.now(), self._processors
        events_lost, buffers_lost = lost
        for stage in self._staging.stages(pieces):
            for i, piece in enumerate(stage.pieces):
                if not stage.good[i]:
                    events_lost, buffers_lost = events_lost + piece.events, buffers_lost + 1
                elif piece.events:
                    file.write(piece.cpu, stage.body(i), now)
                    top = max(top, piece.cpu + 1)
        file.finish(end_time=self._clock.filetime(), processors=top, events_lost=events_lost, buffers_lost=buffers_lost)

    # -- readers and files

    def add_reader(self, stream: socket.socket) -> None:
        """Send to this socket as well, from now on."""
        if self._live is not None:
            self._live.add_reader(stream)

    def send(self) -> bool:
        """Send to readers what they take at once; whether more waits for one."""
        return self._live is not None and self._live.poll()

    def go_live(self, request: SessionRequest) -> None:
        """Begin to keep buffers for readers."""
        self._go_live(request, session_header(request, self._handle, self._clock, self._processors))

    def _go_live(self, request: SessionRequest, header: LogHeader) -> None:
        plain = replace(header, mode=header.mode & ~LogFileMode.COMPRESSED_MODE)
        self._only_live = self._file is None
        reserve = request.maximum_buffers * request.buffer_size * 1024 if self._only_live else 0
        self._live = RealTimeSink(header_buffer(plain, self._events(plain)), reserve=reserve)

    def end_live(self) -> None:
        """Send no more; what nobody has read is lost."""
        live = self._live
        if live is None:
            return
        live.stop(READERS_WAIT)
        self._live = None
        self._live_buffers_lost += live.buffers_lost
        self._events_lost += live.events_lost if self._only_live else 0

    def next_file(self) -> None:
        """As `FileSink.next_file`."""
        if self._file is not None:
            self._file.next_file()

    def change_file(self, file: FileSink | None, request: SessionRequest, lost: tuple[int, int]) -> None:
        """Complete the file, which has ``lost`` events and buffers, and go on with another one or none."""
        self.close_file(lost)
        if file is not None:
            header = session_header(request, self._handle, self._clock, self._processors)
            file.begin(header, self._events(header))
        self._file = file

    def close_file(self, lost: tuple[int, int]) -> None:
        """Complete the file, which has ``lost`` events and buffers. A disk that refuses keeps the first header."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(OSError):
            file.finish(
                end_time=self._clock.filetime(), processors=self._processors, events_lost=lost[0], buffers_lost=lost[1]
            )  # fmt: skip
        self._in_files += file.written
