"""Examines what this machine can record, why it cannot record the rest, and which commands would help.

The examination changes nothing: on Linux it opens events on this process and closes them at once, and traces a child
process and ends the child. The modules of Linux are imported in functions, since other systems lack these modules;
other systems have a table instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from .. import native
from ..errors import LastbranchError
from ..lbr import PERF_SELECT
from .architectures import ARCHITECTURES
from .perf_events.host import CAP_SYS_PTRACE, REMEDIES, SECCOMP_FILTER, Host, Remedy, read_host

if TYPE_CHECKING:
    from .perf_events.event_set import Request
    from .perf_events.linux_kernel import Kernel

__all__ = ["COLUMNS", "Finding", "examine", "findings"]


COLUMNS = ("capability", "state", "why", "command", "scope")


class Finding(NamedTuple):
    """``state`` is ``yes``, ``no``, or the value of a setting; ``remedies`` would allow more."""

    capability: str
    state: str
    why: str = ""
    remedies: tuple[Remedy, ...] = ()

    @property
    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Rows of `COLUMNS`: a row for each command, or a single row without a command."""
        what = (self.capability, self.state, self.why)
        return [(*what, *change) for change in self.remedies] or [(*what, "", "")]


def examine() -> list[Finding]:
    """Examine this machine."""
    system: str = sys.platform
    if system.startswith("linux"):
        from .perf_events.linux_kernel import Kernel

        return [*findings(Kernel()), _library()]
    return [*_ELSEWHERE.get(system, _ELSEWHERE["other"]), _library()]


def _library() -> Finding:
    """Whether compiled code does the heavy work; without it results are the same, later."""
    if native.library() is not None:
        return Finding("compiled library", "yes", native.describe())
    remedies = (Remedy("LASTBRANCH_NATIVE_BUILD=require pip install --force-reinstall lastbranch", "for good"),)
    return Finding("compiled library", "no", native.describe(), remedies)


_READS = Finding("read captures", "yes", "this machine can still read perf.data and .etl files from any machine")
_NO_SOFTWARE = Finding("software branch records", "no", "they need ptrace on Linux")
_ELSEWHERE: dict[str, tuple[Finding, ...]] = {
    "win32": (
        Finding(
            "hardware branch records", "by Windows",
            "event tracing records them where the processor has LBR and no hypervisor hides it",
            (Remedy("lastbranch record -o NAME.etl COMMAND", "this recording, in an elevated prompt"),),
        ),
        _NO_SOFTWARE, _READS,
    ),
    "darwin": (
        Finding("hardware branch records", "no", "macOS offers none and passes none on to virtual machines"),
        _NO_SOFTWARE, _READS,
    ),
    "other": (
        Finding("hardware branch records", "no", "they can be recorded on Linux and Windows"), _NO_SOFTWARE, _READS,
    ),
}  # fmt: skip


# -- Linux: capabilities


_ANY, _USER, _KERNEL = PERF_SELECT["ANY"], PERF_SELECT["USER"], PERF_SELECT["KERNEL"]
_MLOCK_ONE_RING = 516
"""KiB: 128 pages of records and their header."""


_PROBES: tuple[tuple[str, str, str], ...] = (
    ("hardware branch records", "", "user"),
    ("hardware branch records: kernel", "", "kernel"),
    ("hardware branch records: call stacks", "", "call stacks"),
    ("hardware branch records: whole system", "", "system"),
    ("samples by CPU clock", "cpu-clock", "user"),
    ("samples by CPU clock: kernel", "cpu-clock", "kernel"),
    ("samples by CPU clock: whole system", "cpu-clock", "system"),
)
"""Capability, event (empty: branch records with the default event), and scope."""


def findings(kernel: Kernel) -> Iterator[Finding]:
    """The capabilities, then the settings that they depend on."""
    host = read_host(kernel)
    first: dict[str, Finding] = {}
    for capability, event, what in _PROBES:
        found = _try_request(capability, _probe(event, what), kernel, host)
        base = first.setdefault(event, found)
        same = found is not base and found.state == base.state == "no" and found.why == base.why
        yield Finding(capability, "no", f"as {base.capability}") if same else found
    yield _software(kernel, host)
    yield _examine_attaching(host)
    yield from _settings(kernel, host)


def _probe(event: str, what: str) -> Request:
    from .perf_events.event_set import Request, Target

    target = Target() if what == "system" else Target(os.getpid())
    if event:
        return Request(target, event=event if what != "user" else f"{event}:u", branches=0)
    levels = _USER if what == "user" else _USER | _KERNEL
    return Request(target, branches=_ANY | levels, call_stack=what == "call stacks")


def _try_request(capability: str, request: Request, kernel: Kernel, host: Host) -> Finding:
    """Open the events of ``request`` as a recording would, and close them."""
    from .hardware import negotiated
    from .perf_events.refusals import EventUnavailable

    try:
        specs = negotiated(request, kernel, host, request.target.pid)
    except EventUnavailable as error:
        # The other engine has a row of its own.
        remedies = tuple(REMEDIES[name] for name in error.refusal.remedies if name != "software")
        return Finding(capability, "no", f"{error}; {error.refusal.advice}", remedies)
    except LastbranchError as error:
        return Finding(capability, "no", str(error))
    sampled = specs[:-1]
    parts = [", ".join(dict.fromkeys(p.choice.name for p in sampled))]
    if request.select:
        depth = max((p.choice.pmu.depth for p in sampled if p.choice.pmu), default=0)
        parts.insert(0, f"{host.facility or 'branch records'}, {depth} deep" if depth else host.facility)
    parts += dict.fromkeys(extra.loss for p in sampled for extra in p.dropped)
    return Finding(capability, "yes", "; ".join(filter(None, parts)))


