"""Layouts of the payloads of kernel events, by group, type and version; and kernel events made from named fields.

Sources, by group: the kernel's MOF classes as the Windows SDK publishes them (order and versions), phnt's ntwmi.h,
evntrace.h, and the offsets at which Microsoft's TraceEvent reads. Field names are TraceEvent's where it prints the
field. "Measured" means read off the bytes of real files: net.4.5.2.x64 (Windows 8) and diaghub.kernel.1 (Windows 10).
"""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from ....errors import FormatError
from ..payload.layouts import Layout, Versions, layout, newest
from ..payload.types import (
    ANSI,
    FILETIME,
    GUID,
    HEX32,
    HEX64,
    I8,
    I16,
    I32,
    I64,
    IPV4,
    IPV6,
    PORT,
    PTR,
    SID,
    SIZE,
    SYSTEMTIME,
    U8,
    U16,
    U32,
    U64,
    UTF16,
    WIDE,
    Array,
    Bits,
    FieldType,
    FixedString,
    Hex,
    Named,
    PayloadRows,
    Rest,
    Scalar,
    named,
)
from ..single_event import Event
from .hooks import (
    ALPC,
    CRIT_SEC,
    DC_END,
    DC_START,
    DISK_IO,
    END,
    FILE_IO,
    HEAP,
    IMAGE,
    IMAGE_ID,
    LBR,
    LOAD,
    META_DATA,
    OBJECT,
    PAGE_FAULT,
    PERF_INFO,
    PROCESS,
    REGISTRY,
    SESSION,
    SPLIT_IO,
    STACK_WALK,
    START,
    SYS_CONFIG,
    SYS_CONFIG_EX,
    TCP_IP,
    THREAD,
    THREAD_POOL,
    UDP_IP,
    UNLOAD,
    WIN_SAT,
    Key,
    hook_provider,
)

__all__ = ["LAYOUTS", "kernel_event", "kernel_layout"]

_NONE = layout()


# -- The session (evntrace.h), and what merging adds (KernelTraceControl, as TraceEvent reads it)

_LOG_HEADER = layout(  # TRACE_LOGFILE_HEADER, 0x110/0x118 bytes, and two names
    BufferSize=U32,
    Version=U32,
    ProviderVersion=U32,
    NumberOfProcessors=U32,  # Version: four numbers, a byte each
    EndTime=FILETIME,
    TimerResolution=U32,
    MaxFileSize=U32,  # 0x10
    LogFileMode=HEX32,
    BuffersWritten=U32,
    StartBuffers=U32,
    PointerSize=U32,  # 0x20
    EventsLost=U32,
    CPUSpeed=U32,
    LoggerName=PTR,
    LogFileNamePointer=PTR,  # 0x30
    UtcOffsetMinutes=I32,
    StandardName=FixedString(32, UTF16),
    StandardDate=SYSTEMTIME,
    StandardBias=I32,  # 0x40/0x48
    DaylightName=FixedString(32, UTF16),
    DaylightDate=SYSTEMTIME,
    DaylightBias=I32,  # TIME_ZONE_INFORMATION ends
    Padding=U32,
    BootTime=FILETIME,
    PerfFreq=I64,
    StartTime=FILETIME,  # BootTime: 0xF0/0xF8
    ReservedFlags=U32,  # the clock: 1 QPC, 2 system time, 3 CPU cycles
    BuffersLost=U32,
    SessionName=WIDE,
    LogFileName=WIDE,
)
_GROUP_MASKS = layout(**{f"GroupMask{number}": HEX32 for number in range(1, 9)})
_RSDS = layout(ImageBase=PTR, ProcessID=U32, GuidSig=GUID, Age=U32, PDBFileName=ANSI)
_FILE_VERSION = layout(
    ImageSize=U32,
    TimeDateStamp=U32,
    OrigFileName=WIDE,
    FileDescription=WIDE,
    FileVersion=WIDE,
    BinFileVersion=WIDE,
    VerLanguage=WIDE,
    ProductName=WIDE,
    CompanyName=WIDE,
    ProductVersion=WIDE,
    FileId=WIDE,
    ProgramId=WIDE,
)
_DEVICE_FAMILY = layout(UAPInfo=HEX64, DeviceFamily=U32, DeviceForm=U32)


# -- Processes, threads, images. ntwmi.h: WMI_EXTENDED_THREAD_INFORMATION, WMI_CONTEXTSWAP, ETW_READY_THREAD_EVENT

