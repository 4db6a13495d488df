"""Sessions, providers and profile sources in Python's own terms: context managers, enumerations, exceptions::

    with Session("mine", "mine.etl") as session:
        session.enable("My-Provider", level=4)
        run()

They use the same `kernel_choice` as the functions of the API. Every failure is an `EtwError` with the API's code and
the reason.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..closing import Closing, on_failure
from . import information
from .flags import PERFINFO_PROVIDER, PMC_INTERRUPT, Control, EnableProvider, FilterType, Info, LogFileMode
from .interface import EnableCallback, EnableParameters, EventDescriptor, Kernel, ProfileSource, Registration
from .kernel_choice import kernel
from .properties import Filter, SessionRequest, SessionState, check_name, check_numbers
from .status import EtwError, Status

if TYPE_CHECKING:
    from .events import ConsumedEvent
    from .portable.session.remains import Rescued

__all__ = [
    "Provider",
    "Session",
    "configure_profile_sources",
    "event_id_filter",
    "pid_filter",
    "profile_interval",
    "profile_sources",
    "provider_guid",
    "rescue_session",
    "sessions",
    "set_profile_interval",
]


# -- Names of providers, and the filters of EnableTraceEx2 as data


_NAMESPACE = UUID("482c2db2-c390-47c8-87f8-1a15bfc130fb")
_MEANT_AS_GUID = re.compile(r"\{|[0-9a-fA-F]+(-[0-9a-fA-F]+){4}$")
_MAX_EVENT_IDS, _MAX_PIDS = 64, 8


def provider_guid(text: str) -> UUID:
    """The GUID in ``text``, with or without braces, or the GUID of the provider of that name.

    EventSource and TraceLogging make it: SHA-1 of a namespace and the name in capitals. `EtwError` 87 for an empty
    name, and for text that looks like a GUID but is none.
    """
    try:
        return UUID(text)
    except ValueError:
        pass
    if not text or _MEANT_AS_GUID.match(text):
        raise EtwError("EnableTraceEx2", Status.INVALID_PARAMETER, f"a provider has a GUID or a name, not {text!r}")
    digest = bytearray(
        hashlib.sha1(_NAMESPACE.bytes + text.upper().encode("utf-16-be"), usedforsecurity=False).digest()
    )
    digest[7] = digest[7] & 0x0F | 0x50
    return UUID(bytes_le=bytes(digest[:16]))


def event_id_filter(ids: Iterable[int], *, take: bool = True) -> Filter:
    """EVENT_FILTER_EVENT_ID: take only these events or, without ``take``, all others."""
    numbers = sorted(set(ids))
    if len(numbers) > _MAX_EVENT_IDS or any(not 0 <= n <= 0xFFFF for n in numbers):
        raise EtwError("EnableTraceEx2", Status.INVALID_PARAMETER, f"{_MAX_EVENT_IDS} ids of 16 bits are the most")
    return Filter(FilterType.EVENT_ID, struct.pack(f"<BBH{len(numbers)}H", take, 0, len(numbers), *numbers))


def pid_filter(pids: Iterable[int]) -> Filter:
    """Only providers in these processes, 8 at most."""
    numbers = list(pids)
    if not 0 < len(numbers) <= _MAX_PIDS:
        raise EtwError("EnableTraceEx2", Status.INVALID_PARAMETER, f"1 to {_MAX_PIDS} process ids")
    return Filter(FilterType.PID, struct.pack(f"<{len(numbers)}I", *numbers))


# -- Sessions


class Session:
    """A trace session. A ``with`` block starts the session at its begin and stops the session at its end.

    ``file`` is the log file, empty for none. The other arguments are the fields of `SessionRequest`; 0 leaves them to
    the system. ``targets`` are the processes whose branches a software LBR may record.
    """

    def __init__(
        self,
        name: str,
        file: str = "",
        *,
        mode: int = 0,
        targets: Sequence[int] = (),
        on: Kernel | None = None,
        **fields_of_request: Any,
    ) -> None:
        self._kernel = on or kernel()
        self._targets = tuple(targets)
        self._request = SessionRequest(name=name, file=file, mode=LogFileMode(mode), **fields_of_request)
        self.handle = 0
        """0 until the session is started."""
        self.final: SessionState | None = None
        """The state when it was stopped."""

    @classmethod
    def of(cls, name: str, *, on: Kernel | None = None) -> Session:
        """The running session of that name; the end of a ``with`` block stops this session, too."""
        found = cls(name, on=on)
        state = found._control(Control.QUERY)
        found.handle, found._request = state.handle, state.request
        return found

    @property
    def name(self) -> str:
        """The session's name."""
        return self._request.name

    @property
    def request(self) -> SessionRequest:
        """The requested values or, after the start, the adjusted ones."""
        return self._request

    @property
    def log_files(self) -> list[str]:
        """The log file; in NEWFILE mode the files of its row that exist."""
        file, mode = self._request.file, self._request.mode
        if not mode & LogFileMode.FILE_MODE_NEWFILE or "%d" not in file:
            return [file]
        head, _, tail = file.partition("%d")
        row = glob.glob(f"{glob.escape(head)}*{glob.escape(tail)}")
        return sorted(name for name in row if name[len(head) : len(name) - len(tail)].isdecimal())

    def start(
        self,
        *,
        providers: Iterable[tuple[UUID | str, int, int]] = (),
        masks: Sequence[int] = (),
        lbr: int | None = None,
    ) -> SessionState:
        """Start and configure the session; a session that cannot be configured is stopped.

        ``providers`` are enabled with their level and keywords. The words of ``masks`` are added to the groups of a
        system logger. ``lbr`` are EVNTRACE_LBR_FLAGS of branch records with PMC interrupts; ``None`` records none.
        """
        check_name("StartTrace", self.name)
        check_numbers("StartTrace", self._request)
        state = self._kernel.start(self._request, self._targets)
        self.handle, self._request = state.handle, state.request
        with on_failure(self.stop):
            for provider in providers:
                self.enable(*provider)
            if lbr is not None:
                self.configure_lbr([(PERFINFO_PROVIDER, PMC_INTERRUPT)], lbr)
            if any(masks[1:]):  # a mask that is set replaces the one before: read, or, write
                self.masks = [now | more for now, more in zip(self.masks, masks, strict=True)]
        return state

    def stop(self) -> SessionState:
        """Stop it. Returns its last state, with all losses counted."""
        self.final = self._control(Control.STOP)
        self.handle = 0
        return self.final

    def query(self) -> SessionState:
        """Its properties and statistics."""
        return self._control(Control.QUERY)

    def flush(self, file: str = "") -> SessionState:
        """Write what is in the buffers; in buffering mode, to ``file``."""
        return self._control(Control.FLUSH, file=file)

    def update(self, **changes: Any) -> SessionState:
        """Change ``maximum_buffers``, ``flush_timer``, ``enable_flags``, ``file`` or the real-time bit of ``mode``.

        Settings that are not named do not change.
        """
        unknown = set(changes) - {f.name for f in fields(SessionRequest)}
        if unknown:
            raise EtwError("ControlTrace", Status.INVALID_PARAMETER, f"unknown property: {', '.join(sorted(unknown))}")
        now = self.query().request  # an update sets the flags and the real-time bit, whatever they were
        state = self._control(Control.UPDATE, **{"enable_flags": now.enable_flags, "mode": now.mode, **changes})
        self._request = state.request
        return state

    def increment_file(self) -> SessionState:
        """Start the next file in NEWFILE mode."""
        return self._control(Control.INCREMENT_FILE)

    def convert_to_real_time(self) -> SessionState:
        """Deliver to real-time consumers from now on, no longer to the file."""
        return self._control(Control.CONVERT_TO_REALTIME)

    def events(self) -> Iterator[ConsumedEvent]:
        """The events of a session in real time, as they come, until it stops."""
        from .events import consume

        return consume(self.name, real_time=True)

    def _control(self, code: Control, **changes: Any) -> SessionState:
        asked = None
        if code not in (Control.QUERY, Control.STOP):
            asked = SessionRequest(self.name, **changes)
            check_numbers("ControlTrace", asked)
        return self._kernel.control(code, self.handle or self.name, asked)

    def enable(
        self,
        provider: UUID | str,
        level: int = 0,
        keywords: int = 0,
        match_all: int = 0,
        *,
        event_ids: Iterable[int] | None = None,
        filters: Sequence[Filter] = (),
        timeout: float = 0,
    ) -> None:
        """Take events of a provider (GUID or name): up to ``level`` (0: all), of any of ``keywords`` (0: all).

        ``event_ids`` takes only those events. ``timeout`` waits so many seconds for the provider's callback.
        """
        every = (*filters, *([event_id_filter(event_ids)] if event_ids is not None else []))
        parameters = EnableParameters(filters=every) if every else None
        self._enable(provider, EnableProvider.ENABLE, level, keywords, match_all, round(timeout * 1000), parameters)

    def disable(self, provider: UUID | str) -> None:
        """Disable a provider."""
        self._enable(provider, EnableProvider.DISABLE, 0, 0, 0, 0, None)

    def capture_state(self, provider: UUID | str) -> None:
        """Ask a provider to log its state."""
        self._enable(provider, EnableProvider.CAPTURE_STATE, 0, 0, 0, 0, None)

    def _enable(
        self, provider: UUID | str, code: EnableProvider, level: int, keywords: int, match_all: int, *rest: Any
    ) -> None:
        guid, call = provider if isinstance(provider, UUID) else provider_guid(provider), "EnableTraceEx2"
        if not 0 <= level < 2**8 or not 0 <= keywords < 2**64 or not 0 <= match_all < 2**64:
            why = f"level {level} does not fit in 8 bits, or keywords {keywords:#x}, {match_all:#x} no 64"
            raise EtwError(call, Status.INVALID_PARAMETER, why)
        self._kernel.enable(self._handle(call), guid, code, level, keywords, match_all, *rest)

    def _handle(self, call: str) -> int:
        if not self.handle:
            raise EtwError(call, Status.INVALID_PARAMETER, f"session {self.name} is not started")
        return self.handle

    @property
    def masks(self) -> list[int]:
        """The eight words of its group masks; word 0 is EnableFlags. For system loggers only."""
        handle = self._handle("TraceQueryInformation")
        words: list[int] = self._kernel.query_information(handle, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, None)
        return words

    @masks.setter
    def masks(self, words: Sequence[int]) -> None:
        self._set(Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, list(words))

    def trace_stacks(self, events: Sequence[tuple[UUID, int]]) -> None:
        """Walk the stack at each of these events (GUID and type); an empty list ends it."""
        self._set(Info.STACK_TRACING_INFO, list(events))

    def disallow(self, providers: Iterable[UUID | str]) -> None:
        """Providers that this session never enables."""
        guids = [p if isinstance(p, UUID) else provider_guid(p) for p in providers]
        self._set(Info.SET_DISALLOW_LIST, guids)

    def configure_lbr(self, events: Sequence[tuple[UUID, int]], flags: int = 0) -> None:
        """Log the branch record with each of up to four events; an empty list ends it."""
        information.check_lbr(flags, len(events))
        self._kernel.configure_lbr(self._handle("TraceConfigureLastBranchRecord"), flags, list(events))

    def _set(self, info: Info, value: Any) -> None:
        data = information.encode(info, value)  # the same checks of the length as for callers of the API
        information.set_information(self._kernel, self._handle("TraceSetInformation"), info, data, len(data))

    def __enter__(self) -> Session:
        if not self.handle:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.handle:
            self.stop()


