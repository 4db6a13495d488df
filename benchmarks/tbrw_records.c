/* Writes records by the C API, half of them one at a time and half in a single call, and reads them back by
 * enumeration. Prints records a second of processor time: tbrw_records TB5FILE RECORDS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "samprec_shared.h"
#include "tbrw.h"

static TBRW_PTR ptr;

static void check(TBRW_U32 status, int line)
{
    if (status == VT_SUCCESS) return;
    fprintf(stderr, "line %d: status %u\n", line, status);
    exit(1);
}
#define CHECK(call) check(call, __LINE__)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static TBRW_U32 add_up(void *data, TBRW_U32 data_size, TBRW_U32 num_entries, void *user_ptr)
{
    TBRW_U32 stride = data_size / num_entries;
    for (TBRW_U32 i = 0; i < num_entries; i++)
        *(TBRW_U64 *)user_ptr += ((TBRW_SampleRecordPC *)((char *)data + i * stride))->eip;
    return TRUE;
}

static void describe(TBRW_U32 stream)
{
    TBRW_STREAM_INFO info;
    TBRW_SAMPREC_DESC_ENTRY entry;
    memset(&info, 0, sizeof info), memset(&entry, 0, sizeof entry);
    info.stream_info_size = sizeof info, info.stream_type = TBRW_CUSTOM_STREAM;
    entry.desc_size = sizeof entry, entry.desc_type = ST_START_USER_DEFINED, entry.desc_data_size = 40;
    CHECK(TBRW_writing_stream(ptr, stream));
    CHECK(TBRW_writing_stream_section(ptr, stream, TBRW_STREAM_INFO_SECTION));
    CHECK(TBRW_set_stream_info(ptr, stream, &info));
    CHECK(TBRW_done_stream_section(ptr, stream, TBRW_STREAM_INFO_SECTION));
    CHECK(TBRW_writing_stream_section(ptr, stream, TBRW_DATA_DESCRIPTION_SECTION));
    CHECK(TBRW_add_data_descriptor_entry(ptr, stream, &entry));
    CHECK(TBRW_done_stream_section(ptr, stream, TBRW_DATA_DESCRIPTION_SECTION));
    CHECK(TBRW_writing_stream_section(ptr, stream, TBRW_DATA_SECTION));
}

int main(int argc, char *argv[])
{
    TBRW_CHAR name[1024];
    TBRW_U32 room = 1024, record[10] = {0};
    if (argc != 3) return 2;
    TBRW_U64 records = strtoull(argv[2], NULL, 0), sum = 0;
    CHECK(TBRW_convert_utf8_to_wcs(argv[1], name, &room));
    CHECK(TBRW_open(&ptr, name, TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS));
    for (TBRW_U32 stream = 0; stream < 2; stream++) {
        TBRW_U64 some = stream ? records / 2 : records;
        describe(stream);
        double start = now();
        for (TBRW_U64 i = 0; i < some; i++) {
            record[0] = (TBRW_U32)i;
            CHECK(TBRW_add_data(ptr, stream, stream ? 20 : 40, record));
            if (stream) CHECK(TBRW_add_data(ptr, stream, 20, record + 5));
        }
        CHECK(TBRW_done_stream_section(ptr, stream, TBRW_DATA_SECTION));
        printf("%s %.3f\n", stream ? "halves" : "add_data", some / (now() - start) / 1e6);
        CHECK(TBRW_done_stream(ptr, stream));
    }
    CHECK(TBRW_reading_stream(ptr, 0));
    CHECK(TBRW_reading_stream_section(ptr, 0, TBRW_DATA_SECTION));
    double start = now();
    CHECK(TBRW_enumerate_data(ptr, 0, add_up, &sum, 0));
    printf("enumerate_data %.3f\n", records / (now() - start) / 1e6);
    CHECK(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION));
    CHECK(TBRW_done_stream(ptr, 0));
    CHECK(TBRW_close(ptr));
    return sum != records * (records - 1) / 2;
}
