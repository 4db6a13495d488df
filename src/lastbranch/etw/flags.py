"""Flags and numbers of the trace API: evntrace.h, evntcons.h and wmistr.h.

Names are the headers' without their prefixes. `portable.request` has the rules for combinations of logging modes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from ..formats.etl import LogFileMode
from .structures import LAYOUTS, structure

__all__ = [
    "CIRCULAR_KERNEL_LOGGER",
    "ClientContext",
    "Control",
    "EnableFlag",
    "EnableProvider",
    "FilterType",
    "GLOBAL_LOGGER",
    "GROUPS",
    "Info",
    "KERNEL_LOGGER",
    "KERNEL_LOGGER_NAME",
    "LBR_EXCLUDE_KERNEL",
    "LBR_EXCLUDE_USER",
    "LBR_FLAGS",
    "LBR_PROVIDER",
    "LBR_SAMPLED",
    "LogFileMode",
    "MAX_LBR_EVENTS",
    "MergeFlag",
    "PERFINFO_PROVIDER",
    "PMC_INTERRUPT",
    "ProcessTraceMode",
    "SE_SYSTEM_PROFILE_NAME",
    "STATUS_LOG_FILE_FULL",
    "V2Option",
    "WnodeFlag",
    "constants",
    "hook_ids",
]


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


class ProcessTraceMode(IntFlag):
    """PROCESS_TRACE_MODE_*: what a `Logfile` names, and how its events are delivered."""

    FILE = 0
    REAL_TIME = 0x100
    RAW_TIMESTAMP = 0x1000
    EVENT_RECORD = 0x10000000


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


class MergeFlag(IntFlag):
    """EVENT_TRACE_MERGE_EXTENDED_DATA_* of KernelTraceControl.h: what is added to the merged log."""

    NONE = 0
    IMAGEID = 0x1
    BUILDINFO = 0x2
    VOLUME_MAPPING = 0x4
    WINSAT = 0x8
    EVENT_METADATA = 0x10
    PERFTRACK_METADATA = 0x20
    NETWORK_INTERFACE = 0x40
    NGEN_PDB = 0x80
    COMPRESS_TRACE = 0x10000000
    INJECT_ONLY = 0x40000000
    DEFAULT = 0x000FFFFF
    ALL = 0x0FFFFFFF


class FilterType(IntEnum):
    """EVENT_FILTER_TYPE_*: the type of an EVENT_FILTER_DESCRIPTOR."""

    SYSTEM_FLAGS = 0x80000001
    PID = 0x80000004
    EXECUTABLE_NAME = 0x80000008
    EVENT_ID = 0x80000200
    STACKWALK = 0x80001000


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
    PMC_COUNTER_OWNERS = 25
    UNIFIED_STACK_CACHING_INFO = 26
    PMC_SESSION_INFORMATION = 27
    CONTEXT_REGISTER_INFO = 28
    SOFTWARE_BRANCH_TARGETS_INFO = 0x10000
    """This package's own, above all numbers of the vendor: the processes whose branches software records."""


class Group(NamedTuple):
    """One PERF_* group: ``bits`` of word ``word`` of PERFINFO_GROUPMASK."""

    word: int
    bits: int


_WORD_1 = (
    "MEMORY", "PROFILE", "CONTEXT_SWITCH", "FOOTPRINT", "DRIVERS", "REFSET", "POOL", "DPC", "COMPACT_CSWITCH",
    "DISPATCHER", "PMC_PROFILE", "PROCESS_INSWAP", "AFFINITY", "PRIORITY", "INTERRUPT", "VIRTUAL_ALLOC", "SPINLOCK",
    "SYNC_OBJECTS", "DPC_QUEUE", "MEMINFO",
)  # fmt: skip
"""From the lowest bit on."""
GROUPS = {name: Group(1, 1 << bit) for bit, name in enumerate(_WORD_1)} | {"SYSCALL": Group(2, 0x40)}
"""Groups that EnableFlags cannot name, by the name of their PERF_* constant (the top three bits of such a constant are
the word)."""

KERNEL_LOGGER_NAME = "NT Kernel Logger"
KERNEL_LOGGER = UUID("9e814aad-3204-11d2-9a82-006008a86939")
"""SystemTraceControlGuid: a session with it, or with the name, is a system logger."""
GLOBAL_LOGGER = UUID("e8908abc-aa84-11d2-9a93-00805f85d7c6")
CIRCULAR_KERNEL_LOGGER = UUID("54dea73a-ed1f-42a4-af71-3e63d056f174")
PERFINFO_PROVIDER = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc")
LBR_PROVIDER = UUID("99134383-5248-43fc-834b-529454e75df3")
PMC_INTERRUPT = 0x2F
"""Type of the event of `PERFINFO_PROVIDER` that a performance counter triggers."""
MAX_LBR_EVENTS = 4
SE_SYSTEM_PROFILE_NAME = "SeSystemProfilePrivilege"
STATUS_LOG_FILE_FULL = 0xC0000188
"""One of the kernel's own codes (ntstatus.h): a real-time session without readers has no room left."""
LBR_EXCLUDE_KERNEL, LBR_EXCLUDE_USER, LBR_SAMPLED = 0x1, 0x2, 0x400
LBR_FLAGS = 0x7FF
"""All EVNTRACE_LBR_FLAGS; their names are those of `lbr.NOTATIONS`."""


