"""Functions of Windows' DLLs: their prototypes in the words of the headers, and the Windows that has them first.

A prototype is written with the header's own type names, so that a compiler can hold it against the header
(``make etw-layouts``): it proves every one but those of `UNPROVEN`, which rest on the vendor's pages.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

__all__ = ["CALLBACKS", "FUNCTIONS", "UNPROVEN", "Function", "c_type"]

CONTROL = ("advapi32.dll", "sechost.dll")
"""The controllers' functions are documented for the first and implemented in the second since Windows 8.1."""
SECURITY = ("advapi32.dll",)
KERNEL = ("kernel32.dll",)
MERGE = ("KernelTraceControl.dll",)


class Function(NamedTuple):
    """``result name(arguments)`` of the first of ``libraries`` that exports it."""

    libraries: tuple[str, ...]
    result: str
    arguments: tuple[str, ...]
    since: str = ""
    """The oldest Windows with it; empty for what Windows 7 has."""
    convention: str = "stdcall"
    """Only 32-bit Windows knows a difference."""


FUNCTIONS: dict[str, Function] = {
    "StartTraceW": Function(CONTROL, "ULONG", ("PTRACEHANDLE", "LPCWSTR", "PEVENT_TRACE_PROPERTIES")),
    "ControlTraceW": Function(CONTROL, "ULONG", ("TRACEHANDLE", "LPCWSTR", "PEVENT_TRACE_PROPERTIES", "ULONG")),
    "QueryAllTracesW": Function(CONTROL, "ULONG", ("PEVENT_TRACE_PROPERTIES*", "ULONG", "PULONG")),
    "EnableTraceEx2": Function(
        CONTROL, "ULONG",
        ("TRACEHANDLE", "LPCGUID", "ULONG", "UCHAR", "ULONGLONG", "ULONGLONG", "ULONG", "PENABLE_TRACE_PARAMETERS"),
    ),
    "TraceSetInformation": Function(CONTROL, "ULONG", ("TRACEHANDLE", "TRACE_INFO_CLASS", "PVOID", "ULONG")),
    "TraceQueryInformation": Function(
        CONTROL, "ULONG", ("TRACEHANDLE", "TRACE_INFO_CLASS", "PVOID", "ULONG", "PULONG"), "Windows 8"
    ),
    "TraceConfigureLastBranchRecord": Function(
        CONTROL, "ULONG", ("TRACEHANDLE", "ULONG", "PCLASSIC_EVENT_ID", "ULONG"), "build 26100.1301", "cdecl"
    ),
    "OpenTraceW": Function(CONTROL, "TRACEHANDLE", ("PEVENT_TRACE_LOGFILEW",)),
    "ProcessTrace": Function(CONTROL, "ULONG", ("PTRACEHANDLE", "ULONG", "LPFILETIME", "LPFILETIME")),
    "CloseTrace": Function(CONTROL, "ULONG", ("TRACEHANDLE",)),
    "TraceEvent": Function(CONTROL, "ULONG", ("TRACEHANDLE", "PEVENT_TRACE_HEADER")),
    "EventRegister": Function(SECURITY, "ULONG", ("LPCGUID", "PENABLECALLBACK", "PVOID", "PREGHANDLE")),
    "EventUnregister": Function(SECURITY, "ULONG", ("REGHANDLE",)),
    "EventProviderEnabled": Function(SECURITY, "BOOLEAN", ("REGHANDLE", "UCHAR", "ULONGLONG")),
    "EventWriteTransfer": Function(
        SECURITY, "ULONG",
        ("REGHANDLE", "PCEVENT_DESCRIPTOR", "LPCGUID", "LPCGUID", "ULONG", "PEVENT_DATA_DESCRIPTOR"),
    ),
    "EventSetInformation": Function(
        SECURITY, "ULONG", ("REGHANDLE", "EVENT_INFO_CLASS", "PVOID", "ULONG"), "Windows 8"
    ),
    "GetCurrentProcess": Function(KERNEL, "HANDLE", ()),
    "CloseHandle": Function(KERNEL, "BOOL", ("HANDLE",)),
    "OpenProcessToken": Function(SECURITY, "BOOL", ("HANDLE", "DWORD", "PHANDLE")),
    "LookupPrivilegeValueW": Function(SECURITY, "BOOL", ("LPCWSTR", "LPCWSTR", "PLUID")),
    "AdjustTokenPrivileges": Function(
        SECURITY, "BOOL", ("HANDLE", "BOOL", "PTOKEN_PRIVILEGES", "DWORD", "PTOKEN_PRIVILEGES", "PDWORD")
    ),
    "CreateMergedTraceFile": Function(
        MERGE, "ULONG", ("LPCWSTR", "LPCWSTR*", "ULONG", "DWORD"), "the Windows Performance Toolkit"
    ),
}  # fmt: skip
"""Name of the export -> prototype. TraceConfigureLastBranchRecord is declared without WMIAPI in the SDK's evntrace.h:
32-bit programs call it as they call C functions; every other one is a WINAPI."""

UNPROVEN = ("TraceConfigureLastBranchRecord", "CreateMergedTraceFile")
"""What mingw-w64's headers do not have: the vendor's pages, and the SDK's evntrace.h for the first."""

CALLBACKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "PEVENT_RECORD_CALLBACK": ("VOID", ("PEVENT_RECORD",)),
    "PEVENT_CALLBACK": ("VOID", ("PEVENT_TRACE",)),
    "PEVENT_TRACE_BUFFER_CALLBACKW": ("ULONG", ("PEVENT_TRACE_LOGFILEW",)),
    "PENABLECALLBACK": (
        "VOID", ("LPCGUID", "ULONG", "UCHAR", "ULONGLONG", "ULONGLONG", "PEVENT_FILTER_DESCRIPTOR", "PVOID"),
    ),
}  # fmt: skip
"""Callbacks that Windows calls with WINAPI (NTAPI for the last, which is the same): result and arguments."""

_SCALARS: dict[str, Any] = {
    "VOID": None, "ULONG": ctypes.c_uint32, "DWORD": ctypes.c_uint32, "BOOL": ctypes.c_int32,
    "UCHAR": ctypes.c_uint8, "BOOLEAN": ctypes.c_uint8, "ULONGLONG": ctypes.c_uint64, "TRACEHANDLE": ctypes.c_uint64,
    "REGHANDLE": ctypes.c_uint64, "HANDLE": ctypes.c_void_p, "TRACE_INFO_CLASS": ctypes.c_uint32,
    "EVENT_INFO_CLASS": ctypes.c_uint32,
}  # fmt: skip


def c_type(name: str) -> Any:
    """The ctypes type of a header's type: ``c_void_p`` for pointers (``P...``, ``LP...``, ``...*``), ``None`` for VOID.

    Strings are pointers to UTF-16 here: ``c_wchar_p`` has 4 bytes a character on Linux, where this is tested.
    """
    if name.startswith(("P", "LP")) or name.endswith("*"):
        return ctypes.c_void_p
    return _SCALARS[name]
