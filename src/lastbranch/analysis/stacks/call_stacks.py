"""Call stacks of samples, from the best source in a capture: call chains, LBR call-stack mode, or replayed branches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...arrays import StackSums, number_rows, offsets_of, ranges, take_rows
from ...errors import NotRecordedError
from ...lbr import ACTIONS, KIND, call_frames, call_stack_mode, no_call_stacks_because, open_calls
from ...model import BRANCH, FRAME, Array, Event, Profile, SampleBatch, SampleFilter
from ..counting.availability import Origin, how_to_record, origin_of
from ..counting.branch_kinds import BranchKinds
from ..counting.count_stacks import Replacement
from ..samples import check_events, filtered_batches, period_of, wanted_events
from ..statistics.bursts import BurstCount, without_lists
from ..statistics.significance import ENOUGH

__all__ = [
    "CallStacks",
    "StackCounter",
    "StackMaker",
    "StackedSamples",
    "Tally",
    "call_stacks",
    "why_no_call_stacks",
]


# -- Counting stacks of addresses: as they were recorded first, bound and named when few are left


_FRAMES = 1 << 20
"""So many stacks and frames are collected before they are bound."""


@dataclass(slots=True)
class CallStacks:
    """Distinct call stacks by event and process, the heaviest first.

    Stack ``i`` has the frames ``offsets[i]:offsets[i + 1]`` of ``frame``, leaf first: rows of ``module`` (int64 row of
    the modules table, -1 nothing mapped) and ``address`` (uint64 module address; for a caller, an address inside its
    call). ``event``, ``process`` (row, -1 unknown), ``samples`` int64 and ``period`` uint64 have one value a stack, as
    has ``executions`` int64, where they were estimated: of the branches in the records that were taken there.
    ``sources`` names what the stacks were made from.
    """

    event: Array
    process: Array
    samples: Array
    period: Array
    offsets: Array
    frame: Array
    module: Array
    address: Array
    sources: list[str] = field(default_factory=list)
    executions: Array | None = None
    bursts: int = 0
    """Independent observations among the samples (`bursts.BurstCount`)."""

    @property
    def enough(self) -> int:
        """How many samples rest on `ENOUGH` bursts, on average: shares of fewer are mostly chance."""
        return math.ceil(ENOUGH * int(self.samples.sum()) / self.bursts) if self.bursts else ENOUGH

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def bare(self) -> int:
        """Samples with a leaf only, whose callers are not known."""
        return int(self.samples[np.diff(self.offsets) == 1].sum())


class Tally:
    """Counts equal stacks of addresses by event and process."""

    def __init__(self, profile: Profile, more: int = 0) -> None:
        self._binder = profile.binder
        self._frames: dict[tuple[int, ...], int] = {}
        self._fresh, self._bound = StackSums(2, 2 + more), StackSums(2, 2 + more)
        """By event and scope, and by event and process: samples, periods and so many ``more`` sums."""

    def add(self, event: Array, scope: Array, period: Array, frame: Array, offsets: Array, *more: Array) -> None:
        """Count a stack for each sample: uint64 ``frame``, ragged by int64 ``offsets``; ``scope`` as `bind.Binder`
        gives it, uint64 ``period``, and ``more`` 64-bit integers."""
        once = np.ones(len(event), np.int64)
        self._fresh.add([event.astype(np.int64), scope], frame, offsets, [once, period, *more])
        if self._fresh.size > _FRAMES:
            self._bind()

    def result(self) -> CallStacks:
        """The stacks that were counted, until now."""
        self._bind()
        (event, process), frame, offsets, (samples, period, *more) = self._bound.read()
        order = np.lexsort((process, event, -samples))  # and then as they were first seen
        numbers, bounds = take_rows(frame, offsets, order)
        address, module = zip(*self._frames, strict=True) if self._frames else ((), ())
        return CallStacks(
            event[order],
            process[order],
            samples[order],
            period[order].view(np.uint64),
            bounds,
            numbers.view(np.int64),
            np.array(module, np.int64),
            np.array(address, np.uint64),
            executions=more[0][order] if more else None,
        )

    def _bind(self) -> None:
        (event, scope), frame, offsets, values = self._fresh.take()
        values *= self._binder.weights_of(scope)
        numbers = number_rows(self._frames, *self._binder.locate(np.repeat(scope, np.diff(offsets)), frame)[::-1])
        self._bound.add([event, self._binder.process_of(scope)], numbers, offsets, values)


CHAINS, CALL_STACK_MODE, REBUILT = "call chains", "LBR call-stack mode", "rebuilt from branch stacks"
LEAVES = "the address of the sample alone"
_MARKERS = np.uint64((1 << 64) - 4096)
"""Frames from here on are PERF_CONTEXT_* markers (include/uapi/linux/perf_event.h)."""
_USER_MARKER = np.uint64((1 << 64) - 512)


def source_of(event: Event) -> tuple[str, str]:
    """(what the call stacks of ``event`` come from, empty if they do not exist; why they do not)."""
    if event.branch_select is not None and call_stack_mode(event.branch_select_kind, event.branch_select):
        return CALL_STACK_MODE, ""
    if event.has_callchain:
        return CHAINS, ""
    if event.branch_select is None:
        return "", f"event {event.name} has neither call chains nor branch stacks"
    why = no_call_stacks_because(event.branch_select, event.branch_select_kind)
    return ("", f"event {event.name}: {why}") if why else (REBUILT, "")


def why_no_call_stacks(profile: Profile, sample_filter: SampleFilter | None = None) -> str | None:
    """Why the profile (or the events that the filter keeps) has no call stacks at all; ``None`` where it has."""
    found = [source_of(event) for event in wanted_events(profile, sample_filter).values()]
    if any(source for source, _ in found):
        return None
    return "; ".join(why for _, why in found) or "the capture has no events"


def call_stacks(
    profile: Profile, *, sample_filter: SampleFilter | None = None, estimate: Replacement | None = None
) -> CallStacks:
    """The distinct call stacks of the samples that ``sample_filter`` keeps, heaviest first; with their executions where
    there is an ``estimate`` (`estimate_executions`).

    Samples of events without any call stacks are left out. Raises `NotRecordedError` if no event has call stacks, and
    `SelectionError` if the captures of a joined profile have call stacks of different events.
    """
    reason = why_no_call_stacks(profile, sample_filter)
    if reason:
        raise NotRecordedError(f"the capture has no call stacks: {reason}", hint=_how(profile))
    check_events(profile, sample_filter, lambda event: bool(source_of(event)[0]))
    counter = StackCounter(profile, estimate)
    for batch in filtered_batches(profile, profile.batches(StackMaker.COLUMNS), sample_filter):
        counter.add(batch)
    return counter.result()


_HOW = {
    Origin.PERF: "with call chains (`perf record -g`, or --call-graph lbr)",
    Origin.WINDOWS: "with stack walks (`xperf -stackwalk Profile`, or the CPU profile of wpr)",
    Origin.LASTBRANCH: "with call stacks (--call-graph dwarf)",
}


def _how(profile: Profile) -> str:
    return f"{how_to_record(profile)}; or {_HOW[origin_of(profile)]}"


Frames = tuple[Array, Array]
"""Ragged addresses, leaf first: uint64 values, int64 offsets (samples + 1)."""


class StackedSamples(NamedTuple):
    """Samples with their call stacks: ``frame`` uint64 addresses as they were at that time, leaf first, ragged by
    ``offsets`` (int64, samples + 1); for a caller, an address inside its call. ``scope`` as `bind.Binder` gives it."""

    batch: SampleBatch
    scope: Array
    frame: Array
    offsets: Array


class StackMaker:
    """Makes the call stacks of samples, each from the best that its event has. ``sources`` names what was used.

    ``leaves``: samples of events without call stacks have their own address as a stack of one frame, instead of none.
    """

    COLUMNS = ("frame", "branch_from", "branch_to", "branch_flags")
    """The optional columns that batches must have where their stream has them."""

    def __init__(self, profile: Profile, *, leaves: bool = False) -> None:
        self.sources: set[str] = set()
        self._binder = profile.binder
        self._kinds = BranchKinds(profile)
        by_event = [source_of(event)[0] or LEAVES * leaves for event in profile.events]
        self._sources = sorted({*by_event} - {""})
        self._by_event = np.array([self._sources.index(one) if one else -1 for one in by_event], np.int64)

    @property
    def unknown_calls(self) -> bool:
        """Whether all stacks were to be rebuilt from branches whose types are unknown: none has callers."""
        return self.sources == {REBUILT} and not self._kinds.any_known

    def of(self, batch: SampleBatch) -> Iterator[StackedSamples]:
        """The stacks of a batch, in its order for each source."""
        scope = self._binder.scopes(batch)
        number = self._by_event[batch.event]
        for i, source in enumerate(self._sources):
            mine = number == i
            if mine.any():
                self.sources.add(source)
                part, owner = (batch, scope) if mine.all() else (batch.select(np.flatnonzero(mine)), scope[mine])
                yield StackedSamples(part, owner, *self._make_frames(source, part, owner))

    def _make_frames(self, source: str, batch: SampleBatch, scope: Array) -> Frames:
        none = batch.ip[:0], np.zeros(len(batch) + 1, np.int64)
        chains, branches = FRAME in batch.offsets, BRANCH in batch.offsets
        if source == CHAINS:
            found = _chains(batch["frame"], batch.offsets[FRAME]) if chains else none
        elif source == CALL_STACK_MODE:
            kernel = _kernel_part(batch) if chains else none
            user = call_frames(batch["branch_from"], batch["branch_to"], batch.offsets[BRANCH]) if branches else none
            found = _concatenate_rows(kernel, user)
        elif source == REBUILT and branches:
            return self._replay_stacks(batch, scope)
        else:
            found = none
        return _concatenate_rows(_leaf(batch.ip, (np.diff(found[1]) == 0) & (batch.ip != 0)), found)

    def _replay_stacks(self, batch: SampleBatch, scope: Array) -> Frames:
        source, target, offsets = batch["branch_from"], batch["branch_to"], batch.offsets[BRANCH]
        kind = self._kinds.of(scope, offsets, source, target, batch["branch_flags"])
        if (found := rebuilt_stacks(batch.ip, source, target, kind, offsets)) is not None:
            return found
        keep, _ = open_calls(source, target, kind, offsets)
        callers = offsets_of(keep)[offsets]
        sizes = np.diff(offsets)
        newest = np.zeros(len(batch), np.uint64)
        newest[sizes > 0] = target[offsets[:-1][sizes > 0]]
        leaf = np.where(batch.ip != 0, batch.ip, newest)
        return _concatenate_rows(_leaf(leaf, leaf != 0), (source[keep], callers))


class StackCounter:
    """Counts the call stacks of batches, which need the columns of `StackMaker`."""

    def __init__(self, profile: Profile, estimate: Replacement | None = None) -> None:
        self._profile, self._maker, self._tally = profile, StackMaker(profile), Tally(profile, bool(estimate))
        self._estimate, self._bursts = estimate, BurstCount(profile)

    def add(self, batch: SampleBatch) -> None:
        for part, scope, frame, offsets in self._maker.of(batch):
            some = np.flatnonzero(np.diff(offsets))
            period = period_of(self._profile, part)[some]
            counted = (part.event[some], scope[some], period, frame, np.append(offsets[some], offsets[-1]))
            executions = [self._estimate.stacks(self._profile.binder, scope, part)[some]] if self._estimate else []
            self._tally.add(*counted, *executions)
            self._bursts.add(part if len(some) == len(part) else without_lists(part).select(some))

    def result(self) -> CallStacks:
        """The call stacks. Raises `NotRecordedError` if no branch is known to be a call."""
        if self._maker.unknown_calls:
            raise NotRecordedError(
                "the capture has no call stacks: the branches have no types, and none of their binaries is available "
                "to decode",
                hint="pass the folder of the binaries with --symfs",
            )
        return replace(self._tally.result(), sources=sorted(self._maker.sources), bursts=self._bursts.result())


def _leaf(address: Array, known: Array) -> Frames:
    """A single frame where it is ``known``, none elsewhere."""
    return address[known], offsets_of(known)


def _chains(frame: Array, offsets: Array) -> Frames:
    """Call chains without markers. Behind the first of each context are return addresses: one less is in the call."""
    marker = frame >= _MARKERS
    first = np.zeros(len(frame), bool)
    first[offsets[:-1][np.diff(offsets) > 0]] = True
    first[1:] |= marker[:-1]
    inside = np.where(first | (frame == 0), frame, frame - np.uint64(1))
    return _only(inside, offsets, ~marker)


def _kernel_part(batch: SampleBatch) -> Frames:
    """The kernel's part of call chains; the branch stack has the user's part."""
    frame, offsets = batch["frame"], batch.offsets[FRAME]
    seen = offsets_of(frame == _USER_MARKER)
    before = seen[1:] == np.repeat(seen[offsets[:-1]], np.diff(offsets))
    return _chains(*_only(frame, offsets, before))


def _only(values: Array, offsets: Array, keep: Array) -> Frames:
    return values[keep], offsets_of(keep)[offsets]


def _concatenate_rows(one: Frames, other: Frames) -> Frames:
    """Ragged columns of equally many rows joined row by row: ``one``'s values first."""
    sizes = [np.diff(one[1]), np.diff(other[1])]
    offsets = offsets_of(sizes[0] + sizes[1])
    out = np.empty(int(offsets[-1]), np.uint64)
    for (values, _), first, size in zip((one, other), (offsets[:-1], offsets[:-1] + sizes[0]), sizes, strict=True):
        out[ranges(first, size)] = values
    return out, offsets


def rebuilt_stacks(
    ip: NDArray[np.uint64], source: Array, target: Array, kind: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]] | None:
    """The frames of samples and their offsets, leaf first: ``ip`` (of the newest entry where it is 0), then the sources
    of `lbr.open_calls`. ``None`` without the library, which `StackMaker` is the oracle of.
    ``kind`` is overwritten."""
    library = native.library()
    if library is None:
        return None
    ip, offsets = np.ascontiguousarray(ip, np.uint64), np.ascontiguousarray(offsets, np.int64)
    frame, bounds = np.empty(len(source) + len(ip), np.uint64), np.empty(len(ip) + 1, np.int64)
    entries = [word for c in (source, target) for word in (native.address(c), c.strides[0])]
    given = native.address(ip), native.address(offsets), len(ip), *entries
    found = library.lb_call_stacks(
        *given, *map(native.address, (kind, ACTIONS)), KIND["call"], *map(native.address, (frame, bounds))
    )
    return frame[:found].copy(), bounds
