"""The kernel of sessions on systems without ETW. Each session is a process, which callers find in the registry."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from ...closing import on_failure
from ...errors import FormatError
from ..flags import Control, EnableProvider, Info, LogFileMode
from ..information import VERSION
from ..interface import ClassicHeader, EnableCallback, EnableParameters, Registration
from ..properties import SessionRequest, SessionState
from ..status import EtwError, Status
from .protocol import (
    CALL_TIMEOUT,
    Connection,
    Kind,
    Value,
    address_in,
    pack,
    unpack,
)
from .request import Host, adjusted, check_start, checked_file
from .session.spawn import Order, spawn
from .session_registry import MAX_SESSIONS, EnableState, Entry, Notice, Registry, notify

__all__ = ["PortableKernel"]

STOP_TIMEOUT = 120.0
"""Seconds in which a session must have written everything after it receives STOP."""
LIST_TIMEOUT = 5.0
"""Seconds in which all sessions must report their states. Other sessions are listed by name only."""


class PortableKernel:
    """Implements `etw.interface.Kernel`. It has no state: every call looks into the registry."""

    name = "portable"
    most_sessions: int | None = MAX_SESSIONS

    @property
    def registry(self) -> Registry:
        """The registry of this user, in the folder that the environment names now."""
        return Registry()

    # -- sessions

    def start(self, request: SessionRequest, targets: Sequence[int] = ()) -> SessionState:
        """As `Kernel.start`: check and adjust the request, and start the session's process."""
        checked = check_start(request)
        made = adjusted(checked, _host(checked.file))
        made = made if made.guid.int else replace(made, guid=uuid4())
        if made.system:
            self._check_groups(made, [made.enable_flags], "StartTrace")
        registry = self.registry
        with registry.locked() as held:
            entry = held.reserve(made.name, made.guid, made.system)
        try:
            return spawn(registry, entry, Order(registry.root, entry.handle, entry.key, made, tuple(targets)))
        except BaseException:
            with registry.locked() as held:
                held.drop(entry.key, entry.owner)
            raise

    def control(self, code: Control, session: int | str, request: SessionRequest | None) -> SessionState:
        """As `Kernel.control`."""
        call = "ControlTrace"
        body: SessionRequest | str | None = None
        if code == Control.UPDATE:
            if request is None:
                raise EtwError(call, Status.INVALID_PARAMETER, "an update needs properties")
            now = self.control(Control.QUERY, session, None).request
            body = replace(request, file=checked_file(call, request.file, now.mode) if request.file else "")
            if now.system:
                self._check_groups(now, [request.enable_flags], call)
        elif code == Control.FLUSH:
            file = request.file if request is not None else ""
            body = checked_file(call, file, LogFileMode.FILE_MODE_NONE) if file else ""
        timeout = STOP_TIMEOUT if code == Control.STOP else CALL_TIMEOUT
        state: SessionState = self._ask(session, Kind[Control(code).name], body, call, SessionState, timeout)
        return state

    def sessions(self) -> list[SessionState]:
        """As `Kernel.sessions`. If a session's process does not answer, only its name, GUID and handle are known."""
        registry = self.registry
        found, asked = [], []
        for entry in (e for e in registry.entries() if e.ready):
            try:
                connection = self._open(registry, entry, "QueryAllTraces")
                connection.send(Kind.QUERY, timeout=LIST_TIMEOUT)
                asked.append((entry, connection))
            except (EtwError, OSError):
                continue
        end = time.monotonic() + LIST_TIMEOUT
        for entry, connection in asked:
            with connection:
                found.append(_answered_state(entry, connection, end))
        return [state for state in found if state is not None]

    # -- providers

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
        """As `Kernel.enable`. `EtwError` 5 for a provider on the session's disallow list, 1460 after ``timeout``."""
        call, registry = "EnableTraceEx2", self.registry
        given = parameters or EnableParameters()
        if code == EnableProvider.ENABLE and provider in self.query_information(handle, Info.DISALLOW_LIST_QUERY, None):
            raise EtwError(call, Status.ACCESS_DENIED, f"the session does not allow {provider}")  # our choice
        with registry.locked() as held:
            entry = held.find(handle)
            if entry is None:
                raise EtwError(call, Status.WMI_INSTANCE_NOT_FOUND, f"no session has handle {handle}")
            if code == EnableProvider.ENABLE:
                state = EnableState(
                    handle,
                    entry.owner,
                    entry.socket,
                    level,
                    match_any,
                    match_all,
                    given.property,
                    given.source,
                    given.filters,
                )
                held.set_enabled(provider, handle, state)
            elif code == EnableProvider.DISABLE:
                held.set_enabled(provider, handle, None)
        if not notify(registry, provider, Notice(code, handle, match_any), timeout / 1000):
            raise EtwError(call, Status.TIMEOUT, f"not every instance of {provider} answered within {timeout} ms")

    def register(self, provider: UUID, callback: EnableCallback | None) -> Registration:
        """As `Kernel.register`."""
        from .provider.registration import Registration as Registered

        registered: Registration = Registered(self.registry, provider, callback)
        return registered

    def trace_event(self, handle: int, header: ClassicHeader, data: bytes) -> None:
        """As `Kernel.trace_event`."""
        from .provider.registration import trace_event

        trace_event(self.registry, handle, header, data)

    # -- information

    def set_information(self, handle: int, info: Info, value: Any) -> None:
        """As `Kernel.set_information`. Running sessions take over intervals and sources."""
        from . import profile_sources

        call, registry = "TraceSetInformation", self.registry
        if info in (Info.SAMPLED_PROFILE_INTERVAL_INFO, Info.PROFILE_SOURCE_CONFIG_INFO):
            with registry.locked():
                if info == Info.SAMPLED_PROFILE_INTERVAL_INFO:
                    profile_sources.set_interval(registry, *value)
                else:
                    profile_sources.configure(registry, list(value))
            for entry in (e for e in registry.entries() if e.ready and e.system):
                self._ask(entry.handle, Kind.REFRESH, None, call)
            return
        if info == Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO:
            now = self.control(Control.QUERY, handle, None).request
            if now.system:
                self._check_groups(now, value, call)
        self._ask(handle, Kind.SET_INFO, (info, value), call)

    def query_information(self, handle: int, info: Info, value: Any) -> Any:
        """As `Kernel.query_information`."""
        from . import profile_sources

        call, registry = "TraceQueryInformation", self.registry
        if info == Info.VERSION_INFO:
            return VERSION
        if info == Info.PROFILE_SOURCE_LIST_INFO:
            return profile_sources.profile_sources()
        if info == Info.SAMPLED_PROFILE_INTERVAL_INFO:
            with registry.locked():
                return profile_sources.interval(registry, value)
        return self._ask(handle, Kind.QUERY_INFO, info, call, Value)

    def query_other(self, handle: int, info: int, data: bytes | None, length: int) -> tuple[int, bytes, int]:
        """As `Kernel.query_other`: there is no other class (50)."""
        return Status.NOT_SUPPORTED, b"", 0

    def set_other(self, handle: int, info: int, data: bytes | None, length: int) -> None:
        """As `Kernel.set_other`: there is no other class (50)."""
        raise EtwError("TraceSetInformation", Status.NOT_SUPPORTED, f"class {info} cannot be set")

    def configure_lbr(self, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
        """As `Kernel.configure_lbr`. `EtwError` as `lbr_configuration.check_configuration` says, and 50 where the
        software branch record cannot run."""
        from .lbr_configuration import state_triggers

        self._ask(handle, Kind.LBR, (flags, events), "TraceConfigureLastBranchRecord")
        state_triggers(self.registry, handle, flags, events)

    def _check_groups(self, request: SessionRequest, masks: Sequence[int], call: str) -> None:
        if any(masks):
            from .sources import check

            check(request, [*masks, *[0] * 8][:8], call=call)

    # -- connections

    def consume(self, session: int | str) -> socket.socket:
        """The stream of a real-time session (`sinks`). `EtwError` 4201 if there is none, 87 for other modes."""
        connection = self._connect(session, "OpenTrace")
        with on_failure(connection.close):
            connection.call(Kind.CONSUME, name="OpenTrace")
        connection.stream.settimeout(None)
        return connection.stream

    def _ask(
        self, session: int | str, kind: Kind, body: Any, call: str, answer: Any = None, timeout: float = CALL_TIMEOUT
    ) -> Any:
        """Send a request with ``body`` to a session. Returns its answer, of type ``answer`` (`None`: no answer)."""
        with self._connect(session, call) as connection:
            data, _ = connection.call(kind, pack(body), name=call, timeout=timeout)
        return None if answer is None else unpack(answer, data)

    def _connect(self, session: int | str, call: str) -> Connection:
        registry = self.registry
        entry = registry.find(session)
        if entry is None:
            what = "is called" if isinstance(session, str) else "has handle"
            raise EtwError(call, Status.WMI_INSTANCE_NOT_FOUND, f"no session {what} {session}")
        return self._open(registry, entry, call)

    def _open(self, registry: Registry, entry: Entry, call: str) -> Connection:
        try:
            with registry.folder("sessions") as folder:
                return Connection.open(address_in(folder, entry.socket))
        except TimeoutError:
            raise EtwError(call, Status.TIMEOUT, f'the process of "{entry.name}" does not answer') from None
        except OSError as error:
            reason = f'the process of "{entry.name}" has ended: {error}'
            raise EtwError(call, Status.WMI_INSTANCE_NOT_FOUND, reason) from error


def _answered_state(entry: Entry, connection: Connection, end: float) -> SessionState | None:
    """The answer to QUERY; ``None`` if the session has ended, only its entry if it does not answer."""
    try:
        message = connection.receive(max(0.01, end - time.monotonic()))
        return None if message is None else unpack(SessionState, message.body)
    except TimeoutError:
        return SessionState(SessionRequest(entry.name, entry.guid), entry.handle, logger_thread=entry.owner.pid)
    except (OSError, FormatError):
        return None


def _host(file: str) -> Host:
    """This machine, with the block size of the file system of ``file``."""
    processors = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not file:
        return Host(processors, memory)
    return Host(processors, memory, os.statvfs(Path(file).parent).f_bsize)
