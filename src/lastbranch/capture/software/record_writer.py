"""The output of a software recording while it runs: bursts and the sideband, as perf.data in pipe form.

The sideband is time samples, mappings, names, forks and exits. Records: include/uapi/linux/perf_event.h; attributes,
names and features as records: tools/perf/Documentation/perf.data-file-format.txt. There are two events: the kernel
writes the time samples, we write the bursts; and a third one of ours where branches before system calls are recorded.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ...closing import on_failure
from ...errors import UnavailableError
from ...formats.perfdata.layout import MISC, RECORD, SAMPLE
from ...formats.perfdata.record_file import RecordFile, Sink
from ...formats.perfdata.writer import Described, SideRecords, pipe_begin, pipe_event, pipe_feature, record
from ...lbr import FLAG_FIELDS
from ..perf_events import syscall
from ..perf_events.ring_records import HEAD, records_in
from ..perf_events.synthesis import build_id_of, machine_features, mapping_record
from ..perf_events.syscall import CLOCK, CPU_CLOCK, FLAG, Ring
from ..procfs import Mapping, mappings, read, stat_of
from ..switch_output import CarriedState
from .tree import Thread

if TYPE_CHECKING:
    from ..perf_events.cpu_times import Ran

__all__ = [
    "BurstSample",
    "KernelSideband",
    "RECORDS",
    "RecordWriter",
    "Sideband",
    "SidebandListener",
    "TracerSideband",
    "now",
    "open_sideband",
    "time_attribute",
]


TIME_SAMPLES = SAMPLE.IDENTIFIER | SAMPLE.IP | SAMPLE.TID | SAMPLE.TIME | SAMPLE.CPU | SAMPLE.PERIOD
BURSTS = TIME_SAMPLES | SAMPLE.ADDR | SAMPLE.BRANCH_STACK
"""Fields of the two kinds of samples, `SAMPLE.CALLCHAIN` beside these where call stacks are recorded. ``ADDR`` is the
address at which the burst began."""

_BURST_ID, _CALL_ID = 1 << 62, (1 << 62) + 1
"""Ids of our events; the kernel's ids count from 1."""
RECORDS = SideRecords(BURSTS, _BURST_ID)
"""Makes records of our event."""
_USER_CONTEXT = (1 << 64) - 512
"""PERF_CONTEXT_USER, which call chains have before the frames of user code."""
_PRIV_USER = 1 << FLAG_FIELDS["priv"][0]
_TYPE_SHIFT = FLAG_FIELDS["type"][0]
_SIDEBAND = (
    "exclude_kernel", "exclude_hv", "mmap", "mmap2", "comm", "comm_exec", "task", "sample_id_all", "use_clockid",
    "build_id",
)  # fmt: skip
"""Flags of an event that records forks, execs, names and mappings, too, all with times of `CLOCK`."""


def _attribute(more_flags: int = 0, sample_type: int = TIME_SAMPLES, **fields: int) -> bytes:
    flags = sum(FLAG[name] for name in _SIDEBAND) | more_flags
    return syscall.attribute(flags, sample_type=sample_type, clockid=CLOCK, **fields, **CPU_CLOCK)


def time_attribute(period: int, chains: bool, more_flags: int = 0, **fields: int) -> bytes:
    """The event of the time samples; ``chains``: with call chains by frame pointers."""
    if chains:
        more_flags |= FLAG["exclude_callchain_kernel"]
    sample_type = TIME_SAMPLES | SAMPLE.CALLCHAIN if chains else TIME_SAMPLES
    return _attribute(more_flags, sample_type, sample_period=period, **fields)


class BurstSample(NamedTuple):
    """The fields of a record of a burst before its call chain and its branches."""

    when: int
    pid: int
    tid: int
    cpu: int
    start: int
    """The address at which the burst began."""
    end: int
    weight: int
    """ns of CPU time."""


