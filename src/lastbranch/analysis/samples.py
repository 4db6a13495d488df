"""The samples that a filter keeps, ``--module`` included, and samples, branch entries and frames as rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..arrays import positions
from ..errors import SelectionError
from ..lbr import type_name
from ..model import FRAME, Array, Event, Profile, SampleBatch, SampleFilter, visible

__all__ = [
    "BoundRows",
    "TYPE_NAMES",
    "any_end_in",
    "check_events",
    "filtered_batches",
    "period_of",
    "recorded_address",
    "wanted_events",
]


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


# -- Samples, branch entries and frames as rows of tables: their recorded columns, and the columns that binding adds


TYPE_NAMES = np.array([None, *map(type_name, range(1, 256))], object)
"""Names of the types of branches by their code; ``None`` where the record does not say."""

_ENDS = {"from": "branch_from", "to": "branch_to"}


def recorded_address(group: str, end: str) -> str:
    """The recorded column of the addresses that ``end_module`` and ``end_address`` bind, in a table of ``group``."""
    return _ENDS.get(end) or ("frame" if group == FRAME else "ip")


class BoundRows:
    """The samples of ``batch``, the first of which has number ``first``; `entries` has what they hold several of.

    Beside the recorded columns there are ``sample`` (its number) and ``depth`` of the branch stack, int64; ``time_ns``
    int64 since the start of the capture; ``process`` and ``thread`` int64 rows, -1 unknown; ``module`` int64 row, -1
    nothing mapped, and uint64 module ``address`` of the sample or frame, and the same of both ends of a branch:
    ``from_module``... ``period`` is what `period_of` says. Entries have the ``position`` in their sample.
    """

    def __init__(self, profile: Profile, batch: SampleBatch, first: int) -> None:
        self.batch, self._profile, self._first = batch, profile, first
        self._group = "sample"
        self._each: Array | slice = slice(None)
        self._places: dict[str, tuple[Array, Array]] = {}

    def __len__(self) -> int:
        return len(self.batch) if isinstance(self._each, slice) else len(self._each)

    def entries(self, group: str) -> BoundRows:
        """One row for each entry of a ragged group that the batch has."""
        sizes = np.diff(self.batch.offsets[group])
        made = copy(self)  # with what is known of the samples
        made._group, made._each, made._places = group, np.repeat(np.arange(len(sizes)), sizes), {}
        return made

    def column(self, name: str) -> Array | None:
        """A column, ``None`` where the batch lacks what it is made from."""
        if name in _OF_SAMPLE:
            return np.asarray(_OF_SAMPLE[name](self)[self._each])
        if name == "position" and self._group != "sample":
            return positions(self.batch.offsets[self._group])
        end, _, part = name.rpartition("_")
        if part in ("module", "address"):
            place = self.place(end)
            return place and place[part == "address"]
        return self.batch.columns.get(name)

    def place(self, end: str = "") -> tuple[Array, Array] | None:
        """(module, address) of one end of the branches (``from``, ``to``), or of the samples or frames."""
        source = recorded_address(self._group, end)
        if source in self.batch and source not in self._places:
            self._places[source] = self._profile.binder.locate(self.scope[self._each], self.batch[source])
        return self._places.get(source)

    @cached_property
    def scope(self) -> NDArray[np.int64]:
        return self._profile.binder.scopes(self.batch)

    @cached_property
    def _process(self) -> NDArray[np.int64]:
        return self._profile.binder.process_of(self.scope)

    @cached_property
    def _thread(self) -> NDArray[np.int64]:
        return self._profile.binder.threads_of(self.batch, self.scope)

    def _time_ns(self) -> NDArray[np.int64]:
        return self._profile.clock.to_ns_array(self.batch.time - (self._profile.start or 0))


_OF_SAMPLE: dict[str, Callable[[BoundRows], Array]] = {
    "sample": lambda rows: np.arange(rows._first, rows._first + len(rows.batch)),
    "time_ns": BoundRows._time_ns,
    "event": lambda rows: rows.batch.event,
    "period": lambda rows: period_of(rows._profile, rows.batch),
    "process": lambda rows: rows._process,
    "thread": lambda rows: rows._thread,
    "depth": lambda rows: rows.batch.depth,
}
