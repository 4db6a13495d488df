/* The exports of libtbrw. Made by tools/generate.py. */

#define CALLS 61
#define CHECK 2664445165u

static void *calls[CALLS];
static int started(void);

_Static_assert(sizeof(TBRW_CPUID_IA32) == 24, "TBRW_CPUID_IA32");
_Static_assert(sizeof(TBRW_CPUID_IA64) == 24, "TBRW_CPUID_IA64");
_Static_assert(sizeof(TBRW_CPU_ARCH) == 16, "TBRW_CPU_ARCH");
_Static_assert(sizeof(TBRW_CPU) == 64, "TBRW_CPU");
_Static_assert(sizeof(TBRW_NODE) == 40, "TBRW_NODE");
_Static_assert(sizeof(TBRW_SYSTEM) == 16, "TBRW_SYSTEM");
_Static_assert(sizeof(TBRW_HOST) == 32, "TBRW_HOST");
_Static_assert(sizeof(TBRW_OS) == 40, "TBRW_OS");
_Static_assert(sizeof(TBRW_APPLICATION) == 32, "TBRW_APPLICATION");
_Static_assert(sizeof(TBRW_PID) == 48, "TBRW_PID");
_Static_assert(sizeof(TBRW_TID) == 40, "TBRW_TID");
_Static_assert(sizeof(TBRW_MODULE) == 104, "TBRW_MODULE");
_Static_assert(sizeof(TBRW_VERSION_INFO) == 16, "TBRW_VERSION_INFO");
_Static_assert(sizeof(TBRW_STREAM_INFO) == 56, "TBRW_STREAM_INFO");
_Static_assert(sizeof(TBRW_EVENT_DETAIL) == 32, "TBRW_EVENT_DETAIL");
_Static_assert(sizeof(TBRW_EVENT) == 48, "TBRW_EVENT");
_Static_assert(sizeof(TBRW_SAMPREC_DESC_ENTRY) == 40, "TBRW_SAMPREC_DESC_ENTRY");
_Static_assert(sizeof(TBRW_SampleRecordPC) == 32, "TBRW_SampleRecordPC");
_Static_assert(sizeof(TBRW_SampleRecordTSC) == 8, "TBRW_SampleRecordTSC");
_Static_assert(sizeof(DATA_BIND_STRUCT) == 24, "DATA_BIND_STRUCT");
_Static_assert(sizeof(MODULE_BIND_STRUCT) == 8, "MODULE_BIND_STRUCT");
_Static_assert(sizeof(TID_BIND_STRUCT) == 8, "TID_BIND_STRUCT");
_Static_assert(sizeof(TBRW_CodeDescriptor) == 8, "TBRW_CodeDescriptor");
_Static_assert(sizeof(VTUNE_ANALYZER_FILETIME) == 8, "VTUNE_ANALYZER_FILETIME");

EXPORT TBRW_U32 TBRW_get_version(TBRW_U32 *major, TBRW_U32 *minor)
{
    return started() ? ((TBRW_U32 (*)(TBRW_U32 *, TBRW_U32 *))calls[0])(major, minor) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_open(TBRW_PTR *ptr, const TBRW_CHAR *filename, TBRW_U32 access_mode)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR *, const TBRW_CHAR *, TBRW_U32))calls[1])(ptr, filename, access_mode) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_close(TBRW_PTR ptr)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR))calls[2])(ptr) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_error_string(TBRW_U32 error_code, const TBRW_CHAR **error_string)
{
    return started() ? ((TBRW_U32 (*)(TBRW_U32, const TBRW_CHAR **))calls[3])(error_code, error_string) : TBRW_INIT_FAILED;
}

static TBRW_U32 call_abort_cleanup_and_close(TBRW_PTR ptr)
{
    return ((TBRW_U32 (*)(TBRW_PTR))calls[4])(ptr);
}

