"""The container of an .etl file as declarations: buffer header, log file header, event headers, flags.

Names and order are those of ntwmi.h (WMI_BUFFER_HEADER, SYSTEM_TRACE_HEADER, PERFINFO_TRACE_HEADER), evntrace.h and
evntcons.h (TRACE_LOGFILE_HEADER, EVENT_TRACE_HEADER, EVENT_INSTANCE_HEADER, EVENT_HEADER), as published in Geoff
Chappell's studies, the phnt headers and Microsoft's documentation. Everything is little-endian. Payloads: see
`kernel`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

__all__ = [
    "BUFFER_FLAG", "BUFFER_HEADER", "BUFFER_HEADER_SIZE", "BUFFER_TYPE", "CLASSIC_HEADERS", "CLOCK_NAMES",
    "END_OF_BUFFER", "EVENT_FLAG", "EVENT_HEADERS", "EXTENDED_ITEM", "EXTENDED_TYPE", "FILETIME_EPOCH", "HEADERS",
    "HeaderKind", "LARGEST_EVENT", "LOG_FILE_MODE", "LOGFILE_HEADER", "MESSAGE", "MESSAGE_FLAG", "MESSAGE_HEAD",
    "PEBS_INDEX", "PMC_COUNTERS", "TIME_ZONE_SIZE", "Fields", "message_fields", "pack_fields",
    "packed", "unpack_fields",
]  # fmt: skip

Fields = tuple[tuple[str, str], ...]
"""(name, format character of `struct`), in file order without gaps; ``P`` is a pointer of the writer's size."""


@lru_cache
def packed(fields: Fields, pointer_size: int = 8) -> struct.Struct:
    """The fields as one `struct.Struct`."""
    return struct.Struct("<" + "".join(form for _, form in fields).replace("P", "I" if pointer_size == 4 else "Q"))


def unpack_fields(fields: Fields, data: bytes, at: int = 0, pointer_size: int = 8) -> dict[str, Any]:
    """The values of the fields that begin at ``at``, by name. `struct.error` where the bytes are too few."""
    values = packed(fields, pointer_size).unpack_from(data, at)
    return {name: value for (name, _), value in zip(fields, values, strict=True)}


def pack_fields(fields: Fields, values: Mapping[str, Any]) -> bytes:
    """The bytes of the fields, from their values by name."""
    return packed(fields).pack(*(values[name] for name, _ in fields))


FILETIME_EPOCH = 116_444_736_000_000_000
"""1970-01-01 as FILETIME, which is in units of 100 ns."""


# -- buffers

BUFFER_HEADER: Fields = (  # WMI_BUFFER_HEADER, Vista and later, 32 and 64 bit
    ("BufferSize", "I"),  # 0x00: distance to the next buffer
    ("SavedOffset", "I"),  # 0x04: not the used length, whatever its name says; 0 in files of Windows 7
    ("CurrentOffset", "I"),  # 0x08: what was left of the reservation counter
    ("ReferenceCount", "i"),  # 0x0C
    ("TimeStamp", "q"),  # 0x10: when it was flushed, session clock; FILETIME in merged files, 0 in the first buffer
    ("SequenceNumber", "q"),  # 0x18: one counter a session, from 1; the first buffer has 0
    ("ClockTypeFrequency", "Q"),  # 0x20: only in buffers of type DBG_INFO (bits 0-2, 3-63), else stale
    ("ProcessorIndex", "H"),  # 0x28: without PROC_INDEX (Windows 7): u8 ProcessorNumber, u8 Alignment
    ("LoggerId", "H"),  # 0x2A
    ("State", "I"),  # 0x2C: 3 flushed; in the first buffer of a compressed file the low half is the format
    ("Offset", "I"),  # 0x30: used bytes, this header included; of a compressed buffer after decompression
    ("BufferFlag", "H"),  # 0x34
    ("BufferType", "H"),  # 0x36
    ("Reserved", "16s"),  # 0x38: StartTime and StartPerfClock in buffers of type REFTIME, else stale
)
BUFFER_HEADER_SIZE = 0x48


class BUFFER_FLAG:  # noqa: N801 - named as in ntwmi.h
    """Bits of BufferFlag (WMI_BUFFER_FLAG_*)."""

    FLUSH_MARKER, EVENTS_LOST, BUFFER_LOST, RTBACKUP_CORRUPT, RTBACKUP, PROC_INDEX, COMPRESSED = (
        1 << bit for bit in range(7)
    )


class BUFFER_TYPE:  # noqa: N801
    """Values of BufferType (WMI_BUFFER_TYPE_*)."""

    GENERIC, RUNDOWN, CTX_SWAP, REFTIME, HEADER, BATCHED, EMPTY_MARKER, DBG_INFO = range(8)


# -- the first event of a file

TIME_ZONE_SIZE = 172  # TIME_ZONE_INFORMATION

