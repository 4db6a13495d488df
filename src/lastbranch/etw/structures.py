"""The structures of the trace API, with fixed widths: the same bytes on every system.

`LAYOUTS` declares them in the words of evntrace.h, evntcons.h and evntprov.h. ``ctypes.wintypes`` is not used: on Linux
its ULONG has 8 bytes and its WCHAR 4. ``layouts.json`` has sizes and offsets for 32 and 64 bits. A compiler proves
those in mingw-w64's headers (``make etw-layouts``). The others (`UNPROVEN`) rest on the vendor's pages:
LBR_TRACE_EVENT_DATA, ETW_LBR_ENTRY and PERFINFO_GROUPMASK on that of TraceConfigureLastBranchRecord.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any
from uuid import UUID

__all__ = ["LAYOUTS", "UNPROVEN", "guid_of", "layout_of", "structure", "uuid_of"]

Fields = tuple[tuple[str, str], ...]

_PROPERTIES: Fields = (
    ("Wnode", "WNODE_HEADER"), ("BufferSize", "u4"), ("MinimumBuffers", "u4"), ("MaximumBuffers", "u4"),
    ("MaximumFileSize", "u4"), ("LogFileMode", "u4"), ("FlushTimer", "u4"), ("EnableFlags", "u4"),
    ("AgeLimit|FlushThreshold", "i4"), ("NumberOfBuffers", "u4"), ("FreeBuffers", "u4"), ("EventsLost", "u4"),
    ("BuffersWritten", "u4"), ("LogBuffersLost", "u4"), ("RealTimeBuffersLost", "u4"), ("LoggerThreadId", "P"),
    ("LogFileNameOffset", "u4"), ("LoggerNameOffset", "u4"),
)  # fmt: skip

LAYOUTS: dict[str, Fields] = {
    "GUID": (("Data1", "u4"), ("Data2", "u2"), ("Data3", "u2"), ("Data4", "u1[8]")),
    "WNODE_HEADER": (
        ("BufferSize", "u4"), ("ProviderId", "u4"), ("HistoricalContext", "u8"), ("TimeStamp|KernelHandle", "i8"),
        ("Guid", "GUID"), ("ClientContext", "u4"), ("Flags", "u4"),
    ),
    "EVENT_TRACE_PROPERTIES": _PROPERTIES,
    "EVENT_TRACE_PROPERTIES_V2": (
        *_PROPERTIES, ("V2Control", "u4"), ("FilterDescCount", "u4"), ("FilterDesc", "P"), ("V2Options", "u8"),
    ),
    "EVENT_FILTER_DESCRIPTOR": (("Ptr", "u8"), ("Size", "u4"), ("Type", "u4")),
    "ENABLE_TRACE_PARAMETERS": (
        ("Version", "u4"), ("EnableProperty", "u4"), ("ControlFlags", "u4"), ("SourceId", "GUID"),
        ("EnableFilterDesc", "P"), ("FilterDescCount", "u4"),
    ),
    "CLASSIC_EVENT_ID": (("EventGuid", "GUID"), ("Type", "u1"), ("Reserved", "u1[7]")),
    "TRACE_PROFILE_INTERVAL": (("Source", "u4"), ("Interval", "u4")),
    "PROFILE_SOURCE_INFO": (
        ("NextEntryOffset", "u4"), ("Source", "u4"), ("MinInterval", "u4"), ("MaxInterval", "u4"), ("Reserved", "u8"),
        ("Description", "u2[1]"),
    ),
    "TRACE_VERSION_INFO": (("EtwTraceProcessingVersion", "u4"), ("Reserved", "u4")),
    "PERFINFO_GROUPMASK": (("Masks", "u4[8]"),),
    "TRACE_STACK_CACHING_INFO": (("Enabled", "u1"), ("Padding", "u1[3]"), ("CacheSize", "u4"), ("BucketCount", "u4")),
    "SYSTEMTIME": tuple((name, "u2") for name in (
        "wYear", "wMonth", "wDayOfWeek", "wDay", "wHour", "wMinute", "wSecond", "wMilliseconds")),
    "TIME_ZONE_INFORMATION": (
        ("Bias", "i4"), ("StandardName", "u2[32]"), ("StandardDate", "SYSTEMTIME"), ("StandardBias", "i4"),
        ("DaylightName", "u2[32]"), ("DaylightDate", "SYSTEMTIME"), ("DaylightBias", "i4"),
    ),
    "TRACE_LOGFILE_HEADER": (
        ("BufferSize", "u4"), ("Version", "u4"), ("ProviderVersion", "u4"), ("NumberOfProcessors", "u4"),
        ("EndTime", "i8"), ("TimerResolution", "u4"), ("MaximumFileSize", "u4"), ("LogFileMode", "u4"),
        ("BuffersWritten", "u4"), ("StartBuffers", "u4"), ("PointerSize", "u4"), ("EventsLost", "u4"),
        ("CpuSpeedInMHz", "u4"), ("LoggerName", "P"), ("LogFileName", "P"), ("TimeZone", "TIME_ZONE_INFORMATION"),
        ("BootTime", "i8"), ("PerfFreq", "i8"), ("StartTime", "i8"), ("ReservedFlags", "u4"), ("BuffersLost", "u4"),
    ),
    "EVENT_DESCRIPTOR": (
        ("Id", "u2"), ("Version", "u1"), ("Channel", "u1"), ("Level", "u1"), ("Opcode", "u1"), ("Task", "u2"),
        ("Keyword", "u8"),
    ),
    "EVENT_DATA_DESCRIPTOR": (("Ptr", "u8"), ("Size", "u4"), ("Reserved", "u4")),
    "EVENT_TRACE_HEADER": (
        ("Size", "u2"), ("FieldTypeFlags", "u2"), ("Version", "u4"), ("ThreadId", "u4"), ("ProcessId", "u4"),
        ("TimeStamp", "i8"), ("Guid", "GUID"), ("ProcessorTime", "u8"),
    ),
    "EVENT_TRACE": (
        ("Header", "EVENT_TRACE_HEADER"), ("InstanceId", "u4"), ("ParentInstanceId", "u4"), ("ParentGuid", "GUID"),
        ("MofData", "P"), ("MofLength", "u4"), ("ClientContext", "u4"),
    ),
    "EVENT_TRACE_LOGFILEW": (
        ("LogFileName", "P"), ("LoggerName", "P"), ("CurrentTime", "i8"), ("BuffersRead", "u4"),
        ("LogFileMode|ProcessTraceMode", "u4"), ("CurrentEvent", "EVENT_TRACE"),
        ("LogfileHeader", "TRACE_LOGFILE_HEADER"), ("BufferCallback", "P"), ("BufferSize", "u4"), ("Filled", "u4"),
        ("EventsLost", "u4"), ("EventCallback|EventRecordCallback", "P"), ("IsKernelTrace", "u4"), ("Context", "P"),
    ),
    "EVENT_HEADER": (
        ("Size", "u2"), ("HeaderType", "u2"), ("Flags", "u2"), ("EventProperty", "u2"), ("ThreadId", "u4"),
        ("ProcessId", "u4"), ("TimeStamp", "i8"), ("ProviderId", "GUID"), ("EventDescriptor", "EVENT_DESCRIPTOR"),
        ("ProcessorTime", "u8"), ("ActivityId", "GUID"),
    ),
    "ETW_BUFFER_CONTEXT": (("ProcessorNumber", "u1"), ("Alignment", "u1"), ("LoggerId", "u2")),
    "EVENT_HEADER_EXTENDED_DATA_ITEM": (
        ("Reserved1", "u2"), ("ExtType", "u2"), ("Linkage", "u2"), ("DataSize", "u2"), ("DataPtr", "u8"),
    ),
    "EVENT_RECORD": (
        ("EventHeader", "EVENT_HEADER"), ("BufferContext", "ETW_BUFFER_CONTEXT"), ("ExtendedDataCount", "u2"),
        ("UserDataLength", "u2"), ("ExtendedData", "P"), ("UserData", "P"), ("UserContext", "P"),
    ),
    "ETW_LBR_ENTRY": (("FromAddress", "P"), ("ToAddress", "P"), ("Information", "P")),
    "LBR_TRACE_EVENT_DATA": (
        ("TimeStamp", "u8"), ("ProcessId", "u4"), ("ThreadId", "u4"), ("Options", "u4"), ("Unused", "u4"),
        ("Entries", "ETW_LBR_ENTRY[1]"),
    ),
}  # fmt: skip
"""Structure -> fields. ``u4`` is unsigned with 4 bytes, ``i8`` signed, ``P`` a pointer, ``[n]`` an array; ``a|b`` is a
union of two names for one value."""

UNPROVEN = ("ETW_LBR_ENTRY", "LBR_TRACE_EVENT_DATA", "PERFINFO_GROUPMASK", "TRACE_STACK_CACHING_INFO")
"""Not in mingw-w64's headers."""

