"""A file that a recorder appends records to: it is whole, and counts what it lacks, where no disk has room for more.

It goes on in a second file where the first one's disk is full: the bytes of the two, one after the other, are the
recording. Both end with a whole record. Where the second one is full, too, it gives up its last few kilobytes of
samples, whose room the records that are not samples, the count of what is lost and the end of the file then have: a
disk that is full takes no new byte, but what is written may be overwritten.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from ...model import FULL
from .layout import RECORD

__all__ = ["RecordFile", "Sink"]

_ROOM = 1 << 14
"""Bytes for what follows the last sample on a full disk."""
_LOSS = 128
"""Those of them that nothing has but the record of the loss."""
_BUFFERED = 1 << 16
_SIZE_AT, _SIZE = 6, struct.Struct("=H")
_SAMPLE = struct.pack("=I", RECORD["SAMPLE"])


class Sink(Protocol):
    """What a recorder writes to."""

    @property
    def closed(self) -> bool: ...
    def write(self, records: bytes, /) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class RecordFile:
    """Appends to ``descriptor``, which it closes, and then to a new file ``rest``, if one is named; ``went_on`` is
    called before the first byte of that. What is written first is the header, all other writes are whole records.

    `OSError`: it cannot be written for another reason than a full disk, or there is not even room for the header.
    """

    def __init__(self, descriptor: int, rest: str = "", went_on: Callable[[], None] = lambda: None) -> None:
        self._first = self._headed = self._descriptor = descriptor
        self._rest, self._went_on = rest, went_on
        self._begun = self._elsewhere = False
        self._buffer = bytearray()
        self._recent = deque[bytes]()
        """The last `_ROOM` bytes of records in this piece, or a little more."""
        self._before = self._at = 0
        self._room = 0
        self.full = False
        """Whether no more samples are written."""
        self.dropped = 0
        """Records that were lost, because there was no room for them."""
        self.closed = False

    @property
    def size(self) -> int:
        """Bytes of both pieces, once they are flushed."""
        return self._before + self._at

    def write(self, records: bytes, /) -> int:
        """Append. What is appended is in the file after `flush`."""
        if not self._begun:
            done, error = self._put(records)
            if error is not None:
                self._back_by(done)
                if not self._goes_on(error):
                    raise error
                return self.write(records)
            self._begun, self._headed = True, self._descriptor
            return len(records)
        self._buffer += records
        if len(self._buffer) >= _BUFFERED:
            self.flush()
        return len(records)

    def flush(self) -> None:
        """Let others read what was written."""
        if not self._buffer:
            return
        records, self._buffer = bytes(self._buffer), bytearray()
        if self.full:
            self._fill(records)
            return
        done, error = self._put(records)
        if error is None:
            self._remember(records)
            return
        whole = _start_of_record(records, done)
        self._back_by(done - whole)
        if self._goes_on(error):
            self._buffer[:] = records[whole:]
            self.flush()
        else:
            self._remember(records[:whole])
            self._cut(records[whole:], done - whole)

    def hold(self, size: int) -> None:
        """Make sure that `last` has room for ``size`` bytes, if samples can make it."""
        self.flush()
        if self.full:
            return
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            if os.pwrite(self._descriptor, bytes(size), self._at) == size:
                return
        except OSError as found:
            if found.errno not in FULL:
                raise
            error = found
        if self._goes_on(error):
            self.hold(size)
        else:
            self._cut(b"", 0)

    def last(self, data: bytes) -> bool:
        """Append what no full disk keeps out, if it fits into its room: whether it does."""
        self.flush()
        if self.full and len(data) > self._room:
            return False
        done, error = self._put(data)
        if self.full:
            self._room -= done
        if error is not None:
            self._back_by(done)
        return error is None

    def overwrite(self, at: int, data: bytes) -> None:
        """Change the header."""
        os.pwrite(self._headed, data, at)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._begun:  # else it is the recorder's, in another process
                self.flush()
                os.ftruncate(self._descriptor, self._at)
        finally:
            self.closed = True
            for one in {self._first, self._descriptor}:
                os.close(one)

    # -- places

    def _put(self, data: bytes) -> tuple[int, OSError | None]:
        """Write to the end of this piece: how many bytes, and why not more."""
        done = 0
        while done < len(data):
            if self._elsewhere and not self.full and not self._may_be_joined(len(data) - done):
                return done, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            try:
                now = os.write(self._descriptor, data[done:])
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return done, error
            done, self._at = done + now, self._at + now
        return done, None

    def _may_be_joined(self, more: int) -> bool:
        """Whether the disk of the rest has room for both pieces as one file, beside the rest with ``more`` bytes."""
        disk = os.fstatvfs(self._descriptor)
        return disk.f_bavail * disk.f_frsize >= more + self._before + self._at + more + 2 * _ROOM

    def _goes_on(self, error: OSError) -> bool:
        """Go on in the rest, if there is room: not where the file is as large as one may be."""
        if self._elsewhere or not self._rest or error.errno == errno.EFBIG:
            return False
        try:
            rest = os.open(self._rest, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        first, at = self._descriptor, self._at
        self._descriptor, self._before, self._at = rest, at, 0
        if not self._may_be_joined(_ROOM):
            os.close(rest)
            os.unlink(self._rest)
            self._descriptor, self._before, self._at = first, 0, at
            return False
        os.ftruncate(first, at)
        self._elsewhere = True
        self._recent.clear()
        self._went_on()
        return True

    def _back_by(self, size: int) -> None:
        self._at -= size
        os.lseek(self._descriptor, self._at, os.SEEK_SET)

    # -- full

    def _remember(self, records: bytes) -> None:
        self._recent.append(records)
        while sum(map(len, self._recent)) - len(self._recent[0]) >= _ROOM:
            self._recent.popleft()

    def _cut(self, unwritten: bytes, spare: int) -> None:
        """Give up the last samples. ``unwritten`` are the records that follow; ``spare`` bytes of room are theirs."""
        there = b"".join(self._recent)
        start = _start_of_record(there, max(0, len(there) - _ROOM))
        self._back_by(len(there) - start)
        self.full, self._room = True, len(there) - start + spare
        if self._elsewhere:
            self._room = max(self._room, _ROOM)  # which was left for it
        self._recent.clear()
        self._fill(there[start:] + unwritten)

    def _fill(self, records: bytes) -> None:
        """Write what is no sample, as far as there is room."""
        kept = list[bytes]()
        for one in _records_of(records):
            if one[:4] != _SAMPLE and len(one) <= self._room - _LOSS:
                kept.append(one)
                self._room -= len(one)
            else:
                self.dropped += 1
        done, error = self._put(b"".join(kept))
        if error is not None:  # a file system that has no room where bytes were
            self._back_by(done)
            self.dropped += len(kept)


def _start_of_record(records: bytes, most: int) -> int:
    """Where the last record begins that begins in the first ``most`` bytes, or ends with them."""
    at = 0
    while at + 8 <= len(records) and at + (size := _size_of(records, at)) <= most and size:
        at += size
    return at


def _records_of(records: bytes) -> Iterator[bytes]:
    at = 0
    while at + 8 <= len(records) and (size := _size_of(records, at)):
        yield records[at : at + size]
        at += size


def _size_of(records: bytes, at: int) -> int:
    (size,) = _SIZE.unpack_from(records, at + _SIZE_AT)
    return int(size)
