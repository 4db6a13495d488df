"""An ETW event with its header decoded, and its bytes: the object that `dump`, `edit_records` and the writers work on.

Bulk readers work on columns (`events.columns`) and never make these objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import FormatError
from .layout import (
    EVENT_FLAG,
    EVENT_HEADERS,
    EXTENDED_ITEM,
    EXTENDED_TYPE,
    HEADERS,
    LARGEST_EVENT,
    MESSAGE,
    PEBS_INDEX,
    Fields,
    message_header,
    pack_fields,
    packed,
)

__all__ = ["Event", "encode_event", "encode_header", "encode_items", "join_event"]


@dataclass(slots=True)
class Event:
    """An event of a trace log, with any header.

    ``hook`` is the kernel's hook id (group << 8 | type), -1 for events of user providers. ``provider`` holds the
    provider's GUID as 16 bytes of the file (for kernel events the GUID of the hook's group). ``pid`` and
    ``tid`` are -1 where the header has none. ``time`` is in ticks of the session's clock. ``opcode`` is the
    Type of classic and kernel events, the Opcode of manifest events; ``id`` is 0 for classic ones.
    """

    header: int
    """Header type: 1 to 4, 10, 11, 16 to 21 (the third byte of the event)."""
    pointer_size: int
    time: int
    pid: int
    tid: int
    cpu: int
    hook: int
    provider: bytes
    id: int
    version: int
    opcode: int
    level: int = 0
    task: int = 0
    channel: int = 0
    keyword: int = 0
    flags: int = 0
    """Flags of an EVENT_HEADER, 0 for others."""
    activity: bytes = bytes(16)
    extended: list[tuple[int, bytes]] = field(default_factory=list)
    """Extended data items of an EVENT_HEADER: (type, data), in file order."""
    counters: tuple[int, ...] = ()
    """PMC counter values of the header."""
    offset: int = 0
    """Position in its (decompressed) buffer; ``buffer`` is the file offset of that."""
    buffer: int = 0
    payload: bytes = b""


# -- Events to bytes, from their declared fields: the inverse of `events.columns.events_of`
#
# Header fields that `Event` lacks (KernelTime, UserTime, ProcessorTime, EventProperty, instance ids, the sequence
# number of a message) are passed by their names in the specification; they default to 0.


_ITEM = packed(EXTENDED_ITEM)
_MOST_COUNTERS = 7  # bits 8 to 10 of Version


def encode_header(kind: int, values: Mapping[str, Any]) -> bytes:
    """The event header of type ``kind`` (a key of `layout.HEADERS`, or `layout.MESSAGE`) from its fields by name.

    FormatError for an unknown kind, a missing field and a value out of range.
    """
    name, declared = _declaration_of(kind, values)
    try:
        return pack_fields(declared, values)
    except ValueError as error:
        reason = f"{name} header cannot be written: {error}"
        raise FormatError(reason, field="HeaderType", value=kind) from error


def _declaration_of(kind: int, values: Mapping[str, Any]) -> tuple[str, Fields]:
    """Name and fields of a header."""
    if kind == MESSAGE:
        return "MESSAGE", message_header(values.get("OptionFlags", 0))
    if kind not in HEADERS:
        raise FormatError("unknown event header", field="HeaderType", value=kind)
    return HEADERS[kind].name, HEADERS[kind].fields


def join_event(kind: int, values: Mapping[str, Any], between: bytes, payload: bytes) -> bytes:
    """The bytes of an event: its header, with its Size, what is ``between`` that and the payload, and the payload.

    FormatError for what a header cannot hold.
    """
    size = packed(_declaration_of(kind, values)[1]).size + len(between) + len(payload)
    if size > LARGEST_EVENT:
        raise FormatError(f"an event has at most {LARGEST_EVENT} bytes", field="Size", value=size)
    return encode_header(kind, {**values, "Size": size}) + between + payload


def encode_items(items: Iterable[tuple[int, bytes]]) -> bytes:
    """Extended items (type, data), each padded to a multiple of 8 bytes and linked to the next one."""
    listed = list(items)
    made = []
    for number, (kind, data) in enumerate(listed, 1):
        size = _ITEM.size + (len(data) + 7 & ~7)
        if size > LARGEST_EVENT:
            raise FormatError("extended item is too long", field="DataSize", value=len(data))
        made.append(_ITEM.pack(size, kind, number < len(listed), len(data)) + data + bytes(-len(data) % 8))
    return b"".join(made)


def encode_event(event: Event, **more: Any) -> bytes:
    """The bytes of ``event``, not padded to 8; ``more`` are header fields that `Event` lacks, by name.

    The header type decides the place of counter values: after a kernel header, counted in its Version, else in an
    extended item. FormatError for what a header cannot hold.
    """
    values, between = _header_values(event)
    return join_event(event.header, values | more, between, event.payload)


def _header_values(event: Event) -> tuple[dict[str, Any], bytes]:
    """Header fields, and the bytes between header and payload."""
    own: dict[str, Any] = {
        "HeaderType": event.header,
        "MarkerFlags": 0xC0,
        "Reserved": 0,
        "ThreadId": event.tid,
        "ProcessId": event.pid,
        "TimeStamp": event.time,
        "Version": event.version,
        "Type": event.opcode,
        "Level": event.level,
        "Guid": event.provider,
        "ProviderId": event.provider,
        "Id": event.id,
        "Channel": event.channel,
        "Opcode": event.opcode,
        "Task": event.task,
        "Keyword": event.keyword,
        "ActivityId": event.activity,
        "Flags": event.flags & ~EVENT_FLAG.EXTENDED_INFO,
        "EventProperty": 0,
        "ProcessorTime": 0,
        "KernelTime": 0,
        "UserTime": 0,
        "InstanceId": 0,
        "ParentInstanceId": 0,
        "ParentGuid": bytes(16),
    }
    counters = struct.pack(f"<{len(event.counters)}Q", *event.counters)
    if event.header == MESSAGE:
        own |= {"MarkerFlags": MESSAGE, "MessageNumber": event.id, "OptionFlags": event.flags}
        own |= {"SequenceNumber": 0, "ComponentId": 0, "MessageGuid": event.provider}
    elif event.header in HEADERS and HEADERS[event.header].is_system:
        if event.hook < 0:
            raise FormatError("a kernel event header needs a hook id", field="HookId", value=event.hook)
        own |= {"Type": event.hook & 0xFF, "Group": event.hook >> 8}
        index = [data for item, data in event.extended if item == EXTENDED_TYPE.PEBS_INDEX]
        if len(event.counters) > _MOST_COUNTERS or len(index) > 1 or len(index) < len(event.extended):
            raise FormatError("more than fits in a kernel event header", field="Version", value=event.version)
        own["Version"] |= len(event.counters) << 8 | bool(index) * PEBS_INDEX
        return own, counters + b"".join(index)
    elif event.header in EVENT_HEADERS:
        items = list(event.extended)
        if counters and not any(item == EXTENDED_TYPE.PMC_COUNTERS for item, _ in items):
            items.append((EXTENDED_TYPE.PMC_COUNTERS, counters))
        own["Flags"] |= EVENT_FLAG.EXTENDED_INFO if items else 0
        return own, encode_items(items)
    return own, b""
