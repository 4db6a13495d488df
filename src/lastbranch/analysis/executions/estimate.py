"""Executions instead of what was counted: what counts follow, and an estimate that replaces them.

A recorded branch stack begins at a moment of CPU time, so slow code has more stacks than its executions deserve.
`markov_chain.estimate_executions` makes the `Estimate` of a capture. All counts of branches, ranges and stacks accept
such an estimate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct_rows, insertion_points
from ...model import BRANCH, Array, Event, Profile, SampleBatch, SampleFilter
from ..counting.bound_pairs import BRANCH_VALUES, BoundPairs
from ..counting.early_pass import Spaces
from ..samples import wanted_events
from ..statistics.significance import time_to_halve

__all__ = ["Basis", "Estimate", "Factors", "Places", "basis_of", "basis_of_event"]


# -- What counts follow, by the event that takes the samples


Basis = Literal["time", "executions", "entries"]
"""Counts of branches are in proportion to time or to executions; ``entries``: to neither, for other events."""

_BRANCH_EVENTS = re.compile(
    r"(?:.*/)?(?:event=)?(?:branch(?:es|-instructions|-brs|instructions?(?:retired)?)|r?(?:0x)?(?:20|c0|80|00)?c4"
    r"|br_inst_(?:retired|exec)[.:](?:near_taken|all_taken(?:_branches)?|taken|all_branches)|br_retired"
    r"|ex_ret_brn(?:_tkn)?)(?:,umask=.*)?/?"
)
"""Events that count branches. BR_INST_RETIRED.NEAR_TAKEN (20C4H; C0C4H, 80C4H and 00C4H on other Intel cores),
PMCx0C4 of AMD, BR_RETIRED of Arm."""
_TIME_EVENTS = re.compile(r".*(?:cycles|clock|cpu_clk_unhalted|timer|profile|software-lbr).*")
_MODIFIERS = re.compile(r":[ukhGHpPSDWeI]+$")


_FOLLOW: dict[Basis, str] = {
    "time": ", and follow time rather than executions (--estimate executions)",
    "executions": ", and follow executions: the event counts branches",
    "entries": "",
}


def basis_of(profile: Profile, sample_filter: SampleFilter | None = None) -> Basis:
    """The basis of branch counts (time, executions or entries) in the samples that ``sample_filter`` keeps."""
    return _basis(event for event in wanted_events(profile, sample_filter).values() if event.branch_select is not None)


def _basis(events: Iterable[Event]) -> Basis:
    kinds = {basis_of_event(event) for event in events}
    return kinds.pop() if len(kinds) == 1 else "entries"


def basis_of_event(event: Event) -> Basis:
    """The basis of branch counts (time, executions or entries) in the samples of one event."""
    name = _MODIFIERS.sub("", event.name).lower()
    if _BRANCH_EVENTS.fullmatch(name):
        return "executions"
    return "time" if _TIME_EVENTS.fullmatch(name) else "entries"


# -- The estimate of a capture


@dataclass(slots=True)
class Places:
    """Numbers of addresses: the rows of ``owner`` and ``address``, which ascend.

    The owner of an address is its module; in memory without a file (``nameless`` bool by row of a module, the last
    element for -1) the owner is the module and the process.
    """

    nameless: Array
    processes: int
    owner: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    address: Array = field(default_factory=lambda: np.zeros(0, np.uint64))

    def owners(self, process: Array, module: Array) -> NDArray[np.int64]:
        """int64: what owns addresses of a module in a process."""
        found: NDArray[np.int64] = module * (self.processes + 1) + np.where(self.nameless[module], process + 1, 0)
        return found

    def of(self, process: Array, module: Array, address: Array) -> NDArray[np.int64]:
        """int64: the number of each address, -1 of those that have none."""
        owner = self.owners(process, module)
        at = np.minimum(insertion_points(self.owner, self.address, owner, address), len(self.owner) - 1)
        return np.where((self.owner[at] == owner) & (self.address[at] == address), at, -1)


@dataclass(slots=True)
class Factors:
    """By which factor branches, or ranges, are counted more or less: pairs of ``places``, which ascend."""

    places: Places

    first: Array
    second: Array
    factor: Array

    def of(self, process: Array, first: tuple[Array, Array], second: tuple[Array, Array]) -> NDArray[np.float64]:
        """float64: the factor of each pair of (module, address) in a process, 1 for unknown pairs."""
        one, other = (self.places.of(process, *end) for end in (first, second))
        at = np.minimum(insertion_points(self.first, self.second, one, other), len(self.first) - 1)
        known = (self.first[at] == one) & (self.second[at] == other) & (one >= 0)
        return np.where(known, self.factor[at], 1.0)


@dataclass(slots=True)
class Estimate:
    """Executions of a capture's branches, or why there are none.

    ``basis`` is what counts follow that it was applied to: ``executions`` where they are `replaced`. ``refused`` says
    why they stay as they were observed although executions were asked for. ``moved``: the part (0 to 1) of all branches
    that the estimate places elsewhere than they were observed (total variation); ``noise``: the part that other draws
    of as many stacks would place elsewhere, on average, which is no bound of its error. Both are ``None`` where nothing
    was estimated. ``number`` of ``unit`` it is made from, ``part`` (0 to 1) of all, in ``seconds`` (0: not known).
    """

    basis: Basis
    refused: str | None = None
    moved: float | None = None
    noise: float | None = None
    number: int = 0
    part: float = 1.0
    unit: str = "branch stacks"
    seconds: float = 0.0
    of_branches: Factors | None = field(default=None, repr=False)
    of_ranges: Factors | None = field(default=None, repr=False)

    @classmethod
    def observed(cls, profile: Profile, sample_filter: SampleFilter | None = None) -> Estimate:
        """No estimate: counts stay as they are."""
        return cls(basis_of(profile, sample_filter))

    @property
    def replaced(self) -> bool:
        """Whether counts are replaced by executions."""
        return self.of_branches is not None

    def branches(self, bound: BoundPairs) -> BoundPairs:
        """Branches with the executions of each, at least 1, instead of its entries. All that is summed over entries is
        less or more by the same factor."""
        return _scale_counts(bound, self.of_branches)

    def ranges(self, bound: BoundPairs) -> BoundPairs:
        """The same of ranges."""
        return _scale_counts(bound, self.of_ranges)

    def stacks(self, binder: Spaces, scope: NDArray[np.int64], batch: SampleBatch) -> NDArray[np.int64]:
        """int64, a sample of ``batch``: executions of the branches of its stack, which belong to its ``scope``; their
        number where counts are not replaced."""
        if self.of_branches is None or BRANCH not in batch.offsets:
            return batch.depth
        offsets, each = batch.offsets[BRANCH], np.repeat(scope, batch.depth)
        rows, which = distinct_rows(each, batch["branch_from"], batch["branch_to"])
        each = each[rows]
        source, target = (binder.locate(each, batch[name][rows]) for name in ("branch_from", "branch_to"))
        factor = self.of_branches.of(binder.process_of(each), source, target)
        sums = np.append(0.0, np.cumsum(factor[which]))
        return np.asarray(np.rint(sums[offsets[1:]] - sums[offsets[:-1]]), np.int64)

    @property
    def note(self) -> str:
        """A sentence about the counts (estimated, or as observed), without its end."""
        more = time_to_halve(self.seconds) if self.noise is not None else ""
        more = f"; {more}" if more else ""
        if self.refused is not None:
            return f"counts are as observed: {self.refused}{more}"
        if not self.replaced:
            return f"counts are as observed{_FOLLOW[self.basis]}"
        part = f" of {100 * self.part:.2g} % of them" if self.part < 1 else ""
        return (
            f"counts are executions, estimated from {self.number} {self.unit}{part}: {100 * (self.moved or 0):.1f} % "
            f"of the branches are elsewhere than observed; sampling noise {100 * (self.noise or 0):.1f} %{more}"
        )


def _scale_counts(bound: BoundPairs, factors: Factors | None) -> BoundPairs:
    if factors is None or not len(bound):
        return bound
    factor = factors.of(bound.process, (bound.a_module, bound.a), (bound.b_module, bound.b))

    def times(column: Array) -> NDArray[np.int64]:
        return np.asarray(np.rint(column * factor), np.int64)

    values = {name: times(v) if BRANCH_VALUES[name] is np.add else v for name, v in bound.values.items()}
    count = np.maximum(times(bound.count), 1)
    wrong, right = (np.minimum(times(column), count) for column in (bound.mispredicted, bound.predicted))
    return replace(bound, count=count, mispredicted=wrong, predicted=right, values=values)
