"""Counts of module addresses, which a store keeps of captures: made of files alone, and the same on every host.

No binary is looked at, so that addresses mean the same on every host: offsets in files (`with_binary` of `bind` turns
them into link addresses where a binary is available).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..analysis import why_no_ranges, why_no_stacks
from ..analysis.counting import count_tables
from ..analysis.counting.count_stacks import EntryCounter
from ..analysis.counting.early_pass import EarlyPass, Spaces
from ..analysis.statistics.sample_sums import BranchSums
from ..arrays import group_unordered
from ..errors import LastbranchError
from ..model import (
    THROTTLES,
    Array,
    Change,
    Module,
    ModuleKind,
    Profile,
    SampleBatch,
    SampleFilter,
    counted,
    visible,
)
from ..opening import is_no_capture, open_source, read_profile
from .schema import LABELS, TABLES, CountKind, fold_of

__all__ = ["NOWHERE", "CaptureFile", "Labels", "ModuleKey", "CountRows", "capture_file", "count_captures"]

NOWHERE = ""
"""Identity of what is in no module, or in memory without a file: its addresses mean nothing elsewhere."""

_NOTES = 5
"""Places of damage that are described."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of captures, given by the user who adds the captures; ``None``: the capture's own label, if any.

    ``recorded`` and ``stands_for`` are ns: for how long an agent recorded, and for how much of the service's run that
    stands. Both are 0 if not given: such a capture counts as it is.
    """

    service: str = ""
    version: str = ""
    host: str | None = None
    time: datetime | None = None
    recorded: int = 0
    stands_for: int = 0


@dataclass(frozen=True, slots=True)
class CaptureFile:
    """A file to count: its SHA-256 in hexadecimal, its bytes, its labels, and whether the file is ``certain`` to be
    meant as a capture; in a folder, files of other kinds are left out."""

    path: str
    digest: str
    size: int
    labels: Labels
    certain: bool = True


def capture_file(path: str, labels: Labels, certain: bool = True) -> CaptureFile:
    """The file at ``path`` with its digest. Raises `OSError` and `FormatError` where it cannot be read."""
    source = open_source(path)
    try:
        digest, offset, buffer = hashlib.sha256(), 0, memoryview(bytearray(1 << 20))
        while got := source.readinto(offset, buffer):
            digest.update(buffer[:got])
            offset += got
    finally:
        source.close()
    return CaptureFile(path, digest.hexdigest(), offset, labels, certain)


ModuleKey = tuple[str, str, int, int]
"""Identity, name, and offset in the file and bytes of a mapping."""


@dataclass(slots=True)
class CountRows:
    """Rows of the tables of one day of a store, each as columns by name. Text is an index into ``words``."""

    counts: dict[str, Array]
    captures: list[dict[str, Any]]
    modules: dict[ModuleKey, Module]
    words: list[str]


# -- one capture


@dataclass(slots=True)
class _EventCounts:
    """An event of a capture: columns of the counts table, those of text as numbers of ``words``."""

    columns: list[list[Array]] = field(default_factory=list)
    facts: dict[str, int] = field(default_factory=dict)


_SUMS = TABLES["counts"].sums
_TEXT = ("module", "kind", "other_module", *LABELS, "event")
_KEYS = TABLES["counts"].keys


class _Words:
    """Numbers of texts, -1 of ``None``."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str | None) -> int:
        if text is None:
            return -1
        number = self._numbers.setdefault(text, len(self.words))
        if number == len(self.words):
            self.words.append(text)
        return number

    def column(self, texts: Iterable[str | None]) -> Array:
        """int32: the number of each."""
        return np.array([self(text) for text in texts], np.int32)


