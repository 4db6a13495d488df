"""Bodies of messages: requests, states and values to bytes and back. Every count is checked against the bytes left."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ...errors import FormatError
from ..flags import LogFileMode, V2Option
from ..properties import Filter, SessionRequest, SessionState

__all__ = [
    "ANY_PROCESSOR", "Fields", "pack_request", "pack_state", "pack_text", "pack_value", "unpack_request",
    "unpack_state", "unpack_text", "unpack_value",
]  # fmt: skip

ANY_PROCESSOR = 0xFFFF
"""In ATTACH: the session picks the processor index of the writer."""
_U32, _GUID = struct.Struct("<I"), struct.Struct("<16s")
_REQUEST = struct.Struct("<16s8IiIQ")
_STATE = struct.Struct("<16Q")
_PAIR = struct.Struct("<16sQ")
_NUMBER = struct.Struct("<Q")


class Fields:
    """Reads a body from its start. Raises `FormatError` where it is too short."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next values of ``layout``."""
        return layout.unpack(self._bytes(layout.size))

    def number(self) -> int:
        """The next u32."""
        return int(self.take(_U32)[0])

    def data(self) -> bytes:
        """The next bytes with a count before them."""
        return self._bytes(self.number())

    def text(self) -> str:
        """The next text."""
        try:
            return self.data().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise FormatError("text is not UTF-8", offset=self._at, field="text", value=error.reason) from error

    def rows(self, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """The next records of ``layout`` with a count before them."""
        return list(layout.iter_unpack(self._bytes(self.number() * layout.size)))

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self._bytes(len(self._body) - self._at)

    def end(self) -> None:
        """Raises `FormatError` if bytes are left."""
        if self._at != len(self._body):
            raise FormatError("bytes behind the body", offset=self._at, field="length", value=len(self._body))

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._body):
            raise FormatError("a body is too short", offset=self._at, field="count", value=count)
        found, self._at = self._body[self._at : end], end
        return found


def _data(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def pack_text(text: str) -> bytes:
    """A text with its length."""
    return _data(text.encode("utf-8", "surrogatepass"))


def unpack_text(body: bytes) -> str:
    fields = Fields(body)
    text = fields.text()
    fields.end()
    return text


def pack_request(request: SessionRequest) -> bytes:
    """Body of UPDATE. `struct.error` for numbers that EVENT_TRACE_PROPERTIES cannot hold."""
    r = request
    head = _REQUEST.pack(
        r.guid.bytes_le, r.clock, r.buffer_size, r.minimum_buffers, r.maximum_buffers, r.maximum_file_size, int(r.mode),
        r.flush_timer, r.enable_flags, r.age_limit, len(r.filters), int(r.options),
    )  # fmt: skip
    filters = b"".join(_U32.pack(one.kind) + _data(one.data) for one in r.filters)
    return head + pack_text(r.name) + pack_text(r.file) + filters


def unpack_request(body: bytes) -> SessionRequest:
    """`FormatError` for anything that `pack_request` does not make."""
    fields = Fields(body)
    request = _request(fields)
    fields.end()
    return request


def _request(fields: Fields) -> SessionRequest:
    guid, clock, size, least, most, file_size, mode, timer, flags, age, count, options = fields.take(_REQUEST)
    name, file = fields.text(), fields.text()
    filters = tuple(Filter(fields.number(), fields.data()) for _ in range(count))
    return SessionRequest(
        name, UUID(bytes_le=guid), clock, size, least, most, file_size, LogFileMode(mode), timer, flags, age, file,
        V2Option(options), filters,
    )  # fmt: skip


def pack_state(state: SessionState) -> bytes:
    """Body of the answer to QUERY, STOP and the like."""
    s = state
    numbers = (
        s.handle, s.number_of_buffers, s.free_buffers, s.events_lost, s.buffers_written, s.log_buffers_lost,
        s.real_time_buffers_lost, s.logger_thread,
    )  # fmt: skip
    return _STATE.pack(*numbers, *s.masks) + pack_request(s.request)


def unpack_state(body: bytes) -> SessionState:
    """`FormatError` for anything that `pack_state` does not make."""
    fields = Fields(body)
    handle, buffers, free, events, written, log, real_time, thread, *masks = fields.take(_STATE)
    request = _request(fields)
    fields.end()
    return SessionState(request, handle, buffers, free, events, written, log, real_time, thread, masks)


# -- values of TraceSetInformation and TraceQueryInformation, as `information` decodes them


def pack_value(value: Any) -> bytes:
    """``None``, a number, or a list of numbers, GUIDs, or (GUID, number) pairs. `TypeError` for anything else."""
    if value is None:
        return b"\0"
    if isinstance(value, int):
        return b"\1" + _NUMBER.pack(value)
    kinds = {type(one) for one in value}
    rows: Sequence[bytes]
    if not kinds or all(issubclass(kind, int) for kind in kinds):
        tag, rows = b"\2", [_NUMBER.pack(one) for one in value]
    elif kinds == {UUID}:
        tag, rows = b"\3", [one.bytes_le for one in value]
    elif all(issubclass(kind, tuple) for kind in kinds):
        tag, rows = b"\4", [_PAIR.pack(guid.bytes_le, number) for guid, number in value]
    else:
        raise TypeError(f"a list of {kinds}")
    return tag + _U32.pack(len(rows)) + b"".join(rows)


def unpack_value(body: bytes) -> Any:
    """`FormatError` for anything that `pack_value` does not make."""
    fields = Fields(body[1:])
    match body[:1]:
        case b"\0":
            value: Any = None
        case b"\1":
            (value,) = fields.take(_NUMBER)
        case b"\2":
            value = [number for (number,) in fields.rows(_NUMBER)]
        case b"\3":
            value = [UUID(bytes_le=guid) for (guid,) in fields.rows(_GUID)]
        case b"\4":
            value = [(UUID(bytes_le=guid), number) for guid, number in fields.rows(_PAIR)]
        case tag:
            raise FormatError("unknown type of value", offset=0, field="tag", value=tag.hex())
    fields.end()
    return value
