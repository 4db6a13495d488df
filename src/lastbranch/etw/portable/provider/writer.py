"""The writing side of a session: events go into the buffers that its daemon provides.

    with connect_writer(socket) as writer:
        writer.write(event)

A writer belongs to one thread, and its events are in time order. It makes no system call for an event, and never waits:
without a buffer the event is lost and counted (except in BLOCKING_MODE).
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import WeakValueDictionary

from ....closing import Closing, on_failure
from ....errors import FormatError
from ....formats.etl import BUFFER_HEADER_SIZE, EVENT_FLAG, HEADERS, LARGEST_EVENT, packed
from ...interface import ClassicHeader, EventDescriptor
from ...status import EtwError, Status
from ..clock import Clock
from ..pool import (
    ANY_PROCESSOR,
    BELL_AT,
    COMMIT_AT,
    DONE,
    EVENT,
    FULL,
    LOST,
    REFUSED,
    RING,
    RING_SIZE,
    Attached,
    Geometry,
    Mapping,
)
from ..protocol import Connection, Kind, pack, unpack

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["NO_ACTIVITY", "Put", "Writer", "connect_writer", "put_classic", "put_for", "refusal"]


_INDEX = 0xFFFFFFFF
_PAUSE = 0.001
_mappings: WeakValueDictionary[tuple[int, int], Mapping] = WeakValueDictionary()
"""Pools that this process has mapped, by device and inode. Threads share them."""


def connect_writer(path: str | os.PathLike[str], processor: int = ANY_PROCESSOR) -> Writer:
    """Attach to the session whose daemon listens at ``path``.

    ``processor`` is the desired ProcessorIndex. If another writer has it, `Writer.cpu` differs. Raises `EtwError` 4201
    if there is no such session, 1450 if it has no room for another writer.
    """
    try:
        connection = Connection.open(os.fspath(path))
    except OSError as error:
        raise EtwError("attach", Status.WMI_INSTANCE_NOT_FOUND, f"no session listens at {path}: {error}") from error
    with on_failure(connection.close):
        body, fds = connection.call(Kind.ATTACH, pack(processor), name="attach")
        return Writer.of_answer(body, fds, connection)


class Writer(Closing):
    """One writer of a session.

    `put_for`, which makes a function for each kind of event, uses the fields that say where the next event goes: ``at``
    is its byte offset in ``memory``, ``limit`` the end of the buffer, ``value`` the commit word, ``word`` its index in
    ``words``. A writer without a buffer has a limit of 0.
    """

    __slots__ = (
        "_bell", "_done", "_geometry", "_mapping", "_number", "_refused", "_slot", "at", "capacity", "clock", "closed",
        "connection", "cpu", "handle", "limit", "lost", "memory", "now", "patience", "value", "word", "words",
    )  # fmt: skip

    def __init__(self, mapping: Mapping, attached: Attached, bell: int, connection: Connection | None = None) -> None:
        geometry = mapping.geometry
        if attached.slot >= geometry.slots:
            raise EtwError("attach", Status.INVALID_DATA, f"slot {attached.slot} of {geometry.slots}")
        self._mapping, self._geometry, self._bell = mapping, geometry, bell
        self._number, self._slot, self._done = attached.slot, geometry.slot(attached.slot), 0
        self.memory, self.words = mapping.memory, mapping.words
        self.connection = connection
        self.handle = geometry.handle
        self.cpu = attached.cpu
        """ProcessorIndex of its buffers."""
        self.clock = Clock.of(geometry.clock)
        self.now = self.clock.ticks()
        """The time in ticks of the session's clock. It never goes back."""
        self.capacity = min(geometry.capacity, LARGEST_EVENT & ~7)
        """Bytes of the largest event, padded to a multiple of 8."""
        self.lost = 0
        """Events lost so far."""
        self.patience = float("inf") if geometry.blocking else 0.0
        """Seconds that a write waits for a buffer before it gives its event up as lost."""
        self._refused = 0
        self.closed = False
        self.at = self.limit = self.value = self.word = 0

    @classmethod
    def of_answer(cls, body: bytes, fds: list[int], connection: Connection | None = None) -> Writer:
        """The writer that an answer to ATTACH describes. It owns ``fds``. Raises `EtwError` 13 for a wrong answer."""
        try:
            described, pool, bell = fds
        except ValueError:
            for fd in fds:
                os.close(fd)
            raise EtwError("attach", Status.INVALID_DATA, f"{len(fds)} descriptors") from None
        try:
            with on_failure(os.close, bell):
                found = os.fstat(pool)
                key = (found.st_dev, found.st_ino)
                mapping = _mappings.get(key)
                if mapping is None:
                    mapping = _mappings[key] = Mapping(pool, Geometry.read(described))
                return cls(mapping, unpack(Attached, body), bell, connection)
        except FormatError as error:
            raise EtwError("attach", Status.INVALID_DATA, str(error)) from error
        finally:
            os.close(described)
            os.close(pool)

    # -- events

    def write(self, event: bytes | bytearray | memoryview) -> bool:
        """Write one event, in its form on disk, padded to a multiple of 8 bytes.

        False if the event is lost (and counted): no buffer is free, or the event does not fit into a buffer.
        """
        size = len(event)
        end = self.at + size
        if end > self.limit:
            if not self.take_buffer_or_lose(size):
                return False
            end = self.at + size
        self.memory[self.at : end] = event
        self.at = end
        self.value += EVENT + size
        self.words[self.word] = self.value
        return True

    def write_many(self, data: bytes | bytearray | memoryview, sizes: NDArray[np.uint32]) -> int:
        """Write the events that ``data`` contains back to back; ``sizes`` uint32 are their padded sizes in bytes.

        Returns how many were written. The others are lost, and counted.
        """
        import numpy as np  # programs that write single events do without this path

        view = memoryview(data).cast("B")
        ends = np.cumsum(sizes, dtype=np.int64)
        total, done, begin, lost = len(ends), 0, 0, self.lost
        while done < total:
            count = int(np.searchsorted(ends, begin + self.limit - self.at, "right"))
            if count > done:
                self._copy(view[begin : int(ends[count - 1])], count - done)
            elif self.take_buffer_or_lose(int(sizes[done])):
                continue
            elif int(sizes[done]) > self.capacity:
                count = done + 1
            else:  # `take_buffer_or_lose` has counted this event; all later events are lost, too
                self.count_lost(total - done - 1)
                break
            done, begin = count, int(ends[count - 1])
        return total - (self.lost - lost)

    def _copy(self, data: memoryview, events: int) -> None:
        end = self.at + len(data)
        self.memory[self.at : end] = data
        self.at = end
        self.value += EVENT * events + len(data)
        self.words[self.word] = self.value

    def count_lost(self, events: int) -> None:
        """Count events as lost that the caller had to drop."""
        self.lost += events
        self.words[self._slot + LOST] = self.lost

    def count_refused(self) -> None:
        """Count a lost event of another thread, which has no slot. One thread at a time may call this."""
        self._refused += 1
        self.words[self._slot + REFUSED] = self._refused

    @property
    def backlog_full(self) -> bool:
        """Whether no buffer gets free because nobody reads a real-time session, or not fast enough."""
        return bool(self.words[FULL])

    # -- buffers

    def take_buffer_or_lose(self, size: int) -> bool:
        """Take a buffer with room for an event of ``size`` bytes; where all are full, count the event as lost."""
        if size > self.capacity or size % 8:
            self.count_lost(1)
            return False
        self._finish()
        if not self._next() and not (self.patience and self._wait()):
            if not self.closed:
                self.count_lost(1)
            return False
        return True

    def _finish(self) -> None:
        """Give back the writer's buffer, if any, and ring the doorbell if the daemon has asked for a ring."""
        if not self.limit:
            return
        self.at = self.limit = 0
        self._done += 1
        if self._geometry.kept:
            self.words[self._commit_word(self._own())] = 0  # before DONE: see `pool`
        self.words[self._slot + DONE] = self._done
        if self._done >= self.words[self._slot + BELL_AT]:
            self._ring()

    def _ring(self) -> None:
        try:
            os.eventfd_write(self._bell, 1)
        except OSError:
            return  # it rings already, or the session is gone

    def _next(self) -> bool:
        """Take the next buffer: from the ring, or in buffering mode the oldest one."""
        if self.closed:
            return False
        if self._geometry.kept:
            index = self._own()
            if not self.words[self._slot + RING]:
                return False
        else:
            number, index = divmod(self.words[self._slot + RING + self._done % RING_SIZE], EVENT)
            if number != self._done + 1 & _INDEX or index >= self._geometry.buffers:
                return False
        start = self._geometry.buffer(index)
        self.at, self.limit = start + BUFFER_HEADER_SIZE, start + self._geometry.buffer_size
        self.value, self.word = 0, self._commit_word(index)
        return True

    def _own(self) -> int:
        """In buffering mode, the buffer that is the next one: the oldest of this writer's own."""
        return self._number * self._geometry.kept + self._done % self._geometry.kept

    def _commit_word(self, index: int) -> int:
        return (self._geometry.buffer(index) + COMMIT_AT) // 8

    def _wait(self) -> bool:
        """Wait for a buffer, until patience is over, only a reader could free one, or the session ends."""
        end = time.monotonic() + self.patience
        self._ring()
        poll = select.poll()
        if self.connection is not None:
            poll.register(self.connection.fileno(), select.POLLIN)
        while not self.closed and not poll.poll(0):
            if self._next():
                return True
            if self.backlog_full or time.monotonic() > end:
                break
            time.sleep(_PAUSE)
        return False

    # -- the end

    def close(self) -> None:
        """Give back the buffer and hang up. No other thread may be in `write`."""
        if self.closed:
            return
        self.closed = True
        self._finish()
        os.close(self._bell)
        if self.connection is not None:
            self.connection.close()

    def abandon(self) -> None:
        """In a child by fork: close the descriptors, and touch nothing else of this writer, which is the parent's."""
        self.closed = True
        self.at = self.limit = 0
        os.close(self._bell)
        if self.connection is not None:
            self.connection.close()