class _Event:
    """Counts the samples of one event of a capture; also its branches (``branches``) and ranges (``ranges``)."""

    def __init__(self, spaces: Spaces, *, branches: bool = True, ranges: bool = True) -> None:
        self._branches = BranchSums(spaces) if branches else None
        self._others = EntryCounter(spaces, branches=False, ranges=ranges, sampled=True)
        self.facts = dict.fromkeys(("samples", "stacks", "entries", "entries_squared"), 0)

    def add(self, batch: SampleBatch, *, again: bool = False) -> None:
        """Count a batch; ``again``: the totals that `pour` adds hold the batch already."""
        depth = batch.depth
        for name, number in (
            ("samples", len(batch)),
            ("stacks", np.count_nonzero(depth)),
            ("entries", depth.sum()),
            ("entries_squared", (depth * depth).sum()),
        ):
            self.facts[name] += 0 if again else int(number)
        if self._branches is not None:
            self._branches.add(batch)
        self._others.add(batch, again=again)

    @property
    def bound(self) -> int:
        """Rows that it has in memory, about."""
        return self._others.bound + (self._branches.rows if self._branches is not None else 0)

    def pour(self, other: _Event, scope: Array) -> None:
        """Have ``other`` hold what this one counted, too: see `analysis.counting.early_pass.Counter`."""
        for name, number in self.facts.items():
            other.facts[name] += number
        if self._branches is not None and other._branches is not None:
            self._branches.pour(other._branches, scope)
        self._others.pour(other._others, scope)

    def result(self, module: Array) -> Iterator[tuple[str, dict[str, Array]]]:
        """(kind, columns of that kind). ``module`` has the number of the identity of each row of the modules table, and
        last that of `NOWHERE`, as of memory without a file."""
        nowhere = module[-1]

        def place(rows: Array, address: Array) -> tuple[Array, Array]:
            number = module[rows]
            return number, np.where(number == nowhere, np.uint64(0), address)

        counted = self._others.result(None)
        sampled, ranges = counted.sampled, counted.ranges
        number, address = place(sampled.module, sampled.address)
        yield CountKind.SAMPLE, {"module": number, "address": address, "n": sampled.count}
        if self._branches is not None:
            found = self._branches.result()
            a_module, a = place(found.a_module, found.a)
            b_module, b = place(found.b_module, found.b)
            outside = (a_module == nowhere) | (b_module == nowhere)
            self.facts["outside"] = int(found.count[outside].sum())
            sums = found.arrays()
            values = {name: sums["count" if name == "n" else name] for name in _SUMS}
            other = np.where(b_module == nowhere, -1, b_module)
            yield (
                CountKind.BRANCH,
                {"module": a_module, "address": a, "other_module": other, "other_address": b, **values},
            )
            enters = (b_module != a_module) & (b_module != nowhere)
            other = np.where(a_module == nowhere, -1, a_module)
            entry = {"module": b_module, "address": b, "other_module": other, "other_address": a, **values}
            yield CountKind.ENTRY, {name: column[enters] for name, column in entry.items()}
        if ranges is not None:
            (rows, start, _, end), (count, _, _) = count_tables.merge_processes(ranges)
            number = module[rows]
            inside = number != nowhere
            yield (
                CountKind.RANGE,
                {
                    name: column[inside]
                    for name, column in {"module": number, "address": start, "other_address": end, "n": count}.items()
                },
            )


# -- many captures


class _Day:
    """The counts of the captures of one day."""

    def __init__(self) -> None:
        self.words = _Words()
        self._parts: list[list[Array]] = []
        self._rows = self.size = 0
        self.captures: list[dict[str, Any]] = []
        self.modules: dict[ModuleKey, Module] = {}

    def add(self, columns: dict[str, Array], fold: int, **texts: str) -> None:
        """Add rows of the counts table; ``fold`` and ``texts`` are the same for all of them."""
        size = len(columns["module"])
        if not size:
            return
        part = []
        for name in (*_KEYS, *_SUMS):
            if name in texts:
                column: Array = np.full(size, self.words(texts[name]), np.int32)
            elif name in columns:
                column = columns[name]
            elif name == "fold":
                column = np.full(size, fold)
            else:
                column = np.full(size, -1, np.int32) if name in _TEXT else np.zeros(size, np.int64)
            kind = np.int32 if name in _TEXT else np.uint64 if name in _KEYS else np.int64
            part.append(column.astype(kind, copy=False))
        self._parts.append(part)
        self._rows += size
        if self._rows > self.size + _MOST_ROWS:
            self._merge()

    def _merge(self) -> None:
        """Make one row of all rows with the same keys."""
        columns = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
        self._parts.clear()
        keys, sums = group_unordered(columns[: len(_KEYS)], columns[len(_KEYS) :], [np.add] * len(_SUMS))
        self._parts, self._rows, self.size = [[*keys, *sums]], len(keys[0]), len(keys[0])

    def rows(self) -> CountRows:
        """The added rows, each key once."""
        if self._parts:
            self._merge()
        columns = self._parts[0] if self._parts else [np.empty(0, np.int64)] * len((*_KEYS, *_SUMS))
        counts = dict(zip((*_KEYS, *_SUMS), columns, strict=True))
        return CountRows(counts, self.captures, self.modules, self.words.words)


_MOST_ROWS = 1 << 18
"""Rows that are in memory, and as many again that wait to be merged."""


def count_captures(captures: Sequence[CaptureFile]) -> Iterator[tuple[str, CountRows]]:
    """(day, rows of the captures of that day); a day (``YYYY-MM-DD``, UTC) comes several times if needed to keep few
    rows in memory. A capture that cannot be read has a row that says why."""
    days: dict[str, _Day] = {}
    for capture in captures:
        if sum(day.size for day in days.values()) > _MOST_ROWS:
            yield from ((day, found.rows()) for day, found in sorted(days.items()))
            days.clear()
        try:
            _count(capture, days)
        except (LastbranchError, OSError) as error:
            if not capture.certain and is_no_capture(error):
                continue
            when = capture.labels.time or _modification_time(capture.path)
            reason = str(error) if isinstance(error, LastbranchError) else error.strerror or str(error)
            row = _row(capture, capture.labels.host or "", when) | {"notes": reason, "refused": True}
            days.setdefault(f"{when:%Y-%m-%d}", _Day()).captures.append(row)
    yield from ((day, found.rows()) for day, found in sorted(days.items()))


