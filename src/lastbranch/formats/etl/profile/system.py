"""Events that describe the system, to the tables of a profile: processes, threads, images, machine, counters.

`HANDLERS` has by (group, type) what takes an event in, and the fields without which the event says nothing. An event
whose layout or payload lacks one of those fields is counted as too short, and otherwise left alone. Rundown events
(DCStart, DCEnd) list what existed all along, so they hold from time 0. Events at the end repeat known facts, or add
facts that the log's start left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from ....arrays import insertion_points
from ....model import KERNEL, KERNEL_HALF_32, Array, Change, Module, Profile, Timeline
from ..decode import Decoder, batches_of
from ..events.columns import EventBlock
from ..kernel.hooks import (
    DC_END,
    DC_START,
    END,
    IMAGE,
    IMAGE_ID,
    LOAD,
    PROCESS,
    SESSION,
    START,
    SYS_CONFIG,
    SYS_CONFIG_EX,
    THREAD,
    THREAD_LIFE,
    UNLOAD,
    Key,
)
from ..single_event import Event

__all__ = ["HANDLERS", "Handler", "System", "ThreadEvents", "ThreadTable"]


_LAST = (1 << 64) - 1
_IMAGE_BYTES, _ID_BYTES = 2200, 600

# KPROFILE_SOURCE: those whose number is the same on all machines. The log's own names have precedence.
_SOURCES = (
    "Timer", "AlignmentFixup", "TotalIssues", "PipelineDry", "LoadInstructions", "PipelineFrozen",
    "BranchInstructions", "TotalNonissues", "DcacheMisses", "IcacheMisses", "CacheMisses", "BranchMispredictions",
    "StoreInstructions", "FpInstructions", "IntegerInstructions", "2Issue", "3Issue", "4Issue", "SpecialInstructions",
    "TotalCycles", "IcacheIssues", "DcacheAccesses", "MemoryBarrierCycles", "LoadLinkedIssues",
)  # fmt: skip


@dataclass(slots=True)
class _Image:
    """An image event. It waits until volumes and PDB identities are known, which merging may write anywhere."""

    event: Event
    fields: dict[str, Any]
    start: int | None


_File = tuple[str, int, int]
"""Path in lower case, size, checksum."""
_Pdb = tuple[UUID, int, str]


@dataclass(slots=True)
class System:
    """The system events of a log so far."""

    profile: Profile
    sources: dict[int, str] = field(default_factory=lambda: dict(enumerate(_SOURCES)))
    masks: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    volumes: dict[str, str] = field(default_factory=dict)
    short: Counter[Key] = field(default_factory=Counter)
    """Events without all fields that they must have."""
    _images: list[_Image] = field(default_factory=list)
    # By process, base and time: an identity has the time of its image event.
    _pdbs: dict[tuple[int, int, int], _Pdb] = field(default_factory=dict)
    _stamps: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _processes: set[int] = field(default_factory=set)

    def handle(self, key: Key, event: Event, fields: dict[str, Any]) -> None:
        """Add one event, whose ``key`` is in `HANDLERS`; ``fields``: as `Decoder.decode` returns them."""
        handler = HANDLERS[key]
        if handler.required <= fields.keys():
            handler.take(self, event, fields)
        else:
            self.short[key] += 1

    @property
    def memory(self) -> int:
        """Bytes of the images, about, and of the modules and mappings made of them."""
        return _IMAGE_BYTES * len(self._images) + _ID_BYTES * (len(self._pdbs) + len(self._stamps))

    # -- processes and threads

    def process(self, event: Event, f: dict[str, Any]) -> None:
        pid, timeline = int(f["ProcessID"]), self.profile.timeline
        kind = event.opcode
        if kind == END:
            timeline.add(Change.EXIT, event.time, pid, tid=pid)
            return
        if kind == DC_END and pid in self._processes:
            return
        self._processes.add(pid)
        if kind == START:
            timeline.add(Change.FORK, event.time, pid, tid=pid, parent=int(f["ParentID"]), offset=1)
        name = str(f.get("ImageFileName", "")) or ("Idle" if pid == 0 else "")
        timeline.name(event.time if kind == START else 0, pid, pid, name)

    def thread_name(self, event: Event, f: dict[str, Any]) -> None:
        self.profile.timeline.name(event.time, int(f["ProcessID"]), int(f["ThreadID"]), str(f["ThreadName"]))

    # -- images

    def image(self, event: Event, f: dict[str, Any]) -> None:
        loaded = event.opcode == LOAD
        self._images.append(_Image(event, f, event.time if loaded or event.opcode == UNLOAD else None))

    def rsds(self, event: Event, f: dict[str, Any]) -> None:
        key = int(f["ProcessID"]), int(f["ImageBase"]), event.time
        self._pdbs[key] = f["GuidSig"], int(f["Age"]), str(f["PDBFileName"])

    def image_id(self, event: Event, f: dict[str, Any]) -> None:
        self._stamps[int(f["ProcessID"]), int(f["ImageBase"]), event.time] = int(f["TimeDateStamp"])

    def finish(self) -> None:
        """Map the images, after the last event."""
        rows: dict[tuple[Any, ...], int] = {}
        files = self._files()
        mapped: set[tuple[int, int]] = set()
        for image in sorted(self._images, key=lambda i: (i.event.opcode == DC_END, i.event.time)):
            f = image.fields
            base, size = int(f["ImageBase"]), int(f["ImageSize"])
            pid, end = int(f.get("ProcessID", 0)), min(base + size, _LAST)
            # Images of process 0 are the kernel's. The address of a 64-bit one says so by itself.
            narrow = image.event.pointer_size == 4 and pid == 0 and base >= KERNEL_HALF_32
            owner = KERNEL if narrow else pid
            if image.event.opcode == UNLOAD:
                self.profile.timeline.add(Change.UNMAP, image.event.time, owner, start=base, end=end)
                continue
            if image.event.opcode == DC_END and (pid, base) in mapped:
                continue
            mapped.add((pid, base))
            module = self._module(rows, files, (pid, base, image.event.time), f)
            time = image.start or 0
            self.profile.timeline.add(Change.MAP, time, owner, module=module, start=base, end=end)

    def _files(self) -> dict[_File, tuple[set[int], set[_Pdb]]]:
        """The time stamps and PDBs that the events of each file have. Windows leaves them out of some of its events."""
        files: dict[_File, tuple[set[int], set[_Pdb]]] = {}
        for image in self._images:
            f = image.fields
            where = int(f.get("ProcessID", 0)), int(f["ImageBase"]), image.event.time
            stamps, pdbs = files.setdefault(self._file(f), (set(), set()))
            if stamp := self._stamp(where, f):
                stamps.add(stamp)
            if pdb := self._pdbs.get(where):
                pdbs.add(pdb)
        return files

    def _file(self, f: dict[str, Any]) -> _File:
        path = self.dos_path(str(f.get("FileName", "")))
        return path.lower(), int(f["ImageSize"]), int(f.get("ImageChecksum", 0))

    def _stamp(self, where: tuple[int, int, int], f: dict[str, Any]) -> int:
        return int(f.get("TimeDateStamp", 0)) or self._stamps.get(where, 0)

    def _module(
        self,
        rows: dict[tuple[Any, ...], int],
        files: dict[_File, tuple[set[int], set[_Pdb]]],
        where: tuple[int, int, int],
        f: dict[str, Any],
    ) -> int:
        stamp, found = self._stamp(where, f), self._pdbs.get(where)
        file = name, size, checksum = self._file(f)
        stamps, pdbs = files[file]
        if checksum and len(stamps) <= 1 and len(pdbs) <= 1:  # the events that say nothing mean the same file
            stamp, found = stamp or next(iter(stamps), 0), found or next(iter(pdbs), None)
        guid, age, pdb = found or (None, 0, "")
        key = (name, stamp, size, guid, age)
        row = rows.get(key)
        if row is None:
            row = rows[key] = len(self.profile.modules)
            path = self.dos_path(str(f.get("FileName", "")))
            module = Module(path, pdb_guid=guid, pdb_age=age, pdb_name=pdb, timestamp=stamp, size=size)
            module.checksum, module.image_base = checksum, int(f.get("DefaultBase", 0))
            module.missing = "not searched: addresses are relative to the image"
            self.profile.modules.append(module)
        return row

    def dos_path(self, path: str) -> str:
        """``\\Device\\HarddiskVolume2\\x`` as ``C:\\x``, where the log has the volume's mount point."""
        for nt, dos in self.volumes.items():
            rest = path[len(nt) :]
            whole = nt.endswith("\\") or rest[:1] in ("", "\\")  # volume 1 is not volume 10
            if nt and whole and path.lower().startswith(nt.lower()):
                return dos + rest
        return path

    # -- machine and session

    def cpu(self, event: Event, f: dict[str, Any]) -> None:
        machine = self.profile.machine
        machine.host = str(f.get("ComputerName", ""))
        machine.cpus_online = machine.cpus_available = int(f["NumberOfProcessors"])
        machine.memory = int(f.get("MemSize", 0)) << 20
        machine.page_size = int(f.get("PageSize", 0)) or machine.page_size
        machine.cpu_description = f"{int(f['MHz'])} MHz"

    def volume(self, event: Event, f: dict[str, Any]) -> None:
        if f["DosPath"]:
            self.volumes[str(f["NtPath"])] = str(f["DosPath"])

    def build(self, event: Event, f: dict[str, Any]) -> None:
        self.profile.machine.os_release = str(f["BuildLab"])
        self.profile.machine.os = str(f["ProductName"]) or "Windows"

    def group_masks(self, event: Event, f: dict[str, Any]) -> None:
        words = tuple(int(f.get(f"GroupMask{n}", 0)) for n in range(1, 9))
        self.masks.append(("end" if event.opcode == 0x20 else "start", words))