# -- events of providers: a function for each kind of event packs it straight into the pool
#
# It prepares once what all events of a descriptor have in common in a thread. An event then costs one
# `Struct.pack_into`, which also writes the padding, and one store of the commit word.


Put = Callable[..., int]
"""(data, tail = `NO_ACTIVITY`) -> status of EventWrite. It waits in BLOCKING_MODE only."""

NO_ACTIVITY = bytes(24)
"""The end of EVENT_HEADER: ProcessorTime and ActivityId."""
_EVENT_HEADER64, _FULL_HEADER64 = 19, 20
_HEADER = HEADERS[_EVENT_HEADER64].size
_FULL = packed(HEADERS[_FULL_HEADER64].fields)
_DESCRIPTOR = struct.Struct("<HBBBBHQ")
_MARKER = 0xC0
_FLAGS = 0x40  # EVENT_HEADER_FLAG_64_BIT_HEADER
_MOST_KEPT = 4096
_ENDLESS = 1 << 48


class _Packers(dict[int, tuple[Any, int, int, int]]):
    """Bytes of payload -> pack_into of header and payload, size of the event, its padded size, its commit step."""

    def __missing__(self, payload: int) -> tuple[Any, int, int, int]:
        size = _HEADER + payload
        whole = size + 7 & ~7
        if whole > LARGEST_EVENT:
            return None, size, _ENDLESS, 0  # fits into no buffer, so it is never packed
        # EVENT_HEADER in five pieces: Size to EventProperty, both ids, TimeStamp, ProviderId and descriptor, the tail.
        pack = struct.Struct(f"<QQQ32s24s{payload}s{whole - size}x").pack_into
        made = pack, size, whole, EVENT + whole
        if len(self) < _MOST_KEPT:
            self[payload] = made
        return made


