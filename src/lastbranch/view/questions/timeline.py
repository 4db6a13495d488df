"""What happened when: samples, branches and losses over the time of the capture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...analysis import Key
from ...analysis.counting.over_time import losses_over_time
from ...errors import NotRecordedError, SelectionError
from ...model import THROTTLES, Array, SampleFilter
from ..answer import Answer, Column, texts
from ..loaded import MOMENTS, Loaded, Parameters

__all__ = ["time", "timeline"]

_GROUPS = 12
"""Processes or threads that have rows of their own."""


def timeline(loaded: Loaded, parameters: Parameters) -> Answer:
    """Column ``samples`` int64: `MOMENTS` numbers over all of the time, under all filters but the time."""
    samples = loaded.timeline(_at_any_time(loaded, parameters))
    if samples is None:
        raise NotRecordedError(_NO_TIMES)
    return Answer({}, {"samples": samples})


def time(loaded: Loaded, parameters: Parameters) -> Answer:
    """Rows of ``groups.``: all samples first, then with ``by`` ``process`` or ``thread`` those with most of them, and
    the others. ``groups.id`` int64 (pid or tid; -1 where a row is none), ``groups.name`` text, ``groups.samples`` and
    ``groups.branches`` int64.

    ``samples``, ``branches``, ``mispredicted`` and ``predicted`` int64 have `MOMENTS` numbers for each group, over all
    of the time, under all filters but the time; ``lost`` int64 `MOMENTS` numbers, none where the source does not say
    when. Header: ``by``, ``parts``, ``from`` and ``to`` (ns since the first event, which the parts divide evenly),
    ``lost`` in all by name, ``lost_in_time`` how many of them are in the column, ``branches`` and ``predictions``:
    whether there are any.
    """
    by = parameters.get("by") or ""
    if by not in ("", "process", "thread"):
        raise SelectionError(f"by = {by[:40]!r}: choose from 'process', 'thread'")
    profile, key = loaded.profile, by or "process"
    found = loaded.rates(_at_any_time(loaded, parameters), _KEYS[key])
    first, last = profile.first_time, profile.last_time
    if found is None or first is None or last is None:
        raise NotRecordedError(_NO_TIMES)
    columns = {name: getattr(found, name) for name in ("samples", "branches", "mispredicted", "predicted")}
    ids, which, names = _owners(loaded, key, found.owner)
    total = np.bincount(which, found.samples, len(ids)) if by else np.empty(0)
    heaviest = np.argsort(-total, kind="stable")[:_GROUPS]
    row_of = np.full(len(ids), len(heaviest) + 1)  # the others; row 0 is all
    row_of[heaviest] = np.arange(len(heaviest)) + 1
    others = int(len(total) > len(heaviest))
    rows = 1 + len(heaviest) + others
    made: dict[str, Column] = {}
    for name, values in columns.items():
        table = np.zeros((rows, MOMENTS), np.int64)
        np.add.at(table[0], found.part, values)
        if by:
            np.add.at(table, (row_of[which], found.part), values)
        made[name] = table.reshape(-1)
    sums = {name: np.asarray(made[name]).reshape(rows, -1).sum(axis=1) for name in ("samples", "branches")}
    made["groups.id"] = np.array([-1, *(ids[row] for row in heaviest.tolist()), *([-1] * others)], np.int64)
    rest = f"{len(ids) - len(heaviest)} others"
    made["groups.name"] = texts(["All", *(names[row] for row in heaviest.tolist()), *([rest] * others)])
    made |= {f"groups.{name}": column for name, column in sums.items()}
    lost = losses_over_time(profile, MOMENTS)
    made["lost"] = np.empty(0, np.int64) if lost is None else lost
    clock, zero = profile.clock, profile.start or 0
    header: dict[str, Any] = {
        "by": by,
        "parts": MOMENTS,
        "from": clock.to_ns(first - zero),
        "to": clock.to_ns(last + 1 - zero),
        "lost": {name: int(number) for name, number in profile.lost.items() if name != THROTTLES},
        "lost_in_time": 0 if lost is None else int(lost.sum()),
        "branches": bool(sums["branches"][0]),
        "predictions": bool(found.mispredicted.sum() + found.predicted.sum()),
    }
    return Answer(header, made)


_KEYS: dict[str, Key] = {"process": "process", "thread": "thread"}
_NO_TIMES = "the samples have no time stamps"


def _at_any_time(loaded: Loaded, parameters: Parameters) -> SampleFilter | None:
    chosen = loaded.filter(parameters)
    return (replace(chosen, first=None, last=None) if chosen else None) or None


def _owners(loaded: Loaded, key: str, rows: Array) -> tuple[list[int], Array, list[str]]:
    """(ids, the place in them of each of ``rows`` of the processes or threads table, names): one id may have been given
    several times."""
    profile = loaded.profile
    known = {-1: (-1, "")}
    for row in np.unique(rows[rows >= 0]).tolist():
        if key == "process":
            known[row] = profile.processes[row].pid, profile.processes[row].name
        else:
            known[row] = profile.threads[row].tid, profile.threads[row].name
    ids, which = np.unique([known[row][0] for row in rows.tolist()], return_inverse=True)
    called: dict[int, dict[str, None]] = {}
    for one, name in known.values():
        called.setdefault(one, {})[name] = None
    names = ["unknown" if one < 0 else f"{one} {', '.join(called[one])}".rstrip() for one in ids.tolist()]
    return ids.astype(np.int64).tolist(), which.reshape(-1), names
