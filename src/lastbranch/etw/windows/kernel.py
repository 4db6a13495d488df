"""Windows' kernel: each operation as the calls of the DLLs that do it.

No line of this package was executed on Windows; ``docs/reference/etw-windows.md`` says what each rests on. Windows
itself judges requests: what comes back as a code is its own, but for what the docstrings here name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from ..flags import (
    CIRCULAR_KERNEL_LOGGER,
    KERNEL_LOGGER,
    KERNEL_LOGGER_NAME,
    MAX_LBR_EVENTS,
    Control,
    EnableProvider,
    Info,
    LogFileMode,
    WnodeFlag,
    hook_ids,
)
from ..information import decode, encode
from ..properties import SessionRequest, SessionState
from ..status import EtwError, Status
from ..structures import guid_of
from ..types import ClassicHeader, EnableCallback, EnableParameters
from .libraries import Libraries, Loader, SystemLoader, wide
from .memory import Parameters, Properties, bytes_at_call, events_of, native
from .registration import WindowsRegistration

__all__ = ["TokenPrivileges", "WindowsKernel", "create_merged_trace_file"]


# -- TraceConfigureLastBranchRecord, and what does the same before build 26100.1301
#
# The older way is TraceSetInformation with the classes 20 (flags) and 21 (hook ids), which came with Windows 10 1903.
# The checks, their order and the silent skipping of unknown GUIDs are those of the function.


CALL = "TraceConfigureLastBranchRecord"
OLDEST_BUILD = 18362
"""Windows 10 1903, the first with the classes 20 and 21."""
_KERNEL_AND_USER = 3


def configure(libraries: Libraries, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
    """Collect branch records in session ``handle`` on ``events``, or no more where there are none."""
    if libraries.has(CALL):
        libraries.status(CALL, handle, flags, events_of(events) if events else None, len(events))
        return
    if len(events) > MAX_LBR_EVENTS:
        raise EtwError(CALL, Status.IMPLEMENTATION_LIMIT, f"{len(events)} events; {MAX_LBR_EVENTS} are the most")
    if flags & _KERNEL_AND_USER == _KERNEL_AND_USER:
        raise EtwError(CALL, Status.INVALID_PARAMETER, "kernel and user branches are both filtered out")
    try:
        _set(libraries, handle, Info.LBR_EVENT_LIST_INFO, b"")
        _set(libraries, handle, Info.LBR_CONFIGURATION_INFO, encode(Info.LBR_CONFIGURATION_INFO, flags))
        if events:
            _set(libraries, handle, Info.LBR_EVENT_LIST_INFO, encode(Info.LBR_EVENT_LIST_INFO, hook_ids(events)))
    except EtwError as error:
        build = libraries.loader.build()
        old = f"build {OLDEST_BUILD} or newer is needed, this is {build}" if build < OLDEST_BUILD else None
        raise EtwError(CALL, error.status, str(error), hint=old) from error


def _set(libraries: Libraries, handle: int, info: Info, data: bytes) -> None:
    libraries.status("TraceSetInformation", handle, int(info), bytes_at_call(data), len(data))


# -- TraceEvent: a classic event with its data behind the header


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


# -- SeSystemProfilePrivilege: enabled in this process's token before a call that needs it


SYSTEM_PROFILE = "SeSystemProfilePrivilege"
NOT_ALL_ASSIGNED = 1300
"""What GetLastError says after an AdjustTokenPrivileges that returned TRUE and enabled nothing."""
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

    Raises `EtwError`: 1314 where the token does not have it, else the code of the call that failed.
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
                "AdjustTokenPrivileges", Status.PRIVILEGE_NOT_HELD, f"the account does not hold {name}",
                hint="run from an elevated prompt",
            )  # fmt: skip
    finally:
        libraries.function("CloseHandle")(token)


def _true(libraries: Libraries, name: str, *arguments: Any) -> None:
    """Call ``name``, which returns a BOOL and leaves its code for GetLastError."""
    if not libraries.function(name)(*arguments):
        raise EtwError(name.removesuffix("W"), libraries.loader.last_error())


@contextmanager
def system_profile(libraries: Libraries) -> Iterator[None]:
    """Calls that need `SYSTEM_PROFILE`. Where it cannot be enabled Windows still decides; its refusal then says why."""
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


FIXED = {KERNEL_LOGGER_NAME.casefold(): KERNEL_LOGGER, "circular kernel context logger": CIRCULAR_KERNEL_LOGGER}
"""Sessions of these names have these GUIDs, and are to be started with them."""
PRIVILEGED = frozenset(
    {
        Info.STACK_TRACING_INFO, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, Info.SAMPLED_PROFILE_INTERVAL_INFO,
        Info.PROFILE_SOURCE_CONFIG_INFO, Info.PROFILE_SOURCE_LIST_INFO, Info.PMC_EVENT_LIST_INFO,
        Info.PMC_COUNTER_LIST_INFO, Info.LBR_CONFIGURATION_INFO, Info.LBR_EVENT_LIST_INFO,
    }
)  # fmt: skip
"""Classes for which SeSystemProfilePrivilege is enabled first."""
TOO_SMALL = (Status.BAD_LENGTH, Status.INSUFFICIENT_BUFFER, Status.MORE_DATA)
MOST_LOGGERS = 64
"""Structures of the first QueryAllTraces."""
_TRIES = 8
"""How often a buffer is made larger because the answer grew between two calls."""
_FIRST_LIST = 4096
"""Bytes for a list whose size a call did not tell."""
_READING = (Control.QUERY, Control.STOP)
"""Operations to which the properties are output alone."""


class WindowsKernel:
    """Event Tracing for Windows. ``loader`` gives the DLLs (Windows' own where it is ``None``)."""

    name = "windows"

    def __init__(self, loader: Loader | None = None) -> None:
        self.libraries = Libraries(loader or SystemLoader())
        self._private: dict[int | str, SessionRequest] = {}
        """Private sessions of this process by handle and name: their controls need GUID and mode."""

    # -- sessions

    def start(self, request: SessionRequest, targets: Sequence[int] = ()) -> SessionState:
        """Start a session, and query it.

        Raises `EtwError`: Windows' code; 50 for ``targets``, which only the software LBR has; 120 where StartTrace said
        success but no session answers, as on a system that only pretends to have them (Wine gives 0xcafe4242).
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
            return self._verified(state)
        self._private[state.handle] = self._private[request.name.casefold()] = state.request
        return state

    def _verified(self, state: SessionState) -> SessionState:
        """``state`` as a query of the session tells it. A session that may not be queried is taken as it is."""
        try:
            found = self.control(Control.QUERY, state.handle, None)
        except EtwError as error:
            if error.status == Status.ACCESS_DENIED:
                return state
            found = None
            why = f"and its query fails with {int(error.status)}"
        else:
            why = "and its query tells of no session"
        if found is None or found.request.name.casefold() != state.request.name.casefold():
            with suppress(EtwError):  # nothing is to be left behind
                self.control(Control.STOP, state.handle, None)
            raise EtwError(
                "StartTrace", Status.CALL_NOT_IMPLEMENTED, f"success with handle {state.handle:#x}, {why}",
                hint="this system does not run trace sessions; the portable kernel does, on Linux",
            )  # fmt: skip
        found.handle = state.handle
        return found

    def control(self, code: Control, session: int | str, request: SessionRequest | None) -> SessionState:
        """ControlTrace; ``request`` carries what an update changes and the file of a flush."""
        properties = Properties("ControlTrace", None if code in _READING else request)
        private = self._private.get(session if isinstance(session, int) else session.casefold())
        if private is not None:
            properties.head.Wnode.Guid = guid_of(private.guid)
            properties.head.LogFileMode |= int(private.mode)
        handle, name = (session, None) if isinstance(session, int) else (0, wide("ControlTrace", session))
        self._call("ControlTraceW", handle, name, properties.address, int(code))
        return properties.state()

    def sessions(self) -> list[SessionState]:
        """QueryAllTraces, with more structures if there are more sessions than the 64 of old."""
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
        self, handle: int, provider: UUID, code: EnableProvider, level: int, match_any: int, match_all: int,
        timeout: int, parameters: EnableParameters | None,
    ) -> None:  # fmt: skip
        """EnableTraceEx2."""
        made = Parameters(parameters) if parameters else None
        self._call(
            "EnableTraceEx2", handle, ctypes.byref(guid_of(provider)), int(code), level, match_any, match_all, timeout,
            ctypes.byref(made.head) if made else None,
        )  # fmt: skip

    # -- information

    def set_information(self, handle: int, info: Info, value: Any) -> None:
        """TraceSetInformation."""
        data = encode(info, value)
        with self._privilege(info in PRIVILEGED):
            self._call("TraceSetInformation", handle, int(info), bytes_at_call(data), len(data))

    def query_information(self, handle: int, info: Info, value: Any) -> Any:
        """TraceQueryInformation. Lists are asked for their size first, and again if they grew meanwhile."""
        with self._privilege(info in PRIVILEGED):
            if info == Info.SAMPLED_PROFILE_INTERVAL_INFO:
                return decode(info, self._query(handle, info, encode(info, (value, 0))))[1]
            if info == Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO:
                return decode(info, self._query(handle, info, encode(info, [0] * 8)))
            return decode(info, self._query_list(handle, info))

    def _query(self, handle: int, info: Info, data: bytes) -> bytes:
        """The answer in a buffer that has ``data`` in it."""
        buffer = bytes_at_call(data)
        self._call("TraceQueryInformation", handle, int(info), buffer, len(data), None)
        return bytes(buffer)

    def _query_list(self, handle: int, info: Info) -> bytes:
        room, used, fine = 0, ctypes.c_uint32(), (Status.SUCCESS, *TOO_SMALL)
        for _ in range(_TRIES):
            buffer = bytes_at_call(bytes(room))
            code = self._call(
                "TraceQueryInformation", handle, int(info), buffer, room, ctypes.byref(used), fine=fine
            )  # fmt: skip
            if code == Status.SUCCESS and used.value <= room:
                return bytes(buffer or b"")[: used.value]
            room = max(used.value, 2 * room, _FIRST_LIST)
        raise EtwError("TraceQueryInformation", code, f"class {int(info)} does not fit into {room // 2} bytes")

    # -- branch records, providers

    def configure_lbr(self, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
        """TraceConfigureLastBranchRecord or, on an older Windows, the classes that do the same."""
        with self._privilege(True):
            configure(self.libraries, handle, flags, events)

    def register(self, provider: UUID, callback: EnableCallback | None) -> WindowsRegistration:
        """EventRegister."""
        return WindowsRegistration(self.libraries, provider, callback)

    def trace_event(self, handle: int, header: ClassicHeader, data: bytes) -> None:
        """TraceEvent."""
        trace_event(self.libraries, handle, header, data)

    # -- calls

    def _call(self, name: str, *arguments: Any, fine: Sequence[int] = (Status.SUCCESS,)) -> int:
        return self.libraries.status(name, *arguments, fine=fine)

    def _privilege(self, needed: bool) -> AbstractContextManager[None]:
        return system_profile(self.libraries) if needed else nullcontext()


# -- CreateMergedTraceFile of KernelTraceControl.dll, which comes with the Windows Performance Toolkit


def create_merged_trace_file(output: str, inputs: Sequence[str], flags: int, loader: Loader | None = None) -> None:
    """Merge ``inputs`` into ``output``; ``flags`` are EVENT_TRACE_MERGE_EXTENDED_DATA_* bits.

    Raises `EtwError`: 126 without the toolkit, 87 without inputs, else Windows' code.
    """
    call = "CreateMergedTraceFile"
    if not inputs:
        raise EtwError(call, Status.INVALID_PARAMETER, "there are no files to merge")
    names = [wide(call, name) for name in inputs]
    array = (ctypes.c_void_p * len(names))(*[ctypes.addressof(n) for n in names])
    Libraries(loader or SystemLoader()).status(call, wide(call, output), array, len(names), flags)
