"""The layout of a TB5 file, byte by byte: the TBRW guide's numbers and records, and the container around them.

docs/reference/tb5-format.md says the same in words.

Intel never published its own container; this one is lastbranch's and its magic says so. All numbers are little-endian.
A file is a header, two commit slots, and then blocks, block indexes and directories in any order, each at a multiple of
64. Bytes to which a committed directory refers are never written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...model import MAX_SAMPLES
from . import MAGIC

__all__ = [
    "ALIGNMENT",
    "AccessMethod",
    "ArchType",
    "BATCH_TIMES",
    "BLOCK_INDEX",
    "CLOSED",
    "CpuArchitecture",
    "CpuMode",
    "DATA_START",
    "DIRECTORY_ENTRY",
    "DescSubtype",
    "DescType",
    "TableEntry",
    "EventFlag",
    "Field",
    "HEADER",
    "HEADS",
    "MAGIC",
    "MODEL",
    "ModuleFlag",
    "NEVER",
    "NOT_EMPTY",
    "OsFamily",
    "SAMPLE_FILE_VERSION",
    "SLOT",
    "SLOT_OFFSETS",
    "SMALL_BLOCK_BYTES",
    "STRINGS",
    "STRUCTS",
    "Scope",
    "Section",
    "StreamSection",
    "StreamType",
    "Struct",
    "Table",
    "TaskFlag",
    "UNKNOWN_DRIVER",
    "VERSION",
    "check_record_size",
    "describe",
    "empty_records",
    "record_dtype",
    "records_of_block",
    "struct_of",
    "CHILDREN",
    "IA64PC",
    "PID_IS_RAW",
    "POINTERS",
    "Pointer",
    "SINGLE",
    "TID_IS_RAW",
    "with_children",
]


# -- the numbers of the TBRW User Guide 2.3 (320237-002US), by its names without their prefixes
#
# Where the guide names a constant and gives no number (module and event flags, the names of CPU modes and
# architectures) the number is that of the open drivers, or, where there is none either, ours: it says so.


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
    """TBRW_ACCESS_METHOD (6.7). Numbers are ours; FIELD is a name that a collector requested, not an address."""

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


# -- the records of the TBRW User Guide 2.3, declared once as data
#
# Layout is natural alignment with 8-byte pointers, as the guide's C structures have on 64-bit systems. In a file a
# string field holds the string's unique id, and a pointer field the row of the first child in the child's table. NumPy
# dtypes are made here; the ctypes classes of `lastbranch.tbrw` come from the same declarations.


_SIZES = {"u1": 1, "u2": 2, "u4": 4, "u8": 8, "s8": 8, "string": 8, "pointer": 8}


class Field(NamedTuple):
    """One field. ``code`` is ``u1 u2 u4 u8 s8`` (bytes), ``string`` or ``pointer``.

    ``bits`` are the (name, width) of the bit fields in the word, from bit 0 up. An ``overlay`` shares its bytes with
    fields before it (a union).
    """

    name: str
    code: str
    offset: int
    bits: tuple[tuple[str, int], ...] = ()
    overlay: bool = False

    @property
    def size(self) -> int:
        return _SIZES[self.code]


def record_dtype(fields: dict[str, tuple[Any, int]], size: int) -> np.dtype[Any]:
    """dtype of records of ``size`` bytes with ``fields``: name -> (format, offset)."""
    formats, offsets = ([f[i] for f in fields.values()] for i in range(2))
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size})


@dataclass(frozen=True)
class Struct:
    """One record type; ``size`` includes padding."""

    name: str
    fields: tuple[Field, ...]
    size: int

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Structured little-endian dtype with the guide's names and offsets; words of bit fields are one field."""
        codes = {"s8": "<i8", "string": "<u8", "pointer": "<u8"}
        return record_dtype({f.name: (codes.get(f.code, f"<{f.code}"), f.offset) for f in self.fields}, self.size)

    def strings(self) -> tuple[str, ...]:
        """Names of the fields that hold string ids."""
        return tuple(f.name for f in self.fields if f.code == "string")


