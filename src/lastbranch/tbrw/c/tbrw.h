/* The TBRW API: every function returns a status.
   Written from the TBRW User Guide 2.3 (320237-002US). Made by tools/generate.py. */
#ifndef LASTBRANCH_TBRW_H
#define LASTBRANCH_TBRW_H

#include "tbrw_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TBRW_SUCCESS 0 /* success */
#define TBRW_SAM_ERROR 22 /* the file could not be read or written */
#define TBRW_INVALID_SAMPLE_FILE 24 /* not a TB5 file, or a damaged one */
#define TBRW_UNKNOWN_SECTION_NUMBER 25 /* there is no section of that number */
#define TBRW_NO_MEMORY 26 /* out of memory */
#define TBRW_BUFFER_OVERFLOW 29 /* the data is shorter than the size that was given */
#define TBRW_SAMPLE_FILE_MAPPING_ERROR 34 /* the file could not be mapped */
#define TBRW_BUFFER_NULL 35 /* no buffer was given */
#define TBRW_UNEXPECTED_NULL_PTR 36 /* a pointer leads to nothing, or to fewer entries than its count says */
#define TBRW_ENTRY_NOT_FOUND 39 /* there is no entry of that index */
#define TBRW_FILE_OPEN_FAILED 44 /* the file could not be opened */
#define TBRW_NO_WRITE_PERMISSION 54 /* the file was not opened for writing */
#define TBRW_BAD_PARAMETER 63 /* an argument is not what the call needs */
#define TBRW_UNEXPECTED_VALUE 72 /* a field has a value that is not allowed */
#define TBRW_NOT_IMPLEMENTED 73 /* not implemented */
#define TBRW_SECTION_ALREADY_IN_USE 77 /* the section is in use */
#define TBRW_SECTION_NOT_EXIST 78 /* the section does not exist */
#define TBRW_STREAM_NOT_EXIST 79 /* the stream does not exist */
#define TBRW_INVALID_STREAM 80 /* a stream of that number cannot be written, or cannot hold this data */
#define TBRW_STREAM_ALREADY_IN_USE 81 /* the stream is in use */
#define TBRW_DATA_DESC_NOT_EXIST 82 /* the stream has no data descriptor */
#define TBRW_INVALID_ERROR_CODE 83 /* there is no such status code */
#define TBRW_INCOMPATIBLE_VERSION 84 /* the size field of a structure is not that of this version */
#define TBRW_LEGACY_DATA_NOT_EXIST 85 /* the stream holds no legacy sample records */
#define TBRW_INVALID_READ_START 86 /* the start index is beyond the last entry */
#define TBRW_INCOMPLETE_TB5_ENCOUNTERED 95 /* the file is incomplete */
#define TBRW_INVALID_STRING 97 /* not a string of this file (0 is the NULL string) */
#define TBRW_UNSUPPORTED_DATA_SIZE 98 /* the size does not fit the data descriptor */
#define TBRW_INIT_FAILED 99 /* the library could not be set up */
#define TBRW_BUFFER_TOO_SMALL 103 /* the buffer is too small */
#define TBRW_INVALID_ACCESS_PERMS 111 /* the access mode does not allow this */
#define TBRW_TB5_IS_NOT_BOUND 113 /* no stream of the file is bound */
#define TBRW_SECTION_NOT_READABLE 124 /* the section is not open for reading */
#define TBRW_SECTION_NOT_WRITEABLE 125 /* the section is not open for writing, or exists already */
#define TBRW_GLOBAL_SECTION_NOT_CLOSED 126 /* a global section is still in use */
#define TBRW_STREAM_SECTION_NOT_CLOSED 127 /* a section of the stream is still in use */
#define TBRW_STREAM_NOT_CLOSED 128 /* a stream is still in use */
#define TBRW_STREAM_NOT_BOUND 129 /* the stream is not bound */
#define TBRW_NOT_ALL_SECTIONS_CLOSED 131 /* global sections and streams are still in use */
#define TBRW_UNEXPECTED_BIND_MISMATCH 133 /* the bind information does not fit the stream */
#define TBRW_BAD_MODULE 136 /* a module record contradicts itself */
#define TBRW_BIND_UNEXPECTED_1STMODREC 141 /* a process has two first modules */
#define TBRW_BIND_MODULES_NOT_SORTED 142 /* the module records are not in order */
#define TBRW_UNEXPECTED_NUM_CPUIDS 143 /* the number of cpuid entries does not fit the architecture */
#define TBRW_UNSUPPORTED_ARCH_TYPE 144 /* the architecture is none of the known ones */
#define TBRW_NO_DATA_TO_WRITE 145 /* the section lacks what it must hold */
#define VT_SUCCESS 0 /* success */

