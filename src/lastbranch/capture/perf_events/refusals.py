"""Why the kernel refused an event: a sentence and a remedy for an errno and its circumstances.

perf_event_open(2) uses one errno for many causes; the request and the machine determine which. The first row of
`REFUSALS` that applies is the answer. Sources: kernel/events/core.c,
arch/x86/events (core.c, intel/core.c, intel/lbr.c, amd/core.c, amd/lbr.c, amd/brs.c), drivers/perf/arm_brbe.c of Linux.
"""

from __future__ import annotations

import errno as _e
import os
from collections.abc import Callable
from typing import NamedTuple

from ...errors import UnavailableError
from ...lbr import PERF_SELECT, describe_perf
from .event_names import EventChoice
from .event_set import Request
from .host import REMEDIES, SECCOMP_FILTER, Host

__all__ = ["Attempt", "EventUnavailable", "OTHER", "REFUSALS", "Refusal", "explain"]


class Attempt(NamedTuple):
    """The refused event. ``freq`` and ``period`` are those of the attribute; ``files`` is the number of descriptors."""

    request: Request
    choice: EventChoice
    period: int = 0
    freq: bool = False
    files: int = 0

    @property
    def select(self) -> int:
        return self.request.select

    @property
    def system_wide(self) -> bool:
        return self.request.target.pid < 0

    @property
    def kernel_side(self) -> bool:
        """Whether the event needs permission for kernel code."""
        levels = self.select & (PERF_SELECT["KERNEL"] | PERF_SELECT["HV"])
        return bool(levels) or "exclude_kernel" not in self.choice.exclude

    @property
    def filtered(self) -> bool:
        """Whether the event selects only some branches."""
        return bool(self.select & ~(_LEVELS | PERF_SELECT["ANY"])) and not self.request.call_stack

    @property
    def off_core(self) -> bool:
        """Whether the event is not one of a processor core: a clock, a tracepoint, a breakpoint, a bus."""
        return self.choice.software or (self.choice.pmu is not None and not self.choice.pmu.core)

    @property
    def most_precise(self) -> int:
        return self.choice.pmu.max_precise if self.choice.pmu else 0


class Refusal(NamedTuple):
    """One row. ``sentence`` and ``advice`` are format strings over `_words`; ``remedies`` name `REMEDIES`."""

    cause: str
    errnos: tuple[int, ...]
    applies: Callable[[Attempt, Host], bool]
    sentence: str
    advice: str
    remedies: tuple[str, ...] = ()


_LEVELS = PERF_SELECT["USER"] | PERF_SELECT["KERNEL"] | PERF_SELECT["HV"]
_DENIED = (_e.EACCES, _e.EPERM)


def _always(a: Attempt, h: Host) -> bool:
    return True


def _depth(h: Host) -> int:
    return max((pmu.depth for pmu in h.core), default=0)


