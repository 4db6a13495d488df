"""Layouts of process, thread and image events.

Sources: the kernel's MOF classes as the Windows SDK publishes them (versions and order), phnt's ntwmi.h
(WMI_EXTENDED_THREAD_INFORMATION, WMI_CONTEXTSWAP, ETW_READY_THREAD_EVENT), checked on the real files. Field names are
TraceEvent's where it prints the field.
"""

from __future__ import annotations

from functools import partial

from ..payload.layouts import layout
from ..payload.types import (
    ANSI,
    FILETIME,
    HEX32,
    I8,
    I32,
    PTR,
    SID,
    SIZE,
    U8,
    U16,
    U32,
    WIDE,
    Array,
    Bits,
    Named,
    named,
)

__all__ = ["DC_END", "DC_START", "END", "IMAGE", "LOAD", "PROCESS", "START", "THREAD", "THREAD_LIFE", "UNLOAD"]


PROCESS, THREAD, IMAGE = 0x03, 0x05, 0x14

START, END, DC_START, DC_END = 1, 2, 3, 4
"""Types of process and thread events; the last two list what is there when a session begins and ends (rundown)."""
THREAD_LIFE = tuple(THREAD << 8 | type_ for type_ in (START, END, DC_START, DC_END))
"""Hooks of the events that say which process a thread belongs to."""
UNLOAD, LOAD = 2, 10
"""Types of image events, beside DC_START and DC_END."""

PROCESS_FLAGS = {0: "None", 1: "PackageFullName", 2: "Wow64", 4: "Protected"}
THREAD_STATES = dict(
    enumerate(("Initialized", "Ready", "Running", "Standby", "Terminated", "Wait", "Transition", "DeferredReady"))
)
WAIT_MODES = {0: "NonSwap", 1: "Swappable"}
WAIT_REASONS = dict(
    enumerate((  # KWAIT_REASON, wdm.h
        "Executive", "FreePage", "PageIn", "PoolAllocation", "DelayExecution", "Suspended", "UserRequest",
        "WrExecutive", "WrFreePage", "WrPageIn", "WrPoolAllocation", "WrDelayExecution", "WrSuspended",
        "WrUserRequest", "WrEventPair", "WrQueue", "WrLpcReceive", "WrLpcReply", "WrVirtualMemory", "WrPageOut",
        "WrRendezvous", "WrKeyedEvent",
        "WrTerminated", "WrProcessInSwap", "WrCpuRateControl", "WrCalloutStack", "WrKernel", "WrResource", "WrPushLock",
        "WrMutex", "WrQuantumEnd", "WrDispatchInt", "WrPreempted", "WrYieldExecution", "WrFastMutex", "WrGuardedMutex",
        "WrRundown", "WrAlertByThreadId", "WrDeferredPreempt",
    ))
)  # fmt: skip
ADJUST_REASONS = {0: "None", 1: "Unwait", 2: "Boost"}

# Process: 1 start, 2 end, 3 and 4 rundown at start and end, 39 defunct (its object outlives it).
_KEYED = layout(UniqueProcessKey=PTR, ProcessID=U32, ParentID=U32, SessionID=I32, ExitStatus=I32)
_PROCESS_4 = layout(
    _KEYED,
    PageDirectoryBase=PTR,
    Flags=named(U32, PROCESS_FLAGS, flags=True),
    UserSID=SID,
    ImageFileName=ANSI,
    CommandLine=WIDE,
    PackageFullName=WIDE,
    ApplicationID=WIDE,
)
_PROCESS = {
    0: layout(ProcessID=PTR, ParentID=PTR, UserSID=SID, ImageFileName=ANSI),
    1: layout(
        PageDirectoryBase=PTR,
        ProcessID=U32,
        ParentID=U32,
        SessionID=I32,
        ExitStatus=I32,
        UserSID=SID,
        ImageFileName=ANSI,
    ),
    2: layout(_KEYED, UserSID=SID, ImageFileName=ANSI, CommandLine=WIDE),
    3: layout(_KEYED, PageDirectoryBase=PTR, UserSID=SID, ImageFileName=ANSI, CommandLine=WIDE),
    4: _PROCESS_4,
    5: layout(_PROCESS_4, ExitTime=FILETIME),
}
_PROCESS_COUNTERS = {
    2: layout(
        ProcessID=U32,
        MemoryCount=U32,
        HandleCount=U32,
        Reserved=U32,
        PeakVirtualSize=SIZE,
        PeakWorkingSetSize=SIZE,
        PeakPagefileUsage=SIZE,
        QuotaPeakPagedPoolUsage=SIZE,
        QuotaPeakNonPagedPoolUsage=SIZE,
        VirtualSize=SIZE,
        WorkingSetSize=SIZE,
        PagefileUsage=SIZE,
        QuotaPagedPoolUsage=SIZE,
        QuotaNonPagedPoolUsage=SIZE,
        PrivatePageCount=SIZE,
    )
}

