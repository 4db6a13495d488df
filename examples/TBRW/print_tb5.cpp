/* Prints what each section of a TB5 file holds (2.1): print_tb5 TB5FILE */

#include "example.h"

static std::string shown(TBRW_STRING_OR_ID id)
{
    std::string text;
    return text_of(id, text) ? "'" + text + "'" : "NULL";
}

#define NUMBER(r, field) printf("    " #field " = %llu\n", (unsigned long long)(r).field)
#define HEX(r, field) printf("    " #field " = %#llx\n", (unsigned long long)(r).field)
#define TEXT(r, field) printf("    " #field " = %s\n", shown((r).field).c_str())

static void print_hardware()
{
    TBRW_U32 size = 0;
    TBRW_get_system(file, 0, NULL, &size);
    std::vector<char> buffer(size);
    TBRW_SYSTEM *system = (TBRW_SYSTEM *)buffer.data();
    CHECK(TBRW_get_system(file, size, system, NULL));
    printf("  TBRW_SYSTEM\n");
    NUMBER(*system, system_num_nodes);
    for (TBRW_U32 i = 0; i < system->system_num_nodes; i++) {
        TBRW_NODE &node = system->node_array[i];
        printf("  TBRW_NODE %u\n", i);
        NUMBER(node, node_id), NUMBER(node, node_num_available), NUMBER(node, node_num_used);
        NUMBER(node, node_physical_memory);
        for (TBRW_U32 j = 0; j < node.node_num_available; j++) {
            TBRW_CPU &cpu = node.cpu_array[j];
            printf("  TBRW_CPU %u\n", j);
            NUMBER(cpu, cpu_number), NUMBER(cpu, cpu_speed_mhz), NUMBER(cpu, cpu_fsb_mhz), NUMBER(cpu, cpu_cache_L2);
            NUMBER(cpu, cpu_cache_L3), NUMBER(cpu, cpu_package_num), NUMBER(cpu, cpu_core_num);
            NUMBER(cpu, cpu_hardware_thread_num), NUMBER(cpu, cpu_threads_per_core);
            for (TBRW_U32 k = 0; k < cpu.num_cpu_arch_array; k++) {
                TBRW_CPU_ARCH &arch = cpu.cpu_arch_array[k];
                printf("  TBRW_CPU_ARCH %u\n", k);
                NUMBER(arch, arch_type);
                for (TBRW_U32 n = 0; n < arch.arch_num_cpuid; n++) {
                    if (arch.arch_type == TBRW_GST_ITANIUM) {
                        HEX(arch.cpuid_ia64_array[n], cpuid_select), HEX(arch.cpuid_ia64_array[n], cpuid_val);
                        continue;
                    }
                    TBRW_CPUID_IA32 &cpuid = arch.cpuid_ia32_array[n];
                    HEX(cpuid, cpuid_eax_input), HEX(cpuid, cpuid_eax), HEX(cpuid, cpuid_ebx);
                    HEX(cpuid, cpuid_ecx), HEX(cpuid, cpuid_edx);
                }
            }
        }
    }
}

static void print_software()
{
    Software software = get_software();
    TBRW_HOST &host = software.host;
    TBRW_OS &os = software.os;
    TBRW_APPLICATION &application = software.application;
    printf("  TBRW_HOST\n");
    TEXT(host, host_ip_address), TEXT(host, host_name);
    printf("  TBRW_OS\n");
    NUMBER(os, os_platform), NUMBER(os, os_major), NUMBER(os, os_minor), NUMBER(os, os_build), NUMBER(os, os_extra);
    TEXT(os, os_name), TEXT(os, os_name_extra);
    printf("  TBRW_APPLICATION\n");
    NUMBER(application, app_page_size), NUMBER(application, app_alloc_granularity);
    HEX(application, app_min_app_addr), HEX(application, app_max_app_addr);
}

static void print_processes()
{
    std::vector<TBRW_PID> processes;
    std::vector<TBRW_TID> threads;
    CHECK(TBRW_enumerate_processes(file, append<TBRW_PID>, &processes, 0));
    CHECK(TBRW_enumerate_threads(file, append<TBRW_TID>, &threads, 0));
    for (size_t i = 0; i < processes.size(); i++) {
        printf("  TBRW_PID %zu\n", i);
        NUMBER(processes[i], pid_id), HEX(processes[i], pid_flags), NUMBER(processes[i], pid_event_when);
        TEXT(processes[i], pid_path), TEXT(processes[i], pid_name);
    }
    for (size_t i = 0; i < threads.size(); i++) {
        printf("  TBRW_TID %zu\n", i);
        NUMBER(threads[i], tid_associated_pid), NUMBER(threads[i], tid_id), HEX(threads[i], tid_flags);
        NUMBER(threads[i], tid_event_when);
        TEXT(threads[i], tid_name);
    }
}

