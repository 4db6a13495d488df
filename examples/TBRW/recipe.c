/* A TB5 file by the recipe of chapter 6 of the TBRW User Guide, structure by structure, with its example values.

       recipe TB5FILE [SAMPLES]

   Where the guide contradicts itself (docs/reference/tbrw.md), the values are those that fit together: the module is
   where the samples are, with their code selector, and the time stamp follows the record. `make libtbrw` makes
   sample.tb5 with this program. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "samprec_shared.h"
#include "tbrw.h"

static TBRW_PTR tbrw_ptr;

static void check(TBRW_U32 ret, const char *call)
{
    const TBRW_CHAR *text = L"no text";
    if (ret == VT_SUCCESS) return;
    TBRW_error_string(ret, &text);
    fprintf(stderr, "%s: %ls (%u)\n", call, text, ret);
    TBRW_abort_cleanup_and_close(tbrw_ptr);
    exit(1);
}
#define CHECK(call) check(call, #call)

/* 6.3 */
static void hardware_section(void)
{
    TBRW_CPUID_IA32 ia32_cpuid;
    ia32_cpuid.cpuid_eax_input = 0x0;
    ia32_cpuid.cpuid_eax = 0xa;
    ia32_cpuid.cpuid_ebx = 0x756e6547;
    ia32_cpuid.cpuid_ecx = 0x6c65746e;
    ia32_cpuid.cpuid_edx = 0x49656e69;

    TBRW_CPU_ARCH cpu_arch;
    cpu_arch.arch_size = sizeof(TBRW_CPU_ARCH);
    cpu_arch.arch_type = TBRW_GST_X86;
    cpu_arch.arch_num_cpuid = 1;
    cpu_arch.cpuid_ia32_array = (TBRW_CPUID_IA32 *)&ia32_cpuid;

    TBRW_CPU cpu_info;
    cpu_info.cpu_size = sizeof(TBRW_CPU);
    cpu_info.cpu_number = 0;
    cpu_info.cpu_native_arch_type = CPU_ARCHITECTURE_IA32;
    cpu_info.cpu_intel_processor_number = 8086;
    cpu_info.cpu_speed_mhz = 3000;
    cpu_info.cpu_fsb_mhz = 1333;
    cpu_info.cpu_cache_L2 = 4096;
    cpu_info.cpu_cache_L3 = 128;
    cpu_info.cpu_tsc_offset = 0;
    cpu_info.cpu_package_num = 0;
    cpu_info.cpu_core_num = 0;
    cpu_info.cpu_hardware_thread_num = 0;
    cpu_info.cpu_threads_per_core = 1;
    cpu_info.num_cpu_arch_array = 1;
    cpu_info.cpu_arch_array = &cpu_arch;

    TBRW_NODE node_info;
    node_info.node_size = sizeof(TBRW_NODE);
    node_info.node_type_from_shell = 0;
    node_info.node_id = 1;
    node_info.node_num_available = 1;
    node_info.node_num_used = 1;
    node_info.node_physical_memory = 1024;
    node_info.cpu_array = &cpu_info;

    TBRW_SYSTEM sys_info;
    sys_info.system_size = sizeof(TBRW_SYSTEM);
    sys_info.system_num_nodes = 1;
    sys_info.node_array = &node_info;

    CHECK(TBRW_writing_section(tbrw_ptr, TBRW_HARDWARE_SECTION));
    CHECK(TBRW_set_system(tbrw_ptr, &sys_info));
    CHECK(TBRW_done_section(tbrw_ptr, TBRW_HARDWARE_SECTION));
}

/* 6.4 */
static void software_section(void)
{
    TBRW_HOST host_info;
    host_info.host_size = sizeof(TBRW_HOST);
    host_info.host_ip_address.soi_ptr = (TBRW_CHAR *)_wcsdup(L"10.10.10.10");
    host_info.host_name.soi_ptr = (TBRW_CHAR *)_wcsdup(L"testhost.intel.com");

    TBRW_OS os_info;
    os_info.os_size = sizeof(TBRW_OS);
    os_info.os_platform = TBRW_OSFAMILY_WIN32;
    os_info.os_major = 0x5;
    os_info.os_minor = 0x1;
    os_info.os_build = 0xa28;
    os_info.os_extra = 0;
    os_info.os_name.soi_ptr = (TBRW_CHAR *)_wcsdup(L"Windows XP");
    os_info.os_name_extra.soi_ptr = (TBRW_CHAR *)_wcsdup(L"32-bit");

    TBRW_APPLICATION app_info;
    app_info.app_size = sizeof(TBRW_APPLICATION);
    app_info.app_page_size = 1024;
    app_info.app_alloc_granularity = 2048;
    app_info.app_min_app_addr = 0xfffff;
    app_info.app_max_app_addr = 0xffffffff;

    CHECK(TBRW_writing_section(tbrw_ptr, TBRW_SOFTWARE_SECTION));
    CHECK(TBRW_set_host(tbrw_ptr, &host_info));
    CHECK(TBRW_set_os(tbrw_ptr, &os_info));
    CHECK(TBRW_set_application(tbrw_ptr, &app_info));
    CHECK(TBRW_done_section(tbrw_ptr, TBRW_SOFTWARE_SECTION));
}

