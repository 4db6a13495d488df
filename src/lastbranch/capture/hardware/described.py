"""What a recorded perf.data says of its machine: bodies of the header features.

Layouts: tools/perf/Documentation/perf.data-file-format.txt and tools/perf/util/header.c of Linux.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Sequence

from ... import __version__
from ...formats.perfdata.layout import MISC
from ...model import Module, ModuleKind
from ..host import Host
from ..kernel import Kernel
from .before import kernel_build_id
from .perf_file import Described, event_desc, text, texts

__all__ = ["features_of", "late_build_ids"]

_MONOTONIC = 1
_KERNEL, _USER = 1, 2  # PERF_RECORD_MISC_*
_ALIGNED = 64


def features_of(
    kernel: Kernel, host: Host, events: Sequence[Described], command_line: Sequence[str], branches: bool
) -> dict[str, bytes]:
    """Header features by name. The clock's two readings are taken now."""
    monotonic, wall = time.clock_gettime_ns(time.CLOCK_MONOTONIC), time.time_ns()
    memory = re.search(r"^MemTotal:\s+(\d+)", kernel.text("/proc/meminfo") or "", re.M)
    found = {
        "HOSTNAME": text(kernel.text("/proc/sys/kernel/hostname") or ""),
        "OSRELEASE": text(host.release),
        "VERSION": text(f"lastbranch {__version__}"),
        "ARCH": text(host.machine),
        "NRCPUS": struct.pack("=II", host.possible, len(host.cpus)),
        "CPUDESC": text(host.model),
        "CPUID": text(host.cpuid),
        "TOTAL_MEM": struct.pack("=Q", int(memory[1]) if memory else 0),
        "CMDLINE": texts(command_line),
        "EVENT_DESC": event_desc(events),
        "PMU_MAPPINGS": _pmu_mappings(host),
        "PMU_CAPS": _pmu_caps(host),
        "CLOCKID": struct.pack("=Q", 1),
        "CLOCK_DATA": struct.pack("=IIQQ", 1, _MONOTONIC, wall, monotonic),
    }
    if branches:
        found["BRANCH_STACK"] = b""
    if build_id := kernel_build_id(kernel)[:20]:
        found["BUILD_ID"] = _build_id_entry(build_id, "[kernel.kallsyms]", _KERNEL)
    return found


def late_build_ids(kernel: Kernel, modules: Sequence[Module]) -> bytes:
    """Entries of BUILD_ID for binaries whose mappings carry no id, as they are now (kernels before 5.12)."""
    found = ((m.name, kernel.build_id(m.name)[:20]) for m in modules if m.kind is ModuleKind.FILE and not m.build_id)
    return b"".join(_build_id_entry(build_id, name, _USER) for name, build_id in found if build_id)


def _build_id_entry(build_id: bytes, name: str, misc: int) -> bytes:
    """Header without a type, s32 pid, 20 bytes, u8 size, 3 unused, name."""
    raw = name.encode("utf-8", "surrogateescape") + b"\0"
    raw += bytes(-len(raw) % _ALIGNED)
    body = struct.pack("=i20sB3x", -1, build_id, len(build_id)) + raw
    return struct.pack("=IHH", 0, misc | MISC.BUILD_ID_SIZE, 8 + len(body)) + body


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
