"""What occurs in the samples of a profile, for comparison: functions, edges, blocks. Two passes each: what there is, so
that it can be named and matched, and then how much of it is in each sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..bind import binder_of
from ..model import Array, Profile, SampleBatch, SampleFilter
from .counting import Bound, count_stacks
from .matching import Matching, Spot, Spots
from .select import kept, period_of
from .significance import Clusters

__all__ = ["COUNTERS", "Counter"]

Named = list[tuple[Hashable, tuple[Spot, ...]]]
"""(key that is the same in the other profile, what to call it) of each distinct thing."""


Points = set[tuple[Hashable, int, bool]]
"""Where blocks begin: function, offset in it, and whether it is behind the instruction there."""


class Counter(ABC):
    """Things of one kind. ``spots`` are the addresses that they are made of."""

    spots: Spots

    def points(self, matching: Matching, side: int) -> Points:
        """What this side has seen and the other one must look for, too."""
        return set()

    def adopt(self, matching: Matching, side: int, points: Points) -> None:
        """Look for the ``points`` of the other side, too."""
        return  # only blocks have points

    @abstractmethod
    def keyed(self, matching: Matching, side: int) -> Named:
        """The distinct things."""

    @abstractmethod
    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        """Add all samples; thing ``i`` counts as ``rows[i]``."""


class _Functions(Counter):
    """By the address of the sample; a sample weighs its period."""

    def __init__(self, profile: Profile, only: SampleFilter) -> None:
        self._profile, self._only, self._binder = profile, only, binder_of(profile)
        found = [_distinct(*self._places(batch)) for batch in self._batches()]
        self.spots = Spots(profile, *_distinct(*_joined(found)))

    def _batches(self) -> Iterator[SampleBatch]:
        return kept(self._profile, self._profile.batches(()), self._only)

    def _places(self, batch: SampleBatch) -> tuple[Array, Array, Array]:
        scope = self._binder.scopes(batch)
        return self._binder.process_of(scope), *self._binder.locate(scope, batch.ip)

    def keyed(self, matching: Matching, side: int) -> Named:
        keys, labels = matching.functions(side, self.spots)
        modules = self._profile.modules
        named = [Spot(modules[at.module].short if at.module >= 0 else "", at.function) for at in labels]
        return [(key, (spot,)) for key, spot in zip(keys, named, strict=True)]

    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        events = (self._profile.events[i] for i in self._only.events)
        told = all(e.has_period or e.period for e in events)
        for batch in self._batches():
            weight = period_of(self._profile, batch) if told else np.ones(len(batch))
            key = rows[self.spots.rows(*self._places(batch))]
            into.add(weight, np.flatnonzero(weight), key[weight != 0], weight[weight != 0])


class _Edges(Counter):
    """By the entries of branch stacks; a sample weighs the entries that it has."""

    ranges = False

    def __init__(self, profile: Profile, only: SampleFilter) -> None:
        self._profile, self._only, self._binder = profile, only, binder_of(profile)
        counted = count_stacks(profile, ranges=self.ranges, details=False, sample_filter=only)
        found = counted.branches if counted.ranges is None else counted.ranges
        found = found.only((found.a != 0) | (found.b != 0) | (found.a_module >= 0))
        process, module = np.tile(found.process, 2), np.concatenate([found.a_module, found.b_module])
        places = _distinct(process, module, np.concatenate([found.a, found.b]))
        self.spots = Spots(profile, *places)
        self._learn(found)

    def _learn(self, found: Bound) -> None:
        self._pairs = np.unique(self._pair(found.process, found.a_module, found.a, found.b_module, found.b))

    def _pair(self, process: Array, a_module: Array, a: Array, b_module: Array, b: Array) -> NDArray[np.int64]:
        """One number for both ends, -1 where one is not known."""
        source, target = self.spots.rows(process, a_module, a), self.spots.rows(process, b_module, b)
        return np.where((source >= 0) & (target >= 0), source * len(self.spots) + target, -1)

    def keyed(self, matching: Matching, side: int) -> Named:
        keys, spots = matching.places(side, self.spots)
        ends = zip(*(part.tolist() for part in np.divmod(self._pairs, max(len(self.spots), 1))), strict=True)
        return [((keys[a], keys[b]), (spots[a], spots[b])) for a, b in ends]

    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        for batch in self._stacks():
            each = np.repeat(np.arange(len(batch)), batch.depth)
            pair = self._pair(*self._bound(batch, each, batch["branch_from"], batch["branch_to"]))
            sample, key = self._known(each, pair, rows)
            into.add(np.bincount(sample, minlength=len(batch)), sample, key)

    def _known(self, sample: Array, pair: Array, rows: Array) -> tuple[Array, Array]:
        """(sample, key) of the pairs that were learned: others pass no filter of modules, or are empty."""
        at = np.minimum(np.searchsorted(self._pairs, pair), max(len(self._pairs) - 1, 0))
        good = (self._pairs[at] == pair) & (pair >= 0) if len(self._pairs) else np.zeros(len(pair), bool)
        return sample[good], rows[at[good]]

    def _stacks(self) -> Iterator[SampleBatch]:
        for stream in self._profile.streams:
            if "branch_from" in stream.columns:
                batches = stream.batches(("branch_from", "branch_to"))
                for batch in kept(self._profile, batches, self._only, by_address=False):
                    if batch.entries:
                        yield batch

    def _bound(self, batch: SampleBatch, each: Array, a: Array, b: Array) -> tuple[Array, Array, Array, Array, Array]:
        scope = self._binder.scopes(batch)
        process = self._binder.process_of(scope)[each]
        scope = scope[each]
        return process, *self._binder.locate(scope, a), *self._binder.locate(scope, b)


class _Blocks(_Edges):
    """By the ranges between branch entries; a sample weighs the ranges that it has.

    A block begins where a branch went to, or behind a branch that was taken: no code is needed to see these. A range
    runs the block that it begins with and those behind the branches that it runs past. What one recording has seen
    begin, the other one may have run through, so both look for the blocks of both; that takes functions whose code is
    the same on both sides.
    """

    ranges = True

    def _learn(self, found: Bound) -> None:
        super()._learn(found)
        self._found = found
        first = self.spots.rows(found.process, found.a_module, found.a)
        last = self.spots.rows(found.process, found.b_module, found.b)
        # Even numbers are spots that are begun at, odd ones what comes behind them.
        self._points = np.unique(np.concatenate([first * 2, last * 2 + 1]))

    def points(self, matching: Matching, side: int) -> Points:
        functions, labels = matching.functions(side, self.spots)
        offsets = [a - label.start for a, label in zip(self.spots.address.tolist(), labels, strict=True)]
        return {(functions[spot], offsets[spot], bool(behind)) for spot, behind in self._split()}

    def adopt(self, matching: Matching, side: int, points: Points) -> None:
        functions, labels = matching.functions(side, self.spots)
        spots, known = self.spots, {function: i for i, function in enumerate(functions)}
        here = [(known[f], offset, behind) for f, offset, behind in points if f in known]
        here = [p for p in here if matching.alike(side, functions[p[0]], labels[p[0]])]
        rows = np.array([row for row, _, _ in here], np.int64)
        at = np.array([labels[row].start + offset for row, offset, _ in here], np.uint64)
        behind = np.array([behind for _, _, behind in here], np.int64)
        process, module = spots.process[rows], spots.module[rows]
        places = [(spots.process, spots.module, spots.address), (process, module, at)]
        self.spots = Spots(self._profile, *_distinct(*_joined(places)))
        self._learn(self._found)
        more = self.spots.rows(process, module, at) * 2 + behind
        self._points = np.unique(np.concatenate([self._points, more]))

    def keyed(self, matching: Matching, side: int) -> Named:
        functions, labels = matching.functions(side, self.spots)
        numbers: dict[Hashable, int] = {}
        self._within = np.array([numbers.setdefault(key, len(numbers)) for key in functions], np.int64)
        keys, spots = matching.places(side, self.spots)
        usable = [matching.alike(side, f, label) for f, label in zip(functions, labels, strict=True)]
        self._points = self._points[np.array(usable, bool)[self._points // 2]]
        out: Named = []
        for spot, behind in self._split():
            at = spots[spot]
            where = f"behind {at.where}" if behind else at.where
            out.append(((keys[spot], behind), (Spot(at.module, at.function, where),)))
        return out

    def _split(self) -> list[tuple[int, int]]:
        """(row of the spot, 1 if behind it) of each point."""
        spot, behind = np.divmod(self._points, 2)
        return list(zip(spot.tolist(), behind.tolist(), strict=True))

    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        for batch in self._stacks():
            each = np.repeat(np.arange(len(batch)), batch.depth)
            source, target = batch["branch_from"], batch["branch_to"]
            empty = (source == 0) | (target == 0)
            inner = np.flatnonzero((each[1:] == each[:-1]) & ~empty[1:] & ~empty[:-1])
            # Entry i + 1 is the older one: from where it went to, to the next branch.
            pair = self._pair(*self._bound(batch, each[inner], target[1:][inner], source[:-1][inner]))
            learned, _ = self._known(np.arange(len(pair)), pair, np.arange(len(self._pairs)))
            first, last = np.divmod(pair[learned], max(len(self.spots), 1))
            straight = self._within[first] == self._within[last]  # in one function
            sample, first, last = each[inner][learned][straight], first[straight], last[straight]
            low = np.searchsorted(self._points, first * 2)
            sizes = np.searchsorted(self._points, last * 2, side="right") - low
            point = np.repeat(low - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
            into.add(np.bincount(sample, minlength=len(batch)), np.repeat(sample, sizes), rows[point])


def _joined(parts: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)
    process, module, address = (np.concatenate(c) for c in zip(none, *parts, strict=True))
    return process, module, address


def _distinct(process: Array, module: Array, address: Array) -> tuple[Array, Array, Array]:
    if not len(address):
        return process, module, address
    order = np.lexsort((address, module, process))
    process, module, address = process[order], module[order], address[order]
    new = np.ones(len(order), bool)
    new[1:] = (process[1:] != process[:-1]) | (module[1:] != module[:-1]) | (address[1:] != address[:-1])
    return process[new], module[new], address[new]


COUNTERS: dict[str, Callable[[Profile, SampleFilter], Counter]] = {
    "function": _Functions,
    "edge": _Edges,
    "block": _Blocks,
}
"""What `comparison.compare` can compare."""
