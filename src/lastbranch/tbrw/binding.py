"""Binding stored in a TB5 file: bind and unbind streams by the rules of the TBRW guide (3.3, 6.1, 6.6).

A module record owns the addresses ``[load_address, load_address + length)`` of its process from module_event_when (0:
since before the start) until module_unload_tsc (all ones: forever) or a notice of unloading (`module_lives`); without
TBRW_MODULE_TSC_USED these are numbers of samples of the stream. Its code selector and segment type must match those of
the sample where both are recorded. Records of the kernel, of process 0 and global ones apply to every process, after
its own.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import distinct, ranges
from ..bind import Ids, SpaceIndex
from ..errors import LastbranchError
from ..formats.tb5.layout import (
    IA64PC,
    NEVER,
    PID_IS_RAW,
    STRUCTS,
    CpuMode,
    ModuleFlag,
    Scope,
    Section,
    StreamSection,
    StreamType,
    Table,
    TaskFlag,
)
from ..formats.tb5.profile_reader import ModuleLives, module_lives
from ..formats.tb5.reader import Tb5File
from ..formats.tb5.sample_reader import SampleRecords
from ..formats.tb5.writer import Tb5Writer
from ..model import KERNEL_HALF, Array
from ..opening import FileSource

__all__ = [
    "BindSummary",
    "ModuleLookup",
    "Pairs",
    "StreamBinding",
    "TaskLookup",
    "bind_stream",
    "sample_streams",
    "unbind_stream",
]


# -- overlapping rectangles of addresses and moments, cut into disjoint pieces that the newest rectangle owns


def split_overlaps(
    space: Array, lo: Array, hi: Array, first: Array, last: Array
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Cut rectangles ``lo <= address < hi``, ``first <= moment < last`` into disjoint pieces.

    Returns the pieces as (space, lo, hi, first, last, row): ``space``, ``first``, ``last`` int64, ``lo``, ``hi``
    uint64; ``row`` int64 is the rectangle that owns the piece. Where rectangles of a space overlap, the one with the
    larger ``first`` owns the piece; of equal ones the later row does.
    """
    real = np.flatnonzero((lo < hi) & (first < last))
    space, lo, hi, first, last = (c[real] for c in (space, lo, hi, first, last))
    addresses = distinct(np.concatenate([lo, hi]))
    width = len(addresses) + 1
    start = space * width + np.searchsorted(addresses, lo)
    end = space * width + np.searchsorted(addresses, hi)
    slabs = distinct(np.concatenate([start, end]))
    one, past = np.searchsorted(slabs, start), np.searchsorted(slabs, end)
    count = past - one
    row = np.repeat(np.arange(len(real)), count)
    slab = ranges(one, count)
    order = np.lexsort((row, first[row], slab))
    row, slab = row[order], slab[order]
    since, until = first[row], last[row]
    clash = (slab[1:] == slab[:-1]) & (until[:-1] > since[1:])
    if clash.any():
        slab, row, since, until = _untangle(slab, row, since, until, distinct(slab[1:][clash]))
    low, high = slabs[slab], slabs[np.minimum(slab + 1, len(slabs) - 1)]
    return low // width, addresses[low % width], addresses[high % width], since, until, real[row]


