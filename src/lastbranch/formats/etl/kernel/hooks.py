"""Hook ids of kernel events: groups, event types, GUIDs and names.

A hook id is group << 8 | type. Groups and GUIDs: Geoff Chappell's table of hook ids, phnt's ntwmi.h. Names of tasks and
opcodes are those under which Microsoft's TraceEvent prints the events, so that output can be compared; where TraceEvent
has none, the constant's name in ntwmi.h or evntrace.h, in the same style.
"""

from __future__ import annotations

from uuid import UUID

from ..single_event import Event

__all__ = [
    "ALPC",
    "CRIT_SEC",
    "DC_END",
    "DC_START",
    "DISK_IO",
    "END",
    "FILE_IO",
    "GROUPS",
    "HEAP",
    "IMAGE",
    "IMAGE_ID",
    "Key",
    "LBR",
    "LBR_SAMPLE",
    "LOAD",
    "META_DATA",
    "OBJECT",
    "PAGE_FAULT",
    "PERF_INFO",
    "PMC_SAMPLE",
    "PROCESS",
    "REGISTRY",
    "SAMPLED_PROFILE",
    "SAMPLE_CACHE",
    "SESSION",
    "SET_INTERVAL",
    "SPLIT_IO",
    "STACK",
    "STACK_DEFINITIONS",
    "STACK_KEY_KERNEL",
    "STACK_KEY_USER",
    "STACK_WALK",
    "START",
    "SYS_CONFIG",
    "SYS_CONFIG_EX",
    "TCP_IP",
    "THREAD",
    "THREAD_LIFE",
    "THREAD_POOL",
    "UDP_IP",
    "UNLOAD",
    "WIN_SAT",
    "guid_text",
    "hook_provider",
    "kernel_key",
    "kernel_names",
    "opcode_name",
]


Key = tuple[int | str, int]
"""What the kernel tables are keyed by: the group of the hook id, or a GUID that has no group, and the event's type."""

SESSION, DISK_IO, PAGE_FAULT, PROCESS, FILE_IO, THREAD, TCP_IP, UDP_IP, REGISTRY = 0, 1, 2, 3, 4, 5, 6, 8, 9
SYS_CONFIG, LBR, PERF_INFO, HEAP, OBJECT, IMAGE, CRIT_SEC, STACK_WALK = 0x0B, 0x0C, 0x0F, 0x10, 0x11, 0x14, 0x17, 0x18
ALPC, SPLIT_IO, THREAD_POOL = 0x1A, 0x1B, 0x1C
"""Groups."""

IMAGE_ID = "b3e675d7-2554-4f18-830b-2762732560de"
SYS_CONFIG_EX = "9b79ee91-b5fd-41c0-a243-4248e266e9d0"
META_DATA = "bbccf6c1-6cd1-48c4-80ff-839482e37671"
WIN_SAT = "ed54dff8-c409-4cf6-bf83-05e1e61a09c4"
"""GUIDs of the events that merging (KernelTraceControl) adds; they have no group."""

START, END, DC_START, DC_END = 1, 2, 3, 4
"""Types of process and thread events; the last two list what exists when a session begins and ends (rundown)."""
THREAD_LIFE = tuple(THREAD << 8 | type_ for type_ in (START, END, DC_START, DC_END))
"""Hooks of the events that say which process a thread belongs to."""
UNLOAD, LOAD = 2, 10
"""Types of image events, beside DC_START and DC_END."""
SAMPLED_PROFILE, PMC_SAMPLE, SAMPLE_CACHE, SET_INTERVAL, LBR_SAMPLE = 0x0F2E, 0x0F2F, 0x0F37, 0x0F48, 0x0C20
STACK, STACK_KEY_KERNEL, STACK_KEY_USER = 0x1820, 0x1825, 0x1826
STACK_DEFINITIONS = (0x1822, 0x1823, 0x1824)
"""Hook ids of the events that samples are made of."""