static void print_modules()
{
    std::vector<TBRW_MODULE> modules;
    CHECK(TBRW_enumerate_modules(file, append<TBRW_MODULE>, &modules, 0));
    for (size_t i = 0; i < modules.size(); i++) {
        TBRW_MODULE &module = modules[i];
        printf("  TBRW_MODULE %zu\n", i);
        NUMBER(module, module_associated_pid), HEX(module, module_flags), NUMBER(module, module_event_when);
        NUMBER(module, module_segment_number), NUMBER(module, module_segment_type), HEX(module, module_code_selector);
        NUMBER(module, module_length), HEX(module, module_load_address), NUMBER(module, module_unload_tsc);
        TEXT(module, module_path), TEXT(module, module_name), TEXT(module, module_segment_name);
    }
}

static void print_bytes(const std::vector<unsigned char> &bytes)
{
    for (size_t i = 0; i < bytes.size(); i++)
        printf("%s%02x%s", i % 16 ? " " : "  ", bytes[i], i % 16 == 15 || i + 1 == bytes.size() ? "\n" : "");
}

static void print_version()
{
    TBRW_VERSION_INFO version;
    CHECK(TBRW_get_version_info(file, sizeof(version), &version, NULL));
    printf("  TBRW_VERSION_INFO\n");
    HEX(version, sampling_driver_version), NUMBER(version, bind_version), NUMBER(version, sample_file_version);
}

static void print_user_defined_global()
{
    TBRW_U32 size = 0;
    TBRW_get_user_defined_global(file, 0, NULL, &size);
    std::vector<unsigned char> bytes(size);
    CHECK(TBRW_get_user_defined_global(file, size, bytes.data(), NULL));
    print_bytes(bytes);
}

static void print_events(TBRW_U32 stream)
{
    std::vector<Event> events;
    CHECK(TBRW_enumerate_events(file, stream, append_event, &events, 0));
    for (Event &one : events) {
        printf("  TBRW_EVENT %u\n", one.event.event_id);
        HEX(one.event, event_flags), NUMBER(one.event, event_sav);
        TEXT(one.event, event_name), TEXT(one.event, event_arch_name);
        for (TBRW_EVENT_DETAIL &detail : one.details) {
            printf("  TBRW_EVENT_DETAIL\n");
            NUMBER(detail, detail_access_size), NUMBER(detail, detail_method), NUMBER(detail, detail_access);
            HEX(detail, detail_address), HEX(detail, detail_value);
        }
    }
}

struct Data {
    TBRW_U64 next;
    bool legacy;
};

/* A record is in the form that its type says: of the two halves of the union only one means anything. */
static TBRW_U32 print_records(void *data, TBRW_U32 size, TBRW_U32 count, void *user)
{
    Data *state = (Data *)user;
    TBRW_U32 stride = size / count;
    for (TBRW_U32 i = 0; i < count; i++) {
        const unsigned char *record = (const unsigned char *)data + (size_t)i * stride;
        TBRW_U32 at = 0;
        printf("  %llu:", (unsigned long long)state->next++);
        if (state->legacy) {
            TBRW_SampleRecordPC pc;
            memcpy(&pc, record, sizeof(pc));
            at = sizeof(pc);
            if (pc.IA64PC) printf(" iip=%#llx ipsr=%#llx", pc.iip, pc.ipsr);
            else printf(" eip=%#x eflags=%#x csd=%#x,%#x", pc.eip, pc.eflags, pc.csd.lowWord, pc.csd.highWord);
            printf(" cs=%#x cpuNum=%u codeMode=%u tid=%u pidRecIndex=%u eventIndex=%u", pc.cs, pc.cpuNum, pc.codeMode,
                   pc.tid, pc.pidRecIndex, pc.eventIndex);
        }
        for (; at < stride; at++) printf("%s%02x", at % 8 ? "" : " ", record[at]);
        printf("\n");
    }
    return TRUE;
}

