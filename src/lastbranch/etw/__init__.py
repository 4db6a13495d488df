"""Trace sessions: the control API of Event Tracing for Windows, on Windows' kernel and on a portable one.

The functions are the vendor's, call for call; OUT parameters are returned behind the status::

    status, handle = StartTrace("name", properties)
    status = ControlTrace(handle, None, properties, EVENT_TRACE_CONTROL_STOP)

Structures (``EVENT_TRACE_PROPERTIES``...) are ctypes classes, constants have their names of the headers. The same in
Python's own terms, with context managers, exceptions and enumerations, is `Session` and `Provider`. Everything is
loaded at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .consumed import ConsumedEvent as ConsumedEvent
    from .consumed import consume as consume
    from .consumer import CloseTrace as CloseTrace
    from .consumer import OpenTrace as OpenTrace
    from .consumer import ProcessTrace as ProcessTrace
    from .control_api import ControlTrace as ControlTrace
    from .control_api import EnableTraceEx2 as EnableTraceEx2
    from .control_api import QueryAllTraces as QueryAllTraces
    from .control_api import StartTrace as StartTrace
    from .control_api import TraceConfigureLastBranchRecord as TraceConfigureLastBranchRecord
    from .control_api import TraceQueryInformation as TraceQueryInformation
    from .control_api import TraceSetInformation as TraceSetInformation
    from .event_records import event_of as event_of
    from .flags import GROUPS as GROUPS
    from .flags import ClientContext as ClientContext
    from .flags import Control as Control
    from .flags import EnableFlag as EnableFlag
    from .flags import EnableProvider as EnableProvider
    from .flags import Info as Info
    from .flags import LogFileMode as LogFileMode
    from .flags import ProcessTraceMode as ProcessTraceMode
    from .flags import V2Option as V2Option
    from .flags import WnodeFlag as WnodeFlag
    from .logfile import INVALID_PROCESSTRACE_HANDLE as INVALID_PROCESSTRACE_HANDLE
    from .logfile import Logfile as Logfile
    from .merging import CreateMergedTraceFile as CreateMergedTraceFile
    from .merging import MergeFlag as MergeFlag
    from .properties import Filter as Filter
    from .properties import SessionRequest as SessionRequest
    from .properties import SessionState as SessionState
    from .provider_api import EventEnabled as EventEnabled
    from .provider_api import EventProviderEnabled as EventProviderEnabled
    from .provider_api import EventRegister as EventRegister
    from .provider_api import EventSetInformation as EventSetInformation
    from .provider_api import EventUnregister as EventUnregister
    from .provider_api import EventWrite as EventWrite
    from .provider_api import EventWriteTransfer as EventWriteTransfer
    from .provider_api import TraceEvent as TraceEvent
    from .providers import event_id_filter as event_id_filter
    from .providers import pid_filter as pid_filter
    from .providers import provider_guid as provider_guid
    from .session import Provider as Provider
    from .session import Session as Session
    from .session import configure_profile_sources as configure_profile_sources
    from .session import profile_interval as profile_interval
    from .session import profile_sources as profile_sources
    from .session import sessions as sessions
    from .session import set_profile_interval as set_profile_interval
    from .status import EtwError as EtwError
    from .status import Status as Status
    from .structures import guid_of as guid_of
    from .structures import structure as structure
    from .structures import uuid_of as uuid_of
    from .types import EnableParameters as EnableParameters
    from .types import EventDescriptor as EventDescriptor
    from .types import ProfileSource as ProfileSource

_MODULES = {
    "consumed": "ConsumedEvent consume",
    "consumer": "CloseTrace OpenTrace ProcessTrace",
    "control_api": (
        "ControlTrace EnableTraceEx2 QueryAllTraces StartTrace TraceConfigureLastBranchRecord "
        "TraceQueryInformation TraceSetInformation"
    ),
    "event_records": "event_of",
    "flags": (
        "GROUPS ClientContext Control EnableFlag EnableProvider Info LogFileMode ProcessTraceMode V2Option WnodeFlag"
    ),
    "logfile": "INVALID_PROCESSTRACE_HANDLE Logfile",
    "merging": "CreateMergedTraceFile MergeFlag",
    "properties": "Filter SessionRequest SessionState",
    "provider_api": (
        "EventEnabled EventProviderEnabled EventRegister EventSetInformation EventUnregister "
        "EventWrite EventWriteTransfer TraceEvent"
    ),
    "providers": "event_id_filter pid_filter provider_guid",
    "session": (
        "Provider Session configure_profile_sources profile_interval profile_sources sessions set_profile_interval"
    ),
    "status": "EtwError Status",
    "structures": "guid_of structure uuid_of",
    "types": "EnableParameters EventDescriptor ProfileSource",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    value = None
    if name in _WHERE:
        value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    elif not name.islower():  # as the modules are, which `from . import` asks for here
        value = import_module(".flags", __name__).constants().get(name)
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *import_module(".flags", __name__).constants()})