REFUSALS: tuple[Refusal, ...] = (
    Refusal("no-perf", (_e.ENOSYS,), lambda a, h: h.paranoid is None,
            "this kernel ({release}) has no performance events",
            "use a kernel with CONFIG_PERF_EVENTS; sandboxes that emulate a kernel have none", ("software",)),
    Refusal("seccomp-nosys", (_e.ENOSYS,), _always,
            "perf_event_open is blocked{in_container}",
            "start the container with CAP_PERFMON{profile}", ("container", "software")),
    Refusal("seccomp", (_e.EPERM,), lambda a, h: h.seccomp == SECCOMP_FILTER,
            "a seccomp filter blocks perf_event_open{in_container}",
            "start the container with CAP_PERFMON{profile}", ("container", "software")),
    Refusal("lockdown", (_e.EPERM,), lambda a, h: h.lockdown == "confidentiality",
            "the kernel is locked down (confidentiality) and offers no performance events",
            "only booting without lockdown changes that", ("software",)),
    Refusal("paranoid-all", _DENIED, lambda a, h: (h.paranoid or 0) > 2 and not h.may_perf,
            "kernel.perf_event_paranoid is {paranoid}: only privileged users may use events{userns}",
            "lower it to 2, or record with CAP_PERFMON", ("paranoid-process", "root", "software")),
    Refusal("paranoid-system", _DENIED, lambda a, h: a.system_wide and (h.paranoid or 0) > 0 and not h.may_perf,
            "kernel.perf_event_paranoid is {paranoid}: recording the whole system (-a) needs 0 or CAP_PERFMON{userns}",
            "record one command or process, or lower it", ("per-process", "paranoid-system", "root")),
    Refusal("paranoid-kernel", _DENIED, lambda a, h: a.kernel_side and (h.paranoid or 0) > 1 and not h.may_perf,
            "kernel.perf_event_paranoid is {paranoid}: branches and events of the kernel need 1 or CAP_PERFMON{userns}",
            "record user code only (and events with :u), or lower it", ("user-only", "paranoid-kernel", "root")),
    Refusal("other-user", (_e.EACCES,), lambda a, h: a.request.target.pid > 0 and not h.may_perf,
            "process {pid} belongs to another user, or is protected (set-user-id, not dumpable)",
            "record as its user or as root", ("root",)),
    Refusal("denied", _DENIED, _always,
            "a security module (SELinux, AppArmor, LSM) refuses performance events for this process",
            "its log (`ausearch -m avc`, `dmesg`) names the rule", ("software",)),
    Refusal("software-event", (_e.EOPNOTSUPP,), lambda a, h: bool(a.select) and a.off_core,
            "{event} is not counted by the processor: such events cannot carry branch records",
            "omit --event to use the taken-branch event, or record this event without branches", ("events",)),
    Refusal("no-call-stack", (_e.EOPNOTSUPP,), lambda a, h: a.request.call_stack and bool(_depth(h)),
            "{facility} has no call-stack mode here (Intel has it since Haswell; AMD and Arm do not)",
            "record without --call-graph lbr", ("software",)),
    Refusal("too-precise", (_e.EOPNOTSUPP,), lambda a, h: (a.choice.precise or 0) > a.most_precise,
            "{event} requests precise level {precise}, but {pmu} offers only {max_precise}",
            "use fewer p modifiers, or P for the highest level offered"),
    Refusal("filter", (_e.EOPNOTSUPP,), lambda a, h: a.filtered and bool(_depth(h)),
            "{facility} cannot filter branches this way ({branches})",
            "record any branch and filter afterwards", ("user-only",)),
    Refusal("hypervisor-no-lbr", (_e.EOPNOTSUPP,), lambda a, h: bool(a.select and h.hypervisor) and not _depth(h),
            "{hypervisor} passes event counters to this machine, but no branch records",
            "use bare metal{qemu}", ("software", "qemu")),
    Refusal("no-interrupt", (_e.EOPNOTSUPP,), lambda a, h: not a.select or bool(_depth(h)),
            "{pmu} counts {event}, but cannot sample it (no interrupt)",
            "use another event, or enable the local APIC (boot without nolapic)", ("software",)),
    Refusal("no-lbr", (_e.EOPNOTSUPP,), _always,
            "Linux {release} knows no branch records of this processor{model}",
            "Intel processors have them since Core 2, AMD since Zen 3 (branch-brs) and Zen 4, Arm from v9.2 (BRBE)",
            ("software",)),
    Refusal("no-pmu-vm", (_e.ENOENT,), lambda a, h: not h.core and bool(h.hypervisor) and not a.off_core,
            "{hypervisor} exposes no performance counters to this machine, so no branch records either",
            "use bare metal, or a machine type with counters{qemu}", ("software", "qemu")),
    Refusal("no-pmu", (_e.ENOENT,), lambda a, h: not h.core and not a.off_core,
            "Linux {release} found no performance counters in this processor{model}",
            "a newer kernel may support them; firmware may have disabled them", ("software",)),
    Refusal("precise-amd", (_e.ENOENT, _e.EINVAL), lambda a, h: h.vendor == "AuthenticAMD" and bool(a.choice.precise),
            "precise events of AMD processors use IBS, which has no branch records",
            "remove the p modifiers"),
    Refusal("no-event", (_e.ENOENT,), _always,
            "{pmu} does not know the event {event}",
            "choose one that `perf list` shows on this machine", ("events",)),
    Refusal("brs-selection", (_e.EINVAL,),
            lambda a, h: h.brs and bool(a.select) and a.select & ~_LEVELS != PERF_SELECT["ANY"],
            "AMD BRS (Zen 3) records all taken branches and cannot filter them ({branches} was requested)",
            "record any branch and filter afterwards", ("user-only",)),
    Refusal("brs-event", (_e.EINVAL,), lambda a, h: h.brs and bool(a.select) and a.choice.config & 0xFF != 0xC4,
            "AMD BRS (Zen 3) records branches only with the event branch-brs, not with {event}",
            "leave --event out"),
    Refusal("brs-period", (_e.EINVAL,), lambda a, h: h.brs and bool(a.select) and (a.freq or a.period <= 16),
            "AMD BRS (Zen 3) needs a fixed period of more than 16 branches, not a frequency ({rate})",
            "give a period", ("period",)),
    Refusal("rate", (_e.EINVAL,), lambda a, h: a.freq and h.max_rate is not None and a.period > h.max_rate,
            "{rate} exceeds kernel.perf_event_max_sample_rate ({max_rate} Hz)",
            "sample less often, or raise the limit", ("rate",)),
    Refusal("period", (_e.EINVAL,), lambda a, h: not a.freq and (a.period >= 1 << 63 or 0 < a.period < 32),
            "{pmu} cannot count a period of {period}",
            "use a period in the thousands", ("period",)),
    Refusal("precise", (_e.EINVAL,), lambda a, h: bool(a.choice.precise),
            "{pmu} cannot sample {event} precisely (level {precise})",
            "use fewer p modifiers, or P for the highest level offered"),
    Refusal("selection", (_e.EINVAL,), lambda a, h: a.filtered,
            "this kernel ({release}) or processor does not support this branch filter ({branches})",
            "record any branch and filter afterwards", ("user-only",)),
    Refusal("invalid", (_e.EINVAL, _e.E2BIG), _always,
            "this kernel ({release}) does not accept the event {event} as written",
            "remove terms and modifiers one at a time; `perf list` shows the formats", ("events",)),
    Refusal("cpu-gone", (_e.ENODEV, _e.ENXIO), _always,
            "a processor of {pmu} went offline, or its driver was unloaded",
            "try again; `cat /sys/devices/system/cpu/online` shows which are online"),
    Refusal("watchdog", (_e.EBUSY,), lambda a, h: bool(h.nmi_watchdog),
            "the counters are in use; the kernel's own watchdog holds one of them",
            "disable the watchdog while recording", ("watchdog",)),
    Refusal("busy", (_e.EBUSY,), _always,
            "the counters or branch records are in use: by Intel PT or BTS, by another profiler, or by the firmware",
            "end the other recording (`perf record -e intel_pt//`, VTune, a debugger)", ("software",)),
    Refusal("files", (_e.EMFILE, _e.ENFILE), _always,
            "recording needs about {files} open files (one for each event, processor and thread), more than the limit",
            "raise the limit, or record fewer threads", ("files",)),
    Refusal("memory", (_e.ENOMEM, _e.ENOSPC), _always,
            "the kernel has no memory or counter left for the event {event}",
            "end other recordings", ("software",)),
    Refusal("gone", (_e.ESRCH,), _always,
            "process {pid} does not exist (any more)",
            "`pgrep -a NAME` shows process ids"),
)  # fmt: skip

