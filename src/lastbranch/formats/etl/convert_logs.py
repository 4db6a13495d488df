"""From trace files to one trace file: compressed or not, cut by time or process, several merged.

Events stay as they are, in new buffers of their processors. Only times are converted, where the output has another
clock: in event headers, and in the payloads of stacks and branch records, which refer to their event by its time. Other
times in payloads stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct, insertion_points, ranges, view_unaligned
from ...errors import Damage, FormatError
from ...model import Source
from ..interface import Conversion, Rewriting
from .container.header import LogHeader, encode_log_header
from .container.trace_file import TraceFile
from .container.writer import Packer
from .decode import AS_IT_SAYS, Reading
from .events.columns import EventBlock, events_of
from .events.merge import Run, join_runs
from .events.reader import TraceLog, runs_of
from .events.walk import MESSAGE_BYTES
from .kernel.hooks import (
    DC_END,
    DC_START,
    END,
    FILE_IO,
    IMAGE,
    IMAGE_ID,
    LBR,
    META_DATA,
    PERF_INFO,
    PROCESS,
    SESSION,
    STACK_WALK,
    START,
    SYS_CONFIG,
    SYS_CONFIG_EX,
    THREAD,
    WIN_SAT,
    Key,
    kernel_key,
)
from .kernel.layouts import kernel_layout
from .layout import (
    BUFFER_FLAG,
    BUFFER_HEADER_SIZE,
    BUFFER_TYPE,
    EVENT_HEADERS,
    LEAST_BUFFER,
    MAX_BUFFER,
    MESSAGE,
    MESSAGE_FLAG,
    LogFileMode,
)
from .payload.manifest_xml import MANIFEST_ID

__all__ = ["Converted", "convert", "rewrite_logs"]


# -- Which events belong to a time range or to processes, and which of the others they depend on
#
# Events about processes, threads, images, the configuration and definitions of stacks describe the others: a cut by
# time keeps all of them. A cut by process keeps those of its processes and of the kernel (process ids 0 and 4). The
# owner of an event is the process id in its payload, if its layout declares one, or the process of the thread id there
# (by the thread events of the trace), else the process id of its header. Interrupts and the like have no owner.


_GROUPS = frozenset((SESSION, SYS_CONFIG, IMAGE_ID, META_DATA, SYS_CONFIG_EX, WIN_SAT))
_STATE = frozenset(
    [(PROCESS, type_) for type_ in (1, 2, 3, 4, 10, 11, 39)]
    + [(THREAD, type_) for type_ in (1, 2, 3, 4, 72)]
    + [(IMAGE, type_) for type_ in (2, 3, 4, 10, 33, 34)]
    + [(PERF_INFO, type_) for type_ in (0x30, 0x48, 0x49, 0x4A)]  # counter names, intervals
    + [(STACK_WALK, type_) for type_ in (0x22, 0x23, 0x24)]
    + [(FILE_IO, type_) for type_ in (0, 32, 35, 36)]  # names of files
)
_STAMPED = frozenset(((LBR, 0x20), (STACK_WALK, 0x20), (STACK_WALK, 0x25), (STACK_WALK, 0x26)))
_THREAD_BEGINS: dict[Key, bool] = {
    (THREAD, START): True,
    (THREAD, END): False,
    (THREAD, DC_START): True,
    (THREAD, DC_END): False,
}
_THREADS = ("ThreadID", "NewThreadID", "OldThreadID", "IssuingThreadID")
_KERNEL = frozenset((0, 4))

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EventFacts:
    """Facts about all events of a type, version and pointer size. Places are byte offsets in the payload."""

    state: bool = False
    """Whether other events depend on it."""
    stamped: bool = False
    """Whether its payload begins with the time of the event that it belongs to."""
    process: int | None = None
    threads: tuple[int, ...] = ()
    begins: bool | None = None
    """For an event about the life of a thread: whether the thread begins, or ends."""


_OTHER, _MANIFEST = EventFacts(), EventFacts(state=True)


def kinds_of(block: EventBlock) -> tuple[Ints, list[EventFacts]]:
    """The kind of each event: rows of the list."""
    kernel, manifest = block.is_kernel, np.isin(block.header, list(EVENT_HEADERS))
    shape = block.version.astype(np.int64) << 16 | block.pointer_size.astype(np.int64) << 24
    code = np.where(kernel, block.hook | shape, 0)
    code[manifest] = (1 << 32) + (block.id[manifest] == MANIFEST_ID)
    rest = np.flatnonzero(~(kernel | manifest))
    if len(rest):  # by GUID, which is slow; there are few
        low = (block.opcode[rest] | shape[rest]).astype(np.uint64)
        keys = np.column_stack([block.provider[rest], low])
        _, number = np.unique(keys, axis=0, return_inverse=True)
        code[rest] = (2 << 32) + number.reshape(-1)
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    kinds = []
    for event in events_of(block.take(first)):
        key = kernel_key(event)
        if key is not None:
            kinds.append(_kind(key, event.version, event.pointer_size))
        else:
            kinds.append(_MANIFEST if event.header in EVENT_HEADERS and event.id == MANIFEST_ID else _OTHER)
    return which, kinds


@lru_cache(maxsize=1024)
def _kind(key: Key, version: int, pointer: int) -> EventFacts:
    known = kernel_layout(key, version)
    places = {} if known is None else known.offsets(pointer)
    found = {name: at for name, (at, _) in places.items()}
    threads = tuple(found[name] for name in _THREADS if name in found)
    begins = _THREAD_BEGINS.get(key)
    return EventFacts(key in _STATE or key[0] in _GROUPS, key in _STAMPED, found.get("ProcessID"), threads, begins)


def _field(block: EventBlock, rows: Ints, place: int) -> Ints:
    """The u32 at byte ``place`` of the payloads, -1 where a payload is too short."""
    value = block.payload_field(rows, place, "<u4").astype(np.int64)
    return np.where(block.payload_size[rows] >= place + 4, value, -1)


class Owners:
    """The process of a thread id at a time, by the thread events that `learn` has seen."""

    def __init__(self) -> None:
        self._seen: list[tuple[Ints, Ints, Ints, NDArray[np.bool_]]] = []

    def learn(self, block: EventBlock) -> None:
        """Take in the thread events of ``block``."""
        which, kinds = kinds_of(block)
        for number, kind in enumerate(kinds):
            if kind.begins is None or kind.process is None or not kind.threads:
                continue
            rows = np.flatnonzero(which == number)
            tids, pids = _field(block, rows, kind.threads[0]), _field(block, rows, kind.process)
            self._seen.append((tids, block.time[rows].copy(), pids, np.full(len(rows), kind.begins)))

    @cached_property
    def _events(self) -> tuple[Ints, Ints, Ints, NDArray[np.bool_]]:
        """Thread id, time, process, whether the thread begins, by thread and time."""
        tid, time, pid, begins = (np.concatenate(part) for part in zip(*self._seen, strict=True))
        order = np.lexsort((time, tid))
        return tid[order], time[order], pid[order], begins[order]

    def of(self, tids: Ints, times: Ints) -> Ints:
        """Process ids, -1 for threads of no known process."""
        if not self._seen:
            return np.where(tids == 0, 0, -1)
        tid, time, pid, begins = self._events
        place = insertion_points(tid, time, tids, times, right=True)
        before, after = np.maximum(place - 1, 0), np.minimum(place, len(tid) - 1)
        # An event just after a thread's end still belongs to its last process.
        last = np.where((place > 0) & (tid[before] == tids), pid[before], -1)
        since = np.where(begins[before], last, -1)
        until = np.where((place < len(tid)) & (tid[after] == tids), pid[after], -1)
        owner = np.where(since >= 0, since, np.where(until >= 0, until, last))
        return np.where(tids > 0, owner, np.where(tids == 0, 0, -1))


@dataclass(slots=True)
class Cut:
    """The events to keep: ``first <= time < last``, in ticks of the log's clock, and of ``pids``.

    None, and no pids: no limit.
    """

    first: int | None = None
    last: int | None = None
    pids: frozenset[int] = frozenset()
    owners: Owners | None = None

    def __bool__(self) -> bool:
        return self.first is not None or self.last is not None or bool(self.pids)

    def rows(self, block: EventBlock) -> NDArray[np.bool_]:
        """Which events of ``block`` to keep."""
        which, kinds = kinds_of(block)
        state = np.array([kind.state for kind in kinds], bool)[which]
        time = event_times(block, which, kinds)
        inside = np.ones(len(block), bool)
        if self.first is not None:
            inside &= time >= self.first
        if self.last is not None:
            inside &= time < self.last
        keep: NDArray[np.bool_] = inside | state
        if self.pids:
            keep &= self._of_pids(block, which, kinds, time)
        return keep

    def _of_pids(self, block: EventBlock, which: Ints, kinds: list[EventFacts], time: Ints) -> NDArray[np.bool_]:
        wanted = np.array(sorted(self.pids))
        with_kernel = np.array(sorted(self.pids | _KERNEL))
        keep = np.isin(block.pid, wanted)
        for number, kind in enumerate(kinds):
            if kind is _OTHER:
                continue
            rows = np.flatnonzero(which == number)
            if kind.process is not None:
                keep[rows] = np.isin(_field(block, rows, kind.process), with_kernel if kind.state else wanted)
            elif kind.state:
                keep[rows] = True
            elif kind.threads and self.owners is not None:
                mine = [self.owners.of(_field(block, rows, place), time[rows]) for place in kind.threads]
                keep[rows] = np.isin(np.stack(mine), wanted).any(axis=0)
        return keep


def event_times(block: EventBlock, which: Ints, kinds: list[EventFacts]) -> Ints:
    """The times of events; for stacks and branch records the time of the event that they belong to."""
    time: Ints = block.time.copy()
    for number, kind in enumerate(kinds):
        if kind.stamped:
            rows = np.flatnonzero((which == number) & (block.payload_size >= 8))
            stamp = block.payload_field(rows, 0, "<i8")
            time[rows] = stamp if block.rules.to_log is None else block.rules.to_log(stamp)
    return time


# -- Several trace files on one time line
#
# Sessions that share a clock during one uptime of a machine have comparable ticks. The times of other sessions are
# converted by the wall times of their headers. The log's clock is that of the session that began first.


class _TimeLine:
    """The sessions of ``sources``, whose payloads have pointers of ``pointer_size`` bytes, or what their headers say.

    Raises `FormatError` for a source that is no trace log, or lacks the wall time that others need."""

    def __init__(self, sources: Sequence[Source], *, pointer_size: int | None = None) -> None:
        self.logs = [TraceLog(source, pointer_size=pointer_size, workers=1) for source in sources]
        self.indexes = [log.index() for log in self.logs]
        self.headers = [header for log in self.logs for header in log.headers]
        self.log = min(self.headers, key=lambda header: header.start_time)
        for log in self.logs:
            log.base = self.log
            for header in log.headers if len(self.logs) > 1 else []:
                if not header.start_time or not header.frequency:
                    raise FormatError(
                        "without a start time and a clock frequency, this log cannot share a time line with others",
                        file=log.source.name,
                        offset=header.offset,
                        field="StartTime",
                        value=header.start_time,
                    )

    @property
    def damage(self) -> list[tuple[str, Damage]]:
        """(name of the source, damage), for the damage found so far."""
        return [(log.source.name, damage) for log in self.logs for damage in log.damage]

    @property
    def processors(self) -> int:
        """One more than the highest number of a processor with buffers, or what the headers say if that is more."""
        seen = [int(index.buffers.cpu.max()) + 1 for index in self.indexes if len(index.buffers)]
        return max(1, *seen, *(header.processors for header in self.headers))

    def header_blocks(self) -> Iterator[EventBlock]:
        """The events of the header buffers, without the log file headers."""
        for log, index in zip(self.logs, self.indexes, strict=True):
            for row in np.flatnonzero(index.buffers.type == BUFFER_TYPE.HEADER).tolist():
                block = log.load(index, row)
                if block is not None:
                    yield _restamp(block.take(~(block.is_kernel & (block.hook == 0))))

    def runs(self, select: Callable[[EventBlock], EventBlock]) -> Iterator[Run]:
        """The events of the other buffers that ``select`` returns of each, in time order.

        Memory is bounded by a buffer for each processor.
        """

        def wanted(block: EventBlock) -> EventBlock:
            is_header = block.window.buffers.type[0] == BUFFER_TYPE.HEADER
            return block.take(slice(0)) if is_header else _restamp(select(block))

        return runs_of(self.logs, self.indexes, wanted)


def _restamp(block: EventBlock) -> EventBlock:
    """``block``, whose window has memory of its own, with times of the log's clock in its bytes."""
    to_log = block.rules.to_log
    if to_log is None or not len(block):
        return block
    numbers, time, kind = view_unaligned(block.raw, "<i8"), block.time, block.header
    which, kinds = kinds_of(block)
    for number, what in enumerate(kinds):
        if what.stamped:
            rows = np.flatnonzero((which == number) & (block.payload_size >= 8))
            numbers[block.payload[rows]] = to_log(block.payload_field(rows, 0, "<i8"))
    at = block.at * 8 + np.where(np.isin(kind, _PERFINFO), 8, 16)
    message = np.flatnonzero(kind == MESSAGE)
    options = block.options[message].astype(np.int64)
    at[message] = block.at[message] * 8 + MESSAGE_BYTES.take(options & 0x07)
    with_time = kind != _ERROR
    with_time[message] = (options & MESSAGE_FLAG.TIMESTAMP) != 0
    numbers[at[with_time]] = time[with_time]
    made = EventBlock(block.window, block.found, replace(block.rules, to_log=None))
    made.__dict__["time"] = time
    return made


