"""The records of the TBRW User Guide 2.3, declared once as data.

Layout is natural alignment with 8-byte pointers, as the guide's C structures have on 64-bit systems. In a file a string
field holds the string's unique id, and a pointer field the row of the first child in the child's table. NumPy dtypes
are made here; the ctypes classes of `lastbranch.tbrw` come from the same declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["STRUCTS", "Field", "Struct", "empty_records"]

_SIZES = {"u1": 1, "u2": 2, "u4": 4, "u8": 8, "s8": 8, "string": 8, "pointer": 8}


@dataclass(frozen=True, slots=True)
class Field:
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
        return np.dtype(
            {
                "names": [f.name for f in self.fields],
                "formats": [codes.get(f.code, f"<{f.code}") for f in self.fields],
                "offsets": [f.offset for f in self.fields],
                "itemsize": self.size,
            }
        )

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
    # 8.3; node_type_from_shell stands in the example of 6.3 alone.
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


def empty_records(name: str, number: int) -> NDArray[Any]:
    """``number`` records of zeros, with their size field filled in where they have one."""
    struct = STRUCTS[name]
    out = np.zeros(number, struct.dtype)
    if struct.fields[0].name.endswith("_size"):
        out[struct.fields[0].name] = struct.size
    return out
