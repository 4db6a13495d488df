"""TraceConfigureLastBranchRecord without hardware: which configurations it refuses, and when branches are recorded.

The software branch record attaches only to the targets that a session names, at its start or at any time after it
(`Info.SOFTWARE_BRANCH_TARGETS_INFO`). Its profile source `SOFTWARE_BRANCHES` counts nanoseconds of a target thread's
CPU time. After each interval a burst is recorded. It is written as a PMC interrupt (0x0F2F) with a last branch record,
or, if only that is configured and enabled, as a time sample (0x0F2E): the clock of the thread's CPU time began it.
Events that the kernel logs anyway have the record of a burst that ended at the system call which they are about: its
SysCallEnter (0x0F33), or the CSwitch (0x0524) at which the thread waits in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from ...errors import LastbranchError
from ...lbr import convert
from ..flags import GROUPS, LBR_EXCLUDE_KERNEL, LBR_EXCLUDE_USER, LBR_SAMPLED, hook_ids
from ..information import CONFIGURE_LBR, check_lbr
from ..interface import ProfileSource
from ..status import EtwError, Status
from .session_registry import Registry

__all__ = [
    "CSWITCH_HOOK",
    "SOFTWARE_BRANCHES",
    "SOURCE",
    "active_call_triggers",
    "active_trigger",
    "argv",
    "check_configuration",
    "check_targets",
    "has_hardware",
    "needed",
    "needs_tracepoints",
    "software_source",
    "state_triggers",
    "triggers",
]


SOFTWARE_BRANCHES = 65
"""The profile source, the same as in a log that is converted from a recording."""
PMC_HOOK, SAMPLED_HOOK = 0x0F2F, 0x0F2E
_GROUPS = {PMC_HOOK: GROUPS["PMC_PROFILE"], SAMPLED_HOOK: GROUPS["PROFILE"]}
"""Trigger -> the group that enables it. The first one that is configured and enabled counts."""
ENTER_HOOK, CSWITCH_HOOK = 0x0F33, 0x0524
_CALL_GROUPS = {ENTER_HOOK: GROUPS["SYSCALL"], CSWITCH_HOOK: GROUPS["CONTEXT_SWITCH"]}
SOURCE = ProfileSource(SOFTWARE_BRANCHES, "SoftwareBranches", 1_000_000, 2_147_483_647, 20_000_000)


def software_source() -> list[ProfileSource]:
    """The profile source, if programs can be traced here and the processor records no branches itself."""
    from ...capture import check_machine

    try:
        check_machine()
    except LastbranchError:
        return []
    return [] if has_hardware() else [SOURCE]


def has_hardware() -> bool:
    """Whether the kernel offers branch stacks."""
    from pathlib import Path

    return any(Path("/sys/bus/event_source/devices").glob("cpu*/caps/branches"))


def triggers() -> tuple[int, ...]:
    """Hooks of the events that branch records can follow: those of a processor are of its counters alone."""
    return (PMC_HOOK,) if has_hardware() else (*_GROUPS, *_CALL_GROUPS)


def check_configuration(flags: int, hooks: Sequence[int], count: int) -> None:
    """Whether a session may be configured so; `EtwError` 1292, 87 or 50 if not, in Windows' order.

    ``hooks`` are those of the ``count`` events that a kernel group has. Zero events disable, which is always possible.
    """
    check_lbr(flags, count)
    if not count:
        return
    for hook in hooks:
        if hook not in triggers():
            listed = ", ".join(f"{one:#06x}" for one in triggers())
            why = f"no branch record follows events of hook {hook:#06x} here, only those of {listed}"
            raise EtwError(CONFIGURE_LBR, Status.NOT_SUPPORTED, why)
    if has_hardware():
        return
    for bit, why in _REFUSED.items():
        if flags & bit:
            raise EtwError(CONFIGURE_LBR, Status.NOT_SUPPORTED, why)
    try:
        convert(flags | LBR_EXCLUDE_KERNEL, "etw", "msr")
    except LastbranchError as error:
        raise EtwError(CONFIGURE_LBR, Status.INVALID_PARAMETER, str(error)) from error


def check_targets(targets: Sequence[int]) -> None:
    """Whether these targets can be named: `EtwError` 87 for a process that does not run, 50 where the kernel does not
    list children."""
    for target in targets:
        if not target or not os.path.isdir(f"/proc/{abs(target)}"):
            raise EtwError("TraceSetInformation", Status.INVALID_PARAMETER, f"process {abs(target)} does not exist")
        if target < 0 and not os.path.exists(f"/proc/{-target}/task/{-target}/children"):
            why = "this kernel does not list the children of a process (CONFIG_PROC_CHILDREN): name processes"
            raise EtwError("TraceSetInformation", Status.NOT_SUPPORTED, why)


_REFUSED = {
    LBR_EXCLUDE_USER: "the software branch record covers user code only",
    LBR_SAMPLED: "sampled branch records (SPE) are of ARM64",
}


def needed(hooks: Sequence[int]) -> bool:
    """Whether a session with these triggers needs the software branch record. The check runs before a trigger is
    enabled or a target is named, so that the configuring call reports the failure."""
    return bool(hooks) and not has_hardware()


def active_trigger(hooks: Sequence[int], masks: Sequence[int], sources: Sequence[int]) -> int:
    """The trigger by which the session records branches now, 0: none is configured and enabled.

    ``hooks`` trigger a branch record; ``masks`` are the words of PERFINFO_GROUPMASK; ``sources`` are the profile
    sources that PMC_PROFILE enables; empty means all.
    """
    for hook, group in _GROUPS.items():
        counts = hook != PMC_HOOK or not sources or SOFTWARE_BRANCHES in sources
        if hook in hooks and masks[group.word] & group.bits and counts:
            return hook
    return 0


def needs_tracepoints(hooks: Sequence[int]) -> bool:
    """Whether the time of a trigger comes from a tracepoint: `call_branches.check_tracepoints` tries these."""
    return not has_hardware() and any(hook in _CALL_GROUPS for hook in hooks)


def active_call_triggers(hooks: Sequence[int], masks: Sequence[int]) -> tuple[int, ...]:
    """The triggers of the kernel's own events whose records software makes now: those that are configured and
    enabled."""
    groups = {} if has_hardware() else _CALL_GROUPS
    return tuple(hook for hook, group in groups.items() if hook in hooks and masks[group.word] & group.bits)


def argv(socket: str) -> list[str]:
    """The command of the process that records, for the session whose daemon listens at ``socket``."""
    return [sys.executable, "-m", "lastbranch.etw.portable.lbr.recording_process", socket]


def state_triggers(registry: Registry, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
    """Write the event Triggers to a session, if it accepts another writer. `check` finds by it a trigger that was
    configured and not enabled."""
    from ...formats.etl import encode_event  # with NumPy, which daemons start without
    from ...formats.etl.profile.supplement import supplement_event
    from .protocol import address_in
    from .provider.writer import connect_writer

    entry = registry.find(handle)
    if entry is None:
        return
    fields = {"Flags": flags, "Hooks": hook_ids(events)}
    with (
        suppress(EtwError),
        registry.folder("sessions") as folder,
        connect_writer(address_in(folder, entry.socket)) as writer,
    ):
        event = encode_event(supplement_event("Triggers", writer.clock.now(), fields))
        writer.write(event + bytes(-len(event) % 8))
