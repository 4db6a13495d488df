"""A profile as rows for `dump`: samples and changes of address spaces in time order, whatever format they are from."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from ..model import Change, Mode, Profile, SampleBatch, column
from .rows import Cells, Dump, Form, Progress, Row, Wanted, milliseconds

__all__ = ["dump_profile"]

_NOT_FIELDS = frozenset(("time", "pid", "tid", "cpu", "event", "mode", "position"))
_NUMBERS = frozenset(
    ("period", "hw_idx", "weight", "time_enabled", "time_running", "read_value", "read_lost", "cgroup")
)
"""Columns that are counted; what else is wide is an address or bits."""


class _Hex(int):
    def __str__(self) -> str:
        return f"{int(self):#x}"


def dump_profile(profile: Profile, wanted: Wanted, progress: Progress | None = None) -> Dump:
    """The ``wanted`` rows of ``profile``."""
    if progress is not None:
        for stream in profile.streams:
            stream.progress = progress

    def cells(form: Form) -> Iterator[Cells]:
        time = milliseconds(profile.clock)
        return (form.row(row, time) for row in _rows(profile, wanted))

    return Dump(profile.name, profile.clock, cells, lambda: profile.damage)


def _rows(profile: Profile, wanted: Wanted) -> Iterator[Row]:
    changes = sorted(_changes(profile), key=lambda one: one[0])
    zero, timed = profile.start or 0, profile.clock.has_time
    samples = (one for batch in profile.batches(ordered=True) for one in _samples(batch, profile))
    first, last = wanted.ticks(profile.clock)
    for time, row in heapq.merge(changes, samples, key=lambda one: one[0]):
        name = row.fields.get("event", "")
        if last is not None and time - zero >= last:
            return
        if not wanted.named(row.event, name, f"SAMPLE/{name}") or (wanted.pids and row.pid not in wanted.pids):
            continue
        if first is not None and time - zero < first:
            continue
        row.time = time - zero if time or not timed else None  # time 0: before the recording, not on its clock
        yield row


def _changes(profile: Profile) -> Iterator[tuple[int, Row]]:
    columns = {name: values.tolist() for name, values in profile.timeline.columns().items()}
    for i, kind in enumerate(columns["kind"]):
        one = {name: values[i] for name, values in columns.items()}
        fields: dict[str, Any] = {}
        if kind in (Change.MAP, Change.UNMAP):
            fields = {"start": _Hex(one["start"]), "end": _Hex(one["end"])}
        if kind == Change.MAP:
            fields |= {"offset": _Hex(one["offset"]), "module": profile.modules[one["module"]].name}
        elif kind == Change.FORK:
            fields = {"parent": one["parent"]}
        elif kind == Change.NAME:
            fields = {"name": profile.timeline.names[one["module"]]}
        yield one["time"], Row(one["time"], one["pid"], one["tid"], -1, Change(kind).name, None, fields)


def _samples(batch: SampleBatch, profile: Profile) -> Iterator[tuple[int, Row]]:
    shown: dict[str, tuple[list[Any], list[int] | None]] = {}
    for name, array in batch.columns.items():
        if name not in _NOT_FIELDS:
            plain = name in _NUMBERS or array.dtype.itemsize < 8
            group = column(name).group
            bounds = None if group == "sample" else batch.offsets[group].tolist()
            shown[name] = (array.tolist() if plain else [_Hex(v) for v in array.tolist()]), bounds
    required = (batch.time, batch.pid, batch.tid, batch.cpu, batch.event, batch.mode)
    for i, (time, pid, tid, cpu, event, mode) in enumerate(zip(*(c.tolist() for c in required), strict=True)):
        fields: dict[str, Any] = {"event": profile.events[event].name, "mode": Mode.NAMES[mode]}
        for name, (values, bounds) in shown.items():
            if bounds is None:
                fields[name] = values[i]
            else:
                part = values[bounds[i] : bounds[i + 1]]
                fields[name] = bytes(part) if batch[name].dtype.itemsize == 1 else part
        yield time, Row(time, pid, tid, cpu, "SAMPLE", None, fields)
