"""Where samples fell by name: function, inlined function or source line; with callers where stacks exist, and with the
instructions that ranges say were executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..bind import binder_of
from ..errors import NotRecordedError
from ..model import Array, Profile, SampleFilter
from .branch_kinds import CodeOf
from .counting import count_stacks, why_no_ranges, why_no_stacks
from .executed import executed
from .naming import Label, Namer, View
from .pairs import group
from .select import kept, period_of
from .stacks import CallStacks, call_stacks, source_of, why_no_call_stacks

if TYPE_CHECKING:
    from ..symbols import Symbolizer

__all__ = ["NameTable", "named_stacks", "names"]


@dataclass(slots=True)
class NameTable:
    """One row for each event and name, heaviest first within its event. Equal-length arrays.

    ``event`` int64 row of the events table; ``name`` int64 row of ``labels``; ``samples`` int64 and ``period`` uint64:
    by the sample's own instruction address (*self*), ``period`` meaningless where ``has_period`` (bool) is false;
    ``total`` int64 samples and ``total_period`` uint64 with the name anywhere in their call stack, each sample once,
    ``None`` where there are no call stacks; ``instructions`` int64 executed, by the ranges of branch stacks, ``None``
    where there are no ranges or no code at all; both mean nothing in rows whose event has none of it (``has_total``,
    ``has_instructions``, bool). ``stacks`` says what the totals were made from; ``notes`` what is
    missing.
    """

    event: Array
    name: Array
    samples: Array
    period: Array
    has_period: Array
    has_total: Array
    has_instructions: Array
    total: Array | None
    total_period: Array | None
    instructions: Array | None
    labels: list[Label]
    stacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.samples)


_Use = Callable[[NDArray[np.int64], NDArray[np.int64]], None]
"""What is done with the names of some places: rows of labels and their offsets, as `Namer.chains` gives them."""


@dataclass(slots=True)
class _Sums:
    """Columns of sums by event and name. All places are named at once: symbol files may be read for each time."""

    places: list[tuple[Array, Array, Array]] = field(default_factory=list)
    uses: list[_Use] = field(default_factory=list)
    keys: list[tuple[Array, Array]] = field(default_factory=list)
    values: list[tuple[Array, ...]] = field(default_factory=list)

    def named(self, process: Array, module: Array, address: Array, use: _Use) -> None:
        """Call ``use`` with the names of these places, later."""
        self.places.append((process, module, address))
        self.uses.append(use)

    def name(self, view: View, namer: Namer) -> None:
        rows, offsets = namer.chains(view, *(np.concatenate(c) for c in zip(*self.places, strict=True)))
        at = 0
        for (place, _, _), use in zip(self.places, self.uses, strict=True):
            mine = offsets[at : at + len(place) + 1]
            use(rows[mine[0] : mine[-1]], mine - mine[0])
            at += len(place)

    def add(self, event: Array, name: Array, **sums: Array) -> None:
        empty = np.zeros(len(event), np.int64)
        self.keys.append((event, name))
        self.values.append(tuple(sums.get(column, empty) for column in _SUMS))

    def result(self) -> tuple[list[Array], dict[str, Array]]:
        keys = [np.concatenate([np.empty(0, np.int64), *c]) for c in zip(*self.keys, strict=True)]
        values = [np.concatenate([np.empty(0, np.int64), *c]) for c in zip(*self.values, strict=True)]
        keys, values = group(keys, values, [np.add] * len(_SUMS))
        return keys, dict(zip(_SUMS, values, strict=True))


_SUMS = ("samples", "period", "total", "total_period", "instructions")


def names(
    profile: Profile, view: View, symbols: Symbolizer | None, *, sample_filter: SampleFilter | None = None
) -> NameTable:
    """Samples, periods and executed instructions by ``view``: ``function``, ``inline`` or ``line``.

    The self columns of ``inline`` and ``line`` are those of the innermost inlined frame. What the capture does not have
    is ``None`` in the table, with a note; nothing is raised for it. Modules without names have one row each.
    """
    namer, sums, notes = Namer(profile, symbols), _Sums(), []
    _own(profile, sums, sample_filter)
    stacks = None
    if (why := why_no_call_stacks(profile, sample_filter)) is None:
        try:
            stacks = call_stacks(profile, sample_filter=sample_filter)
            _totals(stacks, sums)
        except NotRecordedError as error:
            why = str(error)
    if why:
        notes.append(f"no totals: {why}")
    counted = False
    if (why := why_no_stacks(profile) or why_no_ranges(profile, sample_filter)) is None:
        counted = _instructions(profile, sums, sample_filter, notes)
    elif any(e.branch_select is not None for e in profile.events):
        notes.append(f"no instruction counts: {why}")
    sums.name(view, namer)
    (event, name), columns = sums.result()
    order = np.lexsort((-columns["instructions"], -columns["total"], -columns["samples"], event))
    known = np.array([e.has_period or e.period > 0 for e in profile.events], bool)
    stacked = np.array([stacks is not None and bool(source_of(e)[0]) for e in profile.events], bool)
    branching = np.array([counted and e.branch_select is not None for e in profile.events], bool)
    event, name = event[order], name[order]
    own, period, total, total_period, instructions = (columns[c][order] for c in _SUMS)
    return NameTable(
        event, name, own, period.astype(np.uint64), known[event], stacked[event], branching[event],
        total if stacks else None, total_period.astype(np.uint64) if stacks else None,
        instructions if counted else None, namer.labels, stacks.sources if stacks else [], notes,
    )  # fmt: skip


_MERGE_ROWS = 1 << 20


def _own(profile: Profile, sums: _Sums, sample_filter: SampleFilter | None) -> None:
    """By the instruction address of the sample."""
    binder, parts, rows = binder_of(profile), [[np.empty(0, np.int64)] * 6], 0
    for batch in kept(profile, profile.batches(()), sample_filter):
        scope = binder.scopes(batch)
        module, address = binder.locate(scope, batch.ip)
        keys = [batch.event.astype(np.int64), binder.process_of(scope), module, address.view(np.int64)]
        period = period_of(profile, batch).view(np.int64)
        keys, values = group(keys, [np.ones(len(batch), np.int64), period], [np.add] * 2)
        parts.append(keys + values)
        rows += len(keys[0])
        if rows > _MERGE_ROWS:
            parts, rows = [_merged(parts)], 0
    event, process, module, address, samples, period = _merged(parts)

    def use(name: Array, offsets: Array) -> None:
        sums.add(event, name[offsets[:-1]], samples=samples, period=period)

    sums.named(process, module, address.view(np.uint64), use)


def _merged(parts: list[list[Array]]) -> list[Array]:
    columns = [np.concatenate(c) for c in zip(*parts, strict=True)]
    keys, values = group(columns[:4], columns[4:], [np.add] * 2)
    return keys + values


def _totals(stacks: CallStacks, sums: _Sums) -> None:
    """By every name in a stack, once for each."""
    process, frame = _frames(stacks)

    def use(rows: Array, offsets: Array) -> None:
        stack, name = np.unique(np.stack(_spread(stacks, process, frame, rows, offsets)), axis=1)
        period = stacks.period[stack].view(np.int64)
        sums.add(stacks.event[stack], name, total=stacks.samples[stack], total_period=period)

    sums.named(process, stacks.module[frame], stacks.address[frame], use)


def named_stacks(stacks: CallStacks, view: View, namer: Namer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(stack int64, row of labels int64) of every frame of every stack, leaf first, inlined ones on their own."""
    process, frame = _frames(stacks)
    return _spread(stacks, process, frame, *namer.chains(view, process, stacks.module[frame], stacks.address[frame]))


