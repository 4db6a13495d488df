"""Executions of the branches of a capture, estimated from its branch stacks: these are runs of a Markov chain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct, distinct_rows, insertion_points
from ...model import BRANCH, ENTRY, Array, ModuleKind, Profile, SampleBatch, SampleFilter
from ..counting.availability import why_no_ranges, why_no_stacks
from ..counting.branch_kinds import CALLS, LONGEST_CALL, BranchKinds, kinds_table
from ..function.paths import KeptStacks, StackSample
from ..sample_filtering import check_events, filtered_batches, wanted_events
from ..statistics.bursts import TimeSpan, bursts_of, share_bursts, whole_bursts
from ..statistics.significance import ENOUGH
from .estimate import Estimate, Factors, Places, basis_of_event
from .markov_chain import Runs, Steps

__all__ = ["estimate_executions"]

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

    def chain(self, profile: Profile) -> Runs:
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
        return Runs(
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
