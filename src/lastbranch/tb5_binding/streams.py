"""Binding a stream: the four bind-information streams of the guide, computed and taken away again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import LastbranchError
from ..formats.tb5.layout import (
    IA64PC,
    NEVER,
    PID_IS_RAW,
    STRUCTS,
    ModuleFlag,
    Scope,
    Section,
    StreamSection,
    StreamType,
    Table,
    TaskFlag,
)
from ..formats.tb5.module_lives import ModuleLives, module_lives
from ..formats.tb5.reader import Tb5File
from ..formats.tb5.sample_reader import SampleRecords
from ..formats.tb5.writer import Tb5Writer
from ..model import Array
from ..opening import FileSource
from .lookup import ModuleLookup, TaskLookup

__all__ = ["BindSummary", "Pairs", "StreamBinding", "bind_stream", "is_bound", "sample_streams", "unbind_stream"]


# -- distinct (pid, tid) pairs of many samples

_DENSE = 1 << 22


class Pairs:
    """Pairs as they come. A table of the process that each small tid had last tells what is new: hardly any sample."""

    def __init__(self) -> None:
        self._known = np.full(0, -1, np.int64)
        self.distinct: NDArray[np.uint64] = np.empty(0, np.uint64)
        """``pid << 32 | tid`` of each pair, in order."""

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
            found = np.unique(pid.astype(np.uint64) << np.uint64(32) | tid)
            self.distinct = np.union1d(self.distinct, found)


_CHUNK = 64 * 1024
_MODULES = Table(Scope.GLOBAL, 0, Section.MODULE)
_PROCESSES = Table(Scope.GLOBAL, 0, Section.PROCESS_THREAD)
_THREADS = _PROCESSES._replace(part=1)


@dataclass(frozen=True, slots=True)
class BindSummary:
    """What binding found: samples in all, those with a module, a process, a thread."""

    samples: int
    module: int
    process: int
    thread: int
    processes_made: bool
    """Whether processes and threads were inferred, since the file has no section of them."""


def is_bound(path: str | os.PathLike[str], stream: int = 0) -> bool:
    """Whether the stream has all of its bind information. Raises `FormatError` for another kind of file."""
    with Tb5File(FileSource(os.fspath(path))) as file:
        return file.is_bound(stream)


def sample_streams(path: str | os.PathLike[str], *, bound: bool) -> list[int]:
    """Numbers of the streams of samples that are bound, or that are not. Raises `FormatError` for another file."""
    with Tb5File(FileSource(os.fspath(path))) as file:
        return [n for n in range(file.streams) if _has_samples(file, n) and file.is_bound(n) == bound]


def _has_samples(file: Tb5File, stream: int) -> bool:
    info = file.records(Table(Scope.STREAM, stream, StreamSection.STREAM_INFO))
    return bool(len(info)) and int(info[0]["stream_type"]) == StreamType.SAMPLING


def bind_stream(path: str | os.PathLike[str], stream: int = 0) -> BindSummary:
    """Bind ``stream``: find module, process and thread of each sample and add them to the file.

    Raises `LastbranchError` where there is no such stream, or it is bound; `FormatError` where its data are damaged:
    then the file stays as it was.
    """
    with Tb5Writer.append(path) as writer, writer.view() as file:
        data = Table(Scope.STREAM, stream, StreamSection.DATA)
        if not file.has(data):
            raise LastbranchError(f"{file.name}: no data stream {stream}", hint=f"it has {file.streams}")
        if file.is_bound(stream):
            raise LastbranchError(f"{file.name}: stream {stream} is bound", hint="`lastbranch unbind` takes that away")
        return StreamBinding(file, writer, stream).run()


def unbind_stream(path: str | os.PathLike[str], stream: int = 0) -> None:
    """Take the bind information of ``stream`` away. Raises `LastbranchError` where there is none."""
    with Tb5Writer.append(path) as writer:
        if not any(writer.has(_bind(stream, kind, part)) for kind in StreamType for part in range(2)):
            raise LastbranchError(f"{os.fspath(path)}: stream {stream} is not bound")
        writer.unbind(stream)


def _bind(stream: int, kind: StreamType, part: int = 0) -> Table:
    return Table(Scope.BIND, stream, kind, part)


@dataclass(slots=True)
class _Chunk:
    """Columns of raw samples."""

    ip: Array
    pid: Array
    tid: Array
    time: Array
    selector: Array
    mode: Array


class StreamBinding:
    def __init__(self, file: Tb5File, writer: Tb5Writer, stream: int) -> None:
        self.file, self.writer, self.stream = file, writer, stream
        self.records = SampleRecords(file, stream)
        self.modules = file.records(_MODULES)
        self.lookup = ModuleLookup(self.modules)
        self.lives = module_lives(self.modules)
        # A file that has the section at all, be it empty, says all that there is to say of processes and threads.
        self.made = not (file.has(_PROCESSES) or file.has(_THREADS))
        self.processes, self.threads = (file.records(_PROCESSES), file.records(_THREADS))
        if self.made:
            self.processes, self.threads = self._infer()
        self.tasks = TaskLookup(self.processes, self.threads)

    def run(self) -> BindSummary:
        self.writer.unbind(self.stream)  # an incomplete set, if any
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
                waiting.append(pool.submit(self._bound, chunk))
                if len(waiting) > 2:
                    store()
            while waiting:
                store()
        out.done()
        self._write_rest()
        samples, module, process, thread = counts.tolist()
        return BindSummary(samples, module, process, thread, self.made)

    def _bound(self, c: _Chunk) -> Array:
        rows = np.empty(len(c.ip), STRUCTS["DATA_BIND_STRUCT"].dtype)
        process = self.tasks.process(c.pid, c.time)
        # -1 becomes the index of nothing, all ones
        rows["module_index"] = self.lookup.find(c.ip, c.pid, c.time, c.selector, c.mode).view(np.uint64)
        rows["pid_index"] = process.view(np.uint64)
        rows["tid_index"] = self.tasks.thread(process, c.pid, c.tid, c.time).view(np.uint64)
        return rows

    def _chunks(self) -> Iterator[_Chunk]:
        parts: list[_Chunk] = []
        size = 0
        for _, records in self.records.blocks(None, None):
            parts.append(self._columns(records))
            size += len(records)
            if size >= _CHUNK:
                yield _joined(parts)
                parts, size = [], 0
        if parts:
            yield _joined(parts)

    def _columns(self, records: Array) -> _Chunk:
        ip, pid = _word(records, "iip", np.uint64), _word(records, "pidRecIndex", np.uint32)
        flags = _word(records, "bitFields2", np.uint32, IA64PC | PID_IS_RAW)
        narrow = (flags & IA64PC) == 0
        if narrow.any():
            ip = np.where(narrow, ip & np.uint64(0xFFFFFFFF), ip)
        cooked = (flags & PID_IS_RAW) == 0  # an index into the process section instead of an id
        if cooked.any() and not self.made and len(self.processes):
            row = np.minimum(pid, len(self.processes) - 1)
            pid = np.where(cooked, self.processes["pid_id"][row], pid)
        if self.lookup.by_kind:
            mode = _word(records, "cpuAndOS", np.uint16) >> np.uint16(13) & np.uint16(3)
            selector = _word(records, "cs", np.uint16)
        else:
            mode = selector = np.broadcast_to(np.uint16(0), len(records))
        return _Chunk(ip, pid, _word(records, "tid", np.uint32), _word(records, "time", np.uint64), selector, mode)

    # -- processes and threads of a file that has no section of them

    def _infer(self) -> tuple[Array, Array]:
        """A process for each id in samples and modules, named by its program; a thread for each pair in samples."""
        pairs = Pairs()
        for _, records in self.records.blocks(None, None):
            pairs.add(_word(records, "pidRecIndex", np.uint32), _word(records, "tid", np.uint32))
        whole = pairs.distinct
        own = self.modules[~self.lives.everybodys]
        pid_of_thread = (whole >> np.uint64(32)).astype(np.uint32)
        pids = np.unique(np.concatenate([pid_of_thread, own["module_associated_pid"]]))
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
        """What belongs to modules, processes and threads; those that were inferred stand beside."""
        kinds, nobody = StreamType, np.uint64(NEVER)
        rows = self.tasks.process(self.modules["module_associated_pid"], self.modules["module_event_when"])
        of_module = np.zeros(len(self.modules), STRUCTS["MODULE_BIND_STRUCT"].dtype)
        of_module["pid_index"] = np.where(self.lives.everybodys, nobody, rows.view(np.uint64))
        of_process = np.zeros(len(self.processes), STRUCTS["PID_BIND_STRUCT"].dtype)
        of_process["module_index"] = _programs(self.modules, self.lives, self.processes["pid_id"]).view(np.uint64)
        of_thread = np.zeros(len(self.threads), STRUCTS["TID_BIND_STRUCT"].dtype)
        of_thread["pid_index"] = self.tasks.owner.view(np.uint64)
        put = self.writer.put
        put(_bind(self.stream, kinds.BIND_MODULE_INFORMATION), of_module)
        put(_bind(self.stream, kinds.BIND_PID_INFORMATION), of_process)
        put(_bind(self.stream, kinds.BIND_TID_INFORMATION), of_thread)
        if self.made:
            put(_bind(self.stream, kinds.BIND_PID_INFORMATION, 1), self.processes)
            put(_bind(self.stream, kinds.BIND_TID_INFORMATION, 1), self.threads)


def _programs(modules: Array, lives: ModuleLives, pids: Array) -> NDArray[np.int64]:
    """int64 row of the module that is the program of each process, -1 without: flagged as one, else its first."""
    own = np.flatnonzero(lives.loads & ~lives.everybodys)
    is_exe = (modules["module_flags"][own] & ModuleFlag.IS_EXE) != 0
    owner = modules["module_associated_pid"][own]
    order = np.lexsort((own, ~is_exe, owner))
    distinct, first = np.unique(owner[order], return_index=True)
    if not len(distinct):
        return np.full(len(pids), -1, np.int64)
    at = np.minimum(np.searchsorted(distinct, pids), len(distinct) - 1)
    return np.where(distinct[at] == pids, own[order][first[at]], -1)


def _word(records: Array, name: str, kind: type[np.generic], absent: int | np.generic = 0) -> Array:
    """A field of raw samples, ``absent`` where they have none of that name."""
    if name in (records.dtype.names or ()):
        found: Array = records[name].astype(kind)
        return found
    return np.full(len(records), absent, kind)


def _joined(parts: list[_Chunk]) -> _Chunk:
    if len(parts) == 1:
        return parts[0]
    names = _Chunk.__slots__
    return _Chunk(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))