/* 9.1: Version of the API: that of the guide. */
TBRW_U32 TBRW_get_version(TBRW_U32 *major, TBRW_U32 *minor);

/* 9.1: Open a TB5 file. access_mode is made of TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS; a new file needs the last, with WRITE. */
TBRW_U32 TBRW_open(TBRW_PTR *ptr, const TBRW_CHAR *filename, TBRW_U32 access_mode);

/* 9.1: Close a file. It stays open if a section or stream is not done. */
TBRW_U32 TBRW_close(TBRW_PTR ptr);

/* 9.1: The meaning of a status code. */
TBRW_U32 TBRW_error_string(TBRW_U32 error_code, const TBRW_CHAR **error_string);

/* 9.1: Close a file whatever is open. Complete parts stay; the rest and temporary files are removed. */
TBRW_U32 TBRW_abort_cleanup_and_close(TBRW_PTR ptr);

/* 9.1: Check every block, string id, data descriptor and bind index of what is complete. */
TBRW_U32 TBRW_verify(TBRW_PTR ptr);

/* 9.1: The string of a unique id, into a buffer of wide characters. Sizes are in bytes, with the NUL. */
TBRW_U32 TBRW_convert_uniqueid_to_string(TBRW_PTR ptr, TBRW_U32 size_of_buffer, TBRW_STRING_OR_ID *string_id, TBRW_CHAR *buffer, TBRW_U32 *size_buffer_needed);

/* 9.1.2: Number of complete data streams; bind information is not counted. */
TBRW_U32 TBRW_get_number_data_streams(TBRW_PTR ptr, TBRW_U32 *numStreams);

/* 9.4: UTF-8 to wide characters. Sizes are in characters and include the NUL. */
TBRW_U32 TBRW_convert_utf8_to_wcs(const char *utf8, wchar_t *wcs, TBRW_U32 *wcs_size);

/* 9.4: Wide characters to UTF-8. Sizes are in bytes and include the NUL. */
TBRW_U32 TBRW_convert_wcs_to_utf8(const wchar_t *wcs, char *utf8, TBRW_U32 *utf8_size);

/* 9.1.1: Begin to read a global section. */
TBRW_U32 TBRW_reading_section(TBRW_PTR ptr, TBRW_SECTION_IDENTIFIER section);

/* 9.1.1: Begin to write a global section that does not exist. */
TBRW_U32 TBRW_writing_section(TBRW_PTR ptr, TBRW_SECTION_IDENTIFIER section);

/* 9.1.1: End reading or writing a global section. A written section is checked and then part of the file. */
TBRW_U32 TBRW_done_section(TBRW_PTR ptr, TBRW_SECTION_IDENTIFIER section);

/* 9.1.2: Begin to read a data stream. */
TBRW_U32 TBRW_reading_stream(TBRW_PTR ptr, TBRW_U32 stream);

/* 9.1.2: Begin to write the next data stream. */
TBRW_U32 TBRW_writing_stream(TBRW_PTR ptr, TBRW_U32 stream);

/* 9.1.2: End reading or writing a data stream. A written stream is checked and then part of the file. */
TBRW_U32 TBRW_done_stream(TBRW_PTR ptr, TBRW_U32 stream);

/* 9.1.3: Begin to read a section of a stream that is being read. */
TBRW_U32 TBRW_reading_stream_section(TBRW_PTR ptr, TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section);

/* 9.1.3: Begin to write a section of a stream that is being written. */
TBRW_U32 TBRW_writing_stream_section(TBRW_PTR ptr, TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section);

/* 9.1.3: End reading or writing a section of a stream. */
TBRW_U32 TBRW_done_stream_section(TBRW_PTR ptr, TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section);

/* 9.2.1: Write TBRW_SYSTEM: the whole system. */
TBRW_U32 TBRW_set_system(TBRW_PTR ptr, TBRW_SYSTEM *system);

/* 9.2.1: Read TBRW_SYSTEM, the whole system, with all that its pointers lead to. Size 0 and None ask for the size that is needed. */
TBRW_U32 TBRW_get_system(TBRW_PTR ptr, TBRW_U32 size_of_buffer, TBRW_SYSTEM *buf_ptr, TBRW_U32 *size_buffer_used);

/* 9.2.2: Write TBRW_HOST: the host. */
TBRW_U32 TBRW_set_host(TBRW_PTR ptr, TBRW_HOST *host);

/* 9.2.2: Read TBRW_HOST, the host, with all that its pointers lead to. Size 0 and None ask for the size that is needed. */
TBRW_U32 TBRW_get_host(TBRW_PTR ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used);

