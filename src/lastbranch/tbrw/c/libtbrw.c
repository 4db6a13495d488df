/* libtbrw: the TBRW API for C programs, over the rules and files of the Python package lastbranch.

   The first call starts an interpreter inside the program (or joins one that runs) and asks lastbranch.tbrw.c_calls for
   the entry points of all functions. The interpreter lives until the process ends. LASTBRANCH_PYTHON names another
   interpreter than the one that the library was built with, of the same version. */

#define _GNU_SOURCE
#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "samprec_shared.h"
#include "tbrw.h"

#define EXPORT __attribute__((visibility("default")))

#include "exports.h"

static int ready;

/* Extension modules look for the interpreter's symbols among those of the process. A program that loads this library
   at run time has them in a scope of its own. */
static void show_interpreter(void)
{
    Dl_info info;
    if (dladdr((void *)Py_IsInitialized, &info) && info.dli_fname)
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

/* Apart from the program: no signal handlers, no options from its environment, its locale as it is. File names are
   UTF-8. */
static int start_interpreter(void)
{
    PyPreConfig before;
    PyConfig config;
    const char *given = getenv("LASTBRANCH_PYTHON");
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    PyStatus status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status)) return 0;
    PyConfig_InitIsolatedConfig(&config);
    status = PyConfig_SetBytesString(&config, &config.executable, given && *given ? given : TBRW_PYTHON);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        fprintf(stderr, "libtbrw: the interpreter does not start: %s\n", status.err_msg ? status.err_msg : "no reason");
    return !PyStatus_Exception(status);
}

static int take_entry_points(void)
{
    PyObject *module = PyImport_ImportModule("lastbranch.tbrw.c_calls");
    PyObject *done =
        module ? PyObject_CallMethod(module, "fill", "KI", (unsigned long long)(uintptr_t)calls, CHECK) : NULL;
    if (!done) {
        fprintf(stderr, "libtbrw: lastbranch cannot be used:\n");
        PyErr_Print();
    }
    Py_XDECREF(done);
    Py_XDECREF(module);
    return done != NULL;
}

static void start(void)
{
    show_interpreter();
    if (Py_IsInitialized()) {
        PyGILState_STATE held = PyGILState_Ensure();
        ready = take_entry_points();
        PyGILState_Release(held);
    } else if (start_interpreter()) {
        ready = take_entry_points();
        PyEval_SaveThread();
    }
}

static int started(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return ready;
}

/* Records that are added one at a time are kept here, and go on together: a call into the interpreter costs more than
   copying a record. The kept bytes begin with a whole record and consist of whole records or parts of one, which the
   rules take, so the rules have nothing to refuse. If the disk is full when the records go on, they stay here, and the
   call that sent them returns the error. */

enum { STREAMS = 8, ROOM = 1 << 16 };

static struct kept {
    TBRW_PTR ptr; /* NULL: free */
    TBRW_U32 stream, record, used;
    char data[ROOM];
} all_kept[STREAMS];

static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

static struct kept *find_kept(TBRW_PTR ptr, TBRW_U32 stream)
{
    for (int i = 0; ptr && i < STREAMS; i++)
        if (all_kept[i].ptr == ptr && all_kept[i].stream == stream) return &all_kept[i];
    return NULL;
}

/* Send what is kept up to `size`, which is whole records or all that is left. */
static TBRW_U32 send_first(struct kept *kept, TBRW_U32 size)
{
    TBRW_U32 status = size ? call_add_data(kept->ptr, kept->stream, size, kept->data) : VT_SUCCESS;
    if (status == VT_SUCCESS) {
        kept->used -= size;
        memmove(kept->data, kept->data + size, kept->used);
    }
    return status;
}

static TBRW_U32 send_records(struct kept *kept) { return send_first(kept, kept->used - kept->used % kept->record); }

