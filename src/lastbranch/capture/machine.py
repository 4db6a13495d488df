"""What a recorded perf.data says of its machine and its clock: header features that every recorder writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .. import __version__
from ..formats.perfdata.writer import clock_data, number, numbers, text, texts
from .procfs import cpu_list, cpu_model, cpuid, fields, memory_kb

__all__ = ["CLOCK", "machine_features"]

CLOCK = time.CLOCK_MONOTONIC
"""Clock of all records."""
_CPUS = "/sys/devices/system/cpu"


def machine_features(
    read: Callable[[str], str | None], release: str, machine: str, command_line: Sequence[str]
) -> dict[str, bytes]:
    """Bodies of header features by name. The clock's two readings are taken now.

    ``read`` gives the text of a file of /proc or /sys; ``release`` and ``machine`` are as ``uname`` has them.
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
        "CMDLINE": texts(command_line),
        "CLOCKID": number(1),
        "CLOCK_DATA": clock_data(CLOCK, wall, at),
    }
