# ruff: noqa: N801, N802, N803, N815 - the guide's names
"""Types of the names that the package makes from tables. Made by tools/generate.py."""

import ctypes
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Generic, TypeAlias, TypeVar, overload

from ..formats.tb5.layout import (
    AccessMethod,
    ArchType,
    CpuArchitecture,
    CpuMode,
    DescSubtype,
    DescType,
    EventFlag,
    ModuleFlag,
    OsFamily,
    StreamType,
)
from ..formats.tb5.layout import Section as Section
from ..formats.tb5.layout import StreamSection as StreamSection
from .binding import BindSummary as BindSummary
from .binding import bind_stream as bind_stream
from .binding import sample_streams as sample_streams
from .binding import unbind_stream as unbind_stream
from .files import SectionReader as SectionReader
from .files import SectionWriter as SectionWriter
from .files import Stream as Stream
from .files import Tb5 as Tb5
from .files import open_file as open_file
from .interchange import load_exchange as load_exchange
from .interchange import save_exchange as save_exchange
from .listing import list_lines as list_lines
from .status import Status as Status
from .status import TbrwError as TbrwError
from .handle import Handle
from .rules import FileMode
from .structures import TBRW_STRING_OR_ID as TBRW_STRING_OR_ID
from .structures import ComputedType, Record

_T = TypeVar("_T", bound=Record)
_Entries: TypeAlias = _T | Sequence[_T] | ctypes.Array[_T] | ctypes._Pointer[_T] | None
_Text: TypeAlias = TBRW_STRING_OR_ID | str | bytes | int | None

class _String:
    @overload
    def __get__(self, owner: None, kind: type) -> _String: ...
    @overload
    def __get__(self, owner: Record, kind: type) -> TBRW_STRING_OR_ID: ...
    def __set__(self, owner: Record, value: _Text) -> None: ...

class _Pointer(Generic[_T]):
    @overload
    def __get__(self, owner: None, kind: type) -> _Pointer[_T]: ...
    @overload
    def __get__(self, owner: Record, kind: type) -> ctypes._Pointer[_T]: ...
    def __set__(self, owner: Record, value: _Entries[_T]) -> None: ...

class TBRW_CodeDescriptor(ctypes.Structure):
    lowWord: int
    highWord: int

class VTUNE_ANALYZER_FILETIME(ctypes.Structure):
    dwLowDateTime: int
    dwHighDateTime: int

class TBRW_CPUID_IA32(Record):
    cpuid_eax_input: int
    cpuid_eax: int
    cpuid_ebx: int
    cpuid_ecx: int
    cpuid_edx: int
    reserved: int
    def __init__(
        self,
        cpuid_eax_input: int = ...,
        cpuid_eax: int = ...,
        cpuid_ebx: int = ...,
        cpuid_ecx: int = ...,
        cpuid_edx: int = ...,
        reserved: int = ...,
    ) -> None: ...

class TBRW_CPUID_IA64(Record):
    cpuid_select: int
    cpuid_val: int
    reserved: int
    def __init__(self, cpuid_select: int = ..., cpuid_val: int = ..., reserved: int = ...) -> None: ...

class TBRW_CPU_ARCH(Record):
    arch_size: int
    arch_type: int
    arch_num_cpuid: int
    cpuid_ia32_array: _Pointer[TBRW_CPUID_IA32]
    cpuid_ia64_array: _Pointer[TBRW_CPUID_IA64]
    def __init__(
        self,
        arch_size: int = ...,
        arch_type: int = ...,
        arch_num_cpuid: int = ...,
        cpuid_ia32_array: _Entries[TBRW_CPUID_IA32] = ...,
        cpuid_ia64_array: _Entries[TBRW_CPUID_IA64] = ...,
    ) -> None: ...