static TBRW_U32 send(struct kept *kept)
{
    TBRW_U32 status = kept ? send_records(kept) : VT_SUCCESS;
    if (kept && status == VT_SUCCESS) status = send_first(kept, kept->used); /* a part of a record */
    if (kept && status == VT_SUCCESS) kept->ptr = NULL;
    return status;
}

static int fits(const struct kept *kept, TBRW_U32 size)
{
    TBRW_U32 inside = kept->used % kept->record;
    if (!size || size > ROOM - kept->record) return 0;
    return inside ? size <= kept->record - inside : size < kept->record || size % kept->record == 0;
}

/* A place for the records of a stream, or NULL where they are to be added as they come. */
static void keep_from_now(TBRW_PTR ptr, TBRW_U32 stream)
{
    static int next;
    TBRW_U32 record = call_record_size(ptr, stream);
    struct kept *kept = &all_kept[next];
    if (!record || record > ROOM / 2 || (kept->ptr && send(kept) != VT_SUCCESS)) return;
    next = (next + 1) % STREAMS;
    kept->ptr = ptr, kept->stream = stream, kept->record = record, kept->used = 0;
}

EXPORT TBRW_U32 TBRW_add_data(TBRW_PTR ptr, TBRW_U32 stream, TBRW_U32 size_of_data_entry, void *data_entry)
{
    TBRW_U32 status = TBRW_INIT_FAILED;
    if (!started()) return status;
    pthread_mutex_lock(&keeping);
    struct kept *kept = find_kept(ptr, stream);
    if (kept && data_entry && fits(kept, size_of_data_entry)) {
        status = kept->used + size_of_data_entry > ROOM ? send_records(kept) : VT_SUCCESS;
        if (status == VT_SUCCESS) {
            memcpy(kept->data + kept->used, data_entry, size_of_data_entry);
            kept->used += size_of_data_entry;
        }
    } else {
        status = send(kept);
        if (status == VT_SUCCESS) status = call_add_data(ptr, stream, size_of_data_entry, data_entry);
        if (status == VT_SUCCESS) keep_from_now(ptr, stream);
    }
    pthread_mutex_unlock(&keeping);
    return status;
}

static TBRW_U32 send_of(TBRW_PTR ptr, TBRW_U32 stream)
{
    pthread_mutex_lock(&keeping);
    TBRW_U32 status = send(find_kept(ptr, stream));
    pthread_mutex_unlock(&keeping);
    return status;
}

static TBRW_U32 forget_of(TBRW_PTR ptr, TBRW_U32 status)
{
    pthread_mutex_lock(&keeping);
    for (int i = 0; status == VT_SUCCESS && i < STREAMS; i++)
        if (all_kept[i].ptr == ptr) all_kept[i].ptr = NULL, all_kept[i].used = 0;
    pthread_mutex_unlock(&keeping);
    return status;
}

EXPORT TBRW_U32 TBRW_add_data_from_file(TBRW_PTR ptr, TBRW_U32 stream, TBRW_CHAR *filename)
{
    if (!started()) return TBRW_INIT_FAILED;
    TBRW_U32 status = send_of(ptr, stream);
    return status == VT_SUCCESS ? call_add_data_from_file(ptr, stream, filename) : status;
}

EXPORT TBRW_U32 TBRW_done_stream_section(TBRW_PTR ptr, TBRW_U32 stream, TBRW_STREAM_SECTION_IDENTIFIER section)
{
    if (!started()) return TBRW_INIT_FAILED;
    TBRW_U32 status = section == TBRW_DATA_SECTION ? send_of(ptr, stream) : VT_SUCCESS;
    return status == VT_SUCCESS ? call_done_stream_section(ptr, stream, section) : status;
}

EXPORT TBRW_U32 TBRW_abort_cleanup_and_close(TBRW_PTR ptr)
{ return started() ? forget_of(ptr, call_abort_cleanup_and_close(ptr)) : TBRW_INIT_FAILED; }