_DROPPED_MODES = (
    LogFileMode.COMPRESSED_MODE
    | LogFileMode.FILE_MODE_CIRCULAR
    | LogFileMode.FILE_MODE_APPEND
    | LogFileMode.FILE_MODE_NEWFILE
    | LogFileMode.FILE_MODE_PREALLOCATE
    | LogFileMode.USE_KBYTES_FOR_SIZE
)
_LOST = BUFFER_FLAG.EVENTS_LOST | BUFFER_FLAG.BUFFER_LOST
_PERFINFO = (16, 17)
_ERROR = 13


@dataclass(slots=True)
class Converted:
    """The result of `convert`. ``events`` were read, those in header buffers included, ``kept`` were written."""

    header: LogHeader
    events: int = 0
    kept: int = 0
    damage: Sequence[tuple[str, Damage]] = ()
    boots: int = 1
    """Number of uptimes of machines that the inputs come from. Process ids of different uptimes are unrelated."""


def convert(
    sources: Sequence[Source],
    path: str | os.PathLike[str],
    *,
    compress: bool | None = None,
    seconds: tuple[Fraction | None, Fraction | None] = (None, None),
    pids: frozenset[int] = frozenset(),
    pointer_size: int | None = None,
) -> Converted:
    """Write the events of ``sources`` to the trace file ``path``, in one time line.

    ``compress`` None: like the first source. ``seconds`` (from, to) since the start of the session that began first.
    ``pointer_size`` as `TraceLog` has it, for the process ids in payloads; events stay as they are. Unreadable parts of
    the sources are skipped and listed in the result's ``damage``. FormatError where one is no trace log, OSError where
    the output cannot be written; there is no output then.
    """
    line = _TimeLine(sources, pointer_size=pointer_size)
    cut = _cut(line, seconds, pids)
    done = Converted(line.log)
    done.boots = len({header.boot_time for header in line.headers})
    events = []
    for block in line.header_blocks():
        ends = block.at + (block.size + 7 >> 3)
        events += [block.words[at:end].tobytes() for at, end in zip(block.at.tolist(), ends.tolist(), strict=True)]
        done.events += len(block)
        done.kept += len(block)
    done.header = _header(line, compress, sum(map(len, events)))

    def wanted(block: EventBlock) -> EventBlock:
        done.events += len(block)
        return block.take(np.flatnonzero(cut.rows(block))) if cut else block

    file = TraceFile(path, done.header, events)
    try:
        packer, seen = Packer(file), set[tuple[int, int]]()
        for run in line.runs(wanted):
            done.kept += _append(packer, run, seen)
        packer.flush()
    except BaseException:
        file.discard()
        raise
    file.close()
    done.damage = line.damage
    return done


