"""Commands that change what a machine records, and how far each reaches. They are shown, never run."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CHANGES", "Change"]


class Change(NamedTuple):
    """``command`` as it is typed; ``scope``: for whom and how long it holds."""

    command: str
    scope: str


_BOOT = "all users, until the next boot"
CHANGES: dict[str, Change] = {
    "software": Change("lastbranch record --engine software", "this recording"),
    "root": Change("sudo lastbranch record", "this recording"),
    "user-only": Change("lastbranch record --filter any,user", "this recording"),
    "per-process": Change("lastbranch record COMMAND", "this recording"),
    "paranoid-process": Change("sudo sysctl kernel.perf_event_paranoid=2", _BOOT),
    "paranoid-kernel": Change("sudo sysctl kernel.perf_event_paranoid=1", _BOOT),
    "paranoid-system": Change("sudo sysctl kernel.perf_event_paranoid=0", _BOOT),
    "perfmon": Change(
        "sudo setcap cap_perfmon,cap_sys_ptrace=ep COPY-OF-PYTHON", "whoever may run that file, until it is removed"
    ),
    "container": Change("docker run --cap-add PERFMON --cap-add SYS_PTRACE IMAGE", "a new container"),
    "files": Change("ulimit -n $(ulimit -Hn)", "this shell"),
    "mlock": Change("sudo sysctl kernel.perf_event_mlock_kb=8192", _BOOT),
    "rate": Change("sudo sysctl kernel.perf_event_max_sample_rate=HERTZ", _BOOT),
    "watchdog": Change("sudo sysctl kernel.nmi_watchdog=0", _BOOT),
    "ptrace": Change("sudo sysctl kernel.yama.ptrace_scope=0", _BOOT),
    "symbols": Change("sudo sysctl kernel.kptr_restrict=0", _BOOT),
    "qemu": Change(
        "qemu-system-x86_64 -enable-kvm -cpu host,pmu=on,lbr-fmt=0x5", "a new start of the guest, on its host"
    ),
    "period": Change("lastbranch record --period 400009", "this recording"),
    "events": Change("perf list", "shows names only"),
}
"""By short name. Words in capitals are to be filled in."""
