"""Which branches the flags of a session leave in a record: finer classes than a recording is made by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...lbr import convert, flag, held
from ...model import BRANCH, SampleBatch, column
from .lbr import EXCLUDE_KERNEL

__all__ = ["kinds_of", "only"]

_CALL_STACK = 1 << 9
"""MSR_LBR_SELECT.EN_CALLSTACK."""


def kinds_of(flags: int) -> NDArray[np.bool_]:
    """By perf's branch type, whether EVNTRACE_LBR_FLAGS record it; those of call-stack mode delete what they do not."""
    select = convert(flags | EXCLUDE_KERNEL, "etw", "msr").value & ~_CALL_STACK
    there = np.ones(1, np.uint64)
    kinds = (np.array([kind], np.uint8) for kind in range(16))
    return np.array([len(held(there, there << np.uint64(8), kind, depth=1, select=select)) > 0 for kind in kinds])


def only(batch: SampleBatch, recorded: NDArray[np.bool_]) -> SampleBatch:
    """``batch`` with those of its branch entries whose type is recorded: perf's classes, by which it was made, are
    coarser."""
    keep = recorded[flag(batch["branch_flags"], "type").astype(np.intp)]
    if keep.all():
        return batch
    columns = {name: values[keep] if column(name).group == BRANCH else values for name, values in batch.columns.items()}
    offsets = np.concatenate([[0], np.cumsum(keep)])[batch.offsets[BRANCH]]
    return SampleBatch(columns, batch.offsets | {BRANCH: offsets})
