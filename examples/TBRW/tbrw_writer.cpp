/* Makes a TB5 file of what tbrw_reader wrote (2.3): tbrw_writer INPUT_FILE TB5FILE */

#include <memory>

#include "example.h"

static FILE *in;
static std::vector<std::unique_ptr<std::wstring>> texts; /* strings live until the file is closed */

static void cut_short()
{
    fprintf(stderr, "tbrw_writer: the input ends early, or is none of tbrw_reader\n");
    if (file) TBRW_abort_cleanup_and_close(file);
    exit(1);
}

static void get(void *data, size_t size)
{
    if (size && fread(data, 1, size, in) != size) cut_short();
}

static TBRW_U32 get_number()
{
    TBRW_U32 number;
    get(&number, sizeof(number));
    return number;
}

/* Bytes in portions, so that a size that is wrong is found before memory is taken for it. */
static std::vector<char> get_bytes(TBRW_U32 size)
{
    std::vector<char> bytes;
    while (bytes.size() < size) {
        size_t at = bytes.size(), portion = size - at < 65536 ? size - at : 65536;
        bytes.resize(at + portion);
        get(bytes.data() + at, portion);
    }
    return bytes;
}

static TBRW_CHAR *get_text()
{
    TBRW_U32 size = get_number();
    if (size == 0xFFFFFFFF) return NULL;
    std::vector<char> bytes = get_bytes(size);
    texts.emplace_back(new std::wstring(wide(std::string(bytes.begin(), bytes.end()))));
    return &(*texts.back())[0];
}

template <class T> T get_record()
{
    T record;
    get(&record, sizeof(record));
    for (TBRW_STRING_OR_ID *string : strings(record)) string->soi_ptr = get_text();
    return record;
}

/* A pointer into the block at its old address, as one into where the block is now. */
template <class T> void moved(T *&pointer, TBRW_U64 base, std::vector<char> &block, TBRW_U64 number)
{
    TBRW_U64 at = (TBRW_U64)(size_t)pointer - base;
    if (number && (at > block.size() || number * sizeof(T) > block.size() - at)) cut_short();
    pointer = number ? (T *)(block.data() + at) : NULL;
}

static void write_system()
{
    TBRW_U32 size = get_number();
    TBRW_U64 base;
    get(&base, sizeof(base));
    std::vector<char> block = get_bytes(size);
    TBRW_SYSTEM *system = (TBRW_SYSTEM *)block.data();
    if (size < sizeof(*system)) cut_short();
    moved(system->node_array, base, block, system->system_num_nodes);
    for (TBRW_U32 i = 0; i < system->system_num_nodes; i++) {
        TBRW_NODE &node = system->node_array[i];
        moved(node.cpu_array, base, block, node.node_num_available);
        for (TBRW_U32 j = 0; j < node.node_num_available; j++) {
            TBRW_CPU &cpu = node.cpu_array[j];
            moved(cpu.cpu_arch_array, base, block, cpu.num_cpu_arch_array);
            for (TBRW_U32 k = 0; k < cpu.num_cpu_arch_array; k++) {
                TBRW_CPU_ARCH &arch = cpu.cpu_arch_array[k];
                moved(arch.cpuid_ia32_array, base, block, arch.arch_num_cpuid); /* both kinds have 24 bytes */
            }
        }
    }
    CHECK(TBRW_set_system(file, system));
}

