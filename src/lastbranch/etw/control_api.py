# ruff: noqa: N802 - the vendor's names
"""The functions that control sessions (evntrace.h), call for call over `kernel_choice`.

OUT parameters are returned after the status. An IN/OUT structure is a ctypes structure, or any writable buffer that
begins with one, and is changed in place. A handle is a number; 0 is none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from . import information
from .flags import (
    Control,
    EnableProvider,
    FilterType,
)
from .interface import EnableParameters
from .kernel_choice import kernel
from .properties import (
    SessionRequest,
    characters,
    check_name,
    check_properties,
    descriptors_at,
    filters_of,
    read_properties,
    write_properties,
)
from .status import EtwError, Status, guid_given, returns_status, returns_status_and
from .structures import structure, uuid_of

__all__ = [
    "ControlTrace",
    "EnableTraceEx2",
    "QueryAllTraces",
    "StartTrace",
    "TraceConfigureLastBranchRecord",
    "TraceQueryInformation",
    "TraceSetInformation",
]

MAX_FILTERS = 13
"""MAX_EVENT_FILTERS_COUNT."""
MAX_FILTER_DATA = {
    FilterType.SYSTEM_FLAGS: 1024,
    FilterType.PID: 4 * 8,
    FilterType.EXECUTABLE_NAME: 1024,
    FilterType.EVENT_ID: 4 + 2 * 64,
    FilterType.STACKWALK: 4 + 2 * 64,
}
"""Bytes of the data of a filter, by type: 8 process ids and 64 event ids are the most."""
_MOST_FILTER_DATA = 64 * 1024
_EVENT_ID, _PARAMETERS = structure("CLASSIC_EVENT_ID"), structure("ENABLE_TRACE_PARAMETERS")


@returns_status_and(0)
def StartTrace(session_name: str | None, properties: Any) -> int:
    """Start a session, and write its adjusted values and its name to ``properties``. Returns ``status, handle``."""
    call = "StartTrace"
    request = read_properties(call, session_name or "", properties)
    check_name(call, request.name)
    _check_room(call, request, properties)
    state = kernel().start(request)
    write_properties(call, properties, state)
    return state.handle


def _check_room(call: str, request: SessionRequest, properties: Any) -> None:
    """Check that the session's name fits after the structure, where StartTrace writes it."""
    head = structure("EVENT_TRACE_PROPERTIES").from_buffer(memoryview(properties).cast("B"))
    start, file = head.LoggerNameOffset, head.LogFileNameOffset
    end = file if file > start else head.Wnode.BufferSize
    if start < ctypes.sizeof(head):
        raise EtwError(call, Status.INVALID_PARAMETER, f"LoggerNameOffset = {start} is inside the structure")
    length = characters(request.name)
    if start + 2 * length + 2 > end:
        raise EtwError(call, Status.BAD_LENGTH, f"{end - start} bytes for a name of {length} characters")


@returns_status
def ControlTrace(trace_handle: int, session_name: str | None, properties: Any, control_code: int) -> None:
    """Query, stop, update, flush... the session of ``trace_handle`` or, where that is 0, of ``session_name``.

    Writes the session's state to ``properties``. 234: everything is done, but a name had no room.
    """
    call = "ControlTrace"
    if control_code not in Control._value2member_map_:
        raise EtwError(call, Status.INVALID_PARAMETER, f"there is no control code {control_code}")
    code = Control(control_code)
    check_properties(call, properties)
    if not trace_handle and not session_name:
        raise EtwError(call, Status.INVALID_PARAMETER, "neither a handle nor a name")
    asks = code not in (Control.QUERY, Control.STOP)  # for which the structure is output only
    request = read_properties(call, session_name or "", properties) if asks else None
    state = kernel().control(code, trace_handle or session_name or "", request)
    if write_properties(call, properties, state) == Status.MORE_DATA:
        raise EtwError(call, Status.MORE_DATA)


def QueryAllTraces(property_array: Sequence[Any] | None, count: int) -> tuple[int, int]:
    """Write the state of every session to ``property_array``. Returns ``status, logger_count``: how many run.

    234: more than ``count`` run, or a name had no room.
    """
    call, here = "QueryAllTraces", kernel()
    most = here.most_sessions or count
    if property_array is None or not 0 < count <= most or len(property_array) < count:
        return Status.INVALID_PARAMETER, 0
    try:
        for properties in property_array[:count]:
            check_properties(call, properties)
        states = here.sessions()
        written = [
            write_properties(call, into, state) for into, state in zip(property_array[:count], states, strict=False)
        ]
    except EtwError as error:
        return error.status, 0
    fits = len(states) <= count and not any(written)
    return (Status.SUCCESS if fits else Status.MORE_DATA), len(states)


