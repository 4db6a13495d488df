"""One ETW event with its header decoded, and its bytes: what `dump`, `rewrite` and the writers work on.

Bulk readers work on columns (`events.columns`) and never make these.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import FormatError
from ..numbers import misfit
from .layout import (
    EVENT_FLAG,
    EXTENDED_ITEM,
    EXTENDED_TYPE,
    HEADERS,
    LARGEST_EVENT,
    MESSAGE,
    MESSAGE_HEAD,
    Fields,
    message_fields,
    packed,
)

__all__ = [
    "Event", "LARGEST_EVENT", "encode_event", "encode_header", "encode_items",
]  # fmt: skip


@dataclass(slots=True)
class Event:
    """An event of a trace log, whatever header it came with.

    ``hook`` is the kernel's hook id (group << 8 | type), -1 for events of user providers. ``provider`` holds the 16
    bytes of the provider's GUID as they stand in the file (for kernel events the GUID of the hook's group). ``pid`` and
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
    """PMC counter values that ride in the header."""
    offset: int = 0
    """Where the event stands in its (decompressed) buffer, and ``buffer`` where that stands in the file."""
    buffer: int = 0
    payload: bytes = b""


# -- Events to bytes, from their declared fields: the other direction of `events.columns.events_of`
#
# What `Event` has no room for (KernelTime, UserTime, ProcessorTime, EventProperty, instance ids, the
# sequence number of a message) is given by its name in the specification, and 0 without.


_ITEM = packed(EXTENDED_ITEM)
_MOST_COUNTERS = 7  # bits 8 to 10 of Version
_PEBS = 0x8000


def encode_header(kind: int, values: Mapping[str, Any]) -> bytes:
    """The event header of type ``kind`` (a key of `layout.HEADERS`, or `layout.MESSAGE`) from its fields by name.

    FormatError for an unknown kind, a missing field and a value out of range.
    """
    try:
        if kind == MESSAGE:
            return _encode_message(values)
        declared = HEADERS[kind].fields
    except KeyError as missing:
        raise FormatError("unknown event header", field="HeaderType", value=kind) from missing
    return _header_of(HEADERS[kind].name, declared, values, "HeaderType", kind)


def _header_of(name: str, declared: Fields, values: Mapping[str, Any], field: str, value: int) -> bytes:
    missing = [one for one, _ in declared if one not in values]
    if missing:
        raise FormatError(f"{name} header cannot be written: {', '.join(missing)} missing", field=field, value=value)
    wanted = [values[one] for one, _ in declared]
    try:
        return packed(declared).pack(*wanted)
    except struct.error as error:
        reason = f"{name} header cannot be written: {misfit(declared, wanted)}"
        raise FormatError(reason, field=field, value=value) from error


def _encode_message(values: Mapping[str, Any]) -> bytes:
    options = values["OptionFlags"]
    return _header_of("MESSAGE", (*MESSAGE_HEAD, *message_fields(options)), values, "OptionFlags", options)


def encode_items(items: Iterable[tuple[int, bytes]]) -> bytes:
    """Extended items (type, data), each filled up to a multiple of 8 bytes and linked to the next one."""
    listed = list(items)
    made = []
    for number, (kind, data) in enumerate(listed, 1):
        size = _ITEM.size + (len(data) + 7 & ~7)
        if size > LARGEST_EVENT:
            raise FormatError("extended item is too long", field="DataSize", value=len(data))
        made.append(_ITEM.pack(size, kind, number < len(listed), len(data)) + data + bytes(-len(data) % 8))
    return b"".join(made)


def encode_event(event: Event, **more: Any) -> bytes:
    """The bytes of ``event``, not filled up to 8; ``more`` are header fields that `Event` lacks, by name.

    The counter values stand where the kind of header has them: behind a kernel header, counted in its Version, else in
    an extended item. FormatError for what a header cannot hold.
    """
    kind = event.header
    if kind not in HEADERS and kind != MESSAGE:
        raise FormatError("unknown event header", field="HeaderType", value=kind)
    values, between = _header_values(event)
    values.update(more)
    size = len(encode_header(kind, values)) + len(between) + len(event.payload)
    if size > LARGEST_EVENT:
        raise FormatError(f"an event has at most {LARGEST_EVENT} bytes", field="Size", value=size)
    values["Size"] = size
    return encode_header(kind, values) + between + event.payload


def _header_values(event: Event) -> tuple[dict[str, Any], bytes]:
    """Header fields, and what stands between header and payload."""
    own: dict[str, Any] = {
        "Size": 0, "HeaderType": event.header, "MarkerFlags": 0xC0, "Reserved": 0,
        "ThreadId": event.tid, "ProcessId": event.pid, "TimeStamp": event.time, "Version": event.version,
        "Type": event.opcode, "Level": event.level, "Guid": event.provider, "ProviderId": event.provider,
        "Id": event.id, "Channel": event.channel, "Opcode": event.opcode, "Task": event.task,
        "Keyword": event.keyword, "ActivityId": event.activity, "Flags": event.flags & ~EVENT_FLAG.EXTENDED_INFO,
        "EventProperty": 0, "ProcessorTime": 0, "KernelTime": 0, "UserTime": 0,
        "InstanceId": 0, "ParentInstanceId": 0, "ParentGuid": bytes(16),
    }  # fmt: skip
    if event.header == MESSAGE:
        own |= {"MarkerFlags": MESSAGE, "MessageNumber": event.id, "OptionFlags": event.flags}
        own |= {"SequenceNumber": 0, "ComponentId": 0, "MessageGuid": event.provider}
        return own, b""
    kind = HEADERS[event.header]
    if kind.is_system:
        if event.hook < 0:
            raise FormatError("a kernel event header needs a hook id", field="HookId", value=event.hook)
        own |= {"Type": event.hook & 0xFF, "Group": event.hook >> 8}
        index = [data for item, data in event.extended if item == EXTENDED_TYPE.PEBS_INDEX]
        if len(event.counters) > _MOST_COUNTERS or len(index) > 1 or len(index) < len(event.extended):
            raise FormatError("more than a kernel event header has room for", field="Version", value=event.version)
        own["Version"] |= len(event.counters) << 8 | bool(index) * _PEBS
        return own, struct.pack(f"<{len(event.counters)}Q", *event.counters) + b"".join(index)
    if not kind.name.startswith("EVENT_HEADER"):
        return own, b""
    items = list(event.extended)
    if event.counters and not any(item == EXTENDED_TYPE.PMC_COUNTERS for item, _ in items):
        items.append((EXTENDED_TYPE.PMC_COUNTERS, struct.pack(f"<{len(event.counters)}Q", *event.counters)))
    own["Flags"] |= EVENT_FLAG.EXTENDED_INFO if items else 0
    return own, encode_items(items)
