"""Functions by their samples, and what to look at first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...analysis import Estimate, NameTable, why_no_stacks
from ...analysis.counting.over_time import Shares
from ...analysis.executions.estimate import Basis, basis_of_event
from ...analysis.naming import Label, Namer
from ...analysis.stacks.functions import branches_by_function
from ...analysis.statistics.bursts import share_bursts
from ...analysis.statistics.share_noise import Noise
from ...analysis.statistics.significance import ENOUGH
from ...model import Array, Profile, SampleFilter, visible
from ..answer import Answer, Column, counts_of, module_names, ratio, texts
from ..loaded import Loaded, Parameters, whole_number

__all__ = ["PARTS", "hot"]

PARTS = 32
"""Parts of the time in the small chart of each row."""
_OFTEN_WRONG = 0.05
"""Share of a function's branches that are mispredicted from which the first sentence speaks of it."""


def hot(loaded: Loaded, parameters: Parameters) -> Answer:
    """A row for each event and function, as `report --by function` prints them, the heaviest of each event first.

    ``event`` int64 row, ``function`` and ``module`` texts, ``module_row`` int64 and ``start`` uint64 (0: not known),
    ``samples``, ``share`` of the event's samples (of its instructions, where executions are estimated),
    ``instructions``, ``branches`` taken in it, ``mispredicted`` share of them, ``cycles`` a branch; ``noise``, the
    standard error of the share of samples, and the ``bursts`` that have samples there in a recording in bursts; NaN
    where that is not known. ``over_time`` unsigned: `PARTS` numbers a row, none where the source has no time stamps.

    ``limit`` is how many rows to send, those with most samples (0: all). Header: ``first``, a sentence, ``notes``,
    ``counts`` (`counts_of`; ``estimate`` chooses them), ``share_of``: what shares follow (`estimate.Basis`),
    ``enough`` samples or branches for their shares to mean something, and ``other``: ``rows``, ``samples`` and
    ``share`` (of all samples) of what was not sent.
    """
    chosen, limit = loaded.filter(parameters), whole_number(parameters, "limit", 0)
    estimate = loaded.estimate(parameters)
    found = loaded.once(("hot", chosen, estimate.replaced), lambda: _counted(loaded, chosen, estimate))
    samples = found.table.samples
    rows = np.sort(np.argsort(-samples, kind="stable")[: limit or len(samples)])
    left = int(samples.sum() - samples[rows].sum())
    other = {"rows": len(samples) - len(rows), "samples": left, "share": left / max(1, int(samples.sum()))}
    header = {
        "first": found.first, "notes": found.notes, "parts": PARTS, "enough": ENOUGH, "other": other,
        "counts": counts_of(estimate), "share_of": found.share_of,
    }  # fmt: skip
    return Answer(header, _columns(loaded.profile, found, rows))


@dataclass(slots=True)
class _Counted:
    """All rows: what is not in ``table`` of them, in its order."""

    table: NameTable
    share: NDArray[np.float64]
    share_of: Basis
    branches: NDArray[np.float64]
    mispredicted: NDArray[np.float64]
    cycles: NDArray[np.float64]
    over_time: NDArray[np.unsignedinteger]
    bursts: NDArray[np.float64]
    noise: NDArray[np.float64]
    first: str
    notes: list[str]


def _counted(loaded: Loaded, chosen: SampleFilter | None, estimate: Estimate) -> _Counted:
    profile = loaded.profile
    table, over_time, noise, *_ = loaded.functions(chosen, PARTS, estimate)
    followed = {basis_of_event(profile.events[event]) for event in set(table.event.tolist())}
    share_of: Basis = followed.pop() if len(followed) == 1 else "entries"
    share = _of_event(table, table.samples.astype(np.float64))
    if estimate.replaced:
        share_of, share = "executions", _of_event(table, _known(table.instructions, table.has_instructions))
    count, wrong, right, cycles, timed = _branches(loaded.namer, table)
    why = why_no_stacks(profile, chosen)
    notes = texts([*table.notes, *([f"no branches: {why}"] if why else [])])
    found = _Counted(
        table,
        share,
        share_of,
        count,
        ratio(wrong, wrong + right),
        ratio(cycles, timed),
        _over_time(over_time, table),
        *_noise(profile, table, noise),
        "",
        notes,
    )
    found.first = _first(profile, found)
    return found