static void print_stream(TBRW_U32 stream)
{
    TBRW_U32 is_bound = 0;
    CHECK(TBRW_is_bound(file, stream, &is_bound));
    printf("stream %u (%s)\n", stream, is_bound ? "bound" : "not bound");
    CHECK(TBRW_reading_stream(file, stream));
    if (begin(stream, TBRW_STREAM_INFO_SECTION)) {
        TBRW_STREAM_INFO info;
        CHECK(TBRW_get_stream_info(file, stream, sizeof(info), &info, NULL));
        printf("section STREAM_INFO of stream %u\n", stream);
        NUMBER(info, sampling_duration), NUMBER(info, stream_type), NUMBER(info, sampling_interval);
        TEXT(info, command_line), TEXT(info, cpu_mask), TEXT(info, comment);
        CHECK(TBRW_done_stream_section(file, stream, TBRW_STREAM_INFO_SECTION));
    }
    if (begin(stream, TBRW_EVENT_DESCRIPTION_SECTION)) {
        printf("section EVENT_DESCRIPTION of stream %u\n", stream);
        print_events(stream);
        CHECK(TBRW_done_stream_section(file, stream, TBRW_EVENT_DESCRIPTION_SECTION));
    }
    Data state = {0, false};
    if (begin(stream, TBRW_DATA_DESCRIPTION_SECTION)) {
        std::vector<TBRW_SAMPREC_DESC_ENTRY> entries;
        CHECK(TBRW_enumerate_data_descriptor_entries(file, stream, append<TBRW_SAMPREC_DESC_ENTRY>, &entries));
        printf("section DATA_DESCRIPTION of stream %u\n", stream);
        for (size_t i = 0; i < entries.size(); i++) {
            printf("  TBRW_SAMPREC_DESC_ENTRY %zu\n", i);
            NUMBER(entries[i], desc_type), NUMBER(entries[i], desc_subtype), NUMBER(entries[i], desc_offset);
            NUMBER(entries[i], desc_data_size);
            TEXT(entries[i], desc_name);
            state.legacy |= entries[i].desc_type == ST_LEGACY_SAMPLE_RECORD && entries[i].desc_offset == 0;
        }
        CHECK(TBRW_done_stream_section(file, stream, TBRW_DATA_DESCRIPTION_SECTION));
    }
    if (begin(stream, TBRW_USER_DEFINED_STREAM_SECTION)) {
        TBRW_U32 size = 0;
        TBRW_get_user_defined_stream(file, stream, 0, NULL, &size);
        std::vector<unsigned char> bytes(size);
        CHECK(TBRW_get_user_defined_stream(file, stream, size, bytes.data(), NULL));
        printf("section USER_DEFINED_STREAM of stream %u\n", stream);
        print_bytes(bytes);
        CHECK(TBRW_done_stream_section(file, stream, TBRW_USER_DEFINED_STREAM_SECTION));
    }
    if (begin(stream, TBRW_DATA_SECTION)) {
        printf("section DATA of stream %u\n", stream);
        CHECK(TBRW_enumerate_data(file, stream, print_records, &state, 0));
        CHECK(TBRW_done_stream_section(file, stream, TBRW_DATA_SECTION));
    }
    CHECK(TBRW_done_stream(file, stream));
}

int main(int argc, char *argv[])
{
    static const struct {
        const char *name;
        void (*print)();
    } sections[] = {
        {"HARDWARE", print_hardware},
        {"SOFTWARE", print_software},
        {"PROCESS_THREAD", print_processes},
        {"MODULE", print_modules},
        {"USER_DEFINED_GLOBAL", print_user_defined_global},
        {"VERSION_INFO", print_version},
    };
    if (argc != 2) {
        fprintf(stderr, "usage: print_tb5 TB5FILE\n");
        return 2;
    }
    open_file(argv[1], TBRW_FILE_READ);
    for (int i = 0; i < 6; i++) {
        TBRW_SECTION_IDENTIFIER section = (TBRW_SECTION_IDENTIFIER)i;
        if (!begin(section)) continue;
        printf("section %s\n", sections[i].name);
        sections[i].print();
        CHECK(TBRW_done_section(file, section));
    }
    TBRW_U32 streams = 0;
    CHECK(TBRW_get_number_data_streams(file, &streams));
    printf("data streams: %u\n", streams);
    for (TBRW_U32 stream = 0; stream < streams; stream++) print_stream(stream);
    CHECK(TBRW_close(file));
    return 0;
}
