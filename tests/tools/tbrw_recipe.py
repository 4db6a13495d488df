"""The guide's chapter 6 in Python: example values, field by field, in its order, each call checked.

Three things differ from the printed text, because it contradicts itself (docs/reference/tbrw.md, "Contradictions"): the
module stands where its samples are, the code selectors are equal, and the TSC comes behind the 32 bytes of the record.
"""

# ruff: noqa: F403, F405 (names come as a C program gets them from tbrw.h)
from __future__ import annotations

from collections.abc import Callable
from ctypes import pointer, sizeof
from os import urandom
from pathlib import Path
from typing import Any

from lastbranch.tbrw import *

MODULE_AT, SAMPLE_AT, PID = 0x616000, 0x617000, 0x1000


def ok(status: Any) -> Any:
    """Status 0, and the OUT values if there are any."""
    status, *outs = status if isinstance(status, tuple) else (status,)
    assert status == VT_SUCCESS, repr(status)
    return outs[0] if len(outs) == 1 else outs or None


def system() -> Any:
    """6.3"""
    ia32_cpuid = TBRW_CPUID_IA32()
    ia32_cpuid.cpuid_eax_input = 0x0
    ia32_cpuid.cpuid_eax = 0xA
    ia32_cpuid.cpuid_ebx = 0x756E6547
    ia32_cpuid.cpuid_ecx = 0x6C65746E
    ia32_cpuid.cpuid_edx = 0x49656E69
    cpu_arch = TBRW_CPU_ARCH()
    cpu_arch.arch_size = sizeof(TBRW_CPU_ARCH)
    cpu_arch.arch_type = TBRW_GST_X86
    cpu_arch.arch_num_cpuid = 1
    cpu_arch.cpuid_ia32_array = pointer(ia32_cpuid)
    cpu_info = TBRW_CPU()
    cpu_info.cpu_size = sizeof(TBRW_CPU)
    cpu_info.cpu_number = 0
    cpu_info.cpu_native_arch_type = CPU_ARCHITECTURE_IA32
    cpu_info.cpu_intel_processor_number = 8086
    cpu_info.cpu_speed_mhz = 3000
    cpu_info.cpu_fsb_mhz = 1333
    cpu_info.cpu_cache_L2 = 4096
    cpu_info.cpu_cache_L3 = 128
    cpu_info.cpu_tsc_offset = 0
    cpu_info.cpu_package_num = 0
    cpu_info.cpu_core_num = 0
    cpu_info.cpu_hardware_thread_num = 0
    cpu_info.cpu_threads_per_core = 1
    cpu_info.num_cpu_arch_array = 1
    cpu_info.cpu_arch_array = pointer(cpu_arch)
    node_info = TBRW_NODE()
    node_info.node_size = sizeof(TBRW_NODE)
    node_info.node_type_from_shell = 0
    node_info.node_id = 1
    node_info.node_num_available = 1
    node_info.node_num_used = 1
    node_info.node_physical_memory = 1024
    node_info.cpu_array = pointer(cpu_info)
    sys_info = TBRW_SYSTEM()
    sys_info.system_size = sizeof(TBRW_SYSTEM)
    sys_info.system_num_nodes = 1
    sys_info.node_array = pointer(node_info)
    return sys_info


def host() -> Any:
    """6.4, 1"""
    host_info = TBRW_HOST()
    host_info.host_size = sizeof(TBRW_HOST)
    host_info.host_ip_address.soi_ptr = "10.10.10.10"
    host_info.host_name.soi_ptr = "testhost.intel.com"
    return host_info


def os() -> Any:
    """6.4, 2"""
    os_info = TBRW_OS()
    os_info.os_size = sizeof(TBRW_OS)
    os_info.os_platform = TBRW_OSFAMILY_WIN32
    os_info.os_major = 0x5
    os_info.os_minor = 0x1
    os_info.os_build = 0xA28
    os_info.os_extra = 0
    os_info.os_name.soi_ptr = "Windows XP"
    os_info.os_name_extra.soi_ptr = "32-bit"
    return os_info


def application() -> Any:
    """6.4, 3"""
    app_info = TBRW_APPLICATION()
    app_info.app_size = sizeof(TBRW_APPLICATION)
    app_info.app_page_size = 1024
    app_info.app_alloc_granularity = 2048
    app_info.app_min_app_addr = 0xFFFFF
    app_info.app_max_app_addr = 0xFFFFFFFF
    return app_info


def version_info() -> Any:
    """6.5"""
    version = TBRW_VERSION_INFO()
    version.version_info_size = sizeof(TBRW_VERSION_INFO)
    version.sampling_driver_version = 0xFFFFFFFF
    version.bind_version = 0
    version.sample_file_version = 0x10
    return version


