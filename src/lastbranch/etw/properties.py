"""EVENT_TRACE_PROPERTIES and the names after it: read as a request, written from a session's state.

Source: the page of EVENT_TRACE_PROPERTIES_V2. Both forms begin alike; the fields of version 2 count only if Wnode.Flags
has WNODE_FLAG_VERSIONED_PROPERTIES.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from .flags import GLOBAL_LOGGER, KERNEL_LOGGER, KERNEL_LOGGER_NAME, LogFileMode, V2Option, WnodeFlag
from .status import EtwError, Status
from .structures import guid_of, structure, uuid_of

__all__ = [
    "MAX_NAME",
    "NO_GUID",
    "NUMBERS",
    "STATISTICS",
    "Filter",
    "SessionRequest",
    "SessionState",
    "characters",
    "check_name",
    "check_numbers",
    "check_properties",
    "descriptors_at",
    "filters_of",
    "read_members",
    "read_properties",
    "write_members",
    "write_properties",
]

MAX_NAME = 1024
"""Characters of a session's or a log file's name, as `characters` counts them."""
NO_GUID = UUID(int=0)
"""The GUID of a request that leaves it to the system."""
_PLAIN, _V2 = structure("EVENT_TRACE_PROPERTIES"), structure("EVENT_TRACE_PROPERTIES_V2")
_MOST_FILTERS = 64
"""Most filters of one descriptor array: far more than types exist. Our choice."""


@dataclass(frozen=True, slots=True)
class Filter:
    """One EVENT_FILTER_DESCRIPTOR: ``kind`` is EVENT_FILTER_TYPE_*."""

    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A session as a caller asks for it, in the units of the structure (KB, MB, seconds), before any adjustment."""

    name: str
    guid: UUID = NO_GUID
    clock: int = 0
    buffer_size: int = 0
    minimum_buffers: int = 0
    maximum_buffers: int = 0
    maximum_file_size: int = 0
    mode: LogFileMode = LogFileMode.FILE_MODE_NONE
    flush_timer: int = 0
    enable_flags: int = 0
    age_limit: int = 0
    file: str = ""
    """Path of the log file, empty for none."""
    options: V2Option = V2Option.NONE
    filters: tuple[Filter, ...] = ()
    """Both are empty unless the structure is a versioned one."""

    @property
    def system(self) -> bool:
        """Whether it asks for a system logger: by mode, name or either GUID."""
        by_name = self.name.casefold() == KERNEL_LOGGER_NAME.casefold()
        by_guid = self.guid in (KERNEL_LOGGER, GLOBAL_LOGGER)
        return bool(self.mode & LogFileMode.SYSTEM_LOGGER_MODE) or by_name or by_guid


@dataclass(slots=True)
class SessionState:
    """The answer to a query: the request as it was adjusted, and the statistics."""

    request: SessionRequest
    handle: int = 0
    number_of_buffers: int = 0
    free_buffers: int = 0
    events_lost: int = 0
    buffers_written: int = 0
    log_buffers_lost: int = 0
    real_time_buffers_lost: int = 0
    logger_thread: int = 0
    masks: list[int] = field(default_factory=lambda: [0] * 8)
    """The eight words of PERFINFO_GROUPMASK."""


NUMBERS = {
    "BufferSize": "buffer_size",
    "MinimumBuffers": "minimum_buffers",
    "MaximumBuffers": "maximum_buffers",
    "MaximumFileSize": "maximum_file_size",
    "FlushTimer": "flush_timer",
    "EnableFlags": "enable_flags",
    "AgeLimit": "age_limit",
}
"""Member of the structure -> field of `SessionRequest`."""
STATISTICS = {
    "NumberOfBuffers": "number_of_buffers",
    "FreeBuffers": "free_buffers",
    "EventsLost": "events_lost",
    "BuffersWritten": "buffers_written",
    "LogBuffersLost": "log_buffers_lost",
    "RealTimeBuffersLost": "real_time_buffers_lost",
    "LoggerThreadId": "logger_thread",
}
"""Member -> field of `SessionState`."""
_LEAST = {"AgeLimit": -(2**31)}
"""The only LONG; the others are ULONG."""