# Thread: 1 start, 2 end, 3 and 4 rundown.
_STACKS = layout(ProcessID=U32, ThreadID=U32, StackBase=PTR, StackLimit=PTR, UserStackBase=PTR, UserStackLimit=PTR)
_THREAD_3 = layout(
    _STACKS,
    Affinity=PTR,  # the start address before version 3; TraceEvent still prints it as StartAddr
    Win32StartAddr=PTR,
    TebBase=PTR,
    SubProcessTag=U32,
    BasePriority=I8,
    PagePriority=U8,
    IoPriority=U8,
    ThreadFlags=U8,
)
# Version 3 as well ends with the name since Windows 10 (all of ShutdownPerfDiagLogger); without one it is just absent.
_THREAD_NAMED = layout(_THREAD_3, ThreadName=WIDE)
_THREAD = {
    0: layout(ThreadID=U32, ProcessID=U32),
    1: layout(_STACKS, StartAddr=PTR, Win32StartAddr=PTR, WaitMode=I8),
    2: layout(_STACKS, StartAddr=PTR, Win32StartAddr=PTR, TebBase=PTR, SubProcessTag=U32),
    3: _THREAD_NAMED,
    4: _THREAD_NAMED,
}
_SWITCHED = layout(NewThreadID=U32, OldThreadID=U32, NewThreadPriority=I8, OldThreadPriority=I8)
_WAITED = layout(
    OldThreadWaitReason=named(U8, WAIT_REASONS),
    OldThreadWaitMode=named(U8, WAIT_MODES),
    OldThreadState=named(U8, THREAD_STATES),
    OldThreadWaitIdealProcessor=U8,
    NewThreadWaitTime=U32,
)
_CSWITCH = {
    1: layout(_SWITCHED, layout(NewThreadQuantum=I8, OldThreadQuantum=I8), _WAITED),
    2: layout(
        _SWITCHED, layout(PreviousCState=U8, SpareByte=I8), _WAITED, OldThreadRemainingQuantum=I32
    ),  # the last one "reserved" in the MOF
}
_READY_THREAD = {
    2: layout(
        AwakenedThreadID=U32,
        AdjustReason=named(U8, ADJUST_REASONS),
        AdjustIncrement=I8,
        Flags=Bits(
            U8,
            ExecutingDPC=(0x01, 0),
            KernelStackNotResident=(0x02, 1),
            ProcessOutOfMemory=(0x04, 2),
            DirectSwitchAttempt=(0x08, 3),
            FlagsReserved=(0xF0, 4),
        ),
        SpareByte=U8,
    )
}

# Image: 10 load (also in the process group), 2 unload, 3 and 4 rundown.
_IMAGE_1 = layout(ImageBase=PTR, ImageSize=SIZE, ProcessID=U32)
_IMAGE_TAIL = layout(DefaultBase=PTR, Reserved1=HEX32, Reserved2=HEX32, Reserved3=HEX32, Reserved4=HEX32, FileName=WIDE)
SIGNATURE_LEVELS = {  # SE_SIGNING_LEVEL_*, winnt.h
    0: "Unchecked", 1: "Unsigned", 2: "Enterprise", 3: "Developer", 4: "Authenticode", 6: "Store", 7: "Antimalware",
    8: "Microsoft", 11: "DynamicCodegen", 12: "Windows", 14: "WindowsTcb",
}  # fmt: skip
_IMAGE = {
    0: layout(ImageBase=PTR, ImageSize=U32, FileName=WIDE),
    1: layout(_IMAGE_1, FileName=WIDE),
    2: layout(_IMAGE_1, layout(ImageChecksum=U32, TimeDateStamp=U32, Reserved0=HEX32), _IMAGE_TAIL),
    3: layout(
        _IMAGE_1,
        layout(
            ImageChecksum=U32,
            TimeDateStamp=U32,
            SignatureLevel=Bits(
                U8,
                SignatureLevel=(0x0F, 0, partial(Named, names=SIGNATURE_LEVELS)),
                CatalogSigned=(0x10, 4),
                EmbeddedSigned=(0x20, 5),
                SignatureReserved=(0xC0, 6),
            ),
            SignatureType=U8,
            Reserved0=U16,
        ),
        _IMAGE_TAIL,
    ),
}

TABLE = {
    **dict.fromkeys([(PROCESS, type_) for type_ in (1, 2, 3, 4, 39)], _PROCESS),
    (PROCESS, 10): _IMAGE,  # 0x030A, the one hook that is shown with the GUID of another group
    (PROCESS, 11): {2: layout(ProcessID=U32)},
    (PROCESS, 32): _PROCESS_COUNTERS,
    (PROCESS, 33): _PROCESS_COUNTERS,
    **dict.fromkeys([(THREAD, type_) for type_ in (1, 2, 3, 4)], _THREAD),
    (THREAD, 36): _CSWITCH,
    (THREAD, 50): _READY_THREAD,
    (THREAD, 57): {2: layout(ThreadID=U32, StartTime=FILETIME, ThreadRoutine=PTR)},
    (THREAD, 62): {2: layout(Entry=PTR, ThreadID=U32)},
    (THREAD, 63): {2: layout(ThreadID=U32, Count=U32, Entries=Array(PTR))},
    (THREAD, 72): {2: layout(ProcessID=U32, ThreadID=U32, ThreadName=WIDE)},
    **dict.fromkeys([(IMAGE, type_) for type_ in (2, 3, 4, 10)], _IMAGE),
    (IMAGE, 33): {2: layout(ImageBase=PTR)},
    (IMAGE, 34): {2: layout(HypercallPage=PTR)},
}