@returns_status
def EnableTraceEx2(
    trace_handle: int,
    provider_id: Any,
    control_code: int,
    level: int,
    match_any_keyword: int,
    match_all_keyword: int,
    timeout: int,
    enable_parameters: Any = None,
) -> None:
    """Enable a provider in a session, disable it, or ask it for its state. ``timeout`` is in ms, 0 does not wait."""
    call = "EnableTraceEx2"
    provider = guid_given(call, provider_id)
    if not trace_handle or control_code not in EnableProvider._value2member_map_ or not 0 <= level <= 0xFF:
        raise EtwError(call, Status.INVALID_PARAMETER, f"handle {trace_handle}, code {control_code}, level {level}")
    kernel().enable(
        trace_handle,
        provider,
        EnableProvider(control_code),
        level,
        match_any_keyword,
        match_all_keyword,
        timeout,
        _parameters(call, enable_parameters),
    )


def _parameters(call: str, given: Any) -> EnableParameters | None:
    """ENABLE_TRACE_PARAMETERS: version 1 has one filter at most, version 2 has FilterDescCount, one of a type."""
    if given is None:
        return None
    parameters = _PARAMETERS.from_buffer(memoryview(given).cast("B"))
    if parameters.Version not in (1, 2):
        raise EtwError(call, Status.INVALID_PARAMETER, f"ENABLE_TRACE_PARAMETERS.Version = {parameters.Version}")
    count = parameters.FilterDescCount if parameters.Version == 2 else int(bool(parameters.EnableFilterDesc))
    if count > MAX_FILTERS or bool(count) != bool(parameters.EnableFilterDesc):
        raise EtwError(call, Status.INVALID_PARAMETER, f"FilterDescCount = {count}; {MAX_FILTERS} are the most")
    found = descriptors_at(parameters.EnableFilterDesc, count)
    if len({f.Type for f in found}) != count:
        raise EtwError(call, Status.INVALID_PARAMETER, "two filters of one type")
    for one in found:
        if one.Size > MAX_FILTER_DATA.get(one.Type, _MOST_FILTER_DATA) or (one.Size and not one.Ptr):
            raise EtwError(call, Status.INVALID_PARAMETER, f"a filter of type {one.Type:#x} with {one.Size} bytes")
    source = uuid_of(parameters.SourceId)
    return EnableParameters(parameters.EnableProperty, parameters.ControlFlags, source, filters_of(found))


@returns_status
def TraceSetInformation(
    session_handle: int, information_class: int, trace_information: Any, information_length: int
) -> None:
    """Set a class of the machine (handle 0) or of a session; the classes are those of `information.SETS`.

    Windows gets classes that this package does not know as they are.
    """
    information.set_information(kernel(), session_handle, information_class, trace_information, information_length)


def TraceQueryInformation(
    session_handle: int, information_class: int, trace_information: Any, information_length: int
) -> tuple[int, int]:
    """Get a class of the machine or of a session; the classes are those of `information.QUERIES`.

    Windows gets classes that this package does not know as they are. Returns ``status, return_length``: the bytes
    written to the buffer, or the bytes that the buffer needs.
    """
    return information.query_information(
        kernel(), session_handle, information_class, trace_information, information_length
    )


@returns_status
def TraceConfigureLastBranchRecord(trace_handle: int, lbr_configuration: int, events: Any, event_count: int) -> None:
    """Log the branch record with each event of ``events``, an array of CLASSIC_EVENT_ID; an empty array ends the
    logging."""
    call = "TraceConfigureLastBranchRecord"
    information.check_lbr(lbr_configuration, event_count, events is not None)
    given = memoryview(events).cast("B") if event_count else memoryview(b"")
    size = event_count * ctypes.sizeof(_EVENT_ID)
    if len(given) < size:
        raise EtwError(call, Status.INVALID_PARAMETER, f"{len(given)} bytes for {event_count} events")
    ids: list[tuple[UUID, int]] = information.EVENT_IDS.decode(bytes(given[:size]))
    kernel().configure_lbr(trace_handle, lbr_configuration, ids)