class TBRW_CPU(Record):
    cpu_size: int
    cpu_number: int
    cpu_native_arch_type: int
    cpu_intel_processor_number: int
    cpu_speed_mhz: int
    cpu_fsb_mhz: int
    cpu_cache_L2: int
    cpu_cache_L3: int
    cpu_tsc_offset: int
    cpu_package_num: int
    cpu_core_num: int
    cpu_hardware_thread_num: int
    cpu_threads_per_core: int
    num_cpu_arch_array: int
    cpu_arch_array: _Pointer[TBRW_CPU_ARCH]
    cpu_pacakge_num: int
    def __init__(
        self,
        cpu_size: int = ...,
        cpu_number: int = ...,
        cpu_native_arch_type: int = ...,
        cpu_intel_processor_number: int = ...,
        cpu_speed_mhz: int = ...,
        cpu_fsb_mhz: int = ...,
        cpu_cache_L2: int = ...,
        cpu_cache_L3: int = ...,
        cpu_tsc_offset: int = ...,
        cpu_package_num: int = ...,
        cpu_core_num: int = ...,
        cpu_hardware_thread_num: int = ...,
        cpu_threads_per_core: int = ...,
        num_cpu_arch_array: int = ...,
        cpu_arch_array: _Entries[TBRW_CPU_ARCH] = ...,
    ) -> None: ...

class TBRW_NODE(Record):
    node_size: int
    node_type_from_shell: int
    node_id: int
    node_num_available: int
    node_num_used: int
    node_physical_memory: int
    cpu_array: _Pointer[TBRW_CPU]
    def __init__(
        self,
        node_size: int = ...,
        node_type_from_shell: int = ...,
        node_id: int = ...,
        node_num_available: int = ...,
        node_num_used: int = ...,
        node_physical_memory: int = ...,
        cpu_array: _Entries[TBRW_CPU] = ...,
    ) -> None: ...

class TBRW_SYSTEM(Record):
    system_size: int
    system_num_nodes: int
    node_array: _Pointer[TBRW_NODE]
    def __init__(
        self,
        system_size: int = ...,
        system_num_nodes: int = ...,
        node_array: _Entries[TBRW_NODE] = ...,
    ) -> None: ...

class TBRW_HOST(Record):
    host_size: int
    host_ip_address: _String
    host_name: _String
    reserved: int
    def __init__(
        self,
        host_size: int = ...,
        host_ip_address: _Text = ...,
        host_name: _Text = ...,
        reserved: int = ...,
    ) -> None: ...

class TBRW_OS(Record):
    os_size: int
    os_platform: int
    os_major: int
    os_minor: int
    os_build: int
    os_extra: int
    os_name: _String
    os_name_extra: _String
    def __init__(
        self,
        os_size: int = ...,
        os_platform: int = ...,
        os_major: int = ...,
        os_minor: int = ...,
        os_build: int = ...,
        os_extra: int = ...,
        os_name: _Text = ...,
        os_name_extra: _Text = ...,
    ) -> None: ...

class TBRW_APPLICATION(Record):
    app_size: int
    app_reserved: int
    app_page_size: int
    app_alloc_granularity: int
    app_min_app_addr: int
    app_max_app_addr: int
    def __init__(
        self,
        app_size: int = ...,
        app_reserved: int = ...,
        app_page_size: int = ...,
        app_alloc_granularity: int = ...,
        app_min_app_addr: int = ...,
        app_max_app_addr: int = ...,
    ) -> None: ...

class TBRW_PID(Record):
    pid_size: int
    pid_id: int
    pid_flags: int
    pid_event_when: int
    reserved1: int
    reserved2: int
    pid_path: _String
    pid_name: _String
    def __init__(
        self,
        pid_size: int = ...,
        pid_id: int = ...,
        pid_flags: int = ...,
        pid_event_when: int = ...,
        reserved1: int = ...,
        reserved2: int = ...,
        pid_path: _Text = ...,
        pid_name: _Text = ...,
    ) -> None: ...

class TBRW_TID(Record):
    tid_size: int
    tid_associated_pid: int
    tid_id: int
    tid_flags: int
    tid_event_when: int
    reserved1: int
    reserved2: int
    tid_name: _String
    def __init__(
        self,
        tid_size: int = ...,
        tid_associated_pid: int = ...,
        tid_id: int = ...,
        tid_flags: int = ...,
        tid_event_when: int = ...,
        reserved1: int = ...,
        reserved2: int = ...,
        tid_name: _Text = ...,
    ) -> None: ...

