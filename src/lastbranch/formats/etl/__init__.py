"""Windows event trace logs (.etl): buffers to event columns and events, and back.

Writing: `TraceWriter` from events, `write_profile` from a profile, `convert` from trace logs (compressed or not, cut,
merged), `read_records` and `encode_record` for single fields. Everything is loaded at first use: a program that only
writes events to a session needs no more than `layout`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .container.header import LogHeader, is_etl, read_header
    from .container.trace_file import TraceFile
    from .container.writer import TraceWriter, log_header
    from .event import Event
    from .events.columns import EventBlock
    from .events.reader import EventType, TraceLog
    from .profile.writer import Written, write_profile
    from .relog import Converted, convert
    from .rewrite import BufferRecord, EventRecord, drop_event, encode_record, read_records

_FACE = {
    "container.header": ("LogHeader", "is_etl", "read_header"),
    "container.trace_file": ("TraceFile",),
    "container.writer": ("TraceWriter", "log_header"),
    "event": ("Event",),
    "events.columns": ("EventBlock",),
    "events.reader": ("EventType", "TraceLog"),
    "profile.writer": ("Written", "write_profile"),
    "relog": ("Converted", "convert"),
    "rewrite": ("BufferRecord", "EventRecord", "drop_event", "encode_record", "read_records"),
}
_WHERE = {name: module for module, names in _FACE.items() for name in names}

__all__ = [
    "BufferRecord",
    "Converted",
    "Event",
    "EventBlock",
    "EventRecord",
    "EventType",
    "LogHeader",
    "TraceFile",
    "TraceLog",
    "TraceWriter",
    "Written",
    "convert",
    "drop_event",
    "encode_record",
    "is_etl",
    "log_header",
    "read_header",
    "read_records",
    "write_profile",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value
