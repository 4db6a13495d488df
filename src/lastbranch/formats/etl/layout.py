"""The container of an .etl file as declarations: buffer header, log file header, event headers, flags.

Names and order are those of ntwmi.h (WMI_BUFFER_HEADER, SYSTEM_TRACE_HEADER, PERFINFO_TRACE_HEADER), evntrace.h and
evntcons.h (TRACE_LOGFILE_HEADER, EVENT_TRACE_HEADER, EVENT_INSTANCE_HEADER, EVENT_HEADER), as published in Geoff
Chappell's studies, the phnt headers and Microsoft's documentation. Everything is little-endian. `kernel` declares the
payloads.

This module imports only the standard library: writers of events load it without NumPy.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache
from typing import Any

from ..fields import misfit

__all__ = [
    "BUFFER_FLAG",
    "BUFFER_HEADER",
    "BUFFER_HEADER_SIZE",
    "BUFFER_STATE",
    "BUFFER_TYPE",
    "CLASSIC_HEADERS",
    "CLOCK_NAMES",
    "END_OF_BUFFER",
    "EVENT_FLAG",
    "EVENT_HEADERS",
    "EXTENDED_ITEM",
    "EXTENDED_TYPE",
    "FILETIME_EPOCH",
    "HEADERS",
    "HeaderKind",
    "LARGEST_EVENT",
    "LEAST_BUFFER",
    "LOGFILE_HEADER",
    "LogFileMode",
    "MAX_BUFFER",
    "MESSAGE",
    "MESSAGE_FLAG",
    "MESSAGE_HEAD",
    "PEBS_INDEX",
    "PMC_COUNTERS",
    "TIME_ZONE_SIZE",
    "Fields",
    "message_header",
    "offset_of",
    "pack_fields",
    "packed",
    "picked",
    "unpack_fields",
]

Fields = tuple[tuple[str, str], ...]
"""(name, format character of `struct`), in file order without gaps; ``P`` is a pointer of the writer's size."""


def _form(form: str, pointer_size: int) -> str:
    return form.replace("P", "I" if pointer_size == 4 else "Q")


@lru_cache
def packed(fields: Fields, pointer_size: int = 8) -> struct.Struct:
    """The fields as one `struct.Struct`."""
    return struct.Struct("<" + "".join(_form(form, pointer_size) for _, form in fields))


@lru_cache
def picked(fields: Fields, *names: str) -> struct.Struct:
    """Only the fields called ``names``, in file order; the bytes of the others are skipped."""
    return struct.Struct("<" + "".join(form if name in names else f"{struct.calcsize(form)}x" for name, form in fields))


def offset_of(fields: Fields, name: str) -> int:
    """The offset of the field called ``name``, in bytes."""
    return packed(fields[: [own for own, _ in fields].index(name)]).size


def unpack_fields(fields: Fields, data: bytes, at: int = 0, pointer_size: int = 8) -> dict[str, Any]:
    """The values of the fields that begin at ``at``, by name. `struct.error` where the bytes are too few."""
    values = packed(fields, pointer_size).unpack_from(data, at)
    return {name: value for (name, _), value in zip(fields, values, strict=True)}


def pack_fields(fields: Fields, values: Mapping[str, Any], pointer_size: int = 8) -> bytes:
    """The bytes of the fields, from their values by name.

    Raises `ValueError` that names the fields without a value, or the field that cannot hold its value.
    """
    missing = [name for name, _ in fields if name not in values]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing")
    wanted = [values[name] for name, _ in fields]
    try:
        return packed(fields, pointer_size).pack(*wanted)
    except struct.error as error:
        raise ValueError(misfit(((name, _form(form, pointer_size)) for name, form in fields), wanted)) from error


FILETIME_EPOCH = 116_444_736_000_000_000
"""1970-01-01 as FILETIME, which is in units of 100 ns."""


# -- buffers

