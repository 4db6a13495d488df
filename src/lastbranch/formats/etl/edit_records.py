"""A trace file as declared fields, and back to the same bytes.

    with open(copy, "wb") as out:
        for part in read_records(source):
            out.write(encode_record(part))

Everything that a table describes is fields: buffer headers and event headers, including stale values, and payloads
with a declared layout (`Decoder.encode`). Only the rest is bytes: payloads without a layout, the padding of an event to
8 bytes, and the rest of a buffer after its last event. Sizes are computed again.

This is for inspecting and changing single events: each becomes several objects. `convert_logs` converts in bulk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import FormatError
from ...model import Source, read_at
from .container.buffers import DamageLog
from .container.compression import compress
from .container.decompression import XPRESS
from .container.read_windows import BufferReader
from .decode import Decoder
from .events.columns import EventBlock, Rules, events_of, header_fields
from .layout import (
    BUFFER_FLAG,
    BUFFER_HEADER,
    BUFFER_HEADER_SIZE,
    BUFFER_TYPE,
    EXTENDED_ITEM,
    HEADERS,
    MESSAGE,
    pack_fields,
    packed,
    unpack_fields,
)
from .single_event import Event, join_event

__all__ = ["BufferRecord", "EventRecord", "ExtendedItem", "encode_record", "read_records"]

_ITEM = packed(EXTENDED_ITEM)


@dataclass(slots=True)
class ExtendedItem:
    """One extended item of an EVENT_HEADER: ``kind`` is ExtType, ``padding`` its padding to 8 bytes."""

    kind: int
    linkage: int
    data: bytes
    padding: bytes = b""


@dataclass(slots=True)
class EventRecord:
    """An event as fields.

    ``header`` holds all fields of the header except Size, by name. ``words`` are the counter values after a kernel
    header, ``items`` the extended items of an EVENT_HEADER, ``loose`` other bytes after them. A payload with a declared
    layout is in ``fields``, any other in ``payload``. ``event`` is what `Decoder` needs to encode it, without a
    payload. ``gap`` are the bytes up to the next event.
    """

    event: Event
    header: dict[str, Any]
    words: list[int] = field(default_factory=list)
    items: list[ExtendedItem] = field(default_factory=list)
    loose: bytes = b""
    fields: Mapping[str, Any] | None = None
    payload: bytes = b""
    gap: bytes = b""


@dataclass(slots=True)
class BufferRecord:
    """A buffer: all fields of its header by name, its events, and the bytes after them.

    ``length`` are its bytes in the file. ``rest`` are bytes in use after the last whole event (damage, or a marker),
    ``tail`` the bytes after those in use, ``missing`` the number of bytes in use that a cut file lacks. Writing
    computes Offset, and BufferSize of a compressed buffer, again.
    """

    header: dict[str, Any]
    events: list[EventRecord]
    length: int
    rest: bytes = b""
    tail: bytes = b""
    missing: int = 0


# -- reading


def read_records(source: Source, *, decoder: Decoder | None = None) -> Iterator[BufferRecord | bytes]:
    """All of a file, in file order: its buffers, and as bytes everything else.

    Raises `FormatError` for a file that cannot be read at all, see `read_header`.
    """
    damage = DamageLog()
    reader = BufferReader(source, damage)
    decoder = decoder or Decoder()
    done = 0
    for window in reader.windows():
        block = EventBlock.of(window, Rules(damage, window.header.payload_pointer_size))
        # Rows of a window are in file order, and so are its events.
        begin, buffers = 0, window.buffers
        counts = np.bincount(block.buffer, minlength=len(buffers))
        for row, count in enumerate(counts.tolist()):
            offset, length = int(buffers.offset[row]), int(buffers.length[row])
            if offset > done:
                yield read_at(source, done, offset - done)
            record = _buffer(source, block.take(slice(begin, begin + count)), row, decoder)
            if record.header["BufferType"] == BUFFER_TYPE.HEADER and reader.header.compressed:
                record.header["State"] = record.header["State"] & ~0xFFFF | XPRESS  # what `encode_record` writes
            yield record
            begin, done = begin + count, offset + length
    if done < source.size:
        yield read_at(source, done, source.size - done)


def _buffer(source: Source, block: EventBlock, row: int, decoder: Decoder) -> BufferRecord:
    """Buffer ``row`` of a window, whose events are ``block``."""
    buffers, start = block.window.buffers, int(block.window.start[row])
    offset, length, filled = (int(column[row]) for column in (buffers.offset, buffers.length, buffers.filled))
    header = unpack_fields(BUFFER_HEADER, read_at(source, offset, BUFFER_HEADER_SIZE))
    events, at = [], start + BUFFER_HEADER_SIZE
    for i, event in enumerate(events_of(block)):
        end = int(block.at[i]) * 8 + int(block.size[i])
        at = min(end + 7 & ~7, start + filled)
        record = _event(block, i, event, decoder)
        record.gap = block.raw[end:at].tobytes()
        event.payload = b""
        events.append(record)
    rest = block.raw[at : start + filled].tobytes()
    if header["BufferFlag"] & BUFFER_FLAG.COMPRESSED:
        return BufferRecord(header, events, length, rest)
    tail = read_at(source, offset + filled, length - filled)
    return BufferRecord(header, events, length, rest, tail, header["Offset"] - filled)


def _event(block: EventBlock, i: int, event: Event, decoder: Decoder) -> EventRecord:
    header = header_fields(block, i)
    del header["Size"]
    record = EventRecord(event, header)
    own = 0 if event.header == MESSAGE else HEADERS[event.header].size
    between = block.raw[int(block.at[i]) * 8 + own : int(block.payload[i])].tobytes() if own else b""
    if between and HEADERS[event.header].is_system:
        record.words = [int.from_bytes(between[at : at + 8], "little") for at in range(0, len(between), 8)]
    elif between:
        record.items = _items(between)
        taken = sum(_ITEM.size + len(item.data) + len(item.padding) for item in record.items)
        record.loose = between[taken:]
    if decoder.layout_of(event) is None:
        record.payload = event.payload
    else:
        record.fields = decoder.decode(event).fields
    return record


def _items(data: bytes) -> list[ExtendedItem]:
    items, at = [], 0
    while at + _ITEM.size <= len(data):
        size, kind, linkage, used = _ITEM.unpack_from(data, at)
        if not _ITEM.size + used <= size <= len(data) - at:
            break
        body = data[at + _ITEM.size : at + size]
        items.append(ExtendedItem(kind, linkage, body[:used], body[used:]))
        at += size
    return items


# -- writing


def encode_record(part: BufferRecord | bytes, *, decoder: Decoder | None = None) -> bytes:
    """The bytes of one part of a file, from `read_records`.

    FormatError where an event became larger than its Size allows, or the events larger than their buffer.
    """
    if isinstance(part, bytes):
        return part
    decoder = decoder or Decoder()
    events = [_encode_event(record, decoder) for record in part.events]
    filled = len(events) if part.rest else max(0, len(events) - 1)  # the last event may lack its padding
    body = b"".join([*map(_pad_event, events[:filled]), *events[filled:], part.rest])
    header = {**part.header, "Offset": BUFFER_HEADER_SIZE + len(body) + part.missing}
    if header["BufferFlag"] & BUFFER_FLAG.COMPRESSED:
        body = compress(body)
        header["BufferSize"] = BUFFER_HEADER_SIZE + len(body)
    else:
        body += _tail(part, part.length - BUFFER_HEADER_SIZE - len(body))
    return pack_fields(BUFFER_HEADER, header) + body


def _tail(part: BufferRecord, room: int) -> bytes:
    if room < 0:
        raise FormatError("events do not fit in their buffer", field="Offset", value=part.length - room)
    # With fewer events the unused part begins earlier, with more events later.
    return b"\xff" * (room - len(part.tail)) + part.tail[max(0, len(part.tail) - room) :]


def _encode_event(record: EventRecord, decoder: Decoder) -> bytes:
    payload = record.payload if record.fields is None else decoder.encode(record.event, record.fields)
    between = b"".join(word.to_bytes(8, "little") for word in record.words)
    for item in record.items:
        size = _ITEM.size + len(item.data) + len(item.padding)
        between += _ITEM.pack(size, item.kind, item.linkage, len(item.data)) + item.data + item.padding
    between += record.loose
    event = join_event(record.event.header, record.header, between, payload)
    return event + record.gap[: -len(event) % 8]


def _pad_event(event: bytes) -> bytes:
    """Padded to a multiple of 8 bytes, also where an event became longer than its gap allows."""
    return event + bytes(-len(event) % 8)
