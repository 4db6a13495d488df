"""One recording in several files, each whole and readable by itself.

The collector decides when to go on in a new file. It begins the new file with the state of all processes, and hands the
file to its parent, which stores the previous file. So each file is stored, whatever happens to the collector.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from ..errors import LastbranchError
from ..formats.perfdata.layout import MISC, RECORD
from ..formats.perfdata.record_file import RecordFile
from ..formats.perfdata.writer import SideRecords
from ..model import PartFile
from .full_disk import Overflow, Say
from .options import Summary, SwitchOutput
from .perf_events.ring_records import HEAD, records_in

__all__ = ["CarriedState", "Parts", "Switcher"]


_MESSAGE = 1 << 20


def _stamp() -> str:
    """The local time to hundredths of a second, as in the names of perf's files."""
    now = time.time()
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 100) % 100:02}"


class Switcher:
    """The collector's side: knows when a file is full."""

    def __init__(self, wanted: SwitchOutput, output: str, connection: socket.socket, say: Say) -> None:
        self._wanted, self._output, self.connection, self._say = wanted, output, connection, say
        self._since = time.monotonic()

    def due(self, size: int) -> bool:
        """Whether to go on in a new file, after ``size`` bytes of records in this one."""
        if self._wanted.size:
            return size >= self._wanted.size
        return size > 0 and time.monotonic() - self._since >= self._wanted.seconds

    def next_file(self, summary: Summary) -> RecordFile:
        """A new file; that before is complete, and ``summary`` is that of the recording until now. Raises `OSError`."""
        overflow = Overflow.of_new_file(self._output)
        part = overflow.spill
        said = {"path": part.path, "rest": overflow.rest, "stamp": _stamp(), "summary": asdict(summary)}
        message = json.dumps(said).encode()
        socket.send_fds(self.connection, [message], [part.file.fileno()])
        self._since = time.monotonic()
        return overflow.writer(overflow.tells(self._say, watched=False))


class Parts:
    """The parent's side: stores files by ``save`` (file, name, summary of it) while the recording goes on.

    Use as a context around the recording; `finish` at its end.
    """

    def __init__(
        self,
        wanted: SwitchOutput,
        output: str,
        first: Overflow,
        save: Callable[[PartFile, str, Summary], None],
        say: Say,
    ) -> None:
        self._wanted, self._output, self._current, self._save = wanted, output, first, save
        self._say = say
        self._before: Summary | None = None
        self._stamp = 0
        """The time stamp in the newest name."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs = theirs
        self.switcher = Switcher(wanted, output, theirs, say)
        self.names: list[str] = []
        """The names of the files that were stored and still exist."""
        self.failed: LastbranchError | None = None
        self._thread = threading.Thread(target=self._store_all)

    def start(self) -> None:
        """Begin to store, once the collector has been forked."""
        self._theirs.close()
        self._thread.start()

    def finish(self, summary: Summary, *, least: int = 0) -> None:
        """Store the last file, of a recording with ``summary``, unless no file was stored before and the last has at
        most ``least`` bytes. Raises what went wrong with the first that failed."""
        self._thread.join()
        self._ours.close()
        if self._current.size > (0 if self.names else least):
            self._store(_stamp(), summary)
        if self.failed is not None:
            raise self.failed

    def _store_all(self) -> None:
        while True:
            message, files, _, _ = socket.recv_fds(self._ours, _MESSAGE, 1)
            if not message:
                return
            said = json.loads(message)
            self._store(said["stamp"], Summary(**said["summary"]))
            self._current = Overflow(PartFile.adopted(self._output, said["path"], files[0]), said["rest"])

    def _store(self, stamp: str, summary: Summary) -> None:
        root, ending = os.path.splitext(self._output)
        self._stamp = max(int(stamp), self._stamp + 1)  # names ascend, also where two files have one time
        while os.path.exists(name := f"{root}.{self._stamp}{ending}"):
            self._stamp += 1
        ran_on = self._before is not None and summary.seconds >= self._before.seconds  # else the collector was killed
        part = summary.since(self._before) if self._before is not None and ran_on else summary
        self._before = summary
        try:
            with self._current.whole(name) as whole:
                self._save(whole, name, part)
        except LastbranchError as error:
            if self.failed is None:
                self.failed = error
            else:  # it may be somewhere else than the first
                self._say(f"{error}; {error.hint}")
            return
        finally:
            self._current.spill.discard()
        self.names.append(name)
        while self._wanted.keep and len(self.names) > self._wanted.keep:
            with suppress(OSError):
                os.unlink(self.names.pop(0))


# -- what a file begins with that begins in the middle of a recording
#
# Layouts: include/uapi/linux/perf_event.h. The records are those of events with the fields of `TRAILER`.


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