BUFFER_HEADER: Fields = (  # WMI_BUFFER_HEADER, Vista and later, 32 and 64 bit
    ("BufferSize", "I"),  # 0x00: distance to the next buffer
    ("SavedOffset", "I"),  # 0x04: not the used length, despite its name; 0 in files of Windows 7
    ("CurrentOffset", "I"),  # 0x08: the last value of the reservation counter
    ("ReferenceCount", "i"),  # 0x0C
    ("TimeStamp", "q"),  # 0x10: when it was flushed, session clock; FILETIME in merged files, 0 in the first buffer
    ("SequenceNumber", "q"),  # 0x18: one counter a session, from 1; the first buffer has 0
    ("ClockTypeFrequency", "Q"),  # 0x20: only in buffers of type DBG_INFO (bits 0-2, 3-63), else stale
    ("ProcessorIndex", "H"),  # 0x28: without PROC_INDEX (Windows 7): u8 ProcessorNumber, u8 Alignment
    ("LoggerId", "H"),  # 0x2A
    ("State", "I"),  # 0x2C: BUFFER_STATE; in the first buffer of a compressed file the low half is the format
    ("Offset", "I"),  # 0x30: used bytes, this header included; of a compressed buffer after decompression
    ("BufferFlag", "H"),  # 0x34
    ("BufferType", "H"),  # 0x36
    ("Reserved", "16s"),  # 0x38: StartTime and StartPerfClock in buffers of type REFTIME, else stale
)
BUFFER_HEADER_SIZE = 0x48

LEAST_BUFFER = 1024
"""Bytes of the smallest buffer. Sessions have 4 KiB or more; relogged files also have 1 KiB."""
MAX_BUFFER = 16 << 20
"""Bytes of the largest buffer that a session can have (EVENT_TRACE_PROPERTIES.BufferSize, since Windows 8)."""


class BUFFER_FLAG:  # noqa: N801 - named as in ntwmi.h
    """Bits of BufferFlag (WMI_BUFFER_FLAG_*)."""

    FLUSH_MARKER, EVENTS_LOST, BUFFER_LOST, RTBACKUP_CORRUPT, RTBACKUP, PROC_INDEX, COMPRESSED = (
        1 << bit for bit in range(7)
    )


class BUFFER_STATE:  # noqa: N801 - as ETW_BUFFER_STATE in ntwmi.h
    """Values of State. In files all buffers are flushed."""

    FREE, GENERAL_LOGGING, CSWITCH, FLUSH = range(4)


class BUFFER_TYPE:  # noqa: N801
    """Values of BufferType (WMI_BUFFER_TYPE_*)."""

    GENERIC, RUNDOWN, CTX_SWAP, REFTIME, HEADER, BATCHED, EMPTY_MARKER, DBG_INFO = range(8)


# -- the first event of a file

TIME_ZONE_SIZE = 172  # TIME_ZONE_INFORMATION

LOGFILE_HEADER: Fields = (  # TRACE_LOGFILE_HEADER; offsets for 32/64 bit
    ("BufferSize", "I"),  # 0x00: bytes
    ("MajorVersion", "B"),
    ("MinorVersion", "B"),
    ("SubVersion", "B"),
    ("SubMinorVersion", "B"),  # 0x04
    ("ProviderVersion", "I"),  # 0x08: build of the operating system
    ("NumberOfProcessors", "I"),  # 0x0C: 1 with NO_PER_PROCESSOR_BUFFERING
    ("EndTime", "q"),  # 0x10: FILETIME, 0 while the session runs
    ("TimerResolution", "I"),  # 0x18: 100 ns
    ("MaximumFileSize", "I"),  # 0x1C: MB
    ("LogFileMode", "I"),  # 0x20
    ("BuffersWritten", "I"),  # 0x24: the first one included
    ("StartBuffers", "I"),  # 0x28
    ("PointerSize", "I"),  # 0x2C: bytes
    ("EventsLost", "I"),  # 0x30
    ("CpuSpeedInMHz", "I"),  # 0x34
    ("LoggerName", "P"),  # 0x38: since Windows 7 a small number
    ("LogFileName", "P"),  # 0x3C/0x40: likewise
    ("TimeZone", f"{TIME_ZONE_SIZE}s"),  # 0x40/0x48: TIME_ZONE_INFORMATION
    ("Padding", "I"),  # 0xEC/0xF4
    ("BootTime", "q"),  # 0xF0/0xF8: FILETIME
    ("PerfFreq", "q"),  # 0xF8/0x100: Hz of the performance counter
    ("StartTime", "q"),  # 0x100/0x108: FILETIME
    ("ReservedFlags", "I"),  # 0x108/0x110: type of the session clock
    ("BuffersLost", "I"),  # 0x10C/0x114; then session name and file name, UTF-16 and NUL, as far as the event goes
)

CLOCK_NAMES = {1: "QPC", 2: "system time", 3: "TSC"}