def _struct(name: str, text: str) -> Struct:
    """``text`` is ``code name`` for each field; bit fields follow theirs as ``{name:width ...}``; ``@n`` overlays."""
    fields: list[Field] = []
    at = widest = 0
    for line in filter(None, (part.strip() for part in text.split(";"))):
        head, _, inside = line.partition("{")
        code, field, *where = head.split()
        size = _SIZES[code]
        widest = max(widest, size)
        bits = tuple((n, int(w)) for n, w in (b.split(":") for b in inside.rstrip("}").split()))
        if where:
            fields.append(Field(field, code, int(where[0].removeprefix("@")), bits, overlay=True))
            continue
        at += -at % size
        fields.append(Field(field, code, at, bits))
        at += size
    return Struct(name, tuple(fields), at + -at % widest)


_TEXTS = {
    # 8.3; only the example of 6.3 has node_type_from_shell.
    "TBRW_SYSTEM": "u4 system_size; u4 system_num_nodes; pointer node_array",
    "TBRW_NODE": """u4 node_size; u4 node_type_from_shell; u4 node_id; u4 node_num_available; u4 node_num_used;
        u8 node_physical_memory; pointer cpu_array""",
    "TBRW_CPU": """u4 cpu_size; u4 cpu_number; u4 cpu_native_arch_type; u4 cpu_intel_processor_number;
        u4 cpu_speed_mhz; u4 cpu_fsb_mhz; u4 cpu_cache_L2; u4 cpu_cache_L3; s8 cpu_tsc_offset;
        u2 cpu_package_num; u2 cpu_core_num; u2 cpu_hardware_thread_num; u2 cpu_threads_per_core;
        u4 num_cpu_arch_array; pointer cpu_arch_array""",
    "TBRW_CPU_ARCH": "u4 arch_size; u2 arch_type; u2 arch_num_cpuid; pointer cpuid_array",
    "TBRW_CPUID_IA32": "u4 cpuid_eax_input; u4 cpuid_eax; u4 cpuid_ebx; u4 cpuid_ecx; u4 cpuid_edx; u4 reserved",
    "TBRW_CPUID_IA64": "u8 cpuid_select; u8 cpuid_val; u8 reserved",
    # 8.4; the head of TBRW_HOST is that of the example in 6.4.
    "TBRW_HOST": "u4 host_size; string host_ip_address; string host_name; u4 reserved",
    "TBRW_OS": """u4 os_size; u4 os_platform; u4 os_major; u4 os_minor; u4 os_build; u4 os_extra; string os_name;
        string os_name_extra""",
    "TBRW_APPLICATION": """u4 app_size; u4 app_reserved; u4 app_page_size; u4 app_alloc_granularity;
        u8 app_min_app_addr; u8 app_max_app_addr""",
    # 8.5
    "TBRW_PID": """u4 pid_size; u4 pid_id; u4 pid_flags; u8 pid_event_when; u4 reserved1; u4 reserved2;
        string pid_path; string pid_name""",
    "TBRW_TID": """u4 tid_size; u4 tid_associated_pid; u4 tid_id; u4 tid_flags; u8 tid_event_when; u4 reserved1;
        u4 reserved2; string tid_name""",
    # 8.6
    "TBRW_MODULE": """u4 module_size; u4 reserved; u4 module_associated_pid; u4 module_flags; u8 module_event_when;
        u4 module_segment_number; u4 module_segment_type_word {module_segment_type:2}; u4 module_code_selector;
        u8 module_length; u8 module_load_address; u4 reserved_for_legacy; u4 reserved_for_legacy2;
        u4 reserved_for_legacy_flags; u4 reserved1; u8 module_unload_tsc; string module_path; string module_name;
        string module_segment_name""",
    # 8.7 is empty in the guide's text; these are the fields of 6.5.
    "TBRW_VERSION_INFO": """u4 version_info_size; u4 sampling_driver_version; u4 bind_version;
        u4 sample_file_version""",
    # 8.8; times are FILETIMEs: 100 ns since 1601-01-01 UTC
    "TBRW_STREAM_INFO": """u4 stream_info_size; u4 sampling_duration; u4 stream_type; u4 sampling_interval;
        u4 sampling_start_time_low; u4 sampling_start_time_high; u4 sampling_end_time_low; u4 sampling_end_time_high;
        string command_line; string cpu_mask; string comment""",
    # 8.10
    "TBRW_EVENT": """u4 event_size; u4 event_id; u4 event_num_details; u4 event_flags; u8 event_sav;
        string event_name; string event_arch_name; pointer event_detail_array""",
    "TBRW_EVENT_DETAIL": """u4 detail_size; u2 detail_access_size; u1 detail_method; u1 detail_access;
        u8 detail_address; u8 detail_value; u1 legacy_command; u1 reserved1; u2 reserved2; u2 reserved3""",
    # 8.11; the guide's union with force_8_byte_aligned changes nothing here
    "TBRW_SAMPREC_DESC_ENTRY": """u4 desc_size; u4 desc_offset; u2 desc_type; u2 desc_subtype; u4 desc_data_size;
        u8 desc_access_offset; u1 desc_access_type; u1 desc_access_method; u1 desc_sample_flag; u1 reserved0;
        u4 reserved1; string desc_name""",
    # 6.10; the 32-bit form shares the first 16 bytes
    "TBRW_SampleRecordPC": """u8 iip; u8 ipsr; u2 cs; u2 cpuAndOS {cpuNum:12 notVmid0:1 codeMode:2 reserved:1};
        u4 tid; u4 pidRecIndex; u4 bitFields2 {mrIndex:20 eventIndex:8 tidIsRaw:1 IA64PC:1 pidRecIndexRaw:1
        mrIndexNone:1}; u4 eip @0; u4 eflags @4; u4 csd_lowWord @8; u4 csd_highWord @12""",
    "TBRW_SampleRecordTSC": "u8 tsc",
    # 8.12; PID_BIND_STRUCT is ours: the guide has a stream type for it and no record
    "DATA_BIND_STRUCT": "u8 module_index; u8 pid_index; u8 tid_index",
    "MODULE_BIND_STRUCT": "u8 pid_index",
    "PID_BIND_STRUCT": "u8 module_index",
    "TID_BIND_STRUCT": "u8 pid_index",
}

