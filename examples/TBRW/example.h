/* Shared by the example programs: errors, strings, lists of entries, and which fields of a structure are strings. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "samprec_shared.h"
#include "tbrw.h"

static TBRW_PTR file = NULL;

/* End the program with the text of an error. */
static inline void check(TBRW_U32 status, const char *call)
{
    if (status == VT_SUCCESS) return;
    const TBRW_CHAR *text = L"no text";
    TBRW_error_string(status, &text);
    fprintf(stderr, "%s: %ls (%u)\n", call, text, status);
    if (file) TBRW_abort_cleanup_and_close(file);
    exit(1);
}
#define CHECK(call) check(call, #call)

static inline std::wstring wide(const std::string &text)
{
    TBRW_U32 size = 0;
    TBRW_convert_utf8_to_wcs(text.c_str(), NULL, &size);
    std::vector<wchar_t> buffer(size + 1);
    size = size + 1;
    CHECK(TBRW_convert_utf8_to_wcs(text.c_str(), buffer.data(), &size));
    return buffer.data();
}

static inline void open_file(const char *name, TBRW_U32 mode) { CHECK(TBRW_open(&file, wide(name).c_str(), mode)); }

/* The string of a unique id, as UTF-8. Returns false for the NULL string. */
static inline bool text_of(TBRW_STRING_OR_ID id, std::string &text)
{
    TBRW_U32 size = 0;
    text.clear();
    if (!id.soi_uniqueid) return false;
    TBRW_convert_uniqueid_to_string(file, 0, &id, NULL, &size);
    std::vector<wchar_t> buffer(size / sizeof(wchar_t) + 1);
    CHECK(TBRW_convert_uniqueid_to_string(file, size, &id, buffer.data(), NULL));
    TBRW_U32 bytes = 0;
    TBRW_convert_wcs_to_utf8(buffer.data(), NULL, &bytes);
    std::vector<char> utf8(bytes + 1);
    CHECK(TBRW_convert_wcs_to_utf8(buffer.data(), utf8.data(), &bytes));
    text = utf8.data();
    return true;
}

/* A callback that appends to a vector. Entries of one call have equal sizes, but an event is followed by its details. */
template <class T> TBRW_U32 append(T *entries, TBRW_U32 size, TBRW_U32 count, void *user)
{
    std::vector<T> *all = (std::vector<T> *)user;
    for (TBRW_U32 i = 0; i < count; i++) all->push_back(*(T *)((char *)entries + (size_t)i * (size / count)));
    return TRUE;
}

struct Event {
    TBRW_EVENT event;
    std::vector<TBRW_EVENT_DETAIL> details;
};

static inline TBRW_U32 append_event(TBRW_EVENT *events, TBRW_U32 size, TBRW_U32 count, void *user)
{
    for (TBRW_U32 i = 0; i < count; i++) {
        TBRW_EVENT *event = (TBRW_EVENT *)((char *)events + (size_t)i * (size / count));
        Event found = {*event, {}};
        for (TBRW_U32 j = 0; j < event->event_num_details; j++) found.details.push_back(event->event_detail_array[j]);
        ((std::vector<Event> *)user)->push_back(found);
    }
    return TRUE;
}

/* Read a section if it exists. */
static inline bool begin(TBRW_SECTION_IDENTIFIER section)
{
    TBRW_U32 status = TBRW_reading_section(file, section);
    if (status != TBRW_SECTION_NOT_EXIST) check(status, "TBRW_reading_section");
    return status == VT_SUCCESS;
}

static inline bool begin(TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section)
{
    TBRW_U32 status = TBRW_reading_stream_section(file, stream, section);
    if (status != TBRW_SECTION_NOT_EXIST) check(status, "TBRW_reading_stream_section");
    return status == VT_SUCCESS;
}

struct Software {
    TBRW_HOST host;
    TBRW_OS os;
    TBRW_APPLICATION application;
};

static inline Software get_software()
{
    Software found;
    CHECK(TBRW_get_host(file, sizeof(found.host), &found.host, NULL));
    CHECK(TBRW_get_os(file, sizeof(found.os), &found.os, NULL));
    CHECK(TBRW_get_application(file, sizeof(found.application), &found.application, NULL));
    return found;
}

/* The string fields of each structure. */
typedef std::vector<TBRW_STRING_OR_ID *> Strings;
static inline Strings strings(TBRW_HOST &r) { return {&r.host_ip_address, &r.host_name}; }
static inline Strings strings(TBRW_OS &r) { return {&r.os_name, &r.os_name_extra}; }
static inline Strings strings(TBRW_APPLICATION &) { return {}; }
static inline Strings strings(TBRW_VERSION_INFO &) { return {}; }
static inline Strings strings(TBRW_PID &r) { return {&r.pid_path, &r.pid_name}; }
static inline Strings strings(TBRW_TID &r) { return {&r.tid_name}; }
static inline Strings strings(TBRW_MODULE &r) { return {&r.module_path, &r.module_name, &r.module_segment_name}; }
static inline Strings strings(TBRW_STREAM_INFO &r) { return {&r.command_line, &r.cpu_mask, &r.comment}; }
static inline Strings strings(TBRW_EVENT &r) { return {&r.event_name, &r.event_arch_name}; }
static inline Strings strings(TBRW_SAMPREC_DESC_ENTRY &r) { return {&r.desc_name}; }

#endif
