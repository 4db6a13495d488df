"""``--to mispredictions``: where branches were mispredicted, as a sample profile by line beside that of `sampleprof`.

It has the form that llvm-profgen's ``--leading-ip-only`` gave samples of branch misses (LLVM pull request 99026, merged
and reverted in July 2024): each address is a range of one instruction, so the count of a line is the count of its most
mispredicted branch. A compiler divides a line's count by that in the profile of executions and takes the branch for
unpredictable from 0.2 on (``UnpredictableProfileLoader``, pull request 99027; Intel's compiler reads the file with
``-mllvm -unpredictable-hints-file=``). No clang that was released reads it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import IO

import numpy as np

from ..analysis import BoundPairs, StackCounts, count_stacks, filtered_batches
from ..analysis.counting.count_stacks import EntryCounter
from ..analysis.counting.mispredictions import misprediction_events, no_outcomes
from ..arrays import group
from ..errors import UnavailableError
from ..model import Array, Event, Profile, SampleFilter, visible
from .interface import ExportOptions, ExportResult
from .line_samples import tree_of
from .modules import ModuleCounts, ModuleFormat
from .sampleprof import write_tree

__all__ = ["FORMAT"]


def write(counts: ModuleCounts, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the mispredictions of a module, which are in the place of its ranges. Raises as `line_samples.tree_of`."""
    tree, done = tree_of(counts, options)
    write_tree(tree, out, options)
    events = _events(counts.profile, options)
    if not events:
        return done._replace(unit="mispredictions", why="the rest is in code without line numbers or functions")
    names = ", ".join(visible(event.name) for event in events.values())
    note = f"counts are samples of {names}, at the addresses of mispredicted branches"
    return done._replace(unit="samples", notes=[note, *done.notes])


def _events(profile: Profile, options: ExportOptions) -> dict[int, Event]:
    """The events whose samples are mispredictions, by row, of those that are wanted."""
    return {} if options.counted else misprediction_events(profile, options.sample_filter)


def _count(profile: Profile, options: ExportOptions, rows: list[int]) -> StackCounts:
    """The mispredictions of the wanted samples: the addresses of samples of events that count mispredictions, or else
    the mispredicted branch entries. Raises `NotRecordedError` where nothing says so."""
    events = _events(profile, options)
    if events:
        if options.estimate is not None and options.estimate.replaced:
            name = next(iter(events.values())).name
            raise UnavailableError(f"samples of {name} are mispredictions, of which no executions can be estimated")
        chosen = replace(options.sample_filter or SampleFilter(), events=frozenset(events))
        counter = EntryCounter(profile.binder, branches=False, ranges=False, sampled=True, by_process=False)
        for batch in filtered_batches(profile, profile.batches(()), chosen, by_address=False):
            counter.add(batch)
        sampled = counter.result(chosen).sampled
        return _as_ranges(sampled.module, sampled.address, sampled.count)
    found = (
        options.counted(rows)
        if options.counted
        else count_stacks(
            profile,
            ranges=False,
            details=False,
            sample_filter=options.sample_filter,
            by_process=False,
            estimate=options.estimate,
        )
    )
    kinds = [found.branches, *([found.not_taken] if found.not_taken is not None else [])]
    if not any(kind.mispredicted.any() or kind.predicted.any() for kind in kinds):
        raise no_outcomes()
    columns = (np.concatenate([getattr(kind, name) for kind in kinds]) for name in ("a_module", "a", "mispredicted"))
    return _as_ranges(*columns)


def _as_ranges(module: Array, address: Array, count: Array) -> StackCounts:
    """The argument of `modules.count_modules`, with a range for each address that has a count."""
    some = count > 0
    (module, address), (count,) = group([module[some], address[some]], [count[some]], [np.add])
    none, nowhere = np.zeros(len(module), np.int64), np.full(len(module), -1)
    ranges = BoundPairs(nowhere, module, address, module, address, count, none, none)
    return StackCounts(ranges.take(slice(0)), ranges)


FORMAT = ModuleFormat("misp.prof", write, count=_count)