OTHER = Refusal("other", (), _always, "the kernel refused the event {event}: {errno}", "`dmesg` may say more")
"""For errors without a row."""


def explain(error: OSError, attempt: Attempt, host: Host) -> Refusal:
    """The row that applies, with its sentences filled in."""
    number = error.errno or 0
    row = next((r for r in REFUSALS if number in r.errnos and r.applies(attempt, host)), OTHER)
    words = _words(number, attempt, host)
    remedies = tuple(name for name in row.remedies if name != "qemu" or words["qemu"])
    return row._replace(sentence=row.sentence.format(**words), advice=row.advice.format(**words), remedies=remedies)


class EventUnavailable(UnavailableError):
    """An event that cannot be opened, with reason and errno; the hint has the remedy with its commands."""

    def __init__(self, error: OSError, attempt: Attempt, host: Host) -> None:
        self.refusal = refusal = explain(error, attempt, host)
        commands = [f"`{REMEDIES[c].command}` ({REMEDIES[c].scope})" for c in refusal.remedies]
        hint = "; ".join([refusal.advice, *([" or ".join(commands)] if commands else [])])
        super().__init__(f"{refusal.sentence} ({_name(error.errno or 0)})", hint=hint)


def _words(number: int, a: Attempt, h: Host) -> dict[str, object]:
    return {
        "release": h.release,
        "model": f" ({h.model})" if h.model else "",
        "in_container": f" ({h.container})" if h.container else "",
        "userns": "; capabilities of a user namespace do not count" if h.user_namespace else "",
        "paranoid": h.paranoid,
        "max_rate": h.max_rate,
        "hypervisor": h.hypervisor[:1].upper() + h.hypervisor[1:],
        "qemu": ", or let QEMU/KVM pass them on" if h.vendor == "GenuineIntel" else "",  # AMD's it cannot
        "profile": " (Docker before 23: also with a seccomp profile that allows perf_event_open)",
        "facility": h.facility or "this processor",
        "pid": a.request.target.pid,
        "event": a.choice.name,
        "precise": a.choice.precise,
        "max_precise": a.most_precise,
        "pmu": a.choice.pmu.name if a.choice.pmu else "the kernel",
        "branches": describe_perf(a.select),
        "rate": f"{a.period} Hz" if a.freq else f"period {a.period}",
        "period": a.period,
        "files": a.files,
        "errno": f"{_name(number)}, {os.strerror(number)}",
    }


def _name(number: int) -> str:
    if number == _e.EOPNOTSUPP:  # on Linux the same number as ENOTSUP, which kernel and manual do not call it
        return "EOPNOTSUPP"
    return _e.errorcode.get(number, f"errno {number}")
