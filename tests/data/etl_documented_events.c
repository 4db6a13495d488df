/* Payloads of LBR and PMC events as the documented structures lay them out, one to a section.

   LBR_TRACE_EVENT_DATA and ETW_LBR_ENTRY: documentation of TraceConfigureLastBranchRecord (evntrace.h).
   PERFINFO_PMC_SAMPLE_INFORMATION, PERFINFO_SAMPLED_PROFILE_INFORMATION: ntwmi.h of the phnt headers.
   STACK_WALK_EVENT_DATA: documentation of the StackWalk_Event class.
   Compiled for 32 and 64 bits by the tests, which take the sections out of the object file; it is never run. */

#include <stddef.h>
#include <stdint.h>

typedef void *PVOID;
typedef uint64_t ULONGLONG;
typedef uint32_t ULONG;
typedef uint16_t USHORT;
typedef uint8_t UCHAR;

#define ENTRIES 3

#pragma pack(push, 1)
typedef struct ETW_LBR_ENTRY {
    PVOID FromAddress;
    PVOID ToAddress;
    PVOID Information;
} ETW_LBR_ENTRY;

typedef struct LBR_TRACE_EVENT_DATA {
    ULONGLONG TimeStamp;
    ULONG ProcessId;
    ULONG ThreadId;
    ULONG Options;
#ifndef WITHOUT_UNUSED
    ULONG Unused;
#endif
    ETW_LBR_ENTRY Entries[ENTRIES];
} LBR_TRACE_EVENT_DATA;
#pragma pack(pop)

typedef struct PERFINFO_PMC_SAMPLE_INFORMATION {
    PVOID InstructionPointer;
    ULONG ThreadId;
    USHORT ProfileSource;
    USHORT Reserved;
} PERFINFO_PMC_SAMPLE_INFORMATION;

typedef struct PERFINFO_SAMPLED_PROFILE_INFORMATION {
    PVOID InstructionPointer;
    ULONG ThreadId;
    USHORT Count;
    UCHAR ExecutingDpc : 1;
    UCHAR ExecutingIsr : 1;
    UCHAR Reserved : 1;
    UCHAR Priority : 5;
    UCHAR Rank;
} PERFINFO_SAMPLED_PROFILE_INFORMATION;

typedef struct STACK_WALK_EVENT_DATA {
    ULONGLONG TimeStamp;
    ULONG ProcessId;
    ULONG ThreadId;
    PVOID Addresses[ENTRIES];
} STACK_WALK_EVENT_DATA;

_Static_assert(sizeof(ETW_LBR_ENTRY) == 3 * sizeof(PVOID), "entries are packed");
_Static_assert(sizeof(PERFINFO_PMC_SAMPLE_INFORMATION) == sizeof(PVOID) + 8, "no padding");

#define IN(name) __attribute__((section(name), used))
#define HIGH ((uintptr_t)(sizeof(PVOID) == 8 ? 0xFFFFF80000000000ULL : 0))
#define TOP ((uintptr_t)1 << (8 * sizeof(PVOID) - 1))

IN(".lbr")
const LBR_TRACE_EVENT_DATA lbr = {
    .TimeStamp = 0x0123456789ABCDEFULL,
    .ProcessId = 4242,
    .ThreadId = 4343,
    .Options = 0x200,
    .Entries =
        {
            {(PVOID)0x401010, (PVOID)0x402000, (PVOID)42},
            {(PVOID)0x401FF0, (PVOID)0x401000, (PVOID)7},
            {(PVOID)(HIGH | 0x80012345), (PVOID)(HIGH | 0x80E00000), (PVOID)(TOP | 1)},
        },
};

IN(".pmc") const PERFINFO_PMC_SAMPLE_INFORMATION pmc = {(PVOID)0x401010, 4343, 6, 0};

IN(".smp")
const PERFINFO_SAMPLED_PROFILE_INFORMATION smp = {
    .InstructionPointer = (PVOID)0x401010,
    .ThreadId = 4343,
    .Count = 3,
    .ExecutingDpc = 1,
    .Priority = 9,
    .Rank = 5,
};

IN(".stk")
const STACK_WALK_EVENT_DATA stk = {
    0x0123456789ABCDEFULL,
    4242,
    4343,
    {(PVOID)0x401010, (PVOID)0x401FF0, (PVOID)0x402010},
};
