/* The TBRW API from C: what chapter 5 says of reading, what binding gives, and what is refused.

       tbrw_calls FILE NEW

   FILE is a TB5 file by the guide's recipe; NEW is made. Ends with 1 and the line of the first surprise. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samprec_shared.h"
#include "tbrw.h"

#define IS(value, expected) \
    do { \
        unsigned long long got = (unsigned long long)(value), want = (unsigned long long)(expected); \
        if (got != want) { \
            printf("line %d: %s is %llu, not %llu\n", __LINE__, #value, got, want); \
            exit(1); \
        } \
    } while (0)

static TBRW_PTR ptr;

static TBRW_U32 stop_with(TBRW_MODULE *module, TBRW_U32 module_data_size, TBRW_U32 num_entries, void *user_ptr)
{
    IS(module_data_size, num_entries * sizeof(*module));
    return *(TBRW_U32 *)user_ptr;
}

struct seen { TBRW_U64 entries, modules[4]; };

static TBRW_U32 see(const void *data, TBRW_U32 sizeof_data_buffer, TBRW_U64 num_entries,
                    const DATA_BIND_STRUCT *bind_table, TBRW_U32 sizeof_bind_buffer, void *user_ptr)
{
    struct seen *seen = user_ptr;
    IS(sizeof_data_buffer, num_entries * 40);
    IS(sizeof_bind_buffer, num_entries * sizeof(DATA_BIND_STRUCT));
    for (TBRW_U64 i = 0; i < num_entries; i++) {
        IS(((const TBRW_SampleRecordPC *)((const char *)data + i * 40))->pidRecIndex, 0x1000);
        seen->modules[seen->entries++ % 4] = bind_table[i].module_index;
    }
    return TRUE;
}

static TBRW_U32 see_modules(const void *data, TBRW_U32 size, TBRW_U64 count, const MODULE_BIND_STRUCT *bind_table,
                            TBRW_U32 bind_size, void *user_ptr)
{
    IS(((const TBRW_MODULE *)data)->module_associated_pid, 0x1000);
    IS(size, count * sizeof(TBRW_MODULE));
    IS(bind_size, count * sizeof(MODULE_BIND_STRUCT));
    *(TBRW_U64 *)user_ptr = bind_table[0].pid_index;
    return FALSE;
}

static TBRW_U32 see_threads(const void *data, TBRW_U32 size, TBRW_U64 count, const TID_BIND_STRUCT *bind_table,
                            TBRW_U32 bind_size, void *user_ptr)
{
    IS(((const TBRW_TID *)data)->tid_associated_pid, 0x1000);
    IS(size, count * sizeof(TBRW_TID));
    IS(bind_size, count * sizeof(TID_BIND_STRUCT));
    *(TBRW_U64 *)user_ptr = bind_table[0].pid_index;
    return TRUE;
}

static void read_as_chapter_5_says(const TBRW_CHAR *name)
{
    TBRW_U32 size = 0, used = 0, answer = 0, is_bound = 9, major, minor;
    TBRW_U64 row = 9;
    struct seen seen = {0, {0}};
    const TBRW_MODULE *module;
    const TBRW_PID *process;
    const TBRW_TID *thread;
    TBRW_CHAR text[64];

    IS(TBRW_get_version(&major, &minor), VT_SUCCESS);
    IS(major * 10 + minor, 23);
    IS(TBRW_open(&ptr, name, TBRW_FILE_READ | TBRW_FILE_WRITE), VT_SUCCESS);
    IS(TBRW_verify(ptr), VT_SUCCESS);

    /* 5.8: ask for the size, then get */
    IS(TBRW_reading_section(ptr, TBRW_HARDWARE_SECTION), VT_SUCCESS);
    IS(TBRW_get_system(ptr, 0, NULL, &size), TBRW_BUFFER_TOO_SMALL);
    TBRW_SYSTEM *system = malloc(size);
    IS(TBRW_get_system(ptr, size, system, NULL), VT_SUCCESS);
    IS(system->node_array[0].cpu_array[0].cpu_arch_array[0].cpuid_ia32_array[0].cpuid_ebx, 0x756e6547);
    free(system);
    IS(TBRW_done_section(ptr, TBRW_HARDWARE_SECTION), VT_SUCCESS);

    /* 5.9: a callback goes on, stops, or fails with an error of its own */
    IS(TBRW_reading_section(ptr, TBRW_MODULE_SECTION), VT_SUCCESS);
    for (answer = 0; answer < 2; answer++) IS(TBRW_enumerate_modules(ptr, stop_with, &answer, 0), VT_SUCCESS);
    answer = 0xfffffff0;
    IS(TBRW_enumerate_modules(ptr, &stop_with, &answer, 0), 0xfffffff0);
    IS(TBRW_enumerate_modules(ptr, NULL, NULL, 0), TBRW_UNEXPECTED_NULL_PTR);
    IS(TBRW_enumerate_modules(ptr, stop_with, &answer, 2), TBRW_INVALID_READ_START);
    IS(TBRW_get_one_module(ptr, 0, &module), VT_SUCCESS);
    TBRW_STRING_OR_ID id = module->module_name;
    IS(TBRW_convert_uniqueid_to_string(ptr, 0, &id, NULL, &size), TBRW_BUFFER_TOO_SMALL);
    IS(size, 11 * sizeof(TBRW_CHAR));
    IS(TBRW_convert_uniqueid_to_string(ptr, sizeof(text), &id, text, &used), VT_SUCCESS);
    IS(wcscmp(text, L"sample.exe"), 0);
    IS(used, size);
    id.soi_uniqueid = 0;
    IS(TBRW_convert_uniqueid_to_string(ptr, sizeof(text), &id, text, NULL), TBRW_INVALID_STRING);
    IS(TBRW_done_section(ptr, TBRW_MODULE_SECTION), VT_SUCCESS);

    /* 5.10 */
    IS(TBRW_is_bound(ptr, 0, &is_bound), VT_SUCCESS);
    IS(is_bound, 0);
    IS(TBRW_dobind(ptr, 0), VT_SUCCESS);
    IS(TBRW_is_bound(ptr, 0, &is_bound), VT_SUCCESS);
    IS(is_bound, 1);
    IS(TBRW_get_size_of_data_bind_entry(ptr, 0, &size), VT_SUCCESS);
    IS(size, sizeof(DATA_BIND_STRUCT));
    IS(TBRW_reading_stream(ptr, 0), VT_SUCCESS);
    IS(TBRW_reading_stream_section(ptr, 0, TBRW_DATA_SECTION), VT_SUCCESS);
    IS(TBRW_bind_enumerate_data(ptr, 0, see, &seen, 1), VT_SUCCESS);
    IS(seen.entries, 999);
    IS(seen.modules[3], 0);
    IS(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION), VT_SUCCESS);
    IS(TBRW_done_stream(ptr, 0), VT_SUCCESS);
    IS(TBRW_reading_section(ptr, TBRW_MODULE_SECTION), VT_SUCCESS);
    IS(TBRW_reading_section(ptr, TBRW_PROCESS_THREAD_SECTION), VT_SUCCESS);
    IS(TBRW_bind_enumerate_modules(ptr, see_modules, &row, 0), VT_SUCCESS);
    IS(TBRW_get_one_pid(ptr, row, &process), VT_SUCCESS);
    IS(process->pid_id, 0x1000);
    IS(TBRW_bind_enumerate_threads(ptr, see_threads, &row, 0), VT_SUCCESS);
    IS(row, 0);
    IS(TBRW_get_one_tid(ptr, 0, &thread), VT_SUCCESS);
    IS(thread->tid_id, 0);
    IS(process->pid_id, 0x1000); /* get_one_tid leaves it alone */
    IS(TBRW_get_one_tid(ptr, 7, &thread), TBRW_ENTRY_NOT_FOUND);
    IS(TBRW_done_section(ptr, TBRW_MODULE_SECTION), VT_SUCCESS);
    IS(TBRW_done_section(ptr, TBRW_PROCESS_THREAD_SECTION), VT_SUCCESS);
    IS(TBRW_unbind(ptr, 0), VT_SUCCESS);
    IS(TBRW_close(ptr), VT_SUCCESS);
}