LOGFILE_HEADER: Fields = (  # TRACE_LOGFILE_HEADER; offsets for 32/64 bit
    ("BufferSize", "I"),  # 0x00: bytes
    ("MajorVersion", "B"), ("MinorVersion", "B"), ("SubVersion", "B"), ("SubMinorVersion", "B"),  # 0x04
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
    ("LoggerName", "P"),  # 0x38: no pointer but a small number since Windows 7
    ("LogFileName", "P"),  # 0x3C/0x40: likewise
    ("TimeZone", f"{TIME_ZONE_SIZE}s"),  # 0x40/0x48: TIME_ZONE_INFORMATION
    ("Padding", "I"),  # 0xEC/0xF4
    ("BootTime", "q"),  # 0xF0/0xF8: FILETIME
    ("PerfFreq", "q"),  # 0xF8/0x100: Hz of the performance counter
    ("StartTime", "q"),  # 0x100/0x108: FILETIME
    ("ReservedFlags", "I"),  # 0x108/0x110: type of the session clock
    ("BuffersLost", "I"),  # 0x10C/0x114; then session name and file name, UTF-16 and NUL, as far as the event goes
)  # fmt: skip

CLOCK_NAMES = {1: "QPC", 2: "system time", 3: "TSC"}


class LOG_FILE_MODE:  # noqa: N801
    """Bits of LogFileMode (EVENT_TRACE_*) that change what a reader finds in the file."""

    SEQUENTIAL, CIRCULAR, APPEND, NEWFILE, PREALLOCATE = 0x1, 0x2, 0x4, 0x8, 0x20
    ADD_HEADER, RELOG, COMPRESSED, NO_PER_PROCESSOR_BUFFERING = 0x1000, 0x10000, 0x4000000, 0x10000000


# -- events

END_OF_BUFFER = 0xFFFFFFFF
"""Instead of an event: nothing more in this buffer."""
LARGEST_EVENT = 0xFFFF
"""Bytes: Size has 16 bits."""

_PERFINFO: Fields = (  # PERFINFO_TRACE_HEADER
    ("Version", "H"), ("HeaderType", "B"), ("MarkerFlags", "B"), ("Size", "H"), ("Type", "B"), ("Group", "B"),  # 0x00
    ("TimeStamp", "q"),  # 0x08
)  # fmt: skip
_COMPACT: Fields = (  # SYSTEM_TRACE_HEADER without its last fields
    *_PERFINFO[:6],  # 0x00
    ("ThreadId", "i"), ("ProcessId", "i"), ("TimeStamp", "q"),  # 0x08
)  # fmt: skip
_SYSTEM: Fields = (*_COMPACT, ("KernelTime", "I"), ("UserTime", "I"))  # 0x18
_FULL: Fields = (  # EVENT_TRACE_HEADER
    ("Size", "H"), ("HeaderType", "B"), ("MarkerFlags", "B"), ("Type", "B"), ("Level", "B"), ("Version", "H"),  # 0x00
    ("ThreadId", "i"), ("ProcessId", "i"), ("TimeStamp", "q"),  # 0x08
    ("Guid", "16s"), ("ProcessorTime", "Q"),  # 0x18
)  # fmt: skip
_INSTANCE: Fields = (  # EVENT_INSTANCE_GUID_HEADER
    *_FULL,
    ("InstanceId", "I"), ("ParentInstanceId", "I"), ("ParentGuid", "16s"),  # 0x30
)  # fmt: skip
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
        """Whether the kernel's form: Version first, Size at 4, a hook id (Group, Type) instead of a GUID."""
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
"""Bits of the Version of a kernel header: how many u64 counter values follow it (from bit 8), then a u64 index.

Their order is that of ntwmi.h's description; no file with both has been seen."""

MESSAGE = 0x90
"""What stands for the header type of a MESSAGE (WPP) event: the fourth byte of the event."""

MESSAGE_HEAD: Fields = (  # MESSAGE_TRACE_HEADER
    ("Size", "H"), ("Reserved", "B"), ("MarkerFlags", "B"), ("MessageNumber", "H"), ("OptionFlags", "H"),  # 0x00
)  # fmt: skip
_MESSAGE_FIELDS = (  # then by flag:
    (0x01, ("SequenceNumber", "I")),
    (0x04, ("ComponentId", "I")),
    (0x02, ("MessageGuid", "16s")),  # not if there is a ComponentId
    (0x08, ("TimeStamp", "q")),
    (0x20, ("ThreadId", "i")),
    (0x20, ("ProcessId", "i")),
)


def message_fields(options: int) -> Fields:
    """The fields behind OptionFlags in a MESSAGE header with these ones."""
    return tuple(
        field
        for flag, field in _MESSAGE_FIELDS
        if options & flag and not (field[0] == "MessageGuid" and options & MESSAGE_FLAG.COMPONENTID)
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
    ("Size", "H"), ("ExtType", "H"), ("Linkage", "H"), ("DataSize", "H"),  # 0x00: Linkage bit 0: another one follows
)  # fmt: skip


class EXTENDED_TYPE:  # noqa: N801
    """Values of ExtType (EVENT_HEADER_EXT_TYPE_*)."""

    (
        RELATED_ACTIVITYID, SID, TS_ID, INSTANCE_INFO, STACK_TRACE32, STACK_TRACE64, PEBS_INDEX, PMC_COUNTERS, PSM_KEY,
        EVENT_KEY, EVENT_SCHEMA_TL, PROV_TRAITS, PROCESS_START_KEY, CONTROL_GUID, QPC_DELTA, CONTAINER_ID,
        STACK_KEY32, STACK_KEY64,
    ) = range(1, 19)  # fmt: skip
