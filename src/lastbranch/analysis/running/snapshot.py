"""The counts of a recording that still runs, up to a moment: its hottest functions, and their recent changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...arrays import Ints, SortKey, Table, lowest_rows
from ...model import Array
from ..naming import Label

__all__ = ["LiveFunctions", "Order", "Snapshot"]


@dataclass(slots=True)
class LiveFunctions(Table):
    """One row for each event and function. Equal-length arrays.

    ``event`` int64 row of the events table; ``name`` int64 row of the namer's labels; ``samples`` int64 by the sample's
    own address, ``recent`` int64 samples since the previous snapshot, ``before`` int64 samples between the two
    snapshots before. ``branches`` int64 that begin in the function, of all events, of which ``mispredicted`` and
    ``predicted``, both 0 where that is not known; ``cycles`` int64 sum over the ``timed`` ones.
    """

    event: Array
    name: Array
    samples: Array
    recent: Array
    before: Array
    branches: Array
    mispredicted: Array
    predicted: Array
    cycles: Array
    timed: Array

    @classmethod
    def none(cls) -> LiveFunctions:
        return cls(*[np.empty(0, np.int64)] * 10)


@dataclass(slots=True)
class Snapshot:
    """Counts up to a moment. ``recent`` and ``before`` are samples of each event since the previous snapshot, and
    between the two snapshots before; ``left_out`` are branches whose addresses found no room.

    Sums of branches are looked up when they are asked for: ask before more is counted (`RunningCounts.hold`)."""

    labels: list[Label]
    by_event: tuple[Ints, Ints, Ints]
    """int64[events, labels]: all samples, recent ones, those before."""
    branched: NDArray[np.bool_]
    """By row of the labels: whether branches begin there."""
    stacked: int
    """Row of the event whose functions are also those that only branches were seen of; -1 for none."""
    sums: Callable[[Ints], Ints]
    """From rows of labels to their `SUMS`, int64[`SUMS`, labels]."""
    entries: int = 0
    recent_entries: int = 0
    left_out: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    """By the name of the counter, as in `Profile.lost`."""
    samples: Ints = field(init=False)
    """By row of the events table."""
    recent: Ints = field(init=False)
    before: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.samples, self.recent, self.before = (table.sum(axis=1) for table in self.by_event)

    def hottest_functions(
        self, limit: int = 0, order: Order = "samples", *, event: int | None = None, names: Array | None = None
    ) -> LiveFunctions:
        """The first ``limit`` functions (0: all): by ``order``, then by event, samples and branches.

        ``event`` (row) and ``names`` (bool, by row of the labels) choose some. Nothing is looked up or sorted of those
        that are not among the first, except what ``order`` takes.
        """
        events = range(len(self.samples)) if event is None else [event]
        found = [self._seen(one, names) for one in events]
        row, name = np.repeat(events, [len(one) for one in found]), np.concatenate([_NO_NAMES, *found])
        total = np.concatenate([_NO_NAMES, *(self.by_event[0][one][of] for one, of in zip(events, found, strict=True))])
        keys: list[SortKey] = [row] if len(events) > 1 else []
        keys += [-total, lambda rows: -self.sums(name[rows])[0], name]
        if order != "samples":
            keys.insert(0, -self._value(order, row, name))
        chosen = lowest_rows(keys, limit or len(name))
        row, name = row[chosen], name[chosen]
        return LiveFunctions(row, name, *(table[row, name] for table in self.by_event), *self.sums(name))

    def _seen(self, event: int, names: Array | None) -> Ints:
        """Rows of the labels of the functions of an event."""
        total = self.by_event[0]
        seen = total[event] > 0
        if event == self.stacked:
            seen |= self.branched & ~(total > 0).any(axis=0)
        if names is not None:
            seen &= names[: len(seen)]
        return np.flatnonzero(seen)

    def _value(self, order: Order, event: Ints, name: Ints) -> Array:
        if order in ("now", "change"):
            now = self.by_event[1][event, name] / np.maximum(self.recent, 1)[event]
            if order == "now":
                return np.asarray(now)
            return np.asarray(now - self.by_event[2][event, name] / np.maximum(self.before, 1)[event])
        branches, mispredicted, predicted, cycles, timed = self.sums(name)
        match order:
            case "mispredicted":
                return np.asarray(mispredicted / np.maximum(mispredicted + predicted, 1))
            case "cycles":
                return np.asarray(cycles / np.maximum(timed, 1))
        return np.asarray(branches)


_NO_NAMES = np.empty(0, np.int64)

Order = Literal["samples", "now", "change", "branches", "mispredicted", "cycles"]
"""By what functions can be sorted, highest first."""