static void write_section(TBRW_SECTION_IDENTIFIER section)
{
    if (section == TBRW_HARDWARE_SECTION) {
        write_system();
    } else if (section == TBRW_SOFTWARE_SECTION) {
        TBRW_HOST host = get_record<TBRW_HOST>();
        TBRW_OS os = get_record<TBRW_OS>();
        TBRW_APPLICATION application = get_record<TBRW_APPLICATION>();
        CHECK(TBRW_set_host(file, &host));
        CHECK(TBRW_set_os(file, &os));
        CHECK(TBRW_set_application(file, &application));
    } else if (section == TBRW_PROCESS_THREAD_SECTION) {
        for (TBRW_U32 left = get_number(); left; left--) {
            TBRW_PID process = get_record<TBRW_PID>();
            CHECK(TBRW_add_process(file, &process));
        }
        for (TBRW_U32 left = get_number(); left; left--) {
            TBRW_TID thread = get_record<TBRW_TID>();
            CHECK(TBRW_add_thread(file, &thread));
        }
    } else if (section == TBRW_MODULE_SECTION) {
        for (TBRW_U32 left = get_number(); left; left--) {
            TBRW_MODULE module = get_record<TBRW_MODULE>();
            CHECK(TBRW_add_module(file, &module));
        }
    } else if (section == TBRW_VERSION_INFO_SECTION) {
        TBRW_VERSION_INFO version = get_record<TBRW_VERSION_INFO>();
        CHECK(TBRW_set_version_info(file, &version));
    } else {
        std::vector<char> bytes = get_bytes(get_number());
        bytes.reserve(1);
        CHECK(TBRW_set_user_defined_global(file, (TBRW_U32)bytes.size(), bytes.data()));
    }
}

static void write_stream_section(TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section)
{
    if (section == TBRW_EVENT_DESCRIPTION_SECTION) {
        for (TBRW_U32 left = get_number(); left; left--) {
            TBRW_EVENT event = get_record<TBRW_EVENT>();
            std::vector<TBRW_EVENT_DETAIL> details;
            for (TBRW_U32 i = 0; i < event.event_num_details; i++) {
                TBRW_EVENT_DETAIL detail;
                get(&detail, sizeof(detail));
                details.push_back(detail);
            }
            event.event_detail_array = details.data();
            CHECK(TBRW_add_event(file, stream, &event));
        }
    } else if (section == TBRW_DATA_DESCRIPTION_SECTION) {
        for (TBRW_U32 left = get_number(); left; left--) {
            TBRW_SAMPREC_DESC_ENTRY entry = get_record<TBRW_SAMPREC_DESC_ENTRY>();
            CHECK(TBRW_add_data_descriptor_entry(file, stream, &entry));
        }
    } else if (section == TBRW_STREAM_INFO_SECTION) {
        TBRW_STREAM_INFO info = get_record<TBRW_STREAM_INFO>();
        CHECK(TBRW_set_stream_info(file, stream, &info));
    } else if (section == TBRW_USER_DEFINED_STREAM_SECTION) {
        std::vector<char> bytes = get_bytes(get_number());
        bytes.reserve(1);
        CHECK(TBRW_set_user_defined_stream(file, stream, (TBRW_U32)bytes.size(), bytes.data()));
    } else {
        TBRW_CHAR *name = get_text();
        if (!name) cut_short();
        CHECK(TBRW_add_data_from_file(file, stream, name));
    }
}

int main(int argc, char *argv[])
{
    if (argc != 3) {
        fprintf(stderr, "usage: tbrw_writer INPUT_FILE TB5FILE\n");
        return 2;
    }
    if (!(in = fopen(argv[1], "rb"))) {
        perror(argv[1]);
        return 1;
    }
    open_file(argv[2], TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS);
    for (int i = 0; i < 6; i++) {
        TBRW_SECTION_IDENTIFIER section = (TBRW_SECTION_IDENTIFIER)i;
        if (!get_number()) continue;
        CHECK(TBRW_writing_section(file, section));
        write_section(section);
        CHECK(TBRW_done_section(file, section));
    }
    TBRW_U32 streams = get_number();
    for (TBRW_U32 stream = 0; stream < streams; stream++) {
        CHECK(TBRW_writing_stream(file, stream));
        for (int i = 0; i < 5; i++) {
            TBRW_STREAM_SECTION_IDENTIFIER section = (TBRW_STREAM_SECTION_IDENTIFIER)i;
            if (!get_number()) continue;
            CHECK(TBRW_writing_stream_section(file, stream, section));
            write_stream_section(stream, section);
            CHECK(TBRW_done_stream_section(file, stream, section));
        }
        CHECK(TBRW_done_stream(file, stream));
    }
    CHECK(TBRW_verify(file));
    CHECK(TBRW_close(file));
    return 0;
}
