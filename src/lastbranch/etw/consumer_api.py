"""OpenTrace, ProcessTrace and CloseTrace: deliver the events of log files and sessions to callbacks, in time order.

On Windows the system's own functions do the work; elsewhere the functions here do, over `streams`. Rules and codes: the
pages of OpenTrace, ProcessTrace and CloseTrace. Where the pages say nothing (a handle that another thread processes:
170), the choice is ours. An exception of a Python callback ends the processing and is raised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any

from ..errors import FormatError
from ..formats.etl import LogHeader
from ..formats.etl.container.header import pack_log_header
from .event_records import Structures, event_records, event_traces
from .flags import KERNEL_LOGGER_NAME, LogFileMode, ProcessTraceMode
from .kernel_choice import windows
from .status import EtwError, Status, returns_status, returns_status_and, status_of_reading
from .streams import Ended, Stream, Timed, merged, open_stream, timed
from .structures import structure

__all__ = [
    "CloseTrace",
    "INVALID_PROCESSTRACE_HANDLE",
    "Logfile",
    "OpenTrace",
    "ProcessTrace",
    "close_trace",
    "open_trace",
    "process_trace",
]


# -- EVENT_TRACE_LOGFILEW: names as text, callbacks as callables


INVALID_PROCESSTRACE_HANDLE = (1 << 64) - 1
"""The handle that OpenTrace returns if it fails."""

_Base: Any = structure("EVENT_TRACE_LOGFILEW")


def _text(field: str) -> property:
    """A pointer to UTF-16 text, as a `str`; an address is stored as it is."""

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
    """A pointer to a function, as a callable that takes a structure; an address of C code becomes one, too."""
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
            # Nothing calls this number. It marks that a callback is set, and which.
            self.__dict__[field] = (id(value), value)
            value = id(value)
        getattr(_Base, field).__set__(self, value or 0)

    return property(get, put)


class Logfile(_Base):  # type: ignore[misc]
    """EVENT_TRACE_LOGFILEW, its fields by name: ``LogFileName`` for a file, ``LoggerName`` with
    `ProcessTraceMode.REAL_TIME` for a session::

        logfile = Logfile(LogFileName="x.etl", ProcessTraceMode=ProcessTraceMode.EVENT_RECORD)
        logfile.EventRecordCallback = lambda record: print(record.EventHeader.EventDescriptor.Id)

    The bytes are the documented ones. The object keeps alive what its pointers point to.

    ``EventRecordCallback (`ProcessTraceMode.EVENT_RECORD`; takes an EVENT_RECORD) and ``EventCallback`` (takes an
    EVENT_TRACE) are one field. The structure they get, and what it points to, is valid during the call.
    ``BufferCallback`` takes the `Logfile` and ends the processing if it returns false (``None`` goes on).
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


def describe(logfile: Logfile, header: Any, session_name: str) -> None:
    """Fill in what OpenTrace reports of the file or session: the TRACE_LOGFILE_HEADER, whose two pointers are not used,
    as documented, and what follows from it."""
    logfile.LogfileHeader = header
    logfile.LogfileHeader.LoggerName = logfile.LogfileHeader.LogFileName = 0
    logfile.BufferSize, logfile.EventsLost = header.BufferSize, header.EventsLost
    by_name = session_name.casefold() == KERNEL_LOGGER_NAME.casefold()
    logfile.IsKernelTrace = bool(header.LogFileMode & LogFileMode.SYSTEM_LOGGER_MODE) or by_name
    logfile.BuffersRead = logfile.Filled = 0


MOST_HANDLES = 64
"""The state of one ProcessTrace call."""


@dataclass(slots=True)
class _Trace:
    """An open handle."""

    handle: int
    logfile: Logfile
    stream: Stream
    mode: ProcessTraceMode
    busy: bool = False
    closing: bool = False
    made: tuple[Timed, Structures] | None = None
    """The part that is being delivered, with its structures."""

    @property
    def live(self) -> bool:
        return bool(self.mode & ProcessTraceMode.REAL_TIME)