_PACKED = frozenset({"ETW_LBR_ENTRY", "LBR_TRACE_EVENT_DATA"})
"""Declared under ``#pragma pack(1)``."""

_BITS: dict[tuple[str, str], Fields] = {
    ("EVENT_TRACE_PROPERTIES_V2", "V2Control"): (("VersionNumber", "8"),),
    ("EVENT_TRACE_PROPERTIES_V2", "V2Options"): (
        ("Wow", "1"),
        ("QpcDeltaTracking", "1"),
        ("LargeMdlPages", "1"),
        ("ExcludeKernelStack", "1"),
    ),
}
"""(structure, member) -> the bit-fields of ULONG that share its place, from the lowest bit on, with their widths."""

_ALSO: dict[str, dict[str, Any]] = {
    "ETW_BUFFER_CONTEXT": {"ProcessorIndex": property(lambda own: own.ProcessorNumber | own.Alignment << 8)},
}
"""Read-only members of unions that combine other members."""

_SCALARS: dict[str, Any] = {
    "u1": ctypes.c_uint8,
    "u2": ctypes.c_uint16,
    "u4": ctypes.c_uint32,
    "u8": ctypes.c_uint64,
    "i4": ctypes.c_int32,
    "i8": ctypes.c_int64,
}


def _type(text: str, bits: int) -> Any:
    name, length = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", text).groups()  # type: ignore[union-attr]
    kind = _SCALARS["u8" if bits == 64 else "u4"] if name == "P" else _SCALARS.get(name) or structure(name, bits)
    return kind * int(length) if length else kind


