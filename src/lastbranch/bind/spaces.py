"""Address spaces over time: the replay of a `Timeline`, and the index of what is mapped (`SpaceIndex`).

A *moment* is a number of changes that have happened: 0 before the first, ``i`` after the ``i``-th in time order. It
replaces time in every lookup, so changes with equal time stamps keep the order of the file. An *epoch* is an interval
of moments in which the mappings of one process do not change. A forked child shares its parent's pieces until it maps
something itself, so a fork costs nothing.

All tables are columns: a capture can have millions of changes, and a file of some kilobytes can claim to. Their memory
is bounded; changes beyond the bound are not replayed, and `Replay.last` is the moment before them.

The index answers many lookups of (address space, moment, address) at once:

* A *piece* is one value's rectangle: a range of addresses in one space, over a range of moments. Pieces never overlap.
* A *slab* is a range of addresses between two neighbouring bounds of pieces, so that no piece begins or ends inside.
* A *row* is one piece within one slab. The rows of a slab follow each other in time.

A query finds its slab by address, and in the slab the row by moment. Large queries are sorted, and the slab starts are
searched in them. Measured with 70 thousand slabs and 256 thousand queries: 23 million queries a second, against 4 to 9
million if each query is searched among the slabs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..arrays import distinct, ranges
from ..model import KERNEL, KERNEL_HALF, Array, Change, Load, Process, Rows, Thread, Timeline, kernel_map_start

__all__ = ["BY_ADDRESS", "Ids", "RUN", "Replay", "SpaceIndex", "loads_of", "replay"]


# -- Replay: process lives and their address spaces


# -- The address space of one process, as it is now


Row = tuple[int, int, int, int]
"""(start, end, mapping, the moment it came)."""

_MOST = 1024
"""Most intervals of a chunk: a change moves no more, however many the space has."""


@dataclass(slots=True)
class _Chunk:
    """Neighbouring intervals as columns of equal length, 32 bytes each."""

    starts: array[int]
    ends: array[int]
    owners: array[int]
    since: array[int]

    def replace(self, i: int, j: int, rows: list[Row]) -> None:
        """Put ``rows`` where the intervals ``i:j`` are."""
        if len(rows) == 1 and j == i + 1:  # most mappings take the place of one
            self.starts[i], self.ends[i], self.owners[i], self.since[i] = rows[0]
            return
        self.starts[i:j] = array("Q", [row[0] for row in rows])
        self.ends[i:j] = array("Q", [row[1] for row in rows])
        self.owners[i:j] = array("q", [row[2] for row in rows])
        self.since[i:j] = array("q", [row[3] for row in rows])

    def part(self, i: int, j: int) -> _Chunk:
        return _Chunk(self.starts[i:j], self.ends[i:j], self.owners[i:j], self.since[i:j])


def _end(chunk: _Chunk) -> int:
    return chunk.ends[-1]


@dataclass(slots=True)
class Space:
    """Mapped intervals, sorted and disjoint, in chunks that are never empty."""

    number: int
    shared: bool = False
    """Whether a child still sees it as it was at the fork."""
    chunks: list[_Chunk] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(chunk.starts) for chunk in self.chunks)

    def copy(self) -> Space:
        return Space(self.number, chunks=[chunk.part(0, len(chunk.starts)) for chunk in self.chunks])

    def renew(self, number: int, moment: int) -> None:
        """Make it space ``number``, in which all intervals came at ``moment``."""
        self.number = number
        for chunk in self.chunks:
            chunk.since = array("q", [moment]) * len(chunk.starts)

    def holds(self, start: int, end: int, mapping: int) -> bool:
        """Whether exactly this interval already belongs to ``mapping``: rundown events repeat mappings."""
        at = bisect_right(self.chunks, start, key=_end)
        if at == len(self.chunks):
            return False
        chunk = self.chunks[at]
        i = bisect_right(chunk.ends, start)
        return (chunk.starts[i], chunk.ends[i], chunk.owners[i]) == (start, end, mapping)

    def put(self, moment: int, start: int, end: int, mapping: int) -> list[Row]:
        """Give ``start:end`` to ``mapping`` (-1: none). Returns the intervals that it replaces, cut to fit."""
        chunks = self.chunks
        first = bisect_right(chunks, start, key=_end)
        taken: list[Row] = []
        rows: list[Row] = []
        after: list[Row] = []
        past, i, j = first, 0, 0
        while past < len(chunks) and chunks[past].starts[0] < end:
            chunk = chunks[past]
            lo, j = bisect_right(chunk.ends, start), bisect_left(chunk.starts, end)
            i = lo if past == first else i
            for k in range(lo, j):
                a, b, owner, since = chunk.starts[k], chunk.ends[k], chunk.owners[k], chunk.since[k]
                taken.append((max(a, start), min(b, end), owner, since))
                if a < start:
                    rows.append((a, start, owner, since))
                if b > end:
                    after.append((end, b, owner, since))
            past += 1
        if mapping >= 0:
            rows.append((start, end, mapping, moment))
        rows += after
        if past <= first:  # free: before the next chunk, or after the last one
            if first == len(chunks):
                if not chunks:
                    chunks.append(_Chunk(array("Q"), array("Q"), array("q"), array("q")))
                first = len(chunks) - 1
                i = len(chunks[first].starts)
            j, past = i, first + 1
        if past == first + 1:
            chunks[first].replace(i, j, rows)
        else:  # from the middle of one chunk to the middle of another
            chunks[past - 1].replace(0, j, [])
            chunks[first].replace(i, len(chunks[first].starts), rows)
            del chunks[first + 1 : past - 1]
        self._tidy(first)
        return taken

    def _tidy(self, at: int) -> None:
        """Split the chunk ``at`` if it is too large; drop this chunk and the next if both are empty."""
        for i in (at + 1, at):
            if i < len(self.chunks) and not self.chunks[i].starts:
                del self.chunks[i]
        chunk = self.chunks[at] if at < len(self.chunks) else None
        if chunk and len(chunk.starts) > _MOST:
            half = len(chunk.starts) // 2
            self.chunks[at : at + 1] = [chunk.part(0, half), chunk.part(half, len(chunk.starts))]


FOREVER = (1 << 62) - 1
NEVER = -(1 << 63)
"""In a column of times: not known."""
Placement = Callable[[int, int, int, int], Iterable[tuple[int, int, int]]]
"""(module, start, end, file offset) -> (start, end, bias) pieces: cut where the bias to module addresses changes."""

# Bytes of a row, at most, during building and look-up: the columns, the index over the columns and arrays for sorting.
_PROCESS_COST, _THREAD_COST, _EPOCH_COST, _SPACE_COST, _PIECE_COST, _COPY_COST = 160, 180, 80, 600, 240, 270


class SpaceTable:
    """Columns of 64-bit integers by name, which grow row by row."""

    def __init__(self, names: str, codes: str = "") -> None:
        self.columns = {n: array(c) for n, c in zip(names.split(), codes or "q" * len(names.split()), strict=True)}
        self._append = [column.append for column in self.columns.values()]
        self._first = next(iter(self.columns.values()))

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, name: str) -> array[int]:
        return self.columns[name]

    def add(self, *values: int) -> int:
        """Append a row; its number."""
        for append, value in zip(self._append, values, strict=True):
            append(value)
        return len(self._first) - 1

    def array(self, name: str) -> Array:
        """A column for NumPy, int64 or uint64, without a copy: the table must not grow after that."""
        column = self.columns[name]
        return np.frombuffer(column, column.typecode) if column else np.empty(0, column.typecode)


class _Full(Exception):
    """The tables have reached their limit of memory."""


@dataclass(slots=True)
class _Life:
    """The current life of a process id: its row and its address space."""

    row: int
    epoch: int
    space: Space
    owner: bool
    main: int = -1
    """Row of the thread whose id is that of the process."""


class Replay:
    """Result of `replay`: tables of processes and threads, epochs, mappings and the pieces of all spaces."""

    def __init__(self, names: list[str], room: int) -> None:
        self.process_table = SpaceTable("pid name parent start end ran")
        self.thread_table = SpaceTable("tid process name start end first ran")
        """``ran`` is CPU time in ns, -1 where it is not known."""
        self.epochs = SpaceTable("pid first process space moment")
        """From moment ``first`` on (until the pid's next epoch) ``process`` sees ``space`` as it was at ``moment``."""
        self.pieces = SpaceTable("space lo hi first last mapping", "qQQqqq")
        self.mappings = SpaceTable("module bias", "qQ")
        self.kernel_changes = array("q")
        """Moments at which the mappings of a kernel changed, or those of a guest."""
        self.guests: dict[int, int] = {}
        """Number of the space of each owner of guest mappings (`model.guest_kernel`, `model.guest_user`)."""
        self.times = np.empty(0, np.int64)
        self.last: int | None = None
        """The last moment that was replayed, where there was no room for all."""
        self._names = names
        self.room = room
        self._kernel = Space(0)
        self._spaces: dict[int, Space] = {}
        """Spaces that their owners can still change, from their first mapping on."""
        self._made = 1
        self._lives: dict[int, _Life] = {}
        self._thread_rows: dict[int, int] = {}
        """Threads beside the first one of a process: (process row, tid) in one word -> newest row."""
        self._mapping_rows: dict[tuple[int, int], int] = {}

    def _spend(self, cost: int) -> None:
        self.room -= cost
        if self.room < 0:
            raise _Full

    @property
    def processes(self) -> Rows[Process]:
        c = self.process_table

        def made(row: int) -> Process:
            start, end = _times(c, row)
            return Process(c["pid"][row], self._name(c, row), c["parent"][row], start, end, cpu_ns=_ran(c, row))

        return Rows(len(c), made)

    @property
    def threads(self) -> Rows[Thread]:
        c = self.thread_table

        def made(row: int) -> Thread:
            start, end = _times(c, row)
            return Thread(c["tid"][row], c["process"][row], self._name(c, row), start, end, _ran(c, row))

        return Rows(len(c), made)

    def _name(self, table: SpaceTable, row: int) -> str:
        name = table["name"][row]
        return self._names[name] if name >= 0 else ""

    # -- Lives

    def life(self, pid: int, moment: int = 0) -> _Life:
        """The current life of ``pid``; a life without a start if no record reported the process."""
        found = self._lives.get(pid)
        return found if found is not None else self._begin(pid, moment, None, -1)

    def thread(self, pid: int, tid: int) -> int:
        """The row of thread ``tid`` of the current life of ``pid``, added if it is missing."""
        life = self.life(pid)
        row = self._row_of(life, pid, tid)
        return self._add_thread(life, pid, tid, 0, NEVER) if row < 0 else row

    def _row_of(self, life: _Life, pid: int, tid: int) -> int:
        return life.main if tid == pid else self._thread_rows.get(life.row << 32 | tid & 0xFFFFFFFF, -1)

    def _begin(self, pid: int, moment: int, time: int | None, parent: int, *, copies: bool = True) -> _Life:
        self._spend(_PROCESS_COST + _EPOCH_COST)
        name, source = -1, None
        if parent >= 0:
            source = self.life(parent)
            name = self.process_table["name"][source.row]
        row = self.process_table.add(pid, name, parent if source else -1, time or NEVER, NEVER, -1)
        if source is not None and copies:
            space, owner = source.space, False
            space.shared = True
            seen = self.epochs["space"][source.epoch], moment if source.owner else self.epochs["moment"][source.epoch]
        else:
            space, owner = self._new_space(), True
            seen = space.number, moment
        epoch = self.epochs.add(pid, 0 if time is None else moment, row, *seen)
        life = self._lives[pid] = _Life(row, epoch, space, owner)
        return life

    def _add_thread(self, life: _Life, pid: int, tid: int, moment: int, time: int) -> int:
        self._spend(_THREAD_COST)
        row = self.thread_table.add(tid, life.row, self.process_table["name"][life.row], time, NEVER, moment, -1)
        if tid == pid:
            life.main = row
        else:
            self._thread_rows[life.row << 32 | tid & 0xFFFFFFFF] = row
        return row

    # -- Changes, a method each

    def fork(self, moment: int, time: int, pid: int, tid: int, parent: int, copies: bool) -> None:
        if pid == parent:
            life = self.life(pid)
        else:
            life = self._begin(pid, moment, time, parent, copies=copies)
        row, began = self._row_of(life, pid, tid), time or NEVER
        if row < 0 or self.thread_table["start"][row] != began:  # its process's start or its name may have come first
            self._add_thread(life, pid, tid, moment, began)

    def exec(self, moment: int, pid: int) -> None:
        life = self.life(pid)
        life.space, life.owner = self._new_space(), True
        self._open(life, pid, moment)

    def exit(self, time: int, pid: int, tid: int) -> None:
        row, ends = self.life(pid).row, self.process_table["end"]
        ends[row] = max(ends[row], time)
        self.thread_table["end"][self.thread(pid, tid)] = time

    def name(self, pid: int, tid: int, name: int) -> None:
        self.thread_table["name"][self.thread(pid, tid)] = name
        if pid == tid:
            self.process_table["name"][self.life(pid).row] = name

    def ran(self, pid: int, tid: int, ns: int) -> None:
        """Add ``ns`` of CPU time to a thread and its process. A process that no other record names was not recorded,
        and is left out."""
        if pid not in self._lives:
            return
        for table, row in ((self.thread_table, self.thread(pid, tid)), (self.process_table, self._lives[pid].row)):
            column = table["ran"]
            column[row] = min(max(column[row], 0) + ns, FOREVER)

    def map(self, moment: int, pid: int, start: int, end: int, module: int, offset: int, place: Placement) -> None:
        shared = self._space_without_lives(pid, start)
        if shared is not None:
            if pid < 0:
                start = kernel_map_start(start, end, offset)
            changed = False
            for lo, hi, bias in place(module, start, end, offset):
                changed |= self._put(shared, moment, lo, hi, self._mapping(module, bias))
            if changed:
                self.kernel_changes.append(moment)
            return
        life = self.life(pid)
        for lo, hi, bias in place(module, start, end, offset):
            mapping = self._mapping(module, bias)
            if not life.space.holds(lo, hi, mapping):
                self._put(self._writable(life, moment), moment, lo, hi, mapping)
                self._open(life, pid, moment)

    def unmap(self, moment: int, pid: int, start: int, end: int) -> None:
        shared = self._space_without_lives(pid, start)
        if shared is not None:
            if self._put(shared, moment, kernel_map_start(start, end, 0) if pid < 0 else start, end, -1):
                self.kernel_changes.append(moment)
            return
        life = self.life(pid)
        if start < end:
            self._put(self._writable(life, moment), moment, start, end, -1)
            self._open(life, pid, moment)

    # -- Spaces

    def _space_without_lives(self, pid: int, start: int) -> Space | None:
        """The space of the kernel or of a guest, whose lives are not known; ``None``: that of a process of the host."""
        if pid == KERNEL or (pid >= 0 and start >= KERNEL_HALF):
            return self._kernel
        if pid >= 0:
            return None
        number = self.guests.get(pid)
        if number is None:
            self._spend(_SPACE_COST)
            space = self._new_space()
            number = self.guests[pid] = space.number
            self._spaces[number] = space
        return self._spaces[number]

    def _new_space(self) -> Space:
        space = Space(self._made)
        self._made += 1
        return space

    def _writable(self, life: _Life, moment: int) -> Space:
        """The life's space, copied first if a forked child shares it: the child's space must stay as of the fork."""
        space = life.space
        if space.shared or not life.owner:
            self._spend(_COPY_COST * len(space) if not life.owner else len(space))
            space = space.copy()
            if not life.owner:
                space.renew(self._made, moment)
                self._made += 1
            life.space, life.owner = space, True
        if space.number not in self._spaces:
            self._spend(_SPACE_COST)
        self._spaces[space.number] = space
        return space

    def _open(self, life: _Life, pid: int, moment: int) -> None:
        """From ``moment`` on, the life sees its own space; changes of one time make one epoch."""
        epochs, last = self.epochs, life.epoch
        began = epochs["first"][last]
        if began == 0 or (began != moment and self.times[began - 1] != self.times[moment - 1]):
            self._spend(_EPOCH_COST)
            life.epoch = epochs.add(pid, moment, life.row, life.space.number, moment)
            return
        epochs["first"][last], epochs["space"][last], epochs["moment"][last] = moment, life.space.number, moment

    def _mapping(self, module: int, bias: int) -> int:
        key = (module, bias)
        row = self._mapping_rows.get(key)
        if row is None:
            self._spend(_PIECE_COST)
            row = self._mapping_rows[key] = self.mappings.add(module, bias)
        return row

    def _put(self, space: Space, moment: int, start: int, end: int, mapping: int) -> bool:
        """Give ``start:end`` to ``mapping`` (-1: none). Mappings that this replaces end at this moment."""
        if start >= end or (mapping >= 0 and space.holds(start, end, mapping)):
            return False
        self._spend(_PIECE_COST)
        for lo, hi, owner, since in space.put(moment, start, end, mapping):
            if since < moment:
                self.pieces.add(space.number, lo, hi, since, moment, owner)
        return True

    def finish(self) -> None:
        """Keep all current mappings for ever."""
        for space in (self._kernel, *self._spaces.values()):
            for chunk in space.chunks:
                number, forever = (array("q", [value]) * len(chunk.starts) for value in (space.number, FOREVER))
                rows = (number, chunk.starts, chunk.ends, chunk.since, forever, chunk.owners)
                for column, values in zip(self.pieces.columns.values(), rows, strict=True):
                    column.extend(values)
        self._spaces.clear()


def _times(table: SpaceTable, row: int) -> tuple[int | None, int | None]:
    """(start, end) of a life; ``None``: not known."""
    start, end = table["start"][row], table["end"][row]
    return None if start == NEVER else start, None if end == NEVER else end


def _ran(table: SpaceTable, row: int) -> int | None:
    """CPU time of a life in ns; ``None``: not known."""
    return None if table["ran"][row] < 0 else table["ran"][row]


def replay(timeline: Timeline, place: Placement, room: int = 1 << 62) -> Replay:
    """Replay ``timeline`` in time order (equal times: file order), with tables of at most ``room`` bytes."""
    out = Replay(timeline.names, room)
    out.times, rows = timeline.in_time_order()
    moment = 0
    try:
        for moment, (kind, time, pid, tid, parent, module, start, end, offset) in enumerate(rows, 1):
            match kind:
                case Change.MAP:
                    out.map(moment, pid, start, end, module, offset, place)
                case Change.UNMAP:
                    out.unmap(moment, pid, start, end)
                case Change.FORK:
                    out.fork(moment, time, pid, tid, parent, copies=not offset)
                case Change.EXEC:
                    out.exec(moment, pid)
                case Change.EXIT:
                    out.exit(time, pid, tid)
                case Change.NAME:
                    out.name(pid, tid, module)
                case Change.RAN:
                    out.ran(pid, tid, start)
    except _Full:
        out.last = moment - 1
    out.finish()
    out.room = 1 << 62  # threads of samples are the reader's to count
    return out


# -- The replayed timeline as a list: module, process, addresses, and first and last time


def loads_of(timeline: Timeline) -> Iterator[Load]:
    """Every mapping of ``timeline`` in every process that saw it, inherited mappings included."""
    done = replay(timeline, lambda module, start, end, offset: [(start, end, 0)])
    times, modules = done.times, done.mappings["module"]

    def row(pid: int, module: int, lo: int, hi: int, since: int, until: int) -> Iterator[Load]:
        first = int(times[since - 1]) if since else None
        last = None if until >= FOREVER else int(times[until - 1])
        if lo < hi and since < until and (first is None or last is None or first < last):
            yield Load(pid, modules[module], lo, hi, first, last)

    of_space: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for space, lo, hi, since, until, mapping in zip(*done.pieces.columns.values(), strict=True):
        of_space.setdefault(space, []).append((lo, hi, since, until, mapping))
    for lo, hi, since, until, mapping in of_space.get(0, []):
        yield from row(-1, mapping, lo, hi, since, until)
    for pid, space, begin, end, frozen in _runs(done):
        for lo, hi, since, until, mapping in of_space.get(space, []):
            if frozen is None:
                yield from row(pid, mapping, lo, hi, max(since, begin), min(until, end))
            elif since <= frozen < until:
                yield from row(pid, mapping, lo, hi, max(since, begin), end)


def _runs(done: Replay) -> Iterator[tuple[int, int, int, int, int | None]]:
    """(pid, space, first moment, past, moment of the state that it sees, ``None``: the current one) of each process.

    A space changes with its owner, the process that it was made for. A child sees its parent's space as of the fork.
    """
    owner: dict[int, int] = {}
    e = done.epochs
    by_pid: dict[int, list[int]] = {}
    for row, (pid, process, space) in enumerate(zip(e["pid"], e["process"], e["space"], strict=True)):
        owner.setdefault(space, process)
        by_pid.setdefault(pid, []).append(row)
    for pid, epochs in by_pid.items():
        epochs.sort(key=e["first"].__getitem__)
        at = 0
        while at < len(epochs):
            one, following = epochs[at], at + 1
            process, space = e["process"][one], e["space"][one]
            own = owner[space] == process
            while own and following < len(epochs):
                other = epochs[following]
                if (e["process"][other], e["space"][other]) != (process, space):
                    break
                following += 1
            past = e["first"][epochs[following]] if following < len(epochs) else FOREVER
            yield pid, space, e["first"][one], past, None if own else e["moment"][one]
            at = following


# -- Index: lookup of many (address space, moment, address) at once


RUN = np.dtype(
    [("end", np.int64), ("kernel_start", np.uint64), ("side", np.int64), ("space", np.int64, 2),
     ("moment", np.int64, 2)]
)  # fmt: skip
"""Where neighbouring addresses are looked up, those before place ``end`` that no earlier run has.

A machine has two sides, each with its ``space`` and ``moment``: that of processes (0) and that of the kernel (1), whose
addresses begin at ``kernel_start``. ``side`` is searched first. Nothing is mapped in spaces below 0.
"""
BY_ADDRESS = 2
"""As ``side``: the one that the address belongs to."""


_CHUNK = 256 * 1024
_ADDRESS_BITS = 48
_LOW = np.uint64((1 << _ADDRESS_BITS) - 1)


class SpaceIndex:
    """Disjoint pieces: ``value`` owns addresses ``lo <= a < hi`` of ``space`` at moments ``first <= m < last``.

    ``space`` (0 is the kernel), ``first``, ``last``, ``value`` int64, moments from 0; ``lo``, ``hi`` uint64.
    """

    def __init__(
        self, space: Array, lo: Array, hi: Array, first: Array, last: Array, value: Array, *, most: int = 1 << 62
    ) -> None:
        """``most``: the limit of rows. A piece has a row in each slab that others cut out of it, so few pieces can have
        very many. Beyond the limit the latest pieces are left out, and `last` is the moment before them."""
        # 48 address bits and 16 of space fit one word; more of either goes through ranks of the bounds.
        edges = np.concatenate([lo, hi - np.uint64(1)]) if len(lo) else np.empty(0, np.uint64)
        narrow = len(space) == 0 or int(space.max()) < 1 << 16
        narrow = narrow and bool(self._canonical(np.concatenate([space, space]) == 0, edges).all())
        self._bounds = None if narrow else distinct(np.concatenate([lo, hi]))
        start_key = self._key(space, lo)
        end_key = self._key(space, hi - np.uint64(1)) + np.uint64(1) if narrow else self._key(space, hi)
        self._slabs: NDArray[np.uint64] = distinct(np.concatenate([start_key, end_key]))
        # Mappings are whole pages: keys without the bits that no slab has leave room for their places (`_sort_keys`).
        every = int(np.bitwise_or.reduce(self._slabs)) if len(self._slabs) else 1
        self._shift = np.uint64((every & -every).bit_length() - 1 if every else 0)
        self._highest = np.uint64((int(self._slabs[-1]) >> int(self._shift)) + 1 if len(self._slabs) else 1)
        one = np.searchsorted(self._slabs, start_key)
        past = np.searchsorted(self._slabs, end_key)
        count = past - one
        self.last: int | None = None
        """The last moment of the index; ``None``: nothing is left out."""
        if int(count.sum()) > most:
            early = np.argsort(first, kind="stable")
            self.last = int(first[early[np.searchsorted(np.cumsum(count[early]), most, side="right")]]) - 1
            kept = first <= self.last
            one, count, first, last, value = one[kept], count[kept], first[kept], last[kept], value[kept]
        slab = ranges(one, count)
        self._moment_bits = np.uint64(max(1, int(first.max()).bit_length() + 1) if len(first) else 1)
        key = (slab.astype(np.uint64) << self._moment_bits) | np.repeat(first, count).astype(np.uint64)
        order = np.argsort(key)
        self._rows: NDArray[np.uint64] = key[order]
        self._row_last = np.repeat(last, count)[order]
        self._row_value = np.repeat(value, count)[order]

    def find(self, space: Array, moment: Array, address: Array) -> NDArray[np.int64]:
        """int64: the value that owns each (space int64, moment int64, address uint64), -1 where none does.

        For addresses in any order. The search for sorted addresses is 3 to 7 times as fast here as the compiled
        `find_runs`, which looks up addresses in sequence and wins if neighbours share a mapping.
        """
        out = np.full(len(address), -1, np.int64)
        if len(self._rows) == 0:
            return out
        for lo in range(0, len(address), _CHUNK):
            part = slice(lo, lo + _CHUNK)
            out[part] = self._find(space[part], moment[part], address[part])
        return out

    def find_runs(self, runs: Array, address: Array) -> NDArray[np.int64]:
        """int64: the value that owns each address (uint64) where its run (`RUN`) says, -1 where none does.

        An address that is not found and belongs to the other side (user or kernel) is looked up there.
        """
        library = native.library()
        if library is None:
            return self._find_runs(runs, address)
        bounds = self._slabs if self._bounds is None else self._bounds
        arrays = self._slabs, bounds, self._rows, self._row_last, self._row_value
        sizes = len(self._slabs), -1 if self._bounds is None else len(bounds), len(self._rows), int(self._moment_bits)
        index = np.array([*map(native.address, arrays), *sizes], np.int64)
        out = np.empty(len(address), np.int64)
        declined = library.lb_find_mappings(
            native.address(index),
            native.address(runs),
            len(runs),
            native.address(address),
            address.strides[0],
            len(address),
            native.address(out),
        )
        return self._find_runs(runs, address) if declined else out

    def cut_pages(self, bits: int) -> NDArray[np.uint64]:
        """uint64: pages of 2**``bits`` bytes, of any space, inside of which a piece begins or ends: the low 48 bits of
        their addresses without the lowest ``bits``."""
        bounds = (self._slabs if self._bounds is None else self._bounds) & _LOW
        return distinct(bounds[bounds & np.uint64((1 << bits) - 1) > 0] >> np.uint64(bits))

    def _find_runs(self, runs: Array, address: Array) -> NDArray[np.int64]:
        run = np.repeat(np.arange(len(runs)), np.diff(runs["end"], prepend=0))
        above, side = address >= runs["kernel_start"][run], runs["side"][run]
        side = np.where(side == BY_ADDRESS, above, side)
        out = self._find_on_side(runs, run, side, address)
        again = np.flatnonzero((out < 0) & (side != above))
        if len(again):
            out[again] = self._find_on_side(runs, run[again], above[again].astype(np.int64), address[again])
        return out

    def _find_on_side(self, runs: Array, run: NDArray[np.int64], side: Array, address: Array) -> NDArray[np.int64]:
        space, moment = runs["space"][run, side], runs["moment"][run, side]
        known = space >= 0
        if known.all():
            return self.find(space, moment, address)
        out = np.full(len(address), -1, np.int64)
        out[known] = self.find(space[known], moment[known], address[known])
        return out

    def _find(self, space: Array, moment: Array, address: Array) -> NDArray[np.int64]:
        key = self._key(space, address)
        if len(key) < len(self._slabs):
            out = self._value_at(np.searchsorted(self._slabs, key, side="right") - 1, moment)
        else:
            out = self._find_sorted(key, moment)
        if self._bounds is None:
            out[~self._canonical(space == 0, address)] = -1
        return out

    def _find_sorted(self, key: NDArray[np.uint64], moment: Array) -> NDArray[np.int64]:
        """Queries in the order of their slabs. Most slabs have one value from the first to the last moment, for all
        their queries; in the others each query is looked up."""
        order, starts = self._sort_keys(key)
        count = np.diff(starts, prepend=0, append=len(key))  # the first is before all slabs
        value, moving = self._values_between(int(moment.min()), int(moment.max()))
        out = np.empty(len(key), np.int64)
        out[order] = np.repeat(np.append(-1, value), count)
        if len(moving):
            length = count[1:][moving]
            place = ranges(starts[moving], length)
            again = order[place]
            out[again] = self._value_at(np.repeat(moving, length), moment[again])
        return out

    def _values_between(self, first: int, final: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(value of each slab, slabs that do not have it at all moments from ``first`` to ``final``)."""
        every = np.arange(len(self._slabs))
        row, holds = self._latest(every, np.full(len(every), first))
        later, still = self._latest(every, np.full(len(every), final))
        return np.where(holds, self._row_value[row], -1), np.flatnonzero((row != later) | (holds != still))

    def _value_at(self, slab: NDArray[np.int64], moment: Array) -> NDArray[np.int64]:
        row, holds = self._latest(slab, moment)
        return np.where(holds, self._row_value[row], -1)

    def _latest(self, slab: NDArray[np.int64], moment: Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The last row that starts at or before (slab, moment), and whether the row belongs to this slab and is valid
        at this moment; slab -1 is before the first."""
        latest = np.minimum(moment, (1 << int(self._moment_bits)) - 1).astype(np.uint64)
        key = (np.maximum(slab, 0).astype(np.uint64) << self._moment_bits) | latest
        row = np.searchsorted(self._rows, key, side="right") - 1
        holds = (row >= 0) & (slab >= 0) & (moment < self._row_last[row])
        holds &= (self._rows[row] >> self._moment_bits).astype(np.int64) == slab
        return row, holds

    def _key(self, space: Array, address: Array) -> NDArray[np.uint64]:
        if self._bounds is None:
            return (space.astype(np.uint64) << np.uint64(_ADDRESS_BITS)) | (address & _LOW)
        rank = np.searchsorted(self._bounds, address, side="right").astype(np.uint64)
        return (space.astype(np.uint64) << np.uint64(32)) | rank

    @staticmethod
    def _canonical(kernel: Array, address: Array) -> NDArray[np.bool_]:
        top = address >> np.uint64(_ADDRESS_BITS)
        return np.asarray(np.where(kernel, top == np.uint64(0xFFFF), top == np.uint64(0)))

    def _sort_keys(self, key: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(order of the keys by slab, first place in it that is not before each slab).

        Key and place in one word sort twice as fast as the places alone.
        """
        bits = np.uint64(len(key).bit_length())
        if int(self._highest).bit_length() + int(bits) > 64:
            order = np.argsort(key)
            return order, np.searchsorted(key[order], self._slabs)
        words = np.minimum(key >> self._shift, self._highest) << bits
        words |= np.arange(len(key), dtype=np.uint64)
        words.sort()
        starts = np.searchsorted(words, self._slabs >> self._shift << bits)
        words &= np.uint64((1 << int(bits)) - 1)
        return words.view(np.int64), starts


# -- Ids of the system (processes, threads) to numbers, many at once


_DENSE = 1 << 22
_PAGE_BITS = 9
_IN_PAGE = (1 << _PAGE_BITS) - 1


class Ids:
    """Distinct ids (uint32) -> numbers; ``absent`` for others. Small ids are looked up in the pages of a table that has
    only the pages with ids: each capture of hundreds that are open together has such tables."""

    def __init__(self, ids: Array, numbers: Array, absent: int) -> None:
        known = ids < _DENSE
        small = ids[known].astype(np.int64)
        pages = distinct(small >> _PAGE_BITS)
        self._page = np.zeros(int(pages.max(initial=-1)) + 2, np.int64)  # page 0 has no ids: also of the last entry
        self._page[pages] = np.arange(1, len(pages) + 1) << _PAGE_BITS
        self._table = np.full((len(pages) + 1) << _PAGE_BITS, absent, np.int64)
        self._table[self._page[small >> _PAGE_BITS] + (small & _IN_PAGE)] = numbers[known]
        order = np.argsort(ids[~known])
        self._ids, self._numbers = ids[~known][order], numbers[~known][order]

    def __call__(self, ids: Array) -> NDArray[np.int64]:
        place = self._page.take(ids >> _PAGE_BITS, mode="clip")
        place += ids & _IN_PAGE
        out: NDArray[np.int64] = self._table.take(place)
        if len(self._ids):
            at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            out = np.where(self._ids[at] == ids, self._numbers[at], out)
        return out