/* 9.2.2: Write TBRW_OS: the operating system. */
TBRW_U32 TBRW_set_os(TBRW_PTR ptr, TBRW_OS *os);

/* 9.2.2: Read TBRW_OS, the operating system, with all that its pointers lead to. Size 0 and None ask for the size that is needed. */
TBRW_U32 TBRW_get_os(TBRW_PTR ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used);

/* 9.2.2: Write TBRW_APPLICATION: memory as applications see it. */
TBRW_U32 TBRW_set_application(TBRW_PTR ptr, TBRW_APPLICATION *application);

/* 9.2.2: Read TBRW_APPLICATION, memory as applications see it, with all that its pointers lead to. Size 0 and None ask for the size that is needed. */
TBRW_U32 TBRW_get_application(TBRW_PTR ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used);

/* 9.2.5: Write TBRW_VERSION_INFO: the versions of what made the file. */
TBRW_U32 TBRW_set_version_info(TBRW_PTR tbrw_ptr, TBRW_VERSION_INFO *version_info);

/* 9.2.5: Read TBRW_VERSION_INFO, the versions of what made the file, with all that its pointers lead to. Size 0 and None ask for the size that is needed. */
TBRW_U32 TBRW_get_version_info(TBRW_PTR tbrw_ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used);

/* 9.3.1: Write TBRW_STREAM_INFO: a stream as a whole. */
TBRW_U32 TBRW_set_stream_info(TBRW_PTR tbrw_ptr, TBRW_U32 stream, TBRW_STREAM_INFO *stream_info);

/* 9.3.1: Read TBRW_STREAM_INFO, a stream as a whole, with all that its pointers lead to. Size 0 and None ask for the size that is needed. */
TBRW_U32 TBRW_get_stream_info(TBRW_PTR tbrw_ptr, TBRW_U32 stream, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used);

/* 9.2.3: Append TBRW_PID: a process. */
TBRW_U32 TBRW_add_process(TBRW_PTR ptr, TBRW_PID *process);

/* 9.2.3: Append TBRW_TID: a thread. */
TBRW_U32 TBRW_add_thread(TBRW_PTR ptr, TBRW_TID *thread);

/* 9.2.4: Append TBRW_MODULE: a module. */
TBRW_U32 TBRW_add_module(TBRW_PTR ptr, TBRW_MODULE *module);

/* 9.3.2: Append TBRW_EVENT: an event, with its details. */
TBRW_U32 TBRW_add_event(TBRW_PTR ptr, TBRW_U32 stream, TBRW_EVENT *event_descriptor_entry);

/* 9.3.3: Append TBRW_SAMPREC_DESC_ENTRY: a field of the records of a stream. */
TBRW_U32 TBRW_add_data_descriptor_entry(TBRW_PTR ptr, TBRW_U32 stream, TBRW_SAMPREC_DESC_ENTRY *data_descriptor_entry);

/* 9.2.3: Read TBRW_PID records; callback_func(buffer, size, count, user_ptr) returns 1 for more, 0 to stop, or an error to return. */
TBRW_U32 TBRW_enumerate_processes(TBRW_PTR ptr, TBRW_PID_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index);

/* 9.2.3: Read TBRW_TID records; callback_func(buffer, size, count, user_ptr) returns 1 for more, 0 to stop, or an error to return. */
TBRW_U32 TBRW_enumerate_threads(TBRW_PTR ptr, TBRW_TID_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index);

/* 9.2.4: Read TBRW_MODULE records; callback_func(buffer, size, count, user_ptr) returns 1 for more, 0 to stop, or an error to return. */
TBRW_U32 TBRW_enumerate_modules(TBRW_PTR ptr, TBRW_MODULE_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index);

/* 9.3.2: Read TBRW_EVENT records; callback_func(buffer, size, count, user_ptr) returns 1 for more, 0 to stop, or an error to return. */
TBRW_U32 TBRW_enumerate_events(TBRW_PTR ptr, TBRW_U32 stream, TBRW_EVENT_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index);

/* 9.3.3: Read TBRW_SAMPREC_DESC_ENTRY records; callback_func(buffer, size, count, user_ptr) returns 1 for more, 0 to stop, or an error to return. */
TBRW_U32 TBRW_enumerate_data_descriptor_entries(TBRW_PTR ptr, TBRW_U32 stream, TBRW_DATA_DESC_CALLBACK *callback_func, void *user_ptr);

/* 9.2.3: Read one TBRW_PID by its index. */
TBRW_U32 TBRW_get_one_pid(TBRW_PTR ptr, TBRW_U64 pid_index, const TBRW_PID **p_pid);

