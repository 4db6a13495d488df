"""Kinds of events: the perf event of each, and the conversion of its samples to kernel events. One row each in `KINDS`.

Layouts of raw data: the ``format`` files of tracefs, read when a kind is opened. Layouts of the kernel events:
`formats.etl.kernel.layouts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ....capture.perf_events.linux_kernel import Kernel
from ....formats.perfdata.layout import MISC, RECORD, SAMPLE
from ....formats.perfdata.walk import Block
from ....model import Array, SampleBatch
from ...status import EtwError, Status
from .event_words import Events, Ints, Words, kernel_events

__all__ = ["KINDS", "Kind", "PMC", "Place", "RECORDS", "Raw", "Switches", "has_tracefs", "read_tracepoint"]


# -- Tracepoints: their numbers, and the places of the fields in their raw data. Source: Documentation/trace/events.rst


_FOLDERS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FIELD = re.compile(r"field:[^;]*?(\w+)(?:\[\d+\])?;\s*offset:(\d+);\s*size:(\d+);\s*signed:(\d);")


class Place(NamedTuple):
    """The place of a field in raw data, in bytes."""

    offset: int
    size: int
    signed: bool


class Tracepoint(NamedTuple):
    """Its number (``config`` of a perf event of type 2) and its fields."""

    number: int
    fields: Mapping[str, Place]


class Raw:
    """Columns int64 of the raw data of samples; 0 where a sample is too short."""

    def __init__(self, batch: SampleBatch, fields: Mapping[str, Place]) -> None:
        self._fields = fields
        self._data = batch.columns.get("raw", np.empty(0, np.uint8))
        self._at = batch.offsets.get("raw", np.zeros(len(batch) + 1, np.int64))

    def __getitem__(self, name: str) -> Array:
        place = self._fields[name]
        at, fits = self._at[:-1] + place.offset, np.diff(self._at) >= place.offset + place.size
        column = np.zeros(len(at), np.int64)
        index = at[fits, np.newaxis] + np.arange(place.size)
        column[fits] = self._data[index].view(f"{'i' if place.signed else 'u'}{place.size}")[:, 0]
        return column

    def array(self, name: str) -> list[bytes]:
        """The bytes of a field that is an array; zeros where a sample is too short."""
        place, data = self._fields[name], self._data.tobytes()
        starts = (self._at[:-1] + place.offset).tolist()
        ends = [min(start + place.size, end) for start, end in zip(starts, self._at[1:].tolist(), strict=True)]
        return [data[start:end].ljust(place.size, b"\0") for start, end in zip(starts, ends, strict=True)]


def _folder(kernel: Kernel) -> str | None:
    """The folder of tracefs: its mount, or a mount that only this process sees; ``None`` without the right to mount."""
    mounted = next((folder for folder in _FOLDERS if "events" in kernel.names(folder)), None)
    return mounted or kernel.private_tracefs()


def has_tracefs(kernel: Kernel) -> bool:
    """Whether tracepoints can be read."""
    return _folder(kernel) is not None


def read_tracepoint(kernel: Kernel, name: str, call: str = "StartTrace") -> Tracepoint:
    """The tracepoint ``system/event``.

    `EtwError` 50 if the kernel has no such tracepoint or no tracefs, 1314 if it may not be read.
    """
    folder, shown = _folder(kernel), name.replace("/", ":")
    if folder is not None:
        number, layout = (kernel.text(f"{folder}/events/{name}/{file}") for file in ("id", "format"))
        if number and layout:
            found = {m[1]: Place(int(m[2]), int(m[3]), m[4] == "1") for m in _FIELD.finditer(layout)}
            return Tracepoint(int(number), found)
        raise EtwError(call, Status.NOT_SUPPORTED, f"this kernel ({kernel.release}) has no tracepoint {shown}")
    if "tracing" in kernel.names("/sys/kernel"):
        why = (
            f"the tracepoint {shown} may not be read: tracefs (/sys/kernel/tracing) is for root only, or not mounted, "
            "and to mount it privately needs CAP_SYS_ADMIN"
        )
        raise EtwError(call, Status.PRIVILEGE_NOT_HELD, why)
    raise EtwError(call, Status.NOT_SUPPORTED, f"this kernel ({kernel.release}) offers no tracepoints ({shown})")


SAMPLED, PMC, CSWITCH, READY = 0x0F2E, 0x0F2F, 0x0524, 0x0532
ENTER, EXIT, SOFT_FAULT, HARD_FAULT, READ_FAULT = 0x0F33, 0x0F34, 0x020A, 0x020E, 0x0220
_U8, _U32 = np.uint64(8), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)

Convert = Callable[[SampleBatch, Ints, Raw], Events]
"""(samples, their times in ticks, layout of their raw data) -> events."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``hook``: the kernel event that it becomes. Its perf event is a software ``event`` with its ``config``, or a
    ``tracepoint``."""

    hook: int
    convert: Convert
    event: str = ""
    config: int = -1
    tracepoint: str = ""
    sample: int = 0
    """PERF_SAMPLE_* beyond those of all."""
    flags: frozenset[str] = frozenset()
    """Flags of perf_event_attr."""
    counting: frozenset[str] = frozenset()
    """More flags of perf_event_attr if samples carry counter values."""


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
    """CSwitch: new and old thread, priorities, why the old one waits. The stack is the old thread's; the sample of one
    that has ended lacks its ids."""
    new, old, state = raw["next_pid"], raw["prev_pid"], raw["prev_state"]
    batch.columns["tid"] = old.astype(np.int32)
    new_priority, old_priority = priority(raw["next_prio"]), priority(raw["prev_prio"])
    return switch_events(
        batch, ticks, new, old, np.where(new == 0, 0, new_priority), np.where(old == 0, 0, old_priority), state
    )


def switch_events(
    batch: SampleBatch, ticks: Ints, new: Array, old: Array, new_priority: Array, old_priority: Array, state: Array
) -> Events:
    """CSwitch events from columns; ``state`` as prev_state of sched_switch."""
    what = state & _REPORTED
    runs, preempted = what == _RUNNING, state > _REPORTED
    ends, stops = (what & _ENDED) > 0, (what & _STOPPED) > 0
    reason = np.select(
        [runs & preempted, runs, ends, stops, (what & _INTERRUPTIBLE) > 0],
        [_PREEMPTED, _YIELDED, _WR_TERMINATED, _SUSPENDED, _USER_REQUEST],
        _EXECUTIVE,
    )
    became = np.select([runs, ends], [_READY_STATE, _TERMINATED], _WAITING)
    first = _low(new) | _low(old) << _U32
    second = _u64(new_priority) | _u64(old_priority) << _U8 | _u64(reason) << _U32 | _u64(became) << np.uint64(48)
    return kernel_events(batch, ticks, CSWITCH, [first, second, np.zeros(len(batch), np.uint64)], 24)


def _ready(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """ReadyThread: the woken thread; the header has the waking thread."""
    return kernel_events(batch, ticks, READY, [_low(raw["pid"])], 8, compact=True)


# -- system calls


def _enter(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """SysCallEnter. Its address is the number of the call: Linux does not report the routine's."""
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
    """HardFault: time, address, thread. The file and the part of it that was read are not known."""
    none = np.zeros(len(batch), np.uint64)
    unknown = none - np.uint64(1)
    columns = [ticks.view(np.uint64), unknown, batch["addr"], none, _low(batch.tid)]
    return kernel_events(batch, ticks, READ_FAULT, columns, 40)