GROUPS: dict[int, tuple[str, str]] = {  # group of a hook id: GUID, name
    0x00: ("68fdd900-4a3e-11d1-84f4-0000f80464e3", "EventTrace"),
    0x01: ("3d6fa8d4-fe05-11d0-9dda-00c04fd7ba7c", "DiskIO"),
    0x02: ("3d6fa8d3-fe05-11d0-9dda-00c04fd7ba7c", "Memory"),
    0x03: ("3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c", "Process"),
    0x04: ("90cbdc39-4a3e-11d1-84f4-0000f80464e3", "FileIO"),
    0x05: ("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c", "Thread"),
    0x06: ("9a280ac0-c8e0-11d1-84e2-00c04fb998a2", "TcpIp"),
    0x07: ("3282fc76-feed-498e-8aa7-e70f459d430e", "Job"),
    0x08: ("bf3a50c5-a9c9-4988-a005-2df0b7c80f80", "UdpIp"),
    0x09: ("ae53722e-c863-11d2-8659-00c04fa321a1", "Registry"),
    0x0A: ("13976d09-a327-438c-950b-7f03192815c7", "DbgPrint"),
    0x0B: ("01853a65-418f-4f36-aefc-dc0f1d2fd235", "SystemConfig"),
    0x0C: ("99134383-5248-43fc-834b-529454e75df3", "LastBranchRecording"),
    0x0D: ("42695762-ea50-497a-9068-5cbbb35e0b95", "Wnf"),
    0x0E: ("0268a8b6-74fd-4302-9dd0-6e8f1795c0cf", "Pool"),
    0x0F: ("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc", "PerfInfo"),
    0x10: ("222962ab-6180-4b88-a825-346b75f2a24a", "HeapTrace"),
    0x11: ("89497f50-effe-4440-8cf2-ce6b1cdcaca7", "Object"),
    0x12: ("e43445e0-0903-48c3-b878-ff0fccebdd04", "Power"),
    0x13: ("a9152f00-3f58-4bee-92a1-70c7d079d5dd", "ModBound"),
    0x14: ("2cb15d1d-5fc1-11d2-abe1-00a0c911f518", "Image"),
    0x15: ("b2d14872-7c5b-463d-8419-ee9bf7d23e04", "Dpc"),
    0x16: ("7687a439-f752-45b8-b741-321aec0f8df9", "Cc"),
    0x17: ("3ac66736-cc59-4cff-8115-8df50e39816b", "CritSecTrace"),
    0x18: ("def2fe46-7bd6-4b80-bd94-f57fe20d0ce3", "StackWalk"),
    0x19: ("9aec974b-5b8e-4118-9b92-3186d8002ce5", "Ums"),
    0x1A: ("45d8cccd-539f-4b72-a8b7-5c683142609a", "ALPC"),
    0x1B: ("d837ca92-12b9-44a5-ad6a-3a65b3578aa8", "SplitIo"),
    0x1C: ("c861d0e2-a2c1-4d36-9f9c-970bab943a12", "ThreadPoolTrace"),
    0x1D: ("7f2a405c-69b5-4bf9-a1f5-30e8f1afab5e", "Hypervisor"),
    0x1E: ("2ce9a149-effe-42f0-a635-a1d39e26c8f2", "HypervisorX"),
}

