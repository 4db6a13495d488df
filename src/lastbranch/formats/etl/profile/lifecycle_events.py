"""Processes, threads and images of a profile as kernel events: their changes, and the lists of those that exist when
the log begins and ends (rundown: DCStart, DCEnd).

An ETW process starts empty and never replaces its program. So a forked child loads again what it shares with its
parent, and an exec unloads everything. Images are the mapped pieces of files, under the names of their modules. A
Mapping event before an image says what the image cannot (`supplement`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....model import KERNEL, KERNEL_HALF, Change, Module, ModuleKind, Profile, kernel_map_start
from ..kernel.hooks import DC_END, DC_START, END, IMAGE, IMAGE_ID, LOAD, PROCESS, START, THREAD, UNLOAD
from ..kernel.layouts import kernel_event
from ..single_event import Event
from .supplement import load_bias, module_fields, segment_fields, supplement_event

__all__ = ["LifecycleEvents"]


# -- Images


_LAST = (1 << 64) - 1
_DBG_ID, _IMAGE_ID = 36, 0
_VERSIONS = {PROCESS: 4, IMAGE: 3, IMAGE_ID: 2}


@dataclass(slots=True)
class _Mapping:
    """A current mapping of a process, or (``module`` -1) the removal of a part of one.

    ``pid`` -1: the kernel half of every process.
    """

    pid: int
    start: int
    end: int
    module: int
    offset: int

    @property
    def base(self) -> int:
        """The start of its image."""
        return kernel_map_start(self.start, self.end, self.offset) if self.pid < 0 else self.start


def _apply(space: list[_Mapping], new: _Mapping) -> None:
    """Add a mapping, or a removal, to those of a process. Mappings that it covers whole are gone."""
    space[:] = [m for m in space if not (new.start <= m.start and m.end <= new.end)]
    if new.module >= 0 or any(m.start < new.end and new.start < m.end for m in space):
        space.append(new)


class _ImageEvents:
    """Image events of mappings, with those that merging tools add about a binary and our own.

    ``begin``: the tick of mappings that exist when the log begins. ``pointer``: the pointer size.
    """

    def __init__(self, profile: Profile, begin: int, pointer: int) -> None:
        self._profile, self._begin, self._pointer = profile, begin, pointer
        self._supplemented = _needs_supplement(profile)
        self._described: set[int] = set()

    def forget_modules(self) -> None:
        """Describe each module again before its next image."""
        self._described.clear()

    def change(self, since: int, mapping: _Mapping) -> list[Event]:
        """A load (``since`` 0: DCStart) or unload, after events with what a load cannot say."""
        time = since or self._begin
        if mapping.module < 0:
            return [self.image(UNLOAD, time, mapping)]
        events: list[Event] = []
        row, owner = mapping.module, max(mapping.pid, 0)
        module = self._profile.modules[row]
        if self._supplemented:
            if row not in self._described:
                events.append(supplement_event("Module", time, module_fields(row, module)))
                if module.segments:
                    events.append(supplement_event("Segments", time, segment_fields(row, module.segments)))
                self._described.add(row)
            start, end, offset = mapping.start, mapping.end, mapping.offset
            fields = {
                "Module": row,
                "Owner": owner,
                "ImageBase": mapping.base,
                "Since": since,
                "ProcessID": mapping.pid,
                "Start": start,
                "End": end,
                "FileOffset": offset,
                "LoadBias": load_bias(module, start, end, offset),
            }
            events.append(supplement_event("Mapping", time, fields))
        events += self._identity(time, owner, mapping.base, module)
        return [*events, self.image(LOAD if since else DC_START, time, mapping)]

    def _identity(self, time: int, owner: int, base: int, module: Module) -> Iterator[Event]:
        """The events that merging adds about a binary: its PDB, and its original name with time stamp and size."""
        if module.pdb_guid is None:
            return
        known = {"ImageBase": base, "ProcessID": owner & 0xFFFFFFFF}
        size = {"ImageSize": module.size, "TimeDateStamp": module.timestamp, "OriginalFileName": module.short}
        yield kernel_event((IMAGE_ID, _IMAGE_ID), time, self._pointer, known | size, version=_VERSIONS[IMAGE_ID])
        pdb = {"GuidSig": module.pdb_guid, "Age": module.pdb_age, "PDBFileName": module.pdb_name}
        yield kernel_event((IMAGE_ID, _DBG_ID), time, self._pointer, known | pdb, version=_VERSIONS[IMAGE_ID])

    def image(self, kind: int, time: int, mapping: _Mapping) -> Event:
        """An image event of the type ``kind``."""
        fields: dict[str, Any] = {
            "ImageBase": mapping.base,
            "ImageSize": max(min(mapping.end, _LAST) - mapping.base, 0),
            "ProcessID": max(mapping.pid, 0),
            "FileName": "",
        }
        if mapping.module >= 0:
            module = self._profile.modules[mapping.module]
            fields |= {"ImageChecksum": module.checksum, "TimeDateStamp": module.timestamp}
            fields |= {"DefaultBase": module.image_base, "FileName": module.name}
        key = (PROCESS if kind == LOAD else IMAGE, kind)
        return kernel_event(key, time, self._pointer, fields, version=_VERSIONS[IMAGE])


def _needs_supplement(profile: Profile) -> bool:
    """Whether image events alone would lose something. They suffice for files that are mapped from their start, each in
    one process. Nothing is known of a profile that still grows."""
    plain = bool(profile.modules) and all(
        m.kind is ModuleKind.FILE and not m.build_id and not m.code_selector for m in profile.modules
    )
    columns = profile.timeline.columns()
    maps = columns["kind"] == Change.MAP
    return not plain or bool((columns["offset"][maps] != 0).any() or (columns["pid"][maps] < 0).any())


# -- Processes and threads


_THREAD_NAME = 72
_VERSION = 4
_NOT_KNOWN = {"UserSID": "", "CommandLine": "", "PackageFullName": "", "ApplicationID": ""}


@dataclass(slots=True)
class _Process:
    parent: int
    name: str = ""
    mappings: list[_Mapping] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)


class LifecycleEvents:
    """Makes the events: `until` those up to a time, in time order; `end` the lists at the log's end."""

    def __init__(self, profile: Profile, begin: int, pointer: int) -> None:
        self._profile, self._begin, self._pointer = profile, begin, pointer
        self.reload()
        self._processes: dict[int, _Process] = {}
        self._kernel: list[_Mapping] = []
        self._images = _ImageEvents(profile, begin, pointer)
        self._process_of: dict[int, int] = {}
        """Thread id -> process id, by the events so far."""

    # -- in time order

    def reload(self) -> None:
        """Continue with the profile's present timeline. Its former changes are written and need not be in it."""
        self._columns = self._profile.timeline.columns()
        self._order = np.argsort(self._columns["time"], kind="stable")
        self._times = self._columns["time"][self._order]
        self._done = 0
        self._first_names = self._names_at_start()

    def until(self, time: int) -> list[Event]:
        """The events of all changes up to and with ``time`` since the last call."""
        past = int(np.searchsorted(self._times, time, "right"))
        rows, self._done = self._order[self._done : past], max(past, self._done)
        events: list[Event] = []
        first = rows[self._columns["time"][rows] <= 0]
        if len(first):
            events += self._rundown(first)
        later = rows[len(first) :]
        for number, row in zip(later.tolist(), self._changes(later), strict=True):
            events += self._change(row, self._first_names.get(number))
        return events

    def _changes(self, rows: Any) -> Iterator[dict[str, int]]:
        """``rows`` of the timeline as dicts."""
        for values in zip(*(column[rows].tolist() for column in self._columns.values()), strict=True):
            yield dict(zip(self._columns, values, strict=True))

    def _names_at_start(self) -> dict[int, str]:
        """By row of the timeline: the names of new processes, where these do not have their parents'."""
        columns, order = self._columns, self._order
        first, second = order[:-1], order[1:]
        named = (columns["kind"][first] == Change.FORK) & (columns["kind"][second] == Change.NAME)
        named &= (columns["time"][first] == columns["time"][second]) & (columns["pid"][first] == columns["pid"][second])
        named &= columns["tid"][second] == columns["pid"][second]
        names = self._profile.timeline.names
        return {int(a): names[columns["module"][b]] for a, b in zip(first[named], second[named], strict=True)}

    def thread_of_sample(self, time: int, pid: int, tid: int) -> list[Event]:
        """The events that make ``tid`` a thread of ``pid`` at ``time``; none if it is already a thread of this
        process."""
        before = self._process_of.get(tid)
        if pid < 0 or tid < 0 or before == pid:
            return []
        return self._introduce(pid, time) + self._thread(START if before is not None else DC_START, time, pid, tid, "")

    def end(self, time: int) -> Iterator[Event]:
        """The lists of what exists at the end."""
        yield from (self._images.image(DC_END, time, mapping) for mapping in self._kernel if mapping.module >= 0)
        for pid, process in self._processes.items():
            yield self._process(DC_END, time, pid, process)
            for tid, name in process.threads.items():
                yield from self._thread(DC_END, time, pid, tid, name)
            yield from (self._images.image(DC_END, time, m) for m in process.mappings if m.module >= 0)

    def _rundown(self, rows: Any) -> list[Event]:
        """The lists of what existed when the log began, from the changes that led to it."""
        for row in self._changes(rows):
            self._change(row)
        self._images.forget_modules()
        events = [event for mapping in self._kernel for event in self._images.change(0, mapping)]
        for pid, process in self._processes.items():
            events.append(self._process(DC_START, self._begin, pid, process))
            for tid, name in process.threads.items():
                events += self._thread(DC_START, self._begin, pid, tid, name)
            for mapping in process.mappings:
                events += self._images.change(0, mapping)
        return events

    def _change(self, row: dict[str, int], first_name: str | None = None) -> list[Event]:
        """The events of one change; ``first_name``: that of a new process."""
        time, pid, tid, kind = max(row["time"], self._begin), row["pid"], row["tid"], row["kind"]
        since = 0 if row["time"] <= 0 else time
        if pid < KERNEL:  # in a guest
            return []
        if kind in (Change.MAP, Change.UNMAP):
            module = row["module"] if kind == Change.MAP else -1
            mapping = _Mapping(pid, row["start"], row["end"], module, row["offset"])
            if pid < 0 or mapping.start >= KERNEL_HALF:
                _apply(self._kernel, mapping)
                return self._images.change(since, mapping)
            events = self._introduce(pid, time)
            _apply(self._processes[pid].mappings, mapping)
            return events + self._images.change(since, mapping)
        if pid < 0:  # no process has such an id, and the log no place for it
            return []
        if kind == Change.RAN:
            fields = {"ProcessID": pid, "ThreadID": tid, "At": time, "Nanoseconds": row["start"]}
            return [supplement_event("CpuTime", time, fields)]
        if kind == Change.FORK:
            return self._fork(since, row["parent"], pid, tid, first_name, copies=not row["offset"])
        events = self._introduce(pid, time)
        process = self._processes[pid]
        if kind == Change.EXEC:
            gone, process.mappings = process.mappings, []
            return events + [self._images.image(UNLOAD, time, m) for m in gone if m.module >= 0]
        if kind == Change.EXIT:
            events += self._thread(END, time, pid, tid, process.threads.get(tid, ""))
            process.threads.pop(tid, None)
            if pid == tid:
                events.append(self._process(END, time, pid, process))
            if not process.threads:
                self._processes.pop(pid)
        elif kind == Change.NAME:
            name = self._profile.timeline.names[row["module"]]
            if pid == tid:
                process.name = name
            process.threads[tid] = name
            events.append(self._thread_event(_THREAD_NAME, time, pid, tid, name, version=2))
        return events

    def _fork(self, since: int, parent: int, pid: int, tid: int, name: str | None, *, copies: bool) -> list[Event]:
        time = since or self._begin
        if pid == parent:
            events = self._introduce(pid, time)
            return events + self._thread(START, time, pid, tid, self._processes[pid].name)
        old = self._processes.get(parent)
        process = self._processes[pid] = _Process(parent, name if name is not None else old.name if old else "")
        events = [self._process(START, time, pid, process), *self._thread(START, time, pid, tid, process.name)]
        if old is not None and copies:
            process.mappings = [replace(mapping, pid=pid) for mapping in old.mappings if mapping.module >= 0]
            for mapping in process.mappings:
                events += self._images.change(since, mapping)
        return events

    def _introduce(self, pid: int, time: int) -> list[Event]:
        """The list entry of a process that no event has named yet."""
        if pid in self._processes or pid < 0:
            return []
        process = self._processes[pid] = _Process(-1)
        return [self._process(DC_START, time, pid, process)]

    # -- events

    def _process(self, kind: int, time: int, pid: int, process: _Process) -> Event:
        fields: dict[str, Any] = {
            "ProcessID": pid & 0xFFFFFFFF,
            "ParentID": max(process.parent, 0),
            "ImageFileName": process.name,
            **_NOT_KNOWN,
        }
        return kernel_event((PROCESS, kind), time, self._pointer, fields, version=_VERSION)

    def _thread(self, kind: int, time: int, pid: int, tid: int, name: str) -> list[Event]:
        process = self._processes.get(pid)
        if process is not None and kind in (START, DC_START):
            process.threads[tid] = name
            self._process_of[tid] = pid
        return [self._thread_event(kind, time, pid, tid, name, version=_VERSION)]

    def _thread_event(self, kind: int, time: int, pid: int, tid: int, name: str, *, version: int) -> Event:
        fields = {"ProcessID": pid & 0xFFFFFFFF, "ThreadID": tid & 0xFFFFFFFF, "ThreadName": name}
        return kernel_event((THREAD, kind), time, self._pointer, fields, version=version)
