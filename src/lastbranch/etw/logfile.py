"""EVENT_TRACE_LOGFILEW as Python fills it in: names as text, callbacks as callables.

    logfile = Logfile(LogFileName="x.etl", ProcessTraceMode=ProcessTraceMode.EVENT_RECORD)
    logfile.EventRecordCallback = lambda record: print(record.EventHeader.EventDescriptor.Id)

The bytes are the documented ones; what the pointers point to is kept alive by the object.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ..formats.etl import LogHeader
from ..formats.etl.container.header import pack_log_header
from .flags import KERNEL_LOGGER_NAME, LogFileMode
from .structures import structure

__all__ = ["INVALID_PROCESSTRACE_HANDLE", "Logfile", "describe"]

INVALID_PROCESSTRACE_HANDLE = (1 << 64) - 1
"""What OpenTrace gives where it fails."""

_Base: Any = structure("EVENT_TRACE_LOGFILEW")


def _text(field: str) -> property:
    """A pointer to UTF-16 text, as a `str`; an address is taken as it is."""

    def get(self: Any) -> str:
        address = getattr(_Base, field).__get__(self)
        return _read_text(address) if address else ""

    def put(self: Any, value: str | int | None) -> None:
        if isinstance(value, str):
            memory = ctypes.create_string_buffer(value.encode("utf-16-le", "surrogatepass") + bytes(2))
            self.__dict__[field] = memory
            value = ctypes.addressof(memory)
        getattr(_Base, field).__set__(self, value or 0)

    return property(get, put)


def _read_text(address: int) -> str:
    units = bytearray()
    while (unit := ctypes.string_at(address + len(units), 2)) != b"\0\0":
        units += unit
    return units.decode("utf-16-le", "surrogatepass")


def _callback(field: str, result: Any) -> property:
    """A pointer to a function, as a callable that takes a structure; an address of C code is called by that."""
    prototype = ctypes.CFUNCTYPE(result, ctypes.c_void_p)

    def get(self: Any) -> Callable[[Any], Any] | None:
        address = getattr(_Base, field).__get__(self)
        if not address:
            return None
        kept: tuple[int, Callable[[Any], Any]] | None = self.__dict__.get(field)
        if kept is not None and kept[0] == address:
            return kept[1]
        function = prototype(address)
        return lambda made: function(ctypes.addressof(made))

    def put(self: Any, value: Callable[[Any], Any] | int | None) -> None:
        if callable(value):
            # Nothing calls by this number: it only says that there is a callback, and which.
            self.__dict__[field] = (id(value), value)
            value = id(value)
        getattr(_Base, field).__set__(self, value or 0)

    return property(get, put)


class Logfile(_Base):  # type: ignore[misc]
    """EVENT_TRACE_LOGFILEW. Fields are given by name; ``LogFileName`` for a file, ``LoggerName`` with
    `ProcessTraceMode.REAL_TIME` for a session.

    ``EventRecordCallback`` (`ProcessTraceMode.EVENT_RECORD`; takes an EVENT_RECORD) and ``EventCallback`` (takes an
    EVENT_TRACE) are one field; a structure that they are given, and what it points to, is valid during the call.
    ``BufferCallback`` takes the `Logfile` and ends the processing where it returns false (``None`` goes on).
    """

    LogFileName, LoggerName = _text("LogFileName"), _text("LoggerName")
    EventCallback = EventRecordCallback = _callback("EventCallback", None)
    BufferCallback = _callback("BufferCallback", ctypes.c_uint32)

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        for name, value in fields.items():
            if not hasattr(type(self), name):
                raise TypeError(f"EVENT_TRACE_LOGFILEW has no field {name}")
            setattr(self, name, value)


def describe(logfile: Logfile, header: LogHeader) -> None:
    """Fill in what OpenTrace reports of the file or session. The header's two pointers are not used, as documented."""
    logfile.LogfileHeader = structure("TRACE_LOGFILE_HEADER").from_buffer_copy(pack_log_header(header, 8))
    logfile.LogfileHeader.LoggerName = logfile.LogfileHeader.LogFileName = 0
    logfile.BufferSize, logfile.EventsLost = header.buffer_size, header.events_lost
    by_name = header.session_name.casefold() == KERNEL_LOGGER_NAME.casefold()
    logfile.IsKernelTrace = bool(header.mode & LogFileMode.SYSTEM_LOGGER_MODE) or by_name
    logfile.BuffersRead = logfile.Filled = 0
