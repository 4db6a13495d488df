"""Records that a recorder writes itself, of tasks and mappings from before the recording, and header features.

The records are like those that the kernel writes for later tasks. Layouts: include/uapi/linux/perf_event.h; for the
features tools/perf/Documentation/perf.data-file-format.txt and tools/perf/util/header.c of Linux. Input: proc(5).
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...formats.perfdata.layout import MISC
from ...formats.perfdata.writer import (
    Described,
    MappedCode,
    SideRecords,
    build_id_entry,
    clock_data,
    event_desc,
    number,
    numbers,
    text,
    texts,
)
from ...version import __version__
from ..procfs import Mapping, cpu_list, cpu_model, cpuid, fields, mappings, memory_kb
from .syscall import CLOCK

if TYPE_CHECKING:
    from ...model import Module
    from .host import Host
    from .linux_kernel import Kernel

__all__ = [
    "build_id_of",
    "features_of",
    "kernel_records",
    "late_build_ids",
    "machine_features",
    "mapping_record",
    "process_records",
    "tasks_of",
]


def tasks_of(kernel: Kernel, pid: int) -> list[int]:
    """Thread ids of a process; empty where it has ended."""
    return [int(name) for name in kernel.names(f"/proc/{pid}/task")]


def process_records(
    kernel: Kernel, pid: int, records: SideRecords, build_ids: dict[object, bytes], maps: bool, *, time: int = 0
) -> Iterator[bytes]:
    """Fork and name of each thread of ``pid``, and (``maps``) its executable mappings.

    ``build_ids`` caches `build_id_of`. ``time``: when the process joined a recording that attaches; 0: before the
    recording began.
    """
    parent = fields(kernel.text(f"/proc/{pid}/status") or "").get("PPid", "")
    for tid in sorted(tasks_of(kernel, pid), key=lambda t: t != pid):
        name = kernel.text(f"/proc/{pid}/task/{tid}/comm")
        if name is None:
            continue  # it has ended meanwhile
        by = int(parent) if tid == pid and parent.isdecimal() else pid
        yield records.fork(pid, by, tid, by, time, alone=tid == pid and time > 0)
        yield records.comm(pid, tid, name, time)
    for m in mappings(kernel.text(f"/proc/{pid}/maps") or "") if maps else ():
        yield mapping_record(records, pid, m, build_id_of(kernel, pid, m, build_ids), time)


def mapping_record(records: SideRecords, pid: int, m: Mapping, build_id: bytes, time: int = 0) -> bytes:
    """The MMAP2 record of a mapping."""
    mapped = MappedCode(m.start, m.end, m.offset, m.name, m.prot, m.flags, (m.major, m.minor, m.inode))
    return records.mmap2(pid, mapped, build_id=build_id, time=time)


def build_id_of(kernel: Kernel, pid: int, m: Mapping, known: dict[object, bytes]) -> bytes:
    """The build id of the mapped file as the process sees it, which may have a root of its own."""
    if not m.name.startswith("/") or m.name.startswith("//") or m.name.endswith(" (deleted)"):
        return b""
    key = *(kernel.link(f"/proc/{pid}/{what}") for what in ("ns/mnt", "root")), m.name, m.inode
    if key not in known:
        known[key] = kernel.build_id(f"/proc/{pid}/root{m.name}")
    return known[key]


def kernel_records(kernel: Kernel, records: SideRecords) -> Iterator[bytes]:
    """Mappings of the kernel and its modules; none where kptr_restrict hides their addresses."""
    symbols = kernel.text("/proc/kallsyms") or ""
    start, end = _symbol(symbols, "_text"), _symbol(symbols, "_etext")
    if not start or not end:
        return
    yield records.kernel_mmap(start, end - start, start, "[kernel.kallsyms]_text")
    for line in (kernel.text("/proc/modules") or "").splitlines():
        name, size, _, _, _, at = line.split()[:6]
        if int(at, 16):
            yield records.kernel_mmap(int(at, 16), int(size), 0, f"[{name}]")


def _symbol(symbols: str, name: str) -> int:
    found = re.search(rf" T {name}$", symbols, re.M)  # a literal start makes the search twenty times as fast
    return int(symbols[symbols.rfind("\n", 0, found.start()) + 1 : found.start()], 16) if found else 0


# -- header features: the machine and the clock of the file

_CPUS = "/sys/devices/system/cpu"


def machine_features(
    read: Callable[[str], str | None], release: str, machine: str, command_line: Sequence[str]
) -> dict[str, bytes]:
    """Bodies, by name, of the features that every recorder writes. Both clocks are read now.

    ``read`` returns the text of a file in /proc or /sys; ``release`` and ``machine`` are those of ``uname``.
    """
    at, wall = time.clock_gettime_ns(CLOCK), time.time_ns()
    cpu = fields(read("/proc/cpuinfo") or "")
    online = cpu_list(read(f"{_CPUS}/online") or "0")
    present = cpu_list(read(f"{_CPUS}/present") or "") or online
    return {
        "HOSTNAME": text((read("/proc/sys/kernel/hostname") or "").rstrip()),
        "OSRELEASE": text(release),
        "VERSION": text(f"lastbranch {__version__}"),
        "ARCH": text(machine),
        "NRCPUS": numbers(max(present) + 1, len(online)),
        "CPUDESC": text(cpu_model(cpu)),
        "CPUID": text(cpuid(cpu)),
        "TOTAL_MEM": number(memory_kb(read("/proc/meminfo") or "")),
        "CMDLINE": texts(_cut_to_fit(command_line)),
        "CLOCKID": number(1),
        "CLOCK_DATA": clock_data(CLOCK, wall, at),
    }


_COMMAND_LINE = 32 << 10
"""Bytes of a command line that are written: in the pipe form a feature is one record, which has at most 64 KiB."""


def _cut_to_fit(words: Sequence[str]) -> list[str]:
    """As many words as there is room for, and "..." for those that are left out."""
    kept, size = list[str](), 0
    for word in words:
        size += len(text(word))
        if size > _COMMAND_LINE:
            return [*kept, "..."]
        kept.append(word)
    return kept


def features_of(
    kernel: Kernel, host: Host, events: Sequence[Described], command_line: Sequence[str], branches: bool
) -> dict[str, bytes]:
    """All features of a file with events of the processor."""
    from ...symbols import running_build_id  # it loads more than a software recording does to begin

    found = machine_features(kernel.text, host.release, host.machine, command_line) | {
        "EVENT_DESC": event_desc(events),
        "PMU_MAPPINGS": _pmu_mappings(host),
        "PMU_CAPS": _pmu_caps(host),
    }
    if branches:
        found["BRANCH_STACK"] = b""
    if build_id := running_build_id(read=kernel.data):
        found["BUILD_ID"] = build_id_entry(build_id, "[kernel.kallsyms]", MISC.KERNEL)
    return found


def late_build_ids(kernel: Kernel, modules: Sequence[Module]) -> bytes:
    """Entries of BUILD_ID for binaries whose mappings have no id, if the files are still those that were mapped.

    Kernels before 5.12 identify none. Later kernels look into the first note segment alone, and the first note of Go's
    programs is no build id. The device is not compared: on btrfs and overlayfs, the device of a mapping differs from
    the device by stat(2).
    """
    from ...model import ModuleKind  # loads tables of profiles, which recordings start without

    found = (
        (m.name, kernel.build_id(m.name))
        for m in modules
        if m.kind is ModuleKind.FILE and not m.build_id and (not m.inode or m.inode[2] == kernel.inode(m.name))
    )
    return b"".join(build_id_entry(build_id, name, MISC.USER) for name, build_id in found if build_id)


def _pmu_mappings(host: Host) -> bytes:
    pairs = [struct.pack("=I", pmu.type) + text(name) for name, pmu in host.pmus.items()]
    return struct.pack("=I", len(pairs)) + b"".join(pairs)


def _pmu_caps(host: Host) -> bytes:
    """u32 sources; for each u32 capabilities, pairs of names and values, the source's name."""
    with_caps = [pmu for pmu in host.pmus.values() if pmu.caps]
    parts = [struct.pack("=I", len(with_caps))]
    for pmu in with_caps:
        parts.append(struct.pack("=I", len(pmu.caps)))
        parts += [text(word) for pair in pmu.caps.items() for word in pair]
        parts.append(text(pmu.name))
    return b"".join(parts)
