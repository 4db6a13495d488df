"""The buffers of a trace file on their way to the disk: header buffer, data buffers, rings and series of files.

A file has its name when it is complete (`model.output`). Of a series of files (mode NEWFILE) each one appears when the
next begins. Rules: WMI_BUFFER_HEADER and TRACE_LOGFILE_HEADER as
`layout` has them, file modes as the documentation of EVENT_TRACE_PROPERTIES.LogFileMode describes them.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import IO

from ....errors import FormatError
from ....model import BytesSource
from ....model.output import PartFile, naming
from ..layout import BUFFER_FLAG, BUFFER_HEADER_SIZE, BUFFER_TYPE, LOG_FILE_MODE
from .compression import XPRESS, compress
from .header import MAX_BUFFER, LogHeader, buffer_head, encode_log_header, read_header

__all__ = ["LEAST_BUFFER", "TraceFile", "USE_KBYTES", "aligned", "header_buffer"]


# -- What a trace file can be: sizes of buffers, and file modes that go together


LEAST_BUFFER = 1024
"""Bytes; sessions have 4 KiB or more, files that were written again have 1 KiB too."""

USE_KBYTES = 0x2000
"""EVENT_TRACE_USE_KBYTES_FOR_SIZE of LogFileMode: MaximumFileSize is in KiB."""

_EXCLUSIVE = (  # as documented of LogFileMode
    (LOG_FILE_MODE.CIRCULAR, LOG_FILE_MODE.APPEND | LOG_FILE_MODE.NEWFILE,
     "a ring cannot be appended to, or be a series"),
    (LOG_FILE_MODE.NEWFILE, LOG_FILE_MODE.PREALLOCATE, "a series of files cannot be preallocated"),
    (LOG_FILE_MODE.APPEND, LOG_FILE_MODE.NEWFILE, "a series of files cannot be appended to"),
)  # fmt: skip


def checked(header: LogHeader, path: str) -> LogHeader:
    """``header``, with the version that its compression or size of buffers needs. FormatError names what is wrong."""
    size, mode = header.buffer_size, header.mode
    if not LEAST_BUFFER <= size <= MAX_BUFFER or size % 1024:
        reason = f"buffers have {LEAST_BUFFER} to {MAX_BUFFER} bytes in steps of 1024"
        raise FormatError(reason, file=path, field="BufferSize", value=size)
    for one, other, reason in _EXCLUSIVE:
        if mode & one and mode & other:
            raise FormatError(reason, file=path, field="LogFileMode", value=mode)
    if mode & (LOG_FILE_MODE.CIRCULAR | LOG_FILE_MODE.PREALLOCATE) and not header.maximum_file_size:
        reason = "a circular or preallocated file needs a MaximumFileSize"
        raise FormatError(reason, file=path, field="LogFileMode", value=mode)
    if mode & LOG_FILE_MODE.NEWFILE and ("%d" not in path or not header.maximum_file_size):
        reason = "a series of files needs %d in its name and a MaximumFileSize"
        raise FormatError(reason, file=path, field="LogFileMode", value=mode)
    if header.compressed or size > 1 << 20:
        return replace(header, sub_version=2, sub_minor=0 if header.sub_version != 2 else header.sub_minor)
    return header


# -- A ring of compressed buffers
#
# They have all sizes, so that none fits where another one was: new ones go to the end, and what is too old is cut off
# at the front when the file has become twice as long as it may.


_CHUNK = 1 << 20


class Ring:
    """The newest buffers that fit into ``room`` bytes from ``first`` on."""

    def __init__(self, first: int, room: int) -> None:
        self._first, self._room = first, room
        self._sizes: deque[int] = deque()
        self._held = 0

    def add(self, size: int) -> None:
        """A buffer that is about to be written to the end; it pushes out the oldest ones."""
        while self._sizes and self._held + size > self._room:
            self._held -= self._sizes.popleft()
        self._sizes.append(size)
        self._held += size

    def is_long(self, end: int) -> bool:
        """Whether the file, which ends at ``end``, is to be cut."""
        return end - self._first > 2 * self._room

    def cut(self, file: IO[bytes], end: int) -> int:
        """Move what is held to the front; by how many bytes it moved."""
        begin = end - self._held
        for at in range(begin, end, _CHUNK):
            file.seek(at)
            data = file.read(min(_CHUNK, end - at))
            file.seek(at - begin + self._first)
            file.write(data)
        return begin - self._first


_FLUSHED = 3  # State
_SPARE = 512  # room in the small header buffer of a compressed file, and what its size is a multiple of
_FLAGS_AT = 0x34
_MOST_PROCESSORS = 1 << 16
_ENOUGH = 1 << 17  # bytes with the whole first event of a file


class TraceFile:
    """A trace file, or a series of them, that takes whole buffers.

    ``header`` says what it is: size of buffers, LogFileMode (CIRCULAR: the newest MaximumFileSize; NEWFILE: a series of
    files of that size, ``path`` with %d for their number; else one file, and what is past a MaximumFileSize is lost;
    APPEND: behind what the file has, as a session of its own; PREALLOCATE: the room of MaximumFileSize is reserved, and
    what is not needed of it given back), COMPRESSED, the clock, the names. ``events`` are the encoded events of the
    header buffer behind the log file header. BuffersWritten, EndTime (if 0) and the losses are filled in when it is
    complete: `close`. Without that nothing stays: `discard`.

    FormatError for a header that no file can have, OSError where it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], header: LogHeader, events: Iterable[bytes] = ()) -> None:
        self.path = os.fspath(path)
        self.header = checked(header, self.path)
        self.capacity = header.buffer_size - BUFFER_HEADER_SIZE
        """Bytes for events in one buffer."""
        self.events_lost, self.buffers_lost = header.events_lost, header.buffers_lost
        self.number = 0
        """Of the file in its series, from 1."""
        self._events = [aligned(event) for event in events]
        self._sequence = 0
        self._file: IO[bytes] | None = None
        self._part: PartFile | None = None
        self._start()

    # -- files

    def _start(self) -> None:
        self.number += 1
        self._name = self.path
        if self.header.mode & LOG_FILE_MODE.NEWFILE:
            self._name = self.path.replace("%d", str(self.number))
        self._written, self._end, self._last_time, self._last_at = 0, 0, self.header.timestamp, 0
        self._first = len(header_buffer(self.header, self._events, self.path))
        limit = self.header.maximum_file_size << (10 if self.header.mode & USE_KBYTES else 20)
        self._limit = limit or None
        if limit and limit < self._first + self.header.buffer_size:
            reason = "no room for one buffer behind the header buffer"
            raise FormatError(reason, file=self.path, field="MaximumFileSize", value=limit)
        self._file = self._open()
        try:
            self._base = self._copied() if self.header.mode & LOG_FILE_MODE.APPEND else 0
            if self.header.mode & LOG_FILE_MODE.PREALLOCATE:
                self._reserve(limit)
            self._put(self._base, header_buffer(self.header, self._events, self.path))
        except BaseException:
            self.discard()
            raise
        self._end = self._base + self._first
        ring = limit and self.header.compressed and self.header.mode & LOG_FILE_MODE.CIRCULAR
        self._ring = Ring(self._end, limit - self._first) if ring else None

    def _open(self) -> IO[bytes]:
        self._part = PartFile(self._name)
        return io.BufferedRandom(self._part.file)

    def _put(self, at: int, *parts: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.seek(at)
        self._file.writelines(parts)

    def _appear(self) -> None:
        """Let the file, which is complete, have its name."""
        assert self._file is not None
        assert self._part is not None
        self._file.flush()
        self._part.file.sync()
        self._part.appear()

    def _copied(self) -> int:
        """Bytes that stand before this session: what the file has already, copied, and filled up to whole buffers."""
        assert self._file is not None
        try:
            with open(self._name, "rb") as before:
                shutil.copyfileobj(before, self._file)
        except FileNotFoundError:
            return 0
        size = self._file.tell()
        if size:
            with open(self._name, "rb") as before:
                log = read_header(BytesSource(before.read(_ENOUGH), self._name))
            same = log.compressed == self.header.compressed and log.buffer_size == self.header.buffer_size
            if not same:
                reason = "a session is appended only to one with buffers of its own size, compressed as they are"
                raise FormatError(reason, file=self.path, field="BufferSize", value=log.buffer_size)
        # One compressed buffer follows the other; others have their places.
        return size if self.header.compressed else size + -size % self.header.buffer_size

    def _reserve(self, size: int) -> None:
        assert self._file is not None
        if hasattr(os, "posix_fallocate"):
            with naming(self._name):
                os.posix_fallocate(self._file.fileno(), 0, size)
        else:
            self._file.truncate(size)

    def _finish(self) -> None:
        """Fill in what is known now, and give the file its name."""
        assert self._file is not None
        if self._ring is not None:
            self._cut(self._ring)
        if self._written:
            self._put(self._last_at + _FLAGS_AT, (self._last_flags | BUFFER_FLAG.FLUSH_MARKER).to_bytes(2, "little"))
        given, header = self.header, self.header
        end = header.end_time
        if not end or header.mode & LOG_FILE_MODE.NEWFILE:
            elapsed = max(0, self._last_time - header.timestamp)
            end = header.start_time + (elapsed * 10_000_000 // header.frequency if header.frequency else 0)
        end = max(end, header.start_time, 1)  # 0 would say that the session still runs
        self.header = replace(
            header, end_time=end, buffers_written=1 + self._written,
            events_lost=self.events_lost, buffers_lost=self.buffers_lost,
        )  # fmt: skip
        self._put(self._base, header_buffer(self.header, self._events, self.path))
        self._file.truncate(self._end)
        self.header = given
        self._appear()
        self._file = None

    def _cut(self, ring: Ring) -> None:
        assert self._file is not None
        moved = ring.cut(self._file, self._end)
        self._end -= moved
        self._last_at -= moved

    def close(self) -> None:
        """Complete the file and let it appear. OSError leaves what was there before as it was."""
        if self._file is not None:
            try:
                self._finish()
            except BaseException:
                self.discard()
                raise

    def discard(self) -> None:
        """Let nothing of a file stay that is not complete."""
        if self._file is None:
            return
        with suppress(OSError):  # a full disk does not take what is in the buffer either
            self._file.close()
        self._file = None
        if self._part is not None:
            self._part.discard()

    # -- buffers

    def next_number(self) -> int:
        """A SequenceNumber for a buffer that will be written later than others of higher numbers."""
        self._sequence += 1
        return self._sequence

    def write(self, cpu: int, body: bytes | memoryview, time: int, flags: int = 0, number: int | None = None) -> bool:
        """One data buffer of processor ``cpu``: events, each filled up to 8 bytes, the last one of ticks ``time``.

        ``number`` is one that `next_number` gave, by default the next one. False if the file has no room for
        it, which is counted.
        """
        if len(body) > self.capacity or not 0 <= cpu < _MOST_PROCESSORS:
            raise FormatError("not a buffer of this file", file=self.path, field="Offset", value=len(body))
        if self._file is None:
            raise ValueError("the trace file is closed")
        flags |= BUFFER_FLAG.PROC_INDEX
        whole, stored = self.header.buffer_size, body
        if self.header.compressed:
            small = compress(body)
            if len(small) < len(body):
                stored, flags = small, flags | BUFFER_FLAG.COMPRESSED
            whole = BUFFER_HEADER_SIZE + len(stored)
        at = self._place(whole)
        if at is None:
            self.buffers_lost += 1
            return False
        own, sequence = self.header.logger_id, self._sequence + 1 if number is None else number
        head = buffer_head(whole, time, sequence, cpu, own, _FLUSHED, len(body), flags, BUFFER_TYPE.GENERIC)
        self._put(at, head, stored, b"\xff" * (whole - len(head) - len(stored)))
        self._sequence = max(self._sequence, sequence)
        self._written += 1
        self._last_at, self._last_flags = at, flags
        self._last_time = max(self._last_time, time)
        self._end = max(self._end, at + whole)
        return True

    def _place(self, size: int) -> int | None:
        """Where the next buffer goes; None if nowhere."""
        if self._limit is None:
            return self._end
        if self._ring is not None:
            if self._ring.is_long(self._end):
                self._cut(self._ring)
            self._ring.add(size)
            return self._end
        if self.header.mode & LOG_FILE_MODE.CIRCULAR:
            slots = (self._limit - self._first) // size
            return self._base + self._first + self._written % slots * size
        if self._end + size <= self._limit:
            return self._end
        if not self.header.mode & LOG_FILE_MODE.NEWFILE:
            return None
        self.next_file()
        return self._end

    def next_file(self) -> None:
        """Of a series: complete this file and begin the next."""
        self._finish()
        self._start()


def header_buffer(header: LogHeader, events: Iterable[bytes] = (), path: str | None = None) -> bytes:
    """The first buffer of a file: the log file header, and ``events``, each filled up to 8 bytes."""
    body = aligned(encode_log_header(header)) + b"".join(events)
    least, size, state = BUFFER_HEADER_SIZE + len(body), header.buffer_size, _FLUSHED
    if header.compressed:
        size, state = (least + _SPARE) // _SPARE * _SPARE, XPRESS
    if least > size:
        raise FormatError(
            "events of the header buffer do not fit in it", file=path, field="Offset", value=least,
            hint="choose a larger buffer size",
        )  # fmt: skip
    flags = BUFFER_FLAG.FLUSH_MARKER | BUFFER_FLAG.PROC_INDEX
    head = buffer_head(size, 0, 0, 0, header.logger_id, state, len(body), flags, BUFFER_TYPE.HEADER)
    return (head + body).ljust(size, b"\xff")


def aligned(event: bytes) -> bytes:
    """``event``, filled up to where the next one can begin."""
    return event + bytes(-len(event) % 8)
