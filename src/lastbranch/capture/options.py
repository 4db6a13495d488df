"""Options and result of a recording."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

from ..errors import SelectionError
from ..lbr import PERF_SELECT
from ..model import counted
from .process_groups import ProcessGroup

__all__ = [
    "CALL_GRAPHS",
    "Callbacks",
    "Calls",
    "DEFAULT_SELECT",
    "Options",
    "SoftwareRequest",
    "Summary",
    "SwitchOutput",
    "Targets",
]

CALL_GRAPHS = ("auto", "dwarf", "fp", "lbr", "none")
"""The sources of call stacks: call frame information, frame pointers, call-stack mode of the branch records."""

DEFAULT_SELECT = PERF_SELECT["USER"] | PERF_SELECT["ANY"]


@dataclass(frozen=True, slots=True)
class Targets:
    """Running processes that are recorded together until the recording is stopped, with all that they create."""

    processes: tuple[int, ...] = ()
    ancestors: tuple[int, ...] = ()
    """Processes whose descendants are recorded, whenever these begin, but not the processes themselves."""
    group: ProcessGroup | None = None
    """The target's processes, whenever they join. The recording has of these processes all that it has of a single
    process; of the other processes it has bursts alone."""


class Calls(IntEnum):
    """The system calls that get a record of the newest branches before the call: calls at which a burst ended."""

    NONE = 0
    ENTERED = 1
    """Bursts last until a system call. Its record has the time at which the thread entered it."""
    LEFT = 2
    """Also a record without branches when the thread has left the call."""


_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORD = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([BKMGsmhd])")
_SHORTEST, _SMALLEST = 0.1, 1 << 10


@dataclass(frozen=True, slots=True)
class SwitchOutput:
    """When a recording goes on in a new file: after ``size`` bytes of records, or after ``seconds``; the other is 0."""

    size: int = 0
    seconds: float = 0.0
    keep: int = 0
    """How many files stay, the newest; 0: all."""

    @classmethod
    def parse(cls, text: str, keep: int = 0) -> SwitchOutput:
        """``100M`` (B, K, M, G: bytes) or ``30s`` (s, m, h, d), as perf takes it. Raises `SelectionError`."""
        found = _WORD.fullmatch(text)
        if found is None:
            raise SelectionError(f"{text!r} is neither a size as 100M (B, K, M, G) nor a time as 30s (s, m, h, d)")
        number, unit = float(found[1]), found[2]
        if unit in _UNITS:
            if number * _UNITS[unit] < _SMALLEST:
                raise SelectionError(f"{text} is too small for a file: the least is {_SMALLEST}B")
            return cls(size=int(number * _UNITS[unit]), keep=keep)
        if number * _TIMES[unit] < _SHORTEST:
            raise SelectionError(f"{text} is too short for a file: the least is {_SHORTEST}s")
        return cls(seconds=number * _TIMES[unit], keep=keep)


@dataclass(frozen=True, slots=True)
class Options:
    """Zeros and ``None`` mean the engine's default."""

    event: str | None = None
    """The event that triggers samples, as ``perf record -e`` takes it; of the software engine only ``cpu-clock``."""
    period: int | None = None
    """Events between two samples; of the software engine, ns of a thread's CPU time between two bursts."""
    frequency: int | None = None
    """Samples per second, instead of a period."""
    depth: int = 96
    """Branches of a record, at most."""
    burst: tuple[int, int] | None = None
    """Software engine: the fewest and the most branches of a burst; ``None``: they grow with the recording. All are
    kept, in records of ``depth``. With a filter, or in call-stack mode, a burst makes one record."""
    select: int = DEFAULT_SELECT
    """PERF_SAMPLE_BRANCH_* bits."""
    ring: int | None = None
    """Software engine: MSR_LBR_SELECT of a processor whose ring a burst fills, finer than ``select``. A burst makes one
    record then, of the newest ``depth`` branches that pass; how many pass before it ends is drawn at random."""
    calls: Calls = Calls.NONE
    """Software engine: records of the branches that led to system calls, beside those of bursts."""
    call_graph: str = "auto"
    """How call stacks are recorded, one of `CALL_GRAPHS`."""
    time_period: int = 2_000_000
    """ns of CPU time between two time samples. One costs up to 15 us where its timer is a virtual machine's."""
    duty: float = 0.05
    """The largest share of wall time, from 0 to 1, that bursts may take."""
    duration: float | None = None
    """Seconds after which the recording ends."""
    no_follow: tuple[str, ...] = ()
    """Patterns of programs, by path or its last part, that are released when they are executed."""
    switch: SwitchOutput | None = None
    """When to go on in a new file; ``None``: all is in one."""
    run_ahead: str = "auto"
    """The threads whose bursts may be foreseen: ``auto``: threads with all rights that we have, ``always``,
    ``never``."""
    allow_risk: bool = False
    """Attach with an engine that kills the target if the collector is killed in mid-burst."""

    @property
    def burst_period(self) -> int:
        """ns of CPU time between two bursts of a thread; 0: as the duty limit allows."""
        return self.period or (1_000_000_000 // self.frequency if self.frequency else 0)


@dataclass(slots=True)
class Summary:
    """The result of a software recording. All of it is JSON."""

    engine: str = ""
    trigger: str = ""
    sideband: str = ""
    seconds: float = 0.0
    bursts: int = 0
    branches: int = 0
    calls: int = 0
    """Records of system calls (`Calls`)."""
    full: int = 0
    """Records of as many branches as one may have."""
    in_bursts: float = 0.0
    """Seconds."""
    longest: float = 0.0
    """Seconds of the longest burst."""
    in_stops: float = 0.0
    """Seconds that other stops took: at signals of the program, where it created tasks and executed programs, and at
    triggers without a burst."""
    stops: int = 0
    """How many of these there were."""
    beside: float = 0.0
    """Seconds of CPU time that the recorder needed besides while all processors were busy: the program lost them."""
    throttled: int = 0
    """Triggers without a burst because of the duty limit."""
    ended: dict[str, int] = field(default_factory=dict)
    """Number of bursts by the reason for their end."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of triggers without a burst, by reason."""
    losses: list[tuple[int, int]] = field(default_factory=list)
    """(ns of CLOCK_MONOTONIC, triggers without a burst until then), at most one a second."""
    unrecorded: int = 0
    """Threads that could not be given a trigger."""
    call_graph: str = "none"
    """How call stacks were recorded."""
    stacks: dict[str, int] = field(default_factory=dict)
    """Number of bursts by how their call stacks ended; only ``whole`` ones have all callers."""
    foreseen: str = ""
    """How many bursts were foreseen, and how often threads then took those branches."""
    self_test: dict[str, str] = field(default_factory=dict)
    """Result of the start-up test, by engine."""
    processes: int = 0
    threads: int = 0
    exit_code: int | None = None
    """The exit code of the launched program, 128+n if a signal killed it; ``None`` if the program was left running."""
    notes: tuple[str, ...] = ()
    error: str = ""
    hint: str = ""
    status: int = 0
    """125 to 127 where the program could not be run or the collector failed."""
    files: tuple[str, ...] = ()
    """The files of a recording in several (`Options.switch`)."""

    def since(self, before: Summary) -> Summary:
        """The summary of the part of this recording after ``before``: numbers are differences."""

        def difference(new: Any, old: Any) -> Any:
            if isinstance(new, dict):
                rest = {key: difference(value, old.get(key, type(value)())) for key, value in new.items()}
                return {key: value for key, value in rest.items() if value}
            return new - old if isinstance(new, int | float) else new

        same = ("foreseen", "longest", "self_test", "exit_code", "status")
        names = [one.name for one in fields(self) if one.name not in same]
        return replace(self, **{name: difference(getattr(self, name), getattr(before, name)) for name in names})

    @property
    def burst_share(self) -> float:
        """The share of wall time that bursts took."""
        return self.in_bursts / self.seconds if self.seconds else 0.0

    @property
    def stop_share(self) -> float:
        """The share of wall time that other stops took."""
        return self.in_stops / self.seconds if self.seconds else 0.0

    @property
    def beside_share(self) -> float:
        """The share of wall time that the recorder's other work took from the program."""
        return self.beside / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float:
        """The share of wall time that the recording took from the program."""
        return self.burst_share + self.stop_share + self.beside_share

    def __str__(self) -> str:
        branches, bursts = counted(self.branches, "branch", "branches"), counted(self.bursts, "burst")
        return f"{branches} in {bursts} ({self.share:.1%} of {self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True)
class SoftwareRequest:
    """The target of a software recording, and the options."""

    target: Sequence[str] | int | Targets
    """A command, a process id, or processes that are recorded together."""
    options: Options
    command: Sequence[str]
    """The command that recorded, as the file states it."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The functions that a recording calls in the collector's process."""

    say: Callable[[str], None]
    """Gets sentences about what tracing changes."""
    progress: Callable[[Summary], None] = lambda summary: None
    """Gets the state, many times a second."""
    stop: Callable[[], bool] = lambda: False
    """Is asked as often: if the result is true, the recording ends, and the program runs on."""
