"""What a session takes of a provider's events: the rules of EnableTraceEx2, for one session that enabled it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..kernel import EventDescriptor
from .entries import EnableState
from .filters import event_ids, takes_process
from .processes import process_key

__all__ = ["Target", "target_of"]

ALL = (1 << 64) - 1
IGNORE_KEYWORD_0 = 0x10
"""EVENT_ENABLE_PROPERTY_IGNORE_KEYWORD_0: events without keywords are not taken."""
_SID, _TS_ID, _PROCESS_START_KEY = 0x1, 0x2, 0x80


@dataclass(frozen=True, slots=True)
class Target:
    """A session that takes events of a provider of this process, as ``state`` says."""

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
        """Extended items (type, data) that each event is to carry for it: EVENT_ENABLE_PROPERTY_*."""
        return [(kind, make()) for bit, kind, make in _ITEMS if self.state.property & bit]


def target_of(state: EnableState) -> Target | None:
    """The target of ``state``, ``None`` if its filters hold back what this process writes."""
    return Target(state, event_ids(state.filters)) if takes_process(state.filters, os.getpid()) else None


def _sid() -> bytes:
    """The user as Samba maps one that Windows does not know: S-1-22-1-UID."""
    return b"\1\2\0\0\0\0\0\x16" + (1).to_bytes(4, "little") + os.getuid().to_bytes(4, "little")


_ITEMS = (
    (_SID, 2, _sid),
    (_TS_ID, 3, lambda: os.getsid(0).to_bytes(4, "little")),
    (_PROCESS_START_KEY, 13, lambda: process_key().start.to_bytes(8, "little")),
)
"""Bit, EVENT_HEADER_EXT_TYPE_*, and what makes the data."""
