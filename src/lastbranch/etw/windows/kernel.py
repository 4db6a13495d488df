"""Windows' kernel: each operation as the calls of the DLLs that do it.

No line of this package was executed on Windows; ``docs/reference/etw-windows.md`` says what each rests on. Windows
itself judges requests: what comes back as a code is its own, but for what the docstrings here name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
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
)
from ..information import decode, encode
from ..kernel import ClassicHeader, EnableCallback, EnableParameters
from ..properties import SessionRequest, SessionState
from ..status import EtwError, Status
from ..structures import guid_of
from .branches import configure
from .classic import trace_event
from .libraries import Libraries, Loader, SystemLoader, wide
from .memory import Parameters, Properties, bytes_at_call
from .privilege import system_profile
from .registration import WindowsRegistration

__all__ = ["WindowsKernel"]

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
