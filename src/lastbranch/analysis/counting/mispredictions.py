"""Mispredicted branches: where they are, how often they were seen, and the cycles that they cost.

A branch record says of each taken branch whether it was mispredicted. Processors that time branches also say how many
cycles passed since the branch before. The same code runs from a branch's target to the next branch, whether the first
branch was predicted or not; the extra cycles of this code after a misprediction are the cost of the misprediction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ...arrays import Ints, StackSums, Table, distinct_rows, group
from ...errors import NotRecordedError
from ...lbr import flag
from ...model import BRANCH, ENTRY, Array, Event, Profile, SampleBatch, SampleFilter, counted
from ..naming import Label, Namer, View
from ..samples import check_events, filtered_batches, wanted_events
from .availability import how_to_record, why_no_stacks
from .early_pass import Spaces

__all__ = [
    "Mispredictions",
    "NamedMispredictions",
    "cost_note",
    "cost_order",
    "misprediction_events",
    "mispredictions",
    "sum_by_name",
    "no_outcomes",
]

_EVENTS = re.compile(
    r"(?:.*/)?(?:event=)?(?:branch-misses|branch-?mispredict(?:ions|sretired)|br_misp_(?:retired|exec)(?:[.:]\w+)*?"
    r"|br_mis_pred(?:_retired)?|ex_ret_\w*(?:misp|msprd)\w*|r?(?:0x)?(?:[0-9a-f]{2}){0,2}c5)"
    r"(?:,umask=[^/]*)?(?:[:/][ukhGHpPSDWeI]*)?",
    re.IGNORECASE,
)
"""Events that count mispredicted branches: perf's and Windows' names, BR_MISP_RETIRED (xxC5H) of Intel, EX_RET_BRN_MISP
and others of AMD, BR_MIS_PRED of Arm."""


def misprediction_events(profile: Profile, sample_filter: SampleFilter | None = None) -> dict[int, Event]:
    """Events that count mispredicted branches, by their row, among the samples that ``sample_filter`` keeps: the
    addresses of these samples are mispredicted branches, taken or not."""
    wanted = wanted_events(profile, sample_filter)
    return {row: event for row, event in wanted.items() if _EVENTS.fullmatch(event.name)}


def no_outcomes() -> NotRecordedError:
    """The error to raise where no branch entry has an outcome."""
    return NotRecordedError(
        "no branch record says whether its branch was mispredicted",
        hint="record on a processor that reports it, without the branch filter no_flags; the software recorder "
        "cannot know it",
    )


@dataclass(slots=True)
class Mispredictions(Table):
    """Branch instructions with recorded outcomes, by module and address. Arrays of equal length.

    ``module`` int64 row of the modules table or -1; ``address`` uint64 module address; ``process`` int64 row, -1 where
    entries are of several. ``count`` int64 entries of taken branches, of which ``mispredicted`` and ``predicted``.
    ``timed`` int64: the mispredictions after which the cycles to the next branch are known, and those of the same
    code after predicted branches; ``lost`` float64: how many cycles more they took, together. Below 0 where chance
    outweighs the cost.
    """

    module: Array
    address: Array
    process: Array
    count: Array
    mispredicted: Array
    predicted: Array
    timed: Array
    lost: Array

    def estimated(self) -> Array:
        """float64: cycles lost by all mispredictions of each row, of which only some were ``timed``; NaN where none
        was."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.timed > 0, self.lost * self.mispredicted / self.timed, np.nan)


_VALUES = 3
"""Entries with this outcome, those of them whose next branch is timed, and their cycles."""


def mispredictions(profile: Profile, *, sample_filter: SampleFilter | None = None) -> tuple[Mispredictions, int]:
    """(the branch instructions of the branch stacks of ``profile``, the cycles that all entries recorded).

    Raises `NotRecordedError` where there are no branch stacks, or none that says whether a branch was mispredicted.
    """
    if reason := why_no_stacks(profile, sample_filter):
        raise NotRecordedError(reason, hint=how_to_record(profile))
    check_events(profile, sample_filter, lambda event: event.branch_select is not None)
    sums, cycles = _Stacks(profile.binder), 0
    for stream in profile.streams:
        if "branch_from" not in stream.columns:
            continue
        for batch in filtered_batches(profile, stream.stacks(), sample_filter, by_address=False):
            cycles += sums.add(batch)
    table = sums.result()
    if not (table.mispredicted.any() or table.predicted.any()):
        raise no_outcomes()
    if sample_filter is not None and sample_filter.modules:
        table = table.take(np.isin(table.module, list(sample_filter.modules)))
    return table, cycles