class Provider(Closing):
    """A provider of events, by GUID or name. Ends with its ``with`` block or `close`.

    On a hot path, check ``registration.enabled`` first: it is a plain attribute.
    """

    def __init__(
        self, provider: UUID | str, callback: EnableCallback | None = None, *, on: Kernel | None = None
    ) -> None:
        self.guid = provider if isinstance(provider, UUID) else provider_guid(provider)
        self.registration: Registration = (on or kernel()).register(self.guid, callback)
        self.write = self.registration.write
        """``write(descriptor, data)``: a `Status`, 0 also where no session takes the event."""

    @property
    def enabled(self) -> bool:
        """Whether any session takes its events."""
        return self.registration.enabled

    def event(self, id: int, data: bytes = b"", *, level: int = 0, keyword: int = 0, opcode: int = 0) -> int:
        """Write one event with these values in its descriptor."""
        return self.write(EventDescriptor(id, level=level, opcode=opcode, keyword=keyword), data)

    def close(self) -> None:
        """Unregister."""
        self.registration.close()


def rescue_session(name: str, file: str) -> Rescued:
    """Write what a session in buffering mode had when its process was killed to the log ``file``: the newest
    MinimumBuffers. They are kept until then, or until a session of that name starts.

    `EtwError` 4201 if nothing of such a session is left, 183 if it runs, 13 if what is left is of another version or
    damaged as a whole, 50 on Windows, else as for log files.
    """
    if os.name == "nt":
        raise EtwError("session rescue", Status.NOT_SUPPORTED, "Windows keeps nothing of a session that has ended")
    from .portable.session.remains import rescue

    return rescue(name, file)


def sessions(*, on: Kernel | None = None) -> list[SessionState]:
    """All running sessions."""
    return (on or kernel()).sessions()


# -- Profile sources and their intervals: classes 5, 6 and 7, which apply to all sessions


def profile_sources(*, on: Kernel | None = None) -> list[ProfileSource]:
    """The profile sources of this machine."""
    found: list[ProfileSource] = (on or kernel()).query_information(0, Info.PROFILE_SOURCE_LIST_INFO, None)
    return found


def profile_interval(source: int, *, on: Kernel | None = None) -> int:
    """Events (of source 0: units of 100 ns) between two samples."""
    found: int = (on or kernel()).query_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, source)
    return found


def set_profile_interval(source: int, interval: int, *, on: Kernel | None = None) -> None:
    """Set it, for the whole machine."""
    (on or kernel()).set_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, (source, interval))


def configure_profile_sources(sources: Sequence[int], *, on: Kernel | None = None) -> None:
    """Choose the sources that interrupt sessions with PMC profiling."""
    (on or kernel()).set_information(0, Info.PROFILE_SOURCE_CONFIG_INFO, list(sources))