class RecordWriter:
    """Appends records to ``file`` and keeps none in memory."""

    def __init__(
        self,
        file: Sink,
        select: int,
        period: int,
        time_period: int,
        call_graph: str = "none",
        *,
        calls: bool = False,
    ) -> None:
        """``select``: PERF_SAMPLE_BRANCH_* of the bursts. ``period``: CPU time between bursts, of the time samples
        ``time_period``, in ns. ``call_graph`` ``dwarf``: bursts have call chains, ``fp``: time samples. ``calls``:
        system calls have records, too."""
        self.write: Callable[[bytes], object] = self._write
        self.failure: Exception | None = None
        """Why the file could not be written: whoever goes on after the failure of one thread does not after this."""
        self._file, self._state = file, CarriedState(RECORDS)
        self.size = 0
        """Bytes of records since the beginning of this file, where state is carried over (`carry_state`)."""
        self.write(pipe_begin())
        self._chains, self._calls = call_graph == "dwarf", calls
        fields = BURSTS | SAMPLE.CALLCHAIN if self._chains else BURSTS
        self._time_attr = time_attribute(time_period, call_graph == "fp")
        self._burst_attr = _attribute(sample_period=period, sample_type=fields, branch_sample_type=select)

    def carry_state(self) -> None:
        """Remember the records of processes, for the files that follow this file."""
        self.write = self._write_and_note

    def _write_and_note(self, records: bytes) -> None:
        self._state.note(records)
        self.size += len(records)
        self._write(records)

    def _write(self, records: bytes) -> None:
        try:
            self._file.write(records)
        except Exception as error:  # kept, so that the collector tells it from the failure of one thread
            self.failure = error
            raise

    def flush(self) -> None:
        """Pass all records on to the system. Raises `OSError`."""
        self._file.flush()

    @property
    def full(self) -> bool:
        """Whether no more samples are written: there is no room for them."""
        return isinstance(self._file, RecordFile) and self._file.full

    @property
    def dropped(self) -> int:
        """Records for which there was no room."""
        return self._file.dropped if isinstance(self._file, RecordFile) else 0

    def end(self) -> None:
        """Nothing follows in this file. The file states how many records it lacks."""
        self._file.flush()
        if isinstance(self._file, RecordFile) and self._file.dropped:
            self._file.last(RECORDS.lost(self._file.dropped, now()))

    def switch(self, file: Sink, moment: int) -> None:
        """Go on in ``file``. All that happened before ``moment`` is in the one before, which is closed."""
        self.end()
        self._file.close()
        self._file, self.write, self.size = file, self._write, 0
        self.write(pipe_begin())
        self.begin(*self._begun)
        for one in self._state.at(moment):
            self.write(one)
        self.carry_state()

    def begin(self, time_ids: Sequence[int], command: Sequence[str]) -> None:
        """Write what must precede samples: both events, with the ids of the kernel's event, and the machine."""
        self._begun = time_ids, command
        self.write(pipe_event(Described("cpu-clock", self._time_attr, time_ids)))
        self.write(pipe_event(Described("software-lbr", self._burst_attr, (_BURST_ID,))))
        if self._calls:
            self.write(pipe_event(Described("system-calls", self._burst_attr, (_CALL_ID,))))
        system = os.uname()
        for name, body in machine_features(read, system.release, system.machine, command).items():
            self.write(pipe_feature(name, body))

    def ran(self, times: Iterable[Ran]) -> None:
        """CPU times of threads, as counts of the event of time samples, which is a clock."""
        records = SideRecords(TIME_SAMPLES, next(iter(self._begun[0]), _BURST_ID))
        for one in times:
            self.write(records.read(one.pid, one.tid, one.ns, one.when))

    def sample(
        self,
        burst: BurstSample,
        stack: Sequence[tuple[int, int, int]],
        frames: Sequence[int] = (),
        *,
        call: bool = False,
    ) -> None:
        """Write a burst: ``stack`` of (from, to, perf's branch type), newest first. ``frames``: the call stack at its
        end, innermost first. ``call``: it is that of a system call."""
        chain = [_USER_CONTEXT, *frames] if frames else []
        words = [len(chain), *chain] if self._chains else []
        words.append(len(stack))
        words += [word for source, target, kind in stack for word in (source, target, kind << _TYPE_SHIFT | _PRIV_USER)]
        self.sample_packed(burst, struct.pack(f"={len(words)}Q", *words), call=call)

    def sample_packed(self, burst: BurstSample, stacks: bytes, *, call: bool = False) -> None:
        """`sample` with ``stacks`` as they are in the record: the call chain, if there are any, and the branches."""
        when, pid, tid, cpu, start, end, weight = burst
        body = _SAMPLE.pack(_CALL_ID if call else _BURST_ID, end, pid, tid, when, start, cpu, 0, weight)
        self.write(record("SAMPLE", body + stacks, MISC.USER))


_SAMPLE = struct.Struct("=QQiiQQiIQ")


# -- the sideband: from perf events, or where the kernel refuses those, from ptrace events and /proc


_PAGES = 64


def now() -> int:
    """ns of the clock of all records."""
    return time.clock_gettime_ns(CLOCK)


