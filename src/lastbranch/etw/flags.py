"""Flags and numbers of the trace API: evntrace.h, evntcons.h and wmistr.h.

Names are the headers' without their prefixes. What a combination of logging modes needs and forbids
is in `portable.request`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from functools import cache
from typing import NamedTuple
from uuid import UUID

__all__ = [
    "CIRCULAR_KERNEL_LOGGER", "ClientContext", "Control", "EnableFlag", "EnableProvider", "GLOBAL_LOGGER",
    "GROUPS", "Info", "KERNEL_LOGGER", "KERNEL_LOGGER_NAME", "LBR_PROVIDER", "LogFileMode", "MAX_LBR_EVENTS",
    "PERFINFO_PROVIDER", "V2Option", "WnodeFlag", "hook_ids", "hook_of",
]  # fmt: skip


class Control(IntEnum):
    """EVENT_TRACE_CONTROL_*: what `ControlTrace` does."""

    QUERY = 0
    STOP = 1
    UPDATE = 2
    FLUSH = 3
    INCREMENT_FILE = 4
    CONVERT_TO_REALTIME = 5


class EnableProvider(IntEnum):
    """EVENT_CONTROL_CODE_*: what `EnableTraceEx2` does."""

    DISABLE = 0
    ENABLE = 1
    CAPTURE_STATE = 2


class WnodeFlag(IntFlag):
    """WNODE_FLAG_* of WNODE_HEADER.Flags."""

    TRACED_GUID = 0x20000
    VERSIONED_PROPERTIES = 0x800000


class ClientContext(IntEnum):
    """Clock of a session (WNODE_HEADER.ClientContext)."""

    DEFAULT = 0
    QPC = 1
    SYSTEM_TIME = 2
    CPU_CYCLES = 3


class V2Option(IntFlag):
    """Bits of EVENT_TRACE_PROPERTIES_V2.V2Options."""

    NONE = 0
    WOW = 1
    QPC_DELTA_TRACKING = 2
    LARGE_MDL_PAGES = 4
    EXCLUDE_KERNEL_STACK = 8


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


class EnableFlag(IntFlag):
    """EVENT_TRACE_FLAG_*: events of the system provider; word 0 of the group masks."""

    PROCESS = 0x1
    THREAD = 0x2
    IMAGE_LOAD = 0x4
    PROCESS_COUNTERS = 0x8
    CSWITCH = 0x10
    DPC = 0x20
    INTERRUPT = 0x40
    SYSTEMCALL = 0x80
    DISK_IO = 0x100
    DISK_FILE_IO = 0x200
    DISK_IO_INIT = 0x400
    DISPATCHER = 0x800
    MEMORY_PAGE_FAULTS = 0x1000
    MEMORY_HARD_FAULTS = 0x2000
    VIRTUAL_ALLOC = 0x4000
    VAMAP = 0x8000
    NETWORK_TCPIP = 0x10000
    REGISTRY = 0x20000
    DBGPRINT = 0x40000
    JOB = 0x80000
    ALPC = 0x100000
    SPLIT_IO = 0x200000
    DEBUG_EVENTS = 0x400000
    DRIVER = 0x800000
    PROFILE = 0x1000000
    FILE_IO = 0x2000000
    FILE_IO_INIT = 0x4000000
    NO_SYSCONFIG = 0x10000000
    ENABLE_RESERVE = 0x20000000
    FORWARD_WMI = 0x40000000
    EXTENSION = 0x80000000


class Info(IntEnum):
    """TRACE_INFO_CLASS: what `TraceSetInformation` and `TraceQueryInformation` set and get."""

    GUID_QUERY_LIST = 0
    GUID_QUERY_INFO = 1
    GUID_QUERY_PROCESS = 2
    STACK_TRACING_INFO = 3
    SYSTEM_TRACE_ENABLE_FLAGS_INFO = 4
    SAMPLED_PROFILE_INTERVAL_INFO = 5
    PROFILE_SOURCE_CONFIG_INFO = 6
    PROFILE_SOURCE_LIST_INFO = 7
    PMC_EVENT_LIST_INFO = 8
    PMC_COUNTER_LIST_INFO = 9
    SET_DISALLOW_LIST = 10
    VERSION_INFO = 11
    GROUP_QUERY_LIST = 12
    GROUP_QUERY_INFO = 13
    DISALLOW_LIST_QUERY = 14
    COMPRESSION_INFO = 15
    PERIODIC_CAPTURE_STATE_LIST_INFO = 16
    PERIODIC_CAPTURE_STATE_INFO = 17
    PROVIDER_BINARY_TRACKING = 18
    MAX_LOGGERS_QUERY = 19
    LBR_CONFIGURATION_INFO = 20
    LBR_EVENT_LIST_INFO = 21
    MAX_PMC_COUNTER_QUERY = 22
    STREAM_COUNT = 23
    STACK_CACHING_INFO = 24


class Group(NamedTuple):
    """One PERF_* group: ``bits`` of word ``word`` of PERFINFO_GROUPMASK."""

    word: int
    bits: int


GROUPS: dict[str, Group] = {
    "MEMORY": Group(1, 0x1), "PROFILE": Group(1, 0x2), "CONTEXT_SWITCH": Group(1, 0x4), "FOOTPRINT": Group(1, 0x8),
    "DRIVERS": Group(1, 0x10), "REFSET": Group(1, 0x20), "POOL": Group(1, 0x40), "DPC": Group(1, 0x80),
    "COMPACT_CSWITCH": Group(1, 0x100), "DISPATCHER": Group(1, 0x200), "PMC_PROFILE": Group(1, 0x400),
    "PROCESS_INSWAP": Group(1, 0x800), "AFFINITY": Group(1, 0x1000), "PRIORITY": Group(1, 0x2000),
    "INTERRUPT": Group(1, 0x4000), "VIRTUAL_ALLOC": Group(1, 0x8000), "SPINLOCK": Group(1, 0x10000),
    "SYNC_OBJECTS": Group(1, 0x20000), "DPC_QUEUE": Group(1, 0x40000), "MEMINFO": Group(1, 0x80000),
    "SYSCALL": Group(2, 0x40),
}  # fmt: skip
"""Groups that EnableFlags cannot name, by the name of their PERF_* constant (the top three bits of such a constant are
the word)."""

KERNEL_LOGGER_NAME = "NT Kernel Logger"
KERNEL_LOGGER = UUID("9e814aad-3204-11d2-9a82-006008a86939")
"""SystemTraceControlGuid: a session with it, or with the name, is a system logger."""
GLOBAL_LOGGER = UUID("e8908abc-aa84-11d2-9a93-00805f85d7c6")
CIRCULAR_KERNEL_LOGGER = UUID("54dea73a-ed1f-42a4-af71-3e63d056f174")
PERFINFO_PROVIDER = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc")
LBR_PROVIDER = UUID("99134383-5248-43fc-834b-529454e75df3")
MAX_LBR_EVENTS = 4


# -- Hook ids of kernel events: CLASSIC_EVENT_ID (GUID and type) as the number that the kernel has for it


@cache
def _groups() -> dict[UUID, int]:
    from ..formats.etl.kernel.hooks import GROUPS

    return {UUID(guid): group for group, (guid, _) in GROUPS.items()}


def hook_of(guid: UUID, kind: int) -> int | None:
    """The hook id (group << 8 | type); ``None`` for a GUID that is no kernel group."""
    group = _groups().get(guid)
    return None if group is None else group << 8 | kind & 0xFF


def hook_ids(events: Sequence[tuple[UUID, int]]) -> list[int]:
    """Those of ``events``; what no kernel group has is left out, as TraceConfigureLastBranchRecord does."""
    return [hook for hook in (hook_of(*event) for event in events) if hook is not None]
