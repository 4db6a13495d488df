"""Which unit an address belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .ranges import Ranges

__all__ = ["Owners"]


@dataclass(slots=True)
class Owners:
    """Which unit an address belongs to: ranges that do not overlap, ascending."""

    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    unit: NDArray[np.int64]

    @classmethod
    def of(cls, ranges: Ranges) -> Owners:
        """Where units overlap, the first one in the file has the address."""
        order = np.lexsort((ranges.row, ranges.low))
        low, high, unit = ranges.low[order], ranges.high[order], ranges.row[order]
        if len(low) and (low[1:] < np.maximum.accumulate(high)[:-1]).any():
            return cls._swept(low.tolist(), high.tolist(), unit.tolist())
        return cls(low, high, unit)

    @classmethod
    def _swept(cls, low: list[int], high: list[int], unit: list[int]) -> Owners:
        edges = sorted({*low, *high})
        pieces: list[tuple[int, int, int]] = []
        heap: list[tuple[int, int]] = []
        i = 0
        for edge, following in pairwise(edges):
            while i < len(low) and low[i] <= edge:
                heappush(heap, (unit[i], high[i]))
                i += 1
            while heap and heap[0][1] <= edge:
                heappop(heap)
            if heap:
                pieces.append((edge, following, heap[0][0]))
        columns = list(zip(*pieces, strict=True)) or [(), (), ()]
        return cls(np.array(columns[0], np.uint64), np.array(columns[1], np.uint64), np.array(columns[2], np.int64))

    def at(self, address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The unit of each address, or -1."""
        if not len(self.low):
            return np.full(len(address), -1, np.int64)
        row = np.searchsorted(self.low, address, side="right") - 1
        inside = (row >= 0) & (address < self.high[np.maximum(row, 0)])
        return np.where(inside, self.unit[row], -1)