STRUCTS: dict[str, Struct] = {name: _struct(name, text) for name, text in _TEXTS.items()}
"""Record types by the guide's name."""


class Pointer(NamedTuple):
    """The pointer field of a structure."""

    field: str
    counter: str
    """Field with the number of entries that it leads to."""
    targets: tuple[tuple[str, str], ...]
    """(name in C, structure) that it leads to; of two, the second is for Itanium."""

    def target(self, arch_type: int) -> tuple[str, str]:
        """The one of ``targets`` for a record with this ``arch_type``."""
        return self.targets[len(self.targets) > 1 and arch_type == ArchType.ITANIUM]


POINTERS = {
    "TBRW_SYSTEM": Pointer("node_array", "system_num_nodes", (("node_array", "TBRW_NODE"),)),
    "TBRW_NODE": Pointer("cpu_array", "node_num_available", (("cpu_array", "TBRW_CPU"),)),
    "TBRW_CPU": Pointer("cpu_arch_array", "num_cpu_arch_array", (("cpu_arch_array", "TBRW_CPU_ARCH"),)),
    "TBRW_CPU_ARCH": Pointer(
        "cpuid_array",
        "arch_num_cpuid",
        (("cpuid_ia32_array", "TBRW_CPUID_IA32"), ("cpuid_ia64_array", "TBRW_CPUID_IA64")),
    ),
    "TBRW_EVENT": Pointer("event_detail_array", "event_num_details", (("event_detail_array", "TBRW_EVENT_DETAIL"),)),
}
"""Structure -> its pointer. In a file a pointer is a row of the table that it leads to."""
CHILDREN = frozenset(kind for pointer in POINTERS.values() for _, kind in pointer.targets)
"""Structures that a pointer leads to."""
SINGLE = frozenset({"TBRW_SYSTEM", "TBRW_HOST", "TBRW_OS", "TBRW_APPLICATION", "TBRW_VERSION_INFO", "TBRW_STREAM_INFO"})
"""Structures that are set, not added: a section holds one of each."""