/* 6.5 */
static void version_section(void)
{
    TBRW_VERSION_INFO version_info;
    version_info.version_info_size = sizeof(TBRW_VERSION_INFO);
    version_info.sampling_driver_version = 0xffffffff;
    version_info.bind_version = 0;
    version_info.sample_file_version = 0x10;

    CHECK(TBRW_writing_section(tbrw_ptr, TBRW_VERSION_INFO_SECTION));
    CHECK(TBRW_set_version_info(tbrw_ptr, &version_info));
    CHECK(TBRW_done_section(tbrw_ptr, TBRW_VERSION_INFO_SECTION));
}

/* 6.6 */
static void module_section(void)
{
    TBRW_MODULE module_info;
    module_info.module_size = sizeof(TBRW_MODULE);
    module_info.module_load_address = 0x616000;
    module_info.module_length = 0x2000;
    module_info.module_associated_pid = 0x1000;
    module_info.module_code_selector = 0x1B;
    module_info.module_event_when = (TBRW_U64)0x0000;
    module_info.module_unload_tsc = (TBRW_U64)-1;
    module_info.module_segment_type = TBRW_MODE_32BIT;
    module_info.module_segment_number = 0;
    module_info.module_flags =
        TBRW_MODULE_TSC_USED | TBRW_MODULE_LOADED | TBRW_MODULE_IS_EXE | TBRW_MODULE_1ST_MODULE_REC_IN_PROCESS;
    module_info.module_path.soi_ptr = (TBRW_CHAR *)_wcsdup(L"C:\\sample\\sample.exe");
    module_info.module_name.soi_ptr = (TBRW_CHAR *)_wcsdup(L"sample.exe");
    module_info.module_segment_name.soi_ptr = (TBRW_CHAR *)_wcsdup(L"");
    module_info.reserved_for_legacy = 0;
    module_info.reserved_for_legacy2 = 0;
    module_info.reserved_for_legacy_flags = 0;

    CHECK(TBRW_writing_section(tbrw_ptr, TBRW_MODULE_SECTION));
    CHECK(TBRW_add_module(tbrw_ptr, &module_info));
    CHECK(TBRW_done_section(tbrw_ptr, TBRW_MODULE_SECTION));
}

/* 6.7 */
static void event_section(void)
{
    TBRW_EVENT_DETAIL event_det;
    event_det.detail_size = sizeof(TBRW_EVENT_DETAIL);
    event_det.detail_access = 1;
    event_det.detail_access_size = 32;
    event_det.detail_method = TBRW_MSR;
    event_det.detail_address = 0x21;
    event_det.detail_value = 0xffe17b80;
    event_det.legacy_command = 0;

    TBRW_EVENT event_info;
    event_info.event_size = sizeof(TBRW_EVENT);
    event_info.event_id = 0;
    event_info.event_num_details = 1;
    event_info.event_flags = TBRW_EVENT_EBS;
    event_info.event_sav = 2000000;
    event_info.event_name.soi_ptr = (TBRW_CHAR *)_wcsdup(L"SampleEvent");
    event_info.event_arch_name.soi_ptr = (TBRW_CHAR *)_wcsdup(L"Core 2");
    event_info.event_detail_array = &event_det;

    CHECK(TBRW_writing_stream_section(tbrw_ptr, 0, TBRW_EVENT_DESCRIPTION_SECTION));
    CHECK(TBRW_add_event(tbrw_ptr, 0, &event_info));
    CHECK(TBRW_done_stream_section(tbrw_ptr, 0, TBRW_EVENT_DESCRIPTION_SECTION));
}

/* 6.8 */
static void stream_info_section(void)
{
    TBRW_STREAM_INFO stream_info;
    stream_info.stream_info_size = sizeof(TBRW_STREAM_INFO);
    stream_info.sampling_duration = 20000;
    stream_info.stream_type = TBRW_SAMPLING_STREAM;
    stream_info.command_line.soi_ptr = (TBRW_CHAR *)_wcsdup(L"unknown");
    stream_info.comment.soi_ptr = (TBRW_CHAR *)_wcsdup(L"sample_comment");
    stream_info.cpu_mask.soi_ptr = (TBRW_CHAR *)_wcsdup(L"none");
    stream_info.sampling_interval = 1000;
    stream_info.sampling_start_time.dwLowDateTime = 1526932352;
    stream_info.sampling_start_time.dwHighDateTime = 29849313;
    stream_info.sampling_end_time.dwLowDateTime = 1566932352;
    stream_info.sampling_end_time.dwHighDateTime = 29849313;

    CHECK(TBRW_writing_stream_section(tbrw_ptr, 0, TBRW_STREAM_INFO_SECTION));
    CHECK(TBRW_set_stream_info(tbrw_ptr, 0, &stream_info));
    CHECK(TBRW_done_stream_section(tbrw_ptr, 0, TBRW_STREAM_INFO_SECTION));
}