def _columns(profile: Profile, found: _Counted, rows: Array) -> dict[str, Column]:
    table = found.table.take(rows)
    labels = [table.labels[name] for name in table.name.tolist()]
    over_time = found.over_time.reshape(len(found.table), -1)[rows] if len(found.over_time) else found.over_time
    return {
        "event": table.event,
        "function": texts(label.shown(profile) for label in labels),
        "module": module_names(profile, (label.module for label in labels)),
        "module_row": np.array([label.module for label in labels], np.int64),
        "start": np.array([label.start for label in labels], np.uint64),
        "samples": table.samples,
        "share": found.share[rows],
        "instructions": _known(table.instructions, table.has_instructions),
        "branches": found.branches[rows],
        "mispredicted": found.mispredicted[rows],
        "cycles": found.cycles[rows],
        "bursts": found.bursts[rows],
        "noise": found.noise[rows],
        "over_time": over_time.reshape(-1),
    }


def _noise(profile: Profile, table: NameTable, noise: Noise) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The bursts that each row was seen in, where its event has any, and the standard error of its share of samples."""
    in_bursts = share_bursts(profile)[table.event]
    return np.where(in_bursts, noise.observed, np.nan), noise.error


def _of_event(table: NameTable, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares of ``values`` (NaN: not known) of their sums by event."""
    sums = np.bincount(table.event, np.nan_to_num(values), int(table.event.max(initial=0)) + 1)
    return ratio(values, sums[table.event])


def _known(values: Array | None, known: Array) -> NDArray[np.float64]:
    """float64, NaN where a number is not known."""
    return np.full(len(known), np.nan) if values is None else np.where(known, values, np.nan)


def _branches(namer: Namer, table: NameTable) -> list[NDArray[np.float64]]:
    """[count, mispredicted, predicted, cycles, timed] of each row of ``table``. All NaN in rows of an event without
    branch stacks, 0 in functions that no recorded branch begins in."""
    fields = ("count", "mispredicted", "predicted", "cycles", "timed")
    columns = [np.full(len(table), np.nan) for _ in fields]
    for event, branches in table.branches.items():
        sums = branches_by_function(branches, namer)
        found = np.full(len(table.labels), -1)
        found[sums.name] = np.arange(len(sums))
        mine = np.flatnonzero(table.event == event)
        at = found[table.name[mine]]
        for column, field in zip(columns, fields, strict=True):
            values = getattr(sums, field)
            column[mine] = np.where(at >= 0, values[at], 0) if len(values) else 0
    return columns


def _over_time(found: Shares | None, table: NameTable) -> NDArray[np.unsignedinteger]:
    """`PARTS` numbers of samples for each row of ``table``, one row after the other."""
    if found is None:
        return np.empty(0, np.uint8)
    row_of = np.full((int(found.event.max(initial=0)) + 1, len(found.labels)), -1)
    row_of[table.event, table.name] = np.arange(len(table))
    at = row_of[found.event, found.name]
    out = np.zeros((len(table), PARTS), np.int32)
    out[at[at >= 0], found.part[at >= 0]] = found.samples[at >= 0]
    return out.reshape(-1).astype(np.min_scalar_type(out.max(initial=0)))  # most of the answer's bytes


def _first(profile: Profile, found: _Counted) -> str:
    """One sentence: what to look at first, and why."""
    table = found.table
    samples, event = table.samples, table.event
    if not len(samples) or not samples.sum():
        return "No sample passes the filters." if profile.samples else "The capture has no samples."
    main = int(np.bincount(event, samples).argmax())
    top = int(np.flatnonzero(event == main)[0])  # the heaviest of its event
    whole = int(samples[event == main].sum())
    labels = [table.labels[name] for name in table.name.tolist()]
    name, share = _name(profile, labels[top]), int(samples[top]) / max(1, whole)
    if whole < ENOUGH:
        return f"Only {whole} samples: shares mean little. {name} has {int(samples[top])} of them."
    wrong, count = found.mispredicted, found.branches
    of = (
        f" of the samples of {visible(profile.events[main].name)}"
        if len(set(event.tolist())) > 1
        else " of the samples"
    )
    sentence = f"Start with {name}: {share:.0%}{of}"
    if count[top] >= ENOUGH and wrong[top] >= _OFTEN_WRONG:
        return f"{sentence}, and {wrong[top]:.1%} of the branches taken in it were mispredicted."
    mapped = np.array([label.module >= 0 for label in labels], bool)
    costly = np.where((count >= ENOUGH) & mapped, wrong * count, np.nan)
    if not np.isnan(costly).all() and wrong[worst := int(np.nanargmax(costly))] >= _OFTEN_WRONG:
        return (
            f"{sentence}. Then {_name(profile, labels[worst])}: {wrong[worst]:.1%} of its branches were mispredicted."
        )
    return f"{sentence}."


def _name(profile: Profile, label: Label) -> str:
    return visible(label.shown(profile))