_PROCESS_FLAGS = {0: "None", 1: "PackageFullName", 2: "Wow64", 4: "Protected"}
_THREAD_STATES = dict(
    enumerate(("Initialized", "Ready", "Running", "Standby", "Terminated", "Wait", "Transition", "DeferredReady"))
)
_WAIT_MODES = {0: "NonSwap", 1: "Swappable"}
_WAIT_REASONS = dict(
    enumerate(
        (  # KWAIT_REASON, wdm.h
            "Executive",
            "FreePage",
            "PageIn",
            "PoolAllocation",
            "DelayExecution",
            "Suspended",
            "UserRequest",
            "WrExecutive",
            "WrFreePage",
            "WrPageIn",
            "WrPoolAllocation",
            "WrDelayExecution",
            "WrSuspended",
            "WrUserRequest",
            "WrEventPair",
            "WrQueue",
            "WrLpcReceive",
            "WrLpcReply",
            "WrVirtualMemory",
            "WrPageOut",
            "WrRendezvous",
            "WrKeyedEvent",
            "WrTerminated",
            "WrProcessInSwap",
            "WrCpuRateControl",
            "WrCalloutStack",
            "WrKernel",
            "WrResource",
            "WrPushLock",
            "WrMutex",
            "WrQuantumEnd",
            "WrDispatchInt",
            "WrPreempted",
            "WrYieldExecution",
            "WrFastMutex",
            "WrGuardedMutex",
            "WrRundown",
            "WrAlertByThreadId",
            "WrDeferredPreempt",
        )
    )
)
_ADJUST_REASONS = {0: "None", 1: "Unwait", 2: "Boost"}
_SIGNATURE_LEVELS = {  # SE_SIGNING_LEVEL_*, winnt.h
    0: "Unchecked", 1: "Unsigned", 2: "Enterprise", 3: "Developer", 4: "Authenticode", 6: "Store", 7: "Antimalware",
    8: "Microsoft", 11: "DynamicCodegen", 12: "Windows", 14: "WindowsTcb",
}  # fmt: skip

_KEYED = layout(UniqueProcessKey=PTR, ProcessID=U32, ParentID=U32, SessionID=I32, ExitStatus=I32)
_OWNER = layout(UserSID=SID, ImageFileName=ANSI)
_PROCESS_4 = layout(
    _KEYED,
    layout(PageDirectoryBase=PTR, Flags=named(U32, _PROCESS_FLAGS, flags=True)),
    _OWNER,
    CommandLine=WIDE,
    PackageFullName=WIDE,
    ApplicationID=WIDE,
)
_PROCESS = {
    0: layout(layout(ProcessID=PTR, ParentID=PTR), _OWNER),
    1: layout(layout(PageDirectoryBase=PTR, ProcessID=U32, ParentID=U32, SessionID=I32, ExitStatus=I32), _OWNER),
    2: layout(_KEYED, _OWNER, CommandLine=WIDE),
    3: layout(_KEYED, layout(PageDirectoryBase=PTR), _OWNER, CommandLine=WIDE),
    4: _PROCESS_4,
    5: layout(_PROCESS_4, ExitTime=FILETIME),
}
_PROCESS_COUNTERS = layout(
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
    ThreadName=WIDE,  # since Windows 10 also in version 3 (all of ShutdownPerfDiagLogger); absent before
)
_THREAD = {
    0: layout(ThreadID=U32, ProcessID=U32),
    1: layout(_STACKS, StartAddr=PTR, Win32StartAddr=PTR, WaitMode=I8),
    2: layout(_STACKS, StartAddr=PTR, Win32StartAddr=PTR, TebBase=PTR, SubProcessTag=U32),
    3: _THREAD_3,
    4: _THREAD_3,
}
_SWITCHED = layout(NewThreadID=U32, OldThreadID=U32, NewThreadPriority=I8, OldThreadPriority=I8)
_WAITED = layout(
    OldThreadWaitReason=named(U8, _WAIT_REASONS),
    OldThreadWaitMode=named(U8, _WAIT_MODES),
    OldThreadState=named(U8, _THREAD_STATES),
    OldThreadWaitIdealProcessor=U8,
    NewThreadWaitTime=U32,
)
_CSWITCH = {
    1: layout(_SWITCHED, layout(NewThreadQuantum=I8, OldThreadQuantum=I8), _WAITED),
    2: layout(_SWITCHED, layout(PreviousCState=U8, SpareByte=I8), _WAITED, OldThreadRemainingQuantum=I32),
}
_READY_FLAGS = Bits(
    U8,
    ExecutingDPC=(0x01, 0),
    KernelStackNotResident=(0x02, 1),
    ProcessOutOfMemory=(0x04, 2),
    DirectSwitchAttempt=(0x08, 3),
    FlagsReserved=(0xF0, 4),
)
_READY_THREAD = layout(
    AwakenedThreadID=U32, AdjustReason=named(U8, _ADJUST_REASONS), AdjustIncrement=I8, Flags=_READY_FLAGS, SpareByte=U8
)
_SIGNATURE = Bits(
    U8,
    SignatureLevel=(0x0F, 0, partial(Named, names=_SIGNATURE_LEVELS)),
    CatalogSigned=(0x10, 4),
    EmbeddedSigned=(0x20, 5),
    SignatureReserved=(0xC0, 6),
)
_IMAGE_1 = layout(ImageBase=PTR, ImageSize=SIZE, ProcessID=U32)
_IMAGE_2 = layout(_IMAGE_1, ImageChecksum=U32, TimeDateStamp=U32)
_IMAGE_END = layout(DefaultBase=PTR, Reserved1=HEX32, Reserved2=HEX32, Reserved3=HEX32, Reserved4=HEX32, FileName=WIDE)
_IMAGE = {
    0: layout(ImageBase=PTR, ImageSize=U32, FileName=WIDE),
    1: layout(_IMAGE_1, FileName=WIDE),
    2: layout(_IMAGE_2, layout(Reserved0=HEX32), _IMAGE_END),
    3: layout(_IMAGE_2, layout(SignatureLevel=_SIGNATURE, SignatureType=U8, Reserved0=U16), _IMAGE_END),
}


