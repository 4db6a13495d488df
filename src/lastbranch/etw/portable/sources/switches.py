"""Context switches without tracefs: PERF_RECORD_SWITCH_CPU_WIDE, which needs no more than permission for the system.

It tells neither priorities nor what a thread waits for, only whether it was preempted.
"""

from __future__ import annotations

import numpy as np

from ....formats.perfdata.layout import MISC, RECORD
from ....formats.perfdata.walk import Block
from ....model import Array, SampleBatch
from .events import Events, Ints
from .kinds import CSWITCH, Kind, switched
from .tracefs import Raw

__all__ = ["RECORDS", "Switches"]

_SWITCH_CPU_WIDE = RECORD["SWITCH_CPU_WIDE"]
_UNKNOWN_PRIORITY = 8
_PREEMPTED, _WAITS = 0x100, 0x01
"""As prev_state of sched_switch has them."""
_NONE = (-1, -1)


class Switches:
    """Makes samples of the records of one stream, round by round.

    A switch has two records, one as the old thread leaves and one as the new one comes. Kernels leave out either where
    the thread is an idle one, so each of them stands for the switch if the other is not there.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        """By processor, the threads of the last record if that was of one that leaves."""

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
        return SampleBatch({
            "time": block.words.take(end[kept] - 3, mode="clip").view(np.int64), "ip": none,
            "pid": np.where(leaves, own_pid, other_pid)[kept], "tid": old[kept], "cpu": cpu[kept],
            "event": none.astype(np.int32), "period": np.where(preempted, _PREEMPTED, _WAITS)[kept].astype(np.uint64),
            "mode": none.astype(np.uint8), "addr": new[kept].astype(np.uint64),
        })  # fmt: skip

    def _follows(self, cpu: Array, old: Array, new: Array, leaves: Array) -> Array:
        """Which of the records come right after one of a thread that leaves, and tell of the same switch."""
        follows = np.zeros(len(cpu), bool)
        if not len(cpu):
            return follows
        first = np.flatnonzero(np.r_[True, cpu[1:] != cpu[:-1]])
        follows[1:] = leaves[:-1] & (old[1:] == old[:-1]) & (new[1:] == new[:-1])
        last = np.r_[first[1:], len(cpu)] - 1
        for row, end in zip(first.tolist(), last.tolist(), strict=True):
            at = int(cpu[row])
            follows[row] = self._last.get(at) == (int(old[row]), int(new[row]))
            self._last[at] = (int(old[end]), int(new[end])) if leaves[end] else _NONE
        return follows


def _convert(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    new, old = batch["addr"].astype(np.int64), batch.tid.astype(np.int64)
    new_priority, old_priority = (np.where(thread == 0, 0, _UNKNOWN_PRIORITY) for thread in (new, old))
    return switched(batch, ticks, new, old, new_priority, old_priority, batch.period.astype(np.int64))


RECORDS = Kind(CSWITCH, _convert, "context-switch records", 9, flags=frozenset({"context_switch"}))