_traces: dict[int, _Trace] = {}
_numbers = count(1)
_lock = Lock()


def open_trace(logfile: Any) -> int:
    """Open the file or session that ``logfile`` names, and fill in its description. Returns the handle.

    ``logfile`` may be any EVENT_TRACE_LOGFILEW, which the caller keeps until `close_trace`. Raises `EtwError`: 87
    without a structure, 161 without a name, 2 or 3 for a missing file, 5, 13 for a file that is no trace log, 4201 if
    no such session delivers in real time.
    """
    if logfile is None:
        raise EtwError("OpenTrace", Status.INVALID_PARAMETER, "no EVENT_TRACE_LOGFILE")
    if not isinstance(logfile, Logfile):
        logfile = Logfile.from_buffer(logfile)
    mode = ProcessTraceMode(logfile.ProcessTraceMode)
    session = bool(mode & ProcessTraceMode.REAL_TIME)
    name = logfile.LoggerName if session else logfile.LogFileName
    if not name:
        what = "LoggerName" if session else "LogFileName"
        raise EtwError("OpenTrace", Status.BAD_PATHNAME, f"{what} is empty")
    if (system := windows()) is not None:
        handle, theirs = system.traces.open(
            name,
            mode=mode,
            context=logfile.Context or 0,
            on_event=logfile.EventRecordCallback,
            on_buffer=_on_buffer(logfile),
        )
        describe(logfile, theirs.LogfileHeader, name if session else "")
        _take(logfile, theirs)
        return handle
    stream = open_stream(name, session=session)
    describe(logfile, _pack_header(stream.header), stream.header.session_name)
    with _lock:
        handle = next(_numbers)
        _traces[handle] = _Trace(handle, logfile, stream, mode)
    return handle


def process_trace(handles: Sequence[int], start: int | None = None, end: int | None = None) -> None:
    """Deliver the events of all ``handles`` in time order, up to their end.

    ``start`` and ``end`` are FILETIMEs, both included. Real time ends with the session. Raises `EtwError`: 24 for no
    handle or too many, 6 for one that is not open, 87 for real time and something else, 1901 for an end before the
    start, 170 for a handle that is being processed, 1223 if a BufferCallback returned false.
    """
    call = "ProcessTrace"
    if handles is None:
        raise EtwError(call, Status.INVALID_PARAMETER, "no handles")
    if not 0 < len(handles) <= MOST_HANDLES:
        raise EtwError(call, Status.BAD_LENGTH, f"{len(handles)} handles; it takes 1 to {MOST_HANDLES}")
    if start is not None and end is not None and end < start:
        raise EtwError(call, Status.INVALID_TIME)
    if (system := windows()) is not None:
        system.traces.process(handles, start, end)
        return
    traces = _claim(call, handles)
    try:
        streams = [timed(number, trace.stream, start, end) for number, trace in enumerate(traces)]
        for part, begin, until in _read(merged(streams)):
            _deliver(traces[part.owner], part, begin, until)
    finally:
        for trace in traces:
            trace.busy = False
            if trace.closing:
                _drop(trace)


def close_trace(handle: int) -> Status:
    """Close a handle: at once (`Status.SUCCESS`), or after the running callback and, in real time, the delivery of what
    was received (`Status.CTX_CLOSE_PENDING`). Raises `EtwError` 6 for a handle that is not open."""
    if (system := windows()) is not None:
        return system.traces.close(handle)
    with _lock:
        trace = _traces.get(handle)
        if trace is None or trace.closing:
            raise EtwError("CloseTrace", Status.INVALID_HANDLE)
        trace.closing = True
        busy = trace.busy
    if not busy:
        _drop(trace)
        return Status.SUCCESS
    trace.stream.end()
    return Status.CTX_CLOSE_PENDING


def _pack_header(header: LogHeader) -> Any:
    return structure("TRACE_LOGFILE_HEADER").from_buffer_copy(pack_log_header(header, 8))


_CHANGING, _DESCRIBING = ("CurrentTime", "BuffersRead", "Filled"), ("BufferSize", "EventsLost", "IsKernelTrace")