# -- Samples, counters, last branch records, call stacks, interrupts, system calls. ntwmi.h:
# PERFINFO_SAMPLED_PROFILE_INFORMATION, PERFINFO_PMC_SAMPLE_INFORMATION, STACK_WALK_EVENT_DATA,
# PERFINFO_INTERRUPT_INFORMATION; TraceConfigureLastBranchRecord's documentation: LBR_TRACE_EVENT_DATA. No public file
# has LBR or PMC events.

_LBR_OPTIONS = {  # TRACE_LBR_CONFIGURATION; a filter bit leaves that kind of branch out
    0: "NONE", 0x1: "FILTER_KERNEL", 0x2: "FILTER_USER", 0x4: "FILTER_JCC", 0x8: "FILTER_NEAR_REL_CALL",
    0x10: "FILTER_NEAR_IND_CALL", 0x20: "FILTER_NEAR_RET", 0x40: "FILTER_NEAR_IND_JMP", 0x80: "FILTER_NEAR_REL_JMP",
    0x100: "FILTER_FAR_BRANCH", 0x200: "CALLSTACK_ENABLE", 0x400: "SAMPLED",
}  # fmt: skip


class _Filler(FieldType):
    """A u32 before the entries that fill the rest of an event. The field is absent if whole entries fill the rest.

    ``sizes``: bytes of an entry by pointer size; with other pointer sizes the u32 is always present. An absent one
    decodes to None.
    """

    empty = True

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes = sizes

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        if pointer in self.sizes and (end - at) % self.sizes[pointer] == 0:
            return None, at
        return U32.decode(data, at, end, pointer)

    def encode(self, value: Any, pointer: int) -> bytes:
        return U32.encode(value, pointer)


_LBR = layout(  # pack(1)
    TimeStamp=U64,  # of the event that triggered it
    ProcessID=U32,
    ThreadID=U32,
    Options=named(U32, _LBR_OPTIONS, flags=True),
    Unused=_Filler({4: 12}),  # 0x14: documented for all, but left out by the readers of 32-bit events
    Entries=PayloadRows(FromAddress=PTR, ToAddress=PTR, Information=PTR),  # newest first
)
_SAMPLE_FLAGS = Bits(U8, ExecutingDPC=(0x01, 0), ExecutingISR=(0x02, 1), FlagsReserved=(0x04, 2), Priority=(0xF8, 3))
_SAMPLE = layout(InstructionPointer=PTR, ThreadID=U32, Count=U16, Flags=_SAMPLE_FLAGS, Rank=U8)
_SAMPLE_CACHE = layout(
    Count=U32,
    Padding=_Filler({4: 12, 8: 16}),  # 64-bit samples are aligned
    Samples=PayloadRows(InstructionPointer=PTR, ThreadID=U32, SampleCount=U16, Flags=U8, Rank=U8),
)
# Intervals are in 100 ns for source 0 (Timer), in events for the others. The name came with version 3 (Windows 8).
_INTERVAL = layout(SampleSource=U32, NewInterval=U32, OldInterval=U32)
_INTERRUPT = layout(InitialTime=U64, Routine=PTR, ReturnValue=U8, Vector=U16, Reserved=U8)  # pack(1)
_STACK_EVENT = layout(EventTimeStamp=U64, ProcessID=U32, ThreadID=U32)  # the time of the event it belongs to
_DPC_ENQUEUE = layout(
    Key=PTR, DpcQueueDepth=I32, DpcCount=U32, TargetProcessorIndex=U32, Importance=U8, Reserved=Array(U8, 3)
)


# -- Disks, files, memory, registry, objects, ALPC, user-mode heaps. ntwmi.h: ETW_DISKIO_READWRITE_V3. Disk, page fault
# and file name events: measured.

_IRP_FLAG_NAMES = {
    0: "None", 0x1: "Nocache", 0x2: "MountCompletion", 0x4: "SynchronousApi", 0x8: "AssociatedIrp", 0x10: "BufferedIO",
    0x20: "DeallocateBuffer", 0x40: "SynchronousPagingIO", 0x80: "Create", 0x100: "Read", 0x200: "Write",
    0x400: "Close", 0x800: "DeferIOCompletion", 0x1000: "ObQueryName", 0x2000: "HoldDeviceQueue",
}  # fmt: skip
_IO_PRIORITIES = dict(enumerate(("Notset", "Verylow", "Low", "Normal", "High", "Critical", "Reserved0", "Reserved1")))
_ALLOCATION_FLAGS = {0x1000: "MEM_COMMIT", 0x2000: "MEM_RESERVE", 0x4000: "MEM_DECOMMIT", 0x8000: "MEM_RELEASE"}

