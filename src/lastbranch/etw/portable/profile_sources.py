"""Profile sources: the events that can interrupt a processor at an interval.

Numbers and names below 25 are KPROFILE_SOURCE's. Sources from 25 on are Intel's architectural events, by Windows'
names. Further ones are events of this machine, known by their names.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...errors import LastbranchError
from ..interface import ProfileSource
from ..status import EtwError, Status
from .lbr_configuration import software_source
from .session_registry import Registry, read_state, write_state

if TYPE_CHECKING:
    from ...capture.perf_events.event_names import EventChoice
    from ...capture.perf_events.linux_kernel import Kernel

__all__ = [
    "MOST_CONFIGURED",
    "TIMER",
    "choices_of",
    "configure",
    "default_interval",
    "interval",
    "profile_sources",
    "set_interval",
    "source_settings",
]

TIMER = 0
MOST_CONFIGURED = 4
"""Sources that may be configured at once: as many as any processor with counters has. Our choice."""
_TIMER_LIMITS = (1221, 1_000_000, 10_000)
_COUNTER_LIMITS = (4096, 2_147_483_647, 65_536)
"""Minimum, maximum, default; those of Windows."""

_GENERIC: dict[int, tuple[str, str]] = {
    2: ("TotalIssues", "instructions"), 6: ("BranchInstructions", "branches"), 10: ("CacheMisses", "cache-misses"),
    11: ("BranchMispredictions", "branch-misses"), 19: ("TotalCycles", "cycles"),
    25: ("UnhaltedCoreCycles", "cycles"), 26: ("InstructionRetired", "instructions"),
    27: ("UnhaltedReferenceCycles", "ref-cycles"), 28: ("LLCReference", "cache-references"),
    29: ("LLCMisses", "cache-misses"), 30: ("BranchInstructionRetired", "branches"),
    31: ("BranchMispredictsRetired", "branch-misses"),
}  # fmt: skip
"""Number -> name, and perf's name of the event."""
_FIRST_OWN = 256
"""Events that the kernel describes for the cores of this machine, by their names in order."""
_ABSENT = frozenset({errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENXIO, errno.ENOSYS})
_FILE = "profile"


def default_interval(source: int) -> int:
    """The interval before one is set."""
    return (_TIMER_LIMITS if source == TIMER else _COUNTER_LIMITS)[2]


def choices_of(source: int, kernel: Kernel | None = None) -> list[EventChoice]:
    """perf's events for ``source``, one for each kind of core. None for the timer and for unknown numbers."""
    from ...capture.perf_events.event_names import parse_event, read_pmus

    kernel = kernel or _linux()
    pmus = read_pmus(kernel)
    if source in _GENERIC:
        try:
            return parse_event(_GENERIC[source][1], pmus)
        except LastbranchError:
            return []
    own = _own_events(kernel)
    return parse_event(own[source], pmus) if source in own else []


def _linux() -> Kernel:
    from ...capture.perf_events.linux_kernel import Kernel

    return Kernel()


def _own_events(kernel: Kernel) -> dict[int, str]:
    from ...capture.perf_events.event_names import read_pmus

    generic = {"cpu-cycles", "branch-instructions", *(event for _, event in _GENERIC.values())}
    names = [
        f"{pmu.name}/{event}/"
        for pmu in read_pmus(kernel).values()
        if pmu.core
        for event in pmu.events
        if event not in generic
    ]
    return dict(enumerate(sorted(names), _FIRST_OWN))


def profile_sources(kernel: Kernel | None = None) -> list[ProfileSource]:
    """The sources of this machine: the timer, the counters that it can sample, the software branch record."""
    from ...capture.perf_events.event_names import read_pmus

    given, kernel = kernel, kernel or _linux()
    found = [ProfileSource(TIMER, "Timer", *_TIMER_LIMITS)]
    if any(pmu.core for pmu in read_pmus(kernel).values()):
        names = {n: name for n, (name, _) in _GENERIC.items()} | _own_events(kernel)
        found += [ProfileSource(n, name, *_COUNTER_LIMITS) for n, name in names.items() if _can_interrupt(kernel, n)]
    return found + ([] if given else software_source())


def _can_interrupt(kernel: Kernel, source: int) -> bool:
    """Whether the processor can interrupt for the event: opens the event for the calling thread, in user mode."""
    choices = choices_of(source, kernel)
    return bool(choices) and all(_opens(kernel, choice) for choice in choices)


def _opens(kernel: Kernel, choice: EventChoice) -> bool:
    from ...capture.perf_events.syscall import FLAG, USER_ONLY, attribute

    attr = attribute(FLAG["disabled"] | USER_ONLY, sample_period=_COUNTER_LIMITS[2], **choice.fields)
    cpu = choice.pmu.cpus[0] if choice.pmu and choice.pmu.cpus else -1
    try:
        kernel.close(kernel.open_event(attr, 0, cpu))
    except OSError as error:
        return error.errno not in _ABSENT
    return True


def _find_source(source: int, call: str) -> ProfileSource:
    for known in profile_sources():
        if known.source == source:
            return known
    raise EtwError(call, Status.INVALID_PARAMETER, f"this machine has no profile source {source}")


# -- settings that hold for all sessions of a user


@dataclass(frozen=True)
class SourceSettings:
    """The registry's file `_FILE`. Its writer holds the registry's lock."""

    intervals: dict[int, int] = field(default_factory=dict)
    """Profile source -> interval, of those that were set."""
    sources: list[int] = field(default_factory=list)
    """The sources whose interrupts PMC_PROFILE enables."""


def source_settings(registry: Registry) -> SourceSettings:
    """The settings; the defaults if the file cannot be read as settings."""
    with registry.folder() as folder:
        found: SourceSettings | None = read_state(folder, _FILE, SourceSettings)
    return found or SourceSettings()


def _store(registry: Registry, changed: SourceSettings) -> None:
    with registry.folder() as folder:
        write_state(folder, _FILE, changed)


def interval(registry: Registry, source: int) -> int:
    """The interval of ``source``. `EtwError` 87 for one that the machine does not have."""
    known = _find_source(source, "TraceQueryInformation")
    return source_settings(registry).intervals.get(source, known.default)


def set_interval(registry: Registry, source: int, value: int) -> int:
    """Set the interval of ``source`` to the nearest possible interval, and return the result. `EtwError` 87 as
    `interval`."""
    known, now = _find_source(source, "TraceSetInformation"), source_settings(registry)
    value = min(max(value, known.minimum), known.maximum)
    _store(registry, replace(now, intervals={**now.intervals, source: value}))
    return value


def configure(registry: Registry, sources: list[int]) -> None:
    """Have PMC_PROFILE enable these sources. `EtwError` 87 for an unknown one or the timer, 1292 for too many."""
    if len(sources) > MOST_CONFIGURED:
        why = f"{len(sources)} profile sources; at most {MOST_CONFIGURED} can be counted at once"
        raise EtwError("TraceSetInformation", Status.IMPLEMENTATION_LIMIT, why)
    for source in sources:
        if source == TIMER:
            why = "the timer is not a counter: EVENT_TRACE_FLAG_PROFILE enables it"
            raise EtwError("TraceSetInformation", Status.INVALID_PARAMETER, why)
        _find_source(source, "TraceSetInformation")
    _store(registry, replace(source_settings(registry), sources=sources))