def structure(name: str, bits: int = 64) -> Any:
    """The ctypes class of structure ``name`` for programs of ``bits`` 32 or 64; `KeyError` for another name.

    Setting a member that the structure does not have raises AttributeError.

    8-byte values are aligned to 8 bytes in both, as on Windows. The test of ``layouts.json`` refuses hosts whose C
    compiler does otherwise (32-bit Linux).
    """
    return _make(name, bits)


@cache
def _make(name: str, bits: int) -> Any:
    fields: list[tuple[str, Any]] = []
    unions: list[str] = []
    for names, text in LAYOUTS[name]:
        first, *others = names.split("|")
        kind = _type(text, bits)
        if others:
            unions.append(f"_{first}")
            fields.append((f"_{first}", _union(f"{name}_{first}", [(n, kind) for n in (first, *others)])))
        elif bits_of := _BITS.get((name, first)):
            unions.append(f"_{first}")
            whole = [(n, ctypes.c_uint32, int(width)) for n, width in bits_of]
            parts = type(f"{name}_{first}_bits", (ctypes.Structure,), {"__slots__": (), "_fields_": whole})
            fields.append((f"_{first}", _union(f"{name}_{first}", [(first, kind), ("_bits", parts)], "_bits")))
        else:
            fields.append((first, kind))
    members: dict[str, Any] = {"__slots__": (), "_anonymous_": tuple(unions), "_fields_": fields, **_ALSO.get(name, {})}
    if name in _PACKED:
        members["_pack_"] = 1
    return type(name, (ctypes.Structure,), members)


def _union(name: str, fields: list[tuple[str, Any]], *anonymous: str) -> Any:
    return type(name, (ctypes.Union,), {"__slots__": (), "_anonymous_": anonymous, "_fields_": fields})


def layout_of(name: str, bits: int = 64) -> dict[str, int]:
    """``{"sizeof": bytes, field: offset...}``; both names of a union have its offset."""
    kind = structure(name, bits)
    names = [n for names, _ in LAYOUTS[name] for n in names.split("|")]
    return {"sizeof": ctypes.sizeof(kind), **{n: getattr(kind, n).offset for n in names}}


def guid_of(value: UUID) -> Any:
    """A GUID structure of ``value``."""
    return structure("GUID").from_buffer_copy(value.bytes_le)


def uuid_of(guid: Any) -> UUID:
    """The `UUID` of a GUID structure."""
    return UUID(bytes_le=bytes(guid))
