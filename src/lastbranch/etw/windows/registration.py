"""A provider of this process: EventRegister and its callback, EventWriteTransfer, EventUnregister."""

from __future__ import annotations

import atexit
import ctypes
from contextlib import suppress
from typing import Any
from uuid import UUID

from ..flags import EnableProvider
from ..status import EtwError, Status
from ..structures import guid_of, uuid_of
from ..types import EnableCallback, EventDescriptor
from .libraries import Libraries, callback
from .memory import bytes_at_call, filters_at, native

__all__ = ["WindowsRegistration"]

_LIVE: set[WindowsRegistration] = set()
"""Registrations that Windows may call: what it calls must not be collected, and ends before Python does."""


class WindowsRegistration:
    """What EventRegister made. ``enabled``, ``level`` and ``keywords`` are what the callback was told last.

    The user's callback runs in a thread of Windows'; an exception of it goes to ``sys.unraisablehook``, for nobody else
    is there to take it.
    """

    def __init__(self, libraries: Libraries, provider: UUID, told: EnableCallback | None) -> None:
        self.enabled = False
        self.level = 0
        self.keywords = 0
        self._libraries = libraries
        self._told = told
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
        if self._told is not None:
            who = uuid_of(native("GUID").from_address(source)) if source else UUID(int=0)
            self._told(who, EnableProvider(code), level, match_any, match_all, filters_at(filters))

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
                self._handle, ctypes.byref(self._descriptor(*descriptor)), activity or None, related or None,
                1 if piece is not None else 0, ctypes.byref(piece) if piece is not None else None,
            )
        )  # fmt: skip

    def set_information(self, kind: int, data: bytes) -> None:
        """EventSetInformation."""
        self._libraries.status("EventSetInformation", self._handle, kind, bytes_at_call(data), len(data))

    def close(self) -> None:
        """EventUnregister: when it has returned no callback runs. Not to be called from the callback."""
        if self._open:
            self._open = self.enabled = False
            self._libraries.status("EventUnregister", self._handle)
            _LIVE.discard(self)  # not where it failed: Windows may go on calling


@atexit.register
def _close_all() -> None:
    for registration in tuple(_LIVE):
        with suppress(EtwError):
            registration.close()