EXPORT TBRW_U32 TBRW_verify(TBRW_PTR ptr)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR))calls[5])(ptr) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_convert_uniqueid_to_string(TBRW_PTR ptr, TBRW_U32 size_of_buffer, TBRW_STRING_OR_ID *string_id, TBRW_CHAR *buffer, TBRW_U32 *size_buffer_needed)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_STRING_OR_ID *, TBRW_CHAR *, TBRW_U32 *))calls[6])(ptr, size_of_buffer, string_id, buffer, size_buffer_needed) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_number_data_streams(TBRW_PTR ptr, TBRW_U32 *numStreams)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32 *))calls[7])(ptr, numStreams) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_convert_utf8_to_wcs(const char *utf8, wchar_t *wcs, TBRW_U32 *wcs_size)
{
    return started() ? ((TBRW_U32 (*)(const char *, wchar_t *, TBRW_U32 *))calls[8])(utf8, wcs, wcs_size) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_convert_wcs_to_utf8(const wchar_t *wcs, char *utf8, TBRW_U32 *utf8_size)
{
    return started() ? ((TBRW_U32 (*)(const wchar_t *, char *, TBRW_U32 *))calls[9])(wcs, utf8, utf8_size) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_reading_section(TBRW_PTR ptr, TBRW_SECTION_IDENTIFIER section)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_SECTION_IDENTIFIER))calls[10])(ptr, section) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_writing_section(TBRW_PTR ptr, TBRW_SECTION_IDENTIFIER section)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_SECTION_IDENTIFIER))calls[11])(ptr, section) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_done_section(TBRW_PTR ptr, TBRW_SECTION_IDENTIFIER section)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_SECTION_IDENTIFIER))calls[12])(ptr, section) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_reading_stream(TBRW_PTR ptr, TBRW_U32 stream)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32))calls[13])(ptr, stream) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_writing_stream(TBRW_PTR ptr, TBRW_U32 stream)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32))calls[14])(ptr, stream) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_done_stream(TBRW_PTR ptr, TBRW_U32 stream)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32))calls[15])(ptr, stream) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_reading_stream_section(TBRW_PTR ptr, TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_STREAM_SECTION_IDENTIFIER))calls[16])(ptr, stream, section) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_writing_stream_section(TBRW_PTR ptr, TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_STREAM_SECTION_IDENTIFIER))calls[17])(ptr, stream, section) : TBRW_INIT_FAILED;
}

static TBRW_U32 call_done_stream_section(TBRW_PTR ptr, TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section)
{
    return ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_STREAM_SECTION_IDENTIFIER))calls[18])(ptr, stream, section);
}

EXPORT TBRW_U32 TBRW_set_system(TBRW_PTR ptr, TBRW_SYSTEM *system)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_SYSTEM *))calls[19])(ptr, system) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_system(TBRW_PTR ptr, TBRW_U32 size_of_buffer, TBRW_SYSTEM *buf_ptr, TBRW_U32 *size_buffer_used)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_SYSTEM *, TBRW_U32 *))calls[20])(ptr, size_of_buffer, buf_ptr, size_buffer_used) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_set_host(TBRW_PTR ptr, TBRW_HOST *host)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_HOST *))calls[21])(ptr, host) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_host(TBRW_PTR ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, void *, TBRW_U32 *))calls[22])(ptr, size_of_buffer, buf_ptr, size_buffer_used) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_set_os(TBRW_PTR ptr, TBRW_OS *os)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_OS *))calls[23])(ptr, os) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_os(TBRW_PTR ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, void *, TBRW_U32 *))calls[24])(ptr, size_of_buffer, buf_ptr, size_buffer_used) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_set_application(TBRW_PTR ptr, TBRW_APPLICATION *application)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_APPLICATION *))calls[25])(ptr, application) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_application(TBRW_PTR ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, void *, TBRW_U32 *))calls[26])(ptr, size_of_buffer, buf_ptr, size_buffer_used) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_set_version_info(TBRW_PTR tbrw_ptr, TBRW_VERSION_INFO *version_info)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_VERSION_INFO *))calls[27])(tbrw_ptr, version_info) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_version_info(TBRW_PTR tbrw_ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, void *, TBRW_U32 *))calls[28])(tbrw_ptr, size_of_buffer, buf_ptr, size_buffer_used) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_set_stream_info(TBRW_PTR tbrw_ptr, TBRW_U32 stream, TBRW_STREAM_INFO *stream_info)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_STREAM_INFO *))calls[29])(tbrw_ptr, stream, stream_info) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_stream_info(TBRW_PTR tbrw_ptr, TBRW_U32 stream, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_U32, void *, TBRW_U32 *))calls[30])(tbrw_ptr, stream, size_of_buffer, buf_ptr, size_buffer_used) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_add_process(TBRW_PTR ptr, TBRW_PID *process)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_PID *))calls[31])(ptr, process) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_add_thread(TBRW_PTR ptr, TBRW_TID *thread)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_TID *))calls[32])(ptr, thread) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_add_module(TBRW_PTR ptr, TBRW_MODULE *module)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_MODULE *))calls[33])(ptr, module) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_add_event(TBRW_PTR ptr, TBRW_U32 stream, TBRW_EVENT *event_descriptor_entry)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_EVENT *))calls[34])(ptr, stream, event_descriptor_entry) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_add_data_descriptor_entry(TBRW_PTR ptr, TBRW_U32 stream, TBRW_SAMPREC_DESC_ENTRY *data_descriptor_entry)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_SAMPREC_DESC_ENTRY *))calls[35])(ptr, stream, data_descriptor_entry) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_enumerate_processes(TBRW_PTR ptr, TBRW_PID_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_PID_CALLBACK *, void *, TBRW_U64))calls[36])(ptr, callback_func, user_ptr, start_index) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_enumerate_threads(TBRW_PTR ptr, TBRW_TID_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_TID_CALLBACK *, void *, TBRW_U64))calls[37])(ptr, callback_func, user_ptr, start_index) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_enumerate_modules(TBRW_PTR ptr, TBRW_MODULE_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_MODULE_CALLBACK *, void *, TBRW_U64))calls[38])(ptr, callback_func, user_ptr, start_index) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_enumerate_events(TBRW_PTR ptr, TBRW_U32 stream, TBRW_EVENT_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_EVENT_CALLBACK *, void *, TBRW_U64))calls[39])(ptr, stream, callback_func, user_ptr, start_index) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_enumerate_data_descriptor_entries(TBRW_PTR ptr, TBRW_U32 stream, TBRW_DATA_DESC_CALLBACK *callback_func, void *user_ptr)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_DATA_DESC_CALLBACK *, void *))calls[40])(ptr, stream, callback_func, user_ptr) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_one_pid(TBRW_PTR ptr, TBRW_U64 pid_index, const TBRW_PID **p_pid)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U64, const TBRW_PID **))calls[41])(ptr, pid_index, p_pid) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_one_tid(TBRW_PTR ptr, TBRW_U64 tid_index, const TBRW_TID **p_tid)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U64, const TBRW_TID **))calls[42])(ptr, tid_index, p_tid) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_one_module(TBRW_PTR ptr, TBRW_U64 module_index, const TBRW_MODULE **p_module)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U64, const TBRW_MODULE **))calls[43])(ptr, module_index, p_module) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_size_of_tid_bind_entry(TBRW_PTR ptr, TBRW_U32 data_stream, TBRW_U32 *sizeof_tid_bind_entry)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_U32 *))calls[44])(ptr, data_stream, sizeof_tid_bind_entry) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_size_of_module_bind_entry(TBRW_PTR ptr, TBRW_U32 data_stream, TBRW_U32 *sizeof_module_bind_entry)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_U32 *))calls[45])(ptr, data_stream, sizeof_module_bind_entry) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_size_of_data_bind_entry(TBRW_PTR ptr, TBRW_U32 data_stream, TBRW_U32 *sizeof_data_bind_entry)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_U32 *))calls[46])(ptr, data_stream, sizeof_data_bind_entry) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_bind_enumerate_threads(TBRW_PTR ptr, BIND_TID_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, BIND_TID_CALLBACK *, void *, TBRW_U64))calls[47])(ptr, callback_func, user_ptr, start_index) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_bind_enumerate_modules(TBRW_PTR ptr, BIND_MODULE_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, BIND_MODULE_CALLBACK *, void *, TBRW_U64))calls[48])(ptr, callback_func, user_ptr, start_index) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_set_user_defined_global(TBRW_PTR ptr, TBRW_U32 size_of_data, void *data_ptr)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, void *))calls[49])(ptr, size_of_data, data_ptr) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_user_defined_global(TBRW_PTR ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, void *, TBRW_U32 *))calls[50])(ptr, size_of_buffer, buf_ptr, size_buffer_used) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_set_user_defined_stream(TBRW_PTR ptr, TBRW_U32 stream, TBRW_U32 size_of_data, void *data_ptr)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_U32, void *))calls[51])(ptr, stream, size_of_data, data_ptr) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_get_user_defined_stream(TBRW_PTR ptr, TBRW_U32 stream, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_U32, void *, TBRW_U32 *))calls[52])(ptr, stream, size_of_buffer, buf_ptr, size_buffer_used) : TBRW_INIT_FAILED;
}

