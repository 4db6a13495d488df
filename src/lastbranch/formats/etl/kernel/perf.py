"""Layouts of samples, counters, last branch records, call stacks, interrupts and system calls.

Sources: phnt's ntwmi.h (PERFINFO_SAMPLED_PROFILE_INFORMATION, PERFINFO_PMC_SAMPLE_INFORMATION, STACK_WALK_EVENT_DATA,
PERFINFO_INTERRUPT_INFORMATION …), the documentation of TraceConfigureLastBranchRecord (LBR_TRACE_EVENT_DATA) and the
readers of TraceEvent; samples, intervals and stacks are checked on real files. No public file has LBR or PMC events.
"""

from __future__ import annotations

from typing import Any

from ..payload.layouts import layout
from ..payload.types import ANSI, HEX32, I16, I32, PTR, U8, U16, U32, U64, WIDE, Array, Bits, Columns, FieldType, named

__all__ = ["LBR", "STACK_WALK", "PERF_INFO"]


LBR, PERF_INFO, STACK_WALK = 0x0C, 0x0F, 0x18

LBR_OPTIONS = {  # TRACE_LBR_CONFIGURATION; a filter bit leaves that kind of branch out
    0: "NONE", 0x1: "FILTER_KERNEL", 0x2: "FILTER_USER", 0x4: "FILTER_JCC", 0x8: "FILTER_NEAR_REL_CALL",
    0x10: "FILTER_NEAR_IND_CALL", 0x20: "FILTER_NEAR_RET", 0x40: "FILTER_NEAR_IND_JMP", 0x80: "FILTER_NEAR_REL_JMP",
    0x100: "FILTER_FAR_BRANCH", 0x200: "CALLSTACK_ENABLE", 0x400: "SAMPLED",
}  # fmt: skip


class _Filler(FieldType):
    """A u32 ahead of entries that fill the rest of an event, left out where they come out even without it.

    ``sizes``: bytes of an entry by pointer size; with others it is always there. None stands for "left out".
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
    Options=named(U32, LBR_OPTIONS, flags=True),
    Unused=_Filler({4: 12}),  # 0x14: documented for all, but left out by the readers of 32-bit events
    Entries=Columns(FromAddress=PTR, ToAddress=PTR, Information=PTR),  # the most recent branch first
)

_SAMPLE = layout(
    InstructionPointer=PTR,
    ThreadID=U32,
    Count=U16,
    Flags=Bits(U8, ExecutingDPC=(0x01, 0), ExecutingISR=(0x02, 1), FlagsReserved=(0x04, 2), Priority=(0xF8, 3)),
    Rank=U8,
)
# The intervals: unit 100 ns for source 0 (Timer), events for the others. The name came with version 3 (Windows 8).
_INTERVAL = layout(SampleSource=U32, NewInterval=U32, OldInterval=U32)
_INTERVALS = {2: _INTERVAL, 3: layout(_INTERVAL, SourceName=WIDE)}

_INTERRUPT = layout(InitialTime=U64, Routine=PTR, ReturnValue=U8, Vector=U16, Reserved=U8)  # pack(1)
_INTERRUPTS = {1: layout(InitialTime=U64, Routine=PTR, ReturnValue=U32), 2: _INTERRUPT}
_DPC = {1: layout(InitialTime=U64, Routine=PTR)}

_STACK_EVENT = layout(EventTimeStamp=U64, ProcessID=U32, ThreadID=U32)  # the time of the event it belongs to
_STACK_KEY = {2: layout(_STACK_EVENT, StackKey=PTR)}
_STACK_DEFINITION = {2: layout(StackKey=PTR, Addresses=Array(PTR))}

TABLE = {
    (LBR, 0x20): {0: _LBR},
    (PERF_INFO, 0x22): {0: layout(Message=ANSI)},
    (PERF_INFO, 0x2E): {2: _SAMPLE},
    (PERF_INFO, 0x2F): {2: layout(InstructionPointer=PTR, ThreadID=U32, ProfileSource=U16, Reserved=U16)},
    (PERF_INFO, 0x30): {2: layout(Names=Array(WIDE, U32))},  # of the counter values that ride in event headers
    (PERF_INFO, 0x31): {2: layout(ProcessorNumber=U32, Count=U32)},  # what follows is not known for sure
    (PERF_INFO, 0x32): {2: layout(_INTERRUPT, MessageNumber=U32)},
    (PERF_INFO, 0x33): {2: layout(SysCallAddress=PTR)},
    (PERF_INFO, 0x34): {2: layout(SysCallNtStatus=HEX32)},
    (PERF_INFO, 0x37): {
        2: layout(
            Count=U32,
            Padding=_Filler({4: 12, 8: 16}),  # 64-bit samples are aligned
            Samples=Columns(InstructionPointer=PTR, ThreadID=U32, SampleCount=U16, Flags=U8, Rank=U8),
        )
    },
    (PERF_INFO, 0x3A): {2: layout()},
    (PERF_INFO, 0x42): _DPC,
    (PERF_INFO, 0x43): _INTERRUPTS,
    (PERF_INFO, 0x44): _DPC,
    (PERF_INFO, 0x45): _DPC,
    (PERF_INFO, 0x47): {2: _SAMPLE},
    (PERF_INFO, 0x48): _INTERVALS,
    (PERF_INFO, 0x49): _INTERVALS,
    (PERF_INFO, 0x4A): _INTERVALS,
    (PERF_INFO, 0x4F): {2: layout(InterruptTime=U64, Flags=I16)},
    (PERF_INFO, 0x64): {
        2: layout(
            Key=PTR, DpcQueueDepth=I32, DpcCount=U32, TargetProcessorIndex=U32, Importance=U8, Reserved=Array(U8, 3)
        )
    },
    (PERF_INFO, 0x65): {2: layout(Routine=PTR, Key=PTR)},
    (STACK_WALK, 0x20): {2: layout(_STACK_EVENT, Addresses=Array(PTR))},  # innermost frame first
    (STACK_WALK, 0x22): _STACK_DEFINITION,
    (STACK_WALK, 0x23): _STACK_DEFINITION,
    (STACK_WALK, 0x24): _STACK_DEFINITION,
    (STACK_WALK, 0x25): _STACK_KEY,
    (STACK_WALK, 0x26): _STACK_KEY,
}
