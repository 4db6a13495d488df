"""Which events of a provider a session takes: the rules of EnableTraceEx2 for a session that enabled the provider."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...flags import FilterType
from ...interface import EventDescriptor
from ...properties import Filter, SessionRequest
from ...status import EtwError, Status
from ..session_registry import EnableState, process_key

__all__ = ["Target", "check_admission", "target_of"]


# -- EVENT_FILTER_DESCRIPTORs that the portable kernel applies: by process, by executable, by event id (evntprov.h)
#
# Filters of other kinds are for providers to apply; here they let everything through.


_EVENT_IDS = struct.Struct("<BBH")
"""EVENT_FILTER_EVENT_ID: FilterIn, Reserved, Count; then u16 ids."""


def takes_process(filters: Iterable[Filter], pid: int) -> bool:
    """Whether ``filters`` let events of process ``pid`` through."""
    return all(_SCOPES[f.kind](f.data, pid) for f in filters if f.kind in _SCOPES)


def check_admission(request: SessionRequest, pid: int) -> None:
    """Raise `EtwError` 5 if the filters of ``request`` (a private logger) exclude process ``pid``."""
    if not takes_process(request.filters, pid):
        raise EtwError("attach", Status.ACCESS_DENIED, f"the session takes no events of process {pid}")


def _pid(data: bytes, pid: int) -> bool:
    """Whether ``data``, u32 process ids, has ``pid``."""
    whole = len(data) & ~3
    return pid in struct.unpack(f"<{whole // 4}I", data[:whole])


def _executable(data: bytes, pid: int) -> bool:
    """Whether ``data``, UTF-16 file names with ``;`` between them, has that of the process."""
    wanted = data[: len(data) & ~1].decode("utf-16-le", "replace").rstrip("\0").casefold().split(";")
    try:
        path = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return os.path.basename(path).casefold() in (name.strip() for name in wanted)


_SCOPES: dict[int, Callable[[bytes, int], bool]] = {FilterType.PID: _pid, FilterType.EXECUTABLE_NAME: _executable}


def event_ids(filters: Iterable[Filter]) -> tuple[bool, frozenset[int]] | None:
    """(True, event ids that pass) or (False, event ids that do not); ``None`` without a valid filter."""
    for f in filters:
        if f.kind == FilterType.EVENT_ID and len(f.data) >= _EVENT_IDS.size:
            keep, _, count = _EVENT_IDS.unpack_from(f.data)
            if len(f.data) >= _EVENT_IDS.size + 2 * count:
                return bool(keep), frozenset(struct.unpack_from(f"<{count}H", f.data, _EVENT_IDS.size))
    return None


ALL = (1 << 64) - 1
IGNORE_KEYWORD_0 = 0x10
"""EVENT_ENABLE_PROPERTY_IGNORE_KEYWORD_0: events without keywords are not taken."""
_SID, _TS_ID, _PROCESS_START_KEY = 0x1, 0x2, 0x80


@dataclass(frozen=True, slots=True)
class Target:
    """A session that takes events of a provider of this process as ``state`` says."""

    state: EnableState
    ids: tuple[bool, frozenset[int]] | None = None
    """Event ids that are let through or held back."""

    def takes(self, level: int, keyword: int) -> bool:
        """Whether it takes events of ``level`` and ``keyword``."""
        state = self.state
        if level > state.level > 0:
            return False
        if not keyword:
            return not state.property & IGNORE_KEYWORD_0
        wanted = state.match_any or ALL
        return bool(keyword & wanted) and keyword & state.match_all == state.match_all

    def takes_event(self, descriptor: EventDescriptor) -> bool:
        """Whether it takes events of ``descriptor``."""
        if self.ids is not None and (descriptor.id in self.ids[1]) != self.ids[0]:
            return False
        return self.takes(descriptor.level, descriptor.keyword)

    def items(self) -> list[tuple[int, bytes]]:
        """Extended items (type, data) that the session wants in each event: EVENT_ENABLE_PROPERTY_*."""
        return [(kind, make()) for bit, kind, make in _ITEMS if self.state.property & bit]


def target_of(state: EnableState) -> Target | None:
    """The target of ``state``; ``None`` if its filters exclude this process."""
    return Target(state, event_ids(state.filters)) if takes_process(state.filters, os.getpid()) else None


def _sid() -> bytes:
    """The user as Samba maps Unix users: S-1-22-1-UID."""
    return b"\1\2\0\0\0\0\0\x16" + (1).to_bytes(4, "little") + os.getuid().to_bytes(4, "little")


_ITEMS = (
    (_SID, 2, _sid),
    (_TS_ID, 3, lambda: os.getsid(0).to_bytes(4, "little")),
    (_PROCESS_START_KEY, 13, lambda: process_key().start.to_bytes(8, "little")),
)
"""Bit, EVENT_HEADER_EXT_TYPE_*, and what makes the data."""
