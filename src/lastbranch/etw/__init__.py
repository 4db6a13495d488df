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
from typing import TYPE_CHECKING, Any

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .consumer_api import INVALID_PROCESSTRACE_HANDLE, CloseTrace, Logfile, OpenTrace, ProcessTrace
    from .control_api import (
        ControlTrace,
        EnableTraceEx2,
        QueryAllTraces,
        StartTrace,
        TraceConfigureLastBranchRecord,
        TraceQueryInformation,
        TraceSetInformation,
    )
    from .event_records import event_of
    from .events import ConsumedEvent, consume
    from .flags import (
        GROUPS,
        ClientContext,
        Control,
        EnableFlag,
        EnableProvider,
        Info,
        LogFileMode,
        MergeFlag,
        ProcessTraceMode,
        V2Option,
        WnodeFlag,
    )
    from .interface import EnableParameters, EventDescriptor, ProfileSource
    from .merging import CreateMergedTraceFile
    from .properties import Filter, SessionRequest, SessionState
    from .provider_api import (
        EventEnabled,
        EventProviderEnabled,
        EventRegister,
        EventSetInformation,
        EventUnregister,
        EventWrite,
        EventWriteTransfer,
        TraceEvent,
    )
    from .providers import event_id_filter, pid_filter, provider_guid
    from .session import (
        Provider,
        Session,
        configure_profile_sources,
        profile_interval,
        profile_sources,
        rescue_session,
        sessions,
        set_profile_interval,
    )
    from .status import EtwError, Status
    from .structures import guid_of, structure, uuid_of

__all__ = [
    "ClientContext",
    "CloseTrace",
    "ConsumedEvent",
    "Control",
    "ControlTrace",
    "CreateMergedTraceFile",
    "EnableFlag",
    "EnableParameters",
    "EnableProvider",
    "EnableTraceEx2",
    "EtwError",
    "EventDescriptor",
    "EventEnabled",
    "EventProviderEnabled",
    "EventRegister",
    "EventSetInformation",
    "EventUnregister",
    "EventWrite",
    "EventWriteTransfer",
    "Filter",
    "GROUPS",
    "INVALID_PROCESSTRACE_HANDLE",
    "Info",
    "LogFileMode",
    "Logfile",
    "MergeFlag",
    "OpenTrace",
    "ProcessTrace",
    "ProcessTraceMode",
    "ProfileSource",
    "Provider",
    "QueryAllTraces",
    "Session",
    "SessionRequest",
    "SessionState",
    "StartTrace",
    "Status",
    "TraceConfigureLastBranchRecord",
    "TraceEvent",
    "TraceQueryInformation",
    "TraceSetInformation",
    "V2Option",
    "WnodeFlag",
    "configure_profile_sources",
    "consume",
    "event_id_filter",
    "event_of",
    "guid_of",
    "pid_filter",
    "profile_interval",
    "profile_sources",
    "provider_guid",
    "rescue_session",
    "sessions",
    "set_profile_interval",
    "structure",
    "uuid_of",
]

_declared = lazy_names(
    __name__,
    {
        "consumer_api": "CloseTrace OpenTrace ProcessTrace INVALID_PROCESSTRACE_HANDLE Logfile",
        "control_api": (
            "ControlTrace EnableTraceEx2 QueryAllTraces "
            "StartTrace TraceConfigureLastBranchRecord TraceQueryInformation TraceSetInformation"
        ),
        "event_records": "event_of",
        "events": "ConsumedEvent consume",
        "flags": (
            "GROUPS ClientContext Control EnableFlag EnableProvider "
            "Info LogFileMode MergeFlag ProcessTraceMode V2Option WnodeFlag"
        ),
        "interface": "EnableParameters EventDescriptor ProfileSource",
        "merging": "CreateMergedTraceFile",
        "properties": "Filter SessionRequest SessionState",
        "provider_api": (
            "EventEnabled EventProviderEnabled EventRegister EventSetInformation "
            "EventUnregister EventWrite EventWriteTransfer TraceEvent"
        ),
        "providers": "event_id_filter pid_filter provider_guid",
        "session": (
            "Provider Session configure_profile_sources profile_interval profile_sources rescue_session sessions "
            "set_profile_interval"
        ),
        "status": "EtwError Status",
        "structures": "guid_of structure uuid_of",
    },
)


def __getattr__(name: str) -> Any:
    if name in __all__ or name.islower():  # as the modules are, which `from . import` asks for here
        return _declared(name)
    constants = import_module(".flags", __name__).constants()
    return constants[name] if name in constants else _declared(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *import_module(".flags", __name__).constants()})