class TBRW_MODULE(Record):
    module_size: int
    reserved: int
    module_associated_pid: int
    module_flags: int
    module_event_when: int
    module_segment_number: int
    module_segment_type_word: int
    module_segment_type: int
    module_code_selector: int
    module_length: int
    module_load_address: int
    reserved_for_legacy: int
    reserved_for_legacy2: int
    reserved_for_legacy_flags: int
    reserved1: int
    module_unload_tsc: int
    module_path: _String
    module_name: _String
    module_segment_name: _String
    def __init__(
        self,
        module_size: int = ...,
        reserved: int = ...,
        module_associated_pid: int = ...,
        module_flags: int = ...,
        module_event_when: int = ...,
        module_segment_number: int = ...,
        module_segment_type_word: int = ...,
        module_segment_type: int = ...,
        module_code_selector: int = ...,
        module_length: int = ...,
        module_load_address: int = ...,
        reserved_for_legacy: int = ...,
        reserved_for_legacy2: int = ...,
        reserved_for_legacy_flags: int = ...,
        reserved1: int = ...,
        module_unload_tsc: int = ...,
        module_path: _Text = ...,
        module_name: _Text = ...,
        module_segment_name: _Text = ...,
    ) -> None: ...

class TBRW_VERSION_INFO(Record):
    version_info_size: int
    sampling_driver_version: int
    bind_version: int
    sample_file_version: int
    def __init__(
        self,
        version_info_size: int = ...,
        sampling_driver_version: int = ...,
        bind_version: int = ...,
        sample_file_version: int = ...,
    ) -> None: ...

class TBRW_STREAM_INFO(Record):
    stream_info_size: int
    sampling_duration: int
    stream_type: int
    sampling_interval: int
    sampling_start_time: VTUNE_ANALYZER_FILETIME
    sampling_end_time: VTUNE_ANALYZER_FILETIME
    command_line: _String
    cpu_mask: _String
    comment: _String
    def __init__(
        self,
        stream_info_size: int = ...,
        sampling_duration: int = ...,
        stream_type: int = ...,
        sampling_interval: int = ...,
        sampling_start_time: VTUNE_ANALYZER_FILETIME = ...,
        sampling_end_time: VTUNE_ANALYZER_FILETIME = ...,
        command_line: _Text = ...,
        cpu_mask: _Text = ...,
        comment: _Text = ...,
    ) -> None: ...

class TBRW_EVENT_DETAIL(Record):
    detail_size: int
    detail_access_size: int
    detail_method: int
    detail_access: int
    detail_address: int
    detail_value: int
    legacy_command: int
    reserved1: int
    reserved2: int
    reserved3: int
    def __init__(
        self,
        detail_size: int = ...,
        detail_access_size: int = ...,
        detail_method: int = ...,
        detail_access: int = ...,
        detail_address: int = ...,
        detail_value: int = ...,
        legacy_command: int = ...,
        reserved1: int = ...,
        reserved2: int = ...,
        reserved3: int = ...,
    ) -> None: ...

class TBRW_EVENT(Record):
    event_size: int
    event_id: int
    event_num_details: int
    event_flags: int
    event_sav: int
    event_name: _String
    event_arch_name: _String
    event_detail_array: _Pointer[TBRW_EVENT_DETAIL]
    def __init__(
        self,
        event_size: int = ...,
        event_id: int = ...,
        event_num_details: int = ...,
        event_flags: int = ...,
        event_sav: int = ...,
        event_name: _Text = ...,
        event_arch_name: _Text = ...,
        event_detail_array: _Entries[TBRW_EVENT_DETAIL] = ...,
    ) -> None: ...

class TBRW_SAMPREC_DESC_ENTRY(Record):
    desc_size: int
    desc_offset: int
    desc_type: int
    desc_subtype: int
    desc_data_size: int
    desc_access_offset: int
    desc_access_type: int
    desc_access_method: int
    desc_sample_flag: int
    reserved0: int
    reserved1: int
    desc_name: _String
    desc_sub_type: int
    def __init__(
        self,
        desc_size: int = ...,
        desc_offset: int = ...,
        desc_type: int = ...,
        desc_subtype: int = ...,
        desc_data_size: int = ...,
        desc_access_offset: int = ...,
        desc_access_type: int = ...,
        desc_access_method: int = ...,
        desc_sample_flag: int = ...,
        reserved0: int = ...,
        reserved1: int = ...,
        desc_name: _Text = ...,
    ) -> None: ...

