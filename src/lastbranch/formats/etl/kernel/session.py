"""Layouts of the events about the session itself, and of what merging a trace adds: names, volumes, debug information.

Sources: evntrace.h (TRACE_LOGFILE_HEADER, ETW_TRACE_PARTITION_INFORMATION), Geoff Chappell's study of the hook ids, and
for the KernelTraceControl events the fields and bytes that Microsoft's TraceEvent reads. Field names are TraceEvent's.
"""

from __future__ import annotations

from ..payload.layouts import layout
from ..payload.types import (
    ANSI,
    FILETIME,
    GUID,
    HEX32,
    HEX64,
    I32,
    I64,
    PTR,
    SIZE,
    SYSTEMTIME,
    U16,
    U32,
    WIDE,
    FieldType,
    Fixed,
    Rest,
    Text16,
)

__all__ = ["IMAGE_ID", "META_DATA", "SESSION", "SYS_CONFIG_EX", "WIN_SAT"]


IMAGE_ID = "b3e675d7-2554-4f18-830b-2762732560de"
SYS_CONFIG_EX = "9b79ee91-b5fd-41c0-a243-4248e266e9d0"
META_DATA = "bbccf6c1-6cd1-48c4-80ff-839482e37671"
WIN_SAT = "ed54dff8-c409-4cf6-bf83-05e1e61a09c4"
SESSION = 0x00

_NONE = layout()

_HEADER = layout(  # TRACE_LOGFILE_HEADER, 0x110/0x118 bytes, and two names
    BufferSize=U32,
    Version=U32,  # major, minor, sub-version, sub-minor, a byte each
    ProviderVersion=U32,
    NumberOfProcessors=U32,
    EndTime=FILETIME,  # 0x10
    TimerResolution=U32,
    MaxFileSize=U32,
    LogFileMode=HEX32,  # 0x20
    BuffersWritten=U32,
    StartBuffers=U32,
    PointerSize=U32,
    EventsLost=U32,  # 0x30
    CPUSpeed=U32,
    LoggerName=PTR,  # 0x38
    LogFileNamePointer=PTR,
    UtcOffsetMinutes=I32,  # 0x40/0x48: TIME_ZONE_INFORMATION, 172 bytes; Bias
    StandardName=Fixed(32, Text16()),
    StandardDate=SYSTEMTIME,
    StandardBias=I32,
    DaylightName=Fixed(32, Text16()),
    DaylightDate=SYSTEMTIME,
    DaylightBias=I32,
    Padding=U32,
    BootTime=FILETIME,  # 0xF0/0xF8
    PerfFreq=I64,
    StartTime=FILETIME,
    ReservedFlags=U32,  # the clock: 1 QPC, 2 system time, 3 CPU cycles
    BuffersLost=U32,
    SessionName=WIDE,  # 0x110/0x118
    LogFileName=WIDE,
)

_GROUP_MASKS = {f"GroupMask{number}": HEX32 for number in range(1, 9)}
_EXTENSION = {0: layout(**_GROUP_MASKS), 2: layout(**_GROUP_MASKS, KernelEventVersion=U32)}

_RSDS = layout(ImageBase=PTR, ProcessID=U32, GuidSig=GUID, Age=U32, PDBFileName=ANSI)

_VERSION_STRINGS: dict[str, FieldType] = dict.fromkeys(
    ("OrigFileName", "FileDescription", "FileVersion", "BinFileVersion", "VerLanguage", "ProductName", "CompanyName",
     "ProductVersion", "FileId", "ProgramId"), WIDE,
)  # fmt: skip

# WinSAT's results: a state, the size of the XML text, and the text (UTF-16) compressed with XPRESS (TraceEvent).
_WIN_SAT = {0: layout(State=U32, UncompressedLength=U32, CompressedXml=Rest())}

TABLE = {
    (SESSION, 0x00): {0: _HEADER},
    (SESSION, 0x05): _EXTENSION,
    (SESSION, 0x20): _EXTENSION,
    (SESSION, 0x08): {0: _NONE},
    (SESSION, 0x30): {0: _NONE},
    (SESSION, 0x31): {0: _NONE},
    (SESSION, 0x40): {0: layout(GuidSig=GUID, Age=U32, PDBFileName=ANSI)},
    (SESSION, 0x42): {0: layout(BuildLab=ANSI)},
    (SESSION, 0x43): {0: layout(BinaryPath=ANSI)},
    # All zero in every real file; the names are those of ETW_TRACE_PARTITION_INFORMATION, which has just these sizes.
    (SESSION, 0x50): {
        0: layout(PartitionId=GUID, ParentId=GUID, QpcOffsetFromRoot=I64, PartitionType=U32, Padding=U32)
    },
    (IMAGE_ID, 0): {
        0: layout(ImageBase=PTR, ImageSize=SIZE, ProcessID=U32, TimeDateStamp=U32, OriginalFileName=WIDE),
    },
    (IMAGE_ID, 32): {0: layout(ImageBase=PTR, ProcessID=U32)},
    (IMAGE_ID, 36): {0: _RSDS},
    (IMAGE_ID, 37): {0: _RSDS},
    # Portable PDBs and deterministic builds: not in any file at hand; offsets as TraceEvent reads them, then unknown.
    (IMAGE_ID, 38): {0: layout(ImageBase=PTR, ProcessID=U32, TimeDateStamp=U32, MajorVersion=U16, MinorVersion=U16)},
    (IMAGE_ID, 40): {0: layout(ImageBase=PTR, ProcessID=U32)},
    (IMAGE_ID, 64): {0: layout(ImageSize=U32, TimeDateStamp=U32, **_VERSION_STRINGS)},
    (SYS_CONFIG_EX, 32): {0: layout(InstallDate=FILETIME, BuildLab=WIDE, ProductName=WIDE)},
    (SYS_CONFIG_EX, 33): {0: layout(SystemDirectory=WIDE, SystemWindowsDirectory=WIDE)},
    (SYS_CONFIG_EX, 34): {0: layout(Value=WIDE)},
    (SYS_CONFIG_EX, 35): {0: layout(NtPath=WIDE, DosPath=WIDE)},
    # Read off the bytes: the same 16 bytes as SysConfig's device family (evntrace.h), version 10.0.22000.613 in one.
    (SYS_CONFIG_EX, 37): {0: layout(UAPInfo=HEX64, DeviceFamily=U32, DeviceForm=U32)},
    (META_DATA, 32): {0: layout(EventInfo=Rest())},
    (META_DATA, 33): {0: layout(ProviderID=GUID, EventMapInfo=Rest())},
    (WIN_SAT, 33): _WIN_SAT,
    (WIN_SAT, 35): _WIN_SAT,
    (WIN_SAT, 37): _WIN_SAT,
}
