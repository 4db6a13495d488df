"""The sinks for the buffers of a session: files, real-time readers, or memory.

=====================================  ==============================================================================
sequential, append, preallocate        one file; what exceeds MaximumFileSize is lost
circular                               one file with the newest MaximumFileSize
newfile                                a series of files
private                                one of these for each writing process, with its id in the name
real time                              `realtime.RealTimeSink`
buffering                              stays in the pool (`Logger`) until a flush or the stop
=====================================  ==============================================================================
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....errors import FormatError, LastbranchError
from ....formats.etl import BUFFER_FLAG
from ...flags import LogFileMode
from ...properties import SessionRequest
from ...status import EtwError, Status
from .log_file import Disk, as_status, check_room, file_limit, open_log

if TYPE_CHECKING:
    from ....formats.etl import LogHeader
    from .session_file import SessionFile, Totals

__all__ = ["FileSink", "Finished", "HeaderEvents"]

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
        from .session_file import appended_at

        assert self._fd is not None
        compressed = bool(self._request.mode & LogFileMode.COMPRESSED_MODE)
        try:
            appended_at(self._fd, path, self._request.buffer_size * 1024, compressed)
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