static TBRW_SAMPREC_DESC_ENTRY described(TBRW_U16 type, TBRW_U32 size)
{
    TBRW_SAMPREC_DESC_ENTRY entry;
    memset(&entry, 0, sizeof(entry));
    entry.desc_size = sizeof(entry);
    entry.desc_type = type;
    entry.desc_data_size = size;
    return entry;
}

static void begin_stream(TBRW_U32 stream, TBRW_U32 record)
{
    TBRW_STREAM_INFO info;
    memset(&info, 0, sizeof(info));
    info.stream_info_size = sizeof(info);
    info.stream_type = TBRW_CUSTOM_STREAM;
    TBRW_SAMPREC_DESC_ENTRY entry = described(ST_START_USER_DEFINED, record);
    IS(TBRW_writing_stream(ptr, stream), VT_SUCCESS);
    IS(TBRW_writing_stream_section(ptr, stream, TBRW_STREAM_INFO_SECTION), VT_SUCCESS);
    IS(TBRW_set_stream_info(ptr, stream, &info), VT_SUCCESS);
    IS(TBRW_done_stream_section(ptr, stream, TBRW_STREAM_INFO_SECTION), VT_SUCCESS);
    IS(TBRW_writing_stream_section(ptr, stream, TBRW_DATA_DESCRIPTION_SECTION), VT_SUCCESS);
    IS(TBRW_add_data_descriptor_entry(ptr, stream, &entry), VT_SUCCESS);
    IS(TBRW_done_stream_section(ptr, stream, TBRW_DATA_DESCRIPTION_SECTION), VT_SUCCESS);
    IS(TBRW_writing_stream_section(ptr, stream, TBRW_DATA_SECTION), VT_SUCCESS);
}

