"""Profile sources: what can interrupt a processor regularly, with how many of its events between two interrupts.

Numbers and names below 25 are KPROFILE_SOURCE's, those from 25 on what Windows calls the architectural events of
Intel's processors; further ones are of this machine and are found by name. Intervals hold for all sessions of a user:
they stand in a file of the registry, whose lock the caller of each function with a ``root`` has.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import LastbranchError
from ...model.output import PartFile
from ..status import EtwError, Status
from ..types import ProfileSource
from .lbr_configuration import software_source

if TYPE_CHECKING:
    from ...capture.perf_events.events import EventChoice
    from ...capture.perf_events.kernel import Kernel

__all__ = [
    "MOST_CONFIGURED", "TIMER", "choices_of", "configure", "configured", "default_interval", "interval",
    "intervals", "profile_sources", "set_interval",
]  # fmt: skip

TIMER = 0
MOST_CONFIGURED = 4
"""Sources that may be configured at once: the counters that every processor with any has. Our choice."""
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
"""Number -> name, and what Linux calls the event."""
_FIRST_OWN = 256
"""Events that the kernel describes for the cores of this machine, by their names in order."""
_ABSENT = frozenset({errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENXIO, errno.ENOSYS})
_FILE = "profile"


def default_interval(source: int) -> int:
    """The interval until one is set."""
    return (_TIMER_LIMITS if source == TIMER else _COUNTER_LIMITS)[2]


def choices_of(source: int, kernel: Kernel | None = None) -> list[EventChoice]:
    """The events of perf that ``source`` is: one for each kind of core; none for the timer and unknown numbers."""
    from ...capture.perf_events.events import parse_event, read_pmus

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
    from ...capture.perf_events.kernel import Kernel

    return Kernel()


def _own_events(kernel: Kernel) -> dict[int, str]:
    from ...capture.perf_events.events import read_pmus

    generic = {"cpu-cycles", "branch-instructions", *(event for _, event in _GENERIC.values())}
    names = [f"{pmu.name}/{event}/" for pmu in read_pmus(kernel).values() if pmu.core
             for event in pmu.events if event not in generic]  # fmt: skip
    return dict(enumerate(sorted(names), _FIRST_OWN))


def profile_sources(kernel: Kernel | None = None) -> list[ProfileSource]:
    """What this machine has: the timer always, counters that it can sample, the software branch record."""
    from ...capture.perf_events.events import read_pmus

    given, kernel = kernel, kernel or _linux()
    found = [ProfileSource(TIMER, "Timer", *_TIMER_LIMITS)]
    if any(pmu.core for pmu in read_pmus(kernel).values()):
        names = {n: name for n, (name, _) in _GENERIC.items()} | _own_events(kernel)
        found += [ProfileSource(n, name, *_COUNTER_LIMITS) for n, name in names.items() if _offered(kernel, n)]
    return found + ([] if given else software_source())


def _offered(kernel: Kernel, source: int) -> bool:
    """Whether the processor can interrupt for it: tried on the calling thread, without the kernel's side."""
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


def _known(source: int, call: str) -> ProfileSource:
    for known in profile_sources():
        if known.source == source:
            return known
    raise EtwError(call, Status.INVALID_PARAMETER, f"this machine has no profile source {source}")


# -- what is set for all sessions


def interval(root: Path, source: int) -> int:
    """The interval of ``source``. `EtwError` 87 for one that the machine does not have."""
    known = _known(source, "TraceQueryInformation")
    return intervals(root).get(source, known.default)


def intervals(root: Path) -> dict[int, int]:
    """Those that were set."""
    stored = _read(root).get("intervals", {})
    return {int(source): int(value) for source, value in stored.items()}


def set_interval(root: Path, source: int, value: int) -> int:
    """Set the interval of ``source``, the nearest one that it may have; gives that. `EtwError` 87 as `interval`."""
    known = _known(source, "TraceSetInformation")
    value = min(max(value, known.minimum), known.maximum)
    stored = _read(root)
    stored["intervals"] = {**stored.get("intervals", {}), str(source): value}
    _write(root, stored)
    return value


def configured(root: Path) -> list[int]:
    """The sources whose interrupts PMC_PROFILE enables."""
    return [int(source) for source in _read(root).get("sources", [])]


def configure(root: Path, sources: list[int]) -> None:
    """Have PMC_PROFILE enable these sources. `EtwError` 87 for an unknown one or the timer, 1292 for too many."""
    if len(sources) > MOST_CONFIGURED:
        why = f"{len(sources)} profile sources, and at most {MOST_CONFIGURED} can be counted at once"
        raise EtwError("TraceSetInformation", Status.IMPLEMENTATION_LIMIT, why)
    for source in sources:
        if source == TIMER:
            why = "the timer is no counter: EVENT_TRACE_FLAG_PROFILE enables it"
            raise EtwError("TraceSetInformation", Status.INVALID_PARAMETER, why)
        _known(source, "TraceSetInformation")
    _write(root, {**_read(root), "sources": sources})


def _read(root: Path) -> dict[str, Any]:
    """What the file says; nothing where there is none, or it is not what `_write` leaves."""
    try:
        with open(os.open(root / _FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
            stored = json.load(file)
        if isinstance(stored, dict) and {*map(type, stored.get("sources", []))} <= {int}:
            {int(source): int(value) for source, value in stored.get("intervals", {}).items()}
            return stored
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    return {}


def _write(root: Path, stored: dict[str, Any]) -> None:
    """All or nothing: a reader never sees half of it."""
    with PartFile(root / _FILE, mode=0o600) as part:
        part.file.write(json.dumps(stored).encode())
        part.appear()