class _Stacks:
    """Sums branch entries by (scope, source, target, next source) and whether they were mispredicted."""

    def __init__(self, binder: Spaces) -> None:
        self._binder = binder
        self._sums = StackSums(2, _VALUES)
        self._parts: list[list[Array]] = []

    def add(self, batch: SampleBatch) -> int:
        """Add a batch that has the columns of branch entries; how many cycles they have."""
        if not batch.entries:
            return 0
        source, target, flags = (batch[name] for name in ENTRY)
        scope, cycles = np.repeat(self._binder.scopes(batch), batch.depth), flag(flags, "cycles").view(np.int64)
        known = (flags & np.uint64(3)) != 0
        # Entries are newest first: the entry before another in the columns is the branch that followed.
        following = np.append(np.uint64(0), source[:-1])
        spent = np.append(np.int64(0), cycles[:-1])
        newest = batch.offsets[BRANCH][:-1][batch.depth > 0]
        spent[newest] = 0
        following[spent == 0] = 0  # what is not timed needs no ranges
        frames = np.stack([source, target, following], axis=1)[known].reshape(-1)
        timed = (spent[known] != 0).astype(np.int64)
        self._sums.add(
            [scope[known], (flags[known] & np.uint64(1)).view(np.int64)],
            frames,
            np.arange(0, len(frames) + 1, 3),
            [np.ones(len(timed), np.int64), timed, spent[known]],
        )
        return int(cycles.sum())

    def result(self) -> Mispredictions:
        found = self._sums.take()
        scope, wrong = found.keys
        weight = self._binder.weights_of(scope)
        source, target, following = found.frame.reshape(-1, 3).T
        process = self._binder.process_of(scope)
        module, address = self._binder.locate(scope, source)
        count, timed, spent = (column * weight for column in found.values)
        lost, compared = _lost_cycles(wrong, self._ranges(scope, target, following), timed, spent)
        (module, address), (low, high, count, mispredicted, predicted, compared, lost) = group(
            [module, address],
            [process, process, count, count * wrong, count * (1 - wrong), compared, lost],
            [np.minimum, np.maximum, np.add, np.add, np.add, np.add, np.add],
        )
        process = np.where(low == high, low, -1)
        return Mispredictions(module, address, process, count, mispredicted, predicted, compared, lost)

    def _ranges(self, scope: Array, start: Array, end: Array) -> Ints:
        """int64: equal numbers for the same code, in whatever process it runs."""
        bound = [*self._binder.locate(scope, start), *self._binder.locate(scope, end)]
        return distinct_rows(*bound)[1]


def _lost_cycles(wrong: Array, code: Ints, timed: Array, spent: Array) -> tuple[Array, Array]:
    """(float64 cycles more than after predicted branches, int64 entries for which that is known) of each row."""
    rows = int(code.max(initial=-1)) + 1
    right = wrong == 0
    number = np.bincount(code[right], timed[right], rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = np.bincount(code[right], spent[right], rows) / number
    known = (wrong == 1) & (timed > 0) & (number[code] > 0)
    return np.where(known, spent - timed * usual[code], 0.0), np.where(known, timed, 0)


def cost_order(lost: Array, timed: Array, mispredicted: Array) -> Ints:
    """int64: rows by cycles lost, where any are known, then by mispredictions, most first."""
    order: Ints = np.lexsort((-mispredicted, -np.where(timed > 0, lost, 0.0)))
    return order


def cost_note(table: Mispredictions) -> str:
    """A note for the user: from which branches the lost cycles are estimated."""
    number, timed = int(table.mispredicted.sum()), int(table.timed.sum())
    if not timed:
        return "cycles lost are not known: no branch after a mispredicted one was timed"
    return f"cycles lost are estimated from {timed} of {counted(number, 'misprediction')}"


# -- by name


@dataclass(slots=True)
class NamedMispredictions(Table):
    """`Mispredictions` by name, in the order of `cost_order`: ``name`` int64 row of the labels of the `Namer`;
    ``lost`` float64 cycles, estimated for all that are mispredicted where some are ``timed``."""

    name: Array
    count: Array
    mispredicted: Array
    predicted: Array
    timed: Array
    lost: Array


def sum_by_name(table: Mispredictions, view: View | None, namer: Namer) -> NamedMispredictions:
    """Sums by ``view``, and by module where that is ``None``: of ``inline`` and ``line`` by the innermost function that
    a branch belongs to. Rows without mispredictions are left out."""
    if view is None:
        name = np.array([namer.row(Label(row, "")) for row in table.module.tolist()], np.int64)
    else:
        rows, offsets = namer.chains(view, table.process, table.module, table.address)
        name = rows[offsets[:-1]]
    columns = [table.count, table.mispredicted, table.predicted, table.timed, np.nan_to_num(table.estimated())]
    (name,), sums = group([name], columns, [np.add] * len(columns))
    out = NamedMispredictions(name, *sums)
    out = out.take(out.mispredicted > 0)
    return out.take(cost_order(out.lost, out.timed, out.mispredicted))