/* 9.2.3: Read one TBRW_TID by its index. */
TBRW_U32 TBRW_get_one_tid(TBRW_PTR ptr, TBRW_U64 tid_index, const TBRW_TID **p_tid);

/* 9.2.4: Read one TBRW_MODULE by its index. */
TBRW_U32 TBRW_get_one_module(TBRW_PTR ptr, TBRW_U64 module_index, const TBRW_MODULE **p_module);

/* 9.2.3: Bytes of a TID_BIND_STRUCT of a bound stream. */
TBRW_U32 TBRW_get_size_of_tid_bind_entry(TBRW_PTR ptr, TBRW_U32 data_stream, TBRW_U32 *sizeof_tid_bind_entry);

/* 9.2.4: Bytes of a MODULE_BIND_STRUCT of a bound stream. */
TBRW_U32 TBRW_get_size_of_module_bind_entry(TBRW_PTR ptr, TBRW_U32 data_stream, TBRW_U32 *sizeof_module_bind_entry);

/* 9.3.4: Bytes of a DATA_BIND_STRUCT of a bound stream. */
TBRW_U32 TBRW_get_size_of_data_bind_entry(TBRW_PTR ptr, TBRW_U32 data_stream, TBRW_U32 *sizeof_data_bind_entry);

/* 9.2.3: Read TBRW_TID records with the index of the process of each; callback_func(buffer, size, count, bind_table, sizeof_bind_buffer, user_ptr) returns as in enumerate_. */
TBRW_U32 TBRW_bind_enumerate_threads(TBRW_PTR ptr, BIND_TID_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index);

/* 9.2.4: Read TBRW_MODULE records with the index of the process of each; callback_func(buffer, size, count, bind_table, sizeof_bind_buffer, user_ptr) returns as in enumerate_. */
TBRW_U32 TBRW_bind_enumerate_modules(TBRW_PTR ptr, BIND_MODULE_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index);

/* 9.2.6: Write the user-defined data of the global. */
TBRW_U32 TBRW_set_user_defined_global(TBRW_PTR ptr, TBRW_U32 size_of_data, void *data_ptr);

/* 9.2.6: Read the user-defined data of the global. Size 0 and None ask for the size that is needed. */
TBRW_U32 TBRW_get_user_defined_global(TBRW_PTR ptr, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used);

/* 9.3.5: Write the user-defined data of the stream. */
TBRW_U32 TBRW_set_user_defined_stream(TBRW_PTR ptr, TBRW_U32 stream, TBRW_U32 size_of_data, void *data_ptr);

/* 9.3.5: Read the user-defined data of the stream. Size 0 and None ask for the size that is needed. */
TBRW_U32 TBRW_get_user_defined_stream(TBRW_PTR ptr, TBRW_U32 stream, TBRW_U32 size_of_buffer, void *buf_ptr, TBRW_U32 *size_buffer_used);

/* 9.3.4: Append a record to the data section, a part of one, or whole records. */
TBRW_U32 TBRW_add_data(TBRW_PTR ptr, TBRW_U32 stream, TBRW_U32 size_of_data_entry, void *data_entry);

/* 9.3.4: Append the records that a file consists of. */
TBRW_U32 TBRW_add_data_from_file(TBRW_PTR ptr, TBRW_U32 stream, TBRW_CHAR *filename);

/* 9.3.4: Read records; callback_func(buffer, size, count, user_ptr) returns 1 for more, 0 to stop, or an error to return. */
TBRW_U32 TBRW_enumerate_data(TBRW_PTR ptr, TBRW_U32 stream, TBRW_DATA_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index);

/* 9.3.4: Read records with the indices of the module, process and thread of each; callback_func(buffer, size, count, bind_table, sizeof_bind_buffer, user_ptr) returns as in enumerate_. */
TBRW_U32 TBRW_bind_enumerate_data(TBRW_PTR ptr, TBRW_U32 data_stream, BIND_DATA_CALLBACK *callback_func, void *user_ptr, TBRW_U64 start_index);

/* 9.3.4: 1 if a stream is bound, else 0. */
TBRW_U32 TBRW_is_bound(TBRW_PTR ptr, TBRW_U32 data_stream, TBRW_U32 *is_bound);

/* 9.3.4: Find the module, process and thread of each sample. A bound stream does not change. */
TBRW_U32 TBRW_dobind(TBRW_PTR ptr, TBRW_U32 data_stream);

/* 9.3.4: Remove what binding a stream added to the file. */
TBRW_U32 TBRW_unbind(TBRW_PTR ptr, TBRW_U32 data_stream);


#ifdef __cplusplus
}
#endif

#endif
