"""A kernel that answers perf_event_open as machines with branch records do: the hardware that the tests do not have.

Rules are written down from the kernel's sources, and share nothing with the package: kernel/events/core.c
(perf_copy_attr, perf_event_open), arch/x86/events/intel/{core,lbr}.c, arch/x86/events/amd/{core,brs,lbr}.c,
drivers/perf/arm_brbe.c, perf_event_paranoid in Documentation/admin-guide/sysctl/kernel.rst.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

USER, KERNEL, HV, ANY = 1, 2, 4, 8
CALL_STACK, NO_FLAGS, NO_CYCLES, TYPE_SAVE, HW_INDEX = 1 << 11, 1 << 14, 1 << 15, 1 << 16, 1 << 17
IN_TX, IND_CALL, COND = 1 << 8, 1 << 6, 1 << 10
LEVELS = USER | KERNEL | HV
BRANCH_STACK = 1 << 11
INHERIT, EXCLUDE_KERNEL, FREQ, BUILD_ID = 1 << 1, 1 << 5, 1 << 10, 1 << 34
FORMAT_LOST = 1 << 4
CAP_SYS_ADMIN, CAP_PERFMON = 1 << 21, 1 << 38


@dataclass
class Attr:
    """struct perf_event_attr as far as the rules look at it, by its offsets."""

    raw: bytes

    def __post_init__(self) -> None:
        self.type, self.size = struct.unpack_from("=II", self.raw, 0)
        self.config, self.period, self.sample_type, self.read_format, self.flags = struct.unpack_from(
            "=5Q", self.raw, 8
        )
        (self.branches,) = struct.unpack_from("=Q", self.raw, 72)
        self.precise = self.flags >> 15 & 3
        assert self.size == len(self.raw)

    @property
    def stacks(self) -> bool:
        return bool(self.sample_type & BRANCH_STACK)


@dataclass(frozen=True)
class Machine:
    """The machine that the fake stands for. ``features`` are the features that the running kernel already knows."""

    vendor: str = "GenuineIntel"
    model: str = "Testing CPU"
    cpu_flags: str = "fpu"
    arch: str = "x86_64"
    release: str = "6.12.0"
    pmus: dict[str, dict[str, str]] = field(default_factory=dict)
    lbr: Callable[[Attr], int] | None = None
    """errno of an event with branches on this processor, 0 if it opens; ``None``: no facility."""
    known_branches: int = (1 << 20) - 1
    format_lost: bool = True
    build_id: bool = True
    max_precise: int = 3
    sampling: bool = True
    paranoid: int = 2
    caps: int = 0
    files: dict[str, str] = field(default_factory=dict)
    cpus: int = 2
    always: int = 0
    """An errno that every open ends with."""


def cpu_pmu(number: int = 4, **more: str) -> dict[str, str]:
    """Files of a core's folder under /sys/bus/event_source/devices."""
    return {
        "type": str(number),
        "format/event": "config:0-7",
        "format/umask": "config:8-15",
        "format/inv": "config:23",
        "format/ldlat": "config1:0-15",
        "format/wide": "config:0-3,32-35",
        "events/cpu-cycles": "event=0x3c",
        "events/branch-instructions": "event=0xc4",
        "events/slots": "event=0x00,umask=0x4",
        "events/slots.scale": "2",
        **more,
    }


def intel(attr: Attr) -> int:
    """Skylake: intel_pmu_setup_lbr_filter."""
    if attr.branches & CALL_STACK and attr.branches & ~(LEVELS | CALL_STACK) & 0x3FFF:
        return errno.EINVAL
    return 0


def intel_without_call_stack(attr: Attr) -> int:
    """Sandy Bridge: LBR_NOT_SUPP in its map."""
    return errno.EOPNOTSUPP if attr.branches & CALL_STACK else 0


def amd_v2(attr: Attr) -> int:
    """amd_pmu_lbr_hw_config: the map has LBR_NOT_SUPP for transactions, call stacks, NO_FLAGS and NO_CYCLES."""
    return errno.EOPNOTSUPP if attr.branches & (0x380 | CALL_STACK | NO_FLAGS | NO_CYCLES) else 0


def amd_brs(attr: Attr) -> int:
    """amd_brs_hw_config, amd_brs_setup_filter."""
    if attr.config & 0xFFFF != 0xC4 or attr.flags & FREQ or attr.period <= 16 or attr.branches & ~LEVELS != ANY:
        return errno.EINVAL
    return 0


def brbe(attr: Attr) -> int:
    """arm_brbe.c refuses call stacks and transactions."""
    return errno.EOPNOTSUPP if attr.branches & (0x380 | CALL_STACK) else 0


