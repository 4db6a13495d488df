"""The sinks for the buffers of a session: files, real-time readers, or memory.

=====================================  ==============================================================================
sequential, append, preallocate        one file; what exceeds MaximumFileSize is lost
circular                               one file with the newest MaximumFileSize
newfile                                a series of files
private                                one of these for each writing process, with its id in the name
real time                              `RealTimeSink`
buffering                              stays in the pool (`Logger`) until a flush or the stop
=====================================  ==============================================================================
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....errors import FormatError, LastbranchError
from ....formats.etl import BUFFER_FLAG, BUFFER_HEADER, BUFFER_HEADER_SIZE, BUFFER_TYPE, offset_of
from ....formats.etl.container.buffer_header import BufferHeader
from ...flags import LogFileMode
from ...properties import SessionRequest
from ...status import EtwError, Status
from .log_file import Disk, as_status, check_room, file_limit, open_log

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ....formats.etl import LogHeader
    from .session_file import SessionFile, Totals

__all__ = ["BACKLOG", "FileSink", "Finished", "HeaderEvents", "RealTimeSink"]


HeaderEvents = Callable[[int], Iterable[bytes]]
"""Time of a header buffer -> the encoded events that go into it."""


_LATE = LogFileMode.PRIVATE_LOGGER_MODE | LogFileMode.DELAY_OPEN_FILE_MODE


@dataclass(slots=True)
class Finished:
    """A finished buffer: ``body`` (valid during the call) holds ``events`` events of processor index ``cpu``.

    ``time`` is the session's clock when they were taken, ``lost`` whether the writer lost events before them, ``owner``
    the process that wrote them.
    """

    cpu: int
    body: memoryview
    events: int
    time: int
    lost: bool = False
    owner: int = 0

    @property
    def flags(self) -> int:
        """BufferFlag."""
        return BUFFER_FLAG.EVENTS_LOST if self.lost else 0


class FileSink:
    """The log file of a session, or its files. The constructor opens and locks the file; `begin` writes the header.

    Raises `EtwError` as `open_log` and `check_room`.
    """

    def __init__(self, request: SessionRequest, disk: Disk, call: str = "StartTrace") -> None:
        self._request = request
        self._files: dict[int, SessionFile] = {}
        self._fd: int | None = None
        self._opened: list[str] = []
        self.written = 0
        """Buffers in all files, headers included."""
        limit = file_limit(request)
        if limit and limit < 2 * request.buffer_size * 1024:
            raise EtwError(call, Status.INVALID_PARAMETER, f"a file of {limit} bytes has no room for a buffer")
        check_room(request.file, limit, disk, call)
        if request.mode & _LATE:
            return
        first = request.file.replace("%d", "1") if request.mode & LogFileMode.FILE_MODE_NEWFILE else request.file
        self._fd = open_log(first, append=bool(request.mode & LogFileMode.FILE_MODE_APPEND), call=call)
        if request.mode & LogFileMode.FILE_MODE_APPEND:
            self._check_appended(first, call)
        else:
            self._opened.append(first)
        if request.mode & LogFileMode.FILE_MODE_PREALLOCATE:
            try:
                os.posix_fallocate(self._fd, 0, limit)
            except OSError as error:
                self.abandon()
                raise as_status(call, first, error) from error

    def _check_appended(self, path: str, call: str) -> None:
        from .session_file import find_append_offset

        assert self._fd is not None
        compressed = bool(self._request.mode & LogFileMode.COMPRESSED_MODE)
        try:
            find_append_offset(self._fd, path, self._request.buffer_size * 1024, compressed)
        except FormatError as error:
            self.abandon()
            raise EtwError(call, Status.INVALID_PARAMETER, str(error)) from error

    def begin(self, header: LogHeader, events: Iterable[bytes] = ()) -> None:
        """Write the header buffer with the encoded ``events``. If that fails, each buffer tries again."""
        self._header, self._events = header, tuple(events)
        if not self._request.mode & _LATE:
            with contextlib.suppress(OSError, LastbranchError):
                self._file(0)

    def _file(self, owner: int) -> SessionFile:
        """The file of process ``owner``, 0 if all write to one file."""
        from .session_file import SessionFile

        if owner not in self._files:
            path, header = self._request.file, self._header
            if owner:
                path = f"{path}_{owner}"
                header = replace(header, process_id=owner, file_name=f"{header.file_name}_{owner}")
            fd, self._fd = self._fd, None
            self._files[owner] = SessionFile(path, header, fd, self._events)
            self.written += 1
        return self._files[owner]

    def write(self, buffer: Finished) -> bool:
        """False if it cannot be written: the file or the disk is full, or the (next) file cannot be opened."""
        try:
            file = self._file(buffer.owner if self._request.mode & LogFileMode.PRIVATE_LOGGER_MODE else 0)
            before = file.number
            done = file.write(buffer.cpu, buffer.body, buffer.time, buffer.flags)
        except (OSError, LastbranchError):
            return False
        self.written += done + file.number - before
        return done

    def next_file(self) -> None:
        """Begin the next file of a series. Raises `EtwError` 87 without a series, `OSError` if it cannot be opened."""
        if not self._request.mode & LogFileMode.FILE_MODE_NEWFILE:
            raise EtwError("ControlTrace", Status.INVALID_PARAMETER, "the session has no series of files")
        for file in self._files.values():
            file.next_file()
            self.written += 1

    def finish(self, totals: Totals) -> None:
        """Complete the headers with ``totals``, and close the files. `OSError` if a disk refuses."""
        try:
            for file in self._files.values():
                file.finish(totals)
        finally:
            self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def abandon(self) -> None:
        """Remove the files: the start has failed."""
        self._close()
        for file in self._files.values():
            file.discard()
        for path in self._opened:
            with contextlib.suppress(OSError):
                os.unlink(path)


# -- Real time: a bounded backlog of buffers, and the readers
#
# A reader gets the content of a file: the header buffer, then buffers in their form on disk, each cut to its used
# bytes, with this length as BufferSize. A buffer of type EMPTY_MARKER says that all events before its TimeStamp have
# been sent, so that the reader can sort events of several processors. `streams.LiveStream` is the reader's end.
#
# Nobody waits for a reader: sends never block, and buffers that readers have not taken stay in the backlog. While the
# backlog is `full`, its owner should add no more: `Logger` leaves events in the pool, until writers run out of buffers.
# Events beyond a reserve are refused and counted.


BACKLOG = 64 << 20
"""Most bytes of buffers that wait for readers. The documents say that there is a limit; the number is our choice."""
STILL = 0.5
"""Seconds after which a reader that takes nothing counts as stalled. Our choice."""

_SIZE, _OFFSET, _FLAGS = struct.Struct("<I"), struct.Struct("<I"), struct.Struct("<H")
_OFFSET_AT, _FLAGS_AT = offset_of(BUFFER_HEADER, "Offset"), offset_of(BUFFER_HEADER, "BufferFlag")


@dataclass(slots=True)
class _Frame:
    """One buffer of the backlog with ``events`` events, none in a marker."""

    data: bytes
    events: int
    marker: bool = False


@dataclass(slots=True)
class _Reader:
    """A connection: the number of its next frame, and the rest of the current one."""

    sock: socket.socket
    next: int
    rest: memoryview
    greeted: bool = False
    """Whether it has got the header buffer."""


class RealTimeSink:
    """Sends the buffers of one session to its readers. ``header`` is the header buffer that begins a file.

    The backlog is full at ``limit`` bytes, and accepts ``reserve`` more. The first reader gets the backlog before newer
    buffers; a reader that connects while others read begins with what none of them has got. ``buffers_lost`` and
    ``events_lost`` count what was refused and, after `stop`, what nobody read.
    """

    def __init__(self, header: ReadableBuffer, limit: int = BACKLOG, reserve: int = 0) -> None:
        self.buffers_lost = self.events_lost = 0
        self._header = _cut(header)
        self._limit, self._reserve = limit, reserve
        self._held = 0
        """Bytes of the backlog."""
        self._frames: deque[_Frame] = deque()
        self._first = 0
        """Number of the first frame of the backlog."""
        self._read = 0
        """Number of the first frame that no reader has got."""
        self._refused = False
        self._readers: list[_Reader] = []

    @property
    def full(self) -> bool:
        """Whether the backlog has reached its limit."""
        return self._held >= self._limit

    def add_reader(self, sock: socket.socket) -> None:
        """Send to the connected stream socket ``sock`` from now on. The sink owns it then."""
        sock.setblocking(False)
        self._readers.append(_Reader(sock, self._read, memoryview(self._header)))
        self.poll()

    def write(self, buffer: ReadableBuffer, events: int) -> bool:
        """Copy a finished buffer that holds ``events`` events. False if it is refused and counted as lost."""
        data = _cut(buffer)
        if self._held + len(data) > self._limit + self._reserve:
            self.buffers_lost += 1
            self.events_lost += events
            self._refused = True
            return False
        if self._refused:
            self._refused = False
            (flags,) = _FLAGS.unpack_from(data, _FLAGS_AT)
            data = data[:_FLAGS_AT] + _FLAGS.pack(flags | BUFFER_FLAG.BUFFER_LOST) + data[_FLAGS_AT + 2 :]
        self._append(_Frame(data, events))
        return True

    def flushed(self, time: int) -> None:
        """Add a marker: all events before ``time`` (ticks of the session's clock) have been passed to `write`."""
        if self._frames and self._frames[-1].marker and not self._is_begun(self._first + len(self._frames) - 1):
            self._held -= len(self._frames.pop().data)
        self._append(_Frame(_marker(time), 0, marker=True))

    def poll(self) -> bool:
        """Send what the readers accept at once. Returns whether more waits for them."""
        for reader in list(self._readers):
            try:
                self._send(reader)
            except OSError:  # this reader has gone; the next reader gets the frame that was not delivered completely
                self._readers.remove(reader)
                reader.sock.close()
        self._forget()
        return any(self._waits(reader) for reader in self._readers)

    def stop(self, seconds: float) -> None:
        """Send what is left, and wait at most ``seconds`` for readers. Frames that no reader got are lost.

        Readers that take nothing for `STILL` seconds are not waited for.
        """
        until = time.monotonic() + seconds
        while self.poll() and (left := until - time.monotonic()) > 0:
            waiting = [reader.sock for reader in self._readers if self._waits(reader)]
            if not select.select([], waiting, [], min(left, STILL))[1]:
                break
        lost = [f for n, f in enumerate(self._frames, self._first) if n >= self._read and not f.marker]
        self.buffers_lost += len(lost)
        self.events_lost += sum(frame.events for frame in lost)
        for reader in self._readers:
            with contextlib.suppress(OSError):
                reader.sock.shutdown(socket.SHUT_WR)
            reader.sock.close()
        self._readers.clear()
        self._frames.clear()
        self._held = 0

    def _append(self, frame: _Frame) -> None:
        self._frames.append(frame)
        self._held += len(frame.data)

    def _is_begun(self, number: int) -> bool:
        """Whether a reader has got a part of the frame."""
        return any(r.next > number or (r.next == number and r.rest) for r in self._readers) or number < self._read

    def _waits(self, reader: _Reader) -> bool:
        return bool(reader.rest) or reader.next < self._first + len(self._frames)

    def _send(self, reader: _Reader) -> None:
        try:
            while self._waits(reader):
                if not reader.rest:
                    reader.rest = memoryview(self._frames[reader.next - self._first].data)
                reader.rest = reader.rest[reader.sock.send(reader.rest) :]
                if reader.rest:
                    continue
                reader.next += reader.greeted
                reader.greeted = True
                self._read = max(self._read, reader.next)
        except BlockingIOError:
            return

    def _forget(self) -> None:
        """Drop the frames that every reader has got; without readers, the frames that any reader got."""
        until = min((reader.next for reader in self._readers), default=self._read)
        while self._first < until:
            self._held -= len(self._frames.popleft().data)
            self._first += 1


def _cut(buffer: ReadableBuffer) -> bytes:
    """A copy of the used part of a buffer, padded to a multiple of 8 bytes, with that BufferSize."""
    whole = memoryview(buffer).cast("B")
    (used,) = _OFFSET.unpack_from(whole, _OFFSET_AT)
    size = min(max(used, BUFFER_HEADER_SIZE) + 7 & ~7, len(whole))
    return _SIZE.pack(size) + bytes(whole[_SIZE.size : size])


def _marker(time: int) -> bytes:
    flags = BUFFER_FLAG.FLUSH_MARKER | BUFFER_FLAG.PROC_INDEX
    return BufferHeader(used=0, time=time, flags=flags, kind=BUFFER_TYPE.EMPTY_MARKER).encode()
