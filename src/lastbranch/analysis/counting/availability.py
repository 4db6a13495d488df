"""Whether a capture has what is to be counted, and how to record one that has."""

from __future__ import annotations

from enum import StrEnum

from ...lbr import no_ranges_because
from ...model import Profile, SampleFilter
from ..samples import wanted_events

__all__ = ["Origin", "how_to_record", "origin_of", "why_no_ranges", "why_no_stacks"]


class Origin(StrEnum):
    """The tool that made a capture: remedies use the tool's words."""

    PERF = "perf"
    WINDOWS = "windows"
    LASTBRANCH = "lastbranch"
    """`lastbranch record`."""


def why_no_stacks(profile: Profile, sample_filter: SampleFilter | None = None) -> str | None:
    """Why the profile (or the events that the filter keeps) has no branch stacks at all; ``None`` where it has."""
    if not any(e.branch_select is not None for e in profile.events):
        return "the capture has no branch stacks"
    wanted = wanted_events(profile, sample_filter).values()
    if any(event.branch_select is not None for event in wanted):
        return None
    return "; ".join(f"event {event.name} has no branch stacks" for event in wanted)


def origin_of(profile: Profile) -> Origin:
    """The tool that made the capture, whatever format the file has now."""
    if profile.recorder.startswith("lastbranch") or profile.header.get("command line", "").startswith("lastbranch "):
        return Origin.LASTBRANCH
    return Origin.WINDOWS if profile.machine.os.startswith("Windows") else Origin.PERF


_HOW = {
    Origin.PERF: "record with `perf record -b` (or -j any,u) on a machine with LBR, elsewhere with `lastbranch record`",
    Origin.WINDOWS: "record with TraceConfigureLastBranchRecord, without its filters, on a machine that has LBR",
    Origin.LASTBRANCH: "let `lastbranch record` run longer, without --filter and --call-graph lbr; sessions need --lbr",
}


def how_to_record(profile: Profile) -> str:
    """How branch stacks, with ranges between them, get into a capture like ``profile``."""
    if profile.decoded_by:
        return f"it has a trace of {profile.hardware_trace}, of which perf makes branch stacks: {profile.decoded_by}"
    return _HOW[origin_of(profile)]


def why_no_ranges(profile: Profile, sample_filter: SampleFilter | None = None) -> str | None:
    """Why fall-through ranges do not exist in the profile (or in the events that the filter keeps)."""
    for event in wanted_events(profile, sample_filter).values():
        select = event.branch_select
        if select is not None and (reason := no_ranges_because(event.branch_select_kind, select)):
            return f"event {event.name}: {reason}"
    return None