def rewrite_logs(sources: Sequence[Source], path: str, how: Rewriting) -> Conversion:
    """`convert` as every format has it."""
    reading = how.reading if isinstance(how.reading, Reading) else AS_IT_SAYS
    done = convert(
        sources,
        path,
        compress=how.compress,
        seconds=(how.start, how.end),
        pids=how.pids,
        pointer_size=reading.pointer_size,
    )
    notes = []
    if len(sources) > 1 and done.boots > 1:
        notes.append("the inputs come from different uptimes: one process id may mean different processes")
    if done.header.events_lost or done.header.buffers_lost:
        notes.append(f"the recording lost {done.header.events_lost} events and {done.header.buffers_lost} buffers")
    return Conversion(f"{done.kept} of {done.events} events written", done.damage, notes)


def _cut(line: _TimeLine, seconds: tuple[Fraction | None, Fraction | None], pids: frozenset[int]) -> Cut:
    if seconds != (None, None) and not line.log.frequency:
        raise FormatError(
            "the log's clock has no frequency, so it cannot be cut by time", field="PerfFreq", value=line.log.perf_freq
        )
    ticks = [None if part is None else line.log.timestamp + line.log.clock.ticks(part) for part in seconds]
    cut = Cut(ticks[0], ticks[1], pids)
    if pids:
        cut.owners = Owners()
        for log in line.logs:
            for block in log.blocks():
                cut.owners.learn(block)
    return cut