def characters(text: str) -> int:
    """Length of a name in units of UTF-16, as the structures count it."""
    return len(text) + sum(one > "\uffff" for one in text)


def check_name(call: str, name: str) -> None:
    """Raises `EtwError` 123 for what cannot be a session's name."""
    if not 0 < characters(name) <= MAX_NAME or "\0" in name:
        raise EtwError(call, Status.INVALID_NAME, f"a session's name has 1 to {MAX_NAME} characters")


def check_numbers(call: str, request: SessionRequest) -> None:
    """Raises `EtwError` 87 for a number that the structure cannot hold."""
    for member, ours in {**NUMBERS, "LogFileMode": "mode", "Wnode.ClientContext": "clock"}.items():
        value, least = getattr(request, ours), _LEAST.get(member, 0)
        if not least <= value < least + 2**32:
            raise EtwError(call, Status.INVALID_PARAMETER, f"{member} = {int(value)} does not fit in 32 bits")


def read_members(head: Any) -> dict[str, Any]:
    """The fields of a `SessionRequest` that either form of the structure holds in itself."""
    numbers = {ours: getattr(head, theirs) for theirs, ours in NUMBERS.items()}
    wnode = head.Wnode
    return {"guid": uuid_of(wnode.Guid), "clock": wnode.ClientContext, "mode": LogFileMode(head.LogFileMode), **numbers}


def write_members(head: Any, request: SessionRequest) -> None:
    """The other direction. A value that is too large for a member is cut: `check_numbers` comes first."""
    head.Wnode.Guid, head.Wnode.ClientContext = guid_of(request.guid), request.clock
    head.LogFileMode = int(request.mode)
    for theirs, ours in NUMBERS.items():
        setattr(head, theirs, getattr(request, ours))


def descriptors_at(address: int | None, count: int, bits: int = 64) -> Any:
    """The array of EVENT_FILTER_DESCRIPTOR at ``address``; none for a null pointer."""
    return (structure("EVENT_FILTER_DESCRIPTOR", bits) * count).from_address(address) if address else ()


def filters_of(descriptors: Any) -> tuple[Filter, ...]:
    """The filters that ``descriptors`` point to."""
    return tuple(Filter(d.Type, ctypes.string_at(d.Ptr, d.Size) if d.Ptr else b"") for d in descriptors)


def _view(call: str, properties: Any) -> tuple[memoryview, Any]:
    """The bytes of ``properties`` (any writable buffer), as many as Wnode.BufferSize says, and the structure."""
    if properties is None:
        raise EtwError(call, Status.INVALID_PARAMETER, "no properties")
    every = memoryview(properties).cast("B")
    if len(every) < ctypes.sizeof(_PLAIN):
        raise EtwError(call, Status.BAD_LENGTH, f"{len(every)} bytes hold no EVENT_TRACE_PROPERTIES")
    head = _PLAIN.from_buffer(every)
    if not ctypes.sizeof(_PLAIN) <= head.Wnode.BufferSize <= len(every):
        raise EtwError(call, Status.BAD_LENGTH, f"Wnode.BufferSize = {head.Wnode.BufferSize} of {len(every)} bytes")
    return every[: head.Wnode.BufferSize], head


def _text(call: str, data: memoryview, offset: int, field_name: str) -> str:
    """The UTF-16 string at ``offset``, up to its nul."""
    if offset < ctypes.sizeof(_PLAIN) or offset % 2 or offset > len(data) - 2:
        raise EtwError(call, Status.INVALID_PARAMETER, f"{field_name} = {offset} of {len(data)} bytes")
    most = bytes(data[offset : offset + 2 * (MAX_NAME + 1)])
    end = next((at for at in range(0, len(most) - 1, 2) if most[at : at + 2] == b"\0\0"), None)
    if end is None:
        code = Status.INVALID_NAME if field_name == "LoggerNameOffset" else Status.BAD_PATHNAME
        raise EtwError(call, code, f"the name at {field_name} has no end within {MAX_NAME} characters")
    return most[:end].decode("utf-16-le", "surrogatepass")