class TBRW_SampleRecordPC(Record):
    iip: int
    ipsr: int
    eip: int
    eflags: int
    csd: TBRW_CodeDescriptor
    cs: int
    cpuAndOS: int
    cpuNum: int
    notVmid0: int
    codeMode: int
    reserved: int
    tid: int
    pidRecIndex: int
    bitFields2: int
    mrIndex: int
    eventIndex: int
    tidIsRaw: int
    IA64PC: int
    pidRecIndexRaw: int
    mrIndexNone: int
    def __init__(
        self,
        iip: int = ...,
        ipsr: int = ...,
        eip: int = ...,
        eflags: int = ...,
        csd: TBRW_CodeDescriptor = ...,
        cs: int = ...,
        cpuAndOS: int = ...,
        cpuNum: int = ...,
        notVmid0: int = ...,
        codeMode: int = ...,
        reserved: int = ...,
        tid: int = ...,
        pidRecIndex: int = ...,
        bitFields2: int = ...,
        mrIndex: int = ...,
        eventIndex: int = ...,
        tidIsRaw: int = ...,
        IA64PC: int = ...,
        pidRecIndexRaw: int = ...,
        mrIndexNone: int = ...,
    ) -> None: ...

class TBRW_SampleRecordTSC(Record):
    tsc: int
    def __init__(self, tsc: int = ...) -> None: ...

class DATA_BIND_STRUCT(Record):
    module_index: int
    pid_index: int
    tid_index: int
    def __init__(self, module_index: int = ..., pid_index: int = ..., tid_index: int = ...) -> None: ...

class MODULE_BIND_STRUCT(Record):
    pid_index: int
    def __init__(self, pid_index: int = ...) -> None: ...

class TID_BIND_STRUCT(Record):
    pid_index: int
    def __init__(self, pid_index: int = ...) -> None: ...