class LogFileMode(IntFlag):
    """EVENT_TRACE_*_MODE: where events go, and how."""

    FILE_MODE_NONE = 0
    FILE_MODE_SEQUENTIAL = 0x1
    FILE_MODE_CIRCULAR = 0x2
    FILE_MODE_APPEND = 0x4
    FILE_MODE_NEWFILE = 0x8
    USE_MS_FLUSH_TIMER = 0x10
    FILE_MODE_PREALLOCATE = 0x20
    NONSTOPPABLE_MODE = 0x40
    SECURE_MODE = 0x80
    REAL_TIME_MODE = 0x100
    DELAY_OPEN_FILE_MODE = 0x200
    BUFFERING_MODE = 0x400
    PRIVATE_LOGGER_MODE = 0x800
    ADD_HEADER_MODE = 0x1000
    USE_KBYTES_FOR_SIZE = 0x2000
    USE_GLOBAL_SEQUENCE = 0x4000
    USE_LOCAL_SEQUENCE = 0x8000
    RELOG_MODE = 0x10000
    PRIVATE_IN_PROC = 0x20000
    MODE_RESERVED = 0x100000
    STOP_ON_HYBRID_SHUTDOWN = 0x400000
    PERSIST_ON_HYBRID_SHUTDOWN = 0x800000
    USE_PAGED_MEMORY = 0x1000000
    SYSTEM_LOGGER_MODE = 0x2000000
    COMPRESSED_MODE = 0x4000000
    INDEPENDENT_SESSION_MODE = 0x8000000
    NO_PER_PROCESSOR_BUFFERING = 0x10000000
    BLOCKING_MODE = 0x20000000
    ADDTO_TRIAGE_DUMP = 0x80000000


# -- events

END_OF_BUFFER = 0xFFFFFFFF
"""In place of an event: the end of this buffer."""
LARGEST_EVENT = 0xFFFF
"""Bytes: Size has 16 bits."""

_PERFINFO: Fields = (  # PERFINFO_TRACE_HEADER
    ("Version", "H"),
    ("HeaderType", "B"),
    ("MarkerFlags", "B"),
    ("Size", "H"),
    ("Type", "B"),
    ("Group", "B"),  # 0x00
    ("TimeStamp", "q"),  # 0x08
)
_COMPACT: Fields = (  # SYSTEM_TRACE_HEADER without its last fields
    *_PERFINFO[:6],  # 0x00
    ("ThreadId", "i"),
    ("ProcessId", "i"),
    ("TimeStamp", "q"),  # 0x08
)
_SYSTEM: Fields = (*_COMPACT, ("KernelTime", "I"), ("UserTime", "I"))  # 0x18
_FULL: Fields = (  # EVENT_TRACE_HEADER
    ("Size", "H"), ("HeaderType", "B"), ("MarkerFlags", "B"), ("Type", "B"), ("Level", "B"), ("Version", "H"),  # 0x00
    ("ThreadId", "i"), ("ProcessId", "i"), ("TimeStamp", "q"),  # 0x08
    ("Guid", "16s"), ("ProcessorTime", "Q"),  # 0x18
)  # fmt: skip
_INSTANCE: Fields = (  # EVENT_INSTANCE_GUID_HEADER
    *_FULL,
    ("InstanceId", "I"),
    ("ParentInstanceId", "I"),
    ("ParentGuid", "16s"),  # 0x30
)
_EVENT: Fields = (  # EVENT_HEADER
    ("Size", "H"), ("HeaderType", "B"), ("MarkerFlags", "B"), ("Flags", "H"), ("EventProperty", "H"),  # 0x00
    ("ThreadId", "i"), ("ProcessId", "i"), ("TimeStamp", "q"), ("ProviderId", "16s"),  # 0x08
    ("Id", "H"), ("Version", "B"), ("Channel", "B"), ("Level", "B"), ("Opcode", "B"), ("Task", "H"),  # 0x28
    ("Keyword", "Q"), ("ProcessorTime", "Q"), ("ActivityId", "16s"),  # 0x30
)  # fmt: skip
_ERROR: Fields = (("Size", "H"), ("HeaderType", "B"), ("MarkerFlags", "B"), ("Reserved", "I"))  # 0x00: not documented


@dataclass(frozen=True, slots=True)
class HeaderKind:
    """One event header. ``pointer_size`` 0: that of the log."""

    name: str
    fields: Fields
    pointer_size: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return packed(self.fields).size

    @property
    def is_system(self) -> bool:
        """Whether it is the kernel's form: Version first, Size at 4, a hook id (Group, Type) instead of a GUID."""
        return self.fields[0][0] == "Version"