def _frames(stacks: CallStacks) -> tuple[Array, Array]:
    """The distinct (process, frame) of all stacks, in order."""
    process = np.repeat(stacks.process, np.diff(stacks.offsets))
    distinct = np.unique(np.stack([process, stacks.frame]), axis=1)
    return distinct[0], distinct[1]


def _spread(
    stacks: CallStacks, process: Array, frame: Array, rows: Array, offsets: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`named_stacks` from the names of `_frames`."""
    stack = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    width = len(stacks.module) + 1
    place = np.searchsorted(process * width + frame, stacks.process[stack] * width + stacks.frame)
    sizes = np.diff(offsets)[place]
    first = np.cumsum(sizes) - sizes
    return np.repeat(stack, sizes), rows[np.repeat(offsets[place] - first, sizes) + np.arange(int(sizes.sum()))]


def _instructions(profile: Profile, sums: _Sums, sample_filter: SampleFilter | None, notes: list[str]) -> bool:
    """By the instructions that were executed, for each event with branch stacks. Whether any code was at hand."""
    code_of, hidden, seen = CodeOf(profile), 0, 0
    wanted = sample_filter.events if sample_filter else frozenset()
    for row, event in enumerate(profile.events):
        if event.branch_select is None or (wanted and row not in wanted):
            continue
        only = replace(sample_filter or SampleFilter(), events=frozenset([row]))
        counted = count_stacks(profile, ranges=True, details=False, sample_filter=only)
        assert counted.ranges is not None
        ran = executed(profile, counted.ranges, code_of)
        hidden, seen = hidden + ran.hidden, seen + int(counted.ranges.count.sum())

        def use(name: Array, offsets: Array, row: int = row, count: Array = ran.count) -> None:
            sums.add(np.full(len(count), row), name[offsets[:-1]], instructions=count)

        sums.named(ran.process, ran.module, ran.address, use)
    if hidden:
        notes.append(f"instructions: {hidden} of {seen} ranges lie in binaries that are not at hand (see --symfs)")
    return hidden < seen