NOT_EMPTY = {
    "TBRW_SYSTEM": ("system_num_nodes",),
    "TBRW_HOST": ("host_ip_address", "host_name"),
    "TBRW_OS": ("os_platform",),
    "TBRW_APPLICATION": ("app_page_size", "app_alloc_granularity", "app_min_app_addr", "app_max_app_addr"),
}
"""Structures that are required (6.2) -> fields of which one must not be empty: 0, or without a string."""


def with_children(name: str) -> list[str]:
    """A structure, what its pointer leads to, and what that leads to."""
    below = POINTERS[name].targets if name in POINTERS else ()
    return [name, *(found for _, kind in below for found in with_children(kind))]


TID_IS_RAW, IA64PC, PID_IS_RAW = (np.uint32(1 << bit) for bit in (28, 29, 30))
"""Bits of bitFields2 of a sample record: tid and pidRecIndex are ids, not rows; its address has the 64-bit form."""


def empty_records(name: str, number: int) -> NDArray[Any]:
    """``number`` records of zeros, with their size field filled in where they have one."""
    struct = STRUCTS[name]
    out = np.zeros(number, struct.dtype)
    if struct.fields[0].name.endswith("_size"):
        out[struct.fields[0].name] = struct.size
    return out


# -- the container

VERSION = 1

HEADER = np.dtype([("magic", "S16"), ("version", "<u4"), ("data_start", "<u4"), ("reserved", "<u8", 4), ("crc", "<u4")])
"""At 0; ``crc`` is the CRC-32 of the bytes before it."""
SLOT = np.dtype(
    [("sequence", "<u8"), ("directory", "<u8"), ("directory_bytes", "<u8"), ("end", "<u8"), ("flags", "<u4"),
     ("directory_crc", "<u4"), ("reserved", "<u4"), ("crc", "<u4")]
)  # fmt: skip
"""One commit: of two slots the valid one with the larger ``sequence`` is in force, the other is written next."""
SLOT_OFFSETS = (512, 1024)
CLOSED = 1
"""Flag of a slot: the writer closed the file."""
DATA_START = 4096
ALIGNMENT = 64

DIRECTORY_ENTRY = np.dtype(
    [("scope", "<u2"), ("section", "<u2"), ("part", "<u2"), ("reserved", "<u2"), ("stream", "<u4"),
     ("record_size", "<u4"), ("count", "<u8"), ("block_bytes", "<u4"), ("blocks", "<u4"), ("index", "<u8"),
     ("index_crc", "<u4"), ("reserved2", "<u4")]
)  # fmt: skip
"""One table: ``blocks`` blocks of ``block_bytes`` (the last may be shorter), listed at ``index``."""
BLOCK_INDEX = np.dtype([("offset", "<u8"), ("check", "<u8"), ("sum", "<u8")])
BLOCK_BYTES = 1 << 22
"""Most bytes that a block of whole records takes; a larger record has a block of its own."""
SMALL_BLOCK_BYTES = 1 << 19
"""The same where blocks are worked on as they come: they stay in the processor's cache."""
_LARGEST_RECORD = 1 << 26


class Scope(IntEnum):
    """The owner of a table."""

    GLOBAL, STREAM, BIND, STORE = range(4)


BATCH_TIMES = np.dtype([("first_record", "<u8"), ("earliest", "<i8")])
"""For each batch that was written: where it starts, and its earliest time (for reading in time order)."""

STRINGS, MODEL, HEADS = 1, 2, 3
"""Sections of ``Scope.STORE``: string segments (``stream`` is the segment), what the guide has no place for, and copies
of the heads of a stream's records, for readers that need no branch stacks."""


