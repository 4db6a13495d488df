"""Layouts of disk, file, memory, registry, object, ALPC and user-mode heap events.

Sources: the kernel's MOF classes as the Windows SDK publishes them, phnt's ntwmi.h (ETW_DISKIO_READWRITE_V3 …) and the
offsets at which TraceEvent reads; disk, page fault and file name events are checked on net.4.5.2.x64. Names are
TraceEvent's.
"""

from __future__ import annotations

from functools import partial

from ..payload.layouts import layout
from ..payload.types import ANSI, HEX32, I64, PTR, SIZE, U16, U32, U64, WIDE, Bits, Hex, Named, named

__all__ = [
    "ALPC", "CRIT_SEC", "DISK_IO", "FILE_IO", "HEAP", "OBJECT", "PAGE_FAULT", "REGISTRY", "SPLIT_IO", "TABLE",
    "THREAD_POOL",
]  # fmt: skip

DISK_IO, PAGE_FAULT, FILE_IO, REGISTRY = 0x01, 0x02, 0x04, 0x09
HEAP, OBJECT, CRIT_SEC, ALPC, SPLIT_IO, THREAD_POOL = 0x10, 0x11, 0x17, 0x1A, 0x1B, 0x1C

IRP_FLAGS = {
    0: "None", 0x1: "Nocache", 0x2: "MountCompletion", 0x4: "SynchronousApi", 0x8: "AssociatedIrp", 0x10: "BufferedIO",
    0x20: "DeallocateBuffer", 0x40: "SynchronousPagingIO", 0x80: "Create", 0x100: "Read", 0x200: "Write",
    0x400: "Close", 0x800: "DeferIOCompletion", 0x1000: "ObQueryName", 0x2000: "HoldDeviceQueue",
}  # fmt: skip
IO_PRIORITIES = dict(enumerate(("Notset", "Verylow", "Low", "Normal", "High", "Critical", "Reserved0", "Reserved1")))
_IRP_FLAGS = Bits(  # IO_PRIORITY_HINT in bits 17 to 19 of the IRP's flags
    U32,
    IrpFlags=(0xFFF1FFFF, 0, partial(Named, names=IRP_FLAGS, flags=True)),
    Priority=(0x000E0000, 17, partial(Named, names=IO_PRIORITIES)),
)
_ISSUER = layout(IssuingThreadID=U32)  # since version 3 (Windows 8); -1 stands in the header there

_DISK_2 = layout(
    DiskNumber=U32,
    Flags=_IRP_FLAGS,
    TransferSize=U32,
    Reserved=U32,
    ByteOffset=I64,
    FileKey=PTR,
    Irp=PTR,
    HighResResponseTime=U64,  # ticks of the performance counter
)
_DISK = {2: _DISK_2, 3: layout(_DISK_2, _ISSUER)}
_DISK_INIT = {2: layout(Irp=PTR), 3: layout(layout(Irp=PTR), _ISSUER)}
_FLUSH_2 = layout(DiskNumber=U32, Flags=_IRP_FLAGS, HighResResponseTime=U64, Irp=PTR)
_FLUSH = {2: _FLUSH_2, 3: layout(_FLUSH_2, _ISSUER)}

_FILE_NAME = {0: layout(FileKey=PTR, FileName=WIDE)}
_MAP = layout(ViewBase=PTR, FileKey=PTR, MiscInfo=HEX32, MiscInfoHigh=HEX32, ViewSize=SIZE)
_MAP_FILE = {2: layout(_MAP, ProcessID=U32), 3: layout(_MAP, ByteOffset=I64, ProcessID=U32)}
# Version 3 (Windows 8.1) made the thread a u32 and moved it behind the pointers.
_FILE_2 = layout(IrpPtr=PTR, TTID=PTR, FileObject=PTR)
_FILE_3 = layout(IrpPtr=PTR, FileObject=PTR)
_CREATE = layout(
    CreateOptions=Bits(U32, CreateOptions=(0x00FFFFFF, 0, Hex), CreateDisposition=(0xFF000000, 24)),
    FileAttributes=HEX32,
    ShareAccess=HEX32,
    FileName=WIDE,
)
_SIMPLE = {2: layout(_FILE_2, FileKey=PTR), 3: layout(_FILE_3, FileKey=PTR, TTID=U32)}
_READ_WRITE = {
    2: layout(layout(Offset=I64), _FILE_2, FileKey=PTR, IoSize=U32, IoFlags=HEX32),
    3: layout(layout(Offset=I64), _FILE_3, FileKey=PTR, TTID=U32, IoSize=U32, IoFlags=HEX32),
}
_INFO = {
    2: layout(_FILE_2, FileKey=PTR, ExtraInfo=PTR, InfoClass=U32),
    3: layout(_FILE_3, FileKey=PTR, ExtraInfo=PTR, TTID=U32, InfoClass=U32),
}
_DIRECTORY = layout(Length=U32, InfoClass=U32, FileIndex=U32, FileName=WIDE)
_DIRECTORIES = {
    2: layout(layout(_FILE_2, FileKey=PTR), _DIRECTORY),
    3: layout(layout(_FILE_3, FileKey=PTR, TTID=U32), _DIRECTORY),
}