_OPCODES: dict[int | str, dict[int, str]] = {  # of a group or GUID; "Task/Name" where the task is not the group
    SESSION: {
        0: "", 5: "Extension", 8: "RundownComplete", 32: "EndExtension", 48: "RundownBegin", 49: "RundownEnd",
        64: "DbgID_RSDS", 66: "BuildLab", 67: "BinaryPath", 80: "PartitionInfo",
    },
    DISK_IO: {
        10: "Read", 11: "Write", 12: "ReadInit", 13: "WriteInit", 14: "FlushBuffers", 15: "FlushInit",
        34: "DriverMajorFunctionCall", 35: "DriverMajorFunctionReturn", 37: "DriverCompletionRoutine",
        52: "DriverCompleteRequest", 53: "DriverCompleteRequestReturn",
    },
    PAGE_FAULT: {
        10: "TransitionFault", 11: "DemandZeroFault", 12: "CopyOnWrite", 13: "GuardMemory", 14: "HardMemory",
        15: "AccessViolation", 32: "HardFault", 35: "InMemory", 73: "PFMappedSectionCreate", 76: "SessionDCStop",
        79: "PFMappedSectionDelete", 98: "VirtualMem/Alloc", 99: "VirtualMem/Free", 100: "HeapRangeRundown",
        101: "HeapRangeCreate", 102: "HeapRangeReserve", 103: "HeapRangeRelease", 104: "HeapRangeDestroy",
        105: "ImageLoadBacked", 112: "SystemMemInfo", 115: "InMemoryStoreFault", 117: "InMemoryActive",
        118: "PageAccess", 119: "PageRelease", 120: "RangeAccess", 121: "RangeRelease", 122: "Combine",
        123: "KernelMemUsage", 124: "MMStats", 125: "ProcessMemInfo", 126: "MemInfoSessionWS",
        127: "VirtualRotate", 128: "VirtualAllocDCStart", 129: "VirtualAllocDCStop", 130: "PageAccess",
        131: "RemoveFromWS", 132: "WSSharableRundown", 133: "InMemoryActiveRundown",
    },
    PROCESS: {
        1: "Start", 2: "Stop", 3: "DCStart", 4: "DCStop", 10: "Image/Load", 11: "Terminate", 32: "PerfCtr",
        33: "PerfCtrRundown", 39: "Defunct",
    },
    FILE_IO: {
        0: "Name", 32: "FileCreate", 35: "FileDelete", 36: "FileRundown", 37: "MapFile", 38: "UnmapFile",
        39: "MapFileDCStart", 40: "MapFileDCStop", 64: "Create", 65: "Cleanup", 66: "Close", 67: "Read",
        68: "Write", 69: "SetInfo", 70: "Delete", 71: "Rename", 72: "DirEnum", 73: "Flush", 74: "QueryInfo",
        75: "FSControl", 76: "OperationEnd", 77: "DirNotify",
    },
    THREAD: {
        1: "Start", 2: "Stop", 3: "DCStart", 4: "DCStop", 36: "CSwitch", 37: "CompCS",
        50: "Dispatcher/ReadyThread", 57: "WorkerThread", 62: "Enqueue", 63: "Dequeue", 72: "SetName",
    },
    TCP_IP: {
        10: "Send", 11: "Recv", 12: "Connect", 13: "Disconnect", 14: "Retransmit", 15: "Accept", 16: "Reconnect",
        17: "Fail", 18: "TCPCopy", 19: "ARPCopy", 20: "FullACK", 21: "PartACK", 22: "DupACK", 26: "SendIPV6",
        27: "RecvIPV6", 28: "ConnectIPV6", 29: "DisconnectIPV6", 30: "RetransmitIPV6", 31: "AcceptIPV6",
        32: "ReconnectIPV6", 34: "TCPCopyIPV6",
    },
    UDP_IP: {10: "Send", 11: "Recv", 17: "Fail", 26: "SendIPV6", 27: "RecvIPV6"},
    REGISTRY: {
        10: "Create", 11: "Open", 12: "Delete", 13: "Query", 14: "SetValue", 15: "DeleteValue", 16: "QueryValue",
        17: "EnumerateKey", 18: "EnumerateValueKey", 19: "QueryMultipleValue", 20: "SetInformation", 21: "Flush",
        22: "KCBCreate", 23: "KCBDelete", 24: "KCBRundownBegin", 25: "KCBRundownEnd", 26: "Virtualize",
        27: "Close",
    },
    SYS_CONFIG: {
        10: "CPU", 11: "PhyDisk", 12: "LogDisk", 13: "NIC", 14: "Video", 15: "Services", 16: "Power",
        17: "Network", 18: "OpticalMedia", 21: "IRQ", 22: "PnP", 23: "IDEChannel", 24: "NumaNode", 25: "Platform",
        26: "ProcessorGroup", 27: "ProcessorNumber", 28: "DPI", 29: "CodeIntegrity", 30: "MachineId",
        33: "DeviceFamily", 34: "FlightId", 35: "Processor", 36: "Virtualization", 37: "Boot",
    },
    LBR: {32: "Sample"},
    PERF_INFO: {
        34: "Mark", 46: "Sample", 47: "PMCSample", 48: "PMCConfig", 49: "PMCCorruption", 50: "MessageISR",
        51: "SysClEnter", 52: "SysClExit", 55: "BatchedSample", 58: "DebuggerEnabled", 66: "ThreadedDPC",
        67: "ISR", 68: "DPC", 69: "TimerDPC", 71: "NMISample", 72: "SetInterval", 73: "CollectionStart",
        74: "CollectionEnd", 79: "ClockInterrupt", 100: "DPCEnqueue", 101: "DPCExecution",
    },
    HEAP: {
        32: "Create", 33: "Alloc", 34: "ReAlloc", 35: "Destroy", 36: "Free", 37: "Expand", 38: "SnapShot",
        42: "Contract", 43: "Lock", 44: "Unlock", 45: "Validate", 46: "Walk",
    },
    OBJECT: {
        32: "CreateHandle", 33: "CloseHandle", 34: "DuplicateHandle", 36: "TypeDCStart", 37: "TypeDCEnd",
        38: "HandleDCStart", 39: "HandleDCEnd",
    },
    IMAGE: {
        2: "Unload", 3: "DCStart", 4: "DCStop", 10: "Load", 32: "Relocation", 33: "KernelBase",
        34: "HypercallPage",
    },
    CRIT_SEC: {34: "Collision", 35: "Initialize"},
    STACK_WALK: {
        32: "Stack", 34: "KeyCreate", 35: "KeyDelete", 36: "KeyRundown", 37: "StackKeyKernel", 38: "StackKeyUser",
    },
    ALPC: {33: "SendMessage", 34: "ReceiveMessage", 35: "WaitForReply", 36: "WaitForNewMessage", 37: "Unwait"},
    SPLIT_IO: {32: "VolMgr"},
    THREAD_POOL: {
        32: "CBEnqueue", 33: "CBDequeue", 34: "CBStart", 35: "CBStop", 36: "CBCancel", 37: "PoolCreate",
        38: "PoolClose", 39: "ThreadMinSet", 40: "ThreadMaxSet",
    },
    SYS_CONFIG_EX: {32: "BuildInfo", 33: "SystemPaths", 34: "UnknownVolume", 35: "VolumeMapping"},
    IMAGE_ID: {
        0: "", 32: "None", 36: "DbgID_RSDS", 37: "DbgID_ILRSDS", 38: "DbgPPDB", 40: "DbgDeterm",
        64: "FileVersion",
    },
    META_DATA: {32: "EventInfo", 33: "EventMapInfo"},
    WIN_SAT: {33: "WinSPR", 35: "Metrics", 37: "SystemConfig"},
}  # fmt: skip