static TBRW_U32 count_up(void *data, TBRW_U32 data_size, TBRW_U32 num_entries, void *user_ptr)
{
    TBRW_U64 *next = user_ptr;
    for (TBRW_U32 i = 0; i < num_entries; i++, (*next)++)
        IS(*(TBRW_U64 *)((char *)data + (TBRW_U64)i * (data_size / num_entries)), *next);
    return TRUE;
}

enum { RECORDS = 30000, STREAMS = 10 };

static void *add_records(void *argument)
{
    TBRW_U32 stream = (TBRW_U32)(size_t)argument;
    for (TBRW_U64 i = 0; i < RECORDS; i++) {
        TBRW_U64 record[3] = {i, stream, 0}; /* libtbrw's room is no multiple of 24 bytes */
        TBRW_U32 part = i % 4 ? 5 : sizeof(record); /* whole, or in two parts */
        IS(TBRW_add_data(ptr, stream, part, record), VT_SUCCESS);
        if (part < sizeof(record))
            IS(TBRW_add_data(ptr, stream, sizeof(record) - part, (char *)record + part), VT_SUCCESS);
    }
    return NULL;
}

/* Records come one at a time, to more streams than libtbrw keeps records back for, from a thread for each. */
static void add_to_several_streams(const TBRW_CHAR *name)
{
    pthread_t threads[STREAMS];
    IS(TBRW_open(&ptr, name, TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS), VT_SUCCESS);
    for (TBRW_U32 i = 0; i < STREAMS; i++) begin_stream(i, 24);
    for (size_t i = 0; i < STREAMS; i++) IS(pthread_create(&threads[i], NULL, add_records, (void *)i), 0);
    for (size_t i = 0; i < STREAMS; i++) IS(pthread_join(threads[i], NULL), 0);
    for (TBRW_U32 i = 0; i < STREAMS; i++) {
        TBRW_U64 record[4] = {RECORDS, i, 0, 0}, next = 0;
        IS(TBRW_add_data(ptr, i, 8, record), VT_SUCCESS); /* parts of a record, after whole ones */
        IS(TBRW_add_data(ptr, i, 32, record), TBRW_UNSUPPORTED_DATA_SIZE);
        IS(TBRW_add_data(ptr, i, 16, record + 1), VT_SUCCESS);
        IS(TBRW_add_data(ptr, i, 0, record), TBRW_UNSUPPORTED_DATA_SIZE);
        IS(TBRW_add_data(ptr, i, 24, NULL), TBRW_BUFFER_NULL);
        IS(TBRW_add_data(ptr, i, 32, record), TBRW_UNSUPPORTED_DATA_SIZE);
        record[0]++;
        IS(TBRW_add_data(ptr, i, 24, record), VT_SUCCESS);
        IS(TBRW_done_stream_section(ptr, i, TBRW_DATA_SECTION), VT_SUCCESS);
        IS(TBRW_add_data(ptr, i, 24, record), TBRW_SECTION_NOT_WRITEABLE);
        IS(TBRW_done_stream(ptr, i), VT_SUCCESS);
        IS(TBRW_reading_stream(ptr, i), VT_SUCCESS);
        IS(TBRW_reading_stream_section(ptr, i, TBRW_DATA_SECTION), VT_SUCCESS);
        IS(TBRW_enumerate_data(ptr, i, count_up, &next, 0), VT_SUCCESS);
        IS(next, RECORDS + 2);
        IS(TBRW_done_stream_section(ptr, i, TBRW_DATA_SECTION), VT_SUCCESS);
        IS(TBRW_done_stream(ptr, i), VT_SUCCESS);
    }
    TBRW_U64 closed[3] = {0};
    begin_stream(STREAMS, 24);
    add_records((void *)STREAMS);
    IS(TBRW_abort_cleanup_and_close(ptr), VT_SUCCESS);
    IS(TBRW_add_data(ptr, STREAMS, 24, closed), TBRW_BAD_PARAMETER);
    IS(TBRW_open(&ptr, name, TBRW_FILE_READ), VT_SUCCESS);
    TBRW_U32 streams;
    IS(TBRW_get_number_data_streams(ptr, &streams), VT_SUCCESS);
    IS(streams, STREAMS);
    IS(TBRW_close(ptr), VT_SUCCESS);
}

