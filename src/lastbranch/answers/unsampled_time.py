"""CPU time that no sample stands for, where a capture has the CPU time of its processes."""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.counting.count_tables import WeightCounter
from ..analysis.counting.cpu_time import cpu_time
from ..model import Profile, SampleBatch, SampleFilter

__all__ = ["UnsampledTime"]


class UnsampledTime:
    """What no sample stands for, counted beside something else; nothing where samples are filtered."""

    def __init__(self, profile: Profile, sample_filter: SampleFilter | None) -> None:
        known = sample_filter is None and any(process.cpu_ns is not None for process in profile.processes)
        self._profile, self._counter = profile, WeightCounter(profile, ("process",)) if known else None

    def beside(self, watch: Callable[[SampleBatch], None]) -> Callable[[SampleBatch], None]:
        """A function that counts a batch, too, beside ``watch``."""
        counter = self._counter
        if counter is None:
            return watch

        def both(batch: SampleBatch) -> None:
            watch(batch)
            counter.add(batch)

        return both

    @property
    def notes(self) -> list[str]:
        found = cpu_time(self._profile, self._counter.result()[0], "process") if self._counter is not None else None
        return [f"{found.note}"] if found is not None and found.note else []
