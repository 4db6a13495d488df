"""The findings of `check`, as data: severity, meaning and remedy."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ...errors import Damage
from ..counting.availability import Origin

__all__ = ["FINDINGS", "Finding", "Severity", "damage_findings", "make_finding", "some"]


_SHOWN = 3


class Severity(StrEnum):
    """Worst first."""

    ERROR = "error"
    """The capture cannot serve its purpose, or its results are wrong."""
    WARNING = "warning"
    """Something is missing, or may be."""
    INFO = "info"


class FindingKind(NamedTuple):
    """A row of `FINDINGS`."""

    severity: Severity
    means: str
    remedy: str
    windows: str = ""
    """The remedy for a capture made on Windows, where it is another."""
    lastbranch: str = ""
    """The remedy for a recording of `lastbranch record`, where it is another."""


class Finding(NamedTuple):
    """One finding: ``name`` is its row of `FINDINGS`, ``seen`` what in the capture says so."""

    name: str
    severity: Severity
    means: str
    seen: str
    remedy: str


_MASKS = (
    "read the masks with TraceQueryInformation(TraceSystemTraceEnableFlagsInfo), OR in Masks[1] |= 0x400 and set all "
    "eight with TraceSetInformation: it replaces the masks, it does not add to them"
)
_BUFFERS = (
    "raise BufferSize and MaximumBuffers of EVENT_TRACE_PROPERTIES (xperf -BufferSize 1024 -MaxBuffers 1024), or "
    "sample less often with TraceSetInformation(TraceSampledProfileIntervalInfo)"
)
_RUNDOWN = (
    "start the session with EVENT_TRACE_FLAG_PROCESS | EVENT_TRACE_FLAG_IMAGE_LOAD in EnableFlags and end it with "
    "ControlTrace(EVENT_TRACE_CONTROL_STOP); both write the lists of processes, threads and images; then merge (xperf "
    "-merge)"
)
_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

FINDINGS = {
    "damage": FindingKind(
        _E, "the file is damaged; the damaged parts were skipped",
        "list every place with `lastbranch verify`, and copy or record the file again",
    ),
    # -- Windows
    "pmc off": FindingKind(
        _E, "the group PERF_PMC_PROFILE was never on, so no processor counter took samples", _MASKS
    ),
    "pmc lost": FindingKind(_E, "the group PERF_PMC_PROFILE was turned off before the session ended", _MASKS),
    "masks overwritten": FindingKind(
        _E, "the group masks were overwritten: process and image events stopped, so samples cannot be bound", _MASKS
    ),
    "groups paused": FindingKind(
        _W, "all kernel groups were off during part of the session: nothing was recorded then, and processes and "
            "images that began then are not known",
        "leave the groups on while the session runs; programs change them by calling TraceSetInformation("
        "TraceSystemTraceEnableFlagsInfo) or ControlTrace(EVENT_TRACE_CONTROL_UPDATE)",
    ),
    "pmc without lbr": FindingKind(
        _W, "PMC interrupts without last branch records: perhaps none were requested, or the processor (or the "
            "virtual machine) has none",
        "call TraceConfigureLastBranchRecord with the trigger {PerfInfo, 0x2f} before PMC sampling starts, and check "
        "its return code (50: not supported here)",
    ),
    "lbr without trigger": FindingKind(
        _W, "branch records without the event that triggered them (an earlier event with the same time stamp and "
            "processor)",
        "enable the trigger in the session (TraceSetInformation(TraceSystemTraceEnableFlagsInfo)); if events were "
        "lost, raise BufferSize and MaximumBuffers",
    ),
    "unknown trigger": FindingKind(
        _W, "an unknown event triggered branch records",
        "pass TraceConfigureLastBranchRecord events of the 32 kernel groups only; `lastbranch dump` shows them",
    ),
    "trigger off": FindingKind(
        _W, "events that should trigger branch records were not enabled in the session, or did not happen",
        "enable them, too: TraceConfigureLastBranchRecord accepts triggers that are off, but then nothing is recorded. "
        "For PMC interrupts " + _MASKS,
    ),
    "short records": FindingKind(
        _I, "branch records by software with fewer branches than the record has room for: a burst ends before a system "
            "call, at a signal, and where the filter passes too few branches",
        "nothing, if the bursts end before system calls: the program makes them that often. Else filter fewer classes",
    ),
    "no targets": FindingKind(
        _W, "branches were to be recorded by software, and the session had no target: only the processes that it names "
            "are recorded",
        "name them: lastbranch session start --target PID, or TraceSetInformation(TraceSoftwareBranchTargetsInfo)",
    ),
    "pointer size": FindingKind(
        _E, "event payloads have a different pointer size from the one in the event headers: their fields are wrong",
        "read the log with the right --pointer-size (in Python: open(pointer_size=...)). The tool that wrote or "
        "converted the log gave its events the wrong header type",
    ),
    "odd payloads": FindingKind(
        _W, "event payloads do not match their layouts: bytes are left over, or values are impossible",
        "look at these events with `lastbranch dump`; a newer system may have added fields at the end, whose bytes "
        "are kept as `rest`; --manifest supplies the layouts of your own providers",
    ),
    "no end": FindingKind(
        _W, "the session was not stopped: its process or machine ended first, and the data still in memory is missing",
        "stop sessions with ControlTrace(EVENT_TRACE_CONTROL_STOP); a flush timer limits what can be lost",
    ),
    "lost buffers": FindingKind(_E, "whole buffers of events were lost", _BUFFERS),
    "lost events": FindingKind(_W, "events were lost", _BUFFERS),
    "no rundown": FindingKind(
        _W, "no list of the processes and images that existed before the session (no DCStart or DCEnd events)", _RUNDOWN
    ),
    # -- perf
    "lost samples": FindingKind(
        _W, "records or samples were lost",
        "give perf record a larger buffer (-m 16M), fewer samples (-c with a larger number), or less to write "
        "(--no-bpf-event, one event)",
        lastbranch="record less often: a larger --period, or a smaller --frequency or --duty; if the disk was full, "
        "free some space, or write elsewhere (-o)",
    ),
    "throttled": FindingKind(
        _W, "the kernel throttled sampling: some periods have no samples",
        "sample less often (perf record -c), or raise kernel.perf_event_max_sample_rate and "
        "kernel.perf_cpu_time_max_percent with sysctl",
        lastbranch="record less often (a larger --period, a smaller --frequency), or raise "
        "kernel.perf_event_max_sample_rate and kernel.perf_cpu_time_max_percent with sysctl",
    ),
    "trace cut short": FindingKind(
        _W, "parts of the hardware trace are missing: its buffer was full, or the trace was read too late",
        "give perf a larger AUX buffer (-m ,64M), or sample operations less often (-c with a larger number)",
    ),
    "operations dropped": FindingKind(
        _I, "samples were dropped because the operation sampled before was still in flight",
        "sample operations less often (-c with a larger number)",
    ),
    "trace not decoded": FindingKind(
        _W, "the capture is a hardware trace, which lastbranch does not decode: it has no branch stacks yet",
        "have perf make branch stacks of the trace (perf inject --itrace) where the binaries are that ran, and open "
        "what it writes",
    ),
    "no branch stacks": FindingKind(
        _W, "no last branch records: branches and ranges cannot be counted",
        "record with `perf record -b` on a machine whose processor exposes them (most virtual machines do not), "
        "elsewhere with `lastbranch record`",
        "call TraceConfigureLastBranchRecord for the session, on a machine whose processor exposes them (most virtual "
        "machines do not)",
        "the program ended before the first burst: let it run longer, or give a larger --duty or a shorter --period",
    ),
    "no ranges": FindingKind(
        _W, "branch records without fall-through ranges, because not every taken branch was recorded",
        "record with `perf record -j any,u` (or any,k), without call-stack mode and other filters",
        "call TraceConfigureLastBranchRecord without FILTER_ flags and CALLSTACK_ENABLE",
        "record without --filter and --call-graph lbr",
    ),
    "split stacks": FindingKind(
        _W, "a program was built with -fsplit-stack: its stacks are in pieces that cannot be followed, and it has no "
            "call stacks here",
        "build it without -fsplit-stack to record its callers; its branches are complete",
    ),
    "counts follow time": FindingKind(
        _I, "records that cycles trigger begin where time is spent: branches and ranges are counted by time, not by "
            "executions",
        "for executions sample taken branches, which has no such bias (perf record -b -e br_inst_retired.near_taken, "
        "r20c4; rc4 on AMD), or use --estimate executions",
        "for executions sample BranchInstructionRetired instead of cycles, or use --estimate executions",
        "for executions record without --event, or use --estimate executions",
    ),
    "no build ids": FindingKind(
        _W, "binaries without a build id: it is not known whether an available binary is the one that ran",
        "let `perf record` finish (it writes them at the end, unless -B), use `perf record --buildid-mmap`, or add "
        "them with `perf inject -b` on the recorded machine; link with --build-id",
        lastbranch="link with --build-id (clang and some distributions leave it out)",
    ),
    # -- both
    "no samples": FindingKind(
        _W, "the capture has no samples",
        "enable sampling: `perf record -b`",
        "enable sampling: EVENT_TRACE_FLAG_PROFILE, or the group PERF_PMC_PROFILE",
        "let the program run longer: it ended before the first sample",
    ),
    "few samples": FindingKind(
        _W, "too few samples: shares and probabilities are mostly chance",
        "record longer or sample more often (perf record -F, or -c with a smaller number)",
        "record longer, or sample more often with TraceSetInformation(TraceSampledProfileIntervalInfo)",
        "let the program run longer (--duration), or burst more often: a larger --duty, a shorter --period",
    ),
    "sampling noise": FindingKind(
        _I, "how far off shares are by chance: in two of three recordings less than their standard error",
        "nothing, if what you compare differs by more; else record longer, or sample more often (perf record -F)",
        "nothing, if what you compare differs by more; else record longer, or sample more often with "
        "TraceSetInformation(TraceSampledProfileIntervalInfo)",
        "nothing, if what you compare differs by more; else let the program run longer (--duration), or burst more "
        "often: a larger --duty, a shorter --period",
    ),
    "time without samples": FindingKind(
        _W, "CPU time without samples: processes or threads that ended before their first sample, or code that is "
            "not sampled, as the kernel's",
        "see how much each one took with `lastbranch report --by process`; sample more often (perf record -F), and "
        "the kernel, too",
        lastbranch="see how much each one took with `lastbranch report --by process`; record more runs and open them "
        "together: which of many short ones are sampled is drawn by lot",
    ),
    "CPU times missing": FindingKind(
        _W, "the CPU time of threads that ended is not known: sums of CPU time, and CPU time without samples, are too "
            "small",
        "record fewer short threads at a time (perf record -s loses counts, too, where its buffer is full)",
        lastbranch="attach before the process has many threads; record fewer short threads at a time",
    ),
    "no names": FindingKind(
        _W, "most samples have no function name",
        "give the binaries with --symfs DIR, debug files with --debug-dir DIR, or --debuginfod; do not strip binaries",
        "give PDBs with --symbol-store DIR",
    ),
    "deleted binary": FindingKind(
        _W, "a binary was deleted or replaced while it ran: its code and names can no longer be read",
        "keep recorded binaries until you have analysed the capture, or give copies of them with --symfs DIR",
    ),
    "no kernel mapping": FindingKind(
        _W, "samples in the kernel have no name: the capture does not say where the kernel was mapped",
        "record as root, or make kernel addresses visible (sysctl kernel.kptr_restrict=0 and "
        "kernel.perf_event_paranoid=1); for the program alone: `perf record -j any,u -e cycles:u`",
        _RUNDOWN,
        "record as root, or make kernel addresses visible (sysctl kernel.kptr_restrict=0 and "
        "kernel.perf_event_paranoid=1); for the program alone: --event cycles:u --filter any,u",
    ),
    "no guest mapping": FindingKind(
        _W, "samples inside a guest have no name: the capture does not say what was mapped there",
        "record with `perf kvm --host --guest --guestkallsyms=FILE --guestmodules=FILE record`, where the files are "
        "/proc/kallsyms and /proc/modules of the guest; for the host alone: `perf record -e cycles:H`",
        lastbranch="record the host alone: --event cycles:H",
    ),
    "outside": FindingKind(
        _W, "samples outside any image have an address but no name",
        "start recording before the program starts, without --no-mmap; code of a JIT compiler has no image: "
        "`perf inject -j` adds images for it",
        "record with EVENT_TRACE_FLAG_IMAGE_LOAD and EVENT_TRACE_FLAG_PROCESS, and start before the program does; "
        "code of a JIT compiler has no image",
        "start recording before the program starts (`lastbranch record -- COMMAND`, not -p); code of a JIT compiler "
        "has no image: have it write a perf map (`node --perf-basic-prof`, `python -X perf`)",
    ),
}  # fmt: skip


def make_finding(name: str, seen: str, severity: Severity | None = None, *, origin: Origin = Origin.PERF) -> Finding:
    """A finding of kind ``name``; ``severity`` where it depends on how much was seen."""
    kind = FINDINGS[name]
    remedy = {Origin.WINDOWS: kind.windows, Origin.LASTBRANCH: kind.lastbranch}.get(origin) or kind.remedy
    return Finding(name, severity or kind.severity, kind.means, seen, remedy)


def damage_findings(damage: list[Damage]) -> list[Finding]:
    """The finding that lists ``damage``; no finding without damage."""
    return [make_finding("damage", some([str(one) for one in damage], "; "))] if damage else []


def some(texts: list[str], between: str) -> str:
    """The first of ``texts``, and how many more there are."""
    rest = len(texts) - _SHOWN
    return between.join(texts[:_SHOWN]) + (f"{between}{rest} more" if rest > 0 else "")
