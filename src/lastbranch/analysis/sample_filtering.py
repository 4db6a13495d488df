"""The samples that a filter keeps, ``--module`` included."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..errors import SelectionError
from ..model import Array, Event, Profile, SampleBatch, SampleFilter, visible

__all__ = ["any_end_in", "check_events", "filtered_batches", "period_of", "wanted_events"]


def filtered_batches(
    profile: Profile, batches: Iterator[SampleBatch], sample_filter: SampleFilter | None, *, by_address: bool = True
) -> Iterator[SampleBatch]:
    """``batches`` without what ``sample_filter`` drops; none of them empty.

    ``by_address``: of the filter's modules, keep samples whose instruction address is in one of them.
    """
    for batch in batches:
        left = sample_filter(batch) if sample_filter else batch
        if len(left) and by_address and sample_filter and sample_filter.modules:
            binder = profile.binder
            module, _ = binder.locate(binder.scopes(left), left.ip)
            left = left.select(np.isin(module, list(sample_filter.modules)))
        if len(left):
            yield left


def wanted_events(profile: Profile, sample_filter: SampleFilter | None) -> dict[int, Event]:
    """The events that ``sample_filter`` keeps, by their row."""
    wanted = sample_filter.events if sample_filter else frozenset()
    return {row: event for row, event in enumerate(profile.events) if not wanted or row in wanted}


def check_events(profile: Profile, sample_filter: SampleFilter | None, counts: Callable[[Event], bool]) -> None:
    """Raise `SelectionError` if captures opened together have different events that ``counts`` accepts, and the filter
    names no event: a sum over all events would add up different units."""
    if sample_filter is not None and sample_filter.events:
        return
    of_capture: dict[int, set[str]] = {}
    for stream in profile.streams:
        named = of_capture.setdefault(stream.capture, set())
        events = (profile.events[row] for row in stream.events)
        named.update(event.name for event in events if counts(event) and not _never_samples(event))
    distinct = {frozenset(names) for names in of_capture.values() if names}
    if len(distinct) > 1:
        names = sorted(frozenset.union(*distinct))
        raise SelectionError(
            f"the captures were sampled by different events: {', '.join(map(visible, names))}",
            hint=f"choose one with --event {visible(names[0])}, or in the bar of the viewer; "
            "to add up several, repeat --event or give --event '*'",
        )


_DUMMY = {"type": 1, "config": 9}
"""PERF_COUNT_SW_DUMMY (include/uapi/linux/perf_event.h): it counts nothing, and has other records follow."""


def _never_samples(event: Event) -> bool:
    return all(event.programming.get(name) == value for name, value in _DUMMY.items())


def any_end_in(sample_filter: SampleFilter | None, *modules: Array) -> Array:
    """bool: rows of which at least one of the ``modules`` columns is wanted."""
    if sample_filter is None or not sample_filter.modules:
        return np.ones(len(modules[0]), bool)
    wanted = list(sample_filter.modules)
    return np.asarray(np.logical_or.reduce([np.isin(m, wanted) for m in modules]))


def period_of(profile: Profile, batch: SampleBatch) -> Array:
    """uint64: recorded periods, or the fixed period of events that do not record periods."""
    fixed = np.array([0 if e.has_period else e.period for e in profile.events], np.uint64)
    return batch.period + fixed[batch.event] if fixed.any() else batch.period
