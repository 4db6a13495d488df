/* The program of 10.1 of the TBRW User Guide: it writes the information of stream 0.

       stream_info TB5FILE [described]

   As printed there, the stream has no data descriptor, and done_stream refuses such a stream (5.2). With "described" the
   stream has a descriptor. */

#include <stdio.h>
#include <string.h>
#include <wchar.h>

#include "samprec_shared.h"
#include "tbrw.h"

static TBRW_U32 describe(TBRW_PTR tbrw_ptr, int stream)
{
    TBRW_SAMPREC_DESC_ENTRY entry;
    memset(&entry, 0, sizeof(entry));
    entry.desc_size = sizeof(entry);
    entry.desc_type = ST_LEGACY_SAMPLE_RECORD;
    entry.desc_data_size = sizeof(TBRW_SampleRecordPC);
    TBRW_U32 ret_val = TBRW_writing_stream_section(tbrw_ptr, stream, TBRW_DATA_DESCRIPTION_SECTION);
    if (ret_val == VT_SUCCESS) ret_val = TBRW_add_data_descriptor_entry(tbrw_ptr, stream, &entry);
    if (ret_val == VT_SUCCESS) ret_val = TBRW_done_stream_section(tbrw_ptr, stream, TBRW_DATA_DESCRIPTION_SECTION);
    return ret_val;
}

static int failed(TBRW_PTR tbrw_ptr, TBRW_U32 ret_val, const char *call, int stream)
{
    const wchar_t *err_text = NULL; /* the guide leaves const out, and C++ would refuse that */
    TBRW_error_string(ret_val, &err_text);
    printf("%s number %d returned error \"%ls\"\n", call, stream, err_text);
    TBRW_abort_cleanup_and_close(tbrw_ptr);
    return 1;
}

int main(int argc, char *argv[])
{
    TBRW_U32 ret_val;
    void *tbrw_ptr;
    int stream = 0;
    wchar_t file_name[4096];
    TBRW_U32 room = 4096;
    TBRW_U32 access_mode = TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS;
    TBRW_STREAM_INFO stream_info;

    if (argc < 2 || TBRW_convert_utf8_to_wcs(argv[1], file_name, &room) != VT_SUCCESS) {
        fprintf(stderr, "usage: stream_info TB5FILE [described]\n");
        return 2;
    }
    memset(&stream_info, 0, sizeof(stream_info));
    stream_info.stream_info_size = sizeof(stream_info);
    stream_info.stream_type = TBRW_SAMPLING_STREAM;
    stream_info.comment.soi_ptr = (TBRW_CHAR *)_wcsdup(L"sample_comment");

    ret_val = TBRW_open(&tbrw_ptr, file_name, access_mode);
    if (ret_val != VT_SUCCESS) {
        printf("TBRW_open failed\n");
        return 1;
    }
    ret_val = TBRW_writing_stream(tbrw_ptr, stream);
    if (ret_val != VT_SUCCESS) return failed(tbrw_ptr, ret_val, "TBRW_writing_stream", stream);
    ret_val = TBRW_writing_stream_section(tbrw_ptr, stream, TBRW_STREAM_INFO_SECTION);
    if (ret_val != VT_SUCCESS) return failed(tbrw_ptr, ret_val, "TBRW_writing_stream_section", stream);
    ret_val = TBRW_set_stream_info(tbrw_ptr, stream, &stream_info);
    if (ret_val != VT_SUCCESS) return failed(tbrw_ptr, ret_val, "TBRW_set_stream_info", stream);
    ret_val = TBRW_done_stream_section(tbrw_ptr, stream, TBRW_STREAM_INFO_SECTION);
    if (ret_val != VT_SUCCESS) return failed(tbrw_ptr, ret_val, "TBRW_done_stream_section", stream);
    if (argc > 2 && strcmp(argv[2], "described") == 0) {
        ret_val = describe(tbrw_ptr, stream);
        if (ret_val != VT_SUCCESS) return failed(tbrw_ptr, ret_val, "the data descriptor", stream);
    }
    ret_val = TBRW_done_stream(tbrw_ptr, stream);
    if (ret_val != VT_SUCCESS) return failed(tbrw_ptr, ret_val, "TBRW_done_stream", stream);
    ret_val = TBRW_close(tbrw_ptr);
    if (ret_val != VT_SUCCESS) printf("TBRW_close failed\n");
    return 0;
}
