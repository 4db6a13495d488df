"""TraceConfigureLastBranchRecord without hardware: which configurations it refuses, and when branches are recorded.

The software branch record attaches only to the targets that a session names. Such a session gets the profile source
`SOFTWARE_BRANCHES`, which counts nanoseconds of a target thread's CPU time. After each interval a burst is recorded. It
is written as a PMC interrupt (0x0F2F) with a last branch record. No other event triggers a branch record.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from ..flags import GROUPS, LBR_EXCLUDE_USER, LBR_SAMPLED, hook_ids
from ..information import CONFIGURE_LBR, check_lbr
from ..interface import ProfileSource
from ..status import EtwError, Status
from .session_registry import Registry

__all__ = [
    "SOFTWARE_BRANCHES", "SOURCE", "argv", "check_configuration",
    "has_hardware", "needed", "software_source", "state_triggers",
]  # fmt: skip


SOFTWARE_BRANCHES = 65
"""The profile source, the same as in a log that is converted from a recording."""
PMC_HOOK = 0x0F2F
_PMC_PROFILE = GROUPS["PMC_PROFILE"]
SOURCE = ProfileSource(SOFTWARE_BRANCHES, "SoftwareBranches", 1_000_000, 2_147_483_647, 20_000_000)


def software_source() -> list[ProfileSource]:
    """The profile source, if programs can be traced here and the processor records no branches itself."""
    from ...capture.traceable import check_machine
    from ...errors import LastbranchError

    try:
        check_machine()
    except LastbranchError:
        return []
    return [] if has_hardware() else [SOURCE]


def has_hardware() -> bool:
    """Whether the kernel offers branch stacks."""
    from pathlib import Path

    return any(Path("/sys/bus/event_source/devices").glob("cpu*/caps/branches"))


def check_configuration(flags: int, events: Sequence[tuple[UUID, int]], target: int | None) -> None:
    """Whether a session with ``target`` may be configured so; `EtwError` 1292, 87 or 50 if not, in Windows' order.

    Zero events disable, which is always possible.
    """
    check_lbr(flags, len(events))
    if not events or has_hardware():
        return
    for bit, why in _REFUSED.items():
        if flags & bit:
            raise EtwError(CONFIGURE_LBR, Status.NOT_SUPPORTED, why)
    if target is None:
        why = "this processor offers no branch records, and the session has no target for the software branch record"
        raise EtwError(CONFIGURE_LBR, Status.NOT_SUPPORTED, why, hint="name one: lastbranch session start --target PID")


_REFUSED = {
    LBR_EXCLUDE_USER: "the software branch record covers user code only",
    LBR_SAMPLED: "sampled branch records (SPE) are of ARM64",
}


def needed(hooks: Sequence[int], masks: Sequence[int], sources: Sequence[int]) -> bool:
    """Whether a session with a target records branches by software: its trigger is configured, and enabled.

    ``hooks`` trigger a branch record; ``masks`` are the words of PERFINFO_GROUPMASK; ``sources`` are the profile
    sources that PMC_PROFILE enables; empty means all.
    """
    enabled = masks[_PMC_PROFILE.word] & _PMC_PROFILE.bits
    return bool(PMC_HOOK in hooks and enabled and (not sources or SOFTWARE_BRANCHES in sources))


def argv(socket: str) -> list[str]:
    """The command of the process that records, for the session whose daemon listens at ``socket``."""
    return [sys.executable, "-m", "lastbranch.etw.portable.lbr.recording_process", socket]


def state_triggers(registry: Registry, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
    """Write the event Triggers to a session, if it accepts another writer. `check` finds by it a trigger that was
    configured and not enabled."""
    from ...formats.etl.profile.supplement_events import supplement_event
    from ...formats.etl.single_event import encode_event  # with NumPy, which daemons start without
    from .protocol import address_in
    from .provider.writer import connect_writer

    entry = registry.find(handle)
    if entry is None:
        return
    fields = {"Flags": flags, "Hooks": hook_ids(events)}
    with (
        suppress(EtwError), registry.folder("sessions") as folder,
        connect_writer(address_in(folder, entry.socket)) as writer,
    ):  # fmt: skip
        event = encode_event(supplement_event("Triggers", writer.clock.now(), fields))
        writer.write(event + bytes(-len(event) % 8))
