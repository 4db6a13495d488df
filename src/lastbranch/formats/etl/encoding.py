"""Events and the log file header to bytes, from their declared fields: the other direction of `materialise`, `header`.

Layouts: `layout`. What `Event` has no room for (KernelTime, UserTime, ProcessorTime, EventProperty, instance ids, the
sequence number of a message) is given by its name in the specification, and 0 without.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from ...errors import FormatError
from ..numbers import misfit
from .event import Event
from .header import LogHeader
from .layout import (
    BUFFER_HEADER,
    BUFFER_HEADER_SIZE,
    EVENT_FLAG,
    EXTENDED_ITEM,
    EXTENDED_TYPE,
    HEADERS,
    LARGEST_EVENT,
    LOGFILE_HEADER,
    MESSAGE,
    MESSAGE_FIELDS,
    MESSAGE_FLAG,
    Fields,
    packed,
)  # fmt: skip

__all__ = ["LARGEST_EVENT", "buffer_head", "encode_event", "encode_header", "encode_items", "encode_log_header"]

_HEAD = packed(BUFFER_HEADER)
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
    wanted = [("Size", "H"), ("Reserved", "B"), ("MarkerFlags", "B"), ("MessageNumber", "H"), ("OptionFlags", "H")]
    for flag, field in MESSAGE_FIELDS:
        if options & flag and not (field[0] == "MessageGuid" and options & MESSAGE_FLAG.COMPONENTID):
            wanted.append(field)
    return _header_of("MESSAGE", tuple(wanted), values, "OptionFlags", options)


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


def buffer_head(
    size: int, time: int, sequence: int, cpu: int, logger: int, state: int, used: int, flags: int, kind: int
) -> bytes:
    """WMI_BUFFER_HEADER of a buffer that takes ``size`` bytes in the file and has ``used`` bytes of events."""
    used += BUFFER_HEADER_SIZE
    # SavedOffset is what some readers take for the used length.
    values: dict[str, Any] = {
        "BufferSize": size, "SavedOffset": used, "CurrentOffset": used, "ReferenceCount": 0, "TimeStamp": time,
        "SequenceNumber": sequence, "ClockTypeFrequency": 0, "ProcessorIndex": cpu, "LoggerId": logger, "State": state,
        "Offset": used, "BufferFlag": flags, "BufferType": kind, "Reserved": bytes(16),
    }  # fmt: skip
    return _HEAD.pack(*(values[name] for name, _ in BUFFER_HEADER))


def encode_log_header(header: LogHeader) -> bytes:
    """The event that begins a file: TRACE_LOGFILE_HEADER and the two names behind a SYSTEM header of its pointer size.

    FormatError for values that its fields cannot hold.
    """
    if header.pointer_size not in (4, 8):
        raise FormatError("pointers have 4 or 8 bytes", field="PointerSize", value=header.pointer_size)
    first = [f.name for f in fields(LogHeader)].index("buffer_size")
    names = [f.name for f in fields(LogHeader)][first : first + len(LOGFILE_HEADER)]
    values = [header.time_zone.raw if name == "time_zone" else getattr(header, name) for name in names]
    try:
        payload = packed(LOGFILE_HEADER, header.pointer_size).pack(*values)
    except struct.error as error:
        pointer = "I" if header.pointer_size == 4 else "Q"
        reason = misfit(((name, code.replace("P", pointer)) for name, code in LOGFILE_HEADER), values)
        raise FormatError(f"log file header cannot be written: {reason}", field="TRACE_LOGFILE_HEADER") from error
    payload += b"".join(
        n.encode("utf-16-le", "surrogatepass") + bytes(2) for n in (header.session_name, header.file_name)
    )
    event = Event(
        header.pointer_size // 4, header.pointer_size, header.timestamp, header.process_id, header.thread_id, 0, 0,
        bytes(16), 0, 2, 0, payload=payload,
    )  # fmt: skip
    return encode_event(event)
