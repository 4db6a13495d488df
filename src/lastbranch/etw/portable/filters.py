"""EVENT_FILTER_DESCRIPTORs that the portable kernel applies: by process, by executable, by event id (evntprov.h).

A filter of another kind lets everything through, as it is for providers to apply.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from ..properties import Filter, SessionRequest
from ..status import EtwError, Status

__all__ = ["EVENT_ID", "EXECUTABLE_NAME", "PID", "admitted", "event_ids", "takes_process"]

PID = 0x80000004
"""Data: u32 process ids."""
EXECUTABLE_NAME = 0x80000008
"""Data: UTF-16, file names of executables with ``;`` between them."""
EVENT_ID = 0x80000200
"""Data: EVENT_FILTER_EVENT_ID: u8 FilterIn, u8, u16 count, u16 ids."""
_EVENT_IDS = struct.Struct("<BBH")


def takes_process(filters: Iterable[Filter], pid: int) -> bool:
    """Whether ``filters`` let events of process ``pid`` through."""
    return all(_SCOPES[f.kind](f.data, pid) for f in filters if f.kind in _SCOPES)


def admitted(request: SessionRequest, pid: int) -> None:
    """`EtwError` 5 if the session of ``request`` takes no events of process ``pid``: filters of private loggers."""
    if not takes_process(request.filters, pid):
        raise EtwError("attach", Status.ACCESS_DENIED, f"the session takes no events of process {pid}")


def _pid(data: bytes, pid: int) -> bool:
    whole = len(data) & ~3
    return pid in struct.unpack(f"<{whole // 4}I", data[:whole])


def _executable(data: bytes, pid: int) -> bool:
    wanted = data[: len(data) & ~1].decode("utf-16-le", "replace").rstrip("\0").casefold().split(";")
    try:
        path = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return os.path.basename(path).casefold() in (name.strip() for name in wanted)


_SCOPES = {PID: _pid, EXECUTABLE_NAME: _executable}


def event_ids(filters: Iterable[Filter]) -> tuple[bool, frozenset[int]] | None:
    """Event ids that are let through (True) or held back (False); ``None``: no such filter, or one cut short."""
    for f in filters:
        if f.kind == EVENT_ID and len(f.data) >= _EVENT_IDS.size:
            keep, _, count = _EVENT_IDS.unpack_from(f.data)
            if len(f.data) >= _EVENT_IDS.size + 2 * count:
                return bool(keep), frozenset(struct.unpack_from(f"<{count}H", f.data, _EVENT_IDS.size))
    return None
