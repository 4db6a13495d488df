"""What a recording is asked to be, and what it came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..lbr import PERF_SELECT

__all__ = ["DEFAULT_SELECT", "Options", "Summary"]

DEFAULT_SELECT = PERF_SELECT["USER"] | PERF_SELECT["ANY"]


@dataclass(frozen=True, slots=True)
class Options:
    """``select`` is PERF_SAMPLE_BRANCH_* bits; ``duty`` a share of wall time from 0 to 1."""

    depth: int = 96
    select: int = DEFAULT_SELECT
    period: int = 0
    """ns of CPU time between two bursts of a thread; 0: as the duty limit allows."""
    time_period: int = 2_000_000
    """ns of CPU time between two time samples. One costs up to 15 us where its timer is a virtual machine's."""
    duty: float = 0.05
    duration: float | None = None
    """Seconds after which recording ends."""
    no_follow: tuple[str, ...] = ()
    """Patterns of programs, by path or last part of it, that are let go when they are executed."""
    allow_risk: bool = False
    """Attach with an engine that kills the target if the collector is killed in mid-burst."""


@dataclass(slots=True)
class Summary:
    """What a recording came to. Everything in it is JSON."""

    engine: str = ""
    trigger: str = ""
    sideband: str = ""
    seconds: float = 0.0
    bursts: int = 0
    branches: int = 0
    in_bursts: float = 0.0
    """Seconds."""
    throttled: int = 0
    """Triggers that the duty limit let pass."""
    ended: dict[str, int] = field(default_factory=dict)
    """Bursts by why they ended."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Triggers without a burst, by why."""
    self_test: dict[str, str] = field(default_factory=dict)
    """Engine -> what the start-up test said."""
    processes: int = 0
    threads: int = 0
    exit_code: int | None = None
    """Of the launched program, 128+n if a signal killed it; ``None`` where it was left running."""
    error: str = ""
    hint: str = ""
    status: int = 0
    """125 to 127 where the program could not be run or the collector failed."""