# -- Hook ids of kernel events: CLASSIC_EVENT_ID (GUID and type) as the number that the kernel has for it


_IMAGE_LOAD = {0x140A: 0x030A}
"""An image load has the GUID of images and the hook id of processes."""


@cache
def _groups() -> dict[UUID, int]:
    from ..formats.etl.kernel.hooks import GROUPS

    return {UUID(guid): group for group, (guid, _) in GROUPS.items()}


def hook_ids(events: Iterable[tuple[UUID, int]]) -> list[int]:
    """The hook ids (group << 8 | type) of ``events``, without those that no kernel group has.

    TraceConfigureLastBranchRecord leaves these out, too.
    """
    hooks = [_groups()[guid] << 8 | kind & 0xFF for guid, kind in events if guid in _groups()]
    return [_IMAGE_LOAD.get(hook, hook) for hook in hooks]


# -- The headers' own names: ``EVENT_TRACE_CONTROL_STOP`` is ``Control.STOP``


_PROFILE_SOURCES = (
    "Time", "AlignmentFixup", "TotalIssues", "PipelineDry", "LoadInstructions", "PipelineFrozen",
    "BranchInstructions", "TotalNonissues", "DcacheMisses", "IcacheMisses", "CacheMisses", "BranchMispredictions",
    "StoreInstructions", "FpInstructions", "IntegerInstructions", "2Issue", "3Issue", "4Issue",
    "SpecialInstructions", "TotalCycles", "IcacheIssues", "DcacheAccesses", "MemoryBarrierCycles",
    "LoadLinkedIssues", "Maximum",
)  # fmt: skip
"""KPROFILE_SOURCE, from 0 on. A machine's own sources follow: `profile_sources` lists them."""
_CLASS_WORDS = {"GUID": "Guid", "PMC": "Pmc", "LBR": "Lbr"}


def _class_name(name: str) -> str:
    """``PROFILE_SOURCE_LIST_INFO`` is TraceProfileSourceListInfo."""
    return "Trace" + "".join(_CLASS_WORDS.get(word, word.title()) for word in name.split("_"))


@cache
def constants() -> dict[str, Any]:
    """Name of a header -> number, GUID or ctypes class."""
    from ..lbr import NOTATIONS
    from .status import Status

    made: dict[str, Any] = {name: structure(name) for name in LAYOUTS}
    for prefix, numbers in (
        ("EVENT_TRACE_", LogFileMode),
        ("EVENT_TRACE_FLAG_", EnableFlag),
        ("EVENT_TRACE_CONTROL_", Control),
        ("WNODE_FLAG_", WnodeFlag),
        ("PROCESS_TRACE_MODE_", ProcessTraceMode),
        ("EVENT_FILTER_TYPE_", FilterType),
        ("EVENT_TRACE_MERGE_EXTENDED_DATA_", MergeFlag),
        ("ERROR_", Status),
    ):
        made |= {f"{prefix}{name}": number for name, number in numbers.__members__.items()}
    made |= {_class_name(info.name): info for info in Info}
    made |= {f"PERF_{name}": group for name, group in GROUPS.items()}
    made |= {f"Profile{name}": number for number, name in enumerate(_PROFILE_SOURCES)}
    for name, bit in NOTATIONS["etw"].named().items():
        made[f"EVNTRACE_LBR_{'' if name in ('CALLSTACK_ENABLE', 'SAMPLED') else 'FILTER_'}{name}"] = bit
    return made | {
        "EVENT_TRACE_FILE_MODE_NONE": LogFileMode.FILE_MODE_NONE,
        "EVNTRACE_LBR_FILTER_NONE": 0,
        "TRACE_LBR_CONFIGURATION_NONE": 0,
        "PERFINFO_LOG_TYPE_PMC_INTERRUPT": PMC_INTERRUPT,
        "EVNTRACE_MAX_LBR_EVENTS": MAX_LBR_EVENTS,
        "TRACE_LBR_MAXIMUM_EVENTS": MAX_LBR_EVENTS,
        "TRACE_LBR_EVENT_OPCODE": 0x20,
        "EVENT_CONTROL_CODE_DISABLE_PROVIDER": EnableProvider.DISABLE,
        "EVENT_CONTROL_CODE_ENABLE_PROVIDER": EnableProvider.ENABLE,
        "EVENT_CONTROL_CODE_CAPTURE_STATE": EnableProvider.CAPTURE_STATE,
        "STATUS_LOG_FILE_FULL": STATUS_LOG_FILE_FULL,
        "SE_SYSTEM_PROFILE_NAME": SE_SYSTEM_PROFILE_NAME,
        "KERNEL_LOGGER_NAME": KERNEL_LOGGER_NAME,
        "SystemTraceControlGuid": KERNEL_LOGGER,
        "GlobalLoggerGuid": GLOBAL_LOGGER,
    }