def _header(line: _TimeLine, compress: bool | None, header_events: int) -> LogHeader:
    """The log file header of the output."""
    headers = line.headers
    squeeze = headers[0].compressed if compress is None else compress
    mode = line.log.mode & ~_DROPPED_MODES | LogFileMode.FILE_MODE_SEQUENTIAL | squeeze * LogFileMode.COMPRESSED_MODE
    if len(headers) > 1:
        mode &= ~LogFileMode.NO_PER_PROCESSOR_BUFFERING
    size = max(LEAST_BUFFER, *(min(h.buffer_size, MAX_BUFFER) for h in headers)) + 1023 & ~1023
    least = BUFFER_HEADER_SIZE + len(encode_log_header(line.log)) + 8 + header_events
    while size < least and size < MAX_BUFFER and not squeeze:
        size *= 2
    return replace(
        line.log,
        mode=mode,
        buffer_size=min(size, MAX_BUFFER),
        processors=line.processors,
        maximum_file_size=0,
        end_time=max(h.end_time for h in headers),
        events_lost=sum(h.events_lost for h in headers),
        buffers_lost=sum(h.buffers_lost for h in headers),
        pointer_size=_pointer_size(headers),
    )


def _pointer_size(headers: Sequence[LogHeader]) -> int:
    return max((h.pointer_size for h in headers if h.pointer_size in (4, 8)), default=8)


def _append(packer: Packer, run: Run, seen: set[tuple[int, int]]) -> int:
    """Add the events of ``run`` to ``packer``; their number."""
    for block in run.blocks:
        _mark_losses(packer, block, seen)
    events = join_runs([run], ["time"])
    cpu, time, length = events.cpu, events.time, events.size + 7 >> 3
    for turn in packer.turns(cpu, time):
        for processor in distinct(cpu[turn]).tolist():
            rows = turn.start + np.flatnonzero(cpu[turn] == processor)
            data = events.words.take(ranges(events.at[rows], length[rows])).tobytes()
            packer.extend(processor, data, np.cumsum(length[rows]) * 8, time[rows])
    return len(events)


def _mark_losses(packer: Packer, block: EventBlock, seen: set[tuple[int, int]]) -> None:
    buffers = block.window.buffers
    for row in np.flatnonzero(buffers.flags & _LOST).tolist():
        key = (id(block.window.header), int(buffers.offset[row]))
        if key not in seen:
            seen.add(key)
            packer.mark(int(buffers.cpu[row]), int(buffers.flags[row]) & _LOST)
