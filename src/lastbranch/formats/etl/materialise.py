"""From columns to `Event` objects, for those who look at events one by one."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from .columns import EventBlock
from .event import Event
from .layout import (
    EVENT_FLAG,
    EXTENDED_ITEM,
    EXTENDED_TYPE,
    HEADERS,
    MESSAGE,
    MESSAGE_FIELDS,
    MESSAGE_FLAG,
    PEBS_INDEX,
    PMC_COUNTERS,
    packed,
)  # fmt: skip

__all__ = ["CHUNK", "counters_of", "events_of", "extended_items", "header_fields"]

CHUNK = 4096
"""Events that are made at once: an object takes about 1 KB."""

_ITEM = packed(EXTENDED_ITEM)
_EVENT_TYPES = frozenset(t for t, kind in HEADERS.items() if kind.name.startswith("EVENT_HEADER"))
_ACTIVITY_AT, _ITEMS_AT = 0x40, 0x50
_COUNTED = PMC_COUNTERS | PEBS_INDEX


def events_of(block: EventBlock) -> list[Event]:
    """All events of ``block`` as objects, which do not depend on the block any more."""
    memory: Any = memoryview(block.raw)  # type: ignore[arg-type]
    providers = np.ascontiguousarray(block.provider).tobytes()
    at = block.at * 8
    buffers = block.window.buffers
    columns = zip(
        block.header.tolist(), block.pointer_size.tolist(), block.time.tolist(), block.pid.tolist(), block.tid.tolist(),
        block.cpu.tolist(), block.hook.tolist(), range(0, 16 * len(block), 16), block.id.tolist(),
        block.version.tolist(), block.opcode.tolist(), block.level.tolist(), block.task.tolist(),
        block.channel.tolist(), block.keyword.tolist(), block.options.tolist(), block.packet_version.tolist(),
        at.tolist(), (at - block.window.start.take(block.buffer)).tolist(), buffers.offset.take(block.buffer).tolist(),
        block.payload.tolist(), block.payload_size.tolist(),
        strict=True,
    )  # fmt: skip
    events = []
    for (
        header, pointer, time, pid, tid, cpu, hook, guid, id_, version, opcode, level, task, channel, keyword, options,
        packet, place, offset, buffer, payload, length,
    ) in columns:  # fmt: skip
        event = Event(
            header, pointer, time, pid, tid, cpu, hook, providers[guid : guid + 16], id_, version, opcode, level, task,
            channel, keyword, options, offset=offset, buffer=buffer, payload=bytes(memory[payload : payload + length]),
        )  # fmt: skip
        if header in _EVENT_TYPES:
            event.activity = bytes(memory[place + _ACTIVITY_AT : place + _ACTIVITY_AT + 16])
            if options & EVENT_FLAG.EXTENDED_INFO:
                event.extended = extended_items(memory[place + _ITEMS_AT : payload])
                event.counters = counters_of(event.extended)
        elif packet & _COUNTED:
            begin = place + HEADERS[header].size
            values = struct.unpack_from(f"<{(payload - begin) // 8}Q", memory, begin)
            count = (packet & PMC_COUNTERS) >> 8
            event.counters = values[:count]
            event.extended = [(EXTENDED_TYPE.PEBS_INDEX, struct.pack("<Q", value)) for value in values[count:]]
        events.append(event)
    return events


def extended_items(data: bytes | memoryview) -> list[tuple[int, bytes]]:
    """(type, data) of the extended items that begin ``data``, as far as they fit in it."""
    items, at = [], 0
    while at + _ITEM.size <= len(data):
        size, kind, linkage, length = _ITEM.unpack_from(data, at)
        if size < _ITEM.size or at + size > len(data):
            break
        items.append((kind, bytes(data[at + _ITEM.size : at + min(size, _ITEM.size + length)])))
        if not linkage & 1:
            break
        at += size
    return items


def counters_of(items: list[tuple[int, bytes]]) -> tuple[int, ...]:
    """The PMC counter values among extended items."""
    data = next((data for kind, data in items if kind == EXTENDED_TYPE.PMC_COUNTERS), b"")
    return struct.unpack_from(f"<{len(data) // 8}Q", data)


def header_fields(block: EventBlock, i: int) -> dict[str, Any]:
    """All header fields of event ``i`` by their names in the specification, those that `Event` has no room for, too."""
    at, kind = int(block.at[i]) * 8, int(block.header[i])
    if kind == MESSAGE:
        return _message_fields(block.raw[at : at + int(block.header_size[i])].tobytes())
    fields = HEADERS[kind].fields
    values = packed(fields).unpack_from(block.raw[at : at + HEADERS[kind].size].tobytes())
    return {name: value for (name, _), value in zip(fields, values, strict=True)}


def _message_fields(data: bytes) -> dict[str, Any]:
    names = ("Size", "Reserved", "MarkerFlags", "MessageNumber", "OptionFlags")
    found: dict[str, Any] = dict(zip(names, struct.unpack_from("<HBBHH", data), strict=True))
    options, at = found["OptionFlags"], 8
    for flag, (name, form) in MESSAGE_FIELDS:
        if options & flag and not (name == "MessageGuid" and options & MESSAGE_FLAG.COMPONENTID):
            (found[name],) = struct.unpack_from("<" + form, data, at)
            at += struct.calcsize("<" + form)
    return found