_PACKERS = _Packers()


def put_for(writer: Writer, provider: UUID, descriptor: EventDescriptor, items: bytes = b"") -> Put:
    """A function that writes events of ``descriptor`` from this thread. ``items`` are their encoded extended items."""
    flags = _FLAGS | (EVENT_FLAG.EXTENDED_INFO if items else 0)
    first = _EVENT_HEADER64 << 16 | _MARKER << 24 | flags << 32
    ids = threading.get_native_id() | os.getpid() << 32
    kind = provider.bytes_le + _DESCRIPTOR.pack(*descriptor)
    memory, words, now, packers = writer.memory, writer.words, writer.now, _PACKERS

    def put(data: bytes, tail: bytes = NO_ACTIVITY) -> int:
        pack, size, whole, step = packers[len(data)]
        at = writer.at
        end = at + whole
        if end > writer.limit:
            if not writer.take_buffer_or_lose(whole):
                return refusal(writer, size)
            at = writer.at
            end = at + whole
        pack(memory, at, first + size, ids, now(), kind, tail, data)
        writer.at = end
        writer.value = value = writer.value + step
        words[writer.word] = value
        return 0

    if not items:
        return put
    return lambda data, tail=NO_ACTIVITY: put(items + data, tail)


def refusal(writer: Writer, size: int) -> int:
    """The status for an event of ``size`` bytes that could not be written."""
    if size > LARGEST_EVENT:
        return Status.ARITHMETIC_OVERFLOW
    if size > writer.capacity:
        return Status.MORE_DATA
    return Status.LOG_FILE_FULL if writer.backlog_full else Status.NOT_ENOUGH_MEMORY


def put_classic(writer: Writer, header: ClassicHeader, data: bytes) -> int:
    """Write a classic event (EVENT_TRACE_HEADER). Returns the status of TraceEvent."""
    size = _FULL.size + len(data)
    if size > LARGEST_EVENT:
        writer.count_lost(1)
        return Status.ARITHMETIC_OVERFLOW
    head = _FULL.pack(
        size,
        _FULL_HEADER64,
        _MARKER,
        header.type,
        header.level,
        header.version,
        threading.get_native_id(),
        os.getpid(),
        writer.now(),
        header.guid.bytes_le,
        0,
    )
    return 0 if writer.write(head + data + bytes(-size % 8)) else refusal(writer, size)