class Handler(NamedTuple):
    """What takes an event in. ``take`` finds all ``required`` fields; of others each may be missing."""

    take: Callable[[System, Event, dict[str, Any]], None]
    required: frozenset[str]


def _handler(take: Callable[[System, Event, dict[str, Any]], None], *required: str) -> Handler:
    return Handler(take, frozenset(required))


_PROCESS = _handler(System.process, "ProcessID")
_IMAGE = _handler(System.image, "ImageBase", "ImageSize")
_MASKS = _handler(System.group_masks, "GroupMask1")

HANDLERS: dict[Key, Handler] = {
    (PROCESS, START): _handler(System.process, "ProcessID", "ParentID"),
    **{(PROCESS, kind): _PROCESS for kind in (END, DC_START, DC_END)},
    (THREAD, 0x48): _handler(System.thread_name, "ProcessID", "ThreadID", "ThreadName"),
    (PROCESS, LOAD): _IMAGE,
    **{(IMAGE, kind): _IMAGE for kind in (UNLOAD, DC_START, DC_END, LOAD)},
    (IMAGE_ID, 0): _handler(System.image_id, "ProcessID", "ImageBase", "TimeDateStamp"),
    (IMAGE_ID, 36): _handler(System.rsds, "ProcessID", "ImageBase", "GuidSig", "Age", "PDBFileName"),
    (SYS_CONFIG, 0x0A): _handler(System.cpu, "MHz", "NumberOfProcessors"),
    (SYS_CONFIG_EX, 32): _handler(System.build, "BuildLab", "ProductName"),
    (SYS_CONFIG_EX, 35): _handler(System.volume, "NtPath", "DosPath"),
    (SESSION, 0x05): _MASKS,
    (SESSION, 0x20): _MASKS,
}


