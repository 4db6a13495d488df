"""EVENT_RECORD and EVENT_TRACE structures of the events in a block, and the event in an EVENT_RECORD.

Windows adds to an event at delivery: the GUID of a kernel event's group, bits of Flags for the kind of header, extended
items for data behind other headers (instance ids, counter values), FILETIMEs. Sources: evntcons.h, the pages of
EVENT_HEADER and EVENT_TRACE_HEADER. Our choice for an event without EVENT_HEADER: Size counts one, and EventProperty is
EVENT_HEADER_PROPERTY_LEGACY_EVENTLOG.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from ..formats.etl import (
    EVENT_FLAG,
    EXTENDED_ITEM,
    EXTENDED_TYPE,
    HEADERS,
    MESSAGE,
    MESSAGE_FLAG,
    PEBS_INDEX,
    PMC_COUNTERS,
    Event,
    EventBlock,
    packed,
)
from ..formats.etl.events.columns import EVENT, FULL, IMAGE_LOAD, MESSAGE_FORM, counters_of
from ..formats.etl.kernel.hooks import GROUPS
from .structures import structure

__all__ = ["HeaderFlag", "Structures", "event_of", "event_records", "event_traces"]

EVENT_RECORD, EVENT_TRACE = structure("EVENT_RECORD"), structure("EVENT_TRACE")
_RECORD, _TRACE = np.dtype(EVENT_RECORD), np.dtype(EVENT_TRACE)
_ITEM = structure("EVENT_HEADER_EXTENDED_DATA_ITEM")
_STORED = packed(EXTENDED_ITEM)
_EVENT_HEADER_SIZE, _CLASSIC_SIZE = 0x50, 0x30
_TIMED = (1, 2)
"""Headers with KernelTime and UserTime at 0x18; FULL and EVENT headers have the times elsewhere, others not at all."""
_INSTANCE, _INSTANCE_AT = (11, 21), 0x30
_WIDE = (2, 4, 17, 19, 20, 21)
_LEGACY_EVENTLOG = 4

Ints = NDArray[np.int64]


class HeaderFlag:
    """EVENT_HEADER_FLAG_*: the bits that are set when an event is delivered."""

    EXTENDED_INFO, TRACE_MESSAGE, BITS_32, BITS_64, CLASSIC, PROCESSOR_INDEX = 0x1, 0x8, 0x20, 0x40, 0x100, 0x200


@dataclass(slots=True)
class Structures:
    """Structures of all events of a block, in its order: ``array`` of ctypes structures over the memory ``rows``.

    Pointers in them point into ``block`` and ``items``, which are kept alive here.
    """

    array: Any
    rows: NDArray[Any]
    block: EventBlock
    items: Any = None


def event_records(block: EventBlock, times: Ints, context: int = 0) -> Structures:
    """EVENT_RECORDs of ``block``; ``times`` are their time stamps, ``context`` is UserContext."""
    rows = np.zeros(len(block), _RECORD)
    header = rows["EventHeader"]
    own, message = block.form == EVENT, block.form == MESSAGE_FORM
    classic = ~(own | message)
    header["Size"] = np.where(own, block.size, _EVENT_HEADER_SIZE + block.payload_size)
    wide = np.isin(block.header, _WIDE)
    header["Flags"] = (
        np.where(own, block.options, 0)
        | np.where(wide, HeaderFlag.BITS_64, HeaderFlag.BITS_32)
        | np.where(classic, HeaderFlag.CLASSIC, 0)
        | np.where(message, HeaderFlag.TRACE_MESSAGE, 0)
        | HeaderFlag.PROCESSOR_INDEX
    )
    header["EventProperty"] = np.where(own, block.head >> np.uint64(48), np.where(classic, _LEGACY_EVENTLOG, 0))
    header["ThreadId"], header["ProcessId"], header["TimeStamp"] = block.tid, block.pid, times
    descriptor = header["EventDescriptor"]
    for field, column in _DESCRIPTOR:
        descriptor[field] = getattr(block, column)
    header["ProcessorTime"] = _processor_time(block)
    words = rows.view(np.uint64).reshape(len(block), -1)
    words[:, 3:5] = block.provider
    for n in (8, 9):
        words[:, n] = np.where(own, block.word(n), 0)  # ActivityId
    rows["BufferContext"] = _buffer_context(block)
    rows["UserDataLength"], rows["UserContext"] = block.payload_size, context
    rows["UserData"] = np.where(block.payload_size > 0, _address(block) + block.payload, 0)
    items = _extend(block, rows)
    return Structures((EVENT_RECORD * len(block)).from_buffer(rows), rows, block, items)


def event_traces(block: EventBlock, times: Ints) -> Structures:
    """EVENT_TRACEs of ``block``, for a consumer that does not ask for EVENT_RECORDs."""
    rows = np.zeros(len(block), _TRACE)
    header = rows["Header"]
    header["Size"] = np.minimum(_CLASSIC_SIZE + block.payload_size, 0xFFFF)
    header["Version"] = (
        block.opcode.astype(np.uint32) | block.level.astype(np.uint32) << 8 | block.version.astype(np.uint32) << 16
    )
    header["ThreadId"], header["ProcessId"], header["TimeStamp"] = block.tid, block.pid, times
    header["ProcessorTime"] = _processor_time(block)
    words = rows.view(np.uint64).reshape(len(block), -1)
    words[:, 3:5] = block.provider
    instance = np.flatnonzero(np.isin(block.header, _INSTANCE))
    for n in (6, 7, 8):  # both ids, then ParentGuid
        words[instance, n] = block.words.take(block.at[instance] + n)
    rows["MofLength"] = block.payload_size
    rows["MofData"] = np.where(block.payload_size > 0, _address(block) + block.payload, 0)
    rows["ClientContext"] = np.ascontiguousarray(_buffer_context(block)).view(np.uint32)
    return Structures((EVENT_TRACE * len(block)).from_buffer(rows), rows, block)


_DESCRIPTOR = (
    ("Id", "id"), ("Version", "version"), ("Channel", "channel"), ("Level", "level"), ("Opcode", "opcode"),
    ("Task", "task"), ("Keyword", "keyword"),
)  # fmt: skip


def _address(block: EventBlock) -> int:
    return int(block.raw.ctypes.data)


def _buffer_context(block: EventBlock) -> NDArray[Any]:
    """ETW_BUFFER_CONTEXT: the processor index (also as ProcessorNumber and Alignment) and the session's number."""
    context = np.empty(len(block), _RECORD["BufferContext"])
    index = block.cpu & 0xFFFF
    context["ProcessorNumber"], context["Alignment"] = index & 0xFF, index >> 8
    context["LoggerId"] = block.window.buffers.logger.take(block.buffer)
    return context