# -- time


def _timer(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """SampledProfile, each for one interrupt."""
    return kernel_events(batch, ticks, SAMPLED, [batch.ip, _low(batch.tid) | np.uint64(1) << _U32], 16)


KINDS: Mapping[str, Kind] = {
    # An idle processor has no tick, by which the kernel measures the rate of samples, and its group would not count.
    "timer": Kind(SAMPLED, _timer, "cpu-clock", 0, counting=frozenset({"exclude_idle"})),
    "switch": Kind(CSWITCH, _switch, tracepoint="sched/sched_switch", sample=SAMPLE.RAW),
    "ready": Kind(READY, _ready, tracepoint="sched/sched_waking", sample=SAMPLE.RAW),
    "enter": Kind(ENTER, _enter, tracepoint="raw_syscalls/sys_enter", sample=SAMPLE.RAW),
    "exit": Kind(EXIT, _exit, tracepoint="raw_syscalls/sys_exit", sample=SAMPLE.RAW),
    "soft": Kind(SOFT_FAULT, _fault(SOFT_FAULT), "minor-faults", 5, sample=SAMPLE.ADDR),
    "hard": Kind(HARD_FAULT, _fault(HARD_FAULT), "major-faults", 6, sample=SAMPLE.ADDR),
    "read": Kind(READ_FAULT, _read, "major-faults", 6, sample=SAMPLE.ADDR),
}
"""By the names that `enable_map` uses."""


# -- Context switches without tracefs: PERF_RECORD_SWITCH_CPU_WIDE, which needs only the right to record the system
#
# It has neither priorities nor the reason of a wait, only whether a thread was preempted.


_SWITCH_CPU_WIDE = RECORD["SWITCH_CPU_WIDE"]
_UNKNOWN_PRIORITY = 8
_LEFT_READY, _WAITS = 0x100, 0x01
"""As prev_state of sched_switch has them."""
_NO_THREADS = (-1, -1)


class Switches:
    """Turns the records of one stream into samples, round by round.

    A switch has two records: the old thread leaves, and the new thread comes. Kernels leave out the record of an idle
    thread, so either record makes the switch if the other is missing.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        """By processor, the threads of the last record if its thread leaves."""

    def samples(self, block: Block, at: Ints, types: Ints) -> SampleBatch:
        """The switches as samples of the thread that leaves: ``addr`` is the next thread, ``period`` the state it is
        left in. ``at``: records by processor, in the order they were written."""
        rows = at[types == _SWITCH_CPU_WIDE]  # u32 next_prev_pid, next_prev_tid; sample_id: ids, time, processor, id
        misc = block.misc(rows)
        end = rows + (block.sizes(rows) >> 3)
        own_pid, own = block.halves(block.words.take(end - 4, mode="clip"))
        other_pid, other = block.halves(block.words.take(rows + 1, mode="clip"))
        leaves = misc & MISC.SWITCH_OUT > 0
        old, new = np.where(leaves, own, other), np.where(leaves, other, own)
        cpu = block.halves(block.words.take(end - 2, mode="clip"))[0]
        kept = np.flatnonzero(leaves | ~self._follows(cpu, old, new, leaves))
        preempted = np.where(leaves, misc & MISC.SWITCH_OUT_PREEMPT > 0, old == 0)
        none = np.zeros(len(kept), np.uint64)
        return SampleBatch(
            {
                "time": block.words.take(end[kept] - 3, mode="clip").view(np.int64),
                "ip": none,
                "pid": np.where(leaves, own_pid, other_pid)[kept],
                "tid": old[kept],
                "cpu": cpu[kept],
                "event": none.astype(np.int32),
                "period": np.where(preempted, _LEFT_READY, _WAITS)[kept].astype(np.uint64),
                "mode": none.astype(np.uint8),
                "addr": new[kept].astype(np.uint64),
            }
        )

    def _follows(self, cpu: Array, old: Array, new: Array, leaves: Array) -> Array:
        """Which records directly follow that of a thread that leaves, and belong to the same switch."""
        follows = np.zeros(len(cpu), bool)
        if not len(cpu):
            return follows
        first = np.flatnonzero(np.r_[True, cpu[1:] != cpu[:-1]])
        follows[1:] = leaves[:-1] & (old[1:] == old[:-1]) & (new[1:] == new[:-1])
        last = np.r_[first[1:], len(cpu)] - 1
        for row, end in zip(first.tolist(), last.tolist(), strict=True):
            at = int(cpu[row])
            follows[row] = self._last.get(at) == (int(old[row]), int(new[row]))
            self._last[at] = (int(old[end]), int(new[end])) if leaves[end] else _NO_THREADS
        return follows


def _of_records(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    new, old = batch["addr"].astype(np.int64), batch.tid.astype(np.int64)
    new_priority, old_priority = (np.where(thread == 0, 0, _UNKNOWN_PRIORITY) for thread in (new, old))
    return switch_events(batch, ticks, new, old, new_priority, old_priority, batch.period.astype(np.int64))


RECORDS = Kind(CSWITCH, _of_records, "context-switch records", 9, flags=frozenset({"context_switch"}))
