# ruff: noqa: N802 - the vendor's names
"""The functions of providers (evntprov.h), and TraceEvent (evntrace.h), call for call over `kernel_choice`.

A registration handle is a number that belongs to this process. The kernel calls callbacks in a thread of its own.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import UUID

from .flags import EnableProvider
from .interface import ClassicHeader, EventDescriptor, Registration
from .kernel_choice import kernel
from .properties import Filter
from .status import EtwError, Status, guid_given, returns_status, returns_status_and
from .structures import structure, uuid_of

__all__ = [
    "EventEnabled",
    "EventProviderEnabled",
    "EventRegister",
    "EventSetInformation",
    "EventUnregister",
    "EventWrite",
    "EventWriteTransfer",
    "TraceEvent",
]

MAX_DATA_DESCRIPTORS = 128
"""MAX_EVENT_DATA_DESCRIPTORS."""
MAX_EVENT = 64 * 1024
"""Bytes of an event with its header."""
_DATA, _DESCRIPTOR = structure("EVENT_DATA_DESCRIPTOR"), structure("EVENT_DESCRIPTOR")
_CLASSIC = structure("EVENT_TRACE_HEADER")
_MOF_POINTER, _LEVEL_SHIFT, _VERSION_SHIFT = 0x100000, 8, 16

_registered: dict[int, Registration] = {}
_handles, _adding = count(1), threading.Lock()

EnableCallback = Callable[[UUID, int, int, int, int, tuple[Filter, ...], Any], object]
"""(source id, code, level, match any, match all, filters, context)."""


@returns_status_and(0)
def EventRegister(provider_id: Any, enable_callback: EnableCallback | None, callback_context: Any = None) -> int:
    """Register a provider. Returns ``status, reg_handle``."""
    call = "EventRegister"
    provider = guid_given(call, provider_id)
    if enable_callback is not None and not callable(enable_callback):
        raise EtwError(call, Status.INVALID_PARAMETER, "the callback cannot be called")
    forward = None
    if enable_callback is not None:

        def forward(
            source: UUID, code: EnableProvider, level: int, match_any: int, match_all: int, filters: tuple[Filter, ...]
        ) -> None:
            enable_callback(source, code, level, match_any, match_all, filters, callback_context)

    made = kernel().register(provider, forward)
    with _adding:
        handle = next(_handles)
        _registered[handle] = made
    return handle


def _registration(call: str, reg_handle: int) -> Registration:
    found = _registered.get(reg_handle)
    if found is None:
        raise EtwError(call, Status.INVALID_HANDLE, f"no provider is registered as {reg_handle}")
    return found


@returns_status
def EventUnregister(reg_handle: int) -> None:
    """End a registration."""
    _registration("EventUnregister", reg_handle)
    _registered.pop(reg_handle).close()


@returns_status
def EventSetInformation(reg_handle: int, information_class: int, information: Any, information_length: int) -> None:
    """Set traits (class 2) and other information of a provider."""
    call = "EventSetInformation"
    found = _registration(call, reg_handle)
    data = bytes(memoryview(information).cast("B")) if information is not None else b""
    if information_length > len(data):
        raise EtwError(call, Status.INVALID_PARAMETER, f"{information_length} bytes of {len(data)}")
    found.set_information(information_class, data[:information_length])


def EventEnabled(reg_handle: int, event_descriptor: Any) -> bool:
    """Whether any session takes such an event; false for an unknown handle."""
    found = _registered.get(reg_handle)
    if found is None or not found.enabled:
        return False
    event = _event(event_descriptor)
    return found.takes(event.level, event.keyword)


def EventProviderEnabled(reg_handle: int, level: int, keyword: int) -> bool:
    """Whether any session takes events of this level and keyword."""
    found = _registered.get(reg_handle)
    return found is not None and found.enabled and found.takes(level, keyword)


def EventWrite(reg_handle: int, event_descriptor: Any, user_data_count: int = 0, user_data: Any = None) -> int:
    """Write an event. Its data are the pieces of ``user_data``, an array of EVENT_DATA_DESCRIPTOR."""
    return EventWriteTransfer(reg_handle, event_descriptor, None, None, user_data_count, user_data)


def EventWriteTransfer(
    reg_handle: int,
    event_descriptor: Any,
    activity_id: Any = None,
    related_activity_id: Any = None,
    user_data_count: int = 0,
    user_data: Any = None,
) -> int:
    """`EventWrite` with the event's activity and a related one."""
    found = _registered.get(reg_handle)
    if found is None:
        return Status.INVALID_HANDLE
    if not found.enabled:
        return Status.SUCCESS
    call = "EventWriteTransfer"
    try:
        activities = [b"" if a is None else guid_given(call, a).bytes_le for a in (activity_id, related_activity_id)]
        return found.write(_event(event_descriptor), _pieces(call, user_data_count, user_data), *activities)
    except EtwError as error:
        return error.status


