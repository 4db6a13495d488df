"""Exports of Windows' DLLs: their prototypes, and the functions, resolved on first call.

The error for a missing function names the function and the first Windows that has it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import PureWindowsPath
from typing import Any, NamedTuple, Protocol

from ..status import EtwError, Status

__all__ = ["CALLBACKS", "FUNCTIONS", "Libraries", "Loader", "SystemLoader", "UNPROVEN", "c_type", "callback", "wide"]


# -- Functions of Windows' DLLs: their prototypes in the words of the headers, and the Windows that has them first
#
# A prototype has the header's own type names, so that a compiler can compare it with the header (``make etw-layouts``).
# The comparison proves all prototypes but those of `UNPROVEN`, which rest on the vendor's pages.


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
    """It matters on 32-bit Windows only."""


FUNCTIONS: dict[str, Function] = {
    "StartTraceW": Function(CONTROL, "ULONG", ("PTRACEHANDLE", "LPCWSTR", "PEVENT_TRACE_PROPERTIES")),
    "ControlTraceW": Function(CONTROL, "ULONG", ("TRACEHANDLE", "LPCWSTR", "PEVENT_TRACE_PROPERTIES", "ULONG")),
    "QueryAllTracesW": Function(CONTROL, "ULONG", ("PEVENT_TRACE_PROPERTIES*", "ULONG", "PULONG")),
    "EnableTraceEx2": Function(
        CONTROL,
        "ULONG",
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
        SECURITY,
        "ULONG",
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
}
"""Name of the export -> prototype. TraceConfigureLastBranchRecord is declared without WMIAPI in the SDK's evntrace.h:
32-bit programs call it as they call C functions; every other one is a WINAPI."""

UNPROVEN = ("TraceConfigureLastBranchRecord", "CreateMergedTraceFile")
"""Not in mingw-w64's headers: the vendor's pages, and the SDK's evntrace.h for the first."""

CALLBACKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "PEVENT_RECORD_CALLBACK": ("VOID", ("PEVENT_RECORD",)),
    "PEVENT_CALLBACK": ("VOID", ("PEVENT_TRACE",)),
    "PEVENT_TRACE_BUFFER_CALLBACKW": ("ULONG", ("PEVENT_TRACE_LOGFILEW",)),
    "PENABLECALLBACK": (
        "VOID",
        ("LPCGUID", "ULONG", "UCHAR", "ULONGLONG", "ULONGLONG", "PEVENT_FILTER_DESCRIPTOR", "PVOID"),
    ),
}
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


class Loader(Protocol):
    """The source of libraries: `SystemLoader`, and in tests a recording fake."""

    def library(self, name: str, convention: str) -> Any:
        """The library ``name``; its attributes are ctypes' foreign functions. `OSError` if it is missing."""

    def last_error(self) -> int:
        """The result of GetLastError after the last call of this thread."""

    def build(self) -> int:
        """Build number of the running Windows."""

    def meaning(self, code: int) -> str:
        """Windows' message for a code."""


_ctypes: Any = ctypes
_sys: Any = sys
"""The same modules for the names that only Windows' Python has."""


def _on_windows() -> bool:
    return bool(_sys.platform == "win32")


class SystemLoader:
    """Windows itself. DLLs are searched in the system's folders only, never in the current folder."""

    def library(self, name: str, convention: str) -> Any:
        if not _on_windows():
            raise OSError(f"{name} is a library of Windows")
        kind = _ctypes.CDLL if convention == "cdecl" else _ctypes.WinDLL
        return kind(name, use_last_error=True)

    def last_error(self) -> int:
        return int(_ctypes.get_last_error()) if _on_windows() else 0

    def build(self) -> int:
        return int(_sys.getwindowsversion().build) if _on_windows() else 0

    def meaning(self, code: int) -> str:
        return str(_ctypes.FormatError(code)).strip() if _on_windows() else ""


def callback(name: str, function: Callable[..., Any]) -> Any:
    """``function`` as the callback type ``name`` of `CALLBACKS`. The caller keeps the object as long as Windows may
    call it."""
    make = _ctypes.WINFUNCTYPE if _on_windows() else _ctypes.CFUNCTYPE
    result, arguments = CALLBACKS[name]
    return make(c_type(result), *map(c_type, arguments))(function)


def wide(call: str, text: str) -> Any:
    """``text`` as an array of UTF-16 units and a nul.

    Raises `EtwError` (123) for a nul in the text, where Windows would cut it.
    """
    if "\0" in text:
        raise EtwError(call, Status.INVALID_NAME, f"{text!r} has a nul in it")
    data = text.encode("utf-16-le", "surrogatepass") + b"\0\0"
    return (ctypes.c_uint16 * (len(data) // 2)).from_buffer_copy(data)


def _toolkit() -> tuple[str, ...]:
    """KernelTraceControl.dll: on the loader's path, and where the Windows Performance Toolkit is installed."""
    programs = os.environ.get("PROGRAMFILES(X86)") or os.environ.get("PROGRAMFILES")
    folder = ("Windows Kits", "10", "Windows Performance Toolkit", MERGE[0])
    return (*MERGE, *([str(PureWindowsPath(programs, *folder))] if programs else []))


class Libraries:
    """The exports of `FUNCTIONS`, each resolved once."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._resolved = cache(self._resolve)

    def function(self, name: str) -> Any:
        """The export ``name`` as a foreign function.

        Raises `EtwError`: 127 if this Windows lacks it, 126 if its libraries are not installed.
        """
        return self._resolved(name)

    def has(self, name: str) -> bool:
        """Whether this Windows exports ``name``."""
        try:
            self.function(name)
        except EtwError:
            return False
        return True

    def status(self, name: str, *arguments: Any, fine: Sequence[int] = (Status.SUCCESS,)) -> int:
        """Call ``name``, which returns a Win32 code. Raises `EtwError` for a code that is not ``fine``.

        Raises 87 for a number that its argument cannot hold, which ctypes would cut.
        """
        function = self.function(name)
        for value, kind in zip(arguments, function.argtypes, strict=True):
            if isinstance(value, int) and not 0 <= value < 1 << 8 * ctypes.sizeof(kind):
                raise EtwError(name.removesuffix("W"), Status.INVALID_PARAMETER, f"{value:#x} is out of range")
        code = int(function(*arguments))
        if code not in fine:
            known = code in Status._value2member_map_
            raise EtwError(name.removesuffix("W"), code, "" if known else self.loader.meaning(code))
        return code

    def _resolve(self, name: str) -> Any:
        declared = FUNCTIONS[name]
        found = False
        for file in _toolkit() if declared.libraries is MERGE else declared.libraries:
            try:
                library = self.loader.library(file, declared.convention)
            except OSError:
                continue
            found = True
            try:
                function = getattr(library, name)
            except AttributeError:
                continue
            function.restype, function.argtypes = c_type(declared.result), [c_type(a) for a in declared.arguments]
            return function
        raise self._missing_error(name, found)

    def _missing_error(self, name: str, found: bool) -> EtwError:
        call, libraries, since = name.removesuffix("W"), FUNCTIONS[name].libraries, FUNCTIONS[name].since
        hint = f"it needs {since}; this is build {self.loader.build()}" if since else None
        if found:
            return EtwError(call, Status.PROC_NOT_FOUND, f"{' and '.join(libraries)} do not export {name}", hint=hint)
        return EtwError(call, Status.MOD_NOT_FOUND, f"{' or '.join(libraries)} cannot be loaded", hint=hint)
