"""Layouts of the system configuration that the kernel logs at the end of a session.

Sources: phnt's ntwmi.h (CPU_CONFIG_RECORD, PHYSICAL_DISK_RECORD, WMI_PNP_RECORD_V5 …) and the MOF classes of the
Windows SDK for older versions, checked on net.4.5.2.x64 (Windows 8) and diaghub.kernel.1 (Windows 10). Types 0x21 to
0x25 are named by evntrace.h only; their fields are read off the bytes of the latter. Names are TraceEvent's.
"""

from __future__ import annotations

from ..payload.layouts import Layout, Versions, layout
from ..payload.types import ANSI, GUID, HEX32, HEX64, I64, PTR, U8, U16, U32, U64, WIDE, Array, Fixed, Scalar, Text16

__all__ = ["SYS_CONFIG"]


SYS_CONFIG = 0x0B


def _wide(units: int) -> Fixed:
    return Fixed(units, Text16())


def _cpu(domain: int, mask: Scalar) -> Layout:
    return layout(
        MHz=U32,
        NumberOfProcessors=U32,
        MemSize=U32,  # MB
        PageSize=U32,
        AllocationGranularity=U32,
        ComputerName=_wide(256),  # 0x14
        DomainName=_wide(domain),  # 0x214
        HyperThreadingFlag=mask,  # 0x320 since version 2
    )


_CPU = {
    0: _cpu(132, HEX32),
    2: _cpu(134, PTR),
    3: layout(
        _cpu(134, PTR),
        HighestUserAddress=PTR,
        ProcessorArchitecture=U16,
        ProcessorLevel=U16,
        ProcessorRevision=U16,
        NxEnabled=U8,
        PaeEnabled=U8,
        MemorySpeed=U32,
    ),
}
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
_NIC = {
    0: layout(NICDescription=_wide(256), Ipv4Index=U32, PhysicalAddrLen=U32, PhysicalAddr=_wide(8), Size=U32),
    2: layout(
        PhysicalAddr=HEX64,
        PhysicalAddrLen=U32,
        Ipv4Index=U32,
        Ipv6Index=U32,
        NICDescription=WIDE,
        IpAddresses=WIDE,
        DnsServerAddresses=WIDE,
    ),
}
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
_SERVICE_2 = layout(
    ProcessID=U32, ServiceState=U32, SubProcessTag=U32, ServiceName=WIDE, DisplayName=WIDE, ProcessName=WIDE
)
_SERVICES = {
    0: layout(ServiceName=_wide(34), DisplayName=_wide(256), ProcessName=_wide(34), ProcessID=U32),
    2: _SERVICE_2,
    3: layout(_SERVICE_2, LoadOrderGroup=WIDE, SvchostGroup=WIDE),
}
_POWER = layout(S1=U8, S2=U8, S3=U8, S4=U8, S5=U8, AoAc=U8, Pad1=U8, Pad2=U8)
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
    DriveLetter=WIDE,  # from here: read off the bytes of net.4.5.2.x64
    FileSystemName=WIDE,
    DeviceName=ANSI,
    ManufacturerName=ANSI,
)
_IRQ = {
    0: layout(IRQAffinity=HEX64, IRQNum=U32, DeviceDescriptionLen=U32, DeviceDescription=WIDE),
    3: layout(
        IRQAffinity=HEX64, IRQGroup=U16, Reserved=U16, IRQNum=U32, DeviceDescriptionLen=U32, DeviceDescription=WIDE
    ),
}
_PNP_STRINGS = layout(
    DeviceID=WIDE,
    DeviceDescription=WIDE,
    FriendlyName=WIDE,
    PdoName=WIDE,
    ServiceName=WIDE,
    Filters=Array(WIDE),  # the upper ones, then the lower ones
)
_PNP_4 = layout(ClassGuid=GUID, UpperFilterCount=U32, LowerFilterCount=U32)
_PNP = {
    0: layout(
        IDLength=U32,
        DescriptionLength=U32,
        FriendlyNameLength=U32,
        DeviceID=WIDE,
        DeviceDescription=WIDE,
        FriendlyName=WIDE,
    ),
    4: layout(_PNP_4, _PNP_STRINGS),
    5: layout(layout(_PNP_4, DevStatus=HEX32, DevProblem=U32), _PNP_STRINGS),
}
_PROCESSOR = layout(
    ProcessorIndex=U32,
    FeatureSet=HEX32,
    ProcessorSpeed=U32,  # MHz
    ProcessorName=_wide(64),
    ProcessorIdentifier=_wide(128),
    VendorIdentifier=_wide(16),
)

TABLE: dict[tuple[int, int], Versions] = {
    (SYS_CONFIG, 0x0A): _CPU,
    (SYS_CONFIG, 0x0B): {0: _PHYSICAL_DISK},
    (SYS_CONFIG, 0x0C): {0: _LOGICAL_DISK},
    (SYS_CONFIG, 0x0D): _NIC,
    (SYS_CONFIG, 0x0E): {0: _VIDEO},
    (SYS_CONFIG, 0x0F): _SERVICES,
    (SYS_CONFIG, 0x10): {0: _POWER},
    (SYS_CONFIG, 0x11): {
        2: layout(TcbTablePartitions=U32, MaxHashTableSize=U32, MaxUserPort=U32, TcpTimedWaitDelay=U32)
    },
    (SYS_CONFIG, 0x12): {2: _OPTICAL},
    (SYS_CONFIG, 0x15): _IRQ,
    (SYS_CONFIG, 0x16): _PNP,
    (SYS_CONFIG, 0x17): {
        0: layout(
            TargetID=U32, DeviceType=U32, DeviceTimingMode=HEX32, LocationInformationLen=U32, LocationInformation=WIDE
        )
    },
    # The tables behind the counts of 0x18, 0x1A and 0x1B: no file at hand has one to read them off.
    (SYS_CONFIG, 0x18): {2: layout(NodeCount=U32)},
    (SYS_CONFIG, 0x19): {2: layout(SystemManufacturer=WIDE, SystemProductName=WIDE, BiosDate=WIDE, BiosVersion=WIDE)},
    (SYS_CONFIG, 0x1A): {2: layout(GroupCount=U32)},
    (SYS_CONFIG, 0x1B): {2: layout(ProcessorCount=U32)},
    (SYS_CONFIG, 0x1C): {2: layout(MachineDPI=U32, UserDPI=U32)},
    (SYS_CONFIG, 0x1D): {2: layout(CodeIntegrityInfo=HEX32)},
    (SYS_CONFIG, 0x1E): {2: layout(MachineId=GUID)},
    (SYS_CONFIG, 0x21): {2: layout(UAPInfo=HEX64, DeviceFamily=U32, DeviceForm=U32)},
    (SYS_CONFIG, 0x22): {2: layout(UpdateId=WIDE, FlightIdList=WIDE)},
    (SYS_CONFIG, 0x23): {2: _PROCESSOR},
    (SYS_CONFIG, 0x24): {2: layout(VbsEnabled=U8, HvciEnabled=U8, HyperVisorEnabled=U8, Reserved=U8)},
    (SYS_CONFIG, 0x25): {
        2: layout(BootFlags=HEX64, FirmwareType=U32, SecureBootEnabled=U8, SecureBootCapable=U8, Reserved=U16)
    },
}