def _event(given: Any) -> EventDescriptor:
    """An EVENT_DESCRIPTOR structure as a tuple; a tuple as it is."""
    if isinstance(given, EventDescriptor):
        return given
    d = given if isinstance(given, _DESCRIPTOR) else _DESCRIPTOR.from_buffer_copy(given)
    return EventDescriptor(d.Id, d.Version, d.Channel, d.Level, d.Opcode, d.Task, d.Keyword)


def _pieces(call: str, number: int, given: Any) -> bytes:
    """The user data that the descriptors point to, joined."""
    if not number:
        return b""
    if given is None or not 0 < number <= MAX_DATA_DESCRIPTORS:
        raise EtwError(call, Status.INVALID_PARAMETER, f"{number} data descriptors")
    whole = memoryview(given).cast("B")
    if len(whole) < number * ctypes.sizeof(_DATA):
        raise EtwError(call, Status.INVALID_PARAMETER, f"{len(whole)} bytes for {number} data descriptors")
    pieces = (_DATA * number).from_buffer_copy(whole)
    if sum(piece.Size for piece in pieces) > MAX_EVENT:
        raise EtwError(call, Status.ARITHMETIC_OVERFLOW)
    if any(piece.Size and not piece.Ptr for piece in pieces):
        raise EtwError(call, Status.INVALID_PARAMETER, "a data descriptor without data")
    return b"".join(ctypes.string_at(piece.Ptr, piece.Size) for piece in pieces if piece.Size)


@returns_status
def TraceEvent(trace_handle: int, event_trace: Any) -> None:
    """Write a classic event to one session: EVENT_TRACE_HEADER and the data after it, Size bytes in all.

    With WNODE_FLAG_USE_MOF_PTR in Flags, MOF_FIELD structures (laid out as EVENT_DATA_DESCRIPTOR) follow instead.
    """
    call = "TraceEvent"
    whole = memoryview(event_trace).cast("B") if event_trace is not None else memoryview(b"")
    head_size = ctypes.sizeof(_CLASSIC)
    if len(whole) < head_size:
        raise EtwError(call, Status.INVALID_PARAMETER, f"{len(whole)} bytes hold no EVENT_TRACE_HEADER")
    head = _CLASSIC.from_buffer_copy(whole)
    flags = int.from_bytes(whole[_FLAGS_AT : _FLAGS_AT + 4], "little")
    if not head_size <= head.Size <= len(whole) or not flags & _TRACED_GUID:
        raise EtwError(call, Status.INVALID_PARAMETER, f"Size = {head.Size} of {len(whole)}, Flags = {flags:#x}")
    if not trace_handle:
        raise EtwError(call, Status.INVALID_HANDLE, "a session's handle is not 0")
    data = bytes(whole[head_size : head.Size])
    if flags & _MOF_POINTER:
        fields, rest = divmod(len(data), ctypes.sizeof(_DATA))
        if rest:
            raise EtwError(call, Status.INVALID_PARAMETER, f"{len(data)} bytes of MOF_FIELD")
        data = _pieces(call, fields, data)
    header = ClassicHeader(
        uuid_of(head.Guid), head.Version & 0xFF, head.Version >> _LEVEL_SHIFT & 0xFF, head.Version >> _VERSION_SHIFT
    )
    kernel().trace_event(trace_handle, header, data)


_FLAGS_AT = 44
"""Offset of Flags, the second half of ProcessorTime: {ULONG ClientContext; ULONG Flags}."""
_TRACED_GUID = 0x20000