_IRP_FLAGS = Bits(  # IO_PRIORITY_HINT in bits 17 to 19 of the IRP's flags
    U32,
    IrpFlags=(0xFFF1FFFF, 0, partial(Named, names=_IRP_FLAG_NAMES, flags=True)),
    Priority=(0x000E0000, 17, partial(Named, names=_IO_PRIORITIES)),
)
_ISSUER = layout(IssuingThreadID=U32)  # since version 3 (Windows 8), whose header has -1 as its thread
_IRP = layout(Irp=PTR)
_DISK = layout(
    DiskNumber=U32,
    Flags=_IRP_FLAGS,
    TransferSize=U32,
    Reserved=U32,
    ByteOffset=I64,
    FileKey=PTR,
    Irp=PTR,
    HighResResponseTime=U64,  # ticks of the performance counter
)
_FLUSH = layout(DiskNumber=U32, Flags=_IRP_FLAGS, HighResResponseTime=U64, Irp=PTR)
_DRIVER_CALL = layout(MajorFunction=U32, MinorFunction=U32, RoutineAddr=PTR, FileKey=PTR, Irp=PTR, UniqMatchID=U32)
_IRP_MATCH = layout(Irp=PTR, UniqMatchID=U32)

_MAP = layout(ViewBase=PTR, FileKey=PTR, MiscInfo=HEX32, MiscInfoHigh=HEX32, ViewSize=SIZE)
# Version 3 (Windows 8.1) made the thread a u32 and moved it after the pointers.
_FILE_2 = layout(IrpPtr=PTR, TTID=PTR, FileObject=PTR)
_FILE_3 = layout(IrpPtr=PTR, FileObject=PTR)
_KEYED_2, _KEYED_3 = layout(_FILE_2, FileKey=PTR), layout(_FILE_3, FileKey=PTR, TTID=U32)
_CREATE = layout(
    CreateOptions=Bits(U32, CreateOptions=(0x00FFFFFF, 0, Hex), CreateDisposition=(0xFF000000, 24)),
    FileAttributes=HEX32,
    ShareAccess=HEX32,
    FileName=WIDE,
)
_OFFSET, _TRANSFER = layout(Offset=I64), layout(IoSize=U32, IoFlags=HEX32)
_DIRECTORY = layout(Length=U32, InfoClass=U32, FileIndex=U32, FileName=WIDE)

_HARD_FAULT = layout(InitialTime=I64, ReadOffset=I64, VirtualAddress=PTR, FileKey=PTR, ThreadID=U32, ByteCount=U32)
_ALLOCATION = layout(BaseAddr=PTR, Length=SIZE, ProcessID=U32, Flags=named(U32, _ALLOCATION_FLAGS, flags=True))
_HEAP_RANGE = layout(HeapHandle=PTR, HeapRangeAddress=PTR, HeapRangeSize=SIZE)
_HEAP = layout(HeapHandle=PTR)
_HEAP_SPACE = layout(FreeSpace=SIZE, CommittedSpace=SIZE, ReservedSpace=SIZE)
_REALLOCATION = layout(
    HeapHandle=PTR, NewAllocAddress=PTR, OldAllocAddress=PTR, NewAllocSize=SIZE, OldAllocSize=SIZE, SourceID=U32
)
_DUPLICATE_HANDLE = layout(  # pack(1)
    Object=PTR, SourceHandle=HEX32, TargetHandle=HEX32, TargetProcessID=U32, ObjectType=U16, SourceProcessID=U32
)
_CALLBACK = layout(PoolID=PTR, TaskID=PTR, CallbackFunction=PTR, CallbackContext=PTR, SubProcessTag=PTR)


# -- TCP and UDP. Sizes: measured. TraceEvent swaps connection and sequence number of version 2 in its IPv4 and IPv6
# receive events, and reads UDP version 2 as if it were version 0 ("context" is the process and size there). Both are 0
# in all files that we have, so the order here is that of the MOF classes.

_SIZE = layout(ProcessID=U32, size=U32)
_V4 = layout(_SIZE, daddr=IPV4, saddr=IPV4, dport=PORT, sport=PORT)
_V6 = layout(_SIZE, daddr=IPV6, saddr=IPV6, dport=PORT, sport=PORT)
_TIMES = layout(startime=U32, endtime=U32)
_OPTIONS = layout(  # of connects and accepts
    mss=U16, sackopt=U16, tsopt=U16, wsopt=U16, rcvwin=U32, rcvwinscale=I16, sndwinscale=I16
)
_NUMBERS = layout(seqnum=U32, connid=PTR)
_UDP_0 = layout(context=PTR, saddr=IPV4, sport=PORT, size=U16, daddr=IPV4, dport=PORT, dsize=U16)


def _tcp(middle: Layout) -> Versions:
    return {
        0: layout(daddr=IPV4, saddr=IPV4, dport=PORT, sport=PORT, size=U32, ProcessID=U32),
        1: layout(_V4, middle, connid=PTR, seqnum=U32),
        2: layout(_V4, middle, _NUMBERS),
    }


# -- The system's configuration, which the kernel logs at the end of a session. ntwmi.h: CPU_CONFIG_RECORD,
# PHYSICAL_DISK_RECORD, WMI_PNP_RECORD_V5. Types 0x21 to 0x25 are named by evntrace.h only; their fields are measured.


def _wide(units: int) -> FixedString:
    return FixedString(units, UTF16)


