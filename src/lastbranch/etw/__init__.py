"""Trace sessions: the control API of Event Tracing for Windows, on Windows' kernel and on a portable one.

The functions are the vendor's, call for call; OUT parameters are returned after the status::

    status, handle = StartTrace("name", properties)
    status = ControlTrace(handle, None, properties, EVENT_TRACE_CONTROL_STOP)

Structures (``EVENT_TRACE_PROPERTIES``...) are ctypes classes, and constants have the headers' names. `Session` and
`Provider` do the same in Python's own terms, with context managers, exceptions and enumerations. Everything is loaded
at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..lazy import lazy_face

_named, _, __all__ = lazy_face(
    __name__,
    {
        "consumer_api": "CloseTrace INVALID_PROCESSTRACE_HANDLE Logfile OpenTrace ProcessTrace",
        "control_api": "ControlTrace EnableTraceEx2 QueryAllTraces StartTrace TraceConfigureLastBranchRecord "
        "TraceQueryInformation TraceSetInformation",
        "event_records": "event_of",
        "events": "ConsumedEvent consume dump_session is_session",
        "flags": "ClientContext Control EnableFlag EnableProvider GROUPS Info LogFileMode MergeFlag ProcessTraceMode "
        "V2Option WnodeFlag",
        "interface": "EnableParameters EventDescriptor ProfileSource",
        "merging": "CreateMergedTraceFile create_merged_trace_file",
        "properties": "Filter SessionRequest SessionState",
        "provider_api": "EventEnabled EventProviderEnabled EventRegister EventSetInformation EventUnregister "
        "EventWrite EventWriteTransfer TraceEvent",
        "session": "Provider Session configure_profile_sources event_id_filter pid_filter profile_interval "
        "profile_sources provider_guid rescue_session sessions set_profile_interval",
        "status": "EtwError Status",
        "streams": "Stream",
        "structures": "guid_of structure uuid_of",
    },
)


def __getattr__(name: str) -> Any:
    if name in __all__ or name.islower():  # as the modules are, which `from . import` asks for here
        return _named(name)
    constants = import_module(".flags", __name__).constants()
    return constants[name] if name in constants else _named(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *import_module(".flags", __name__).constants()})