def module(address: int = MODULE_AT, length: int = 0x2000, pid: int = PID, path: str = "C:\\sample\\sample.exe") -> Any:
    """6.6"""
    module_info = TBRW_MODULE()
    module_info.module_size = sizeof(TBRW_MODULE)
    module_info.module_load_address = address
    module_info.module_length = length
    module_info.module_associated_pid = pid
    module_info.module_code_selector = 0x1B
    module_info.module_event_when = 0x0000
    module_info.module_unload_tsc = (1 << 64) - 1
    module_info.module_segment_type = TBRW_MODE_32BIT
    module_info.module_segment_number = 0
    module_info.module_flags = (
        TBRW_MODULE_TSC_USED | TBRW_MODULE_LOADED | TBRW_MODULE_IS_EXE | TBRW_MODULE_1ST_MODULE_REC_IN_PROCESS
    )
    module_info.module_path.soi_ptr = path
    module_info.module_name.soi_ptr = path.rpartition("\\")[2]
    module_info.module_segment_name.soi_ptr = ""
    module_info.reserved_for_legacy = 0
    module_info.reserved_for_legacy2 = 0
    module_info.reserved_for_legacy_flags = 0
    return module_info


def event(number: int = 0) -> Any:
    """6.7"""
    event_det = TBRW_EVENT_DETAIL()
    event_det.detail_size = sizeof(TBRW_EVENT_DETAIL)
    event_det.detail_access = 1
    event_det.detail_access_size = 32
    event_det.detail_method = TBRW_MSR
    event_det.detail_address = 0x21
    event_det.detail_value = 0xFFE17B80
    event_det.legacy_command = 0
    event_info = TBRW_EVENT()
    event_info.event_size = sizeof(TBRW_EVENT)
    event_info.event_id = number
    event_info.event_num_details = 1
    event_info.event_flags = TBRW_EVENT_EBS
    event_info.event_sav = 2000000
    event_info.event_name.soi_ptr = "SampleEvent"
    event_info.event_arch_name.soi_ptr = "Core 2"
    event_info.event_detail_array = pointer(event_det)
    return event_info


def stream_info() -> Any:
    """6.8"""
    info = TBRW_STREAM_INFO()
    info.stream_info_size = sizeof(TBRW_STREAM_INFO)
    info.sampling_duration = 20000
    info.stream_type = TBRW_SAMPLING_STREAM
    info.command_line.soi_ptr = "unknown"
    info.comment.soi_ptr = "sample_comment"
    info.cpu_mask.soi_ptr = "none"
    info.sampling_interval = 1000
    info.sampling_start_time.dwLowDateTime = 1526932352
    info.sampling_start_time.dwHighDateTime = 29849313
    info.sampling_end_time.dwLowDateTime = 1566932352
    info.sampling_end_time.dwHighDateTime = 29849313
    return info


def descriptors(tsc_offset: int = 32) -> list[Any]:
    """6.9; the text has 0 for ``tsc_offset``."""
    desc_entry1 = TBRW_SAMPREC_DESC_ENTRY()
    desc_entry1.desc_size = sizeof(TBRW_SAMPREC_DESC_ENTRY)
    desc_entry1.desc_data_size = sizeof(TBRW_SampleRecordPC)
    desc_entry1.desc_offset = 0
    desc_entry1.desc_type = ST_LEGACY_SAMPLE_RECORD
    desc_entry1.desc_sub_type = SST_NONE
    desc_entry1.desc_sample_flag = 0
    desc_entry1.desc_name.soi_ptr = "SampleRecord"
    desc_entry2 = TBRW_SAMPREC_DESC_ENTRY()
    desc_entry2.desc_size = sizeof(TBRW_SAMPREC_DESC_ENTRY)
    desc_entry2.desc_data_size = sizeof(TBRW_SampleRecordTSC)
    desc_entry2.desc_offset = tsc_offset
    desc_entry2.desc_type = ST_TIMESTAMP
    desc_entry2.desc_sub_type = SST_TSC
    desc_entry2.desc_sample_flag = 0
    desc_entry2.desc_name.soi_ptr = "TimeStamp"
    return [desc_entry1, desc_entry2]


def sample(eip: int = SAMPLE_AT, pid: int = PID, tid: int = 0) -> Any:
    """6.10, 1"""
    record = TBRW_SampleRecordPC()
    record.codeMode = TBRW_MODE_32BIT
    record.eip = eip
    record.eflags = 0x246
    record.csd.lowWord = 0xFFFF
    record.csd.highWord = 0xCF9B00
    record.cs = 0x1B
    record.mrIndex = 0
    record.eventIndex = 0
    record.tidIsRaw = 1
    record.IA64PC = 0
    record.pidRecIndexRaw = 1
    record.pidRecIndex = pid
    record.cpuNum = 0
    record.tid = tid
    record.mrIndexNone = 0
    return record


