"""``perf script`` text to a profile: one index pass, then a stream that reads the text again.

The text says less than a perf.data: not which branches were requested (assumed to be any), and often neither processes
nor times. Samples without a process belong to the process of the mappings; where several processes have mappings, the
newest mapping of an address counts, as in llvm-profgen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays import offsets_of
from ...errors import Damage, FormatError
from ...lbr import PERF_SELECT
from ...model import (
    BRANCH,
    FRAME,
    KERNEL_HALF,
    MAX_SAMPLES,
    Array,
    Change,
    Clock,
    Event,
    Mode,
    Module,
    Profile,
    Progress,
    SampleBatch,
    SampleStream,
    Source,
    kernel_start,
    watermarks,
)
from ...threads import Threads
from ..perfdata.state import classify
from .encodings import is_text, one_byte_text
from .headers import NOTHING, Header, Headers
from .text import (
    RECORD,
    Entries,
    Map,
    Task,
    TextBlock,
    decode_flags,
    find_entries,
    hexadecimal,
    parse_record,
    time_before_record,
    walk_blocks,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["is_perfscript", "read_perfscript"]


# -- Lines to samples: what belongs together, line by line; the entries themselves are columns


_LONGEST_HEADER = 512
_LONGEST_PLAIN = 20
_COMMENTS = (b"/", b";", b"#")
"""First letters of comments, which people and perf write between the data."""
_ADDRESS = 0xFFFFFFFFFFFFFFFF
_MOST_NAMED = 1000
"""Most places of one kind of damage that are listed."""
MOST_REPEATED = 1 << 20
"""Most samples that one aggregated stack can mean: its count is limited to this."""


@dataclass(slots=True)
class Stacks:
    """Lines of a block that hold entries, as columns: the facts that a block alone gives.

    ``line`` its number, ``begin`` and ``entry`` the places of it and of its first entry in the text, ``first`` and
    ``depth`` its entries; ``plain``: only an address, ``ip``, is before them. ``records``: numbers of lines that hold
    `RECORD`.
    """

    line: NDArray[np.int64]
    begin: NDArray[np.int64]
    entry: NDArray[np.int64]
    first: NDArray[np.int64]
    depth: NDArray[np.int64]
    plain: NDArray[np.bool_]
    ip: NDArray[np.uint64]
    records: frozenset[int]


def stacks_of(block: TextBlock, entries: Entries) -> Stacks:
    """The lines of ``block`` with ``entries``."""
    first = np.searchsorted(entries.start, block.starts)
    depth = np.searchsorted(entries.start, block.ends) - first
    line = np.flatnonzero(depth)
    begin, first, depth = block.starts[line], first[line], depth[line]
    entry = entries.start[first]
    plain, ip = _addresses(block.text, begin, entry)
    records = _record_lines(block)
    if records:
        plain &= ~np.isin(line, list(records))
    return Stacks(line, begin, entry, first, depth, plain, ip, records)


def _addresses(
    text: NDArray[np.uint8], begin: NDArray[np.int64], entry: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """(whether the line has a number and no more before its first entry, the number) of each line."""
    end, digits = entry - 1, np.zeros(len(entry), np.int64)
    inside, letters = np.ones(len(entry), bool), np.zeros(len(entry), np.int64)
    for back in range(1, min(_LONGEST_PLAIN, int((end - begin).max(initial=0)) + 1)):
        mark = (text[np.maximum(end - back, begin)] > ord(" ")) & (end - back >= begin)
        letters += mark
        inside &= mark
        digits += inside
    plain = (digits > 0) & (digits <= 16) & (letters == digits) & (end - begin < _LONGEST_PLAIN) & (text[end] == 32)
    ip, read = hexadecimal(text, end - np.where(plain, digits, 1), end)
    return plain & read, ip


def _record_lines(block: TextBlock) -> frozenset[int]:
    data, places, at = block.text.tobytes(), [], -1
    while (at := data.find(RECORD, at + 1)) >= 0:
        places.append(at)
    if not places:
        return frozenset()
    return frozenset(np.searchsorted(block.ends, np.array(places, np.int64)).tolist())


@dataclass(slots=True)
class BlockSamples:
    """Samples of a block; ``headers`` and ``frames`` by their number, where they have any."""

    position: list[int] = field(default_factory=list)
    ip: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """How often each is there."""
    headers: dict[int, Header] = field(default_factory=dict)
    frames: dict[int, list[int]] = field(default_factory=dict)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    """(first, number) of entries that are in lines of another kind."""


class Lines:
    """Makes samples of lines; keeps what continues in the next block.

    ``on_record`` gets the text, the file offset and the time (ns) of each line with a record; ``on_damage`` what cannot
    be. ``headers`` learns from the first block.
    """

    def __init__(
        self,
        headers: Headers,
        on_record: Callable[[bytes, int, int | None], None],
        on_damage: Callable[[Damage], None],
    ) -> None:
        self._headers, self._on_record, self._on_damage = headers, on_record, on_damage
        self._unread = 0
        self._header: Header | None = None
        self._frames: list[tuple[int, int]] = []
        """(address, position) of lines that are only a number: frames of a call chain, or samples without entries."""
        self._count = 1
        self._with_ip = False
        """Whether samples have their address in the line of their entries, so that such lines are no frames."""

    def of_block(self, block: TextBlock, stacks: Stacks) -> BlockSamples:
        """The samples of ``block``."""
        if not self._headers.learned:
            self._headers.learn(*_header_lines(block, stacks))
        found = BlockSamples()
        # A line is special if it is not plain, or if lines before it may belong to it.
        apart = np.diff(stacks.line, prepend=-1) != 1
        special = np.flatnonzero(~stacks.plain | apart).tolist()
        done = 0
        for i in special:
            self._run(found, block, stacks, done, i)
            line, begin = int(stacks.line[i]), int(stacks.begin[i])
            before = int(stacks.line[i - 1]) + 1 if i else 0
            if line > before:
                self._between(block, before, line, found)
            first, depth = int(stacks.first[i]), int(stacks.depth[i])
            prefix = block.text[begin : int(stacks.entry[i])].tobytes()
            if line in stacks.records:
                found.dropped.append((first, depth))
                self._between(block, line, line + 1, found)
            elif prefix.lstrip()[:1] in _COMMENTS:
                found.dropped.append((first, depth))
            else:
                self._stack(found, prefix, block.position(begin), depth)
            done = i + 1
        self._run(found, block, stacks, done, len(stacks.line))
        self._between(block, int(stacks.line[-1]) + 1 if len(stacks.line) else 0, len(block.starts), found)
        return found

    def end(self, found: BlockSamples) -> None:
        """The file is over: what waits is a sample without entries."""
        self._without_stack(found)

    def _run(self, found: BlockSamples, block: TextBlock, stacks: Stacks, lo: int, hi: int) -> None:
        """Plain lines one after the other."""
        if lo < hi and (self._frames or self._header or self._count != 1):
            self._stack(found, b"%x" % int(stacks.ip[lo]), block.position(int(stacks.begin[lo])), int(stacks.depth[lo]))
            lo += 1
        if lo < hi:
            self._with_ip = True
            found.position += block.position(stacks.begin[lo:hi]).tolist()
            found.ip += stacks.ip[lo:hi].tolist()
            found.depth += stacks.depth[lo:hi].tolist()
            found.times += [1] * (hi - lo)

    def _stack(self, found: BlockSamples, prefix: bytes, position: int, depth: int) -> None:
        """A line with entries, which follow ``prefix``."""
        header, ip = self._header, _number(prefix)
        if ip is None:
            own = self._headers.read(prefix[:_LONGEST_HEADER], certain=False) if prefix.strip() else None
            if own is not None:
                header, ip = own, own.ip
        if ip is not None:
            self._with_ip = True
            if self._frames:
                self._without_stack(found)
        chain = [address for address, _ in self._frames]
        self._add(found, header, ip if ip is not None else (chain or [0])[0], chain, depth, position)

    def _add(
        self, found: BlockSamples, header: Header | None, ip: int, chain: list[int], depth: int, position: int
    ) -> None:
        number = len(found.ip)
        if header is not None:
            found.headers[number] = header
        if chain:
            found.frames[number] = chain
        found.ip.append(ip)
        found.depth.append(depth)
        found.position.append(position)
        found.times.append(self._count)
        self._header, self._frames, self._count = None, [], 1

    def _without_stack(self, found: BlockSamples) -> None:
        """Lines of numbers that no entries follow: samples with an empty stack, or one with a call chain."""
        frames, header = self._frames, self._header
        if frames and self._with_ip:
            for address, position in frames:
                self._add(found, header, address, [], 0, position)
        elif frames:
            chain = [address for address, _ in frames]
            self._add(found, header, chain[0], chain, 0, frames[0][1])
        self._header, self._frames = None, []

    def _between(self, block: TextBlock, first: int, past: int, found: BlockSamples) -> None:
        if first >= past:
            return
        starts, ends = block.starts[first:past].tolist(), block.ends[first:past].tolist()
        text, base = block.text[starts[0] : ends[-1]].tobytes(), starts[0]  # call chains have many short lines
        for start, end in zip(starts, ends, strict=True):
            self._other(text[start - base : end - base], block.position(start), found)

    def _other(self, line: bytes, at: int, found: BlockSamples) -> None:
        """A line without entries of a sample."""
        if not line or line.isspace():
            self._without_stack(found)
        elif (mark := line.find(RECORD)) >= 0:
            self._on_record(line[mark + len(RECORD) :].rstrip(b"\r"), at, time_before_record(line[:mark]))
        elif line.rstrip().isdigit():
            self._repeat_stack(int(line[:_LONGEST_PLAIN]), at)
        elif line[:1].isspace() and (address := _number(line.split(None, 1)[0])) is not None:
            header = None if line[:1] == b"\t" else self._headers.read_known(line[:_LONGEST_HEADER].rstrip())
            if header is None:
                self._frames.append((address, at))
            else:  # of a name that is a number: ``add``, ``12 34``
                self._sample(found, header, at)
        elif header := self._headers.read(line[:_LONGEST_HEADER].rstrip()):
            self._sample(found, header, at)
        elif line.lstrip()[:1] not in _COMMENTS and self._unread < _MOST_NAMED:
            self._unread += 1
            self._on_damage(Damage("line that cannot be read", at, "line", line[:80]))

    def _sample(self, found: BlockSamples, header: Header, at: int) -> None:
        """The line of a sample whose call chain or entries follow."""
        self._without_stack(found)
        self._header = header
        if header.ip is not None:  # perf prints nothing after it where the stack is empty
            self._add(found, header, header.ip, [], 0, at)

    def _repeat_stack(self, count: int, at: int) -> None:
        """A line with the number of times that the next stack was seen."""
        if count > MOST_REPEATED:
            self._on_damage(Damage(f"more than {MOST_REPEATED} times the same stack", at, "count", count))
        self._count = min(count, MOST_REPEATED)


_LEARNED_LINES = 4000


def _header_lines(block: TextBlock, stacks: Stacks) -> tuple[list[bytes], list[bytes], set[int]]:
    """(text before the entries of a line, lines without entries that may be samples, threads that records name), from
    the first lines of ``block``."""
    entry = dict(zip(stacks.line.tolist(), zip(stacks.entry.tolist(), stacks.plain.tolist(), strict=True), strict=True))
    before_entries, others, tids = list[bytes](), list[bytes](), set[int]()
    for number in range(min(len(block.starts), _LEARNED_LINES)):
        end, plain = entry.get(number, (int(block.ends[number]), False))
        line = block.text[int(block.starts[number]) : min(end, int(block.starts[number]) + _LONGEST_HEADER)].tobytes()
        if (mark := line.find(RECORD)) >= 0:
            with suppress(ValueError):
                if record := parse_record(line[mark + len(RECORD) :].rstrip()):
                    tids.add(record.tid)
        elif plain or line[:1] in (b"", b"\t", *_COMMENTS) or not line.strip() or line.strip().isdigit():
            continue
        elif number in entry:
            before_entries.append(line)
        elif not line[:1].isspace() or _number(line.split(None, 1)[0]) is None:
            others.append(line)
    return before_entries, others, tids


def _number(text: bytes) -> int | None:
    try:
        return int(text, 16) & _ADDRESS
    except ValueError:
        return None


# -- What is known from one block of text alone: its entries, as columns


_THREADS, _AHEAD = 2, 3
_NONE = np.empty(0, np.int64)


class Scanned(NamedTuple):
    """The facts that a block alone gives; ``columns`` (from, to, flags), if requested."""

    block: TextBlock
    entries: Entries
    stacks: Stacks
    columns: tuple[Array, ...] = ()
    broken: Array = _NONE
    """Entries that cannot be read: zeros in the columns."""


def scan(block: TextBlock) -> Scanned:
    """The places of the entries of ``block``."""
    entries = find_entries(block.text)
    return Scanned(block, entries, stacks_of(block, entries))


def scan_all(block: TextBlock) -> Scanned:
    """The entries of ``block``, decoded."""
    entries = find_entries(block.text)
    stacks, good = stacks_of(block, entries), entries.only(entries.good)
    source, source_read = hexadecimal(block.text, good.start + 2, good.high - 3)
    target, target_read = hexadecimal(block.text, good.high, good.end)
    flags, flags_read = decode_flags(block.text, good)
    columns = (source, target, flags)
    read = source_read & target_read & flags_read
    if len(good) == len(entries) and read.all():
        return Scanned(block, entries, stacks, columns)
    where = np.flatnonzero(entries.good)[read]
    spread = tuple(np.zeros(len(entries), np.uint64) for _ in columns)
    for column, values in zip(spread, columns, strict=True):
        column[where] = values[read]
    return Scanned(block, entries, stacks, spread, np.setdiff1d(np.arange(len(entries)), where))


def scan_ahead(look: Callable[[TextBlock], Scanned], blocks: Iterable[TextBlock]) -> Iterator[Scanned]:
    """The result of ``look`` for each of ``blocks``, in order; the next blocks are looked at on other threads."""
    pool = Threads(_THREADS, "lastbranch-text")
    waiting: deque[Future[Scanned]] = deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(look, block))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.close()


# -- The tables of a profile, from what the lines of a text say


_ANY = PERF_SELECT["ANY"]
_LAST = (1 << 64) - 1
_NO_EVENT = "samples"
_TASKS = {"FORK": Change.FORK, "EXIT": Change.EXIT}


class ProfileTables:
    """Gathers events, modules and the timeline of ``profile``."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        profile.recorder = "perf script"
        profile.machine.os = "Linux"
        self.maps: list[tuple[Map, int, int | None]] = []
        """Mappings with their place in the file and their time, where they have one."""
        self._tasks: list[tuple[Task, int, int | None]] = []
        self.events: dict[str, int] = {}
        self._modules: dict[tuple[str, bytes], int] = {}
        self._pids = False
        """Whether samples name their process or thread."""
        self._names: dict[tuple[int | None, int], str] = {}
        self._named: list[tuple[int, int, str]] = []
        """(time, thread, name) of threads whose process is not printed."""
        self._process_of: dict[int, int] = {}
        """The processes of such threads."""

    @property
    def weight(self) -> int:
        """Bytes that this takes, about, with what is made of it in the end."""
        return 900 * (len(self.maps) + len(self._tasks) + len(self._names)) + 100 * len(self.profile.records)

    def event_of(self, name: str | None) -> int:
        """The row of the event of that name."""
        return self.events[name or _NO_EVENT]

    def see(self, found: BlockSamples) -> None:
        """Learn events and threads from samples."""
        profile = self.profile
        headers = dict.fromkeys(found.headers.values())  # in the order of the text
        if len(found.headers) < len(found.ip):
            headers[NOTHING] = None
        for header in headers:
            name = header.event or _NO_EVENT
            if name not in self.events:
                self.events[name] = len(profile.events)
                has_period = header.period is not None
                profile.events.append(Event(name, branch_select=_ANY, has_period=has_period))
            if header.tid is None:
                continue
            self._pids = True
            task = (header.pid, header.tid)
            if header.pid is None:
                self._process_of.setdefault(header.tid, header.tid)
            else:
                profile.seen_threads.add((header.pid, header.tid))
            if header.comm and self._names.get(task) != header.comm:
                self._names[task] = header.comm
                if header.pid is None:
                    self._named.append((header.time or 0, header.tid, header.comm))
                else:
                    profile.timeline.name(header.time or 0, header.pid, header.tid, header.comm)
        for event in {self.event_of(found.headers.get(number, NOTHING).event) for number in found.frames}:
            profile.events[event].has_callchain = True

    def add(self, record: Map | Task | None, text: bytes, offset: int, time: int | None) -> None:
        """A record other than a sample."""
        kind = text.split(b" ", 1)[0].split(b"(", 1)[0].rstrip(b":").decode("ascii", "replace")
        records = self.profile.records
        records[kind] = records.get(kind, 0) + 1
        if isinstance(record, Map):
            self.maps.append((record, offset, time))
        elif isinstance(record, Task):
            self._tasks.append((record, offset, time))

    def finish(self, timed: bool) -> int:
        """Fill the timeline; ``timed``: samples have times. Returns the process of samples that name none."""
        users = {m.pid for m, _, _ in self.maps if m.pid >= 0}
        alone = users.pop() if len(users) == 1 else 0
        self._find_processes(alone)
        for task, offset, time in self._tasks:
            if not self._pids:
                break  # one address space for all: which process a change belongs to is not known
            self._task(task, (time or 0) if timed else offset)
        for record, offset, time in self.maps:
            kernel = record.pid < 0
            pid = -1 if kernel else (record.pid if self._pids else alone)
            self._map(record, pid, kernel, (time or 0) if timed else offset)
        return -1 if self._pids else alone

    def _find_processes(self, alone: int) -> None:
        """The processes of threads that samples name without their process. ``alone``: the only process with mappings,
        0 if there are several."""
        records: list[Task | Map] = [task for task, _, _ in self._tasks]
        records += [record for record, _, _ in self.maps]
        threads = {record.tid: record.pid for record in records if record.pid >= 0}
        if not self._process_of.keys() <= set(threads.values()):  # else -F pid printed the processes
            unknown = self._process_of.keys() - threads.keys() - {0}
            self._process_of |= {tid: threads[tid] for tid in self._process_of.keys() & threads.keys()}
            if unknown and alone:
                self._process_of |= dict.fromkeys(unknown, alone)
                self.profile.notes.append(
                    f"the text does not say which process {len(unknown)} threads belong to: they are taken for threads "
                    f"of process {alone}, the only one with mappings (--show-task-events says it)"
                )
            elif unknown and threads:
                self.profile.notes.append(
                    f"the text does not say which process {len(unknown)} threads belong to: each is taken for a "
                    "process (perf script -F pid,tid or --show-task-events says it)"
                )
        for time, tid, name in self._named:
            self.profile.timeline.name(time, self._process_of[tid], tid, name)
        self.profile.seen_threads.update((pid, tid) for tid, pid in self._process_of.items())

    def task_of(self, header: Header) -> tuple[int, int] | None:
        """(process, thread) of a sample; ``None`` if neither is printed. Known after `finish`."""
        if header.tid is None:
            return None
        return (self._process_of[header.tid] if header.pid is None else header.pid, header.tid)

    def _task(self, task: Task, time: int) -> None:
        timeline = self.profile.timeline
        if task.kind == "COMM":
            if task.parent:
                timeline.add(Change.EXEC, time, task.pid, tid=task.tid)
            timeline.name(time, task.pid, task.tid, task.name)
            return
        timeline.add(_TASKS[task.kind], time, task.pid, tid=task.tid, parent=task.parent, offset=int(time == 0))

    def _map(self, record: Map, pid: int, kernel: bool, time: int) -> None:
        name, kind = classify(record.name, kernel)
        windows = "\\" in name
        row = self._modules.get((name, record.build_id))
        if row is None:
            row = self._modules[name, record.build_id] = len(self.profile.modules)
            self.profile.modules.append(Module(name, kind, record.build_id, size=record.size if windows else 0))
        # of a PE file the text has the start of its code; addresses count from the image's base
        offset = 0 if windows else record.offset
        if kernel and record.name.endswith("]_stext"):
            offset &= ~0xFFF
        end = min(record.start + record.size, _LAST)
        self.profile.timeline.add(
            Change.MAP, time, pid, tid=record.tid, module=row, start=record.start, end=end, offset=offset
        )


