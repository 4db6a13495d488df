"""Distinct (pid, tid) pairs of many samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model import Array

__all__ = ["Pairs"]

_DENSE = 1 << 22


class Pairs:
    """Pairs as they come. A table of the process that each small tid had last tells what is new: hardly any sample."""

    def __init__(self) -> None:
        self._known = np.full(0, -1, np.int64)
        self.distinct: NDArray[np.uint64] = np.empty(0, np.uint64)
        """``pid << 32 | tid`` of each pair, in order."""

    def add(self, pid: Array, tid: Array) -> None:
        """Pairs of ids (uint32)."""
        highest = min(int(tid.max(initial=0)), _DENSE - 1)
        if highest >= len(self._known):
            more = np.full(max(highest + 1, 2 * len(self._known)) - len(self._known), -1, np.int64)
            self._known = np.concatenate([self._known, more])
        new = np.flatnonzero(self._known.take(tid, mode="clip") != pid)
        if tid.max(initial=0) > highest:
            new = np.union1d(new, np.flatnonzero(tid > highest))
        if len(new):
            pid, tid = pid[new], tid[new]
            small = tid <= highest
            self._known[tid[small]] = pid[small]
            found = np.unique(pid.astype(np.uint64) << np.uint64(32) | tid)
            self.distinct = np.union1d(self.distinct, found)
