"""The configuration of a source process: the part of a session that concerns Linux events."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..enable_map import WORDS

__all__ = ["SourceConfiguration"]


@dataclass(frozen=True, slots=True)
class SourceConfiguration:
    """A session as its sources see it. Hooks are group << 8 | type."""

    masks: tuple[int, ...] = (0,) * WORDS
    """PERFINFO_GROUPMASK, as `enable_map.normalised_masks` leaves it."""
    sysconfig: bool = True
    """Whether the machine is described (no EVENT_TRACE_FLAG_NO_SYSCONFIG)."""
    kernel_stacks: bool = True
    """Whether call stacks have their kernel part (no V2Option.EXCLUDE_KERNEL_STACK)."""
    clock: int = 1
    """ClientContext: 1 monotonic, 2 system time."""
    stack_hooks: tuple[int, ...] = ()
    """Events with call stacks (class 3)."""
    pmc_sources: tuple[int, ...] = ()
    """Profile sources that PMC_PROFILE enables (class 6)."""
    pmc_hooks: tuple[int, ...] = ()
    pmc_counters: tuple[int, ...] = ()
    """Events with counter values, and which (classes 8, 9)."""
    lbr_flags: int = 0
    lbr_hooks: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    """The targets of the software LBR, as `information.TARGETS` counts; empty while its triggers are off."""
    branch_hook: int = 0
    """The hook id of the events for bursts of the software LBR; 0: bursts are not written."""
    call_hooks: tuple[int, ...] = ()
    """Events that trigger records of the software LBR because of system calls (`call_branches`)."""
    intervals: dict[int, int] = field(default_factory=dict)
    """Profile source -> interval, of those that were set."""