_DEPTH32 = {"caps/branches": "32", "caps/max_precise": "3"}
SKYLAKE = Machine(pmus={"cpu": cpu_pmu(**_DEPTH32, **{"caps/pmu_name": "skylake"})}, lbr=intel)
SANDY_BRIDGE = Machine(
    pmus={"cpu": cpu_pmu(**{"caps/branches": "16", "caps/max_precise": "2", "caps/pmu_name": "sandybridge"})},
    lbr=intel_without_call_stack,
    max_precise=2,
)
WESTMERE = replace(SANDY_BRIDGE, pmus={"cpu": cpu_pmu(**{"caps/branches": "16", "caps/pmu_name": "westmere"})})
SAPPHIRE_RAPIDS = Machine(
    cpu_flags="fpu arch_lbr", pmus={"cpu": cpu_pmu(**_DEPTH32, **{"caps/pmu_name": "sapphire_rapids"})}, lbr=intel
)
GOLDMONT = Machine(pmus={"cpu": cpu_pmu(**_DEPTH32, **{"caps/pmu_name": "goldmont"})}, lbr=intel)
ALDER_LAKE = Machine(
    cpu_flags="fpu arch_lbr",
    pmus={
        "cpu_core": cpu_pmu(4, cpus="0-3", **_DEPTH32, **{"caps/pmu_name": "alderlake_hybrid"}),
        "cpu_atom": cpu_pmu(10, cpus="4-5", **_DEPTH32, **{"caps/pmu_name": "alderlake_hybrid"}),
    },
    lbr=intel,
    cpus=6,
)
ZEN4 = Machine("AuthenticAMD", cpu_flags="fpu amd_lbr_v2", pmus={"cpu": cpu_pmu(**{"caps/branches": "16"})}, lbr=amd_v2)
ZEN3 = Machine(
    "AuthenticAMD",
    cpu_flags="fpu brs",
    lbr=amd_brs,
    pmus={"cpu": cpu_pmu(**{"caps/branches": "16", "events/branch-brs": "event=0xc4"})},
)
ARM = Machine(
    "",
    "",
    "",
    "aarch64",
    lbr=brbe,
    max_precise=0,
    pmus={"armv9_neoverse_v3": cpu_pmu(8, cpus="0-1", **{"caps/branches": "64", "events/br_retired": "event=0x21"})},
    files={"/proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd84\n"},
)
BARE_WITHOUT_LBR = Machine("HygonGenuine", pmus={"cpu": cpu_pmu()})
_QEMU = {"/sys/class/dmi/id/sys_vendor": "QEMU\n"}
VM_WITHOUT_LBR = Machine(cpu_flags="fpu hypervisor", pmus={"cpu": cpu_pmu()}, files=_QEMU)
VM = Machine(cpu_flags="fpu hypervisor", files=_QEMU)
NOTHING = Machine(vendor="CentaurHauls")
MACHINES = {name: value for name, value in globals().items() if isinstance(value, Machine)}


@dataclass
class FakeRing:
    """Records wait here until they are drained."""

    pending: list[bytes] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    closed: bool = False

    def share(self, fd: int) -> None:
        self.shared.append(fd)

    def drain(self, write: Callable[[bytes], object]) -> int:
        parts, self.pending = self.pending, []
        for part in parts:
            write(part)
        return sum(map(len, parts))

    def close(self) -> None:
        self.closed = True


