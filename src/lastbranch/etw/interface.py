"""The interface between the API and a kernel of trace sessions: Windows' own, or the portable one of this package.

The functions of the API check their arguments and turn structures into the values here. A kernel never sees a buffer of
the caller. A failure is an `EtwError` with the code that the function returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from .flags import Control, EnableProvider, Info
from .properties import NO_GUID, Filter, SessionRequest, SessionState

__all__ = [
    "ClassicHeader",
    "EnableCallback",
    "EnableParameters",
    "EventDescriptor",
    "Kernel",
    "ProfileSource",
    "Registration",
]


class EventDescriptor(NamedTuple):
    """EVENT_DESCRIPTOR, in its order."""

    id: int
    version: int = 0
    channel: int = 0
    level: int = 0
    opcode: int = 0
    task: int = 0
    keyword: int = 0


class ClassicHeader(NamedTuple):
    """EVENT_TRACE_HEADER as a caller of TraceEvent fills it in; the kernel adds thread, process and time."""

    guid: UUID
    type: int = 0
    level: int = 0
    version: int = 0


class ProfileSource(NamedTuple):
    """One PROFILE_SOURCE_INFO. Intervals are in events, those of source 0 (the timer) in units of 100 ns."""

    source: int
    name: str
    minimum: int
    maximum: int
    default: int = 0
    """Interval before any is set; 0 if the kernel does not report the interval. Not in the structure."""
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class EnableParameters:
    """ENABLE_TRACE_PARAMETERS."""

    property: int = 0
    """EVENT_ENABLE_PROPERTY_* bits."""
    control_flags: int = 0
    source: UUID = NO_GUID
    """Passed to the provider's callback."""
    filters: tuple[Filter, ...] = ()


EnableCallback = Callable[[UUID, EnableProvider, int, int, int, tuple[Filter, ...]], None]
"""PENABLECALLBACK: (source, code, level, match any, match all, filters). Runs in a thread of the kernel's."""


class Registration(Protocol):
    """A provider that this process has registered."""

    enabled: bool
    """Whether any session takes its events. A plain attribute: reading it is the whole cost of a disabled event."""
    level: int
    """Largest level that any session takes; 0 is all."""
    keywords: int
    """Union of the keywords that sessions ask for; 0 with `enabled` means any."""

    def takes(self, level: int, keyword: int) -> bool:
        """Whether any session takes an event of this level and keyword (EventProviderEnabled)."""

    def write(self, descriptor: EventDescriptor, data: bytes = b"", activity: bytes = b"", related: bytes = b"") -> int:
        """Write an event to every session that takes it. Returns the `Status` of EventWrite; never raises.

        ``activity`` and ``related`` are GUIDs as 16 bytes, little-endian, or empty. Returns 0, also if no session takes
        the event; 234 if a session's buffers are too small for the event, 534 if the event is larger than 64 KB, 8 if
        all buffers of a session are full (its EventsLost counts the event).
        """

    def set_information(self, kind: int, data: bytes) -> None:
        """EventSetInformation: traits (2) and the like."""

    def close(self) -> None:
        """Unregister. A second call does nothing."""


class Kernel(Protocol):
    """The sessions of a machine or, for the portable kernel, of a user."""

    name: str
    """``windows`` or ``portable``."""
    most_sessions: int | None
    """Structures that QueryAllTraces takes at most; ``None``: the system decides."""

    def start(self, request: SessionRequest, targets: Sequence[int] = ()) -> SessionState:
        """Start a session. ``targets`` are the processes whose branches the software LBR may record."""

    def control(self, code: Control, session: int | str, request: SessionRequest | None) -> SessionState:
        """Query, stop, update, flush... the session with this handle or name."""

    def sessions(self) -> list[SessionState]:
        """All running sessions."""

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
        """Enable or disable a provider in a session. ``timeout`` is in ms; 0 does not wait for callbacks."""

    def set_information(self, handle: int, info: Info, value: Any) -> None:
        """Set a class to a value of the type that `information.SETS` says."""

    def query_information(self, handle: int, info: Info, value: Any) -> Any:
        """The value of a class; ``value`` is the caller's argument (the source, for class 5)."""

    def query_other(self, handle: int, info: int, data: bytes | None, length: int) -> tuple[int, bytes, int]:
        """Query a class that `information.QUERIES` does not have: (status, buffer after the call, ReturnLength).

        ``data`` is the caller's buffer, ``None`` for a null pointer, and ``length`` what the caller says of it.
        """

    def set_other(self, handle: int, info: int, data: bytes | None, length: int) -> None:
        """Set a class that `information.SETS` does not have."""

    def configure_lbr(self, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
        """Collect branch records on ``events`` (GUID and type), or on none to end it."""

    def register(self, provider: UUID, callback: EnableCallback | None) -> Registration:
        """Register a provider for this process."""

    def trace_event(self, handle: int, header: ClassicHeader, data: bytes) -> None:
        """Write a classic event to one session."""