def _software(kernel: Kernel, host: Host) -> Finding:
    name = "software branch records"
    if host.machine not in ARCHITECTURES:
        return Finding(name, "no", f"they need x86-64 or AArch64; this is {host.machine}")
    try:
        kernel.trace_child()
    except OSError as error:
        remedies = ("ptrace",) if (host.ptrace_scope or 0) > 1 else ("container",)
        why = f"ptrace is refused ({error.strerror}): {_why_no_ptrace(host)}"
        return Finding(name, "no", why, tuple(REMEDIES[c] for c in remedies))
    return Finding(name, "yes", "taken branches of a traced program, followed in short bursts")


def _why_no_ptrace(host: Host) -> str:
    if (host.ptrace_scope or 0) > 1:
        return f"kernel.yama.ptrace_scope is {host.ptrace_scope}"
    return "a seccomp filter" if host.seccomp == SECCOMP_FILTER else "a security module, or this sandbox"


def _examine_attaching(host: Host) -> Finding:
    name, scope = "attach to other processes", host.ptrace_scope or 0
    if host.can(CAP_SYS_PTRACE) and scope < 3:
        return Finding(name, "yes", "CAP_SYS_PTRACE")
    if not scope:
        return Finding(name, "yes", "of the same user")
    why = f"kernel.yama.ptrace_scope is {scope}; recording a launched command still works"
    if scope == 3:  # it cannot be lowered again
        return Finding(name, "no", f"kernel.yama.ptrace_scope is {scope}; this cannot change until the next boot")
    return Finding(name, "no", why, (REMEDIES["ptrace"], REMEDIES["root"]))


# -- Linux: the settings that they depend on


_PARANOID = (
    (2, "only privileged users may use events", "paranoid-process"),
    (1, "your own processes, user code only", "paranoid-kernel"),
    (0, "your own processes, user and kernel code; not the whole system", "paranoid-system"),
)
_NO_EVENTS = "the kernel has no performance events"


def _settings(kernel: Kernel, host: Host) -> Iterator[Finding]:
    if host.core:
        found = [f"{pmu.name} (precise up to {pmu.max_precise}, {pmu.depth} branch records)" for pmu in host.core]
        yield Finding("performance counters", "yes", ", ".join(found))
    else:
        known = f"{host.hypervisor} shows none"
        under = known if host.hypervisor else "the kernel supports no counters of this processor"
        yield Finding("performance counters", "no", under)
    why = "counters and branch records are the processor's own"
    if host.hypervisor:
        why = "the hypervisor decides whether to pass on counters and branch records; only its settings change that"
    yield Finding("hypervisor", host.hypervisor or "none", why)
    yield _paranoid(host)
    inside = f"inside {host.container}" if host.container else "not inside a known kind of container"
    if host.seccomp != SECCOMP_FILTER:
        yield Finding("seccomp filter", "none", inside)
    else:
        why = f"{inside}; it may refuse perf_event_open and ptrace"
        yield Finding("seccomp filter", "active", why, (REMEDIES["container"],) if host.container else ())
    why = "refuses performance events" if host.lockdown == "confidentiality" else "does not restrict performance events"
    yield Finding("kernel lockdown", host.lockdown or "none", why)
    yield _rings(host)
    line = (kernel.text("/proc/kallsyms") or "").partition("\n")[0]
    if line and set(line.split()[0]) != {"0"}:
        yield Finding("addresses of the kernel", "shown")
    elif host.kptr_restrict:
        why = f"kernel.kptr_restrict is {host.kptr_restrict}"
        yield Finding("addresses of the kernel", "hidden", why, (REMEDIES["symbols"],))
    else:
        yield Finding("addresses of the kernel", "hidden", "this user may not see them")


def _paranoid(host: Host) -> Finding:
    name, level = "kernel.perf_event_paranoid", host.paranoid
    if level is None:
        return Finding(name, "none", _NO_EVENTS)
    if host.may_perf:
        return Finding(name, str(level), "does not restrict you (CAP_PERFMON or CAP_SYS_ADMIN)")
    for above, meaning, remedy in _PARANOID:
        if level > above:
            return Finding(name, str(level), meaning, (REMEDIES[remedy], REMEDIES["perfmon"]))
    return Finding(name, str(level), "everything is allowed")


def _rings(host: Host) -> Finding:
    name = "kernel.perf_event_mlock_kb"
    if host.mlock_kb is None:
        return Finding(name, "none", _NO_EVENTS)
    if host.mlock_kb >= _MLOCK_ONE_RING or host.may_perf:
        return Finding(name, str(host.mlock_kb), "enough for one recording at a time")
    return Finding(name, str(host.mlock_kb), "ring buffers are smaller and lose records sooner", (REMEDIES["mlock"],))