TBRW_SECTION_IDENTIFIER = Section
TBRW_STREAM_SECTION_IDENTIFIER = StreamSection
TBRW_STREAM_TYPE = StreamType
TBRW_DESC_TYPE = DescType
TBRW_DESC_SUBTYPE = DescSubtype
TBRW_ACCESS_METHOD = AccessMethod
TBRW_GEN_ENTRY_SUBTYPES = ArchType
TBRW_CHAR = ctypes.c_wchar
TBRW_U8 = ctypes.c_ubyte
TBRW_U16 = ctypes.c_ushort
TBRW_U32 = ctypes.c_uint
TBRW_U64 = ctypes.c_ulong
TBRW_S32 = ctypes.c_int
TBRW_S64 = ctypes.c_long
TBRW_PTR = ctypes.c_void_p
TBRW_PSampleRecordPC: TypeAlias = ctypes._Pointer[TBRW_SampleRecordPC]
TBRW_FILE_READ: FileMode
TBRW_FILE_WRITE: FileMode
TBRW_FILE_CREATE_ALWAYS: FileMode
TBRW_HARDWARE_SECTION: Section
TBRW_SOFTWARE_SECTION: Section
TBRW_PROCESS_THREAD_SECTION: Section
TBRW_MODULE_SECTION: Section
TBRW_USER_DEFINED_GLOBAL_SECTION: Section
TBRW_VERSION_INFO_SECTION: Section
TBRW_EVENT_DESCRIPTION_SECTION: StreamSection
TBRW_DATA_DESCRIPTION_SECTION: StreamSection
TBRW_DATA_SECTION: StreamSection
TBRW_USER_DEFINED_STREAM_SECTION: StreamSection
TBRW_STREAM_INFO_SECTION: StreamSection
TBRW_SAMPLING_STREAM: StreamType
TBRW_AGGREGATED_STREAM: StreamType
TBRW_BOOKMARK_STREAM: StreamType
TBRW_BIND_DATA_INFORMATION_STREAM: StreamType
TBRW_BIND_MODULE_INFORMATION_STREAM: StreamType
TBRW_BIND_PID_INFORMATION_STREAM: StreamType
TBRW_BIND_TID_INFORMATION_STREAM: StreamType
TBRW_CUSTOM_STREAM: StreamType
TBRW_OSFAMILY_WIN32: OsFamily
TBRW_OSFAMILY_WIN64: OsFamily
TBRW_OSFAMILY_WINCE: OsFamily
TBRW_OSFAMILY_XOS: OsFamily
TBRW_OSFAMILY_LINUX32: OsFamily
TBRW_OSFAMILY_LINUX64: OsFamily
TBRW_OSFAMILY_OTHER: OsFamily
TBRW_MODE_V86: CpuMode
TBRW_MODE_16BIT: CpuMode
TBRW_MODE_32BIT: CpuMode
TBRW_MODE_64BIT: CpuMode
TBRW_GST_UNKNOWN: ArchType
TBRW_GST_X86: ArchType
TBRW_GST_ITANIUM: ArchType
TBRW_GST_SA: ArchType
TBRW_GST_XSC: ArchType
TBRW_GST_EM64T: ArchType
TBRW_GST_CS860: ArchType
CPU_ARCHITECTURE_UNKNOWN: CpuArchitecture
CPU_ARCHITECTURE_IA32: CpuArchitecture
CPU_ARCHITECTURE_IA64: CpuArchitecture
TBRW_MODULE_IS_EXE: ModuleFlag
TBRW_MODULE_GLOBAL_LOAD: ModuleFlag
TBRW_MODULE_TSC_USED: ModuleFlag
TBRW_MODULE_1ST_MODULE_REC_IN_PROCESS: ModuleFlag
TBRW_MODULE_LOADED: ModuleFlag
TBRW_MODULE_UNLOADED: ModuleFlag
TBRW_EVENT_EBS: EventFlag
TBRW_EVENT_TBS: EventFlag
TBRW_MSR: AccessMethod
TBRW_PCI: AccessMethod
TBRW_MEMORY: AccessMethod
TBRW_OTHER: AccessMethod
ST_NONE: DescType
ST_LEGACY_SAMPLE_RECORD: DescType
ST_IP: DescType
ST_PID: DescType
ST_TID: DescType
ST_PROCESSOR_NUMBER: DescType
ST_PROCESSOR_STATUS: DescType
ST_TIME_STAMP: DescType
ST_POWER: DescType
ST_INTERRUPT_FAULT_ADDR: DescType
ST_IEAR: DescType
ST_DEAR: DescType
ST_BRANCH_TRACE: DescType
ST_INST_TRACE: DescType
ST_PMD: DescType
ST_IEAR_PHYSICAL: DescType
ST_DEAR_PHYSICAL: DescType
ST_BRANCH_TRACE_PHYSICAL: DescType
ST_INST_TRACE_PHYSICAL: DescType
ST_PMD_PHYSICAL: DescType
ST_LEGACY_UNKNOWN: DescType
ST_SAMPLE_LAST: DescType
ST_START_EXT_SAMPLE_REC_ENTRIES: DescType
ST_END_EXT_SAMPLE_REC_ENTRIES: DescType
ST_START_USER_DEFINED: DescType
ST_END_USER_DEFINED: DescType
ST_RESERVED_START: DescType
ST_RESERVED_END: DescType
ST_PROCESS: ComputedType
ST_THREAD: ComputedType
ST_MODULE_SEGMENT_NAME: ComputedType
ST_SEG_NUM: ComputedType
ST_SEG_OFFSET: ComputedType
ST_SEG_TYPE: ComputedType
ST_MODULE_LOAD_ADDRESS: ComputedType
ST_MODULE: ComputedType
ST_MODULE_PATH: ComputedType
ST_EVENT_ID: ComputedType
ST_EVENT: ComputedType
ST_HARDWARE_THREAD: ComputedType
ST_CORE: ComputedType
ST_PACKAGE: ComputedType
ST_SAMPLES: ComputedType
ST_EVENT_COUNTS: ComputedType
ST_FUNCTION: ComputedType
ST_FUNCTION_FULL_NAME: ComputedType
ST_CLASS: ComputedType
ST_FN_SIZE: ComputedType
ST_RVA: ComputedType
ST_FN_SEG_OFFSET: ComputedType
ST_FN_RVA: ComputedType
ST_WALL_CLOCK: ComputedType
ST_FNID_SUM: ComputedType
ST_FNID_AVG: ComputedType
ST_FNID_MIN: ComputedType
ST_FNID_MAX: ComputedType
ST_PROCESS_IDX: ComputedType
ST_THREAD_IDX: ComputedType
ST_MODULE_IDX: ComputedType
ST_EVENT_IDX: ComputedType
ST_SAMPLE_IDX: ComputedType
ST_PERCENTAGE_TOTAL: ComputedType
ST_PERCENTAGE_SEL: ComputedType
ST_MODULE_IDX_FOR_PROCESS_NAME: ComputedType
ST_ANNOTATION: ComputedType
ST_POST_PROCESS_LAST: ComputedType
SST_NONE: DescSubtype
SST_BLANK_SPACE: DescSubtype
SST_TS_MILLISECONDS: DescSubtype
SST_TS_CPU_CYCLES: DescSubtype
SST_TS_FSB_CYCLES: DescSubtype
SST_TS_OTHER: DescSubtype
SST_TS_SAMPLE_COUNT: DescSubtype
SST_TS_NANOSECONDS: DescSubtype
SST_LBR_TOS: DescSubtype
SST_LBR_FROM: DescSubtype
SST_LBR_TO: DescSubtype
SST_LBR_FROM_TO: DescSubtype
SST_LBR_OTHER: DescSubtype
SST_IEAR_CONFIG: DescSubtype
SST_IEAR_INST_ADDR: DescSubtype
SST_IEAR_LATENCY: DescSubtype
SST_DEAR_CONFIG: DescSubtype
SST_DEAR_INST_ADDR: DescSubtype
SST_DEAR_LATENCY: DescSubtype
SST_DEAR_DATA_ADDR: DescSubtype
SST_BTB_CONFIG: DescSubtype
SST_BTB_INDEX: DescSubtype
SST_BTB_EXTENSION: DescSubtype
SST_BTB_DATA: DescSubtype
SST_IPEAR_CONFIG: DescSubtype
SST_IPEAR_INDEX: DescSubtype
SST_IPEAR_EXTENSION: DescSubtype
SST_IPEAR_DATA: DescSubtype
SST_IIP: DescSubtype
SST_IPSR: DescSubtype
SST_EIP: DescSubtype
SST_EFLAGS: DescSubtype
SST_TSC: DescSubtype
SST_ITC: DescSubtype
SST_PSTATE: DescSubtype
SST_IA32_PERF_STATUS: DescSubtype
SST_IFA: DescSubtype
SST_RESERVED_START: DescSubtype
SST_RESERVED_END: DescSubtype
TBRW_SUCCESS: Status
TBRW_SAM_ERROR: Status
TBRW_INVALID_SAMPLE_FILE: Status
TBRW_UNKNOWN_SECTION_NUMBER: Status
TBRW_NO_MEMORY: Status
TBRW_BUFFER_OVERFLOW: Status
TBRW_SAMPLE_FILE_MAPPING_ERROR: Status
TBRW_BUFFER_NULL: Status
TBRW_UNEXPECTED_NULL_PTR: Status
TBRW_ENTRY_NOT_FOUND: Status
TBRW_FILE_OPEN_FAILED: Status
TBRW_NO_WRITE_PERMISSION: Status
TBRW_BAD_PARAMETER: Status
TBRW_UNEXPECTED_VALUE: Status
TBRW_NOT_IMPLEMENTED: Status
TBRW_SECTION_ALREADY_IN_USE: Status
TBRW_SECTION_NOT_EXIST: Status
TBRW_STREAM_NOT_EXIST: Status
TBRW_INVALID_STREAM: Status
TBRW_STREAM_ALREADY_IN_USE: Status
TBRW_DATA_DESC_NOT_EXIST: Status
TBRW_INVALID_ERROR_CODE: Status
TBRW_INCOMPATIBLE_VERSION: Status
TBRW_LEGACY_DATA_NOT_EXIST: Status
TBRW_INVALID_READ_START: Status
TBRW_INCOMPLETE_TB5_ENCOUNTERED: Status
TBRW_INVALID_STRING: Status
TBRW_UNSUPPORTED_DATA_SIZE: Status
TBRW_INIT_FAILED: Status
TBRW_BUFFER_TOO_SMALL: Status
TBRW_INVALID_ACCESS_PERMS: Status
TBRW_TB5_IS_NOT_BOUND: Status
TBRW_SECTION_NOT_READABLE: Status
TBRW_SECTION_NOT_WRITEABLE: Status
TBRW_GLOBAL_SECTION_NOT_CLOSED: Status
TBRW_STREAM_SECTION_NOT_CLOSED: Status
TBRW_STREAM_NOT_CLOSED: Status
TBRW_STREAM_NOT_BOUND: Status
TBRW_NOT_ALL_SECTIONS_CLOSED: Status
TBRW_UNEXPECTED_BIND_MISMATCH: Status
TBRW_BAD_MODULE: Status
TBRW_BIND_UNEXPECTED_1STMODREC: Status
TBRW_BIND_MODULES_NOT_SORTED: Status
TBRW_UNEXPECTED_NUM_CPUIDS: Status
TBRW_UNSUPPORTED_ARCH_TYPE: Status
TBRW_NO_DATA_TO_WRITE: Status
VT_SUCCESS: Status
ST_TIMESTAMP: DescType
TRUE: int
FALSE: int

