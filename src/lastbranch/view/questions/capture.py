"""The capture as a whole: its name and what filters can choose from, what `info` and `check` say of it, and what
`doctor` says of the machine that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...analysis import how_to_record, why_no_stacks
from ...answers.capture_facts import CaptureFacts, find_faults
from ...errors import UnavailableError
from ...model import Profile, visible
from ...version import __version__
from ..answer import Answer, module_names, texts
from ..loaded import Loaded, Parameters

__all__ = ["capture", "doctor", "findings", "overview"]


def capture(loaded: Loaded, _parameters: Parameters) -> Answer:
    """The header is what `analysis.summarize` makes (docs/reference/info.md)."""
    return Answer(_make_safe(CaptureFacts.of(loaded.profile).facts))


def findings(loaded: Loaded, _parameters: Parameters) -> Answer:
    """Columns ``severity``, ``name``, ``means``, ``seen``, ``remedy``: texts, the worst first. Reads the file again."""
    if "-" in loaded.paths:
        raise UnavailableError(
            "a capture from standard input is not checked here", hint="save it, and view the file: check reads it twice"
        )
    found = find_faults(
        loaded.paths, loaded.symbols, symfs=loaded.symfs, folders=loaded.folders, reading=loaded.reading
    )
    return Answer({}, {**found.arrays()})


def doctor(_loaded: Loaded, _parameters: Parameters) -> Answer:
    """Columns as `capture.doctor.COLUMNS`: texts, a row for each command."""
    from ...capture import COLUMNS, examine

    rows = [row for finding in examine() for row in finding.rows]
    return Answer({}, {name: [visible(row[i]) for row in rows] for i, name in enumerate(COLUMNS)})


def _make_safe(value: Any) -> Any:
    """Every text in ``value`` made safe to show."""
    match value:
        case dict():
            return {visible(str(key)): _make_safe(one) for key, one in value.items()}
        case list() | tuple():
            return [_make_safe(one) for one in value]
        case str():
            return visible(str(value))
    return value


# -- what every screen needs to know of the capture: its name, and what its filters can choose from

_LISTED = 1000
"""Processes and modules to choose from, those with most samples first: longer lists are of no use."""


def overview(loaded: Loaded, _parameters: Parameters) -> Answer:
    """Columns ``processes.`` pid (int64), name, samples; ``modules.`` row, name, samples; ``events.`` name, samples,
    branches (bool). Header: ``warnings``, of what makes every screen show less than it could, and ``before``: the name
    of the capture that this one is compared with, if there is one; ``recording`` is that of `Loaded`."""
    profile = loaded.profile
    answer = Answer(
        {
            "file": texts([profile.name])[0],
            "format": profile.format,
            "version": __version__,
            "samples": profile.samples,
            "entries": profile.entries,
            "time": _time(profile),
            "before": texts([loaded.before.profile.name])[0] if loaded.before else "",
            "recording": loaded.recording,
        }
    )
    processes, modules = loaded.weights()
    by_pid: dict[int, list[str]] = {}
    pids = np.array([p.pid for p in profile.processes] + [-1], np.int64)[processes.key]
    for row in processes.key.tolist():
        if row >= 0:
            name = profile.processes[row].name
            by_pid.setdefault(profile.processes[row].pid, []).append(name)
    pid, samples = _sum_by_key(pids, processes.samples)
    answer.columns["processes.pid"] = pid
    answer.columns["processes.name"] = texts(", ".join(dict.fromkeys(by_pid.get(p, []))) for p in pid.tolist())
    answer.columns["processes.samples"] = samples
    row, samples = _sum_by_key(modules.key, modules.samples)
    answer.columns["modules.row"] = row
    answer.columns["modules.name"] = module_names(profile, row.tolist())
    answer.columns["modules.samples"] = samples
    events = np.bincount(modules.event, modules.samples, len(profile.events)).astype(np.int64)
    answer.header["warnings"] = texts(_warnings(profile))  # after all of the file was read
    answer.columns["events.name"] = texts(event.name for event in profile.events)
    answer.columns["events.samples"] = events
    answer.columns["events.branches"] = np.array([e.branch_select is not None for e in profile.events], bool)
    return answer


def _warnings(profile: Profile) -> Iterator[str]:
    places = profile.damage
    if places:
        more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        what = f"{places[0].file} is" if places[0].file else "The file is"
        yield f"{what} damaged, and the screens show what could be read: {places[0]}{more}. See Capture."
    if profile.refused:
        yield f"Left out, as they could not be opened: {', '.join(name for name, _ in profile.refused)}."
    why = why_no_stacks(profile)
    if why and profile.events:
        yield f"No branches are known, because {why}: {how_to_record(profile)}."


def _sum_by_key(key: np.ndarray, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(keys, none below 0; their sums over events), the largest first."""
    known = key >= 0
    keys, which = np.unique(key[known], return_inverse=True)
    sums = np.bincount(which.reshape(-1), samples[known], len(keys)).astype(np.int64)
    order = np.argsort(-sums, kind="stable")[:_LISTED]
    return keys[order], sums[order]


def _time(profile: Profile) -> dict[str, int] | None:
    """Nanoseconds of the first and last sample since the first event; ``None`` without time stamps."""
    first, last = profile.first_time, profile.last_time
    if first is None or last is None or not profile.clock.has_time:
        return None
    zero = first if profile.start is None else profile.start
    return {"from": profile.clock.to_ns(first - zero), "to": profile.clock.to_ns(last - zero)}
