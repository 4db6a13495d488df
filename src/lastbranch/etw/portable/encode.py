"""Events of providers into buffers: a function made for each kind of event, that packs straight into the pool.

What is the same for all events of a descriptor in a thread is put together once. An event then costs one
`Struct.pack_into`, which also clears what fills it up to 8 bytes, and one store of the commit word.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from ...formats.etl.layout import EVENT_FLAG, HEADERS, LARGEST_EVENT, packed
from ..kernel import ClassicHeader, EventDescriptor
from ..status import Status
from .pool import EVENT
from .writer import Writer

__all__ = ["NO_ACTIVITY", "Put", "put_classic", "put_for", "refusal"]

Put = Callable[..., int]
"""(data, tail = `NO_ACTIVITY`) -> status of EventWrite; never waits but in BLOCKING_MODE."""

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
    """By bytes of payload: pack_into of header and payload, size of the event, filled up to 8, step of a commit."""

    def __missing__(self, payload: int) -> tuple[Any, int, int, int]:
        size = _HEADER + payload
        whole = size + 7 & ~7
        if whole > LARGEST_EVENT:
            return None, size, _ENDLESS, 0  # it fits into no buffer, whatever its size, so that nobody packs it
        # EVENT_HEADER in five pieces: Size to EventProperty, both ids, TimeStamp, ProviderId and descriptor, the tail.
        pack = struct.Struct(f"<QQQ32s24s{payload}s{whole - size}x").pack_into
        made = pack, size, whole, EVENT + whole
        if len(self) < _MOST_KEPT:
            self[payload] = made
        return made


_PACKERS = _Packers()


def put_for(writer: Writer, provider: UUID, descriptor: EventDescriptor, items: bytes = b"") -> Put:
    """Events of ``descriptor`` that this thread writes by ``writer``; ``items`` are their extended items, encoded."""
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
            if not writer.turn(whole):
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
    """Write a classic event (EVENT_TRACE_HEADER), and return the status of TraceEvent."""
    size = _FULL.size + len(data)
    if size > LARGEST_EVENT:
        writer.count_lost(1)
        return Status.ARITHMETIC_OVERFLOW
    head = _FULL.pack(
        size, _FULL_HEADER64, _MARKER, header.type, header.level, header.version, threading.get_native_id(),
        os.getpid(), writer.now(), header.guid.bytes_le, 0,
    )  # fmt: skip
    return 0 if writer.write(head + data + bytes(-size % 8)) else refusal(writer, size)