class FakeKernel:
    """A `lastbranch.capture.perf_events.linux_kernel.Kernel` over a `Machine`."""

    def __init__(self, machine: Machine, most_files: int = 1 << 20, most_pages: int = 1 << 20) -> None:
        self.of, self.release, self.machine = machine, machine.release, machine.arch
        self.most_files, self.most_pages, self.more = most_files, most_pages, 0
        self.opened: dict[int, tuple[Attr, int, int]] = {}
        self.tried: list[tuple[Attr, int, int]] = []
        self.rings: dict[int, FakeRing] = {}
        self.losses: dict[int, int] = {}
        self.counted: dict[int, int] = {}
        """By descriptor, how often its event happened."""
        self.disabled: set[int] = set()
        self.gone: set[int] = set()
        self.folders: dict[str, Callable[[], list[str]]] = {}
        self.no_trace = 0
        self.next = 3
        self.contents = {
            "/proc/cpuinfo": f"processor\t: 0\nvendor_id\t: {machine.vendor}\ncpu family\t: 6\nmodel\t\t: 85\n"
            f"model name\t: {machine.model}\nstepping\t: 4\nflags\t\t: {machine.cpu_flags}\n\nprocessor\t: 1\n",
            "/proc/self/status": f"Name:\tx\nCapEff:\t{machine.caps:016x}\nSeccomp:\t0\n",
            "/proc/self/uid_map": "         0          0 4294967295\n",
            "/proc/sys/kernel/perf_event_paranoid": f"{machine.paranoid}\n",
            "/proc/sys/kernel/perf_event_max_sample_rate": "100000\n",
            "/proc/sys/kernel/perf_event_mlock_kb": "516\n",
            "/sys/devices/system/cpu/online": f"0-{machine.cpus - 1}\n",
            "/sys/devices/system/cpu/possible": f"0-{machine.cpus - 1}\n",
        }
        root = "/sys/bus/event_source/devices"
        for name, pmu in {"software": {"type": "1"}, "tracepoint": {"type": "2"}, **machine.pmus}.items():
            self.contents |= {f"{root}/{name}/{file}": text + "\n" for file, text in pmu.items()}
        self.contents |= machine.files

    def data(self, path: str) -> bytes | None:
        text = self.contents.get(path)
        return None if text is None else text.encode("utf-8", "surrogateescape")

    def text(self, path: str) -> str | None:
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "surrogateescape").rstrip()

    def names(self, path: str) -> list[str]:
        if path in self.folders:
            return self.folders[path]()
        under = path.rstrip("/") + "/"
        return sorted({p[len(under) :].split("/")[0] for p in self.contents if p.startswith(under)})

    def private_tracefs(self) -> str | None:
        return None

    def set_filter(self, fd: int, text: str) -> None:
        """Take any filter."""

    def link(self, path: str) -> str | None:
        return "/"

    def build_id(self, path: str) -> bytes:
        return bytes(range(20)) if path.endswith("/bin/known") else b""

    def inode(self, path: str) -> int | None:
        return 5 if path.endswith("/bin/known") else None

    def trace_child(self) -> None:
        if self.no_trace:
            raise OSError(self.no_trace, "Operation not permitted")

    def open_event(self, attr: bytes, tid: int, cpu: int, group: int = -1) -> int:
        parsed = Attr(attr)
        self.tried.append((parsed, tid, cpu))
        number = self._refusal(parsed, tid, cpu)
        if number:
            raise OSError(number, "no")
        fd, self.next = self.next, self.next + 1
        self.opened[fd] = (parsed, tid, cpu)
        return fd

    def _refusal(self, a: Attr, tid: int, cpu: int) -> int:
        m = self.of
        if m.always:
            return m.always
        if len(self.opened) >= self.most_files:
            return errno.EMFILE
        if (a.read_format & FORMAT_LOST and not m.format_lost) or (a.flags & BUILD_ID and not m.build_id):
            return errno.EINVAL
        able = m.caps & (CAP_PERFMON | CAP_SYS_ADMIN)
        if a.stacks:
            if a.branches & ~m.known_branches or not a.branches & ~LEVELS:
                return errno.EINVAL
            if a.branches & (KERNEL | HV) and m.paranoid > 1 and not able:
                return errno.EACCES
        allowed = 0 if tid < 0 else 1 if not a.flags & EXCLUDE_KERNEL else 2
        if not able and m.paranoid > allowed:
            return errno.EACCES
        if a.flags & FREQ and a.period > 100_000:
            return errno.EINVAL
        if tid >= 0 and tid in self.gone:
            return errno.ESRCH
        return self._by_pmu(a, cpu)

    def _by_pmu(self, a: Attr, cpu: int) -> int:
        m = self.of
        if a.type in (1, 2):
            return errno.EOPNOTSUPP if a.stacks else 0
        wanted = a.config >> 32 if a.type == 0 else a.type
        core = {int(p["type"]): p for p in m.pmus.values()}
        pmu = core.get(wanted) if wanted else next(iter(core.values()), None)
        if pmu is None:
            return errno.ENOENT
        if "cpus" in pmu and not int(pmu["cpus"][0]) <= cpu <= int(pmu["cpus"][-1]):
            return errno.ENOENT
        if m.vendor == "AuthenticAMD" and a.precise:
            return errno.ENOENT
        if a.precise > m.max_precise or not m.sampling:
            return errno.EOPNOTSUPP
        if a.stacks:
            return m.lbr(a) if m.lbr else errno.EOPNOTSUPP
        return 0

    def event_id(self, fd: int) -> int:
        assert fd in self.opened
        return 1000 + fd

    def lost(self, fd: int) -> int:
        assert self.opened[fd][0].read_format == FORMAT_LOST
        return self.losses.get(fd, 0)

    def read_count(self, fd: int) -> int:
        assert self.opened[fd][0].read_format in (0, FORMAT_LOST)
        return self.counted.get(fd, 0)

    def enable(self, fd: int) -> None:
        assert fd in self.opened
        self.disabled.discard(fd)

    def disable(self, fd: int) -> None:
        assert fd in self.opened
        self.disabled.add(fd)

    def more_files(self) -> bool:
        self.most_files, grown = self.most_files + self.more, bool(self.more)
        self.more = 0
        return grown

    def ring(self, fd: int, pages: int) -> FakeRing:
        from lastbranch.errors import UnavailableError

        if pages > self.most_pages:
            raise UnavailableError("no memory for a ring buffer")
        attr, _, cpu = self.opened[fd]
        assert cpu >= 0 or not attr.flags & INHERIT, "inherited events cannot be mapped on all processors"
        self.rings[cpu] = FakeRing()
        return self.rings[cpu]

    def wait(self, fds: Iterable[int], seconds: float) -> set[int]:
        return {fd for fd in fds if self.opened[fd][1] in self.gone}

    def close(self, fd: int) -> None:
        del self.opened[fd]
