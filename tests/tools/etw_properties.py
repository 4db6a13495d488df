"""EVENT_TRACE_PROPERTIES with room for two names, as a program in C would lay it out."""

from __future__ import annotations

import ctypes
from typing import Any

from lastbranch.etw.flags import WnodeFlag
from lastbranch.etw.structures import structure


def properties(file: str = "", room: int = 64, version: int = 1, **values: Any) -> ctypes.Array[Any]:
    """Session name behind the structure, log file name behind it, ``room`` characters each."""
    kind = structure("EVENT_TRACE_PROPERTIES_V2" if version == 2 else "EVENT_TRACE_PROPERTIES")
    head = ctypes.sizeof(kind)
    text = file.encode("utf-16-le") + b"\0\0"
    buffer = (ctypes.c_ubyte * (head + 2 * room + max(2 * room, len(text))))()
    made = kind.from_buffer(buffer)
    made.Wnode.BufferSize, made.Wnode.Flags = len(buffer), WnodeFlag.TRACED_GUID
    made.LoggerNameOffset, made.LogFileNameOffset = head, head + 2 * room if file else 0
    if version == 2:
        made.Wnode.Flags |= WnodeFlag.VERSIONED_PROPERTIES
        made.V2Control = 2
    for field, value in values.items():
        setattr(made, field, value)
    memoryview(buffer).cast("B")[head + 2 * room : head + 2 * room + len(text)] = text
    return buffer
