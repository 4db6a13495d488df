"""Two recordings held against each other: what got a larger or smaller share, and whether that can be chance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import NotRecordedError
from ..model import Array, Profile, SampleFilter
from .matching import Matching, Spot
from .naming import Namer
from .occurrences import COUNTERS
from .significance import Clusters, adjusted, probabilities

__all__ = ["Difference", "Thing", "compare"]

Thing = Literal["function", "edge", "block"]


@dataclass(slots=True)
class Difference:
    """One row for each event and thing, the surest differences first. Equal-length arrays.

    ``event`` is the name of the event of each; ``spots`` what it is: a function, both ends of an edge, or where a block
    begins. ``share`` float64 [2, n]: its part of all samples by their periods (functions), of all branch entries
    (edges), or of all ranges (blocks), from 0 to 1. ``samples`` int64 [2, n]: samples that have it. ``probability``
    float64 that chance alone makes a difference as large, not a number where too few samples have it; ``rate`` float64
    the false discovery rate at which it is significant, over all things of an event; ``notes`` what cannot be compared.
    """

    event: list[str]
    spots: list[tuple[Spot, ...]]
    share: NDArray[np.float64]
    samples: NDArray[np.int64]
    probability: NDArray[np.float64]
    rate: NDArray[np.float64]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.event)

    @property
    def change(self) -> NDArray[np.float64]:
        """float64: the second share less the first."""
        change: NDArray[np.float64] = self.share[1] - self.share[0]
        return change

    def significant(self, rate: float = 0.05) -> NDArray[np.bool_]:
        """bool: differences that stay significant with all things together."""
        with np.errstate(invalid="ignore"):
            found: NDArray[np.bool_] = self.rate <= rate
        return found


def compare(
    namers: Sequence[Namer], by: Thing = "function", *, sample_filters: Sequence[SampleFilter | None] = (None, None)
) -> Difference:
    """Compare two profiles, each behind its `Namer`, event by event: events are the same by name.

    Functions are counted by the samples' own addresses. The unit of chance is the sample: see `significance`. Raises
    `NotRecordedError` where there is nothing to compare: no event in common, no branch stacks, no ranges.
    """
    if by not in get_args(Thing):
        raise ValueError(f"by = {by!r}: there are {', '.join(map(repr, get_args(Thing)))}")
    profiles = [namer.profile for namer in namers]
    pairs, notes = _common_events(profiles, sample_filters, by)
    parts = []
    for rows in pairs:
        only = [
            replace(f or SampleFilter(), events=frozenset([row])) for f, row in zip(sample_filters, rows, strict=True)
        ]
        parts.append(_compared(profiles[0].events[rows[0]].name, namers, by, only))
    return _joined(parts, notes)


def _common_events(
    profiles: Sequence[Profile], filters: Sequence[SampleFilter | None], by: Thing
) -> tuple[list[tuple[int, int]], list[str]]:
    """Rows of events that both have, and notes about the others."""
    sides: list[dict[str, int]] = []
    for profile, chosen in zip(profiles, filters, strict=True):
        wanted = chosen.events if chosen else frozenset()
        rows = [i for i in range(len(profile.events)) if not wanted or i in wanted]
        if by != "function":
            rows = [i for i in rows if profile.events[i].branch_select is not None] or rows
        sides.append({profile.events[i].name: i for i in reversed(rows)})
    a, b = sides
    common = [(row, b[name]) for name, row in sorted(a.items(), key=lambda item: item[1]) if name in b]
    if not common:
        listed = (", ".join(side) or "none" for side in sides)
        raise NotRecordedError(
            "there is no event in common: {} against {}".format(*listed),
            hint="shares of different events mean different things: record both with the same event",
        )
    alone = sorted(a.keys() ^ b.keys())
    return common, [f"event {name} is in one of the two only: left out" for name in alone]


def _compared(event: str, namers: Sequence[Namer], by: Thing, filters: Sequence[SampleFilter]) -> Difference:
    matching = Matching(namers)
    counters = [COUNTERS[by](namer.profile, only) for namer, only in zip(namers, filters, strict=True)]
    for side, counter in enumerate(counters):
        matching.measure(side, counter.spots, matching.functions(side, counter.spots)[0])
    seen = [counter.points(matching, side) for side, counter in enumerate(counters)]
    for side, counter in enumerate(counters):
        counter.adopt(matching, side, seen[1 - side])
    numbers: dict[Hashable, int] = {}
    called: list[tuple[Spot, ...]] = []
    rows = []
    for side, counter in enumerate(counters):
        found = counter.keyed(matching, side)
        rows.append(np.array([numbers.setdefault(key, len(numbers)) for key, _ in found], np.int64))
        for key, spots in found:
            if numbers[key] == len(called):
                called.append(spots)
    clusters = [Clusters(len(numbers)) for _ in counters]
    for counter, row, cluster in zip(counters, rows, clusters, strict=True):
        counter.count(row, cluster)
    a, b = clusters
    chance = probabilities(a, b)
    return Difference(
        [event] * len(called), called, np.stack([a.share, b.share]), np.stack([a.present, b.present]), chance,
        adjusted(chance),
    )  # fmt: skip


def _joined(parts: Sequence[Difference], notes: list[str]) -> Difference:
    event, spots = [e for p in parts for e in p.event], [s for p in parts for s in p.spots]
    share, samples = (np.concatenate([getattr(p, name) for p in parts], axis=1) for name in ("share", "samples"))
    chance, rate = (np.concatenate([getattr(p, name) for p in parts]) for name in ("probability", "rate"))
    unsure: Array = np.where(np.isnan(chance), 2, chance)
    order = np.lexsort((-np.abs(share[1] - share[0]), unsure))
    return Difference(
        [event[i] for i in order.tolist()], [spots[i] for i in order.tolist()], share[:, order], samples[:, order],
        chance[order], rate[order], notes,
    )  # fmt: skip
