"""TraceConfigureLastBranchRecord, and what does the same before build 26100.1301.

The older way is TraceSetInformation with the classes 20 (flags) and 21 (hook ids), which came with Windows 10 1903. The
checks, their order and the silent skipping of unknown GUIDs are those of the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..flags import MAX_LBR_EVENTS, Info
from ..hooks import hook_ids
from ..information import encode
from ..status import EtwError, Status
from .libraries import Libraries
from .memory import bytes_at_call, events_of

__all__ = ["configure"]

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