HEADERS = {  # TRACE_HEADER_TYPE_*: the third byte of an event whose fourth has bits 0xC0
    1: HeaderKind("SYSTEM32", _SYSTEM, 4), 2: HeaderKind("SYSTEM64", _SYSTEM, 8),
    3: HeaderKind("COMPACT32", _COMPACT, 4), 4: HeaderKind("COMPACT64", _COMPACT, 8),
    10: HeaderKind("FULL_HEADER32", _FULL, 4), 11: HeaderKind("INSTANCE32", _INSTANCE, 4),
    13: HeaderKind("ERROR", _ERROR),
    16: HeaderKind("PERFINFO32", _PERFINFO, 4), 17: HeaderKind("PERFINFO64", _PERFINFO, 8),
    18: HeaderKind("EVENT_HEADER32", _EVENT, 4), 19: HeaderKind("EVENT_HEADER64", _EVENT, 8),
    20: HeaderKind("FULL_HEADER64", _FULL, 8), 21: HeaderKind("INSTANCE64", _INSTANCE, 8),
}  # fmt: skip

EVENT_HEADERS = frozenset(type_ for type_, kind in HEADERS.items() if kind.fields is _EVENT)
"""Header types of manifest and self-describing events."""
CLASSIC_HEADERS = frozenset(type_ for type_, kind in HEADERS.items() if kind.fields in (_FULL, _INSTANCE))
"""Header types of events under the GUID of a class."""

PMC_COUNTERS, PEBS_INDEX = 0x0700, 0x8000
"""Bits of the Version of a kernel header: the number of u64 counter values that follow it (from bit 8), then whether a
u64 index follows those.

The order is that of ntwmi.h's description; no file with both has been seen."""

MESSAGE = 0x90
"""The header type that this package gives a MESSAGE (WPP) event: the fourth byte of the event."""

MESSAGE_HEAD: Fields = (  # MESSAGE_TRACE_HEADER
    ("Size", "H"),
    ("Reserved", "B"),
    ("MarkerFlags", "B"),
    ("MessageNumber", "H"),
    ("OptionFlags", "H"),  # 0x00
)
_MESSAGE_FIELDS = (  # then by flag:
    (0x01, ("SequenceNumber", "I")),
    (0x04, ("ComponentId", "I")),
    (0x02, ("MessageGuid", "16s")),  # not if there is a ComponentId
    (0x08, ("TimeStamp", "q")),
    (0x20, ("ThreadId", "i")),
    (0x20, ("ProcessId", "i")),
)


def message_header(options: int) -> Fields:
    """The header of a MESSAGE event whose OptionFlags are ``options``."""
    return (
        *MESSAGE_HEAD,
        *(
            field
            for flag, field in _MESSAGE_FIELDS
            if options & flag and not (field[0] == "MessageGuid" and options & MESSAGE_FLAG.COMPONENTID)
        ),
    )


class MESSAGE_FLAG:  # noqa: N801
    """Bits of OptionFlags (TRACE_MESSAGE_*)."""

    SEQUENCE, GUID, COMPONENTID, TIMESTAMP, PERFORMANCE_TIMESTAMP, SYSTEMINFO, POINTER32, POINTER64 = (
        1 << bit for bit in range(8)
    )


class EVENT_FLAG:  # noqa: N801
    """Bits of EVENT_HEADER.Flags."""

    EXTENDED_INFO = 1


EXTENDED_ITEM: Fields = (  # EVENT_HEADER_EXTENDED_DATA_ITEM on disk
    ("Size", "H"),
    ("ExtType", "H"),
    ("Linkage", "H"),
    ("DataSize", "H"),  # 0x00: Linkage bit 0: another one follows
)


class EXTENDED_TYPE:  # noqa: N801
    """Values of ExtType (EVENT_HEADER_EXT_TYPE_*)."""

    (
        RELATED_ACTIVITYID,
        SID,
        TS_ID,
        INSTANCE_INFO,
        STACK_TRACE32,
        STACK_TRACE64,
        PEBS_INDEX,
        PMC_COUNTERS,
        PSM_KEY,
        EVENT_KEY,
        EVENT_SCHEMA_TL,
        PROV_TRAITS,
        PROCESS_START_KEY,
        CONTROL_GUID,
        QPC_DELTA,
        CONTAINER_ID,
        STACK_KEY32,
        STACK_KEY64,
    ) = range(1, 19)
