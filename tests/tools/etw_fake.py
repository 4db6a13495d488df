"""A kernel of trace sessions in memory: keeps all settings, and refuses the calls that a test tells it to refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from lastbranch.etw.flags import Control, EnableProvider, Info
from lastbranch.etw.interface import ClassicHeader, EnableCallback, EnableParameters, EventDescriptor, ProfileSource
from lastbranch.etw.properties import SessionRequest, SessionState
from lastbranch.etw.status import EtwError, Status

SOURCES = [
    ProfileSource(0, "Timer", 1221, 1000000), ProfileSource(6, "BranchInstructions", 4096, 2147483647),
    ProfileSource(25, "SoftwareBranches", 1000, 10**9, reserved=7),
]  # fmt: skip


class FakeRegistration:
    enabled, level, keywords = True, 0, 0

    def __init__(self) -> None:
        self.events: list[tuple[EventDescriptor, bytes, bytes, bytes]] = []
        self.information: dict[int, bytes] = {}
        self.closed = False

    def takes(self, level: int, keyword: int) -> bool:
        return level <= (self.level or 255) and (not self.keywords or bool(self.keywords & keyword))

    def write(self, descriptor: EventDescriptor, data: bytes = b"", activity: bytes = b"", related: bytes = b"") -> int:
        self.events.append((descriptor, data, activity, related))
        return Status.SUCCESS

    def set_information(self, kind: int, data: bytes) -> None:
        self.information[kind] = data

    def close(self) -> None:
        self.closed = True


class FakeKernel:
    name = "portable"
    most_sessions = 64

    def __init__(self) -> None:
        self.running: dict[int, SessionState] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.values: dict[tuple[int, int], Any] = {}
        self.registrations: list[FakeRegistration] = []

    def _found(self, call: str, session: int | str) -> SessionState:
        for handle, state in self.running.items():
            if session == handle or (isinstance(session, str) and session.casefold() == state.request.name.casefold()):
                return state
        raise EtwError(call, Status.WMI_INSTANCE_NOT_FOUND)

    def start(self, request: SessionRequest, targets: Sequence[int] = ()) -> SessionState:
        self.calls.append(("start", request, tuple(targets)))
        if any(request.name.casefold() == s.request.name.casefold() for s in self.running.values()):
            raise EtwError("StartTrace", Status.ALREADY_EXISTS)
        handle = len(self.running) + 1
        made = replace(request, buffer_size=request.buffer_size or 64)
        self.running[handle] = SessionState(made, handle, number_of_buffers=4, free_buffers=3, logger_thread=99)
        return self.running[handle]

    def control(self, code: Control, session: int | str, request: SessionRequest | None) -> SessionState:
        self.calls.append(("control", code, session, request))
        state = self._found("ControlTrace", session)
        if code == Control.STOP:
            del self.running[state.handle]
        return state

    def sessions(self) -> list[SessionState]:
        return list(self.running.values())

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
        self._found("EnableTraceEx2", handle)
        self.calls.append(("enable", handle, provider, code, level, match_any, match_all, timeout, parameters))

    def set_information(self, handle: int, info: Info, value: Any) -> None:
        if handle:
            self._found("TraceSetInformation", handle)
        self.values[handle, info] = value

    def query_information(self, handle: int, info: Info, value: Any) -> Any:
        if handle:
            self._found("TraceQueryInformation", handle)
        if info == Info.SAMPLED_PROFILE_INTERVAL_INFO:
            if value not in [s.source for s in SOURCES]:
                raise EtwError("TraceQueryInformation", Status.INVALID_PARAMETER)
            return self.values.get((0, info), (value, 65536))[1]
        if info == Info.PROFILE_SOURCE_LIST_INFO:
            return SOURCES
        if info == Info.VERSION_INFO:
            return 1
        if info == Info.DISALLOW_LIST_QUERY:
            return self.values.get((handle, Info.SET_DISALLOW_LIST), [])
        return self.values.get((handle, info), [0] * 8)

    def query_other(self, handle: int, info: int, data: bytes | None, length: int) -> tuple[int, bytes, int]:
        return Status.NOT_SUPPORTED, b"", 0

    def set_other(self, handle: int, info: int, data: bytes | None, length: int) -> None:
        raise EtwError("TraceSetInformation", Status.NOT_SUPPORTED)

    def configure_lbr(self, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
        self._found("TraceConfigureLastBranchRecord", handle)
        self.calls.append(("lbr", handle, flags, list(events)))

    def register(self, provider: UUID, callback: EnableCallback | None) -> FakeRegistration:
        self.calls.append(("register", provider, callback))
        self.registrations.append(FakeRegistration())
        return self.registrations[-1]

    def trace_event(self, handle: int, header: ClassicHeader, data: bytes) -> None:
        self._found("TraceEvent", handle)
        self.calls.append(("trace_event", handle, header, data))