def _cpu(domain: int, hyper_threading: Scalar) -> Layout:
    return layout(
        MHz=U32,
        NumberOfProcessors=U32,
        MemSize=U32,
        PageSize=U32,
        AllocationGranularity=U32,  # MemSize: MB
        ComputerName=_wide(256),
        DomainName=_wide(domain),
        HyperThreadingFlag=hyper_threading,  # 0x14, 0x214, 0x320
    )


_CPU_3 = layout(
    _cpu(134, PTR),
    HighestUserAddress=PTR,
    ProcessorArchitecture=U16,
    ProcessorLevel=U16,
    ProcessorRevision=U16,
    NxEnabled=U8,
    PaeEnabled=U8,
    MemorySpeed=U32,
)
_PHYSICAL_DISK = layout(
    DiskNumber=U32,
    BytesPerSector=U32,
    SectorsPerTrack=U32,
    TracksPerCylinder=U32,
    Cylinders=U64,
    SCSIPort=U32,
    SCSIPath=U32,
    SCSITarget=U32,
    SCSILun=U32,
    Manufacturer=_wide(256),
    PartitionCount=U32,
    WriteCacheEnabled=U8,
    Pad=U8,
    BootDriveLetter=_wide(3),
    Spare=_wide(2),
)
_LOGICAL_DISK = layout(
    StartOffset=U64,
    PartitionSize=U64,
    DiskNumber=U32,
    Size=U32,
    DriveType=U32,
    DriveLetterString=_wide(4),
    Pad1=U32,
    PartitionNumber=U32,
    SectorsPerCluster=U32,
    BytesPerSector=U32,
    Pad2=U32,
    NumberOfFreeClusters=I64,
    TotalNumberOfClusters=I64,
    FileSystem=_wide(16),
    VolumeExt=U32,
    Pad3=U32,
)
_NIC_0 = layout(NICDescription=_wide(256), Ipv4Index=U32, PhysicalAddrLen=U32, PhysicalAddr=_wide(8), Size=U32)
_NIC_2 = layout(
    PhysicalAddr=HEX64,
    PhysicalAddrLen=U32,
    Ipv4Index=U32,
    Ipv6Index=U32,
    NICDescription=WIDE,
    IpAddresses=WIDE,
    DnsServerAddresses=WIDE,
)
_VIDEO = layout(
    MemorySize=U32,
    XResolution=U32,
    YResolution=U32,
    BitsPerPixel=U32,
    VRefresh=U32,
    ChipType=_wide(256),
    DACType=_wide(256),
    AdapterString=_wide(256),
    BiosString=_wide(256),
    DeviceID=_wide(256),
    StateFlags=HEX32,
)
_SERVICE_0 = layout(ServiceName=_wide(34), DisplayName=_wide(256), ProcessName=_wide(34), ProcessID=U32)
_SERVICE_2 = layout(
    ProcessID=U32, ServiceState=U32, SubProcessTag=U32, ServiceName=WIDE, DisplayName=WIDE, ProcessName=WIDE
)
_OPTICAL = layout(
    DiskNumber=U16,
    BusType=U16,
    DeviceType=U16,
    MediaType=U16,
    StartingOffset=U64,
    Size=U64,
    NumberOfFreeBlocks=U64,
    TotalNumberOfBlocks=U64,
    NextWritableAddress=U64,
    NumberOfSessions=U32,
    NumberOfTracks=U32,
    BytesPerSector=U32,
    DiscStatus=U16,
    LastSessionStatus=U16,
    DriveLetter=WIDE,
    FileSystemName=WIDE,
    DeviceName=ANSI,
    ManufacturerName=ANSI,  # measured on net.4.5.2.x64
)
_IRQ = layout(IRQNum=U32, DeviceDescriptionLen=U32, DeviceDescription=WIDE)
_AFFINITY = layout(IRQAffinity=HEX64)
_PNP_0 = layout(
    IDLength=U32,
    DescriptionLength=U32,
    FriendlyNameLength=U32,
    DeviceID=WIDE,
    DeviceDescription=WIDE,
    FriendlyName=WIDE,
)
_PNP_4 = layout(ClassGuid=GUID, UpperFilterCount=U32, LowerFilterCount=U32)
_PNP_STRINGS = layout(
    DeviceID=WIDE,
    DeviceDescription=WIDE,
    FriendlyName=WIDE,
    PdoName=WIDE,
    ServiceName=WIDE,
    Filters=Array(WIDE),  # the upper ones, then the lower ones
)
_IDE_CHANNEL = layout(
    TargetID=U32, DeviceType=U32, DeviceTimingMode=HEX32, LocationInformationLen=U32, LocationInformation=WIDE
)
_PROCESSOR = layout(
    ProcessorIndex=U32,
    FeatureSet=HEX32,
    ProcessorSpeed=U32,  # MHz
    ProcessorName=_wide(64),
    ProcessorIdentifier=_wide(128),
    VendorIdentifier=_wide(16),
)
_BOOT = layout(BootFlags=HEX64, FirmwareType=U32, SecureBootEnabled=U8, SecureBootCapable=U8, Reserved=U16)


# -- All of them

