"""A TB5 file to a profile: ours, with everything that was in the source, or one of the guide's sections alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage, FormatError
from ...model import COLUMNS, GROUPS, Profile, SampleBatch, SampleStream, Source
from .constants import DescSubtype, StreamSection, StreamType
from .decoding import SampleReader
from .guide_profile import index_stream, read_guide, time_kind
from .layout import BATCH_TIMES, MODEL, Scope, Table, describe
from .model_tables import read_model, restore
from .reading import Tb5File
from .sample_records import note

__all__ = ["read_tb5"]

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_FOREVER = int(np.iinfo(np.int64).max)
_COMMENT = re.compile(r"(\w+) of stream (\d+)")


def read_tb5(source: Source, progress: Progress | None = None) -> Profile:
    """The profile in ``source``.

    Raises `FormatError` for a file without a readable commit or whose tables make no sense; damaged blocks of samples
    are stepped over and in ``profile.damage``. A file of ours is open at once; streams that other writers added are
    read once for their tables.
    """
    file = Tb5File(source)
    profile = Profile(source.name, "tb5")
    profile.damage = file.damage
    profile.memory = source.limits.memory_of(source.size)
    told: dict[int, dict[str, Any]] = {}
    value = read_model(file)
    if value is not None:
        restore(profile, value, file)
        told = _told(value, file)
    else:
        read_guide(file, profile)
    groups = _groups(file)
    profile.header["tables"] = ", ".join(f"{name}: {n}" for name, n in _shown(file))
    for number in range(file.streams):
        if _type(file, number) == StreamType.SAMPLING and file.has(Table(Scope.STREAM, number, StreamSection.DATA)):
            _add_stream(file, profile, number, groups.get(str(number), {}), told.get(number))
            _compare_times(file, profile, number)
        if progress:
            progress(number + 1, file.streams)
    if profile.start is None:  # the guide has no place for it
        profile.start = min(
            (t for t in (profile.timeline.earliest(), profile.first_time) if t is not None), default=None
        )
    return profile


def _shown(file: Tb5File) -> Iterator[tuple[str, int]]:
    for key, entry in sorted(file.tables.items()):
        if key.scope is not Scope.STORE:
            yield describe(key), entry.count


def _told(value: dict[str, Any], file: Tb5File) -> dict[int, dict[str, Any]]:
    kinds = {
        "number": int,
        "columns": list,
        "events": list,
        "samples": int,
        "entries": int,
        "deepest": int,
        "groups": dict,
    }
    told = value.get("streams")
    for one in told if isinstance(told, list) else [{}]:
        whole = isinstance(one, dict) and all(type(one.get(n)) is kind for n, kind in kinds.items())
        if not whole or {type(c) for c in one["columns"]} - {str} or {type(e) for e in one["events"]} - {int}:
            raise FormatError("model tables: streams are not described", file=file.name, field="streams")
    return {one["number"]: one for one in value["streams"]}


def _type(file: Tb5File, number: int) -> int:
    info = file.records(Table(Scope.STREAM, number, StreamSection.STREAM_INFO))
    return int(info[0]["stream_type"]) if len(info) else 0


def _groups(file: Tb5File) -> dict[str, dict[str, int]]:
    """Number of a stream, as text -> ragged group -> the custom stream of its rows, by their comments."""
    found: dict[str, dict[str, int]] = {}
    for number in range(file.streams):
        if _type(file, number) == StreamType.CUSTOM:
            info = file.records(Table(Scope.STREAM, number, StreamSection.STREAM_INFO))
            matched = _COMMENT.fullmatch(file.text(int(info[0]["comment"])))
            if matched and matched[1] in GROUPS and matched[2] != str(number):
                found.setdefault(matched[2], {})[matched[1]] = number
    return found


def _add_stream(
    file: Tb5File, profile: Profile, number: int, groups: dict[str, int], told: dict[str, Any] | None
) -> None:
    reader = SampleReader(file, number, groups)
    if told is None:
        told = index_stream(file, reader, profile, number)
    columns = tuple(told["columns"])
    unknown = set(columns) - {c.name for c in COLUMNS}
    if unknown:
        raise FormatError(f"stream {number}: no such column", file=file.name, field="columns", value=min(unknown))
    later = _later(file, number)

    def batches(wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
        known = len(profile.events)
        for first, batch, rest in reader.batches(wanted, columns, profile.damage):
            later_times = min(rest, later(first + len(batch)))
            strange = (batch.event < 0) | (batch.event >= known)
            if strange.any():
                reason = f"stream {number}: samples of events that the file does not describe"
                note(profile.damage, Damage(reason, 0, "event", int(batch.event[strange][0])))
                yield batch.select(~strange), later_times
            else:
                yield batch, later_times

    events = tuple(told["events"])
    samples, entries, deepest = (int(told[n]) for n in ("samples", "entries", "deepest"))
    if events and not 0 <= min(events) <= max(events) < len(profile.events):
        raise FormatError(f"stream {number}: event out of range", file=file.name, field="events", value=max(events))
    profile.streams.append(SampleStream(number, columns, events, samples, entries, deepest, batches, ()))


def _compare_times(file: Tb5File, profile: Profile, number: int) -> None:
    """A profile has one clock: a stream whose time stamps are of another kind than the first stream's is told."""
    first, kind = (time_kind(file, n) for n in (profile.streams[0].number, number))
    if kind != first:
        names = [f"SST_{DescSubtype(k).name}" if k in set(DescSubtype) else str(k) for k in (kind, first)]
        reason = f"stream {number}: its time stamps are {names[0]}, the first stream's {names[1]}; read as of one clock"
        note(profile.damage, Damage(reason, 0, "desc_subtype", -1 if kind is None else kind))


def _later(file: Tb5File, number: int) -> Callable[[int], int]:
    """record -> a time that no record from it on is earlier than."""
    key = Table(Scope.STORE, number, MODEL, 5)
    if not file.has(key) or file.record_size(key) != BATCH_TIMES.itemsize:
        return lambda _: -_FOREVER
    rows = file.read(key).reshape(-1).view(BATCH_TIMES)
    start: NDArray[np.int64] = rows["first_record"].astype(np.int64)
    earliest = np.minimum.accumulate(np.append(rows["earliest"], _FOREVER)[::-1])[::-1]

    def later(record: int) -> int:
        if not len(start) or record >= file.count(key._replace(scope=Scope.STREAM, section=StreamSection.DATA, part=0)):
            return _FOREVER
        return int(earliest[max(0, int(np.searchsorted(start, record, side="right")) - 1)])

    return later