class Table(NamedTuple):
    """Key of a table. ``section`` is a `Section`, `StreamSection` or, in ``Scope.BIND``, a `StreamType`."""

    scope: Scope
    stream: int
    section: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The place of a table."""

    record_size: int
    count: int
    block_bytes: int
    blocks: int
    index: int
    index_crc: int

    @property
    def bytes(self) -> int:
        return self.count * self.record_size

    @property
    def block_records(self) -> int:
        """Records in each block but the last."""
        return self.block_bytes // self.record_size


_PARTS: dict[tuple[Scope, int], tuple[str, ...]] = {
    (Scope.GLOBAL, Section.HARDWARE): (
        "TBRW_SYSTEM",
        "TBRW_NODE",
        "TBRW_CPU",
        "TBRW_CPU_ARCH",
        "TBRW_CPUID_IA32",
        "TBRW_CPUID_IA64",
    ),
    (Scope.GLOBAL, Section.SOFTWARE): ("TBRW_HOST", "TBRW_OS", "TBRW_APPLICATION"),
    (Scope.GLOBAL, Section.PROCESS_THREAD): ("TBRW_PID", "TBRW_TID"),
    (Scope.GLOBAL, Section.MODULE): ("TBRW_MODULE",),
    (Scope.GLOBAL, Section.VERSION_INFO): ("TBRW_VERSION_INFO",),
    (Scope.STREAM, StreamSection.EVENT_DESCRIPTION): ("TBRW_EVENT", "TBRW_EVENT_DETAIL"),
    (Scope.STREAM, StreamSection.DATA_DESCRIPTION): ("TBRW_SAMPREC_DESC_ENTRY",),
    (Scope.STREAM, StreamSection.STREAM_INFO): ("TBRW_STREAM_INFO",),
    (Scope.BIND, StreamType.BIND_DATA_INFORMATION): ("DATA_BIND_STRUCT",),
    (Scope.BIND, StreamType.BIND_MODULE_INFORMATION): ("MODULE_BIND_STRUCT",),
    (Scope.BIND, StreamType.BIND_PID_INFORMATION): ("PID_BIND_STRUCT", "TBRW_PID"),
    (Scope.BIND, StreamType.BIND_TID_INFORMATION): ("TID_BIND_STRUCT", "TBRW_TID"),
}


def struct_of(key: Table) -> Struct | None:
    """The record type of a table, ``None`` for bytes and for records that descriptors describe."""
    parts = _PARTS.get((key.scope, key.section), ())
    return STRUCTS[parts[key.part]] if key.part < len(parts) else None


def records_of_block(key: Table, record_size: int) -> int:
    """Records in a block: as many as fit, in whole batches of the model where that is several."""
    heads = key.scope is Scope.STORE and key.section == HEADS
    records = max(1, (SMALL_BLOCK_BYTES if heads else BLOCK_BYTES) // record_size)
    return records // MAX_SAMPLES * MAX_SAMPLES or records


def check_record_size(key: Table, size: int) -> None:
    """Raises `ValueError` where records of ``size`` bytes cannot be those of ``key``."""
    struct = struct_of(key)
    if struct is not None and size != struct.size:
        raise ValueError(f"records of {describe(key)} have {struct.size} bytes, not {size}")
    if not 0 < size <= _LARGEST_RECORD:
        raise ValueError(f"{describe(key)}: records of {size} bytes; the limits are 1 and {_LARGEST_RECORD}")


_NAMES = {Scope.GLOBAL: Section, Scope.STREAM: StreamSection, Scope.BIND: StreamType}


def describe(key: Table) -> str:
    """The table in words: ``stream 0 data``, ``modules``..."""
    kind = _NAMES.get(key.scope)
    if kind is not None and key.section in set(kind):
        name = kind(key.section).name.lower().replace("_", " ")
    else:
        names = {STRINGS: f"strings {key.stream}", MODEL: "model", HEADS: f"heads of stream {key.stream}"}
        name = names.get(key.section, f"section {key.section}")
    struct = struct_of(key)
    detail = f" ({struct.name})" if struct is not None else f" part {key.part}" if key.part else ""
    owner = {Scope.STREAM: f"stream {key.stream} ", Scope.BIND: f"bind of stream {key.stream}: "}.get(key.scope, "")
    return f"{owner}{name}{detail}"