/* 6.9 */
static void descriptor_section(void)
{
    TBRW_SAMPREC_DESC_ENTRY desc_entry1;
    desc_entry1.desc_size = sizeof(TBRW_SAMPREC_DESC_ENTRY);
    desc_entry1.desc_data_size = sizeof(TBRW_SampleRecordPC);
    desc_entry1.desc_offset = 0;
    desc_entry1.desc_type = ST_LEGACY_SAMPLE_RECORD;
    desc_entry1.desc_sub_type = SST_NONE;
    desc_entry1.desc_sample_flag = 0;
    desc_entry1.desc_name.soi_ptr = (TBRW_CHAR *)_wcsdup(L"SampleRecord");

    TBRW_SAMPREC_DESC_ENTRY desc_entry2;
    desc_entry2.desc_size = sizeof(TBRW_SAMPREC_DESC_ENTRY);
    desc_entry2.desc_data_size = sizeof(TBRW_SampleRecordTSC);
    desc_entry2.desc_offset = sizeof(TBRW_SampleRecordPC);
    desc_entry2.desc_type = ST_TIMESTAMP;
    desc_entry2.desc_sub_type = SST_TSC;
    desc_entry2.desc_sample_flag = 0;
    desc_entry2.desc_name.soi_ptr = (TBRW_CHAR *)_wcsdup(L"TimeStamp");

    CHECK(TBRW_writing_stream_section(tbrw_ptr, 0, TBRW_DATA_DESCRIPTION_SECTION));
    CHECK(TBRW_add_data_descriptor_entry(tbrw_ptr, 0, &desc_entry1));
    CHECK(TBRW_add_data_descriptor_entry(tbrw_ptr, 0, &desc_entry2));
    CHECK(TBRW_done_stream_section(tbrw_ptr, 0, TBRW_DATA_DESCRIPTION_SECTION));
}

/* 6.10: a record in two calls, as the guide adds it */
static void data_section(long samples)
{
    CHECK(TBRW_writing_stream_section(tbrw_ptr, 0, TBRW_DATA_SECTION));
    for (long i = 0; i < samples; i++) {
        TBRW_SampleRecordPC sample;
        memset(&sample, 0, sizeof(sample));
        sample.codeMode = TBRW_MODE_32BIT;
        sample.eip = 0x617000 + (TBRW_U32)(i * 4 % 0x1000);
        sample.eflags = 0x246;
        sample.csd.lowWord = 0xffff;
        sample.csd.highWord = 0xcf9b00;
        sample.cs = 0x1B;
        sample.mrIndex = 0;
        sample.eventIndex = 0;
        sample.tidIsRaw = 1;
        sample.IA64PC = 0;
        sample.pidRecIndexRaw = 1;
        sample.pidRecIndex = 0x1000;
        sample.cpuNum = 0;
        sample.tid = 0;
        sample.mrIndexNone = 0;
        CHECK(TBRW_add_data(tbrw_ptr, 0, sizeof(TBRW_SampleRecordPC), (void *)&sample));

        TBRW_SampleRecordTSC tsc;
        tsc.tsc = 0x00001972178D8F5E + (TBRW_U64)i * 2000000;
        CHECK(TBRW_add_data(tbrw_ptr, 0, sizeof(TBRW_SampleRecordTSC), (void *)&tsc));
    }
    CHECK(TBRW_done_stream_section(tbrw_ptr, 0, TBRW_DATA_SECTION));
}

int main(int argc, char *argv[])
{
    TBRW_CHAR name[4096];
    TBRW_U32 room = sizeof(name) / sizeof(name[0]);
    if (argc < 2) {
        fprintf(stderr, "usage: recipe TB5FILE [SAMPLES]\n");
        return 2;
    }
    CHECK(TBRW_convert_utf8_to_wcs(argv[1], name, &room));
    CHECK(TBRW_open(&tbrw_ptr, name, TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS));
    hardware_section();
    software_section();
    version_section();
    module_section();
    CHECK(TBRW_writing_stream(tbrw_ptr, 0));
    event_section();
    stream_info_section();
    descriptor_section();
    data_section(argc > 2 ? atol(argv[2]) : 1);
    CHECK(TBRW_done_stream(tbrw_ptr, 0));
    CHECK(TBRW_verify(tbrw_ptr));
    CHECK(TBRW_close(tbrw_ptr));
    return 0;
}