def _processor_time(block: EventBlock) -> NDArray[np.uint64]:
    time = np.zeros(len(block), np.uint64)
    for rows, word in ((block.form == EVENT, 7), (block.form == FULL, 5), (np.isin(block.header, _TIMED), 3)):
        which = np.flatnonzero(rows)
        time[which] = block.words.take(block.at[which] + word)
    return time


def _extend(block: EventBlock, rows: NDArray[Any]) -> Any:
    """Point events at their extended data items. Returns the memory of the items."""
    stored = (block.form == EVENT) & ((block.options & EVENT_FLAG.EXTENDED_INFO) != 0)
    has = stored | np.isin(block.header, _INSTANCE) | ((block.packet_version & (PMC_COUNTERS | PEBS_INDEX)) != 0)
    made: list[tuple[int, int, int, int, int]] = []
    first: list[tuple[int, int, int]] = []
    base, raw = _address(block), memoryview(block.raw)  # type: ignore[arg-type]
    for row in np.flatnonzero(has).tolist():
        found = list(_items(block, raw, row))
        first.append((row, len(made), len(found)))
        made += [(0, kind, n < len(found), size, base + at) for n, (kind, at, size) in enumerate(found, 1)]
    items = (_ITEM * len(made))(*made)
    address = ctypes.addressof(items)
    for row, begin, count in first:
        rows["ExtendedDataCount"][row] = count
        rows["ExtendedData"][row] = address + begin * ctypes.sizeof(_ITEM) if count else 0
        rows["EventHeader"]["Flags"][row] |= HeaderFlag.EXTENDED_INFO if count else 0
    return items