def _untangle(
    slab: Array, row: Array, since: Array, until: Array, tangled: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut what overlaps in the ``tangled`` slabs. Within a slab, a later row lies on top of an earlier one."""
    inside = np.isin(slab, tangled)
    cut: list[tuple[int, int, int, int]] = []
    bounds = np.flatnonzero(np.diff(slab[inside], prepend=-1, append=-1))
    columns = [c[inside].tolist() for c in (slab, row, since, until)]
    for lo, hi in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        here = [c[lo:hi] for c in columns]
        cut += [(here[0][0], here[1][k], a, b) for k, a, b in _on_top(here[2], here[3])]
    kept = [c[~inside] for c in (slab, row, since, until)]
    added = np.array(cut, np.int64).reshape(-1, 4).T
    out = [np.concatenate([a, b]) for a, b in zip(kept, added, strict=True)]
    return out[0], out[1], out[2], out[3]


def _on_top(since: list[int], until: list[int]) -> list[tuple[int, int, int]]:
    """(number, from, to) where interval ``number`` is the last of those that cover it; they are sorted by start."""
    out: list[tuple[int, int, int]] = []
    active: list[tuple[int, int]] = []
    at, arriving = since[0], 0
    while active or arriving < len(since):
        if not active:
            at = max(at, since[arriving])
        while arriving < len(since) and since[arriving] <= at:
            heapq.heappush(active, (-arriving, until[arriving]))
            arriving += 1
        while active and active[0][1] <= at:
            heapq.heappop(active)
        if active:
            following = since[arriving] if arriving < len(since) else active[0][1]
            past = min(active[0][1], following)
            if out and out[-1][0] == -active[0][0] and out[-1][2] == at:
                out[-1] = (out[-1][0], out[-1][1], past)
            else:
                out.append((-active[0][0], at, past))
            at = past
    return out


_KERNEL, _SHARED, _FIRST_PROCESS = 0, 1, 2
_FOREVER = (1 << 62) - 1
_NEVER = np.uint64(NEVER)


class _Loads:
    """The module records ``rows`` of one clock, in their address spaces ``space``."""

    def __init__(self, modules: Array, lives: ModuleLives, space: Array, rows: NDArray[np.int64]) -> None:
        self._modules, self.rows = modules, rows
        since, until = lives.since[rows], lives.until[rows]
        self._times = distinct(np.concatenate([since[since != 0], until[until != _NEVER]]))
        first = np.searchsorted(self._times, since, side="right")
        self._first = np.where(since == 0, 0, first).astype(np.int64)
        past = np.searchsorted(self._times, until, side="right").astype(np.int64)
        self._last = np.where(until == _NEVER, _FOREVER, past)
        self._space, self._start = space[rows], modules["module_load_address"][rows]
        end = self._start + modules["module_length"][rows]
        self._end = np.where(end < self._start, _NEVER, end)
        self._indexes: dict[tuple[int, int], SpaceIndex] = {}

    def moments(self, time: Array) -> NDArray[np.int64]:
        if len(time) > len(self._times) and bool((time[1:] >= time[:-1]).all()):
            # The samples are in order: find the changes among them.
            changes = np.searchsorted(time, self._times, side="left")
            return np.repeat(np.arange(len(self._times) + 1), np.diff(changes, prepend=0, append=len(time)))
        return np.searchsorted(self._times, time, side="right")

    def find(self, kind: tuple[int, int], space: Array, moment: Array, ip: Array) -> NDArray[np.int64]:
        index = self._indexes.get(kind)
        if index is None:
            index = self._indexes[kind] = self._build(*kind)
        return index.find(space, moment, ip)

    def _build(self, selector: int, mode: int) -> SpaceIndex:
        mine = self._modules[self.rows]
        theirs, kind = mine["module_code_selector"], mine["module_segment_type_word"] & 3
        fits = (theirs == selector) | (theirs == 0) | (selector == 0)
        fits &= (kind == mode) | (kind == CpuMode.V86) | (mode == CpuMode.V86)
        columns = (self._space, self._start, self._end, self._first, self._last)
        space, lo, hi, first, last, which = split_overlaps(*(c[fits] for c in columns))
        return SpaceIndex(space, lo, hi, first, last, self.rows[fits][which])


class ModuleLookup:
    """Finds module records. ``modules`` are TBRW_MODULE records.

    A process's own modules go before everybody's, then those with time stamps before those with sample numbers.
    """

    def __init__(self, modules: Array) -> None:
        lives = module_lives(modules)
        pid, kernel = modules["module_associated_pid"], modules["module_load_address"] >= np.uint64(KERNEL_HALF)
        pids = distinct(pid[~lives.everybodys])
        self._space_of = Ids(pids, np.arange(len(pids)) + _FIRST_PROCESS, _FIRST_PROCESS + len(pids))
        shared = np.where(kernel, _KERNEL, _SHARED)
        space = np.where(lives.everybodys, shared, self._space_of(pid))
        self._shared_user = bool((~kernel & lives.everybodys).any())
        self._timed, self._numbered = (
            _Loads(modules, lives, space, np.flatnonzero(lives.loads & (lives.timed == timed)))
            for timed in (True, False)
        )
        self.by_number = len(self._numbered.rows) > 0
        """Whether the numbers of samples matter."""
        self.by_kind = bool(modules["module_code_selector"].any() or (modules["module_segment_type_word"] & 3).any())
        """Whether any module records its selector or mode. Otherwise those of samples do not matter."""

    def find(
        self, ip: Array, pid: Array, time: Array, number: Array, selector: Array, mode: Array
    ) -> NDArray[np.int64]:
        """int64 row of the module of each sample, -1 without one.

        ``ip`` and ``time`` are uint64, ``number`` (which sample of its stream it is) uint64, ``pid`` uint32,
        ``selector`` and ``mode`` integers.
        """
        clocks = [(c, c.moments(t)) for c, t in ((self._timed, time), (self._numbered, number)) if len(c.rows)]
        space = self._space_of(pid)
        if not self.by_kind:
            return self._find((0, 0), clocks, space, ip)
        kinds = selector.astype(np.int64) << 2 | mode
        out = np.full(len(ip), -1, np.int64)
        present = np.flatnonzero(np.bincount(kinds, minlength=1)).tolist()
        for kind in present:
            which = kind >> 2, kind & 3
            if len(present) == 1:
                return self._find(which, clocks, space, ip)
            mine = np.flatnonzero(kinds == kind)
            out[mine] = self._find(which, [(c, m[mine]) for c, m in clocks], space[mine], ip[mine])
        return out

    def _find(
        self, kind: tuple[int, int], clocks: list[tuple[_Loads, NDArray[np.int64]]], space: Array, ip: Array
    ) -> NDArray[np.int64]:
        kernel = ip >= np.uint64(KERNEL_HALF)
        own = np.where(kernel, _KERNEL, space)
        if not clocks:
            return np.full(len(ip), -1, np.int64)
        (first, moment), *others = clocks
        out = first.find(kind, own, moment, ip)
        rest = np.flatnonzero(out < 0) if others else np.empty(0, np.intp)
        for loads, moment in others:
            out[rest] = loads.find(kind, own[rest], moment[rest], ip[rest])
        for loads, moment in clocks if self._shared_user else ():
            rest = np.flatnonzero((out < 0) & ~kernel)
            out[rest] = loads.find(kind, np.full(len(rest), _SHARED), moment[rest], ip[rest])
        return out


class TaskLookup:
    """Finds process and thread records (TBRW_PID, TBRW_TID) by id and time; a reused id has several."""

    def __init__(self, processes: Array, threads: Array) -> None:
        self._lives = _Lives(processes["pid_id"], processes["pid_event_when"])
        self.owner = self.process(threads["tid_associated_pid"], threads["tid_event_when"])
        """int64: row of the process of each thread."""
        self._belongs = _belongs(self.owner, threads["tid_associated_pid"])
        by_tid = np.argsort(threads["tid_id"], kind="stable")
        tids, count = np.unique(threads["tid_id"][by_tid], return_counts=True)
        single = np.where(count == 1, by_tid[np.cumsum(count) - count] if len(by_tid) else 0, -2)
        self._single = Ids(tids, single, -1)
        keys = zip(self._belongs.tolist(), threads["tid_id"].tolist(), threads["tid_event_when"].tolist(), strict=True)
        self._several: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, (belongs, tid, when) in enumerate(keys):
            self._several.setdefault((belongs, tid), []).append((when, row))

    def process(self, pid: Array, time: Array) -> NDArray[np.int64]:
        """int64 row of the process of each (pid uint32, time uint64), -1 without one."""
        return self._lives.find(pid, time)

    def thread(self, process: NDArray[np.int64], pid: Array, tid: Array, time: Array) -> NDArray[np.int64]:
        """int64 row of the thread ``tid`` at each time, -1 without one.

        ``process`` is the row of its process. If the row is -1, the process is known by ``pid`` alone.
        """
        out, belongs = self._single(tid), _belongs(process, pid)
        if len(self._belongs):
            out = np.where((out >= 0) & (self._belongs[np.maximum(out, 0)] != belongs), -1, out)
        again = np.flatnonzero(out == -2)
        if len(again):
            owners, owner = np.unique(belongs[again], return_inverse=True)
            pairs, back = np.unique(owner << 32 | tid[again].astype(np.int64), return_inverse=True)
            for i, pair in enumerate(pairs.tolist()):
                lives = sorted(self._several.get((int(owners[pair >> 32]), pair & 0xFFFFFFFF), []))
                rows = again[back == i]
                out[rows] = _alive(lives, time[rows]) if lives else -1
        return out


def _belongs(process: NDArray[np.int64], pid: Array) -> NDArray[np.int64]:
    """A key for each process: its row, or the complement of its id where it has no row."""
    if len(process) == 0 or int(process.min()) >= 0:
        return process
    return np.where(process < 0, ~pid.astype(np.int64), process)


class _Lives:
    """Rows by id and time: the row that began last, or the first row where none had begun."""

    def __init__(self, ids: Array, when: Array) -> None:
        known, where, count = np.unique(ids, return_index=True, return_counts=True)
        self._row = Ids(known, np.where(count == 1, where, -2), -1)
        self._several = {
            int(i): sorted((int(when[r]), int(r)) for r in np.flatnonzero(ids == i)) for i in known[count > 1]
        }

    def find(self, ids: Array, time: Array) -> NDArray[np.int64]:
        out = self._row(ids)
        if self._several:
            again = np.flatnonzero(out == -2)
            for i in distinct(ids[again]).tolist():
                rows = again[ids[again] == i]
                out[rows] = _alive(self._several[i], time[rows])
        return out


def _alive(lives: list[tuple[int, int]], time: Array) -> NDArray[np.int64]:
    starts = np.array([when for when, _ in lives], np.uint64)
    rows = np.array([row for _, row in lives], np.int64)
    found: NDArray[np.int64] = rows[np.maximum(np.searchsorted(starts, time, side="right") - 1, 0)]
    return found


# -- Binding a stream: the four bind-information streams of the guide, computed and taken away again


# -- distinct pairs of pid and tid in many samples

_DENSE = 1 << 22


class Pairs:
    """Collects pairs. A table of the last process of each small tid finds the few samples that may bring a new pair."""

    def __init__(self) -> None:
        self._known = np.full(0, -1, np.int64)
        self.distinct: NDArray[np.uint64] = np.empty(0, np.uint64)
        """uint64 ``pid << 32 | tid`` of each pair, ascending."""

    def add(self, pid: Array, tid: Array) -> None:
        """Pairs of ids (uint32)."""
        highest = min(int(tid.max(initial=0)), _DENSE - 1)
        if highest >= len(self._known):
            more = np.full(max(highest + 1, 2 * len(self._known)) - len(self._known), -1, np.int64)
            self._known = np.concatenate([self._known, more])
        new = np.flatnonzero(self._known.take(tid, mode="clip") != pid)
        if tid.max(initial=0) > highest:
            new = np.union1d(new, np.flatnonzero(tid > highest))
        if len(new):
            pid, tid = pid[new], tid[new]
            small = tid <= highest
            self._known[tid[small]] = pid[small]
            found = distinct(pid.astype(np.uint64) << np.uint64(32) | tid)
            self.distinct = np.union1d(self.distinct, found)


_CHUNK = 64 * 1024
_MODULES = Table(Scope.GLOBAL, 0, Section.MODULE)
_PROCESSES = Table(Scope.GLOBAL, 0, Section.PROCESS_THREAD)
_THREADS = _PROCESSES._replace(part=1)


@dataclass(frozen=True, slots=True)
class BindSummary:
    """Counts of a binding: all samples, and samples with a module, a process, a thread."""

    samples: int
    module: int
    process: int
    thread: int
    processes_made: bool
    """Whether processes and threads were inferred because the file has no section of them."""


def sample_streams(path: str | os.PathLike[str], *, bound: bool) -> list[int]:
    """Numbers of the sample streams that are ``bound``, or are not. Raises `FormatError` for another kind of file."""
    with Tb5File(FileSource(os.fspath(path))) as file:
        return [n for n in range(file.streams) if _has_samples(file, n) and file.is_bound(n) == bound]


def _has_samples(file: Tb5File, stream: int) -> bool:
    info = file.records(Table(Scope.STREAM, stream, StreamSection.STREAM_INFO))
    return bool(len(info)) and int(info[0]["stream_type"]) == StreamType.SAMPLING


def bind_stream(path: str | os.PathLike[str], stream: int = 0) -> BindSummary:
    """Find the module, process and thread of each sample of ``stream``, and add them to the file.

    Raises `LastbranchError` if the stream does not exist or is bound, and `FormatError` if its data are damaged. The
    file is then unchanged.
    """
    with Tb5Writer.append(path) as writer, writer.view() as file:
        data = Table(Scope.STREAM, stream, StreamSection.DATA)
        if not file.has(data):
            raise LastbranchError(f"{file.name}: no data stream {stream}", hint=f"it has {file.streams}")
        if file.is_bound(stream):
            raise LastbranchError(
                f"{file.name}: stream {stream} is bound", hint="`lastbranch unbind` removes the binding"
            )
        return StreamBinding(file, writer, stream).run()


def unbind_stream(path: str | os.PathLike[str], stream: int = 0) -> None:
    """Remove the bind information of ``stream``. Raises `LastbranchError` if it has none."""
    with Tb5Writer.append(path) as writer:
        if not any(writer.has(_bind(stream, kind, part)) for kind in StreamType for part in range(2)):
            raise LastbranchError(f"{os.fspath(path)}: stream {stream} is not bound")
        writer.unbind(stream)


def _bind(stream: int, kind: StreamType, part: int = 0) -> Table:
    return Table(Scope.BIND, stream, kind, part)


class _Chunk(NamedTuple):
    """Columns of raw samples."""

    ip: Array
    pid: Array
    tid: Array
    time: Array
    number: Array
    selector: Array
    mode: Array


class StreamBinding:
    """Binds one stream of ``file`` through ``writer``, which writes to the same file. The caller commits."""

    def __init__(self, file: Tb5File, writer: Tb5Writer, stream: int) -> None:
        self.file, self.writer, self.stream = file, writer, stream
        self.records = SampleRecords(file, stream)
        self.modules = file.records(_MODULES)
        self.lookup = ModuleLookup(self.modules)
        self.lives = module_lives(self.modules)
        # The section lists all processes and threads, even if it is empty.
        self.made = not (file.has(_PROCESSES) or file.has(_THREADS))
        self.processes, self.threads = (file.records(_PROCESSES), file.records(_THREADS))
        if self.made:
            self.processes, self.threads = self._infer()
        self.tasks = TaskLookup(self.processes, self.threads)

    def run(self) -> BindSummary:
        self.writer.unbind(self.stream)  # of an incomplete binding
        counts = np.zeros(4, np.int64)
        struct = STRUCTS["DATA_BIND_STRUCT"]
        out = self.writer.table(_bind(self.stream, StreamType.BIND_DATA_INFORMATION), struct.size)
        waiting: list[Future[Array]] = []
        with ThreadPoolExecutor(2, "lastbranch-bind") as pool:

            def store() -> None:
                rows = waiting.pop(0).result()
                out.write(rows)
                found = [int(np.count_nonzero(rows[n] != NEVER)) for n in struct.dtype.names or ()]
                counts[:] += [len(rows), *found]

            for chunk in self._chunks():
                waiting.append(pool.submit(self._bind_chunk, chunk))
                if len(waiting) > 2:
                    store()
            while waiting:
                store()
        out.done()
        self._write_rest()
        samples, module, process, thread = counts.tolist()
        return BindSummary(samples, module, process, thread, self.made)

    def _bind_chunk(self, c: _Chunk) -> Array:
        rows = np.empty(len(c.ip), STRUCTS["DATA_BIND_STRUCT"].dtype)
        process = self.tasks.process(c.pid, c.time)
        # -1 becomes NEVER: no index
        rows["module_index"] = self.lookup.find(c.ip, c.pid, c.time, c.number, c.selector, c.mode).view(np.uint64)
        rows["pid_index"] = process.view(np.uint64)
        rows["tid_index"] = self.tasks.thread(process, c.pid, c.tid, c.time).view(np.uint64)
        return rows

    def _chunks(self) -> Iterator[_Chunk]:
        parts: list[_Chunk] = []
        size = 0
        for first, records in self.records.blocks(None, None):
            parts.append(self._columns(first, records))
            size += len(records)
            if size >= _CHUNK:
                yield _join(parts)
                parts, size = [], 0
        if parts:
            yield _join(parts)

    def _columns(self, first: int, records: Array) -> _Chunk:
        ip, pid = _word(records, "iip", np.uint64), _word(records, "pidRecIndex", np.uint32)
        flags = _word(records, "bitFields2", np.uint32, IA64PC | PID_IS_RAW)
        narrow = (flags & IA64PC) == 0
        if narrow.any():
            ip = np.where(narrow, ip & np.uint64(0xFFFFFFFF), ip)
        cooked = (flags & PID_IS_RAW) == 0  # the field holds an index into the process section instead of an id
        if cooked.any() and not self.made and len(self.processes):
            row = np.minimum(pid, len(self.processes) - 1)
            pid = np.where(cooked, self.processes["pid_id"][row], pid)
        if self.lookup.by_kind:
            mode = _word(records, "cpuAndOS", np.uint16) >> np.uint16(13) & np.uint16(3)
            selector = _word(records, "cs", np.uint16)
        else:
            mode = selector = np.broadcast_to(np.uint16(0), len(records))
        number: Array = np.broadcast_to(np.uint64(0), len(records))
        if self.lookup.by_number:
            number = np.arange(first, first + len(records), dtype=np.uint64)
        tid, time = _word(records, "tid", np.uint32), _word(records, "time", np.uint64)
        return _Chunk(ip, pid, tid, time, number, selector, mode)

    # -- inferred processes and threads

    def _infer(self) -> tuple[Array, Array]:
        """A process for each id in samples and modules, named after its program; a thread for each pair in samples."""
        pairs = Pairs()
        for _, records in self.records.blocks(None, None):
            pairs.add(_word(records, "pidRecIndex", np.uint32), _word(records, "tid", np.uint32))
        whole = pairs.distinct
        own = self.modules[~self.lives.everybodys]
        pid_of_thread = (whole >> np.uint64(32)).astype(np.uint32)
        pids = distinct(np.concatenate([pid_of_thread, own["module_associated_pid"]]))
        processes = np.zeros(len(pids), STRUCTS["TBRW_PID"].dtype)
        threads = np.zeros(len(whole), STRUCTS["TBRW_TID"].dtype)
        processes["pid_size"], threads["tid_size"] = processes.itemsize, threads.itemsize
        processes["pid_id"], threads["tid_associated_pid"], threads["tid_id"] = pids, pid_of_thread, whole
        programs = _programs(self.modules, self.lives, pids)
        named = programs >= 0
        for field, source in (("pid_path", "module_path"), ("pid_name", "module_name")):
            processes[field][named] = self.modules[source][programs[named]]
        processes["pid_flags"] = TaskFlag.MANUFACTURED | np.where(named, TaskFlag.NAME_GENERATED, 0)
        threads["tid_flags"] = TaskFlag.MANUFACTURED
        return processes, threads

    def _write_rest(self) -> None:
        """Write the bind information of modules, processes and threads, and the records that were inferred."""
        kinds = StreamType
        when = np.where(self.lives.timed, self.modules["module_event_when"], np.uint64(0))
        owner = self.tasks.process(self.modules["module_associated_pid"], when)
        of_module = np.zeros(len(self.modules), STRUCTS["MODULE_BIND_STRUCT"].dtype)
        of_module["pid_index"] = np.where(self.lives.everybodys, _NEVER, owner.view(np.uint64))
        of_process = np.zeros(len(self.processes), STRUCTS["PID_BIND_STRUCT"].dtype)
        of_process["module_index"] = _programs(self.modules, self.lives, self.processes["pid_id"]).view(np.uint64)
        of_thread = np.zeros(len(self.threads), STRUCTS["TID_BIND_STRUCT"].dtype)
        of_thread["pid_index"] = self.tasks.owner.view(np.uint64)
        tables = [
            (kinds.BIND_MODULE_INFORMATION, 0, of_module),
            (kinds.BIND_PID_INFORMATION, 0, of_process),
            (kinds.BIND_TID_INFORMATION, 0, of_thread),
        ]
        if self.made:
            tables += [(kinds.BIND_PID_INFORMATION, 1, self.processes), (kinds.BIND_TID_INFORMATION, 1, self.threads)]
        for kind, part, rows in tables:
            self.writer.put(_bind(self.stream, kind, part), rows)


def _programs(modules: Array, lives: ModuleLives, pids: Array) -> NDArray[np.int64]:
    """int64 row of the program's module of each process: the flagged module, else the first; -1 without any."""
    own = np.flatnonzero(lives.loads & ~lives.everybodys)
    is_exe = (modules["module_flags"][own] & ModuleFlag.IS_EXE) != 0
    owner = modules["module_associated_pid"][own]
    order = np.lexsort((own, ~is_exe, owner))
    owners, first = np.unique(owner[order], return_index=True)
    if not len(owners):
        return np.full(len(pids), -1, np.int64)
    at = np.minimum(np.searchsorted(owners, pids), len(owners) - 1)
    return np.where(owners[at] == pids, own[order][first[at]], -1)


def _word(records: Array, name: str, kind: type[np.generic], absent: int | np.generic = 0) -> Array:
    """A field of raw samples, ``absent`` where they lack it."""
    if name in (records.dtype.names or ()):
        found: Array = records[name].astype(kind)
        return found
    return np.full(len(records), absent, kind)


def _join(parts: list[_Chunk]) -> _Chunk:
    return parts[0] if len(parts) == 1 else _Chunk(*map(np.concatenate, zip(*parts, strict=True)))