def time_stamp(tsc: int = 0x00001972178D8F5E) -> Any:
    """6.10, 2"""
    return TBRW_SampleRecordTSC(tsc=tsc)


def section(ptr: Any, name: int, *writes: Callable[[], Any]) -> None:
    """5.1: a global section."""
    ok(TBRW_writing_section(ptr, name))
    for write in writes:
        ok(write())
    ok(TBRW_done_section(ptr, name))


def stream_section(ptr: Any, stream: int, name: int, *writes: Callable[[], Any]) -> None:
    """5.3: a section of a stream."""
    ok(TBRW_writing_stream_section(ptr, stream, name))
    for write in writes:
        ok(write())
    ok(TBRW_done_stream_section(ptr, stream, name))


def write_globals(ptr: Any, modules: list[Any]) -> None:
    """The global sections of 6.2."""
    section(ptr, TBRW_HARDWARE_SECTION, lambda: TBRW_set_system(ptr, system()))
    section(
        ptr,
        TBRW_SOFTWARE_SECTION,
        lambda: TBRW_set_host(ptr, host()),
        lambda: TBRW_set_os(ptr, os()),
        lambda: TBRW_set_application(ptr, application()),
    )
    section(ptr, TBRW_VERSION_INFO_SECTION, lambda: TBRW_set_version_info(ptr, version_info()))
    section(ptr, TBRW_MODULE_SECTION, *(lambda m=m: TBRW_add_module(ptr, m) for m in modules))


def write_stream(ptr: Any, samples: list[tuple[Any, Any]], stream: int = 0) -> None:
    """The stream sections of 6.2."""
    ok(TBRW_writing_stream(ptr, stream))
    stream_section(ptr, stream, TBRW_EVENT_DESCRIPTION_SECTION, lambda: TBRW_add_event(ptr, stream, event()))
    stream_section(ptr, stream, TBRW_STREAM_INFO_SECTION, lambda: TBRW_set_stream_info(ptr, stream, stream_info()))
    stream_section(
        ptr,
        stream,
        TBRW_DATA_DESCRIPTION_SECTION,
        *(lambda d=d: TBRW_add_data_descriptor_entry(ptr, stream, d) for d in descriptors()),
    )
    stream_section(
        ptr,
        stream,
        TBRW_DATA_SECTION,
        *(lambda part=part: TBRW_add_data(ptr, stream, sizeof(part), part) for both in samples for part in both),
    )
    ok(TBRW_done_stream(ptr, stream))


def write_recipe(path: Path, mode: int | None = None) -> None:
    """The whole of chapter 6."""
    ptr = ok(TBRW_open(path, mode or TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS))
    write_globals(ptr, [module()])
    write_stream(ptr, [(sample(), time_stamp())])
    ok(TBRW_verify(ptr))
    ok(TBRW_close(ptr))


def write_full(path: Path) -> None:
    """A file with every section, three streams, and one of them without data."""
    with open_file(path, "w") as file:
        write_globals(file.handle, [module(0x1000 * i, 0x1000, i) for i in range(5)])
        with file.writing(Section.PROCESS_THREAD) as tasks:
            tasks.put(*(TBRW_PID(pid_id=i, pid_name=f"näme {i}") for i in range(3)))
            tasks.put(*(TBRW_TID(tid_id=i, tid_associated_pid=i) for i in range(4)))
        with file.writing(Section.USER_DEFINED_GLOBAL) as free:
            free.write(bytes(range(256)))
        write_stream(file.handle, [(sample(0x1000 * i, i), time_stamp(i)) for i in range(100)])
        for comment in ("first", ""):
            with file.writing_stream() as stream:
                with stream.writing(StreamSection.STREAM_INFO) as info:
                    info.put(TBRW_STREAM_INFO(stream_type=TBRW_CUSTOM_STREAM, comment=comment))
                with stream.writing(StreamSection.DATA_DESCRIPTION) as entries:
                    entries.put(TBRW_SAMPREC_DESC_ENTRY(desc_type=0x4000, desc_data_size=12, desc_name="mine"))
                with stream.writing(StreamSection.USER_DEFINED_STREAM) as free:
                    free.write(comment.encode())
                with stream.writing(StreamSection.DATA) as data:
                    if comment:
                        data.write(urandom(12 * 1000))
