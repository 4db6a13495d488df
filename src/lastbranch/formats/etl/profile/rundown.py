"""The changes of a profile (processes, threads, mappings) as kernel events, with the lists of what is there at begin
and end of the log (rundown: DCStart, DCEnd).

ETW's processes start empty and never replace their program: what a forked child shares with its parent is loaded again
in the child, and an exec unloads everything. Images are the mapped pieces, under their own names; what of them images
cannot say goes into a Mapping event ahead (`supplement_events`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....model import KERNEL, KERNEL_HALF, Change, Module, ModuleKind, Profile, kernel_map_start
from ..event import Event
from ..kernel.hooks import DC_END, DC_START, END, IMAGE, IMAGE_ID, LOAD, PROCESS, START, THREAD, UNLOAD
from ..kernel.layouts import kernel_event
from .supplement_events import load_bias, mapping_fields, module_fields, segment_fields, supplement_event

__all__ = ["Lives"]


# -- Mappings of a process as image events, with what merging tools add about a binary, and ours where images cannot say
# it (`supplement_events`)


_LAST = (1 << 64) - 1
_DBG_ID, _IMAGE_ID = 36, 0
_VERSIONS = {PROCESS: 4, IMAGE: 3, IMAGE_ID: 2}


@dataclass(slots=True)
class Mapped:
    """A mapping of a process that still holds, or (``module`` -1) the removal of a part of one.

    ``pid`` -1 stands for the kernel half of every process.
    """

    pid: int
    start: int
    end: int
    module: int
    offset: int


def put(space: list[Mapped], new: Mapped) -> None:
    """Add a mapping, or a removal, to those of a process; what it covers whole is gone."""
    space[:] = [m for m in space if not (new.start <= m.start and m.end <= new.end)]
    if new.module >= 0 or any(m.start < new.end and new.start < m.end for m in space):
        space.append(new)


class ImageEvents:
    """Makes the events. ``begin`` is the tick of what was there all along, ``pointer`` the size of pointers."""

    def __init__(self, profile: Profile, begin: int, pointer: int) -> None:
        self._profile, self._begin, self._pointer = profile, begin, pointer
        self._supplemented = _needs_supplement(profile)
        self._said: set[int] = set()

    def again(self) -> None:
        """What modules are was told to nobody yet."""
        self._said.clear()

    def changed(self, since: int, mapped: Mapped) -> list[Event]:
        """A load (rundown: DCStart) or unload, and ahead of it what a load cannot say."""
        time = since or self._begin
        if mapped.module < 0:
            return [self.image(UNLOAD, time, mapped)]
        events: list[Event] = []
        row, owner, base = mapped.module, max(mapped.pid, 0), base_of(mapped)
        module = self._profile.modules[row]
        if self._supplemented:
            if row not in self._said:
                events.append(supplement_event("Module", time, module_fields(row, module)))
                if module.segments:
                    events.append(supplement_event("Segments", time, segment_fields(row, module.segments)))
                self._said.add(row)
            place = (mapped.pid, mapped.start, mapped.end, mapped.offset)
            bias = load_bias(module, *place[1:]) if module.segments else 0
            fields = mapping_fields(row, owner, base, since, *place, bias)
            events.append(supplement_event("Mapping", time, fields))
        events += self._identity(time, owner, base, module)
        return [*events, self.image(LOAD if since else DC_START, time, mapped)]

    def _identity(self, time: int, owner: int, base: int, module: Module) -> Iterator[Event]:
        """What merging adds about a binary: its PDB, and its original name with time stamp and size."""
        if module.pdb_guid is None:
            return
        known = {"ImageBase": base, "ProcessID": owner & 0xFFFFFFFF}
        size = {"ImageSize": module.size, "TimeDateStamp": module.timestamp, "OriginalFileName": module.short}
        yield kernel_event((IMAGE_ID, _IMAGE_ID), time, self._pointer, known | size, version=_VERSIONS[IMAGE_ID])
        pdb = {"GuidSig": module.pdb_guid, "Age": module.pdb_age, "PDBFileName": module.pdb_name}
        yield kernel_event((IMAGE_ID, _DBG_ID), time, self._pointer, known | pdb, version=_VERSIONS[IMAGE_ID])

    def image(self, kind: int, time: int, mapped: Mapped) -> Event:
        base = base_of(mapped)
        fields: dict[str, Any] = {
            "ImageBase": base, "ImageSize": max(min(mapped.end, _LAST) - base, 0), "ProcessID": max(mapped.pid, 0),
            "FileName": "",
        }  # fmt: skip
        if mapped.module >= 0:
            module = self._profile.modules[mapped.module]
            fields |= {"ImageChecksum": module.checksum, "TimeDateStamp": module.timestamp}
            fields |= {"DefaultBase": module.image_base, "FileName": module.name}
        key = (PROCESS if kind == LOAD else IMAGE, kind)
        return kernel_event(key, time, self._pointer, fields, version=_VERSIONS[IMAGE])


def base_of(mapped: Mapped) -> int:
    return kernel_map_start(mapped.start, mapped.end, mapped.offset) if mapped.pid < 0 else mapped.start


def _needs_supplement(profile: Profile) -> bool:
    """Whether images alone would not say all: they are of files, mapped from their begin, and each of one process. Of
    a profile that grows nothing is known."""
    plain = bool(profile.modules) and all(
        m.kind is ModuleKind.FILE and not m.build_id and not m.code_selector for m in profile.modules
    )
    columns = profile.timeline.columns()
    maps = columns["kind"] == Change.MAP
    return not plain or bool((columns["offset"][maps] != 0).any() or (columns["pid"][maps] < 0).any())


_THREAD_NAME = 72
_VERSION = 4
_NOBODY = {"UserSID": "", "CommandLine": "", "PackageFullName": "", "ApplicationID": ""}


@dataclass(slots=True)
class _Life:
    parent: int
    name: str = ""
    mapped: list[Mapped] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)


class Lives:
    """Makes the events. `until` gives those up to a time, in time order; `end` the lists at the log's end."""

    def __init__(self, profile: Profile, begin: int, pointer: int) -> None:
        self._profile, self._begin, self._pointer = profile, begin, pointer
        self.follow()
        self._lives: dict[int, _Life] = {}
        self._kernel: list[Mapped] = []
        self._images = ImageEvents(profile, begin, pointer)
        self.process_of: dict[int, int] = {}
        """Thread id -> process id, by what was written so far."""

    # -- in time order

    def follow(self) -> None:
        """Go on with what the profile's timeline has now: what it had before was given, and need not be in it."""
        self._columns = self._profile.timeline.columns()
        self._order = np.argsort(self._columns["time"], kind="stable")
        self._times = self._columns["time"][self._order]
        self._done = 0
        self._born = self._names_at_birth()

    def until(self, time: int) -> list[Event]:
        """The events of all changes up to and with ``time`` that were not given yet."""
        behind = int(np.searchsorted(self._times, time, "right"))
        rows, self._done = self._order[self._done : behind], max(behind, self._done)
        events: list[Event] = []
        first = rows[self._columns["time"][rows] <= 0]
        if len(first):
            events += self._before(first)
        later = rows[len(first) :]
        for number, *values in zip(later.tolist(), *(c[later].tolist() for c in self._columns.values()), strict=True):
            row = dict(zip(self._columns, values, strict=True))
            events += self._change(row, self._born.get(number))
        return events

    def _names_at_birth(self) -> dict[int, str]:
        """By row of the timeline: the names that processes have from their begin on, which are not their parents'."""
        columns, order = self._columns, self._order
        first, second = order[:-1], order[1:]
        named = (columns["kind"][first] == Change.FORK) & (columns["kind"][second] == Change.NAME)
        named &= (columns["time"][first] == columns["time"][second]) & (columns["pid"][first] == columns["pid"][second])
        named &= columns["tid"][second] == columns["pid"][second]
        names = self._profile.timeline.names
        return {int(a): names[columns["module"][b]] for a, b in zip(first[named], second[named], strict=True)}

    def thread_of_sample(self, time: int, pid: int, tid: int) -> list[Event]:
        """What must be said so that thread ``tid`` is one of ``pid`` at ``time``."""
        before = self.process_of.get(tid)
        if pid < 0 or tid < 0 or before == pid:
            return []
        events = self._life(pid, time)
        return events + self._thread(START if before is not None else DC_START, time, pid, tid, "")

    def end(self, time: int) -> Iterator[Event]:
        """The lists of what is there at the end."""
        for mapped in self._kernel:
            if mapped.module >= 0:
                yield self._images.image(DC_END, time, mapped)
        for pid, life in self._lives.items():
            yield self._process(DC_END, time, pid, life)
            for tid, name in life.threads.items():
                yield from self._thread(DC_END, time, pid, tid, name)
            for mapped in life.mapped:
                if mapped.module >= 0:
                    yield self._images.image(DC_END, time, mapped)

    def _before(self, rows: Any) -> list[Event]:
        """What was there when the log began, as lists: the changes that led to it are not told."""
        for values in zip(*(self._columns[name][rows].tolist() for name in self._columns), strict=True):
            self._change(dict(zip(self._columns, values, strict=True)))
        self._images.again()
        events: list[Event] = []
        for mapped in self._kernel:
            events += self._images.changed(0, mapped)
        for pid, life in self._lives.items():
            events.append(self._process(DC_START, self._begin, pid, life))
            for tid, name in life.threads.items():
                events += self._thread(DC_START, self._begin, pid, tid, name)
            for mapped in life.mapped:
                events += self._images.changed(0, mapped)
        return events

    def _change(self, row: dict[str, int], born: str | None = None) -> list[Event]:
        """The events of one change; ``born``: the name that a new process has at once."""
        time, pid, tid, kind = max(row["time"], self._begin), row["pid"], row["tid"], row["kind"]
        since = 0 if row["time"] <= 0 else time
        if pid < KERNEL:  # in a guest
            return []
        if kind in (Change.MAP, Change.UNMAP):
            module = row["module"] if kind == Change.MAP else -1
            mapped = Mapped(pid, row["start"], row["end"], module, row["offset"])
            if pid < 0 or mapped.start >= KERNEL_HALF:
                put(self._kernel, mapped)
                return self._images.changed(since, mapped)
            events = self._life(pid, time)
            put(self._lives[pid].mapped, mapped)
            return events + self._images.changed(since, mapped)
        if pid < 0:  # no process has such an id, and the log no place for it
            return []
        if kind == Change.FORK:
            return self._fork(since, row["parent"], pid, tid, born, copies=not row["offset"])
        events = self._life(pid, time)
        life = self._lives[pid]
        if kind == Change.EXEC:
            gone, life.mapped = life.mapped, []
            return events + [self._images.image(UNLOAD, time, m) for m in gone if m.module >= 0]
        if kind == Change.EXIT:
            events += self._thread(END, time, pid, tid, life.threads.get(tid, ""))
            life.threads.pop(tid, None)
            if pid == tid:
                events.append(self._process(END, time, pid, life))
            if not life.threads:
                self._lives.pop(pid)
        elif kind == Change.NAME:
            name = self._profile.timeline.names[row["module"]]
            if pid == tid:
                life.name = name
            life.threads[tid] = name
            fields = {"ProcessID": pid & 0xFFFFFFFF, "ThreadID": tid & 0xFFFFFFFF, "ThreadName": name}
            events.append(kernel_event((THREAD, _THREAD_NAME), time, self._pointer, fields, version=2))
        return events

    def _fork(self, since: int, parent: int, pid: int, tid: int, born: str | None, *, copies: bool) -> list[Event]:
        time = since or self._begin
        if pid == parent:
            events = self._life(pid, time)
            return events + self._thread(START, time, pid, tid, self._lives[pid].name)
        old = self._lives.get(parent)
        life = self._lives[pid] = _Life(parent, born if born is not None else old.name if old else "")
        events = [self._process(START, time, pid, life), *self._thread(START, time, pid, tid, life.name)]
        if old is not None and copies:
            life.mapped = [replace(mapped, pid=pid) for mapped in old.mapped if mapped.module >= 0]
            for mapped in life.mapped:
                events += self._images.changed(since, mapped)
        return events

    def _life(self, pid: int, time: int) -> list[Event]:
        """The list entry of a process that nothing told of before."""
        if pid in self._lives or pid < 0:
            return []
        life = self._lives[pid] = _Life(-1)
        return [self._process(DC_START, time, pid, life)]

    # -- events

    def _process(self, kind: int, time: int, pid: int, life: _Life) -> Event:
        fields: dict[str, Any] = {
            "ProcessID": pid & 0xFFFFFFFF, "ParentID": max(life.parent, 0), "ImageFileName": life.name, **_NOBODY,
        }  # fmt: skip
        return kernel_event((PROCESS, kind), time, self._pointer, fields, version=_VERSION)

    def _thread(self, kind: int, time: int, pid: int, tid: int, name: str) -> list[Event]:
        life = self._lives.get(pid)
        if life is not None and kind in (START, DC_START):
            life.threads[tid] = name
            self.process_of[tid] = pid
        fields = {"ProcessID": pid & 0xFFFFFFFF, "ThreadID": tid & 0xFFFFFFFF, "ThreadName": name}
        return [kernel_event((THREAD, kind), time, self._pointer, fields, version=_VERSION)]
