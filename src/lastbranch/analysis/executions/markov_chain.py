"""Executions of the branches of a capture, estimated from its branch stacks: these are runs of a Markov chain.

A run (the entries of a branch stack) begins more often where time is spent, and so what it holds is counted by time.
Which branch follows which is not affected: executions are the stationary distribution of a Markov chain whose states
are the targets of branches, whose steps are the branches taken from there, and whose probabilities are those that were
seen. Such a chain trusts rare observations too much. So each state also leads, a little, to a hub, and from there to
all states as they were seen; the less the more often its surroundings were seen. `Chain` has the rest.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...arrays import Table, distinct, distinct_rows, group, insertion_points, offsets_of
from ...model import BRANCH, ENTRY, Array, ModuleKind, Profile, SampleBatch, SampleFilter
from ..counting.availability import why_no_ranges, why_no_stacks
from ..counting.branch_kinds import CALLS, LONGEST_CALL, BranchKinds, kinds_table
from ..function.paths import KeptStacks, StackSample
from ..samples import check_events, filtered_batches, wanted_events
from ..statistics.bursts import TimeSpan, bursts_of, share_bursts, whole_bursts
from ..statistics.significance import ENOUGH
from .estimate import Estimate, Factors, Places, basis_of_event

__all__ = [
    "CLEARLY",
    "Chain",
    "Elimination",
    "Outcome",
    "Runs",
    "Steps",
    "estimate_executions",
    "strong_components",
]


# -- From branch stacks to runs of the chain, and back to factors of branches and ranges


_MOST_ENTRIES = 1 << 21
"""The estimate is made from so many branch entries at most."""
_BYTES = 4
"""The approximate size of an instruction."""
_RETURNS = kinds_table("ret")


def estimate_executions(profile: Profile, *, sample_filter: SampleFilter | None = None) -> Estimate:
    """Estimate executions of the branches in the samples that ``sample_filter`` keeps, ignoring its filter of modules.

    Reads the capture. The same samples always give the same estimate. Raises `SelectionError` where the captures of a
    joined profile have branch stacks of different events.
    """
    out = Estimate.observed(profile, sample_filter)
    if reason := _why_not(profile, sample_filter):
        out.refused = reason
        return out
    check_events(profile, sample_filter, lambda event: event.branch_select is not None)
    sample, span = StackSample(_MOST_ENTRIES), TimeSpan(profile)
    for stream in profile.streams:
        if "branch_from" in stream.columns:
            batches = filtered_batches(profile, stream.batches(ENTRY), sample_filter, by_address=False)
            for batch in whole_bursts(profile, batches):
                span.add(batch)
                if BRANCH in batch.offsets and batch.entries:
                    _add(sample, profile, batch)
    walks = _walks(profile, sample.result())
    out.number, out.part, out.seconds = len(walks.runs), walks.kept.part, span.seconds
    out.unit = "bursts" if share_bursts(profile).any() else "branch stacks"
    if out.number < ENOUGH:
        out.refused = f"{out.number} {out.unit} are too few (fewer than {ENOUGH})"
        return out
    try:
        found = walks.chain(profile).outcome()
    except OverflowError:
        out.refused = "its branches lead to each other in too many ways"
        return out
    out.moved, out.noise = found.moved, found.noise
    if found.clear:
        out.basis = "executions"
        out.of_branches, out.of_ranges = walks.factors(found.executions)
    else:
        out.refused = (
            f"the estimate of executions moves {100 * found.moved:.1f} % of the branches, less than four times its "
            f"sampling noise ({100 * found.noise:.1f} %)"
        )
    return out


def _why_not(profile: Profile, sample_filter: SampleFilter | None) -> str | None:
    """The reason why the recording allows no estimate."""
    if reason := why_no_stacks(profile, sample_filter):
        return reason
    for event in wanted_events(profile, sample_filter).values():
        if event.branch_select is not None and basis_of_event(event) == "executions":
            return f"event {event.name} counts branches, not time, so that they are executions already"
    if reason := why_no_ranges(profile, sample_filter):
        return f"not every taken branch was recorded ({reason})"
    return None


def _add(sample: StackSample, profile: Profile, batch: SampleBatch) -> None:
    """Keep the stacks of a batch. Stacks of one burst are pieces of one run."""
    depth, number = batch.depth, bursts_of(profile, batch)
    row = np.arange(batch.entries) + np.repeat(np.arange(len(batch)), depth)  # no entry follows one of another stack
    scope, columns = np.repeat(profile.binder.scopes(batch), depth), (batch[name].copy() for name in ENTRY)
    sample.add(int(number[-1]) + 1, np.repeat(number, depth), row, scope, *columns)


@dataclass(slots=True)
class _Walks:
    """Branch stacks as walks from place to place: the target of a branch, where the next one begins, its target...

    By entry of ``kept``: its places ``source`` and ``target``, whether it is ``known``, and its ``weight``. A step is
    an entry that follows another entry. By step: its ``entry``, its number in ``runs`` (stacks with steps), and its
    places: ``came`` (from), ``left`` and ``to``.
    """

    kept: KeptStacks
    places: Places
    source: Array
    target: Array
    known: Array
    weight: Array
    entry: Array
    runs: Array
    run: Array

    @property
    def came(self) -> Array:
        return np.asarray(self.target[self.entry - 1])

    @property
    def left(self) -> Array:
        return np.asarray(self.source[self.entry])

    @property
    def to(self) -> Array:
        return np.asarray(self.target[self.entry])

    def chain(self, profile: Profile) -> Chain:
        """The chain whose states are targets."""
        came, left, to, address = self.came, self.left, self.to, self.places.address
        states = distinct(np.concatenate([came, to]))
        edges, branch = distinct_rows(left, to)
        steps, step = distinct_rows(came, branch)
        kind = self._kinds(profile, self.entry[edges])[branch[steps]]
        source, target = np.searchsorted(states, came[steps]), np.searchsorted(states, to[steps])
        returns = np.where(_RETURNS[kind], target, -1)
        calls = np.where(CALLS[kind], self._after_calls(left[steps], states, distinct(returns[returns >= 0])), -1)
        size = (address[left] - address[came]).astype(np.int64) + _BYTES
        number = np.full(int(self.kept.stack.max()) + 1, -1)
        number[self.runs] = np.arange(len(self.runs))
        of_entry = number[self.kept.stack]
        visit = np.flatnonzero(self.known & (of_entry >= 0) & np.isin(self.target, states))
        length = np.bincount(self.run)
        runs = Runs(
            len(states),
            len(edges),
            Steps(source, branch[steps], target, returns, calls),
            self.run,
            step,
            np.searchsorted(states, self.target[visit]),
            of_entry[visit],
            np.bincount(self.run, self.weight[self.entry]) / length,
            length / np.bincount(self.run, size),
        )
        return Chain(runs)

    def _kinds(self, profile: Profile, entries: Array) -> NDArray[np.uint8]:
        """uint8: the type of the branch of each of some entries."""
        columns = (self.kept.source[entries], self.kept.target[entries], self.kept.flags[entries])
        return BranchKinds(profile).of(self.kept.scope[entries], np.arange(len(entries) + 1), *columns)

    def _after_calls(self, left: Array, states: Array, returned: Array) -> NDArray[np.int64]:
        """int64: the state right after the calls at places ``left``, -1 for none: the next state that returns went to
        (``returned``), at most the length of a call away."""
        if not len(returned):
            return np.full(len(left), -1)
        owner, address, place = self.places.owner, self.places.address, states[returned]
        at = insertion_points(owner[place], address[place], owner[left], address[left], right=True)
        after = place[np.minimum(at, len(place) - 1)]
        near = (owner[after] == owner[left]) & (address[after] - address[left] <= LONGEST_CALL)
        return np.where((at < len(place)) & near, returned[np.minimum(at, len(place) - 1)], -1)

    def factors(self, executions: Array) -> tuple[Factors, Factors]:
        """Factors of branches, and of ranges, for the shares of ``executions`` of the steps of `chain`. Both are in
        proportion to all entries: the sum of all branch counts stays the same."""
        came, left, to = self.came, self.left, self.to
        edges, branch = distinct_rows(left, to)
        steps, _ = distinct_rows(came, branch)
        known = np.flatnonzero(self.known)
        source, target, weight = self.source[known], self.target[known], self.weight[known]
        pairs, which = distinct_rows(source, target)
        source, target = source[pairs], target[pairs]
        taken = np.zeros(len(pairs))  # and of branches that are no step, the oldest of a stack, nothing is known
        taken[insertion_points(source, target, left[edges], to[edges])] = np.bincount(branch[steps], executions)
        whole = float(weight.sum())
        pieces, piece = distinct_rows(came, left)
        ran = np.bincount(piece[steps], executions) / np.bincount(piece, self.weight[self.entry])
        return (
            Factors(self.places, source, target, taken / np.bincount(which, weight) * whole),
            Factors(self.places, came[pieces], left[pieces], ran * whole),
        )


def _walks(profile: Profile, kept: KeptStacks) -> _Walks:
    nameless = np.array([m.kind is ModuleKind.ANONYMOUS for m in profile.modules] + [True], bool)
    places = Places(nameless, len(profile.processes))
    process = profile.binder.process_of(kept.scope)
    ends = [(places.owners(process, module), address) for module, address in kept.ends(profile.binder)]
    owner, address = (np.concatenate(column) for column in zip(*ends, strict=True))
    rows, place = distinct_rows(owner, address)
    places.owner, places.address = owner[rows], address[rows]
    source, target = place[: len(kept.stack)], place[len(kept.stack) :]

    known = (kept.source != 0) & (kept.target != 0)
    came, left = target[:-1], source[1:]
    follows = (kept.stack[1:] == kept.stack[:-1]) & (np.diff(kept.row) == 1) & known[1:] & known[:-1]
    follows &= (places.owner[came] == places.owner[left]) & (places.address[came] <= places.address[left])
    entry = np.flatnonzero(follows) + 1
    runs, run = np.unique(kept.stack[entry], return_inverse=True)
    return _Walks(kept, places, source, target, known, kept.weight(profile.binder), entry, runs, run.reshape(-1))


# -- The chain: executions of its steps


_SURE = 20
"""So many transitions between states show that one leads to the other."""
_HUB = 2
"""So many visits of each part of the chain are taken to have led to the hub."""
_MOST_TO_HUB = 0.5
_ROUNDS = 6
_DAMPING, _FARTHEST = 0.7, 5.0
"""How much of the difference between calls and their returns is corrected in a round, and how far at most."""
_BOOTSTRAPS = 16
_SEED = 0x1B
CLEARLY = 4.0
"""An estimate must differ from what was observed by so many times its sampling noise: in recordings of 15 programs
those that differed less were worse than what was observed more often than they were better."""


@dataclass(slots=True)
class Steps(Table):
    """The distinct steps of a chain; equal-length int64 arrays.

    ``state``: the state that the step leaves; ``branch``: the branch taken; ``to``: the state that the branch leads to.
    ``returns``: the state itself where the branch is a return, else -1; ``calls``: the state that the call returns to,
    -1 where there is none.
    """

    state: Array
    branch: Array
    to: Array
    returns: Array
    calls: Array


class Outcome(NamedTuple):
    """``executions`` float64: the share of each step. ``moved``: the part of all branches (0 to 1) whose place differs
    from the observed one; ``noise``: the part that was elsewhere, on average, in estimates of resampled runs."""

    executions: Array
    moved: float
    noise: float

    @property
    def clear(self) -> bool:
        """Whether the estimate differs from the observation by more than chance."""
        return self.moved >= CLEARLY * self.noise


class Runs(NamedTuple):
    """Steps in runs: element ``i`` is in ``run[i]`` and is row ``step[i]`` of ``steps``. ``visited`` and ``in_run``:
    each visit of a state, the first and the last one of a run included. ``weight`` float64, a run: how often it counts;
    ``speed`` float64, a run: branches for each instruction of it."""

    states: int
    branches: int
    steps: Steps
    run: Array
    step: Array
    visited: Array
    in_run: Array
    weight: Array
    speed: Array


class Chain:
    """The chain of these runs, whose steps are estimated."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        steps, states = runs.steps, runs.states
        apart = steps.state != steps.to
        first, which = distinct_rows(steps.state[apart], steps.to[apart])
        self._apart, self._transition, hub = apart, which, states
        self._source, self._target = steps.state[apart][first], steps.to[apart][first]
        every, hubs = np.arange(states), np.full(states, hub)
        source, target = [self._source, every, hubs], [self._target, hubs, every]
        self._elimination = Elimination(states + 1, np.concatenate(source), np.concatenate(target), hub)

    def outcome(self) -> Outcome:
        """The estimate, and its comparison with the observation."""
        count, found = self._of(self._runs.weight)
        rng, runs = np.random.default_rng(_SEED), len(self._runs.weight)
        again = (
            self._of(self._runs.weight * np.bincount(rng.integers(0, runs, runs), minlength=runs))[1]
            for _ in range(_BOOTSTRAPS)
        )
        noise = float(np.mean([self._distance(one, found) for one in again]))
        return Outcome(found, self._distance(found, count / count.sum()), noise)

    def _distance(self, one: Array, other: Array) -> float:
        """Total variation of two distributions of steps, by branch."""
        return float(np.abs(np.bincount(self._runs.steps.branch, one - other, self._runs.branches)).sum() / 2)

    def _of(self, weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(how often each step was observed, its share of executions) if runs count as often as ``weight`` says."""
        count = np.bincount(self._runs.step, weight[self._runs.run], len(self._runs.steps)).astype(np.float64)
        visits = np.bincount(self._runs.visited, weight[self._runs.in_run], self._runs.states)
        prior = np.bincount(self._runs.visited, (weight * self._runs.speed)[self._runs.in_run], self._runs.states)
        return count, self.estimate(count, visits, prior)

    def estimate(self, count: Array, visits: Array, prior: Array) -> NDArray[np.float64]:
        """float64: the share of executions of each step.

        A state leads to the hub with a probability of `_HUB` by the visits of all states that it is clearly connected
        with (`_clusters`), and the hub to the states in proportion to this and to their ``prior``. Then calls and
        returns to the same place are made more equal, the more the more often both were seen, and all is done again.
        """
        steps = self._runs.steps
        cluster = self._clusters(count)
        to_hub = np.minimum(_MOST_TO_HUB, _HUB / np.maximum(np.bincount(cluster, visits), _HUB)[cluster])
        to_hub[np.bincount(steps.state, count, self._runs.states) == 0] = 1.0
        from_hub = prior * to_hub
        from_hub /= from_hub.sum()
        returning, calling = steps.returns >= 0, steps.calls >= 0
        place, caller = steps.returns[returning], steps.calls[calling]

        def by_place(values: Array) -> tuple[Array, Array]:
            return (
                np.bincount(caller, values[calling], self._runs.states),
                np.bincount(place, values[returning], self._runs.states),
            )

        seen = np.minimum(*by_place(count))
        strength = _DAMPING * seen / (seen + _HUB)
        taken = count.astype(np.float64)
        found: NDArray[np.float64] = taken / taken.sum()
        for _ in range(_ROUNDS):
            left = np.bincount(steps.state, taken, self._runs.states)
            chance = taken / np.maximum(left, np.finfo(float).tiny)[steps.state]
            within = np.bincount(self._transition, chance[self._apart], len(self._source))
            weight = np.concatenate([within * (1 - to_hub)[self._source], to_hub, from_hub])
            found = self._elimination.stationary(weight)[steps.state] * chance
            found /= found.sum()
            calls, returns = by_place(found)
            both = (calls > 0) & (returns > 0)
            ratio = np.divide(calls, returns, out=np.ones(self._runs.states), where=both)
            taken[returning] *= (np.clip(ratio, 1 / _FARTHEST, _FARTHEST) ** strength)[place]
        return found

    def _clusters(self, count: Array) -> NDArray[np.int64]:
        """int64: which states lead to each other. States with `_SURE` transitions in both directions are joined, then
        groups with as many transitions between them, until no two can be joined."""
        flow = np.bincount(self._transition, count[self._apart], len(self._source))
        label, number = np.arange(self._runs.states), self._runs.states
        while True:
            (source, target), (sums,) = group([label[self._source], label[self._target]], [flow], [np.add])
            sure = (sums >= _SURE) & (source != target)
            joined = strong_components(number, source[sure], target[sure])
            if (fewer := int(joined.max(initial=-1)) + 1) == number:
                return label
            label, number = joined[label], fewer


# -- The stationary distribution of a chain, and its strongly connected parts


_MOST = 1 << 26
"""Multiplications of an elimination, at most: 256 MB, and a tenth of a second."""


class Elimination:
    """How to eliminate the states of a chain with transitions from ``source`` to ``target`` (int64, each pair once,
    none to itself); ``last``, which every state must lead to and be reached from, is left.

    States are eliminated one after the other (Grassmann, Taksar and Heyman 1985). The method subtracts nothing, so that
    no digits are lost however rare a transition is. Which states have neighbours when they are eliminated depends on
    where there are transitions alone: it is found out once, for all chains with the same transitions.

    Raises `OverflowError` if the elimination would take too long: the transitions fill up as states are eliminated.
    """

    def __init__(self, states: int, source: Array, target: Array, last: int) -> None:
        self._states, self._number, self._last = states, len(source), last
        library = native.library()
        self._native = None
        if library is not None:
            columns = np.ascontiguousarray(source, np.int64), np.ascontiguousarray(target, np.int64)
            plan = library.lb_elimination_new(states, *map(native.address, columns), len(source), last, _MOST)
            if not plan:
                raise OverflowError("too many transitions")
            self._native = library, plan
            weakref.finalize(self, library.lb_elimination_free, plan)
        else:
            self._plan, self._cells = _plan_elimination(states, source.tolist(), target.tolist(), last)

    def stationary(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64, a state: its probability. ``weight`` float64: the probability of each transition; if the transitions
        out of a state sum to less than 1, the rest stays in the state. States that nothing leads to have 0."""
        if self._native is not None:
            library, plan = self._native
            given, found = np.ascontiguousarray(weight, np.float64), np.empty(self._states)
            if library.lb_elimination_run(plan, native.address(given), native.address(found)):
                raise MemoryError
        else:
            found = self._run(weight)
        found /= found.sum()
        return found

    def _run(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        cell = np.zeros(self._cells)
        cell[1 : self._number + 1] = weight
        for _, _, into, out, product in self._plan:
            whole = cell[out].sum()
            cell[into] *= 1 / whole if whole else 0.0
            cell[product] += np.outer(cell[into], cell[out])
            cell[0] = 0.0  # what would lead from a state to itself
        found = np.zeros(self._states)
        found[self._last] = 1.0
        for state, sources, into, _, _ in reversed(self._plan):
            found[state] = found[sources] @ cell[into]
        return found


_Plan = list[tuple[int, Array, Array, Array, Array]]
"""State, which states led to it, and the cells of: these transitions, those out of it, the products of both."""


def _plan_elimination(states: int, source: list[int], target: list[int], last: int) -> tuple[_Plan, int]:
    """The states in the order in which they are eliminated, those with fewest neighbours first; the cells that are
    needed, of which the first is for what nobody wants."""
    out: list[dict[int, int]] = [{} for _ in range(states)]
    into: list[dict[int, int]] = [{} for _ in range(states)]
    cells = 1
    for one, other in zip(source, target, strict=True):
        out[one][other] = into[other][one] = cells
        cells += 1
    queue = [(len(out[state]) * len(into[state]), state) for state in range(states) if state != last]
    heapify(queue)
    plan: _Plan = []
    while queue:
        degree, state = heappop(queue)
        now = len(out[state]) * len(into[state])
        if now != degree:
            heappush(queue, (now, state))
            continue
        before, after = into[state], out[state]
        products = np.zeros((len(before), len(after)), np.int64)
        for i, one in enumerate(before):
            del out[one][state]
            for j, other in enumerate(after):
                if one == other:
                    continue
                if other not in out[one]:
                    out[one][other] = into[other][one] = cells
                    cells += 1
                products[i, j] = out[one][other]
        for other in after:
            del into[other][state]
        sources, cells_into, cells_out = (np.array([*c], np.int64) for c in (before, before.values(), after.values()))
        plan.append((state, sources, cells_into, cells_out, products))
    return plan, cells


def strong_components(states: int, source: Array, target: Array) -> NDArray[np.int64]:
    """int64, a state: the number of its strongly connected component, from 0 (Tarjan 1972). Transitions lead from
    ``source`` to ``target`` (int64)."""
    order = np.argsort(source, kind="stable")
    offsets = offsets_of(np.bincount(source, minlength=states))
    follows = np.ascontiguousarray(target[order], np.int64)
    library = native.library()
    if library is not None:
        found = np.empty(states, np.int64)
        if library.lb_strong_components(native.address(offsets), states, *map(native.address, (follows, found))):
            raise MemoryError
        return found
    return _components(states, offsets.tolist(), follows.tolist())


def _components(states: int, offsets: list[int], follows: list[int]) -> NDArray[np.int64]:
    found, number, low = [-1] * states, [0] * states, [0] * states
    next_edge, waiting, counted, components = offsets[:-1], list[int](), 0, 0
    for root in range(states):
        path = [root] if not number[root] else []
        while path:
            state = path[-1]
            if not number[state]:
                counted += 1
                number[state] = low[state] = counted
                waiting.append(state)
            if next_edge[state] < offsets[state + 1]:
                other = follows[next_edge[state]]
                next_edge[state] += 1
                if not number[other]:
                    path.append(other)
                elif found[other] < 0:
                    low[state] = min(low[state], number[other])
                continue
            path.pop()
            if path:
                low[path[-1]] = min(low[path[-1]], low[state])
            if low[state] == number[state]:
                while found[state] < 0:
                    found[waiting.pop()] = components
                components += 1
    return np.array(found, np.int64)