class SidebandListener:
    """Gets the events of a sideband. This base class ignores them."""

    @property
    def follows_processes(self) -> bool:
        """Whether `on_fork` and `on_exit` are to be called, where the kernel records forks."""
        return False

    def on_mapping(self, pid: int, names: Iterable[str]) -> None:
        """A process has mapped code from the files ``names``."""

    def on_fork(self, pid: int, parent: int) -> None:
        """The process ``pid`` has begun."""

    def on_exit(self, pid: int) -> None:
        """The process ``pid`` has ended."""


class Sideband:
    """Events other than the bursts. This class records nothing."""

    name = ""
    needs_stops = False
    """Whether it has to be told of forks, execs and exits."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        """The ids of the kernel's events."""
        self.listener = SidebandListener()
        self.lacks = ""
        """The events that are not recorded, and why."""

    def drain(self, out: RecordWriter) -> None:
        """Write what has arrived."""

    @contextmanager
    def paused(self, thread: Thread, cpu: int) -> Iterator[None]:
        """Take no time samples of ``thread`` on ``cpu`` for now."""
        yield

    def write_fork(self, out: RecordWriter, thread: Thread, parent: Thread) -> None: ...

    def write_exec(self, out: RecordWriter, thread: Thread) -> None: ...

    def write_exit(self, out: RecordWriter, thread: Thread) -> None: ...

    def write_mappings(self, out: RecordWriter, thread: Thread, when: int) -> None:
        """``thread`` had a burst at ``when``."""

    def attach(self, threads: Sequence[Thread]) -> None:
        """Begin with the threads of a process that runs already."""

    def close(self) -> None: ...


class KernelSideband(Sideband):
    """cpu-clock events on given threads and all that they create later: one event and one ring for each processor.

    The kernel itself records forks, execs, exits and mappings."""

    name = "perf events"

    def __init__(self, tids: Sequence[int], period: int, *, at_exec: bool, chains: bool = False) -> None:
        """``at_exec``: begin when the thread executes a program. ``chains``: time samples have call chains. Raises
        `OSError` where the kernel refuses."""
        flags = FLAG["inherit"] | (FLAG["disabled"] | FLAG["enable_on_exec"] if at_exec else 0)
        attr = time_attribute(period, chains, flags, wakeup_events=1 << 20)
        super().__init__()
        self._fds: dict[tuple[int, int], int] = {}
        """By thread and processor."""
        self._rings: dict[int, Ring] = {}
        """By processor."""
        from ..perf_events.linux_kernel import Kernel  # loads readers of binaries

        self._kernel = Kernel()
        self._build_ids: dict[object, bytes] = {}
        with on_failure(self.close):
            for cpu in sorted(os.sched_getaffinity(0)):
                for tid in tids:
                    self._open(attr, tid, cpu)

    def _open(self, attr: bytes, tid: int, cpu: int) -> None:
        try:
            fd = self._fds[tid, cpu] = syscall.open_event(attr, tid, cpu)
        except ProcessLookupError:
            return
        self.ids.append(syscall.event_id(fd))
        if cpu in self._rings:
            self._rings[cpu].share(fd)
        else:
            self._rings[cpu] = Ring(fd, _PAGES)

    def drain(self, out: RecordWriter) -> None:
        def take(records: bytes) -> None:
            records = self.label(records)
            places = _mappings(records)
            out.write(self._add_build_ids(records, places) if places else records)
            of_process: dict[int, list[int]] = {}
            for at in places:
                of_process.setdefault(_PID.unpack_from(records, at)[0], []).append(at)
            for pid, mine in of_process.items():
                self.listener.on_mapping(pid, (_name_at(records, at) for at in mine))
            if self.listener.follows_processes:
                self._report_processes(records)

        for ring in self._rings.values():
            ring.drain(take)

    def _report_processes(self, records: bytes) -> None:
        for at, kind, _ in records_in(records):
            if kind in _TASKS:
                pid, parent, tid, _ = _IDS.unpack_from(records, at)
                if kind == RECORD["FORK"] and pid != parent:
                    self.listener.on_fork(pid, parent)
                elif kind == RECORD["EXIT"] and pid == tid:
                    self.listener.on_exit(pid)

    def label(self, records: bytes) -> bytes:
        """``records`` with the ids that they are to have."""
        return records

    def _add_build_ids(self, records: bytes, places: Sequence[int]) -> bytes:
        """``records`` with the build ids of binaries in which the kernel finds none: it looks into the first note
        segment alone, and that of Go's programs has another note."""
        out = bytearray(records)
        for at in places:
            kind, misc, size = HEAD.unpack_from(records, at)
            if misc & MISC.MMAP_BUILD_ID:
                continue
            name = _name_at(records, at)
            if not name.startswith("/") or name.startswith("//"):
                continue
            (pid,), (major, minor, inode) = _PID.unpack_from(records, at), _FILE.unpack_from(records, at)
            build_id = build_id_of(
                self._kernel, pid, Mapping(0, 0, 0, 0, 0, major, minor, inode, name), self._build_ids
            )
            if build_id:
                HEAD.pack_into(out, at, kind, misc | MISC.MMAP_BUILD_ID, size)
                _IDENTITY.pack_into(out, at + 40, min(len(build_id), 20), build_id[:20])
        return bytes(out)

    @contextmanager
    def paused(self, thread: Thread, cpu: int) -> Iterator[None]:
        """Otherwise each switch to the thread would start a timer and each switch from it stop one, which costs as much
        as the rest of a stop."""
        fd = self._fds.get((thread.origin, cpu))
        if fd is None:
            yield
            return
        syscall.disable(fd)
        try:
            yield
        finally:
            syscall.enable(fd)

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()
        for fd in self._fds.values():
            os.close(fd)
        self._rings, self._fds = {}, {}


