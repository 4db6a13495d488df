"""Threads and their processes: what samples, which carry the thread alone, are looked up in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...arrays import insertion_points

__all__ = ["ThreadTable"]


class ThreadTable:
    """Which process a thread id belonged to at a time: samples carry the thread alone."""

    def __init__(self, threads: NDArray[np.int64] | None = None) -> None:
        """``threads``: (tid, time it is known from, pid) of each start, (n, 3)."""
        rows = np.empty((0, 3), np.int64) if threads is None else threads
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        self._tid, self._time, self._pid = (np.ascontiguousarray(column) for column in rows.T)

    def pid(self, tid: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 pid of each thread, -1 unknown; thread 0 is the idle process 0."""
        pid = np.where(tid == 0, 0, -1)
        if len(self._tid):
            # The newest life that began by then; of a thread that is seen before its first one, that.
            last = insertion_points(self._tid, self._time, tid, time, right=True) - 1
            first = np.searchsorted(self._tid, tid)
            life = np.minimum(np.maximum(last, first), len(self._tid) - 1)
            known = (self._tid[life] == tid) & (tid != 0)
            pid[known] = self._pid[life[known]]
        return pid