static TBRW_U32 call_add_data(TBRW_PTR ptr, TBRW_U32 stream, TBRW_U32 size_of_data_entry, void *data_entry)
{
    return ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_U32, void *))calls[53])(ptr, stream, size_of_data_entry, data_entry);
}

static TBRW_U32 call_add_data_from_file(TBRW_PTR ptr, TBRW_U32 stream, TBRW_CHAR *filename)
{
    return ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_CHAR *))calls[54])(ptr, stream, filename);
}

EXPORT TBRW_U32 TBRW_enumerate_data(TBRW_PTR ptr, TBRW_U32 stream, TBRW_DATA_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_DATA_CALLBACK *, void *, TBRW_U64))calls[55])(ptr, stream, callback_func, user_ptr, start_index) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_bind_enumerate_data(TBRW_PTR ptr, TBRW_U32 data_stream, BIND_DATA_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, BIND_DATA_CALLBACK *, void *, TBRW_U64))calls[56])(ptr, data_stream, callback_func, user_ptr, start_index) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_is_bound(TBRW_PTR ptr, TBRW_U32 data_stream, TBRW_U32 *is_bound)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32, TBRW_U32 *))calls[57])(ptr, data_stream, is_bound) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_dobind(TBRW_PTR ptr, TBRW_U32 data_stream)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32))calls[58])(ptr, data_stream) : TBRW_INIT_FAILED;
}

EXPORT TBRW_U32 TBRW_unbind(TBRW_PTR ptr, TBRW_U32 data_stream)
{
    return started() ? ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32))calls[59])(ptr, data_stream) : TBRW_INIT_FAILED;
}

static TBRW_U32 call_record_size(TBRW_PTR ptr, TBRW_U32 stream)
{
    return ((TBRW_U32 (*)(TBRW_PTR, TBRW_U32))calls[60])(ptr, stream);
}