_OTHERS = {  # GUIDs of their own that merging (KernelTraceControl) adds: provider, task
    IMAGE_ID: ("KernelTraceControl", "ImageID"),
    META_DATA: ("KernelTraceControl", "MetaData"),
    SYS_CONFIG_EX: ("Windows Kernel", "SysConfig"),
    WIN_SAT: ("KernelTraceControl", "WinSat"),
}
_STANDARD = {  # evntrace.h EVENT_TRACE_TYPE_*, winmeta.h
    1: "Start", 2: "Stop", 3: "DCStart", 4: "DCStop", 5: "Extension", 6: "Reply", 7: "Resume", 8: "Suspend", 9: "Send",
    240: "Receive",
}  # fmt: skip

_PROVIDERS = {group: UUID(guid).bytes_le for group, (guid, _) in GROUPS.items()}
_KEYS: dict[bytes, int | str] = {guid: group for group, guid in _PROVIDERS.items()}
_KEYS.update((UUID(guid).bytes_le, guid) for guid in _OTHERS)
_IMAGE_LOAD = 0x030A


def hook_provider(hook: int) -> bytes:
    """The 16 GUID bytes that a consumer shows for the events of a hook id; zeros for a group without one."""
    return _PROVIDERS.get(0x14 if hook == _IMAGE_LOAD else hook >> 8, bytes(16))


def kernel_key(event: Event) -> Key | None:
    """The key of an event in the kernel tables, None for manifest and self-describing events and unknown GUIDs."""
    if event.hook >= 0:
        return event.hook >> 8, event.hook & 0xFF
    if event.header in (18, 19):
        return None
    key = _KEYS.get(event.provider)
    return None if key is None else (key, event.opcode)


def kernel_names(key: Key) -> tuple[str, str]:
    """("Windows Kernel", "Image/DCStart"); a type without a name is "Opcode(7)", a group without one "Group(0x1f)"."""
    group, type_ = key
    if isinstance(group, str):
        provider, task = _OTHERS[group]
    else:
        provider, task = "Windows Kernel", GROUPS.get(group, ("", f"Group({group:#04x})"))[1]
    name = _OPCODES.get(group, {}).get(type_)
    if name is None:
        return provider, f"{task}/Opcode({type_})"
    return provider, name if "/" in name else f"{task}/{name}" if name else task


def opcode_name(opcode: int) -> str:
    """The name of an opcode that has no other; "" for 0 (Info), which is not shown."""
    return _STANDARD.get(opcode, f"Opcode({opcode})") if opcode else ""


def guid_text(guid: bytes) -> str:
    """The 16 bytes of a GUID in a file, in the usual notation."""
    return str(UUID(bytes_le=guid))