def _items(block: EventBlock, raw: memoryview, row: int) -> Iterator[tuple[int, int, int]]:
    """(type, position, size) of the data of each extended item of an event."""
    kind, at, end = int(block.header[row]), int(block.at[row]) * 8, int(block.payload[row])
    if kind in _INSTANCE:
        yield EXTENDED_TYPE.INSTANCE_INFO, at + _INSTANCE_AT, 24  # EVENT_EXTENDED_ITEM_INSTANCE, as the header has it
        return
    at += HEADERS[kind].size
    if block.form[row] != EVENT:
        version = int(block.packet_version[row])
        counters = ((version & PMC_COUNTERS) >> 8) * 8
        if counters and at + counters <= end:
            yield EXTENDED_TYPE.PMC_COUNTERS, at, counters
        if version & PEBS_INDEX and at + counters + 8 <= end:
            yield EXTENDED_TYPE.PEBS_INDEX, at + counters, 8
        return
    while at + _STORED.size <= end:
        size, item, linkage, length = _STORED.unpack_from(raw, at)
        if size < _STORED.size or at + size > end:
            return
        yield item, at + _STORED.size, min(size - _STORED.size, length)
        if not linkage & 1:
            return
        at += size


# -- Events of EVENT_RECORDs


_ON_DELIVERY = HeaderFlag.BITS_32 | HeaderFlag.BITS_64 | HeaderFlag.CLASSIC | HeaderFlag.PROCESSOR_INDEX
_MESSAGE_OPTIONS = MESSAGE_FLAG.GUID | MESSAGE_FLAG.TIMESTAMP | MESSAGE_FLAG.SYSTEMINFO
_HOOKS = {UUID(guid).bytes_le: group << 8 for group, (guid, _) in GROUPS.items()}
_IMAGES, _LOAD = 0x14, 10
_KERNEL, _CLASSIC_KIND, _MANIFEST = {False: 1, True: 2}, {False: 10, True: 20}, {False: 18, True: 19}
"""Header types by whether pointers have 8 bytes."""


def event_of(record: Any) -> Event:
    """A copy of the event in an EVENT_RECORD.

    ``time`` is the record's TimeStamp, ``cpu`` its processor index. The record does not say which header a kernel or
    classic event had: it gets SYSTEM or FULL_HEADER.
    """
    header, described = record.EventHeader, record.EventHeader.EventDescriptor
    wide, classic = bool(header.Flags & HeaderFlag.BITS_64), bool(header.Flags & HeaderFlag.CLASSIC)
    kind, flags, hook = _MANIFEST[wide], header.Flags & ~_ON_DELIVERY, -1
    provider = bytes(header.ProviderId)
    items = (_ITEM * record.ExtendedDataCount).from_address(record.ExtendedData) if record.ExtendedDataCount else ()
    extended = [(item.ExtType, ctypes.string_at(item.DataPtr, item.DataSize)) for item in items]
    counters = counters_of(extended)
    if classic:
        kind, flags = _CLASSIC_KIND[wide], 0
        if provider in _HOOKS:
            kind, hook = _KERNEL[wide], _HOOKS[provider] | described.Opcode
            hook = IMAGE_LOAD if hook == _IMAGES << 8 | _LOAD else hook
            extended = [item for item in extended if item[0] != EXTENDED_TYPE.PMC_COUNTERS]
    elif flags & HeaderFlag.TRACE_MESSAGE:
        kind, flags = MESSAGE, _MESSAGE_OPTIONS
    context = record.BufferContext
    many = header.Flags & HeaderFlag.PROCESSOR_INDEX
    return Event(
        header=kind,
        pointer_size=8 if wide else 4,
        time=header.TimeStamp,
        pid=_as_signed(header.ProcessId),
        tid=_as_signed(header.ThreadId),
        cpu=context.ProcessorNumber | (context.Alignment << 8 if many else 0),
        hook=hook,
        provider=provider,
        id=described.Id,
        version=described.Version,
        opcode=described.Opcode,
        level=described.Level,
        task=described.Task,
        channel=described.Channel,
        keyword=described.Keyword,
        flags=flags,
        activity=bytes(header.ActivityId),
        extended=extended,
        counters=counters,
        payload=ctypes.string_at(record.UserData, record.UserDataLength) if record.UserDataLength else b"",
    )


def _as_signed(value: int) -> int:
    return value - (value >> 31 << 32)