static void refuse(const TBRW_CHAR *name)
{
    TBRW_PTR closed = ptr;
    const TBRW_CHAR *text;
    TBRW_HOST host;
    IS(TBRW_close(closed), TBRW_BAD_PARAMETER);
    IS(TBRW_close((TBRW_PTR)&host), TBRW_BAD_PARAMETER);
    IS(TBRW_close(NULL), TBRW_BAD_PARAMETER);
    IS(TBRW_open(NULL, name, TBRW_FILE_READ), TBRW_UNEXPECTED_NULL_PTR);
    IS(TBRW_open(&ptr, NULL, TBRW_FILE_READ), TBRW_BAD_PARAMETER);
    IS(TBRW_open(&ptr, L"/no/such/file.tb5", TBRW_FILE_READ), TBRW_FILE_OPEN_FAILED);
    IS(ptr, 0);
    IS(TBRW_error_string(12345, &text), TBRW_INVALID_ERROR_CODE);
    IS(TBRW_error_string(TBRW_FILE_OPEN_FAILED, &text), VT_SUCCESS);
    IS(wcscmp(text, L"the file could not be opened"), 0);
    IS(TBRW_open(&ptr, name, TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS), VT_SUCCESS);
    IS(TBRW_writing_section(ptr, TBRW_SOFTWARE_SECTION), VT_SUCCESS);
    memset(&host, 0xff, sizeof(host)); /* no field is looked at if the size is wrong */
    IS(TBRW_set_host(ptr, &host), TBRW_INCOMPATIBLE_VERSION);
    IS(TBRW_set_host(ptr, NULL), TBRW_UNEXPECTED_NULL_PTR);
    IS(TBRW_writing_section(ptr, (TBRW_SECTION_IDENTIFIER)6), TBRW_UNKNOWN_SECTION_NUMBER);
    IS(TBRW_abort_cleanup_and_close(ptr), VT_SUCCESS);
}

int main(int argc, char *argv[])
{
    TBRW_CHAR name[2][1024];
    for (int i = 0; i < 2 && argc == 3; i++) {
        TBRW_U32 room = 1024;
        IS(TBRW_convert_utf8_to_wcs(argv[i + 1], name[i], &room), VT_SUCCESS);
    }
    read_as_chapter_5_says(name[0]);
    add_to_several_streams(name[1]);
    refuse(name[1]);
    return 0;
}