_BY_GROUP: dict[int | str, dict[int | tuple[int, ...], Versions]] = {
    SESSION: {
        0x00: {0: _LOG_HEADER},
        (0x05, 0x20): {0: _GROUP_MASKS, 2: layout(_GROUP_MASKS, KernelEventVersion=U32)},
        (0x08, 0x30, 0x31): {0: _NONE},
        0x40: {0: layout(GuidSig=GUID, Age=U32, PDBFileName=ANSI)},
        0x42: {0: layout(BuildLab=ANSI)},
        0x43: {0: layout(BinaryPath=ANSI)},
        # All zero in every real file; ETW_TRACE_PARTITION_INFORMATION, whose names these are, has just these sizes.
        0x50: {0: layout(PartitionId=GUID, ParentId=GUID, QpcOffsetFromRoot=I64, PartitionType=U32, Padding=U32)},
    },
    IMAGE_ID: {
        0: {0: layout(ImageBase=PTR, ImageSize=SIZE, ProcessID=U32, TimeDateStamp=U32, OriginalFileName=WIDE)},
        (36, 37): {0: _RSDS},
        # Portable PDBs and deterministic builds: no file that we have holds one; TraceEvent's offsets, then unknown.
        38: {0: layout(ImageBase=PTR, ProcessID=U32, TimeDateStamp=U32, MajorVersion=U16, MinorVersion=U16)},
        (32, 40): {0: layout(ImageBase=PTR, ProcessID=U32)},
        64: {0: _FILE_VERSION},
    },
    SYS_CONFIG_EX: {
        32: {0: layout(InstallDate=FILETIME, BuildLab=WIDE, ProductName=WIDE)},
        33: {0: layout(SystemDirectory=WIDE, SystemWindowsDirectory=WIDE)},
        34: {0: layout(Value=WIDE)},
        35: {0: layout(NtPath=WIDE, DosPath=WIDE)},
        37: {0: _DEVICE_FAMILY},  # measured: the 16 bytes of SysConfig 0x21, version 10.0.22000.613 in one file
    },
    META_DATA: {
        32: {0: layout(EventInfo=Rest())},
        33: {0: layout(ProviderID=GUID, EventMapInfo=Rest())},
    },
    # WinSAT's results: a state, the size of the XML text, and the text (UTF-16) compressed with XPRESS (TraceEvent).
    WIN_SAT: {(33, 35, 37): {0: layout(State=U32, UncompressedLength=U32, CompressedXml=Rest())}},
    PROCESS: {
        (START, END, DC_START, DC_END, 39): _PROCESS,  # 39: defunct, its object outlives it
        LOAD: _IMAGE,  # 0x030A, the one hook that is shown with the GUID of another group
        11: {2: layout(ProcessID=U32)},
        (32, 33): {2: _PROCESS_COUNTERS},
    },
    THREAD: {
        (START, END, DC_START, DC_END): _THREAD,
        36: _CSWITCH,  # OldThreadRemainingQuantum: "reserved" in the MOF class
        50: {2: _READY_THREAD},
        57: {2: layout(ThreadID=U32, StartTime=FILETIME, ThreadRoutine=PTR)},
        62: {2: layout(Entry=PTR, ThreadID=U32)},
        63: {2: layout(ThreadID=U32, Count=U32, Entries=Array(PTR))},
        72: {2: layout(ProcessID=U32, ThreadID=U32, ThreadName=WIDE)},
    },
    IMAGE: {
        (UNLOAD, DC_START, DC_END, LOAD): _IMAGE,
        33: {2: layout(ImageBase=PTR)},
        34: {2: layout(HypercallPage=PTR)},
    },
    LBR: {0x20: {0: _LBR}},
    PERF_INFO: {
        0x22: {0: layout(Message=ANSI)},
        0x2E: {2: _SAMPLE},
        0x2F: {2: layout(InstructionPointer=PTR, ThreadID=U32, ProfileSource=U16, Reserved=U16)},
        0x30: {2: layout(Names=Array(WIDE, U32))},  # of the counter values that event headers carry
        0x31: {2: layout(ProcessorNumber=U32, Count=U32)},  # what follows is not known for sure
        0x32: {2: layout(_INTERRUPT, MessageNumber=U32)},
        0x33: {2: layout(SysCallAddress=PTR)},
        0x34: {2: layout(SysCallNtStatus=HEX32)},
        0x37: {2: _SAMPLE_CACHE},
        0x3A: {2: _NONE},
        (0x42, 0x44, 0x45): {1: layout(InitialTime=U64, Routine=PTR)},
        0x43: {1: layout(InitialTime=U64, Routine=PTR, ReturnValue=U32), 2: _INTERRUPT},
        0x47: {2: _SAMPLE},
        (0x48, 0x49, 0x4A): {2: _INTERVAL, 3: layout(_INTERVAL, SourceName=WIDE)},
        0x4F: {2: layout(InterruptTime=U64, Flags=I16)},
        0x64: {2: _DPC_ENQUEUE},
        0x65: {2: layout(Routine=PTR, Key=PTR)},
    },
    STACK_WALK: {
        0x20: {2: layout(_STACK_EVENT, Addresses=Array(PTR))},  # innermost frame first
        (0x22, 0x23, 0x24): {2: layout(StackKey=PTR, Addresses=Array(PTR))},
        (0x25, 0x26): {2: layout(_STACK_EVENT, StackKey=PTR)},
    },
    DISK_IO: {
        (10, 11): {2: _DISK, 3: layout(_DISK, _ISSUER)},
        (12, 13, 15): {2: _IRP, 3: layout(_IRP, _ISSUER)},
        14: {2: _FLUSH, 3: layout(_FLUSH, _ISSUER)},
        34: {0: _DRIVER_CALL},
        (35, 53): {0: _IRP_MATCH},
        37: {0: layout(Routine=PTR, IrpPtr=PTR, UniqMatchID=U32)},
        52: {0: layout(RoutineAddr=PTR, Irp=PTR, UniqMatchID=U32)},
    },
    PAGE_FAULT: {
        (10, 11, 12, 13, 14, 15): {0: layout(VirtualAddress=PTR, ProgramCounter=PTR)},
        32: {0: _HARD_FAULT},
        (98, 99): {0: _ALLOCATION},
        100: {0: layout(HeapHandle=PTR, HeapRangeFlags=HEX32, ProcessID=U32, HRRangeCount=U32)},
        101: {0: layout(HeapHandle=PTR, FirstRangeSize=SIZE, HeapRangeCreateFlags=HEX32)},
        (102, 103): {0: _HEAP_RANGE},
        104: {0: _HEAP},
        105: {0: layout(FileKey=PTR, DeviceChar=HEX32, FileChar=U16, LoadFlags=U16)},
    },
    FILE_IO: {
        (0, 32, 35, 36): {0: layout(FileKey=PTR, FileName=WIDE)},
        (37, 38, 39, 40): {2: layout(_MAP, ProcessID=U32), 3: layout(_MAP, ByteOffset=I64, ProcessID=U32)},
        64: {2: layout(_FILE_2, _CREATE), 3: layout(_FILE_3, layout(TTID=U32), _CREATE)},
        (65, 66, 73): {2: _KEYED_2, 3: _KEYED_3},
        (67, 68): {2: layout(_OFFSET, _KEYED_2, _TRANSFER), 3: layout(_OFFSET, _KEYED_3, _TRANSFER)},
        (69, 70, 71, 74, 75): {
            2: layout(_KEYED_2, ExtraInfo=PTR, InfoClass=U32),
            3: layout(_FILE_3, FileKey=PTR, ExtraInfo=PTR, TTID=U32, InfoClass=U32),
        },
        (72, 77): {2: layout(_KEYED_2, _DIRECTORY), 3: layout(_KEYED_3, _DIRECTORY)},
        76: {0: layout(IrpPtr=PTR, ExtraInfo=PTR, NtStatus=HEX32)},
    },
    REGISTRY: {
        tuple(range(10, 28)): {
            0: layout(Status=PTR, KeyHandle=PTR, ElapsedTime=I64, KeyName=WIDE),
            1: layout(Status=PTR, KeyHandle=PTR, ElapsedTime=I64, Index=U32, KeyName=WIDE),
            2: layout(InitialTime=I64, Status=HEX32, Index=U32, KeyHandle=PTR, KeyName=WIDE),
        },
    },
    SPLIT_IO: {32: {0: layout(ParentIrp=PTR, ChildIrp=PTR)}},
    OBJECT: {
        (32, 33): {0: layout(Object=PTR, Handle=HEX32, ObjectType=U16)},
        34: {0: _DUPLICATE_HANDLE},
        (36, 37): {0: layout(ObjectType=U16, Reserved=U16, ObjectTypeName=WIDE)},
        (38, 39): {0: layout(Object=PTR, ProcessID=U32, Handle=HEX32, ObjectType=U16, ObjectName=WIDE)},
    },
    ALPC: {
        (33, 34, 35): {0: layout(MessageID=U32)},
        36: {0: layout(IsServerPort=U32, PortName=ANSI)},
        37: {0: layout(Status=HEX32)},
    },
    HEAP: {
        32: {0: layout(HeapHandle=PTR, HeapFlags=HEX32)},
        33: {0: layout(HeapHandle=PTR, AllocSize=SIZE, AllocAddress=PTR, SourceID=U32)},
        34: {0: _REALLOCATION},
        36: {0: layout(HeapHandle=PTR, FreeAddress=PTR, SourceID=U32)},
        37: {0: layout(layout(_HEAP, CommittedSize=SIZE, CommitAddress=PTR), _HEAP_SPACE, NoOfUCRs=U32)},
        38: {0: layout(_HEAP, _HEAP_SPACE, HeapFlags=HEX32)},
        42: {0: layout(layout(_HEAP, DeCommittedSize=SIZE, DeCommitAddress=PTR), _HEAP_SPACE, NoOfUCRs=U32)},
        (35, 43, 44, 45, 46): {0: _HEAP},
    },
    CRIT_SEC: {
        34: {0: layout(LockCount=U32, SpinCount=U32, OwningThread=PTR, CritSecAddr=PTR)},
        35: {0: layout(SpinCount=SIZE, CritSecAddr=PTR)},
    },
    THREAD_POOL: {
        (32, 34): {0: _CALLBACK},
        (33, 35): {0: layout(TaskID=PTR)},
        36: {0: layout(TaskID=PTR, CancelCount=U32)},
        (37, 38): {0: layout(PoolID=PTR)},
        (39, 40): {0: layout(PoolID=PTR, ThreadNum=U32)},
    },
    TCP_IP: {
        10: _tcp(_TIMES),
        (11, 13, 14, 16, 18, 19, 20, 21, 22): _tcp(_NONE),
        (12, 15): _tcp(_OPTIONS),
        17: {0: layout(Proto=U32), 2: layout(Proto=U16, FailureCode=U16)},
        26: {1: layout(_V6, _TIMES, _NUMBERS)},
        (27, 29, 30, 32, 34): {1: layout(_V6, _NUMBERS)},
        (28, 31): {1: layout(_V6, _OPTIONS, _NUMBERS)},
    },
    UDP_IP: {
        (10, 11): {0: _UDP_0, 1: _V4, 2: layout(_V4, _NUMBERS)},
        17: {0: layout(Proto=U32), 2: layout(Proto=U16, FailureCode=U16)},
        (26, 27): {1: layout(_V6, _NUMBERS)},
    },
    SYS_CONFIG: {
        0x0A: {0: _cpu(132, HEX32), 2: _cpu(134, PTR), 3: _CPU_3},
        0x0B: {0: _PHYSICAL_DISK},
        0x0C: {0: _LOGICAL_DISK},
        0x0D: {0: _NIC_0, 2: _NIC_2},
        0x0E: {0: _VIDEO},
        0x0F: {0: _SERVICE_0, 2: _SERVICE_2, 3: layout(_SERVICE_2, LoadOrderGroup=WIDE, SvchostGroup=WIDE)},
        0x10: {0: layout(S1=U8, S2=U8, S3=U8, S4=U8, S5=U8, AoAc=U8, Pad1=U8, Pad2=U8)},
        0x11: {2: layout(TcbTablePartitions=U32, MaxHashTableSize=U32, MaxUserPort=U32, TcpTimedWaitDelay=U32)},
        0x12: {2: _OPTICAL},
        0x15: {0: layout(_AFFINITY, _IRQ), 3: layout(layout(_AFFINITY, IRQGroup=U16, Reserved=U16), _IRQ)},
        0x16: {
            0: _PNP_0,
            4: layout(_PNP_4, _PNP_STRINGS),
            5: layout(layout(_PNP_4, DevStatus=HEX32, DevProblem=U32), _PNP_STRINGS),
        },
        0x17: {0: _IDE_CHANNEL},
        # No file that we have shows the tables after the counts of 0x18, 0x1A and 0x1B.
        0x18: {2: layout(NodeCount=U32)},
        0x19: {2: layout(SystemManufacturer=WIDE, SystemProductName=WIDE, BiosDate=WIDE, BiosVersion=WIDE)},
        0x1A: {2: layout(GroupCount=U32)},
        0x1B: {2: layout(ProcessorCount=U32)},
        0x1C: {2: layout(MachineDPI=U32, UserDPI=U32)},
        0x1D: {2: layout(CodeIntegrityInfo=HEX32)},
        0x1E: {2: layout(MachineId=GUID)},
        0x21: {2: _DEVICE_FAMILY},
        0x22: {2: layout(UpdateId=WIDE, FlightIdList=WIDE)},
        0x23: {2: _PROCESSOR},
        0x24: {2: layout(VbsEnabled=U8, HvciEnabled=U8, HyperVisorEnabled=U8, Reserved=U8)},
        0x25: {2: _BOOT},
    },
}

