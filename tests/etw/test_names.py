"""The names of the vendor's headers that programs written from the documents use."""

from __future__ import annotations

import pytest

from lastbranch import etw

VALUES = {
    "ERROR_SUCCESS": 0, "ERROR_ACCESS_DENIED": 5, "ERROR_OUTOFMEMORY": 14, "ERROR_BAD_LENGTH": 24,
    "ERROR_NOT_SUPPORTED": 50, "ERROR_INVALID_PARAMETER": 87, "ERROR_INVALID_NAME": 123, "ERROR_BAD_PATHNAME": 161,
    "ERROR_BUSY": 170, "ERROR_ALREADY_EXISTS": 183, "ERROR_MORE_DATA": 234, "ERROR_IMPLEMENTATION_LIMIT": 1292,
    "ERROR_PRIVILEGE_NOT_HELD": 1314, "ERROR_NO_SYSTEM_RESOURCES": 1450, "ERROR_WMI_INSTANCE_NOT_FOUND": 4201,
    "STATUS_LOG_FILE_FULL": 0xC0000188, "SE_SYSTEM_PROFILE_NAME": "SeSystemProfilePrivilege",
    "EVENT_FILTER_TYPE_SYSTEM_FLAGS": 0x80000001, "EVENT_FILTER_TYPE_PID": 0x80000004,
    "EVENT_FILTER_TYPE_EXECUTABLE_NAME": 0x80000008, "EVENT_FILTER_TYPE_EVENT_ID": 0x80000200,
    "EVENT_FILTER_TYPE_STACKWALK": 0x80001000, "EVENT_TRACE_MERGE_EXTENDED_DATA_NONE": 0,
    "EVENT_TRACE_MERGE_EXTENDED_DATA_IMAGEID": 1, "EVENT_TRACE_MERGE_EXTENDED_DATA_DEFAULT": 0xFFFFF,
    "EVENT_TRACE_MERGE_EXTENDED_DATA_COMPRESS_TRACE": 0x10000000,
    "EVENT_TRACE_MERGE_EXTENDED_DATA_INJECT_ONLY": 0x40000000,
    "EVENT_TRACE_CONTROL_QUERY": 0, "EVENT_TRACE_CONTROL_STOP": 1, "EVENT_TRACE_CONTROL_UPDATE": 2,
    "EVENT_TRACE_CONTROL_FLUSH": 3, "EVENT_TRACE_CONTROL_INCREMENT_FILE": 4,
    "EVENT_TRACE_CONTROL_CONVERT_TO_REALTIME": 5, "WNODE_FLAG_TRACED_GUID": 0x20000,
    "WNODE_FLAG_VERSIONED_PROPERTIES": 0x800000, "KERNEL_LOGGER_NAME": "NT Kernel Logger",
    "EVNTRACE_LBR_FILTER_NONE": 0, "TRACE_LBR_CONFIGURATION_NONE": 0, "EVNTRACE_LBR_FILTER_KERNEL": 0x1,
    "EVNTRACE_LBR_FILTER_USER": 0x2, "EVNTRACE_LBR_FILTER_JCC": 0x4, "EVNTRACE_LBR_FILTER_NEAR_REL_CALL": 0x8,
    "EVNTRACE_LBR_FILTER_NEAR_IND_CALL": 0x10, "EVNTRACE_LBR_FILTER_NEAR_RET": 0x20,
    "EVNTRACE_LBR_FILTER_NEAR_IND_JMP": 0x40, "EVNTRACE_LBR_FILTER_NEAR_REL_JMP": 0x80,
    "EVNTRACE_LBR_FILTER_FAR_BRANCH": 0x100, "EVNTRACE_LBR_CALLSTACK_ENABLE": 0x200, "EVNTRACE_LBR_SAMPLED": 0x400,
    "EVNTRACE_MAX_LBR_EVENTS": 4, "TRACE_LBR_MAXIMUM_EVENTS": 4, "TRACE_LBR_EVENT_OPCODE": 0x20,
    "PERFINFO_LOG_TYPE_PMC_INTERRUPT": 0x2F, "ProfileTime": 0, "ProfileBranchInstructions": 6,
    "ProfileBranchMispredictions": 11, "ProfileTotalCycles": 19, "ProfileMaximum": 24,
}  # fmt: skip
MODES = {
    "SEQUENTIAL": 0x1, "CIRCULAR": 0x2, "APPEND": 0x4, "NEWFILE": 0x8, "PREALLOCATE": 0x20,
}  # fmt: skip
OTHER_MODES = {
    "REAL_TIME_MODE": 0x100, "DELAY_OPEN_FILE_MODE": 0x200, "BUFFERING_MODE": 0x400, "PRIVATE_LOGGER_MODE": 0x800,
    "USE_KBYTES_FOR_SIZE": 0x2000, "SYSTEM_LOGGER_MODE": 0x2000000, "NO_PER_PROCESSOR_BUFFERING": 0x10000000,
}  # fmt: skip
FLAGS = {
    "PROCESS": 0x1, "THREAD": 0x2, "IMAGE_LOAD": 0x4, "PROCESS_COUNTERS": 0x8, "CSWITCH": 0x10, "DPC": 0x20,
    "INTERRUPT": 0x40, "SYSTEMCALL": 0x80, "DISK_IO": 0x100, "DISK_FILE_IO": 0x200, "DISK_IO_INIT": 0x400,
    "DISPATCHER": 0x800, "MEMORY_PAGE_FAULTS": 0x1000, "MEMORY_HARD_FAULTS": 0x2000, "VIRTUAL_ALLOC": 0x4000,
    "VAMAP": 0x8000, "NETWORK_TCPIP": 0x10000, "REGISTRY": 0x20000, "DBGPRINT": 0x40000, "JOB": 0x80000,
    "ALPC": 0x100000, "SPLIT_IO": 0x200000, "DRIVER": 0x800000, "PROFILE": 0x1000000, "FILE_IO": 0x2000000,
    "FILE_IO_INIT": 0x4000000, "NO_SYSCONFIG": 0x10000000,
}  # fmt: skip
CLASSES = (
    "GuidQueryList", "GuidQueryInfo", "GuidQueryProcess", "StackTracingInfo", "SystemTraceEnableFlagsInfo",
    "SampledProfileIntervalInfo", "ProfileSourceConfigInfo", "ProfileSourceListInfo", "PmcEventListInfo",
    "PmcCounterListInfo", "SetDisallowList", "VersionInfo", "GroupQueryList", "GroupQueryInfo", "DisallowListQuery",
    "CompressionInfo", "PeriodicCaptureStateListInfo", "PeriodicCaptureStateInfo", "ProviderBinaryTracking",
    "MaxLoggersQuery", "LbrConfigurationInfo", "LbrEventListInfo", "MaxPmcCounterQuery", "StreamCount",
    "StackCachingInfo", "PmcCounterOwners", "UnifiedStackCachingInfo", "PmcSessionInformation",
    "ContextRegisterInfo",
)  # fmt: skip
"""TRACE_INFO_CLASS, from 0 on."""
STRUCTURES = (
    "CLASSIC_EVENT_ID", "ETW_LBR_ENTRY", "EVENT_FILTER_DESCRIPTOR", "EVENT_HEADER", "EVENT_TRACE_HEADER",
    "EVENT_TRACE_PROPERTIES", "EVENT_TRACE_PROPERTIES_V2", "LBR_TRACE_EVENT_DATA", "PERFINFO_GROUPMASK",
    "PROFILE_SOURCE_INFO", "TRACE_LOGFILE_HEADER", "TRACE_PROFILE_INTERVAL", "TRACE_STACK_CACHING_INFO",
    "TRACE_VERSION_INFO", "WNODE_HEADER",
)  # fmt: skip


def test_every_number_has_its_name() -> None:
    expected = dict(VALUES)
    expected |= {f"EVENT_TRACE_FILE_MODE_{name}": value for name, value in MODES.items()}
    expected |= {f"EVENT_TRACE_{name}": value for name, value in OTHER_MODES.items()}
    expected |= {f"EVENT_TRACE_FLAG_{name}": value for name, value in FLAGS.items()}
    expected |= {f"Trace{name}": number for number, name in enumerate(CLASSES)}
    assert {name: getattr(etw, name, None) for name in expected} == expected


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_refuses_members_that_it_does_not_have(name: str) -> None:
    made = getattr(etw, name)()
    with pytest.raises(AttributeError):
        made.NoSuchMember = 1


def test_the_class_of_our_own_is_above_all_others() -> None:
    assert etw.TraceSoftwareBranchTargetsInfo > len(CLASSES)
