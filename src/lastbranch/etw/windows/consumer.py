"""OpenTrace, ProcessTrace, CloseTrace of Windows, with Python functions as callbacks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from ..flags import ProcessTraceMode
from ..status import EtwError, Status
from .libraries import Libraries, Loader, SystemLoader, callback, wide
from .memory import native

__all__ = ["WindowsTraces"]

INVALID_HANDLES = (0xFFFFFFFF, 0xFFFFFFFF_FFFFFFFF)
"""INVALID_PROCESSTRACE_HANDLE: the first is that of 32-bit programs on older systems."""

OnEvent = Callable[[Any], object]
OnBuffer = Callable[[Any], object]


class _Trace:
    """One open trace: its structure, what that points to, and the first exception of a callback."""

    def __init__(
        self, source: str, mode: int, context: int, on_event: OnEvent | None, on_buffer: OnBuffer | None
    ) -> None:
        self.failure: BaseException | None = None
        self._on_event, self._on_buffer = on_event, on_buffer
        record = bool(mode & ProcessTraceMode.EVENT_RECORD)
        self._event = native("EVENT_RECORD" if record else "EVENT_TRACE")
        self._name = wide("OpenTrace", source)
        self._callbacks = (
            callback("PEVENT_RECORD_CALLBACK" if record else "PEVENT_CALLBACK", self._event_came),
            callback("PEVENT_TRACE_BUFFER_CALLBACKW", self._buffer_came),
        )
        self.logfile = native("EVENT_TRACE_LOGFILEW")()
        name = "LoggerName" if mode & ProcessTraceMode.REAL_TIME else "LogFileName"
        setattr(self.logfile, name, ctypes.addressof(self._name))
        self.logfile.ProcessTraceMode, self.logfile.Context = mode, context
        event, buffer = (ctypes.cast(c, ctypes.c_void_p).value for c in self._callbacks)
        self.logfile.EventRecordCallback, self.logfile.BufferCallback = event, buffer

    def _event_came(self, address: int) -> None:
        if self.failure is not None or self._on_event is None:
            return
        try:
            self._on_event(self._event.from_address(address))
        except BaseException as error:  # an interrupt too: nothing may pass through Windows' frames
            self.failure = error

    def _buffer_came(self, address: int) -> int:
        """Whether Windows is to go on."""
        more: object = True
        if self.failure is None and self._on_buffer is not None:
            try:
                more = self._on_buffer(native("EVENT_TRACE_LOGFILEW").from_address(address))
            except BaseException as error:
                self.failure = error
        return self.failure is None and (more is None or bool(more))


class WindowsTraces:
    """Traces that this process reads. ``loader`` loads the DLLs (Windows' own for ``None``)."""

    def __init__(self, loader: Loader | None = None) -> None:
        self._libraries = Libraries(loader or SystemLoader())
        self._open: dict[int, _Trace] = {}

    def open(
        self, source: str, *, mode: int, on_event: OnEvent | None, on_buffer: OnBuffer | None = None, context: int = 0
    ) -> tuple[int, Any]:
        """Open a log file, or the session of that name where ``mode`` has REAL_TIME.

        ``on_event`` gets the EVENT_RECORD (EVENT_TRACE without EVENT_RECORD in ``mode``), ``on_buffer`` the
        EVENT_TRACE_LOGFILEW; both are Windows' memory and are valid during the call. A false result of ``on_buffer``,
        other than ``None``, ends processing. ``context`` is UserContext of each EVENT_RECORD. Returns the handle and a
        copy of the EVENT_TRACE_LOGFILEW as OpenTrace left it. Raises `EtwError` with the code of GetLastError.
        """
        trace = _Trace(source, mode, context, on_event, on_buffer)
        handle = int(self._libraries.function("OpenTraceW")(ctypes.byref(trace.logfile)))
        if handle in INVALID_HANDLES:
            raise EtwError("OpenTrace", self._libraries.loader.last_error(), f"{source} cannot be opened")
        self._open[handle] = trace
        return handle, type(trace.logfile).from_buffer_copy(trace.logfile)

    def process(self, handles: Sequence[int], start: int | None = None, end: int | None = None) -> None:
        """Deliver the events of ``handles`` from FILETIME ``start`` to ``end``; returns at their end.

        Raises the first exception of a callback (processing ends at the next buffer then), else `EtwError` with the
        code: 1223 if ``on_buffer`` ended it.
        """
        traces = [self._open[h] for h in handles if h in self._open]  # kept alive if CloseTrace is called meanwhile
        array = (ctypes.c_uint64 * len(handles))(*handles)
        code = int(self._libraries.function("ProcessTrace")(array, len(handles), _filetime(start), _filetime(end)))
        for trace in traces:
            if trace.failure is not None:
                failure, trace.failure = trace.failure, None
                raise failure
        if code:
            raise EtwError("ProcessTrace", code)

    def close(self, handle: int) -> Status:
        """CloseTrace: 0, or 7007 if `process` still runs and ends the trace."""
        fine = (Status.SUCCESS, Status.CTX_CLOSE_PENDING)
        code = self._libraries.status("CloseTrace", handle, fine=fine)
        self._open.pop(handle, None)
        return Status(code)


def _filetime(value: int | None) -> Any:
    """A FILETIME is the low half and the high half: on Windows' processors the same as a 64-bit integer."""
    return None if value is None else ctypes.byref(ctypes.c_uint64(value))
