"""The guide's sections on the machine: hardware, software and version information."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from ...model import Cpu, Machine
from . import constants as k
from .layout import Scope, Table
from .records import empty_records
from .writing import Tb5Writer

__all__ = ["cpuid_signature", "write_machine"]

_UNKNOWN32 = 0xFFFFFFFF
_UNKNOWN16 = 0xFFFF
_MOST_CPUS = 4096
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1


def write_machine(writer: Tb5Writer, machine: Machine) -> None:
    """Hardware, software and version information."""
    _write_hardware(writer, machine)
    numbers = [int(n) for n in re.findall(r"\d+", machine.os_release)[:4]] + [0] * 4
    windows = machine.os.startswith("Windows")
    families = k.OsFamily
    family = {("Linux", 32): families.LINUX32, ("Linux", 64): families.LINUX64, ("Windows", 32): families.WIN32,
              ("Windows", 64): families.WIN64}.get((machine.os, machine.bits), families.OTHER)  # fmt: skip
    host, os_, app = empty_records("TBRW_HOST", 1), empty_records("TBRW_OS", 1), empty_records("TBRW_APPLICATION", 1)
    host["host_name"] = writer.string(machine.host or None)
    os_["os_platform"] = family
    for name, value in zip(("os_major", "os_minor", "os_build"), numbers, strict=False):
        os_[name] = value & _MASK32
    os_["os_name"], os_["os_name_extra"] = (writer.string(text or None) for text in (machine.os, machine.os_release))
    app["app_page_size"] = machine.page_size & _MASK32
    app["app_alloc_granularity"] = 65536 if windows else machine.page_size & _MASK32
    app["app_max_app_addr"] = {32: _MASK32}.get(machine.bits, (1 << 47) - 1)
    for part, rows in enumerate((host, os_, app)):
        writer.put(Table(Scope.GLOBAL, 0, k.Section.SOFTWARE, part), rows)
    version = empty_records("TBRW_VERSION_INFO", 1)
    version["sampling_driver_version"], version["sample_file_version"] = k.UNKNOWN_DRIVER, k.SAMPLE_FILE_VERSION
    writer.put(Table(Scope.GLOBAL, 0, k.Section.VERSION_INFO), version)


def _write_hardware(writer: Tb5Writer, machine: Machine) -> None:
    """Nodes, the processors of each, and one architecture a processor, with its signature where that is known."""
    cpus = machine.cpus or [Cpu(i) for i in range(min(machine.cpus_available or machine.cpus_online, _MOST_CPUS))]
    nodes = [(n.index, n.memory, set(n.cpus)) for n in machine.nodes] or [(0, machine.memory, {c.index for c in cpus})]
    anywhere = set().union(*(inside for _, _, inside in nodes))
    stray = [c for c in cpus if c.index not in anywhere]
    nodes[0][2].update(c.index for c in stray)
    system, node_rows = empty_records("TBRW_SYSTEM", 1), empty_records("TBRW_NODE", len(nodes))
    system["system_num_nodes"] = len(nodes)
    by_index: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        by_index.setdefault(cpu.index, []).append(cpu)
    placed = [[c for index in sorted(inside) for c in by_index.get(index, ())] for _, _, inside in nodes]
    ordered = [c for inside in placed for c in inside]
    cpu_rows, arch_rows = empty_records("TBRW_CPU", len(ordered)), empty_records("TBRW_CPU_ARCH", len(ordered))
    first = 0
    for row, (index, memory, _), inside in zip(node_rows, nodes, placed, strict=True):
        row["node_id"], row["node_physical_memory"], row["cpu_array"] = index & _MASK32, memory & _MASK64, first
        row["node_num_available"], row["node_num_used"] = len(inside), sum(c.online for c in inside)
        first += len(inside)
    siblings = Counter((c.core, c.package) for c in ordered)
    x86 = {"x86_64": k.ArchType.EM64T, "i386": k.ArchType.X86, "i686": k.ArchType.X86}
    for i, (row, cpu) in enumerate(zip(cpu_rows, ordered, strict=True)):
        row["cpu_number"] = cpu.index & _MASK32
        row["cpu_native_arch_type"] = k.CpuArchitecture.IA32 if machine.arch in x86 else k.CpuArchitecture.UNKNOWN
        for name in ("cpu_intel_processor_number", "cpu_speed_mhz", "cpu_fsb_mhz", "cpu_cache_L2", "cpu_cache_L3"):
            row[name] = _UNKNOWN32
        row["cpu_package_num"] = cpu.package & _UNKNOWN16
        row["cpu_core_num"], row["cpu_hardware_thread_num"] = cpu.core & _UNKNOWN16, _UNKNOWN16
        row["cpu_threads_per_core"] = siblings[cpu.core, cpu.package] & _UNKNOWN16
        row["num_cpu_arch_array"], row["cpu_arch_array"] = 1, i
    arch_rows["arch_type"] = x86.get(machine.arch, k.ArchType.UNKNOWN)
    signature = cpuid_signature(machine.cpuid)
    leaves = empty_records("TBRW_CPUID_IA32", 0 if signature is None else len(ordered))
    if signature is not None:
        leaves["cpuid_eax_input"], leaves["cpuid_eax"] = 1, signature
        arch_rows["arch_num_cpuid"], arch_rows["cpuid_array"] = 1, np.arange(len(ordered))
    for part, rows in enumerate((system, node_rows, cpu_rows, arch_rows, leaves)):
        writer.put(Table(Scope.GLOBAL, 0, k.Section.HARDWARE, part), rows)


def cpuid_signature(cpuid: str) -> int | None:
    """eax of cpuid leaf 1 from ``vendor,family,model,stepping`` (perf's CPUID feature on x86), ``None`` for another
    text and for numbers that no signature gives.

    The inverse of Intel's SDM, volume 2A, CPUID, figure 3-6, as Linux reads it: the extended family counts from family
    15 on, the extended model from family 6 on.
    """
    matched = re.fullmatch(r"[^,]+,(\d{1,3}),(\d{1,3}),(\d{1,2})", cpuid)
    if matched is None:
        return None
    family, model, stepping = map(int, matched.groups())
    base = min(family, 15)
    if family > 15 + 0xFF or model > (0xFF if base >= 6 else 0xF) or stepping > 0xF:
        return None
    return (family - base) << 20 | (model >> 4) << 16 | base << 8 | (model & 0xF) << 4 | stepping