_REGISTRY = {
    0: layout(Status=PTR, KeyHandle=PTR, ElapsedTime=I64, KeyName=WIDE),
    1: layout(Status=PTR, KeyHandle=PTR, ElapsedTime=I64, Index=U32, KeyName=WIDE),
    2: layout(InitialTime=I64, Status=HEX32, Index=U32, KeyHandle=PTR, KeyName=WIDE),
}

_FAULT = {0: layout(VirtualAddress=PTR, ProgramCounter=PTR)}
VIRTUAL_ALLOC_FLAGS = {0x1000: "MEM_COMMIT", 0x2000: "MEM_RESERVE", 0x4000: "MEM_DECOMMIT", 0x8000: "MEM_RELEASE"}
_VIRTUAL = {
    0: layout(BaseAddr=PTR, Length=SIZE, ProcessID=U32, Flags=named(U32, VIRTUAL_ALLOC_FLAGS, flags=True)),
}
_HEAP_RANGE = {0: layout(HeapHandle=PTR, HeapRangeAddress=PTR, HeapRangeSize=SIZE)}

_HANDLE = {0: layout(Object=PTR, Handle=HEX32, ObjectType=U16)}
_OBJECT_NAME = {0: layout(Object=PTR, ProcessID=U32, Handle=HEX32, ObjectType=U16, ObjectName=WIDE)}
_TYPE_NAME = {0: layout(ObjectType=U16, Reserved=U16, ObjectTypeName=WIDE)}
_IRP_MATCH = {0: layout(Irp=PTR, UniqMatchID=U32)}
_MESSAGE = {0: layout(MessageID=U32)}

_SPACE = layout(FreeSpace=SIZE, CommittedSpace=SIZE, ReservedSpace=SIZE)
_HEAP_ONLY = {0: layout(HeapHandle=PTR)}
_CALLBACK = {
    0: layout(PoolID=PTR, TaskID=PTR, CallbackFunction=PTR, CallbackContext=PTR, SubProcessTag=PTR),
}
_TASK, _POOL = {0: layout(TaskID=PTR)}, {0: layout(PoolID=PTR)}
_POOL_THREADS = {0: layout(PoolID=PTR, ThreadNum=U32)}

