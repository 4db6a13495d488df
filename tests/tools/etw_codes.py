"""Which call returns which code for what, who says so, and the test of it. ``docs/reference/etw.md`` shows the rows."""

from __future__ import annotations

from typing import NamedTuple

from lastbranch.etw.status import Status as S  # noqa: N817 - seventy rows

__all__ = ["CODES", "OURS", "Code"]

OURS = "our choice"
_PAGE, _LBR, _QUERY, _V2 = (
    "its page",
    "the three documents: LBR",
    "the three documents: query",
    "the three documents: V2",
)
_API, _INFO = "etw/test_api.py", "etw/test_information.py"
_CASES = "etw/test_sentences.py::test_case"


class Code(NamedTuple):
    """``call`` returns ``status`` for ``why``; ``source`` says so; ``test`` is a file, or a file and a name in it."""

    call: str
    status: S
    why: str
    source: str
    test: str


CODES: tuple[Code, ...] = (
    Code(
        "StartTrace",
        S.INVALID_PARAMETER,
        "no properties; WNODE_FLAG_TRACED_GUID missing; an offset outside",
        _PAGE,
        f"{_API}::TestStartTrace",
    ),
    Code(
        "StartTrace",
        S.INVALID_PARAMETER,
        "logging modes that do not go together",
        _V2,
        "etw/test_requests.py::TestModes",
    ),
    Code(
        "StartTrace",
        S.INVALID_PARAMETER,
        "name and GUID of a fixed session that are not a pair",
        _PAGE,
        "etw/portable/test_control.py::TestRules",
    ),
    Code("StartTrace", S.INVALID_PARAMETER, "ClientContext 3 on the portable kernel", OURS, _CASES),
    Code("StartTrace", S.INVALID_PARAMETER, "EnableFlags of a session that is no system logger", OURS, _CASES),
    Code("StartTrace", S.INVALID_PARAMETER, "DISK_FILE_IO without DISK_IO", OURS, _CASES),
    Code(
        "StartTrace",
        S.INVALID_PARAMETER,
        "filters of a session that is not private, two of a kind, or other kinds",
        OURS,
        _CASES,
    ),
    Code(
        "StartTrace",
        S.BAD_LENGTH,
        "Wnode.BufferSize too small; no room for the session's name",
        _PAGE,
        f"{_API}::TestStartTrace",
    ),
    Code(
        "StartTrace",
        S.INVALID_NAME,
        "no session name or one of more than 1,024 characters",
        _PAGE,
        f"{_API}::TestStartTrace",
    ),
    Code("StartTrace", S.INVALID_NAME, "a series of files without exactly one %d", _PAGE, _CASES),
    Code(
        "StartTrace",
        S.BAD_PATHNAME,
        "neither a file, nor real time, nor buffering; a folder that does not exist",
        _PAGE,
        _CASES,
    ),
    Code(
        "StartTrace", S.BAD_PATHNAME, "a log file that is a link, or a name of more than 1,024 characters", OURS, _CASES
    ),
    Code(
        "StartTrace",
        S.ALREADY_EXISTS,
        "a session of that name or GUID runs; its file is that of another session",
        _PAGE,
        _CASES,
    ),
    Code(
        "StartTrace",
        S.DISK_FULL,
        "no space, or less than 200 MB left on the system's disk besides the file",
        _PAGE,
        _CASES,
    ),
    Code(
        "StartTrace",
        S.ACCESS_DENIED,
        "the file cannot be written; the registry belongs to somebody else",
        _PAGE,
        "etw/portable/test_registry.py::TestDirectory",
    ),
    Code("StartTrace", S.NOT_ENOUGH_MEMORY, "no memory for the buffers", _PAGE, "etw/portable/test_pool.py"),
    Code(
        "StartTrace",
        S.NO_SYSTEM_RESOURCES,
        "more than 64 sessions, or more than 8 system loggers",
        _PAGE,
        "etw/portable/test_registry.py::TestEntries",
    ),
    Code(
        "StartTrace",
        S.NOT_SUPPORTED,
        "a flag for which Linux has no events; targets on Windows",
        OURS,
        "etw/portable/sources/test_map.py::TestCheck",
    ),
    Code(
        "StartTrace",
        S.PRIVILEGE_NOT_HELD,
        "the right to record the machine is missing",
        _PAGE,
        "etw/portable/sources/test_linux.py",
    ),
    Code(
        "ControlTrace",
        S.INVALID_PARAMETER,
        "no properties; neither handle nor name; an unknown code",
        _PAGE,
        f"{_API}::TestControlTrace",
    ),
    Code("ControlTrace", S.BAD_LENGTH, "Wnode.BufferSize is wrong", _PAGE, f"{_API}::TestControlTrace"),
    Code(
        "ControlTrace", S.MORE_DATA, "no room for a name: the call was carried out", _PAGE, f"{_API}::TestControlTrace"
    ),
    Code("ControlTrace", S.WMI_INSTANCE_NOT_FOUND, "no such session", _PAGE, f"{_API}::TestControlTrace"),
    Code(
        "ControlTrace",
        S.BAD_PATHNAME,
        "the file of an update or a flush cannot be; buffering without one",
        _PAGE,
        "etw/portable/test_control.py::TestUpdates",
    ),
    Code(
        "QueryAllTraces",
        S.INVALID_PARAMETER,
        "no array, or a count of 0 or more than 64 (on Windows, than it takes)",
        _PAGE,
        f"{_API}::TestQueryAllTraces",
    ),
    Code(
        "QueryAllTraces",
        S.MORE_DATA,
        "more sessions than structures, or no room for a name",
        _PAGE,
        f"{_API}::TestQueryAllTraces",
    ),
    Code(
        "EnableTraceEx2",
        S.INVALID_PARAMETER,
        "no handle, no GUID, an unknown code, filters that cannot be",
        _PAGE,
        f"{_API}::TestEnableTraceEx2",
    ),
    Code("EnableTraceEx2", S.WMI_INSTANCE_NOT_FOUND, "no session has the handle", OURS, "etw/test_stateful.py"),
    Code("EnableTraceEx2", S.ACCESS_DENIED, "the session's disallow list has the provider", OURS, _CASES),
    Code(
        "EnableTraceEx2",
        S.TIMEOUT,
        "a callback took longer than the timeout",
        _PAGE,
        "etw/portable/test_control.py::TestProviders",
    ),
    Code(
        "TraceQueryInformation",
        S.NOT_SUPPORTED,
        "a class other than 4, 5, 7, 0x0B, 0x0E; on Windows, one that it does not know",
        _QUERY,
        f"{_INFO}::TestQuery",
    ),
    Code(
        "TraceQueryInformation", S.INVALID_PARAMETER, "a handle for class 5, 7 or 0x0B", _QUERY, f"{_INFO}::TestQuery"
    ),
    Code(
        "TraceQueryInformation",
        S.INVALID_PARAMETER,
        "no handle for class 4 or 0x0E; no buffer for a class other than 7; an unknown source; a session that is no "
        "system logger",
        OURS,
        f"{_INFO}::TestQuery",
    ),
    Code(
        "TraceQueryInformation",
        S.BAD_LENGTH,
        "class 4 too small; class 5 or 0x0B not an exact fit",
        _QUERY,
        f"{_INFO}::TestQuery",
    ),
    Code(
        "TraceQueryInformation",
        S.BAD_LENGTH,
        "class 7 without a buffer; class 7 or 0x0E too small",
        OURS,
        f"{_INFO}::TestQuery",
    ),
    Code("TraceQueryInformation", S.OUTOFMEMORY, "class 7 without memory", _QUERY, _CASES),
    Code("TraceQueryInformation", S.WMI_INSTANCE_NOT_FOUND, "no session has the handle", OURS, f"{_INFO}::TestQuery"),
    Code(
        "TraceSetInformation",
        S.NOT_SUPPORTED,
        "a class other than 3, 4, 5, 6, 8, 9, 10, 20, 21, 0x10000 (on Windows, one that it does not know); descendants "
        "where the kernel does not list children",
        OURS,
        f"{_INFO}::TestSet",
    ),
    Code("TraceSetInformation", S.INVALID_PARAMETER, "a handle for class 5 or 6", _PAGE, f"{_INFO}::TestSet"),
    Code(
        "TraceSetInformation",
        S.INVALID_PARAMETER,
        "no handle for another class; no buffer; more than 256 events for class 3",
        OURS,
        f"{_INFO}::TestSet",
    ),
    Code(
        "TraceSetInformation", S.BAD_LENGTH, "a length that is no whole number of elements", OURS, f"{_INFO}::TestSet"
    ),
    Code(
        "TraceSetInformation", S.IMPLEMENTATION_LIMIT, "more than four events for class 21", OURS, f"{_INFO}::TestSet"
    ),
    Code(
        "TraceSetInformation",
        S.BUSY,
        "class 8 or 9 for the second time",
        OURS,
        "etw/portable/test_control.py::TestInformation",
    ),
    Code(
        "TraceSetInformation",
        S.PRIVILEGE_NOT_HELD,
        "masks that need a right which is missing",
        _PAGE,
        "etw/portable/sources/test_linux.py",
    ),
    Code(
        "EventSetInformation",
        S.NOT_SUPPORTED,
        "classes 0, 1 and 3, which do nothing here; class 2, traits, is in each event from then on",
        OURS,
        "etw/portable/test_registration.py::test_information_of_a_provider",
    ),
    Code(
        "EventSetInformation",
        S.INVALID_PARAMETER,
        "another class; traits whose first 16 bits are not their size, or without a name",
        OURS,
        "etw/portable/test_registration.py::test_information_of_a_provider",
    ),
    Code(
        "TraceConfigureLastBranchRecord",
        S.IMPLEMENTATION_LIMIT,
        "more than four events; checked first",
        OURS,
        f"{_API}::TestLastBranchRecord",
    ),
    Code(
        "TraceConfigureLastBranchRecord",
        S.INVALID_PARAMETER,
        "a count without events; kernel and user both left out; in this order",
        OURS,
        f"{_API}::TestLastBranchRecord",
    ),
    Code(
        "TraceConfigureLastBranchRecord",
        S.INVALID_PARAMETER,
        "flags that are none",
        OURS,
        f"{_API}::TestLastBranchRecord",
    ),
    Code(
        "TraceConfigureLastBranchRecord",
        S.NOT_SUPPORTED,
        "events that no branch record can follow; no system logger; by software: user left out, SAMPLED, no engine; "
        "system calls and waits without tracepoints",
        OURS,
        "etw/portable/test_lbr.py",
    ),
    Code(
        "TraceConfigureLastBranchRecord",
        S.PRIVILEGE_NOT_HELD,
        "by software: system calls and waits whose tracepoints may not be read",
        OURS,
        "etw/portable/test_lbr.py",
    ),
    Code(
        "OpenTrace",
        S.INVALID_PARAMETER,
        "no structure; a session that is not in real time",
        _PAGE,
        "etw/test_consumer.py::test_refusals_of_open",
    ),
    Code("OpenTrace", S.BAD_PATHNAME, "no name", _PAGE, "etw/test_consumer.py::test_refusals_of_open"),
    Code("OpenTrace", S.FILE_NOT_FOUND, "no such file", _PAGE, "etw/test_consumer.py::test_refusals_of_open"),
    Code("OpenTrace", S.INVALID_DATA, "a file that is no trace log", OURS, "etw/test_consumer.py"),
    Code("OpenTrace", S.WMI_INSTANCE_NOT_FOUND, "no such session", _PAGE, "etw/test_consumer.py"),
    Code("ProcessTrace", S.INVALID_HANDLE, "a handle that is not open", _PAGE, "etw/test_consumer.py::test_refusals"),
    Code("ProcessTrace", S.BAD_LENGTH, "more than 64 handles", _PAGE, "etw/test_consumer.py::test_refusals"),
    Code("ProcessTrace", S.INVALID_TIME, "an end before the start", _PAGE, "etw/test_consumer.py::test_refusals"),
    Code(
        "ProcessTrace",
        S.CANCELLED,
        "BufferCallback returned false",
        _PAGE,
        "etw/test_consumer.py::test_buffer_callback",
    ),
    Code("ProcessTrace", S.BUSY, "another thread processes the handle", OURS, "etw/test_consumer.py"),
    Code(
        "CloseTrace",
        S.CTX_CLOSE_PENDING,
        "events are still being delivered; the trace closes when that ends",
        _PAGE,
        "etw/test_consumer.py::test_close_in_a_callback_ends_it",
    ),
    Code("CloseTrace", S.INVALID_HANDLE, "a handle that is not open", _PAGE, "etw/test_consumer.py::test_refusals"),
    Code(
        "EventRegister",
        S.INVALID_PARAMETER,
        "no GUID; a callback that cannot be called",
        _PAGE,
        f"{_API}::TestProviders",
    ),
    Code("EventWrite", S.INVALID_HANDLE, "a handle that is not registered", _PAGE, f"{_API}::TestProviders"),
    Code(
        "EventWrite",
        S.INVALID_PARAMETER,
        "more than 128 pieces, or a piece without data",
        _PAGE,
        f"{_API}::TestProviders",
    ),
    Code("EventWrite", S.ARITHMETIC_OVERFLOW, "more than 64 KB", _V2, _CASES),
    Code("EventWrite", S.MORE_DATA, "more than a buffer of a session", _V2, _CASES),
    Code("EventWrite", S.NOT_ENOUGH_MEMORY, "all buffers of a session are full: the event is lost", _PAGE, _CASES),
    Code(
        "EventWrite",
        S.LOG_FILE_FULL,
        "what a session in real time keeps is full, and nobody reads: the event is lost",
        _V2,
        _CASES,
    ),
    Code("TraceEvent", S.LOG_FILE_FULL, "the same", _V2, _CASES),
    Code(
        "TraceEvent",
        S.INVALID_PARAMETER,
        "no header, a wrong Size, WNODE_FLAG_TRACED_GUID missing",
        _PAGE,
        f"{_API}::TestTraceEvent",
    ),
    Code("TraceEvent", S.INVALID_HANDLE, "no handle", _PAGE, f"{_API}::TestTraceEvent"),
    Code(
        "CreateMergedTraceFile",
        S.INVALID_PARAMETER,
        "nothing to merge, or the output is one of the inputs",
        OURS,
        "etw/test_merging.py::test_refusals",
    ),
    Code("CreateMergedTraceFile", S.PATH_NOT_FOUND, "no such folder", OURS, "etw/test_merging.py::test_refusals"),
    Code(
        "CreateMergedTraceFile",
        S.NOT_SUPPORTED,
        "INJECT_ONLY outside Windows",
        OURS,
        "etw/test_merging.py::test_refusals",
    ),
    Code(
        "TraceQueryInformation, TraceSetInformation, on Windows",
        S.BAD_LENGTH,
        "a class that is passed on, with a length beyond the buffer",
        OURS,
        "etw/windows/test_information.py::test_a_buffer_is_never_left",
    ),
    Code(
        "any, on Windows",
        S.PROC_NOT_FOUND,
        "this Windows does not have the function yet",
        OURS,
        "etw/windows/test_functions.py::test_a_missing_export_is_told_with_the_windows_that_has_it",
    ),
    Code(
        "any, on Windows",
        S.MOD_NOT_FOUND,
        "a DLL is missing",
        OURS,
        "etw/windows/test_functions.py::test_a_missing_library_is_told",
    ),
    Code(
        "StartTrace, on Windows",
        S.CALL_NOT_IMPLEMENTED,
        "the system says success and there is no session",
        OURS,
        "etw/windows/test_kernel.py::test_start_is_verified_against_false_success",
    ),
)