def TBRW_get_version() -> tuple[int, int, int]: ...
def TBRW_open(filename: str | PathLike[str], access_mode: int) -> tuple[int, Handle | None]: ...
def TBRW_close(ptr: Handle | None) -> int: ...
def TBRW_error_string(error_code: int) -> tuple[int, str | None]: ...
def TBRW_abort_cleanup_and_close(ptr: Handle | None) -> int: ...
def TBRW_verify(ptr: Handle | None) -> int: ...
def TBRW_convert_uniqueid_to_string(
    ptr: Handle | None,
    size_of_buffer: int,
    string_id: TBRW_STRING_OR_ID | int,
    buffer: Any,
) -> tuple[int, int]: ...
def TBRW_get_number_data_streams(ptr: Handle | None) -> tuple[int, int]: ...
def TBRW_convert_utf8_to_wcs(utf8: Any, wcs: Any, wcs_size: int) -> tuple[int, int]: ...
def TBRW_convert_wcs_to_utf8(wcs: Any, utf8: Any, utf8_size: int) -> tuple[int, int]: ...
def TBRW_reading_section(ptr: Handle | None, section: int) -> int: ...
def TBRW_writing_section(ptr: Handle | None, section: int) -> int: ...
def TBRW_done_section(ptr: Handle | None, section: int) -> int: ...
def TBRW_reading_stream(ptr: Handle | None, stream: int) -> int: ...
def TBRW_writing_stream(ptr: Handle | None, stream: int) -> int: ...
def TBRW_done_stream(ptr: Handle | None, stream: int) -> int: ...
def TBRW_reading_stream_section(ptr: Handle | None, stream: int, section: int) -> int: ...
def TBRW_writing_stream_section(ptr: Handle | None, stream: int, section: int) -> int: ...
def TBRW_done_stream_section(ptr: Handle | None, stream: int, section: int) -> int: ...
def TBRW_set_system(ptr: Handle | None, system: TBRW_SYSTEM) -> int: ...
def TBRW_get_system(ptr: Handle | None, size_of_buffer: int, buf_ptr: Any) -> tuple[int, int]: ...
def TBRW_set_host(ptr: Handle | None, host: TBRW_HOST) -> int: ...
def TBRW_get_host(ptr: Handle | None, size_of_buffer: int, buf_ptr: Any) -> tuple[int, int]: ...
def TBRW_set_os(ptr: Handle | None, os: TBRW_OS) -> int: ...
def TBRW_get_os(ptr: Handle | None, size_of_buffer: int, buf_ptr: Any) -> tuple[int, int]: ...
def TBRW_set_application(ptr: Handle | None, application: TBRW_APPLICATION) -> int: ...
def TBRW_get_application(ptr: Handle | None, size_of_buffer: int, buf_ptr: Any) -> tuple[int, int]: ...
def TBRW_set_version_info(tbrw_ptr: Handle | None, version_info: TBRW_VERSION_INFO) -> int: ...
def TBRW_get_version_info(tbrw_ptr: Handle | None, size_of_buffer: int, buf_ptr: Any) -> tuple[int, int]: ...
def TBRW_set_stream_info(tbrw_ptr: Handle | None, stream: int, stream_info: TBRW_STREAM_INFO) -> int: ...
def TBRW_get_stream_info(
    tbrw_ptr: Handle | None,
    stream: int,
    size_of_buffer: int,
    buf_ptr: Any,
) -> tuple[int, int]: ...
def TBRW_add_process(ptr: Handle | None, process: TBRW_PID) -> int: ...
def TBRW_add_thread(ptr: Handle | None, thread: TBRW_TID) -> int: ...
def TBRW_add_module(ptr: Handle | None, module: TBRW_MODULE) -> int: ...
def TBRW_add_event(ptr: Handle | None, stream: int, event_descriptor_entry: TBRW_EVENT) -> int: ...
def TBRW_add_data_descriptor_entry(
    ptr: Handle | None,
    stream: int,
    data_descriptor_entry: TBRW_SAMPREC_DESC_ENTRY,
) -> int: ...
def TBRW_enumerate_processes(
    ptr: Handle | None,
    callback_func: Callable[..., int],
    user_ptr: Any,
    start_index: int,
) -> int: ...
def TBRW_enumerate_threads(
    ptr: Handle | None,
    callback_func: Callable[..., int],
    user_ptr: Any,
    start_index: int,
) -> int: ...
def TBRW_enumerate_modules(
    ptr: Handle | None,
    callback_func: Callable[..., int],
    user_ptr: Any,
    start_index: int,
) -> int: ...
def TBRW_enumerate_events(
    ptr: Handle | None,
    stream: int,
    callback_func: Callable[..., int],
    user_ptr: Any,
    start_index: int,
) -> int: ...
def TBRW_enumerate_data_descriptor_entries(
    ptr: Handle | None,
    stream: int,
    callback_func: Callable[..., int],
    user_ptr: Any,
) -> int: ...
def TBRW_get_one_pid(ptr: Handle | None, pid_index: int) -> tuple[int, TBRW_PID | None]: ...
def TBRW_get_one_tid(ptr: Handle | None, tid_index: int) -> tuple[int, TBRW_TID | None]: ...
def TBRW_get_one_module(ptr: Handle | None, module_index: int) -> tuple[int, TBRW_MODULE | None]: ...
def TBRW_get_size_of_tid_bind_entry(ptr: Handle | None, data_stream: int) -> tuple[int, int]: ...
def TBRW_get_size_of_module_bind_entry(ptr: Handle | None, data_stream: int) -> tuple[int, int]: ...
def TBRW_get_size_of_data_bind_entry(ptr: Handle | None, data_stream: int) -> tuple[int, int]: ...
def TBRW_bind_enumerate_threads(
    ptr: Handle | None,
    callback_func: Callable[..., int],
    user_ptr: Any,
    start_index: int,
) -> int: ...
def TBRW_bind_enumerate_modules(
    ptr: Handle | None,
    callback_func: Callable[..., int],
    user_ptr: Any,
    start_index: int,
) -> int: ...
def TBRW_set_user_defined_global(ptr: Handle | None, size_of_data: int, data_ptr: Any) -> int: ...
def TBRW_get_user_defined_global(ptr: Handle | None, size_of_buffer: int, buf_ptr: Any) -> tuple[int, int]: ...
def TBRW_set_user_defined_stream(ptr: Handle | None, stream: int, size_of_data: int, data_ptr: Any) -> int: ...
def TBRW_get_user_defined_stream(
    ptr: Handle | None,
    stream: int,
    size_of_buffer: int,
    buf_ptr: Any,
) -> tuple[int, int]: ...
def TBRW_add_data(ptr: Handle | None, stream: int, size_of_data_entry: int, data_entry: Any) -> int: ...
def TBRW_add_data_from_file(ptr: Handle | None, stream: int, filename: str | PathLike[str]) -> int: ...
def TBRW_enumerate_data(
    ptr: Handle | None,
    stream: int,
    callback_func: Callable[..., int],
    user_ptr: Any,
    start_index: int,
) -> int: ...
def TBRW_bind_enumerate_data(
    ptr: Handle | None,
    data_stream: int,
    callback_func: Callable[..., int],
    user_ptr: Any,
    start_index: int,
) -> int: ...
def TBRW_is_bound(ptr: Handle | None, data_stream: int) -> tuple[int, int]: ...
def TBRW_dobind(ptr: Handle | None, data_stream: int) -> int: ...
def TBRW_unbind(ptr: Handle | None, data_stream: int) -> int: ...