TABLE = {
    (DISK_IO, 10): _DISK,
    (DISK_IO, 11): _DISK,
    (DISK_IO, 12): _DISK_INIT,
    (DISK_IO, 13): _DISK_INIT,
    (DISK_IO, 14): _FLUSH,
    (DISK_IO, 15): _DISK_INIT,
    (DISK_IO, 34): {
        0: layout(MajorFunction=U32, MinorFunction=U32, RoutineAddr=PTR, FileKey=PTR, Irp=PTR, UniqMatchID=U32)
    },
    (DISK_IO, 35): _IRP_MATCH,
    (DISK_IO, 37): {0: layout(Routine=PTR, IrpPtr=PTR, UniqMatchID=U32)},
    (DISK_IO, 52): {0: layout(RoutineAddr=PTR, Irp=PTR, UniqMatchID=U32)},
    (DISK_IO, 53): _IRP_MATCH,
    **dict.fromkeys([(PAGE_FAULT, type_) for type_ in range(10, 16)], _FAULT),
    (PAGE_FAULT, 32): {
        0: layout(InitialTime=I64, ReadOffset=I64, VirtualAddress=PTR, FileKey=PTR, ThreadID=U32, ByteCount=U32)
    },
    (PAGE_FAULT, 98): _VIRTUAL,
    (PAGE_FAULT, 99): _VIRTUAL,
    (PAGE_FAULT, 100): {0: layout(HeapHandle=PTR, HeapRangeFlags=HEX32, ProcessID=U32, HRRangeCount=U32)},
    (PAGE_FAULT, 101): {0: layout(HeapHandle=PTR, FirstRangeSize=SIZE, HeapRangeCreateFlags=HEX32)},
    (PAGE_FAULT, 102): _HEAP_RANGE,
    (PAGE_FAULT, 103): _HEAP_RANGE,
    (PAGE_FAULT, 104): _HEAP_ONLY,
    (PAGE_FAULT, 105): {0: layout(FileKey=PTR, DeviceChar=HEX32, FileChar=U16, LoadFlags=U16)},
    **dict.fromkeys([(FILE_IO, type_) for type_ in (0, 32, 35, 36)], _FILE_NAME),
    **dict.fromkeys([(FILE_IO, type_) for type_ in (37, 38, 39, 40)], _MAP_FILE),
    (FILE_IO, 64): {2: layout(_FILE_2, _CREATE), 3: layout(layout(_FILE_3, TTID=U32), _CREATE)},
    **dict.fromkeys([(FILE_IO, type_) for type_ in (65, 66, 73)], _SIMPLE),
    **dict.fromkeys([(FILE_IO, type_) for type_ in (67, 68)], _READ_WRITE),
    **dict.fromkeys([(FILE_IO, type_) for type_ in (69, 70, 71, 74, 75)], _INFO),
    **dict.fromkeys([(FILE_IO, type_) for type_ in (72, 77)], _DIRECTORIES),
    (FILE_IO, 76): {0: layout(IrpPtr=PTR, ExtraInfo=PTR, NtStatus=HEX32)},
    **dict.fromkeys([(REGISTRY, type_) for type_ in range(10, 28)], _REGISTRY),
    (SPLIT_IO, 32): {0: layout(ParentIrp=PTR, ChildIrp=PTR)},
    (OBJECT, 32): _HANDLE,
    (OBJECT, 33): _HANDLE,
    (OBJECT, 34): {  # pack(1)
        0: layout(
            Object=PTR, SourceHandle=HEX32, TargetHandle=HEX32, TargetProcessID=U32, ObjectType=U16, SourceProcessID=U32
        )
    },
    (OBJECT, 36): _TYPE_NAME,
    (OBJECT, 37): _TYPE_NAME,
    (OBJECT, 38): _OBJECT_NAME,
    (OBJECT, 39): _OBJECT_NAME,
    (ALPC, 33): _MESSAGE,
    (ALPC, 34): _MESSAGE,
    (ALPC, 35): _MESSAGE,
    (ALPC, 36): {0: layout(IsServerPort=U32, PortName=ANSI)},
    (ALPC, 37): {0: layout(Status=HEX32)},
    (HEAP, 32): {0: layout(HeapHandle=PTR, HeapFlags=HEX32)},
    (HEAP, 33): {0: layout(HeapHandle=PTR, AllocSize=SIZE, AllocAddress=PTR, SourceID=U32)},
    (HEAP, 34): {
        0: layout(
            HeapHandle=PTR, NewAllocAddress=PTR, OldAllocAddress=PTR, NewAllocSize=SIZE, OldAllocSize=SIZE, SourceID=U32
        )
    },
    (HEAP, 36): {0: layout(HeapHandle=PTR, FreeAddress=PTR, SourceID=U32)},
    (HEAP, 37): {0: layout(layout(HeapHandle=PTR, CommittedSize=SIZE, CommitAddress=PTR), _SPACE, NoOfUCRs=U32)},
    (HEAP, 38): {0: layout(layout(HeapHandle=PTR), _SPACE, HeapFlags=HEX32)},
    (HEAP, 42): {0: layout(layout(HeapHandle=PTR, DeCommittedSize=SIZE, DeCommitAddress=PTR), _SPACE, NoOfUCRs=U32)},
    **dict.fromkeys([(HEAP, type_) for type_ in (35, 43, 44, 45, 46)], _HEAP_ONLY),
    (CRIT_SEC, 34): {0: layout(LockCount=U32, SpinCount=U32, OwningThread=PTR, CritSecAddr=PTR)},
    (CRIT_SEC, 35): {0: layout(SpinCount=SIZE, CritSecAddr=PTR)},
    (THREAD_POOL, 32): _CALLBACK,
    (THREAD_POOL, 34): _CALLBACK,
    (THREAD_POOL, 33): _TASK,
    (THREAD_POOL, 35): _TASK,
    (THREAD_POOL, 36): {0: layout(TaskID=PTR, CancelCount=U32)},
    (THREAD_POOL, 37): _POOL,
    (THREAD_POOL, 38): _POOL,
    (THREAD_POOL, 39): _POOL_THREADS,
    (THREAD_POOL, 40): _POOL_THREADS,
}
