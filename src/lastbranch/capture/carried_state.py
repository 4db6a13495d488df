"""The first records of a file that begins in the middle of a recording: the processes, threads and mappings at this
moment, as earlier records left them.

Layouts: include/uapi/linux/perf_event.h. The records are those of events with the fields of `TRAILER`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..formats.perfdata.layout import MISC, RECORD
from ..formats.perfdata.writer import SideRecords
from .perf_events.ring_records import HEAD, records_in

__all__ = ["CarriedState"]


_PAIR, _FORK, _RANGE = (struct.Struct(words) for words in ("=ii", "=iiii", "=QQ"))
_TIME = struct.Struct("=Q")
_TRAILER, _TIME_AT = 32, 24
"""Bytes of the end of a record: i32 process, thread; u64 time, processor, identifier. The time is this far from it."""
_KINDS = frozenset(RECORD[name] for name in ("FORK", "EXIT", "COMM", "MMAP2"))
_LEAST = {RECORD["FORK"]: 24, RECORD["EXIT"]: 24, RECORD["COMM"]: 16, RECORD["MMAP2"]: 72}


@dataclass(slots=True)
class _Process:
    parent: int = 0
    names: dict[int, bytes] = field(default_factory=dict)
    """The newest COMM record of each thread; empty: it has none."""
    mappings: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(start, end, MMAP2 record), oldest first."""


class CarriedState:
    """The state that records lead to. ``records`` makes new ones."""

    def __init__(self, records: SideRecords) -> None:
        self._records = records
        self._pending: list[tuple[int, int, bytes]] = []
        """(time, type, record) of what was not applied yet: records of several rings are not in the order of time."""
        self._processes: dict[int, _Process] = {}

    def note(self, records: bytes) -> None:
        """Take the whole records that are written."""
        for at, kind, size in records_in(records):
            if kind in _KINDS and size >= _LEAST[kind] + _TRAILER:
                (when,) = _TIME.unpack_from(records, at + size - _TIME_AT)
                self._pending.append((when, kind, records[at : at + size]))

    def at(self, moment: int) -> Iterator[bytes]:
        """Records of the state at ``moment`` (ns of the records' clock), as from before the recording, and then,
        unchanged, the later records that have come already."""
        self._pending.sort(key=lambda one: one[0])
        later = [one for one in self._pending if one[0] >= moment]
        for _, kind, record in self._pending[: len(self._pending) - len(later)]:
            self._apply(kind, record)
        self._pending = later
        for pid, process in self._processes.items():
            yield self._records.fork(pid, process.parent, pid, process.parent, alone=True)
            for tid in process.names:
                if tid != pid:
                    yield self._records.fork(pid, pid, tid, pid)
            yield from (_from_before(name, pid, tid) for tid, name in process.names.items() if name)
            yield from (_from_before(record, pid, pid) for _, _, record in process.mappings)
        yield from (record for _, _, record in later)

    def _apply(self, kind: int, record: bytes) -> None:
        if kind == RECORD["MMAP2"]:
            self._mapped(record)
        elif kind == RECORD["COMM"]:
            self._named(record)
        elif kind == RECORD["FORK"]:
            self._forked(record)
        else:
            pid, _, tid, _ = _FORK.unpack_from(record, HEAD.size)
            process = self._processes.get(pid)
            if process is not None:
                process.names.pop(tid, None)
                if not process.names:
                    del self._processes[pid]

    def _forked(self, record: bytes) -> None:
        pid, parent, tid, parent_tid = _FORK.unpack_from(record, HEAD.size)
        of = self._processes.get(parent)
        name = of.names.get(parent_tid, b"") if of is not None else b""
        if pid == parent:
            self._processes.setdefault(pid, _Process()).names[tid] = name
            return
        alone = HEAD.unpack_from(record)[1] & MISC.FORK_EXEC
        mappings = list(of.mappings) if of is not None and not alone else []
        self._processes[pid] = _Process(parent, {tid: name}, mappings)

    def _named(self, record: bytes) -> None:
        pid, tid = _PAIR.unpack_from(record, HEAD.size)
        process = self._processes.setdefault(pid, _Process())
        if HEAD.unpack_from(record)[1] & MISC.COMM_EXEC:  # the other threads have ended
            process.names, process.mappings = {}, []
        process.names[tid] = record

    def _mapped(self, record: bytes) -> None:
        pid, tid = _PAIR.unpack_from(record, HEAD.size)
        start, length = _RANGE.unpack_from(record, HEAD.size + _PAIR.size)
        end = start + length
        process = self._processes.setdefault(pid, _Process())
        process.names.setdefault(tid, b"")
        kept = [one for one in process.mappings if one[0] < start or one[1] > end]  # what it covers is gone
        process.mappings = [*kept, (start, end, record)]


def _from_before(record: bytes, pid: int, tid: int) -> bytes:
    """``record`` as of the thread ``tid``, from before the recording."""
    out = bytearray(record)
    kind, misc, size = HEAD.unpack_from(record)
    if kind == RECORD["COMM"]:
        HEAD.pack_into(out, 0, kind, misc & ~MISC.COMM_EXEC, size)
    _PAIR.pack_into(out, HEAD.size, pid, tid)
    _PAIR.pack_into(out, size - _TRAILER, pid, tid)
    _TIME.pack_into(out, size - _TIME_AT, 0)
    return bytes(out)
