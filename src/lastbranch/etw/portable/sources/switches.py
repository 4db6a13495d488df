"""Context switches without tracefs: PERF_RECORD_SWITCH_CPU_WIDE, which needs no more than permission for the system.

It tells neither priorities nor what a thread waits for, only whether it was preempted.
"""

from __future__ import annotations

import numpy as np

from ....formats.perfdata.chain import Block
from ....formats.perfdata.layout import MISC
from ....model import SampleBatch
from .events import Events, Ints
from .kinds import CSWITCH, Kind, switched
from .tracefs import Raw

__all__ = ["RECORDS", "switch_samples"]

_SWITCH_CPU_WIDE = 15
_UNKNOWN_PRIORITY = 8
_PREEMPTED, _WAITS = 0x100, 0x01
"""As prev_state of sched_switch has them."""


def switch_samples(block: Block, at: Ints, types: Ints) -> SampleBatch:
    """The switches away from a thread as samples of it: ``addr`` is the next thread, ``period`` the state it is left
    in."""
    rows = at[types == _SWITCH_CPU_WIDE]  # u32 next_prev_pid, next_prev_tid; sample_id: ids, time, processor, id
    misc = block.misc(rows)
    rows, misc = rows[misc & MISC.SWITCH_OUT > 0], misc[misc & MISC.SWITCH_OUT > 0]
    end = rows + (block.sizes(rows) >> 3)
    pid, tid = block.halves(block.words.take(end - 4, mode="clip"))
    cpu = block.halves(block.words.take(end - 2, mode="clip"))[0]
    following = block.halves(block.words.take(rows + 1, mode="clip"))[1]
    none = np.zeros(len(rows), np.uint64)
    state = np.where(misc & MISC.SWITCH_OUT_PREEMPT, _PREEMPTED, _WAITS).astype(np.uint64)
    time = block.words.take(end - 3, mode="clip").view(np.int64)
    return SampleBatch({
        "time": time, "ip": none, "pid": pid, "tid": tid, "cpu": cpu, "event": none.astype(np.int32), "period": state,
        "mode": none.astype(np.uint8), "addr": following.astype(np.uint64),
    })  # fmt: skip


def _convert(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    new, old = batch["addr"].astype(np.int64), batch.tid.astype(np.int64)
    new_priority, old_priority = (np.where(thread == 0, 0, _UNKNOWN_PRIORITY) for thread in (new, old))
    return switched(batch, ticks, new, old, new_priority, old_priority, batch.period.astype(np.int64))


RECORDS = Kind(CSWITCH, _convert, "context-switch records", 9, flags=frozenset({"context_switch"}))
