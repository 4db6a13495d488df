"""The example program of TraceConfigureLastBranchRecord's page, line by line, and one call more.

    python examples/configure_lbr.py [SOURCE]

It starts a system logger session, triggers branch records by PMC interrupts, enables PMC profiling, and stops. The call
more names what is recorded where the processor records no branches: all programs that this one starts. The profile
source is 65 there (SoftwareBranches), else 6 as on the page; between the page's last call and its stop a program runs.
`lbr_recipe.py` does the same in Python's own terms, and merges the log.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from uuid import UUID

from lastbranch.etw import (
    CLASSIC_EVENT_ID,
    ERROR_SUCCESS,
    EVENT_TRACE_CONTROL_STOP,
    EVENT_TRACE_FILE_MODE_SEQUENTIAL,
    EVENT_TRACE_FLAG_IMAGE_LOAD,
    EVENT_TRACE_FLAG_PROCESS,
    EVENT_TRACE_FLAG_THREAD,
    EVENT_TRACE_PROPERTIES,
    EVENT_TRACE_SYSTEM_LOGGER_MODE,
    PERFINFO_GROUPMASK,
    TRACE_LBR_CONFIGURATION_NONE,
    TRACE_PROFILE_INTERVAL,
    WNODE_FLAG_TRACED_GUID,
    ControlTrace,
    StartTrace,
    TraceConfigureLastBranchRecord,
    TraceProfileSourceConfigInfo,
    TraceSampledProfileIntervalInfo,
    TraceSetInformation,
    TraceSoftwareBranchTargetsInfo,
    TraceSystemTraceEnableFlagsInfo,
    guid_of,
    profile_sources,
)

MAX_PATH = 260
SOFTWARE_BRANCHES = 65
PERFINFO_GUID = UUID("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc")
WORK = "for round in range(40): sum(n % 7 for n in range(100_000))"


class MyEventTraceProperties(ctypes.Structure):
    """MyEventTraceProperties_t."""

    _fields_ = (
        ("Properties", EVENT_TRACE_PROPERTIES),
        ("LoggerName", ctypes.c_uint16 * MAX_PATH),
        ("LogFileName", ctypes.c_uint16 * MAX_PATH),
    )


def wcscpy_s(room: ctypes.Array[ctypes.c_uint16], text: str) -> None:
    """Copy a text, ended by 0, into an array of WCHAR."""
    words = text.encode("utf-16-le") + b"\0\0"
    ctypes.memmove(room, words, len(words))


def main(source: int) -> int:
    """The page's main(); ``source`` is its ``profile.Source``."""
    props = MyEventTraceProperties()

    wcscpy_s(props.LoggerName, "LbrLogger")
    wcscpy_s(props.LogFileName, "LbrProfile.etl")

    props.Properties.Wnode.BufferSize = ctypes.sizeof(props)
    props.Properties.Wnode.Flags = WNODE_FLAG_TRACED_GUID
    props.Properties.LogFileMode = EVENT_TRACE_FILE_MODE_SEQUENTIAL | EVENT_TRACE_SYSTEM_LOGGER_MODE
    props.Properties.EnableFlags = EVENT_TRACE_FLAG_PROCESS | EVENT_TRACE_FLAG_THREAD | EVENT_TRACE_FLAG_IMAGE_LOAD
    props.Properties.LoggerNameOffset = MyEventTraceProperties.LoggerName.offset
    props.Properties.LogFileNameOffset = MyEventTraceProperties.LogFileName.offset

    # EnableSystemProfilePrivilege(): this package takes the privilege for the calls that need it.

    profile = TRACE_PROFILE_INTERVAL()
    profile.Source = source
    profile.Interval = 65536

    status = TraceSetInformation(0, TraceProfileSourceConfigInfo, ctypes.c_uint32(profile.Source), 4)
    if status != ERROR_SUCCESS:
        return 1

    status = TraceSetInformation(0, TraceSampledProfileIntervalInfo, profile, ctypes.sizeof(profile))
    if status != ERROR_SUCCESS:
        return 1

    status, trace_handle = StartTrace("LbrLogger", props)
    if status != ERROR_SUCCESS:
        return 1
    try:
        # Configure LBR to trigger on PerfInfo PMC interrupt (type 0x2f).
        profile_event = CLASSIC_EVENT_ID()
        profile_event.EventGuid = guid_of(PERFINFO_GUID)
        profile_event.Type = 0x2F  # PERFINFO_LOG_TYPE_PMC_INTERRUPT

        status = TraceConfigureLastBranchRecord(trace_handle, TRACE_LBR_CONFIGURATION_NONE, profile_event, 1)
        if status != ERROR_SUCCESS:
            return 1

        # The call more: what descends from this process.
        if source == SOFTWARE_BRANCHES:
            own = ctypes.c_int32(-os.getpid())
            status = TraceSetInformation(trace_handle, TraceSoftwareBranchTargetsInfo, own, 4)
            if status != ERROR_SUCCESS:
                return 1

        # Start PMC profiling and associate it with this trace.
        # This is done by setting the second mask to the PMC_PROFILE mask.
        pmc_masks = PERFINFO_GROUPMASK()
        pmc_masks.Masks[1] = 0x00000400  # Mask of PERF_PMC_PROFILE
        status = TraceSetInformation(trace_handle, TraceSystemTraceEnableFlagsInfo, pmc_masks, ctypes.sizeof(pmc_masks))
        subprocess.run([sys.executable, "-c", WORK], check=True)
    finally:
        ControlTrace(trace_handle, None, props, EVENT_TRACE_CONTROL_STOP)
    return 0 if status == ERROR_SUCCESS else 1


def default_source() -> int:
    """65 where the processor records no branches, else 6."""
    return SOFTWARE_BRANCHES if SOFTWARE_BRANCHES in {source.source for source in profile_sources()} else 6


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else default_source()))
