"""Facts about this machine that recording depends on, and commands that change such facts.

Processor, PMUs, hypervisor, permissions and limits are read; nothing is changed.

Sources: Documentation/admin-guide/sysctl/kernel.rst and perf-security.rst of Linux, proc(5), capabilities(7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..procfs import cpu_list, cpu_model, cpuid, fields
from .event_names import Pmu, core_sources, read_pmus

if TYPE_CHECKING:
    from .linux_kernel import Kernel

__all__ = ["CAP_SYS_PTRACE", "REMEDIES", "SECCOMP_FILTER", "Remedy", "Host", "read_host"]


CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 19, 21, 38
SECCOMP_FILTER = 2
_WHOLE_MACHINE = "0 0 4294967295"
"""/proc/self/uid_map outside of any user namespace."""

CPU_FEATURES = {"arch_lbr": "Intel architectural LBR", "amd_lbr_v2": "AMD LbrExtV2", "brs": "AMD BRS"}
"""Flags of /proc/cpuinfo that name a facility; Intel's older LBR has none."""


@dataclass(frozen=True, slots=True)
class Host:
    """Settings are ``None`` where the kernel lacks them."""

    release: str = ""
    machine: str = ""
    vendor: str = ""
    model: str = ""
    cpuid: str = ""
    """Vendor, family, model and stepping, as perf writes them."""
    flags: frozenset[str] = frozenset()
    pmus: dict[str, Pmu] = field(default_factory=dict)
    cpus: tuple[int, ...] = (0,)
    """Processors that are online."""
    possible: int = 1
    paranoid: int | None = None
    max_rate: int | None = None
    mlock_kb: int | None = None
    nmi_watchdog: int | None = None
    ptrace_scope: int | None = None
    kptr_restrict: int | None = None
    capabilities: int = 0
    seccomp: int = 0
    user_namespace: bool = False
    container: str = ""
    hypervisor: str = ""
    """The name of the hypervisor; empty on bare metal."""
    lockdown: str = ""

    def can(self, capability: int) -> bool:
        """Whether we have a capability over the whole machine: inside a user namespace we have none."""
        return bool(self.capabilities >> capability & 1) and not self.user_namespace

    @property
    def may_perf(self) -> bool:
        """CAP_PERFMON, or (before Linux 5.8, and still) CAP_SYS_ADMIN: perf_event_paranoid does not restrict you."""
        return self.can(CAP_PERFMON) or self.can(CAP_SYS_ADMIN)

    @property
    def core(self) -> list[Pmu]:
        """PMUs of processor cores: several on a hybrid processor, none without counters."""
        return core_sources(self.pmus)

    @property
    def facility(self) -> str:
        """The processor's branch record facility as far as its flags and PMUs reveal it; empty: none."""
        for flag, name in CPU_FEATURES.items():
            if flag in self.flags:
                return name
        if not any(pmu.depth for pmu in self.core):
            return ""
        return {"GenuineIntel": "Intel LBR", "AuthenticAMD": "AMD branch records"}.get(self.vendor, "Arm BRBE")

    @property
    def brs(self) -> bool:
        """AMD Zen 3's branch sampling: one event, one selection, a fixed period."""
        return any("branch-brs" in pmu.events for pmu in self.core)


def read_host(kernel: Kernel) -> Host:
    """Read the facts. Nothing is changed and no event is opened."""
    cpu = fields(kernel.text("/proc/cpuinfo") or "")
    status = fields(kernel.text("/proc/self/status") or "")
    flags = frozenset(cpu.get("flags", "").split())
    uid_map = " ".join((kernel.text("/proc/self/uid_map") or "").split())
    return Host(
        release=kernel.release,
        machine=kernel.machine,
        vendor=cpu.get("vendor_id", "ARM" if "CPU implementer" in cpu else ""),
        model=cpu_model(cpu),
        cpuid=cpuid(cpu),
        flags=flags,
        pmus=read_pmus(kernel),
        cpus=cpu_list(kernel.text("/sys/devices/system/cpu/online") or "0"),
        possible=len(cpu_list(kernel.text("/sys/devices/system/cpu/possible") or "0")),
        paranoid=_read_setting(kernel, "perf_event_paranoid"),
        max_rate=_read_setting(kernel, "perf_event_max_sample_rate"),
        mlock_kb=_read_setting(kernel, "perf_event_mlock_kb"),
        nmi_watchdog=_read_setting(kernel, "nmi_watchdog"),
        ptrace_scope=_read_setting(kernel, "yama/ptrace_scope"),
        kptr_restrict=_read_setting(kernel, "kptr_restrict"),
        capabilities=int(status.get("CapEff", "0"), 16),
        seccomp=int(status.get("Seccomp", "0")),
        user_namespace=bool(uid_map) and uid_map != _WHOLE_MACHINE,
        container=_container(kernel),
        hypervisor=_hypervisor(kernel, flags),
        lockdown=_word_in_brackets(kernel.text("/sys/kernel/security/lockdown") or ""),
    )