# -- The process of a thread: samples have the thread alone


class ThreadTable:
    """The process that a thread id belonged to at a time."""

    def __init__(self, threads: NDArray[np.int64] | None = None) -> None:
        """``threads``: (tid, time from which it is known, pid) of each start, (n, 3)."""
        rows = np.empty((0, 3), np.int64) if threads is None else threads
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        self._tid, self._time, self._pid = (np.ascontiguousarray(column) for column in rows.T)

    def pid(self, tid: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 pid of each thread, -1 unknown; thread 0 is the idle process 0."""
        pid = np.where(tid == 0, 0, -1)
        if len(self._tid):
            # The newest start until then, or the first start of a thread that occurs before its start.
            last = insertion_points(self._tid, self._time, tid, time, right=True) - 1
            first = np.searchsorted(self._tid, tid)
            life = np.minimum(np.maximum(last, first), len(self._tid) - 1)
            known = (self._tid[life] == tid) & (tid != 0)
            pid[known] = self._pid[life[known]]
        return pid


# -- Starts and ends of threads, and the lists of those that exist when a log begins and ends, as columns


_ROW = np.dtype([("time", "<i8"), ("tid", "<u4"), ("pid", "<u4"), ("kind", "u1")])
_MANY = 1 << 17  # rows from which on repeated ones are dropped


class ThreadEvents:
    """The thread events of a log, in file order."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._held, self._limit = 0, _MANY
        self._names: list[tuple[int, int, int, int, str]] = []
        self.short: Counter[Key] = Counter()
        """Events without both ids."""

    def __len__(self) -> int:
        return self._held

    def gather(self, block: EventBlock, decoder: Decoder) -> None:
        """Add the thread events of ``block``; those without both ids are counted."""
        part = block.take(np.flatnonzero(np.isin(block.kernel_hook, THREAD_LIFE)))
        rows = np.zeros(len(part), _ROW)
        for batch in batches_of(part, decoder):
            if batch.known.kind != "kernel":
                continue
            if not batch.columns.keys() >= {"ProcessID", "ThreadID"}:
                self.short[THREAD, batch.first.opcode] += len(batch)
                continue
            for name, of in (("pid", "ProcessID"), ("tid", "ThreadID")):
                rows[name][batch.rows] = batch.columns[of].tolist()
            rows["kind"][batch.rows] = part.kernel_hook[batch.rows] & 0xFF
            if "ThreadName" in batch.columns:
                self._name(part, batch.rows, batch.columns["ThreadName"].tolist(), rows)
        rows["time"] = np.where(rows["kind"] >= DC_START, 0, part.time)
        self._parts.append(rows[rows["kind"] > 0])
        self._held += len(self._parts[-1])
        if self._held > self._limit:
            self._parts = [_without_repeated(np.concatenate(self._parts))]
            self._held = len(self._parts[0])
            self._limit = 2 * self._held + _MANY

    def _name(self, part: EventBlock, which: NDArray[np.int64], names: list[str], rows: Array) -> None:
        for i, name in zip(which.tolist(), names, strict=True):
            kind, time = int(rows["kind"][i]), int(part.time[i])
            if name and kind != END:
                started = time if kind == START else 0
                self._names.append((kind, started, int(rows["pid"][i]), int(rows["tid"][i]), str(name)))

    def finish(self, timeline: Timeline) -> NDArray[np.int64]:
        """Add the changes to ``timeline``; (tid, time from which it is known, pid) of every start, (n, 3)."""
        rows = np.concatenate([np.empty(0, _ROW), *self._parts])
        self._parts = []
        # The list at the end adds only threads without an earlier event.
        keep = rows["kind"] != DC_END
        keep[_first_starts(rows)] = True
        rows = rows[keep]
        ends = rows["kind"] == END
        pid, zero = rows["pid"].astype(np.int64), np.zeros(len(rows), np.uint64)
        timeline.extend(
            {
                "kind": np.where(ends, Change.EXIT, Change.FORK),
                "time": rows["time"],
                "pid": pid,
                "tid": rows["tid"],
                "parent": np.where(ends, -1, pid),
                "module": np.full(len(rows), -1),
                "start": zero,
                "end": zero,
                "offset": zero,
            }
        )
        listed = set(rows["tid"][rows["kind"] == DC_END].tolist())
        for kind, time, process, thread, name in self._names:
            if kind != DC_END or thread in listed:
                timeline.name(time, process, thread, name)
        return np.column_stack([rows[name][~ends].astype(np.int64) for name in ("tid", "time", "pid")])


def _first_starts(rows: Array) -> NDArray[np.int64]:
    """The first event of each thread, other than its end."""
    began = np.flatnonzero(rows["kind"] != END)
    return began[np.unique(rows["tid"][began], return_index=True)[1]]


def _without_repeated(rows: Array) -> Array:
    """Drop the starts of a live thread, except two: the last start, whose end may come later in the file, and the first
    start in the file, after which the list at the end adds nothing.

    A start of another process's thread with this id, between the two in time, must not come later in the file.
    """
    order = np.lexsort((rows["time"], rows["tid"]))
    sorted_ = rows[["tid", "pid", "kind"]][order]
    same = (sorted_[1:] == sorted_[:-1]) & (sorted_["kind"][1:] == START)
    repeated = np.zeros(len(rows), bool)
    repeated[order[1:-1]] = same[1:] & same[:-1]
    repeated[_first_starts(rows)] = False
    return rows[~repeated]