def check_properties(call: str, properties: Any) -> None:
    """Check that ``properties`` can hold a state. Raises `EtwError`: 87 for none at all, 24 for a wrong size."""
    _view(call, properties)


def read_properties(call: str, name: str | None, properties: Any) -> SessionRequest:
    """The request in ``properties`` for the session ``name`` (``None``: the name after the structure).

    Raises `EtwError` with the code of the first rule that is broken.
    """
    data, head = _view(call, properties)
    if call == "StartTrace" and not head.Wnode.Flags & WnodeFlag.TRACED_GUID:
        raise EtwError(call, Status.INVALID_PARAMETER, "Wnode.Flags lacks WNODE_FLAG_TRACED_GUID")
    file = _text(call, data, head.LogFileNameOffset, "LogFileNameOffset") if head.LogFileNameOffset else ""
    if name is None:
        name = _text(call, data, head.LoggerNameOffset, "LoggerNameOffset") if head.LoggerNameOffset else ""
    options, filters = _read_version(call, data, head)
    return SessionRequest(name=name, file=file, options=options, filters=filters, **read_members(head))


def _read_version(call: str, data: memoryview, head: Any) -> tuple[V2Option, tuple[Filter, ...]]:
    """Options and filters of a version 2 structure; none of any other."""
    if not _is_versioned(data, head):
        return V2Option.NONE, ()
    versioned = _V2.from_buffer(data)
    count = versioned.FilterDescCount
    if bool(count) != bool(versioned.FilterDesc) or count > _MOST_FILTERS:
        raise EtwError(
            call, Status.INVALID_PARAMETER, f"FilterDescCount = {count}, FilterDesc = {versioned.FilterDesc:#x}"
        )
    return V2Option(versioned.V2Options), filters_of(descriptors_at(versioned.FilterDesc, count))


def _is_versioned(data: memoryview, head: Any) -> bool:
    """Whether the members of version 2 count: the flag announces them, and they fit."""
    flagged = head.Wnode.Flags & WnodeFlag.VERSIONED_PROPERTIES and len(data) >= ctypes.sizeof(_V2)
    return bool(flagged and _V2.from_buffer(data).V2Control & 0xFF == 2)


def write_properties(call: str, properties: Any, state: SessionState) -> Status:
    """Write ``state`` to ``properties``, and the names where the offsets leave room for them.

    Returns `Status.MORE_DATA` if a name does not fit; everything else is written. Raises `EtwError` for a structure
    that is too short.
    """
    data, head = _view(call, properties)
    request = state.request
    head.Wnode.HistoricalContext = state.handle
    write_members(head, request)
    for theirs, ours in STATISTICS.items():
        setattr(head, theirs, getattr(state, ours))
    if request.options and _is_versioned(data, head):  # no state of Windows has any
        _V2.from_buffer(data).V2Options = int(request.options)
    offsets = (head.LoggerNameOffset, head.LogFileNameOffset)
    fits = [_put(data, at, text, offsets) for at, text in zip(offsets, (request.name, request.file), strict=True) if at]
    return Status.SUCCESS if all(fits) else Status.MORE_DATA


def _put(data: memoryview, offset: int, text: str, offsets: tuple[int, int]) -> bool:
    end = min((o for o in offsets if o > offset), default=len(data))
    encoded = text.encode("utf-16-le", "surrogatepass") + b"\0\0"
    if not ctypes.sizeof(_PLAIN) <= offset <= end - len(encoded):
        return False
    data[offset : offset + len(encoded)] = encoded
    return True
