"""Functions by their samples, and what to look at first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...analysis import NameTable, names, why_no_stacks
from ...analysis.functions import branches_by_function
from ...analysis.over_time import Shares, TimeCounter
from ...analysis.significance import ENOUGH
from ...model import Array, SampleFilter
from ..answer import Answer, Column, ratio, texts
from ..loaded import Loaded, Parameters, whole_number

__all__ = ["PARTS", "hot"]

PARTS = 32
"""Parts of the time in the small chart of each row."""
_OFTEN_WRONG = 0.05
"""Share of a function's branches that are mispredicted from which the first sentence speaks of it."""


def hot(loaded: Loaded, parameters: Parameters) -> Answer:
    """A row for each event and function, as `report --by function` prints them, the heaviest of each event first.

    ``event`` int64 row, ``function`` and ``module`` texts, ``module_row`` int64 and ``start`` uint64 (0: not known),
    ``samples``, ``share`` of the event's samples, ``instructions``, ``branches`` taken in it,
    ``mispredicted`` share of them, ``cycles`` a branch; NaN where that is not known. ``over_time`` unsigned: `PARTS`
    numbers a row, none where the source has no time stamps.

    ``limit`` is how many rows to send, those with most samples (0: all). Header: ``first``, a sentence, ``notes``,
    ``enough`` samples or branches for their shares to mean something, and ``other``: ``rows``, ``samples`` and
    ``share`` (of all samples) of what was not sent.
    """
    chosen, limit = loaded.filter(parameters), whole_number(parameters, "limit", 0)
    every = loaded.once(("hot", chosen), lambda: _every(loaded, chosen))
    samples = np.asarray(every.columns["samples"])
    rows = np.sort(np.argsort(-samples, kind="stable")[: limit or len(samples)])
    left = int(samples.sum() - samples[rows].sum())
    other = {"rows": len(samples) - len(rows), "samples": left, "share": left / max(1, int(samples.sum()))}
    columns = {name: _taken(column, rows, len(samples)) for name, column in every.columns.items()}
    return Answer({**every.header, "other": other}, columns)


def _taken(column: Column, rows: Array, every: int) -> Column:
    """``rows`` of a column that has one value for each of ``every`` row, or `PARTS`."""
    if len(rows) == every:
        return column
    if isinstance(column, np.ndarray):
        return column if not len(column) else column.reshape(every, -1)[rows].reshape(-1)
    return [column[row] for row in rows.tolist()]


def _every(loaded: Loaded, chosen: SampleFilter | None) -> Answer:
    """All rows."""
    profile = loaded.profile
    times = TimeCounter(profile, PARTS, chosen)
    table = names(profile, "function", loaded.namer, sample_filter=chosen, totals=False, branches=True, watch=times.add)
    labels = [table.labels[row] for row in table.name.tolist()]
    of_event = np.bincount(table.event, table.samples, len(profile.events))
    columns: dict[str, Column] = {
        "event": table.event,
        "function": texts(label.shown(profile) for label in labels),
        "module": texts(profile.modules[label.module].short if label.module >= 0 else "" for label in labels),
        "module_row": np.array([label.module for label in labels], np.int64),
        "start": np.array([label.start for label in labels], np.uint64),
        "samples": table.samples,
        "share": ratio(table.samples, of_event[table.event]),
        "instructions": _known(table.instructions, table.has_instructions),
    }
    notes = list(table.notes)
    why = why_no_stacks(profile, chosen)
    taken = _branches(loaded, chosen, table)
    columns |= {
        "branches": taken[0],
        "mispredicted": ratio(taken[1], taken[1] + taken[2]),
        "cycles": ratio(taken[3], taken[4]),
    }
    columns["over_time"] = _over_time(times.result(loaded.namer), table)
    answer = Answer(
        {"notes": texts([*notes, *([f"no branches: {why}"] if why else [])]), "parts": PARTS, "enough": ENOUGH}, columns
    )
    answer.header["first"] = _first(answer, texts(event.name for event in profile.events), profile.samples > 0)
    return answer


def _known(values: Array | None, known: Array) -> NDArray[np.float64]:
    """float64, NaN where a number is not known."""
    return np.full(len(known), np.nan) if values is None else np.where(known, values, np.nan)


def _branches(loaded: Loaded, chosen: SampleFilter | None, table: NameTable) -> list[NDArray[np.float64]]:
    """[count, mispredicted, predicted, cycles, timed] of each row of ``table``. All NaN in rows of an event without
    branch stacks, 0 in functions that no recorded branch begins in."""
    fields = ("count", "mispredicted", "predicted", "cycles", "timed")
    columns = [np.full(len(table), np.nan) for _ in fields]
    if len(table.branches) == 1:  # then these are all branches, which another screen asks for
        loaded.once(("branches", chosen), lambda: next(iter(table.branches.values())))
    for event, branches in table.branches.items():
        sums = branches_by_function(branches, loaded.namer)
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


def _first(answer: Answer, events: list[str], any_samples: bool) -> str:
    """One sentence: what to look at first, and why."""
    column = answer.columns
    samples, event = np.asarray(column["samples"]), np.asarray(column["event"])
    if not len(samples) or not samples.sum():
        return "No sample passes the filters." if any_samples else "The capture has no samples."
    main = int(np.bincount(event, samples).argmax())
    top = int(np.flatnonzero(event == main)[0])  # the heaviest of its event
    whole = int(samples[event == main].sum())
    share, name = float(np.asarray(column["share"])[top]), column["function"][top]
    if whole < ENOUGH:
        return f"Only {whole} samples: shares mean little. {name} has {int(samples[top])} of them."
    wrong, count = np.asarray(column["mispredicted"]), np.asarray(column["branches"])
    of = f" of the samples of {events[main]}" if len(set(event.tolist())) > 1 else " of the samples"
    sentence = f"Start with {name}: {share:.0%}{of}"
    if count[top] >= ENOUGH and wrong[top] >= _OFTEN_WRONG:
        return f"{sentence}, and {wrong[top]:.1%} of the branches taken in it were mispredicted."
    mapped = np.asarray(column["module_row"]) >= 0
    costly = np.where((count >= ENOUGH) & mapped, wrong * count, np.nan)
    if not np.isnan(costly).all() and wrong[worst := int(np.nanargmax(costly))] >= _OFTEN_WRONG:
        return f"{sentence}. Then {column['function'][worst]}: {wrong[worst]:.1%} of its branches were mispredicted."
    return f"{sentence}."
