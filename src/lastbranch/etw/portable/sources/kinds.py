"""Kinds of events: what perf is asked for, and how its samples become kernel events. One row each in `KINDS`.

Layouts of raw data: the ``format`` files of tracefs, read when a kind is opened. Of the kernel events:
`formats.etl.kernel.process`, `perf`, `io`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ....formats.perfdata.layout import SAMPLE
from ....model import Array, SampleBatch
from .events import Events, Ints, Words, kernel_events
from .tracefs import Raw

__all__ = ["CSWITCH", "KINDS", "PMC", "SAMPLED", "Kind", "switched"]

SAMPLED, PMC, CSWITCH, READY = 0x0F2E, 0x0F2F, 0x0524, 0x0532
ENTER, EXIT, SOFT_FAULT, HARD_FAULT, READ_FAULT = 0x0F33, 0x0F34, 0x020A, 0x020E, 0x0220
_U8, _U16, _U32 = np.uint64(8), np.uint64(16), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)

Convert = Callable[[SampleBatch, Ints, Raw], Events]
"""(samples, their times in ticks, layout of their raw data) -> events."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``hook``: the event that it makes, for stack tracing. A software ``event`` and its ``config``, or a
    ``tracepoint``."""

    hook: int
    convert: Convert
    event: str = ""
    config: int = -1
    tracepoint: str = ""
    sample: int = 0
    """PERF_SAMPLE_* beyond those of all."""
    flags: frozenset[str] = frozenset()
    """Of perf_event_attr."""
    counting: frozenset[str] = frozenset()
    """More of them where its samples carry counter values."""


def _u64(column: Array) -> Words:
    return np.asarray(column).astype(np.int64).view(np.uint64)


def _low(column: Array) -> Words:
    return _u64(column) & _LOW


# -- threads

_RUNNING, _STOPPED, _ENDED = 0, 0x04 | 0x08, 0x10 | 0x20
_REPORTED = 0xFF
"""Bits of prev_state that are a state; the bit above them says that a running thread was preempted."""
_READY_STATE, _TERMINATED, _WAITING = 1, 4, 5
_EXECUTIVE, _SUSPENDED, _USER_REQUEST, _WR_TERMINATED, _PREEMPTED, _YIELDED = 0, 5, 6, 22, 32, 33
_INTERRUPTIBLE = 0x01


def priority(linux: Array) -> Words:
    """A Windows priority, 0 to 31, for the kernel's 0 (most urgent) to 139: real-time ones are 16 and more, nice 0 is
    8."""
    real_time, others = 31 - linux.clip(0, 99) * 16 // 100, 15 - (linux.clip(100, 139) - 100) * 15 // 40
    return _u64(np.where(linux < 100, real_time, others))


def _switch(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """CSwitch: new and old thread, priorities, why the old one waits. Its stack is the old one's, whose ids the sample
    no longer has where it has ended."""
    new, old, state = raw["next_pid"], raw["prev_pid"], raw["prev_state"]
    batch.columns["tid"] = old.astype(np.int32)
    new_priority, old_priority = priority(raw["next_prio"]), priority(raw["prev_prio"])
    return switched(batch, ticks, new, old, np.where(new == 0, 0, new_priority), np.where(old == 0, 0, old_priority),
                    state)  # fmt: skip


def switched(
    batch: SampleBatch, ticks: Ints, new: Array, old: Array, new_priority: Array, old_priority: Array, state: Array
) -> Events:
    """CSwitch events from columns; ``state`` as prev_state of sched_switch."""
    what = state & _REPORTED
    runs, preempted = what == _RUNNING, state > _REPORTED
    ends, stops = (what & _ENDED) > 0, (what & _STOPPED) > 0
    reason = np.select(
        [runs & preempted, runs, ends, stops, (what & _INTERRUPTIBLE) > 0],
        [_PREEMPTED, _YIELDED, _WR_TERMINATED, _SUSPENDED, _USER_REQUEST], _EXECUTIVE,
    )  # fmt: skip
    became = np.select([runs, ends], [_READY_STATE, _TERMINATED], _WAITING)
    first = _low(new) | _low(old) << _U32
    second = _u64(new_priority) | _u64(old_priority) << _U8 | _u64(reason) << _U32 | _u64(became) << np.uint64(48)
    return kernel_events(batch, ticks, CSWITCH, [first, second, np.zeros(len(batch), np.uint64)], 24)


def _ready(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """ReadyThread: the awakened one; the header has the one that did it."""
    return kernel_events(batch, ticks, READY, [_low(raw["pid"])], 8, compact=True)


# -- system calls


def _enter(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """SysCallEnter. Its address is the number of the call: Linux does not tell the routine's."""
    return kernel_events(batch, ticks, ENTER, [_u64(raw["id"])], 8, compact=True)


def _exit(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """SysCallExit: the low half of what the call returned, a negative errno where it failed."""
    return kernel_events(batch, ticks, EXIT, [_low(raw["ret"])], 4, compact=True)


# -- page faults


def _fault(hook: int) -> Convert:
    def convert(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
        return kernel_events(batch, ticks, hook, [batch["addr"], batch.ip], 16, compact=True)

    return convert


def _read(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """HardFault: when, address, thread. Which part of which file was read is not known."""
    none = np.zeros(len(batch), np.uint64)
    unknown = none - np.uint64(1)
    columns = [ticks.view(np.uint64), unknown, batch["addr"], none, _low(batch.tid)]
    return kernel_events(batch, ticks, READ_FAULT, columns, 40)


# -- time


def _timer(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """SampledProfile; each stands for one interrupt."""
    return kernel_events(batch, ticks, SAMPLED, [batch.ip, _low(batch.tid) | np.uint64(1) << _U32], 16)


KINDS: Mapping[str, Kind] = {
    # An idle processor has no tick, by which the kernel measures the rate of samples, and its group would stand still.
    "timer": Kind(SAMPLED, _timer, "cpu-clock", 0, counting=frozenset({"exclude_idle"})),
    "switch": Kind(CSWITCH, _switch, tracepoint="sched/sched_switch", sample=SAMPLE.RAW),
    "ready": Kind(READY, _ready, tracepoint="sched/sched_waking", sample=SAMPLE.RAW),
    "enter": Kind(ENTER, _enter, tracepoint="raw_syscalls/sys_enter", sample=SAMPLE.RAW),
    "exit": Kind(EXIT, _exit, tracepoint="raw_syscalls/sys_exit", sample=SAMPLE.RAW),
    "soft": Kind(SOFT_FAULT, _fault(SOFT_FAULT), "minor-faults", 5, sample=SAMPLE.ADDR),
    "hard": Kind(HARD_FAULT, _fault(HARD_FAULT), "major-faults", 6, sample=SAMPLE.ADDR),
    "read": Kind(READ_FAULT, _read, "major-faults", 6, sample=SAMPLE.ADDR),
}  # fmt: skip
"""By the names that `enable_map` uses."""
