"""Windows event trace logs (.etl): buffers to event columns and events, and back.

Writing: `TraceWriter` from events, `write_profile` from a profile, `convert` from trace logs (compressed or not, cut,
merged), `read_records` and `encode_record` for single fields. Everything is loaded at first use: a program that only
writes events to a session needs no more than `layout`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .columns import EventBlock
    from .event import Event
    from .events import EventType, TraceLog
    from .header import LogHeader, is_etl, read_header
    from .profile_writer import Written, write_profile
    from .rewrite import BufferRecord, EventRecord, drop_event, encode_record, read_records
    from .trace_file import TraceFile
    from .transfer import Converted, convert
    from .writer import TraceWriter, log_header

_WHERE = {
    "BufferRecord": "rewrite",
    "Converted": "transfer",
    "Event": "event",
    "EventBlock": "columns",
    "EventRecord": "rewrite",
    "EventType": "events",
    "LogHeader": "header",
    "TraceFile": "trace_file",
    "TraceLog": "events",
    "TraceWriter": "writer",
    "Written": "profile_writer",
    "convert": "transfer",
    "drop_event": "rewrite",
    "encode_record": "rewrite",
    "is_etl": "header",
    "log_header": "writer",
    "read_header": "header",
    "read_records": "rewrite",
    "write_profile": "profile_writer",
}

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
