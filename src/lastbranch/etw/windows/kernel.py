"""Windows' kernel of trace sessions: each operation as calls of Windows' DLLs.

No line of this package was executed on Windows; ``docs/reference/etw-windows.md`` says what each rests on. Windows
itself checks requests: a code is its own, except for those that the docstrings here name.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from ..flags import (
    CIRCULAR_KERNEL_LOGGER,
    KERNEL_LOGGER,
    KERNEL_LOGGER_NAME,
    Control,
    EnableProvider,
    Info,
    LogFileMode,
    ProcessTraceMode,
    WnodeFlag,
    hook_ids,
)
from ..information import CONFIGURE_LBR, QUERIES, check_lbr, decode, encode
from ..interface import ClassicHeader, EnableCallback, EnableParameters, EventDescriptor
from ..properties import SessionRequest, SessionState, descriptors_at, filters_of
from ..status import EtwError, Status
from ..structures import guid_of, uuid_of
from .libraries import Libraries, Loader, SystemLoader, callback, wide
from .memory import BITS, Parameters, Properties, bytes_at_call, events_of, native

__all__ = ["TokenPrivileges", "WindowsKernel", "WindowsRegistration", "WindowsTraces"]


# -- OpenTrace, ProcessTrace, CloseTrace, with Python functions as callbacks


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


# -- SeSystemProfilePrivilege: enabled in this process's token before a call that needs it


SYSTEM_PROFILE = "SeSystemProfilePrivilege"
NOT_ALL_ASSIGNED = 1300
"""GetLastError after an AdjustTokenPrivileges that returned TRUE and enabled nothing."""
_QUERY, _ADJUST = 0x8, 0x20
"""TOKEN_QUERY, TOKEN_ADJUST_PRIVILEGES."""
_ENABLED = 0x2
"""SE_PRIVILEGE_ENABLED."""


_REFUSALS = (Status.ACCESS_DENIED, Status.PRIVILEGE_NOT_HELD)


class _Luid(ctypes.Structure):
    _fields_ = [("LowPart", ctypes.c_uint32), ("HighPart", ctypes.c_int32)]


class TokenPrivileges(ctypes.Structure):
    """TOKEN_PRIVILEGES with one privilege: 16 bytes, in 32 and in 64 bits."""

    _fields_ = [("PrivilegeCount", ctypes.c_uint32), ("Luid", _Luid), ("Attributes", ctypes.c_uint32)]


def enable_privilege(libraries: Libraries, name: str = SYSTEM_PROFILE) -> None:
    """Enable privilege ``name`` for this process; it stays enabled.

    Raises `EtwError`: 1314 if the token does not have it, else the code of the failed call.
    """
    token = ctypes.c_void_p()
    process = libraries.function("GetCurrentProcess")()
    _true(libraries, "OpenProcessToken", process, _QUERY | _ADJUST, ctypes.byref(token))
    try:
        asked = TokenPrivileges(1, _Luid(), _ENABLED)
        at = ctypes.addressof(asked) + TokenPrivileges.Luid.offset
        _true(libraries, "LookupPrivilegeValueW", None, wide("LookupPrivilegeValue", name), at)
        _true(libraries, "AdjustTokenPrivileges", token, False, ctypes.byref(asked), 0, None, None)
        if libraries.loader.last_error() == NOT_ALL_ASSIGNED:
            raise EtwError(
                "AdjustTokenPrivileges",
                Status.PRIVILEGE_NOT_HELD,
                f"the account does not hold {name}",
                hint="run from an elevated prompt",
            )
    finally:
        libraries.function("CloseHandle")(token)


def _true(libraries: Libraries, name: str, *arguments: Any) -> None:
    """Call ``name``, which returns a BOOL and leaves its code for GetLastError."""
    if not libraries.function(name)(*arguments):
        raise EtwError(name.removesuffix("W"), libraries.loader.last_error())


@contextmanager
def system_profile(libraries: Libraries) -> Iterator[None]:
    """For calls that need `SYSTEM_PROFILE`. If it cannot be enabled, Windows still decides; its refusal says why."""
    refused: EtwError | None = None
    try:
        enable_privilege(libraries)
    except EtwError as error:
        refused = error
    try:
        yield
    except EtwError as error:
        if refused is None or error.status not in _REFUSALS:
            raise
        why = f"{Status(error.status).reason}, and {SYSTEM_PROFILE} could not be enabled ({refused})"
        raise EtwError(error.call, error.status, why, hint=refused.hint) from refused


# -- Providers of this process


_LIVE: set[WindowsRegistration] = set()
"""Registrations that Windows may call: they must not be collected, and must end before Python does."""


class WindowsRegistration:
    """A provider that EventRegister registered. Windows' last callback set ``enabled``, ``level`` and ``keywords``.

    The user's callback runs in a thread of Windows'; its exceptions go to ``sys.unraisablehook``, as no caller can
    catch them.
    """

    def __init__(self, libraries: Libraries, provider: UUID, on_enable: EnableCallback | None) -> None:
        self.enabled = False
        self.level = 0
        self.keywords = 0
        self._libraries = libraries
        self._on_enable = on_enable
        self._callback = callback("PENABLECALLBACK", self._enable)
        self._handle = ctypes.c_uint64()
        self._open = False
        self._write = libraries.function("EventWriteTransfer")
        self._descriptor = native("EVENT_DESCRIPTOR")
        self._data = native("EVENT_DATA_DESCRIPTOR")
        guid = guid_of(provider)
        libraries.status("EventRegister", ctypes.byref(guid), self._callback, None, ctypes.byref(self._handle))
        self._open = True
        _LIVE.add(self)

    def _enable(
        self, source: int | None, code: int, level: int, match_any: int, match_all: int, filters: int | None, _: Any
    ) -> None:
        """PENABLECALLBACK; it may run before EventRegister has returned."""
        if code != EnableProvider.CAPTURE_STATE:
            self.level, self.keywords = level, match_any
            self.enabled = code == EnableProvider.ENABLE
        if self._on_enable is not None:
            who = uuid_of(native("GUID").from_address(source)) if source else UUID(int=0)
            self._on_enable(
                who, EnableProvider(code), level, match_any, match_all, filters_of(descriptors_at(filters, 1, BITS))
            )

    def takes(self, level: int, keyword: int) -> bool:
        """EventProviderEnabled."""
        if not self.enabled:
            return False
        return bool(self._libraries.function("EventProviderEnabled")(self._handle, level, keyword))

    def write(self, descriptor: EventDescriptor, data: bytes = b"", activity: bytes = b"", related: bytes = b"") -> int:
        """EventWriteTransfer; returns its code. Without ``activity`` the event has that of the thread."""
        if not self.enabled:
            return Status.SUCCESS
        memory = bytes_at_call(data)
        piece = self._data(ctypes.addressof(memory), len(data)) if memory is not None else None
        return int(
            self._write(
                self._handle,
                ctypes.byref(self._descriptor(*descriptor)),
                activity or None,
                related or None,
                1 if piece is not None else 0,
                ctypes.byref(piece) if piece is not None else None,
            )
        )

    def set_information(self, kind: int, data: bytes) -> None:
        """EventSetInformation."""
        self._libraries.status("EventSetInformation", self._handle, kind, bytes_at_call(data), len(data))

    def close(self) -> None:
        """EventUnregister: after it no callback runs. Must not be called from the callback."""
        if self._open:
            self._open = self.enabled = False
            self._libraries.status("EventUnregister", self._handle)
            _LIVE.discard(self)  # not if it failed: Windows may go on calling


@atexit.register
def _close_all() -> None:
    for registration in tuple(_LIVE):
        with suppress(EtwError):
            registration.close()


# -- The kernel


FIXED = {KERNEL_LOGGER_NAME.casefold(): KERNEL_LOGGER, "circular kernel context logger": CIRCULAR_KERNEL_LOGGER}
"""Sessions of these names must be started with these GUIDs."""
PRIVILEGED = frozenset(
    {
        Info.STACK_TRACING_INFO, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, Info.SAMPLED_PROFILE_INTERVAL_INFO,
        Info.PROFILE_SOURCE_CONFIG_INFO, Info.PROFILE_SOURCE_LIST_INFO, Info.PMC_EVENT_LIST_INFO,
        Info.PMC_COUNTER_LIST_INFO, Info.LBR_CONFIGURATION_INFO, Info.LBR_EVENT_LIST_INFO,
    }
)  # fmt: skip
"""Classes for which SeSystemProfilePrivilege is enabled first."""
OLDEST_BUILD = 18362
"""Windows 10 1903, the first with the classes 20 and 21."""
MOST_BYTES = 0xFFFF
"""EVENT_TRACE_HEADER.Size has 16 bits."""
TOO_SMALL = (Status.BAD_LENGTH, Status.INSUFFICIENT_BUFFER, Status.MORE_DATA)
MOST_LOGGERS = 64
"""Structures of the first QueryAllTraces."""
_TRIES = 8
"""How often a buffer may be too small because the answer grew between two calls."""
_FIRST_LIST = 4096
"""Bytes for a list whose size a call did not return."""
_READING = (Control.QUERY, Control.STOP)
"""Operations for which the properties are output only."""
_EVERY_CODE = range(1 << 32)


class WindowsKernel:
    """Event Tracing for Windows. ``loader`` loads the DLLs (Windows' own for ``None``)."""

    name = "windows"
    most_sessions: int | None = None

    def __init__(self, loader: Loader | None = None) -> None:
        self.libraries = Libraries(loader or SystemLoader())
        self.traces = WindowsTraces(self.libraries.loader)
        """Traces that this process reads."""
        self._call = self.libraries.status
        self._private: dict[int | str, SessionRequest] = {}
        """Private sessions of this process by handle and name: their controls need GUID and mode."""

    # -- sessions

    def start(self, request: SessionRequest, targets: Sequence[int] = ()) -> SessionState:
        """Start a session, and query it.

        Raises `EtwError`: Windows' code; 50 for ``targets``, which only the software LBR has; 120 if StartTrace
        succeeds but no session answers, as on a system that only pretends to have them (Wine returns 0xcafe4242).
        """
        if targets:
            raise EtwError("StartTrace", Status.NOT_SUPPORTED, "Windows records the branches of all processes")
        fixed = FIXED.get(request.name.casefold())
        asked = Properties("StartTrace", replace(request, guid=fixed) if fixed and not request.guid.int else request)
        handle = ctypes.c_uint64()
        with self._privilege(request.system):
            self._call("StartTraceW", ctypes.byref(handle), wide("StartTrace", request.name), asked.address)
        state = asked.state()
        state.handle = handle.value
        if not request.mode & LogFileMode.PRIVATE_LOGGER_MODE:
            return self._query_state(state)
        self._private[state.handle] = self._private[request.name.casefold()] = state.request
        return state

    def _query_state(self, state: SessionState) -> SessionState:
        """The state that a query returns; ``state`` itself if the session may not be queried."""
        try:
            found = self.control(Control.QUERY, state.handle, None)
        except EtwError as error:
            if error.status == Status.ACCESS_DENIED:
                return state
            found = None
            why = f"and its query fails with {int(error.status)}"
        else:
            why = "and its query finds no session"
        if found is None or found.request.name.casefold() != state.request.name.casefold():
            with suppress(EtwError):  # leave nothing running
                self.control(Control.STOP, state.handle, None)
            raise EtwError(
                "StartTrace",
                Status.CALL_NOT_IMPLEMENTED,
                f"success with handle {state.handle:#x}, {why}",
                hint="this system has no trace sessions; on Linux, the portable kernel runs them",
            )
        found.handle = state.handle
        return found

    def control(self, code: Control, session: int | str, request: SessionRequest | None) -> SessionState:
        """ControlTrace; ``request`` carries what an update changes and the file of a flush.

        Without a file in ``request`` the properties have no offset to one, so that the session keeps its file. Windows
        cannot return the file's name then: a query does.
        """
        properties = Properties("ControlTrace", None if code in _READING else request)
        private = self._private.get(session if isinstance(session, int) else session.casefold())
        if private is not None:
            properties.head.Wnode.Guid = guid_of(private.guid)
            properties.head.LogFileMode |= int(private.mode)
        handle, name = (session, None) if isinstance(session, int) else (0, wide("ControlTrace", session))
        self._call("ControlTraceW", handle, name, properties.address, int(code))
        state = properties.state()
        if code not in _READING and not state.request.file:
            with suppress(EtwError):  # the operation itself was carried out
                now = self.control(Control.QUERY, session, None).request
                state.request = replace(state.request, file=now.file)
        return state

    def sessions(self) -> list[SessionState]:
        """QueryAllTraces, with more structures if more than 64 sessions run."""
        room, count = MOST_LOGGERS, ctypes.c_uint32()
        for _ in range(_TRIES):
            every = [Properties("QueryAllTraces") for _ in range(room)]
            array = (ctypes.c_void_p * room)(*[p.address for p in every])
            fine = (Status.SUCCESS, Status.MORE_DATA)
            code = self._call("QueryAllTracesW", array, room, ctypes.byref(count), fine=fine)
            if code == Status.SUCCESS or count.value <= room:
                break
            room = count.value
        return [p.state() for p in every[: count.value]]

    def enable(
        self,
        handle: int,
        provider: UUID,
        code: EnableProvider,
        level: int,
        match_any: int,
        match_all: int,
        timeout: int,
        parameters: EnableParameters | None,
    ) -> None:
        """EnableTraceEx2."""
        made = Parameters(parameters) if parameters else None
        self._call(
            "EnableTraceEx2",
            handle,
            ctypes.byref(guid_of(provider)),
            int(code),
            level,
            match_any,
            match_all,
            timeout,
            ctypes.byref(made.head) if made else None,
        )

    # -- information

    def set_information(self, handle: int, info: Info, value: Any) -> None:
        """TraceSetInformation. `EtwError` 87, without a call, for the class that only the portable kernel has."""
        if info == Info.SOFTWARE_BRANCH_TARGETS_INFO:
            why = "processors record the branches of all processes here: there are no targets to name"
            raise EtwError("TraceSetInformation", Status.INVALID_PARAMETER, why)
        with self._privilege(info in PRIVILEGED):
            self._set(handle, info, value)

    def _set(self, handle: int, info: Info, value: Any) -> None:
        data = encode(info, value)
        self._call("TraceSetInformation", handle, int(info), bytes_at_call(data), len(data))

    def query_information(self, handle: int, info: Info, value: Any) -> Any:
        """TraceQueryInformation. A list is queried for its size first, and again if it grew meanwhile."""
        with self._privilege(info in PRIVILEGED):
            if info == Info.SAMPLED_PROFILE_INTERVAL_INFO:
                return decode(info, self._query(handle, info, encode(info, (value, 0))))[1]
            fixed = QUERIES[info].fixed
            found = self._query(handle, info, bytes(fixed)) if fixed else self._query_list(handle, info)
            return decode(info, found)

    def query_other(self, handle: int, info: int, data: bytes | None, length: int) -> tuple[int, bytes, int]:
        """TraceQueryInformation as it is, of any class but that of the portable kernel (50)."""
        if info == Info.SOFTWARE_BRANCH_TARGETS_INFO:
            return Status.NOT_SUPPORTED, b"", 0
        buffer, used = bytes_at_call(data or b""), ctypes.c_uint32()
        with self._privilege(True):
            code = self._call(
                "TraceQueryInformation", handle, info, buffer, length, ctypes.byref(used), fine=_EVERY_CODE
            )
        return code, bytes(buffer or b""), used.value

    def set_other(self, handle: int, info: int, data: bytes | None, length: int) -> None:
        """TraceSetInformation as it is."""
        with self._privilege(True):
            self._call("TraceSetInformation", handle, info, bytes_at_call(data or b""), length)

    def _query(self, handle: int, info: Info, data: bytes) -> bytes:
        """The answer to a query whose buffer holds ``data``."""
        buffer = bytes_at_call(data)
        self._call("TraceQueryInformation", handle, int(info), buffer, len(data), None)
        return bytes(buffer)

    def _query_list(self, handle: int, info: Info) -> bytes:
        room, used, fine = 0, ctypes.c_uint32(), (Status.SUCCESS, *TOO_SMALL)
        for _ in range(_TRIES):
            buffer = bytes_at_call(bytes(room))
            code = self._call("TraceQueryInformation", handle, int(info), buffer, room, ctypes.byref(used), fine=fine)
            if code == Status.SUCCESS and used.value <= room:
                return bytes(buffer or b"")[: used.value]
            room = max(used.value, 2 * room, _FIRST_LIST)
        raise EtwError("TraceQueryInformation", code, f"class {int(info)} does not fit into {room // 2} bytes")

    # -- branch records, providers

    def configure_lbr(self, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
        """TraceConfigureLastBranchRecord or, on an older Windows, the classes that do the same."""
        with self._privilege(True):
            if self.libraries.has(CONFIGURE_LBR):
                self._call(CONFIGURE_LBR, handle, flags, events_of(events) if events else None, len(events))
            else:
                self._configure_older(handle, flags, events)

    def _configure_older(self, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
        """Before build 26100.1301: the classes 20 (flags) and 21 (hook ids), which came with Windows 10 1903.

        The checks, their order and the silent skipping of unknown GUIDs are those of the function.
        """
        check_lbr(flags, len(events))
        try:
            self._set(handle, Info.LBR_EVENT_LIST_INFO, [])
            self._set(handle, Info.LBR_CONFIGURATION_INFO, flags)
            if events:
                self._set(handle, Info.LBR_EVENT_LIST_INFO, hook_ids(events))
        except EtwError as error:
            build = self.libraries.loader.build()
            old = f"build {OLDEST_BUILD} or newer is needed, this is {build}" if build < OLDEST_BUILD else None
            raise EtwError(CONFIGURE_LBR, error.status, str(error), hint=old) from error

    def register(self, provider: UUID, callback: EnableCallback | None) -> WindowsRegistration:
        """EventRegister."""
        return WindowsRegistration(self.libraries, provider, callback)

    def trace_event(self, handle: int, header: ClassicHeader, data: bytes) -> None:
        """TraceEvent; Windows fills in thread, process and time.

        Raises `EtwError`: 534 for an event whose size the header cannot hold, else Windows' code.
        """
        kind = native("EVENT_TRACE_HEADER")
        size = ctypes.sizeof(kind) + len(data)
        if size > MOST_BYTES:
            why = f"an event of {size} bytes; {MOST_BYTES} are the most"
            raise EtwError("TraceEvent", Status.ARITHMETIC_OVERFLOW, why)
        head = kind(
            Size=size, Version=header.type | header.level << 8 | header.version << 16, Guid=guid_of(header.guid)
        )
        head.ProcessorTime = int(WnodeFlag.TRACED_GUID) << 32  # the union's {ClientContext, Flags}
        self._call("TraceEvent", handle, ctypes.create_string_buffer(bytes(head) + data, size))

    def _privilege(self, needed: bool) -> AbstractContextManager[None]:
        return system_profile(self.libraries) if needed else nullcontext()

    # -- logs

    def merge(self, output: str, inputs: Sequence[str], flags: int) -> None:
        """CreateMergedTraceFile of KernelTraceControl.dll, which comes with the Windows Performance Toolkit.

        ``flags`` are EVENT_TRACE_MERGE_EXTENDED_DATA_* bits. Raises `EtwError`: 126 without the toolkit, 87 without
        inputs, else Windows' code.
        """
        call = "CreateMergedTraceFile"
        if not inputs:
            raise EtwError(call, Status.INVALID_PARAMETER, "no files to merge")
        names = [wide(call, name) for name in inputs]
        array = (ctypes.c_void_p * len(names))(*[ctypes.addressof(n) for n in names])
        self._call(call, wide(call, output), array, len(names), flags)