_PID, _FILE = struct.Struct("=8xi"), struct.Struct("=40xIIQ")
_IDENTITY, _NAME = struct.Struct("=B3x20s"), 72
"""Of an MMAP2 record: its process and file; the build id that can take the place of the file at `_FILE`, and
where the name begins."""


def _name_at(records: bytes, at: int) -> str:
    """The file name of the MMAP2 record at ``at``."""
    size = HEAD.unpack_from(records, at)[2]
    return os.fsdecode(records[at + _NAME : at + size].partition(b"\0")[0])


def _mappings(records: bytes) -> list[int]:
    """The offset of each MMAP2 record."""
    return [at for at, kind, size in records_in(records) if kind == _MMAP2 and size > _NAME]


_MMAP2, _TASKS = RECORD["MMAP2"], (RECORD["FORK"], RECORD["EXIT"])
_IDS = struct.Struct("=8x4i")
"""Process, parent, thread and parent thread of FORK and EXIT records."""


class TracerSideband(Sideband):
    """No time samples; the rest from ptrace events, and from /proc/PID/maps at each burst, since code may have been
    replaced."""

    name = "ptrace and /proc"
    needs_stops = True

    def __init__(self) -> None:
        from ..perf_events.linux_kernel import Kernel  # loads readers of binaries, which few recordings need

        super().__init__()
        self._kernel = Kernel()
        self._known: dict[int, list[Mapping]] = {}
        self._build_ids: dict[object, bytes] = {}

    def write_fork(self, out: RecordWriter, thread: Thread, parent: Thread) -> None:
        pid, old = thread.process.pid, parent.process.pid
        out.write(RECORDS.fork(pid, old, thread.tid, parent.tid, now()))
        if pid != old:
            self._known[pid] = list(self._known.get(old, ()))

    def write_exec(self, out: RecordWriter, thread: Thread) -> None:
        pid = thread.process.pid
        stat = stat_of(pid)
        out.write(RECORDS.comm(pid, thread.tid, stat.name if stat else "?", now(), exec=True))
        self._known[pid] = []
        self.write_mappings(out, thread, now())

    def write_exit(self, out: RecordWriter, thread: Thread) -> None:
        pid = thread.process.pid
        out.write(RECORDS.exit(pid, thread.tid, now()))
        if not thread.process.threads:
            self._known.pop(pid, None)

    def write_mappings(self, out: RecordWriter, thread: Thread, when: int) -> None:
        pid = thread.process.pid
        found = mappings(self._kernel.text(f"/proc/{pid}/maps") or "")
        new = set(found) - set(self._known.get(pid, ()))
        for m in new:
            out.write(mapping_record(RECORDS, pid, m, build_id_of(self._kernel, pid, m, self._build_ids), when))
        if new:
            self.listener.on_mapping(pid, (m.name for m in new))
        self._known[pid] = found


def open_sideband(tids: Sequence[int], period: int, *, at_exec: bool, chains: bool = False) -> Sideband:
    """The kernel's sideband where perf events are allowed, else the tracer's, which has no call chains."""
    try:
        return KernelSideband(tids, period, at_exec=at_exec, chains=chains)
    except (OSError, UnavailableError) as error:
        sideband = TracerSideband()
        sideband.lacks = f"no time samples: {error.strerror if isinstance(error, OSError) else error}"
        return sideband