_FOREVER = np.iinfo(np.int64).max
_ENTRY_COLUMNS = ("branch_from", "branch_to", "branch_flags")


def is_perfscript(start: bytes) -> bool:
    """Whether ``start`` is the beginning of a text; what kind of, only more of it can tell."""
    return is_text(start) and not start.startswith(b"PERFILE")


def read_perfscript(source: Source, progress: Progress | None = None) -> Profile:
    """Index ``source``. Raises `FormatError` where its first block has nothing that `perf script` prints.

    Other damage is in ``profile.damage``. Unreadable entries are found when the samples are read; they become empty
    entries.
    """
    return _TextReader(one_byte_text(source)).index(progress)


class _TextReader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.profile = Profile(source.name, "perf script")
        self.tables, self.damage = ProfileTables(self.profile), self.profile.damage
        self.headers = Headers()
        self.profile.memory = source.limits.memory_of(source.size)
        self.earliest: list[int] = []
        """Of each block that is read: blocks past them are not, where the tables have no room for more."""
        self.timed = self.chained = False
        self.pid, self.kernel_start = -1, np.uint64(KERNEL_HALF)
        self._known_damage: set[int] = set()

    # -- index pass

    def index(self, progress: Progress | None) -> Profile:
        """Read every line once: tables, counts, and the earliest time of each block."""
        profile, tables, size = self.profile, self.tables, self.source.size
        lines = Lines(self.headers, self._record, profile.damage.append)
        samples = entries = deepest = 0
        for scanned, found in self._walk(scan, lines, profile.damage):
            block = scanned.block
            if not samples and found.ip:
                self.timed = found.headers.get(0, NOTHING).time is not None
            tables.see(found)
            samples += sum(found.times)
            entries += sum(d * n for d, n in zip(found.depth, found.times, strict=True))
            deepest = max(deepest, max(found.depth, default=0))
            self.chained = self.chained or bool(found.frames)
            times = self._times(found)
            self.earliest.append(min(times, default=int(_FOREVER)))
            if times:
                profile.extend_time_range(min(times), max(times))
            if not samples and not tables.maps and not len(scanned.entries) and not block.offset:
                raise self._nothing()
            profile.timeline.place(block.offset)
            if profile.over_memory_limit(block.offset, tables.weight):
                break
            if progress:
                progress(min(block.offset + len(block.text), size), size)
        if not samples and not tables.maps:
            raise self._nothing()
        self.pid = tables.finish(self.timed)
        if self.headers.unsure:
            profile.notes.append(
                f"{self.headers.unsure} lines can be read in two ways: with a name that ends in a number, or without; "
                "they are read as with such a name (the widths of perf script's columns, or COMM lines, would tell)"
            )
        self.kernel_start = np.uint64(kernel_start(profile.timeline.columns()))
        columns = ("position", "branch_from", "branch_to", "branch_flags", *(("frame",) if self.chained else ()))
        profile.records["SAMPLE"] = samples
        profile.begin()
        profile.clock = Clock("perf_clock") if self.timed else Clock("file order", 0)
        profile.streams.append(
            SampleStream(0, columns, tuple(range(len(profile.events))), samples, entries, deepest, self._batches)
        )
        del self.profile, tables.profile  # it has the stream, which reads by this: they would be a cycle
        return profile

    def _nothing(self) -> FormatError:
        value = bytearray(8)
        got = self.source.readinto(0, memoryview(value))
        return FormatError(
            "not a capture that lastbranch can read",
            file=self.source.name,
            offset=0,
            field="magic",
            value=bytes(value[:got]),
            hint="the only text it reads is that of `perf script --show-mmap-events -F ip,brstack`: a line for each "
            "sample",
        )

    def _record(self, text: bytes, offset: int, time: int | None) -> None:
        """A line with a record; its time, where the line begins with one."""
        try:
            record = parse_record(text)
        except ValueError as error:
            self.damage.append(Damage(str(error), offset, "PERF_RECORD", text[:80]))
            return
        self.tables.add(record, text, offset, time)

    def _walk(
        self, look: Callable[[TextBlock], Scanned], lines: Lines, damage: list[Damage] | None
    ) -> Iterator[tuple[Scanned, BlockSamples]]:
        """Blocks as ``look`` sees them, and the samples of the blocks."""
        last = None
        for scanned in scan_ahead(look, walk_blocks(self.source, damage)):
            if last is not None:
                yield last
            last = scanned, lines.of_block(scanned.block, scanned.stacks)
        if last is not None:
            lines.end(last[1])
            yield last

    def _times(self, found: BlockSamples) -> list[int]:
        if not self.timed:
            return found.position
        return [found.headers.get(i, NOTHING).time or 0 for i in range(len(found.ip))]

    # -- stream

    def _batches(self, wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
        later = watermarks(self.earliest)
        lines = Lines(self.headers, lambda *_: None, lambda _: None)
        for number, (scanned, found) in enumerate(islice(self._walk(scan_all, lines, None), len(self.earliest))):
            if not found.ip:
                continue
            whole = self._batch(scanned, found, wanted)
            times = np.array(found.times, np.int64)
            watermark = int(later[number])
            for batch in _repeat(whole, times):
                rest = min(watermark, int(whole.time.min()))
                yield batch, rest

    def _batch(self, scanned: Scanned, found: BlockSamples, wanted: frozenset[str] | None) -> SampleBatch:
        ip = np.array(found.ip, np.uint64)
        columns: dict[str, Array] = {
            "time": np.array(self._times(found), np.int64),
            "ip": ip,
            "mode": np.where(ip >= self.kernel_start, np.uint8(Mode.KERNEL), np.uint8(Mode.USER)),
            **self._headers(found),
        }
        offsets = {BRANCH: offsets_of(np.array(found.depth, np.int64))}
        if wanted is None or "position" in wanted:
            columns["position"] = np.array(found.position, np.int64)
        kept = _without(len(scanned.entries), found.dropped)
        self._note_broken(scanned, kept)
        for name, values in zip(_ENTRY_COLUMNS, scanned.columns, strict=True):
            columns[name] = values if kept is None else values[kept]
        if self.chained and (wanted is None or "frame" in wanted):
            chains = [found.frames.get(i, []) for i in range(len(ip))]
            columns["frame"] = np.array([f for frames in chains for f in frames], np.uint64)
            offsets[FRAME] = offsets_of(np.array([len(frames) for frames in chains], np.int64))
        return SampleBatch(columns, offsets)

    def _headers(self, found: BlockSamples) -> dict[str, Array]:
        """The columns that come from headers."""
        number, tables = len(found.ip), self.tables
        columns: dict[str, Array] = {
            "pid": np.full(number, self.pid, np.int32),
            "tid": np.full(number, self.pid, np.int32),
            "cpu": np.full(number, -1, np.int32),
            "event": np.zeros(number, np.int32),
            "period": np.zeros(number, np.uint64),
        }
        if found.headers:
            rows, headers = np.array(list(found.headers), np.int64), list(found.headers.values())
            tasks = np.array([tables.task_of(header) or (self.pid, self.pid) for header in headers], np.int32)
            columns["pid"][rows], columns["tid"][rows] = tasks.T
            columns["cpu"][rows] = [-1 if h.cpu is None else h.cpu for h in headers]
            columns["period"][rows] = [h.period or 0 for h in headers]
            columns["event"][rows] = [tables.event_of(h.event) for h in headers]
        if len(found.headers) < number and len(tables.events) > 1:
            bare = np.ones(number, bool)
            bare[list(found.headers)] = False
            columns["event"][bare] = tables.event_of(None)
        return columns

    def _note_broken(self, scanned: Scanned, kept: NDArray[np.bool_] | None) -> None:
        """Note entries that cannot be read, once."""
        rows = scanned.broken if kept is None else scanned.broken[kept[scanned.broken]]
        for place in scanned.entries.start[rows].tolist():
            offset = scanned.block.position(place)
            if offset not in self._known_damage and len(self._known_damage) < _MOST_NAMED:
                self._known_damage.add(offset)
                value = scanned.block.text[place : place + 40].tobytes().split(None, 1)[0]
                self.damage.append(Damage("branch entry that cannot be read", offset, "brstack", value))


def _without(number: int, dropped: list[tuple[int, int]]) -> NDArray[np.bool_] | None:
    """Which of ``number`` entries are left without the runs ``dropped``; ``None`` for all."""
    if not dropped:
        return None
    kept = np.ones(number, bool)
    for first, length in dropped:
        kept[first : first + length] = False
    return kept


def _repeat(batch: SampleBatch, times: NDArray[np.int64]) -> Iterator[SampleBatch]:
    """``batch`` with each sample repeated ``times`` times, in pieces."""
    if (times == 1).all():
        yield from batch.split()
        return
    ends = np.cumsum(times)
    for first in range(0, int(ends[-1]), MAX_SAMPLES):
        rows = np.searchsorted(ends, np.arange(first, min(first + MAX_SAMPLES, int(ends[-1]))), side="right")
        yield batch.select(rows)