def _count(capture: CaptureFile, days: dict[str, _Day]) -> None:
    source = open_source(capture.path)
    try:
        early = EarlyPass(_Event, by_event=True)
        profile = read_profile(source, binaries=False, watcher=early)
        events, notes = [], []
        for row in range(len(profile.events)):
            only = SampleFilter(events=frozenset([row]))
            stacks = why_no_stacks(profile, only) is None
            no_ranges = why_no_ranges(profile, only) if stacks else None
            events.append(_Event(profile.binder, branches=stacks, ranges=stacks and not no_ranges))
            notes.append([f"no ranges: {no_ranges}"] if no_ranges else [])
        for stream in () if early.pour(profile, events) else profile.streams:
            several = len(stream.events) > 1
            for batch in stream.stacks():
                rows = np.flatnonzero(np.bincount(batch.event)).tolist() if several else stream.events[:1]
                for row in rows:
                    events[row].add(batch.select(batch.event == row) if several else batch)
        when = capture.labels.time or _recording_time(profile) or _modification_time(capture.path)
        day = days.setdefault(f"{when:%Y-%m-%d}", _Day())
        host = profile.machine.host if capture.labels.host is None else capture.labels.host
        texts = {"service": capture.labels.service, "host": host, "version": capture.labels.version}
        module = _identities(capture, profile, day)
        said = _row(capture, host, when) | {"format": profile.format, "bytes": source.size}
        kept: list[tuple[str, _Event, list[str]]] = []
        for event, counter, note in zip(profile.events, events, notes, strict=True):
            if counter.facts["samples"] or len(events) == 1:
                for kind, columns in counter.result(module):
                    day.add(columns, fold_of(capture.digest), kind=kind, event=event.name, **texts)
                kept.append((event.name, counter, note))
        said |= {"lost": profile.lost_records, "damage": len(profile.damage)}
        damage = [str(one) for one in profile.damage[:_NOTES]]
        if throttles := profile.lost.get(THROTTLES):
            damage.append(f"the kernel paused sampling {counted(throttles, 'time')}")
        periods = {event.name: event.period for event in profile.events}
        day.captures += [
            said | counter.facts | {"event": name, "period": periods[name], "notes": "; ".join(damage + note)}
            for name, counter, note in kept
        ] or [said | {"notes": "; ".join(["no samples", *damage])}]
    finally:
        source.close()


def _identities(capture: CaptureFile, profile: Profile, day: _Day) -> Array:
    """int32: number of the identity of each module, and of `NOWHERE` last."""
    found: list[str] = []
    mappings = _mappings(profile)
    for row, module in enumerate(profile.modules):
        if module.kind is ModuleKind.ANONYMOUS:
            found.append(NOWHERE)
            continue
        identity = module.identity or f"path:{capture.digest[:16]}:{module.name}"
        for mapping in mappings.get(row, _UNMAPPED):
            day.modules.setdefault((identity, module.name, *mapping), replace(module))
        found.append(identity)
    return day.words.column([*found, NOWHERE])


_UNMAPPED = ((0, 0),)
_MAPPINGS = 8
"""Ways in which a module is mapped that are kept: nearly all have one."""


def _mappings(profile: Profile) -> dict[int, list[tuple[int, int]]]:
    """(offset in the file, bytes) of the mappings of each module whose debug file may be found by its build id."""
    columns = profile.timeline.columns()
    maps = columns["kind"] == Change.MAP
    size = (columns["end"] - columns["start"])[maps]
    rows = zip(columns["module"][maps].tolist(), columns["offset"][maps].tolist(), size.tolist(), strict=True)
    found: dict[int, list[tuple[int, int]]] = {}
    for row, offset, length in sorted(set(rows)):
        module = profile.modules[row]
        if module.kind is ModuleKind.FILE and module.build_id and len(found.setdefault(row, [])) < _MAPPINGS:
            found[row].append((offset, length))
    return found


def _row(capture: CaptureFile, host: str, when: datetime) -> dict[str, Any]:
    """A row of the captures table without counts."""
    labels = capture.labels
    numbers = {c.name: 0 for c in TABLES["captures"].columns if c.type == "UBIGINT"}
    named = {"service": labels.service, "host": host, "version": labels.version}
    numbers |= {"recorded": labels.recorded, "stands_for": labels.stands_for}
    texts = {"digest": capture.digest, "file": visible(os.path.basename(capture.path)), "format": "", "event": None}
    return {**numbers, **named, **texts, "time": when, "notes": "", "refused": False}


def _recording_time(profile: Profile) -> datetime | None:
    """When the capture began, where it says so."""
    ns = profile.clock.wall_ns(profile.start) if profile.start is not None else None
    try:
        return None if ns is None else datetime.fromtimestamp(ns // 1000 / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _modification_time(path: str) -> datetime:
    try:
        return datetime.fromtimestamp(int(os.stat(path).st_mtime), UTC)
    except (OSError, OverflowError, ValueError):
        return datetime.fromtimestamp(0, UTC)
