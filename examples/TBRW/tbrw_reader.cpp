/* Reads a TB5 file and writes what tbrw_writer makes one of again (2.2):

       tbrw_reader UNBOUND_TB5_FILE OUTPUT_FILE

   OUTPUT_FILE gets all sections, and UNBOUND_TB5_FILE.dat in the current folder the records of stream 0 (of stream 1:
   .1.dat). The format is that of these two example programs; Python's tbrw_reader has another one. */

#include "example.h"

static FILE *out;

static void put(const void *data, size_t size)
{
    if (size && fwrite(data, 1, size, out) != size) {
        perror("tbrw_reader: write");
        exit(1);
    }
}

static void put_number(TBRW_U32 number) { put(&number, sizeof(number)); }

static void put_text(bool there, const std::string &text)
{
    put_number(there ? (TBRW_U32)text.size() : 0xFFFFFFFF);
    if (there) put(text.data(), text.size());
}

/* A structure, and then its strings: ids mean nothing in another file. */
template <class T> void put_record(T record)
{
    put(&record, sizeof(record));
    for (TBRW_STRING_OR_ID *id : strings(record)) {
        std::string text;
        bool there = text_of(*id, text);
        put_text(there, text);
    }
}

template <class T> void put_records(const std::vector<T> &records)
{
    put_number((TBRW_U32)records.size());
    for (const T &record : records) put_record(record);
}

/* The system with its nodes, processors and cpuids is one block with pointers into itself: its address goes with it. */
static void put_system()
{
    TBRW_U32 size = 0;
    TBRW_get_system(file, 0, NULL, &size);
    std::vector<char> block(size);
    CHECK(TBRW_get_system(file, size, (TBRW_SYSTEM *)block.data(), NULL));
    TBRW_U64 base = (TBRW_U64)(size_t)block.data();
    put_number(size);
    put(&base, sizeof(base));
    put(block.data(), size);
}

static void put_section(TBRW_SECTION_IDENTIFIER section)
{
    if (section == TBRW_HARDWARE_SECTION) {
        put_system();
    } else if (section == TBRW_SOFTWARE_SECTION) {
        Software software = get_software();
        put_record(software.host), put_record(software.os), put_record(software.application);
    } else if (section == TBRW_PROCESS_THREAD_SECTION) {
        std::vector<TBRW_PID> processes;
        std::vector<TBRW_TID> threads;
        CHECK(TBRW_enumerate_processes(file, append<TBRW_PID>, &processes, 0));
        CHECK(TBRW_enumerate_threads(file, append<TBRW_TID>, &threads, 0));
        put_records(processes), put_records(threads);
    } else if (section == TBRW_MODULE_SECTION) {
        std::vector<TBRW_MODULE> modules;
        CHECK(TBRW_enumerate_modules(file, append<TBRW_MODULE>, &modules, 0));
        put_records(modules);
    } else if (section == TBRW_VERSION_INFO_SECTION) {
        TBRW_VERSION_INFO version;
        CHECK(TBRW_get_version_info(file, sizeof(version), &version, NULL));
        put_record(version);
    } else {
        TBRW_U32 size = 0;
        TBRW_get_user_defined_global(file, 0, NULL, &size);
        std::vector<char> bytes(size);
        CHECK(TBRW_get_user_defined_global(file, size, bytes.data(), NULL));
        put_number(size), put(bytes.data(), size);
    }
}

static TBRW_U32 write_records(void *data, TBRW_U32 size, TBRW_U32, void *user)
{ return fwrite(data, 1, size, (FILE *)user) == size ? TRUE : TBRW_SAM_ERROR; }

static void put_stream_section(TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section, const std::string &data_name)
{
    if (section == TBRW_EVENT_DESCRIPTION_SECTION) {
        std::vector<Event> events;
        CHECK(TBRW_enumerate_events(file, stream, append_event, &events, 0));
        put_number((TBRW_U32)events.size());
        for (Event &one : events) {
            put_record(one.event);
            put(one.details.data(), one.details.size() * sizeof(TBRW_EVENT_DETAIL));
        }
    } else if (section == TBRW_DATA_DESCRIPTION_SECTION) {
        std::vector<TBRW_SAMPREC_DESC_ENTRY> entries;
        CHECK(TBRW_enumerate_data_descriptor_entries(file, stream, append<TBRW_SAMPREC_DESC_ENTRY>, &entries));
        put_records(entries);
    } else if (section == TBRW_STREAM_INFO_SECTION) {
        TBRW_STREAM_INFO info;
        CHECK(TBRW_get_stream_info(file, stream, sizeof(info), &info, NULL));
        put_record(info);
    } else if (section == TBRW_USER_DEFINED_STREAM_SECTION) {
        TBRW_U32 size = 0;
        TBRW_get_user_defined_stream(file, stream, 0, NULL, &size);
        std::vector<char> bytes(size);
        CHECK(TBRW_get_user_defined_stream(file, stream, size, bytes.data(), NULL));
        put_number(size), put(bytes.data(), size);
    } else {
        FILE *data = fopen(data_name.c_str(), "wb");
        if (!data) {
            perror(data_name.c_str());
            exit(1);
        }
        CHECK(TBRW_enumerate_data(file, stream, write_records, data, 0));
        if (fclose(data)) {
            perror(data_name.c_str());
            exit(1);
        }
        put_text(true, data_name);
    }
}

int main(int argc, char *argv[])
{
    if (argc != 3) {
        fprintf(stderr, "usage: tbrw_reader UNBOUND_TB5_FILE OUTPUT_FILE\n");
        return 2;
    }
    open_file(argv[1], TBRW_FILE_READ);
    if (!(out = fopen(argv[2], "wb"))) {
        perror(argv[2]);
        return 1;
    }
    for (int i = 0; i < 6; i++) {
        TBRW_SECTION_IDENTIFIER section = (TBRW_SECTION_IDENTIFIER)i;
        bool there = begin(section);
        put_number(there);
        if (there) {
            put_section(section);
            CHECK(TBRW_done_section(file, section));
        }
    }
    TBRW_U32 streams = 0;
    CHECK(TBRW_get_number_data_streams(file, &streams));
    put_number(streams);
    const char *slash = strrchr(argv[1], '/');
    for (TBRW_U32 stream = 0; stream < streams; stream++) {
        TBRW_U32 is_bound = 0;
        CHECK(TBRW_is_bound(file, stream, &is_bound));
        if (is_bound) {
            fprintf(stderr, "tbrw_reader: stream %u is bound; unbind it first\n", stream);
            return 1;
        }
        std::string name = slash ? slash + 1 : argv[1];
        name += stream ? "." + std::to_string(stream) + ".dat" : ".dat";
        CHECK(TBRW_reading_stream(file, stream));
        for (int i = 0; i < 5; i++) {
            TBRW_STREAM_SECTION_IDENTIFIER section = (TBRW_STREAM_SECTION_IDENTIFIER)i;
            bool there = begin(stream, section);
            put_number(there);
            if (there) {
                put_stream_section(stream, section, name);
                CHECK(TBRW_done_stream_section(file, stream, section));
            }
        }
        CHECK(TBRW_done_stream(file, stream));
    }
    CHECK(TBRW_close(file));
    if (fclose(out)) {
        perror(argv[2]);
        return 1;
    }
    return 0;
}
