"""Arguments of Windows' functions, in memory that lives as long as the call: properties, filters, parameters.

Layouts are those of the running Python (32 or 64 bits). Each object here keeps alive what its structure points to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from ..flags import WnodeFlag
from ..interface import EnableParameters
from ..properties import (
    MAX_NAME,
    STATISTICS,
    Filter,
    SessionRequest,
    SessionState,
    characters,
    check_numbers,
    read_members,
    write_members,
)
from ..status import EtwError, Status
from ..structures import guid_of, structure
from .libraries import wide

__all__ = ["BITS", "Parameters", "Properties", "bytes_at_call", "events_of", "native", "text_at"]

BITS = 8 * ctypes.sizeof(ctypes.c_void_p)
"""Bits of an address in this Python."""
_ROOM = 2 * (MAX_NAME + 64)
"""Bytes for a name: 1,024 characters, and what Windows appends to a file's (a process id, a number)."""
_VERSION = 2


def native(name: str) -> Any:
    """The ctypes class of structure ``name`` for this Python."""
    return structure(name, BITS)


def text_at(address: int, limit: int) -> str:
    """The UTF-16 string at ``address``, up to its nul or ``limit`` bytes."""
    text = ctypes.string_at(address, limit & ~1).decode("utf-16-le", "surrogatepass")
    return text.partition("\0")[0]


class _Filters:
    """An array of EVENT_FILTER_DESCRIPTOR and the data that it points to; ``address`` is 0 for no filters."""

    def __init__(self, filters: Sequence[Filter]) -> None:
        self.data = [ctypes.create_string_buffer(f.data, len(f.data)) for f in filters]
        self.array = (native("EVENT_FILTER_DESCRIPTOR") * len(filters))()
        for descriptor, filter_, data in zip(self.array, filters, self.data, strict=True):
            descriptor.Ptr, descriptor.Size, descriptor.Type = ctypes.addressof(data), len(data), filter_.kind
        self.address = ctypes.addressof(self.array) if filters else 0


class Properties:
    """EVENT_TRACE_PROPERTIES_V2 with room for both names after it, the session's before the file's.

    Windows before 10 1703 reads it as the older structure, which begins alike.
    """

    def __init__(self, call: str, request: SessionRequest | None = None) -> None:
        kind = native("EVENT_TRACE_PROPERTIES_V2")
        size = ctypes.sizeof(kind)
        self._request = request
        self._memory = ctypes.create_string_buffer(size + 2 * _ROOM)
        self.head = kind.from_buffer(self._memory)
        self.head.Wnode.BufferSize = len(self._memory)
        self.head.Wnode.Flags = int(WnodeFlag.TRACED_GUID)
        self.head.LoggerNameOffset, self.head.LogFileNameOffset = size, size + _ROOM
        if request is not None:
            self._fill(call, request)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._memory)

    def _fill(self, call: str, request: SessionRequest) -> None:
        head = self.head
        for name, code in ((request.name, Status.INVALID_NAME), (request.file, Status.BAD_PATHNAME)):
            if characters(name) > MAX_NAME:
                raise EtwError(call, code, f"a name of {characters(name)} characters; {MAX_NAME} are the most")
        check_numbers(call, request)
        write_members(head, request)
        file = wide(call, request.file)
        ctypes.memmove(self.address + head.LogFileNameOffset, file, ctypes.sizeof(file))
        if not request.file:  # an offset to an empty name would ask for a file without one
            head.LogFileNameOffset = 0
        if request.options or request.filters:
            self._filters = _Filters(request.filters)
            head.Wnode.Flags |= int(WnodeFlag.VERSIONED_PROPERTIES)
            head.V2Control, head.V2Options = _VERSION, int(request.options)
            head.FilterDescCount, head.FilterDesc = len(request.filters), self._filters.address

    def state(self) -> SessionState:
        """The state that Windows wrote; options and filters, which it never writes, are the request's."""
        head = self.head
        asked = self._request or SessionRequest("")
        name, file = self._text(head.LoggerNameOffset) or asked.name, self._text(head.LogFileNameOffset)
        request = replace(asked, name=name, file=file, **read_members(head))
        numbers = {ours: getattr(head, theirs) for theirs, ours in STATISTICS.items()}
        return SessionState(request, head.Wnode.HistoricalContext, **numbers)

    def _text(self, offset: int) -> str:
        return text_at(self.address + offset, _ROOM) if offset else ""


class Parameters:
    """ENABLE_TRACE_PARAMETERS version 2."""

    def __init__(self, parameters: EnableParameters) -> None:
        self._filters = _Filters(parameters.filters)
        self.head = native("ENABLE_TRACE_PARAMETERS")(
            Version=_VERSION,
            EnableProperty=parameters.property,
            ControlFlags=parameters.control_flags,
            SourceId=guid_of(parameters.source),
            EnableFilterDesc=self._filters.address,
            FilterDescCount=len(parameters.filters),
        )


def events_of(events: Sequence[tuple[UUID, int]]) -> Any:
    """An array of CLASSIC_EVENT_ID."""
    kind = native("CLASSIC_EVENT_ID")
    return (kind * len(events))(*[kind(guid_of(guid), type_) for guid, type_ in events])


def bytes_at_call(data: bytes) -> Any:
    """``data`` as writable memory of exactly its size, ``None`` (a null pointer) if there is none."""
    return (ctypes.c_char * len(data)).from_buffer_copy(data) if data else None