def _read_setting(kernel: Kernel, name: str) -> int | None:
    text = kernel.text(f"/proc/sys/kernel/{name}")
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def _word_in_brackets(text: str) -> str:
    """``none [integrity] confidentiality`` -> ``integrity``."""
    found = re.search(r"\[(\w+)\]", text)
    return found.group(1) if found and found.group(1) != "none" else ""


_PRODUCTS = (
    ("amazon ec2", "AWS Nitro"), ("google", "Google Compute Engine"), ("microsoft", "Hyper-V"), ("vmware", "VMware"),
    ("virtualbox", "VirtualBox"), ("innotek", "VirtualBox"), ("xen", "Xen"), ("qemu", "QEMU/KVM"), ("kvm", "KVM"),
    ("parallels", "Parallels"), ("firecracker", "Firecracker"),
)  # fmt: skip
"""Part of a DMI vendor or product name, in lower case, and the hypervisor."""


def _hypervisor(kernel: Kernel, flags: frozenset[str]) -> str:
    xen = kernel.text("/sys/hypervisor/type")
    if xen:
        return "Xen" if xen == "xen" else xen
    arm_guest = kernel.text("/proc/device-tree/hypervisor/compatible") is not None
    if "hypervisor" not in flags and not arm_guest:  # DMI alone says nothing: some cloud machines are bare metal
        return ""
    dmi = " ".join(kernel.text(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name")).lower()
    named = next((name for part, name in _PRODUCTS if part in dmi), "")
    clock = kernel.text("/sys/devices/system/clocksource/clocksource0/available_clocksource") or ""
    return named or ("KVM" if "kvm-clock" in clock else "Hyper-V" if "hyperv" in clock else "a hypervisor")


def _container(kernel: Kernel) -> str:
    if ".dockerenv" in kernel.names("/"):
        return "Docker"
    if kernel.text("/run/.containerenv") is not None:
        return "Podman"
    return "Kubernetes" if "kubepods" in (kernel.text("/proc/self/cgroup") or "") else ""


# -- commands that make more recordings possible, with their scope. They are shown, never run


class Remedy(NamedTuple):
    """``command`` as it is typed; ``scope``: for whom and how long it has an effect."""

    command: str
    scope: str


_BOOT = "all users, until the next boot"
REMEDIES: dict[str, Remedy] = {
    "software": Remedy("lastbranch record --engine software", "this recording"),
    "root": Remedy("sudo lastbranch record", "this recording"),
    "user-only": Remedy("lastbranch record --filter any,user", "this recording"),
    "per-process": Remedy("lastbranch record COMMAND", "this recording"),
    "paranoid-process": Remedy("sudo sysctl kernel.perf_event_paranoid=2", _BOOT),
    "paranoid-kernel": Remedy("sudo sysctl kernel.perf_event_paranoid=1", _BOOT),
    "paranoid-system": Remedy("sudo sysctl kernel.perf_event_paranoid=0", _BOOT),
    "perfmon": Remedy(
        "sudo setcap cap_perfmon,cap_sys_ptrace=ep COPY-OF-PYTHON", "anyone who may run that file, until it is removed"
    ),
    "container": Remedy("docker run --cap-add PERFMON --cap-add SYS_PTRACE IMAGE", "a new container"),
    "files": Remedy("ulimit -n $(ulimit -Hn)", "this shell"),
    "mlock": Remedy("sudo sysctl kernel.perf_event_mlock_kb=8192", _BOOT),
    "rate": Remedy("sudo sysctl kernel.perf_event_max_sample_rate=HERTZ", _BOOT),
    "watchdog": Remedy("sudo sysctl kernel.nmi_watchdog=0", _BOOT),
    "ptrace": Remedy("sudo sysctl kernel.yama.ptrace_scope=0", _BOOT),
    "symbols": Remedy("sudo sysctl kernel.kptr_restrict=0", _BOOT),
    "qemu": Remedy(
        "qemu-system-x86_64 -enable-kvm -cpu host,pmu=on,lbr-fmt=0x5", "a restart of the guest, on its host"
    ),
    "period": Remedy("lastbranch record --period 400009", "this recording"),
    "events": Remedy("perf list", "shows names only"),
}
"""By short name. Words in capitals are to be filled in."""
