"""Ids of the system (processes, threads) to numbers of ours, many at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model import Array

__all__ = ["Ids"]

_DENSE = 1 << 22


class Ids:
    """Id (uint32) -> number, by a table where ids are small; ``absent`` for others. Ids come once each."""

    def __init__(self, ids: Array, numbers: Array, absent: int) -> None:
        self._absent = absent
        known = ids < _DENSE
        size = int(ids[known].max()) + 2 if known.any() else 1
        self._table = np.full(size, absent, np.int64)
        self._table[ids[known]] = numbers[known]
        order = np.argsort(ids[~known])
        self._ids, self._numbers = ids[~known][order], numbers[~known][order]

    def __call__(self, ids: Array) -> NDArray[np.int64]:
        out: NDArray[np.int64] = self._table.take(ids, mode="clip")  # the last entry is nobody's
        if len(self._ids):
            at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            out = np.where(self._ids[at] == ids, self._numbers[at], out)
        return out
