"""The numbers of the TBRW User Guide 2.3 (320237-002US), by its names without their prefixes.

Where the guide names a constant and gives no number (module and event flags, the names of CPU modes and architectures)
the number is that of the open drivers, or, where there is none either, ours: it says so.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = [
    "NEVER", "SAMPLE_FILE_VERSION", "UNKNOWN_DRIVER", "AccessMethod", "ArchType", "CpuArchitecture", "CpuMode",
    "DescSubtype", "DescType", "EventFlag", "ModuleFlag", "OsFamily", "Section", "StreamSection", "StreamType",
    "TaskFlag",
]  # fmt: skip

NEVER = (1 << 64) - 1
"""module_unload_tsc of what was never unloaded (6.6), and the index of nothing in bind records."""
UNKNOWN_DRIVER = 0xFFFFFFFF
"""sampling_driver_version of other collectors (7.4)."""
SAMPLE_FILE_VERSION = 0x10


class Section(IntEnum):
    """TBRW_SECTION_IDENTIFIER (8.2)."""

    HARDWARE, SOFTWARE, PROCESS_THREAD, MODULE, USER_DEFINED_GLOBAL, VERSION_INFO = range(6)


class StreamSection(IntEnum):
    """TBRW_STREAM_SECTION_IDENTIFIER (8.2)."""

    EVENT_DESCRIPTION, DATA_DESCRIPTION, DATA, USER_DEFINED_STREAM, STREAM_INFO = range(5)


class StreamType(IntEnum):
    """TBRW_STREAM_TYPE (8.9)."""

    SAMPLING, AGGREGATED, BOOKMARK = 1, 2, 3
    BIND_DATA_INFORMATION, BIND_MODULE_INFORMATION, BIND_PID_INFORMATION, BIND_TID_INFORMATION = 4, 5, 6, 7
    CUSTOM = 8


class OsFamily(IntEnum):
    """TBRW_OSFAMILY_* (7.1); 0x100 to 0x1FF are for everybody else."""

    WIN32, WIN64, WINCE, XOS, LINUX32, LINUX64 = range(1, 7)
    OTHER = 0x100


class CpuMode(IntEnum):
    """MODE_* of sampfile.h, which module_segment_type and codeMode hold (6.6, 6.10)."""

    V86, BITS16, BITS32, BITS64 = range(4)


class ArchType(IntEnum):
    """GEN_ENTRY_SUBTYPES (8.3), numbers of lwpmudrv_struct.h."""

    UNKNOWN, X86, ITANIUM, SA, XSC, EM64T, CS860 = range(7)


class CpuArchitecture(IntEnum):
    """CPU_ARCHITECTURE_* of cpu_native_arch_type (6.3). Numbers are ours."""

    UNKNOWN, IA32, IA64 = range(3)


class ModuleFlag(IntFlag):
    """TBRW_MODULE_* (6.6). Bits 0 to 15 are those of the legacy module record; LOADED and UNLOADED are ours."""

    IS_EXE = 1 << 0
    GLOBAL_LOAD = 1 << 1
    TSC_USED = 1 << 5
    FIRST_MODULE_REC_IN_PROCESS = 1 << 9
    LOADED = 1 << 16
    UNLOADED = 1 << 17


class TaskFlag(IntFlag):
    """pid_flags and tid_flags (8.5): the guide names none. Bits 0 to 2 are those of the legacy process record."""

    DESTROYED = 1 << 0
    MANUFACTURED = 1 << 1
    """Inferred from samples and modules by binding."""
    NAME_GENERATED = 1 << 2
    TSC_USED = 1 << 5
    CREATED = 1 << 16


class EventFlag(IntFlag):
    """TBRW_EVENT_* (6.7). Numbers are ours."""

    EBS = 1 << 0
    """Sampled on counts of an event."""
    TBS = 1 << 1
    """Sampled on time: event_sav is a rate in Hz."""


class AccessMethod(IntEnum):
    """TBRW_ACCESS_METHOD (6.7). Numbers are ours; FIELD is what a collector asked for, by name and not by address."""

    MSR, PCI, MEMORY, OTHER = range(4)


class DescType(IntEnum):
    """ST_* (8.11). From 0x2000 computed, 0x4000 to 0x7FFF the user's, from 0x8000 an error."""

    NONE, LEGACY_SAMPLE_RECORD, IP, PID, TID, PROCESSOR_NUMBER, PROCESSOR_STATUS, TIME_STAMP = range(8)
    POWER, INTERRUPT_FAULT_ADDR, IEAR, DEAR, BRANCH_TRACE, INST_TRACE, PMD = range(8, 15)
    IEAR_PHYSICAL, DEAR_PHYSICAL, BRANCH_TRACE_PHYSICAL, INST_TRACE_PHYSICAL, PMD_PHYSICAL = range(15, 20)
    LEGACY_UNKNOWN, SAMPLE_LAST = 20, 21
    START_EXT_SAMPLE_REC_ENTRIES, END_EXT_SAMPLE_REC_ENTRIES = 0x2000, 0x2FFF
    START_USER_DEFINED, END_USER_DEFINED = 0x4000, 0x7FFF
    RESERVED_START, RESERVED_END = 0x8000, 0xFFFF


class DescSubtype(IntEnum):
    """SST_* (8.11)."""

    NONE, BLANK_SPACE = 0, 1
    TS_MILLISECONDS, TS_CPU_CYCLES, TS_FSB_CYCLES, TS_OTHER, TS_SAMPLE_COUNT, TS_NANOSECONDS = range(2, 8)
    LBR_TOS, LBR_FROM, LBR_TO, LBR_FROM_TO, LBR_OTHER = range(8, 13)
    IEAR_CONFIG, IEAR_INST_ADDR, IEAR_LATENCY = range(13, 16)
    DEAR_CONFIG, DEAR_INST_ADDR, DEAR_LATENCY, DEAR_DATA_ADDR = range(16, 20)
    BTB_CONFIG, BTB_INDEX, BTB_EXTENSION, BTB_DATA = range(20, 24)
    IPEAR_CONFIG, IPEAR_INDEX, IPEAR_EXTENSION, IPEAR_DATA = range(24, 28)
    IIP, IPSR, EIP, EFLAGS, TSC, ITC, PSTATE, IA32_PERF_STATUS, IFA = range(28, 37)
    RESERVED_START, RESERVED_END = 0x8000, 0xFFFF
