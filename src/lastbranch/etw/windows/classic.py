"""TraceEvent: a classic event with its data behind the header."""

from __future__ import annotations

import ctypes

from ..flags import WnodeFlag
from ..kernel import ClassicHeader
from ..status import EtwError, Status
from ..structures import guid_of
from .libraries import Libraries
from .memory import native

__all__ = ["trace_event"]

MOST_BYTES = 0xFFFF
"""EVENT_TRACE_HEADER.Size has 16 bits."""


def trace_event(libraries: Libraries, handle: int, header: ClassicHeader, data: bytes) -> None:
    """Write one event to session ``handle``; Windows fills in thread, process and time.

    Raises `EtwError`: 534 for an event whose size the header cannot say, else Windows' code.
    """
    kind = native("EVENT_TRACE_HEADER")
    size = ctypes.sizeof(kind) + len(data)
    if size > MOST_BYTES:
        raise EtwError("TraceEvent", Status.ARITHMETIC_OVERFLOW, f"an event of {size} bytes; {MOST_BYTES} are the most")
    head = kind(Size=size, Version=header.type | header.level << 8 | header.version << 16, Guid=guid_of(header.guid))
    head.ProcessorTime = int(WnodeFlag.TRACED_GUID) << 32  # the union's {ClientContext, Flags}
    event = ctypes.create_string_buffer(bytes(head) + data, size)
    libraries.status("TraceEvent", handle, event)