def _take(logfile: Logfile, theirs: Any) -> None:
    """Copy the OUT members of Windows' structure; a member that Windows leaves 0 keeps the header's value."""
    for name in _CHANGING:
        setattr(logfile, name, getattr(theirs, name))
    for name in _DESCRIBING:
        setattr(logfile, name, getattr(theirs, name) or getattr(logfile, name))


def _on_buffer(logfile: Logfile) -> Callable[[Any], Any] | None:
    """The BufferCallback for Windows' structure: it gets ``logfile``, as elsewhere."""
    callback = logfile.BufferCallback
    if callback is None:
        return None

    def called(theirs: Any) -> Any:
        _take(logfile, theirs)
        return callback(logfile)

    return called


def _claim(call: str, handles: Sequence[int]) -> list[_Trace]:
    """The traces of ``handles``, marked as busy."""
    with _lock:
        traces = [_traces.get(handle) for handle in handles]
        found = [trace for trace in traces if trace is not None and not trace.closing]
        if len(found) < len(traces):
            raise EtwError(call, Status.INVALID_HANDLE)
        if len(found) > 1 and any(trace.live for trace in found):
            raise EtwError(call, Status.INVALID_PARAMETER, "a session in real time is processed alone")
        if len(set(handles)) < len(found) or any(trace.busy for trace in found):
            raise EtwError(call, Status.BUSY, "a handle is being processed")
        for trace in found:
            trace.busy = True
    return found


def _drop(trace: _Trace) -> None:
    trace.stream.close()
    with _lock:
        _traces.pop(trace.handle, None)


def _read(runs: Iterator[tuple[Timed, int, int]]) -> Iterator[tuple[Timed, int, int]]:
    """``runs``, with the failures of a file or a stream as a status: 13, or that of `status_of_reading`."""
    try:
        yield from runs
    except FormatError as error:
        raise EtwError("ProcessTrace", Status.INVALID_DATA, str(error)) from None
    except OSError as error:
        raise EtwError("ProcessTrace", status_of_reading(error), str(error)) from None


# -- Calling the callbacks


def _structures(trace: _Trace, part: Timed) -> Structures:
    """The structures of ``part`` for the callbacks."""
    if trace.made is None or trace.made[0] is not part:
        block = part.part.block
        stamps = block.time if trace.mode & ProcessTraceMode.RAW_TIMESTAMP else part.times
        if trace.mode & ProcessTraceMode.EVENT_RECORD:
            made = event_records(block, stamps, trace.logfile.Context)
        else:
            made = event_traces(block, stamps)
        trace.made = part, made
    return trace.made[1]


def _deliver(trace: _Trace, part: Timed, begin: int, until: int) -> None:
    """Call the callbacks for rows ``begin`` to ``until``, and for the buffers that end there."""
    callback = trace.logfile.EventRecordCallback
    array = _structures(trace, part).array
    waiting = part.part.ended
    while begin < until:
        ended = waiting[0] if waiting and waiting[0].row < until else None
        stop = until if ended is None else ended.row + 1
        for row in range(begin, stop):
            if trace.closing and not trace.live:
                return
            if callback is not None:
                callback(array[row])
        begin = max(begin, stop)
        if ended is not None:
            del waiting[0]
            trace.logfile.CurrentTime = int(part.times[ended.row])
            _buffer_ended(trace, ended)


def _buffer_ended(trace: _Trace, ended: Ended) -> None:
    logfile = trace.logfile
    logfile.BuffersRead += 1
    logfile.BufferSize, logfile.Filled = ended.size, ended.filled
    callback = None if trace.closing else logfile.BufferCallback
    if callback is None:
        return
    more = callback(logfile)
    if more is not None and not more:
        raise EtwError("ProcessTrace", Status.CANCELLED, "BufferCallback ended it")


# -- The functions that return a status

OpenTrace = returns_status_and(INVALID_PROCESSTRACE_HANDLE)(open_trace)
ProcessTrace = returns_status(process_trace)
CloseTrace = returns_status(close_trace)