LAYOUTS: dict[Key, Versions] = {
    (group, type_): versions
    for group, rows in _BY_GROUP.items()
    for types, versions in rows.items()
    for type_ in (types if isinstance(types, tuple) else (types,))
}


def kernel_layout(key: Key, version: int) -> Layout | None:
    """The layout of a version, else of the newest known lower one; None for an unknown event or so old a version."""
    versions = LAYOUTS.get(key)
    return None if versions is None else newest(versions, version)


def kernel_event(
    key: Key, time: int, pointer: int, fields: dict[str, Any], *, version: int, pid: int = 0, cut: bool = False
) -> Event:
    """The event of a kernel group, or of a classic GUID, with its payload from ``fields``; missing ones are 0.

    ``pointer``: 4 or 8. The event becomes a 64-bit event if a value needs 64 bits, like an address of a 64-bit process
    in a 32-bit session. FormatError for a value that its field cannot hold; with ``cut`` integers have the low bits
    that fit.
    """
    declared = kernel_layout(key, version)
    assert declared is not None, key
    group, type_ = key
    whole = dict.fromkeys(declared.names, 0) | fields
    try:
        try:
            payload = declared.encode(whole, pointer)
        except ValueError:
            if pointer == 4:
                return kernel_event(key, time, 8, fields, version=version, pid=pid, cut=cut)
            if not cut:
                raise
            payload = declared.encode(whole, pointer, cut=True)
    except ValueError as error:
        raise FormatError(f"a field cannot be written: {error}", field=str(key)) from error
    wide = pointer == 8
    if isinstance(group, int):
        hook = group << 8 | type_
        kind, provider = (2 if wide else 1), hook_provider(hook)
    else:
        hook, kind, provider = -1, (20 if wide else 10), UUID(group).bytes_le
    return Event(kind, pointer, time, pid, 0, 0, hook, provider, 0, version, type_, payload=payload)
