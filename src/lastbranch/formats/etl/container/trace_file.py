"""Writing the buffers of a trace file: header buffer, data buffers, circular files and series of files.

A file gets its name when it is complete (`atomic_output`). Each file of a series (mode NEWFILE) appears when the next
one begins. Rules: WMI_BUFFER_HEADER and TRACE_LOGFILE_HEADER as `layout` declares them, file modes as the documentation
of EVENT_TRACE_PROPERTIES.LogFileMode describes them.
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
from ....model import BytesSource, PartFile, naming
from ..layout import (
    BUFFER_FLAG,
    BUFFER_HEADER,
    BUFFER_HEADER_SIZE,
    BUFFER_STATE,
    BUFFER_TYPE,
    LEAST_BUFFER,
    MAX_BUFFER,
    LogFileMode,
    offset_of,
)
from .buffer_header import BufferHeader
from .compression import compress
from .decompression import XPRESS
from .header import LogHeader, encode_log_header, read_header

__all__ = ["TraceFile", "pad_event", "encode_first_buffer"]


# -- Which headers a trace file can have: sizes of buffers, and file modes that exclude or need something

_M = LogFileMode
_EXCLUSIVE = (  # as documented of LogFileMode
    (
        _M.FILE_MODE_CIRCULAR,
        _M.FILE_MODE_APPEND | _M.FILE_MODE_NEWFILE,
        "a circular file cannot be appended to or be one of a series",
    ),
    (_M.FILE_MODE_NEWFILE, _M.FILE_MODE_PREALLOCATE, "a series of files cannot be preallocated"),
    (_M.FILE_MODE_APPEND, _M.FILE_MODE_NEWFILE, "a series of files cannot be appended to"),
)


def _check_header(header: LogHeader, path: str) -> LogHeader:
    """``header``, with the version that its compression or buffer size needs. FormatError names what is wrong."""
    size, mode, limit = header.buffer_size, header.mode, header.maximum_file_size
    if not LEAST_BUFFER <= size <= MAX_BUFFER or size % 1024:
        reason = f"buffers have {LEAST_BUFFER} to {MAX_BUFFER} bytes in steps of 1024"
        raise FormatError(reason, file=path, field="BufferSize", value=size)
    reasons = [reason for one, other, reason in _EXCLUSIVE if mode & one and mode & other]
    if mode & (_M.FILE_MODE_CIRCULAR | _M.FILE_MODE_PREALLOCATE) and not limit:
        reasons.append("a circular or preallocated file needs a MaximumFileSize")
    if mode & _M.FILE_MODE_NEWFILE and ("%d" not in path or not limit):
        reasons.append("a series of files needs %d in its name and a MaximumFileSize")
    if reasons:
        raise FormatError(reasons[0], file=path, field="LogFileMode", value=mode)
    if header.compressed or size > 1 << 20:
        return replace(header, sub_version=2, sub_minor=0 if header.sub_version != 2 else header.sub_minor)
    return header


# -- A ring of compressed buffers
#
# Compressed buffers differ in size, so a new buffer does not fit in an old buffer's place. New buffers go to the end;
# the old buffers at the front are cut off when the file has become twice as long as allowed.

_CHUNK = 1 << 20


class _Ring:
    """The newest buffers that fit into ``room`` bytes from ``first`` on."""

    def __init__(self, first: int, room: int) -> None:
        self._first, self._room = first, room
        self._sizes: deque[int] = deque()
        self._held = 0

    def add(self, size: int) -> None:
        """Count a buffer that is about to be written to the end and pushes out the oldest buffers."""
        while self._sizes and self._held + size > self._room:
            self._held -= self._sizes.popleft()
        self._sizes.append(size)
        self._held += size

    def is_long(self, end: int) -> bool:
        """Whether a file that ends at ``end`` should be cut."""
        return end - self._first > 2 * self._room

    def cut(self, file: IO[bytes], end: int) -> int:
        """Move the held buffers to the front; by how many bytes they moved."""
        begin = end - self._held
        for at in range(begin, end, _CHUNK):
            file.seek(at)
            data = file.read(min(_CHUNK, end - at))
            file.seek(at - begin + self._first)
            file.write(data)
        return begin - self._first


_SPARE = 512  # room in the small header buffer of a compressed file, and what its size is a multiple of
_FLAGS_AT = offset_of(BUFFER_HEADER, "BufferFlag")
_MOST_PROCESSORS = 1 << 16
_ENOUGH = 1 << 17  # bytes with the whole first event of a file


class TraceFile:
    """A trace file, or a series of files, that takes whole buffers.

    ``header`` has the size of buffers, the clock, the names and the LogFileMode. CIRCULAR keeps the newest
    MaximumFileSize. NEWFILE makes a series of files of that size, with their number for %d in ``path``. Other modes
    make one file, which loses buffers beyond a MaximumFileSize. APPEND adds a session after the existing contents.
    PREALLOCATE reserves MaximumFileSize and frees the unused part at the end. ``events`` are encoded events that
    follow the log file header in the header buffer.

    `close` fills in BuffersWritten, EndTime (if 0) and the losses, and completes the file; `discard` removes it.
    FormatError for a header that no file can have, OSError where it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], header: LogHeader, events: Iterable[bytes] = ()) -> None:
        self.path = os.fspath(path)
        self.header = _check_header(header, self.path)
        self.capacity = header.buffer_size - BUFFER_HEADER_SIZE
        """Bytes for events in one buffer."""
        self.events_lost, self.buffers_lost = header.events_lost, header.buffers_lost
        self.number = 0
        """Of the file in its series, from 1."""
        self._events = [pad_event(event) for event in events]
        self._sequence = 0
        self._file: IO[bytes] | None = None
        self._start()

    # -- files

    def _start(self) -> None:
        self.number += 1
        self._name = self.path
        if self.header.mode & _M.FILE_MODE_NEWFILE:
            self._name = self.path.replace("%d", str(self.number))
        self._written, self._end, self._last_time, self._last_at = 0, 0, self.header.timestamp, 0
        self._first = len(encode_first_buffer(self.header, self._events, self.path))
        limit = self.header.maximum_file_size << (10 if self.header.mode & _M.USE_KBYTES_FOR_SIZE else 20)
        self._limit = limit or None
        if limit and limit < self._first + self.header.buffer_size:
            reason = "no room for one buffer after the header buffer"
            raise FormatError(reason, file=self.path, field="MaximumFileSize", value=limit)
        self._file = self._open()
        try:
            self._base = self._copy_contents() if self.header.mode & _M.FILE_MODE_APPEND else 0
            if self.header.mode & _M.FILE_MODE_PREALLOCATE:
                self._reserve(limit)
            self._put(self._base, encode_first_buffer(self.header, self._events, self.path))
        except BaseException:
            self.discard()
            raise
        self._end = self._base + self._first
        ring = limit and self.header.compressed and self.header.mode & _M.FILE_MODE_CIRCULAR
        self._ring = _Ring(self._end, limit - self._first) if ring else None

    def _open(self) -> IO[bytes]:
        """The next file; `SessionFile` overrides this and `_appear` since its file has its name from the start."""
        self._part = PartFile(self._name)
        return io.BufferedRandom(self._part.file)

    def _appear(self) -> None:
        """Give the complete file its name."""
        assert self._file is not None
        self._file.flush()
        self._part.file.sync()
        self._part.appear()

    def _put(self, at: int, *parts: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.seek(at)
        self._file.writelines(parts)

    def _copy_contents(self) -> int:
        """Copy the existing contents; their bytes, padded to whole buffers."""
        assert self._file is not None
        try:
            with open(self._name, "rb") as before:
                shutil.copyfileobj(before, self._file)
        except FileNotFoundError:
            return 0
        size = self._file.tell()
        if size:
            self._file.seek(0)
            log = read_header(BytesSource(self._file.read(_ENOUGH), self._name))
            same = log.compressed == self.header.compressed and log.buffer_size == self.header.buffer_size
            if not same:
                reason = "a session can be appended only to a log with the same buffer size and compression"
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
        """Fill in what is known now and give the file its name."""
        assert self._file is not None
        if self._ring is not None:
            self._cut(self._ring)
        if self._written:
            self._put(self._last_at + _FLAGS_AT, (self._last_flags | BUFFER_FLAG.FLUSH_MARKER).to_bytes(2, "little"))
        given, header = self.header, self.header
        end = header.end_time
        if not end or header.mode & _M.FILE_MODE_NEWFILE:
            elapsed = max(0, self._last_time - header.timestamp)
            end = header.start_time + (elapsed * 10_000_000 // header.frequency if header.frequency else 0)
        end = max(end, header.start_time, 1)  # 0 would say that the session still runs
        self.header = replace(
            header,
            end_time=end,
            buffers_written=1 + self._written,
            events_lost=self.events_lost,
            buffers_lost=self.buffers_lost,
        )
        self._put(self._base, encode_first_buffer(self.header, self._events, self.path))
        self._file.truncate(self._end)
        self.header = given
        self._appear()
        self._file = None

    def _cut(self, ring: _Ring) -> None:
        assert self._file is not None
        moved = ring.cut(self._file, self._end)
        self._end -= moved
        self._last_at -= moved

    def close(self) -> None:
        """Complete the file, which then gets its name. An OSError leaves an older file of the name untouched."""
        if self._file is not None:
            try:
                self._finish()
            except BaseException:
                self.discard()
                raise

    def discard(self) -> None:
        """Remove a file that is not complete."""
        if self._file is None:
            return
        with suppress(OSError):  # a full disk does not take what is in the buffer either
            self._file.close()
        self._file = None
        self._part.discard()

    # -- buffers

    def next_number(self) -> int:
        """Reserve a SequenceNumber for a buffer that may be written after buffers of higher numbers."""
        self._sequence += 1
        return self._sequence

    def write(self, cpu: int, body: bytes | memoryview, time: int, flags: int = 0, number: int | None = None) -> bool:
        """Write a data buffer of processor ``cpu``: events, each padded to 8 bytes, the last one at ticks ``time``.

        ``number`` is a result of `next_number`, by default the next number. Returns False, and counts the loss, where
        the file has no room for it.
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
        head = BufferHeader(
            size=whole, used=len(body), time=time, sequence=sequence, cpu=cpu, logger_id=own, flags=flags
        ).encode()
        self._put(at, head, stored, b"\xff" * (whole - len(head) - len(stored)))
        self._sequence = max(self._sequence, sequence)
        self._written += 1
        self._last_at, self._last_flags = at, flags
        self._last_time = max(self._last_time, time)
        self._end = max(self._end, at + whole)
        return True

    def _place(self, size: int) -> int | None:
        """The position of the next buffer; None where the file has no room."""
        if self._limit is None:
            return self._end
        if self._ring is not None:
            if self._ring.is_long(self._end):
                self._cut(self._ring)
            self._ring.add(size)
            return self._end
        if self.header.mode & _M.FILE_MODE_CIRCULAR:
            slots = (self._limit - self._first) // size
            return self._base + self._first + self._written % slots * size
        if self._end + size <= self._limit:
            return self._end
        if not self.header.mode & _M.FILE_MODE_NEWFILE:
            return None
        self.next_file()
        return self._end

    def next_file(self) -> None:
        """In a series: complete this file and begin the next."""
        self._finish()
        self._start()


def encode_first_buffer(header: LogHeader, events: Iterable[bytes] = (), path: str | None = None) -> bytes:
    """The first buffer of a file: the log file header, and ``events``, each padded to 8 bytes."""
    body = pad_event(encode_log_header(header)) + b"".join(events)
    least, size, state = BUFFER_HEADER_SIZE + len(body), header.buffer_size, BUFFER_STATE.FLUSH
    if header.compressed:
        size, state = (least + _SPARE) // _SPARE * _SPARE, XPRESS
    if least > size:
        raise FormatError(
            "the events of the header buffer do not fit in it",
            file=path,
            field="Offset",
            value=least,
            hint="choose a larger buffer size",
        )
    flags = BUFFER_FLAG.FLUSH_MARKER | BUFFER_FLAG.PROC_INDEX
    head = BufferHeader(
        size=size, used=len(body), logger_id=header.logger_id, state=state, flags=flags, kind=BUFFER_TYPE.HEADER
    ).encode()
    return (head + body).ljust(size, b"\xff")


def pad_event(event: bytes) -> bytes:
    """``event``, padded to 8 bytes: the next one begins there."""
    return event + bytes(-len(event) % 8)
