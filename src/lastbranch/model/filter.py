"""Which samples are wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .batch import SampleBatch

__all__ = ["SampleFilter"]


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Keep samples of these pids, tids and events (empty: all) with ``first <= time < last`` in clock ticks.

    ``modules`` are rows of the modules table. They need binding, so `analysis` applies them: to the address of a
    sample, or to both ends of a branch.
    """

    pids: frozenset[int] = frozenset()
    tids: frozenset[int] = frozenset()
    events: frozenset[int] = frozenset()
    first: int | None = None
    last: int | None = None
    modules: frozenset[int] = frozenset()

    @property
    def by_columns(self) -> bool:
        """Whether anything but ``modules`` is asked for."""
        return bool(self.pids or self.tids or self.events or self.first is not None or self.last is not None)

    def __bool__(self) -> bool:
        return self.by_columns or bool(self.modules)

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """``batch`` itself where all of it is wanted (but for ``modules``), else a smaller one."""
        if not self.by_columns:
            return batch
        keep = np.ones(len(batch), bool)
        for column, wanted in ((batch.pid, self.pids), (batch.tid, self.tids), (batch.event, self.events)):
            if wanted:
                keep &= np.isin(column, list(wanted))
        if self.first is not None:
            keep &= batch.time >= self.first
        if self.last is not None:
            keep &= batch.time < self.last
        return batch if keep.all() else batch.select(keep)
