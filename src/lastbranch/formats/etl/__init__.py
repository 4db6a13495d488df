"""Windows event trace logs (.etl): buffers to event columns and events. Payloads are decoded by other modules here."""

from .columns import EventBlock
from .event import Event
from .events import EventType, TraceLog
from .header import LogHeader, is_etl, read_header

__all__ = ["Event", "EventBlock", "EventType", "LogHeader", "TraceLog", "is_etl", "read_header"]
