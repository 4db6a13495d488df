"""Call stacks: gathered in a first pass, joined to samples in the second.

A stack is an event of its own with the time stamp and the thread of the event it belongs to. It holds addresses
(0x1820), or a key (0x1825 kernel part, 0x1826 user part) whose addresses are in a definition (0x1822 to 0x1824) that
may come thousands of events later. The kernel can use a key again for another stack after it evicted the definition. So
a reference belongs to the first definition of its key at or after the reference, else to the last definition before.

Both can exceed memory. They are kept as runs in file order, each sorted by itself; a lookup searches all runs whose
times reach that far. Runs past the limit are in temporary files (`StackSpool`). The frames stay in the log where
possible (`Frames`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, in_groups, insertion_points, offsets_of, ranges, take_ranges
from ....model import KERNEL_HALF, KERNEL_HALF_32, Array, Source, temporary_file
from ..events.columns import EventBlock
from ..kernel.hooks import STACK, STACK_DEFINITIONS, STACK_KEY_KERNEL, STACK_KEY_USER, STACK_WALK
from ..layout import BUFFER_FLAG

__all__ = ["STACK_BYTES", "StackSpool", "Stacks"]


# -- Arrays that may become larger than memory: past a limit they are in a temporary file


_NEAR = 4096  # fewer bytes between two ranges are read too


class StackSpool:
    """Items of one ``dtype``: appended at the end, read and replaced in ranges.

    They are in memory up to ``limit`` bytes. Then all go to a file, and as many later ones are held again.
    """

    def __init__(self, dtype: Any, limit: int) -> None:
        self._dtype, self._limit = np.dtype(dtype), limit
        self._held: list[Array] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, items: Array) -> int:
        """Add ``items``, without a copy; the index of the first."""
        first = self._count
        self._count += len(items)
        self._held.append(items)
        self._bytes += items.nbytes
        if self._bytes > self._limit:
            self._write()
        return first

    def read(self, first: int, past: int) -> Array:
        """Items ``first`` to ``past``: a view if all are in memory."""
        if self._file is None:
            return self._whole()[first:past]
        return self._read(np.array([first]), np.array([past]))

    def replace(self, first: int, items: Array) -> None:
        """Replace the items from ``first`` on by ``items``."""
        if self._file is None:
            self._whole()[first : first + len(items)] = items
            return
        self._write()
        self._file.seek(first * self._dtype.itemsize)
        self._file.write(items.tobytes())

    def take(self, first: Ints, count: Ints) -> Array:
        """Ranges one after the other."""
        if self._file is None:
            return take_ranges(self._whole(), first, count)
        return in_groups(self._read, first, count, _NEAR // self._dtype.itemsize)

    def _read(self, first: Ints, past: Ints) -> Array:
        assert self._file is not None
        self._write()
        offsets = offsets_of(past - first)
        items = np.empty(offsets[-1], self._dtype)
        if len(items):
            memory: Any = memoryview(items.view(np.uint8))  # type: ignore[arg-type]
            size = self._dtype.itemsize
            for at, lo, hi in zip(first.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                self._file.seek(at * size)
                self._file.readinto(memory[lo * size : hi * size])  # type: ignore[attr-defined]
        return items

    def _whole(self) -> NDArray[Any]:
        if len(self._held) != 1:
            self._held = [np.concatenate([np.empty(0, self._dtype), *self._held])]
        return self._held[0]

    def _write(self) -> None:
        """Move the held items to the file."""
        if not self._held:
            return
        if self._file is None:
            self._file = temporary_file()
        self._file.seek(0, 2)
        for items in self._held:
            self._file.write(items.tobytes())
        self._held, self._bytes = [], 0


# -- The frames of stacks: in memory; past the limit in the log, or in a temporary file if the log is compressed


_NEAR_STACKS = 512  # fewer words between two stacks in a log are read too


def pointers(block: EventBlock, at: Array, count: Array, size: int) -> NDArray[np.uint64]:
    """``count[i]`` pointers of ``size`` bytes from byte ``at[i]`` of the block on, one after the other."""
    words: Array = block.words if size == 8 else block.raw.view(np.uint32)
    return take_ranges(words, at // size, count).astype(np.uint64, copy=False)


class Frames:
    """Frames by position: from 0 on the frames kept here; below 0 (-1 is word 0) the frames left in ``source``.

    ``limit``: bytes held in memory, about.
    """

    def __init__(self, source: Source, limit: int) -> None:
        self._source, self._limit = source, limit
        self.spool = StackSpool(np.uint64, limit)
        self._left = False

    def __bool__(self) -> bool:
        return self._left or len(self.spool) > 0

    def add(self, block: EventBlock, at: Ints, count: Ints, size: int) -> Ints:
        """Add ``count`` frames of each event, from byte ``at`` of the block on; their positions."""
        if size == 8 and 8 * (len(self.spool) + int(count.sum())) > self._limit:
            buffers = block.window.buffers
            place = at + (buffers.offset - block.window.start).take(block.buffer)
            if not (buffers.flags & BUFFER_FLAG.COMPRESSED).any() and not (place & 7).any():
                self._left |= bool(count.any())
                return np.asarray(-1 - (place >> 3))
        return self.spool.append(pointers(block, at, count, size)) + offsets_of(count)[:-1]

    def take(self, at: Ints, count: Ints) -> NDArray[np.uint64]:
        """``count`` frames from each position ``at``, one stack after the other; 0 where the log became shorter."""
        left = at < 0
        if not left.any():
            return self.spool.take(at, count)
        first = -1 - at[left]
        if left.all():
            return in_groups(self._read, first, count, _NEAR_STACKS)
        frames, begin = np.empty(int(count.sum()), np.uint64), offsets_of(count)[:-1]
        frames[ranges(begin[left], count[left])] = in_groups(self._read, first, count[left], _NEAR_STACKS)
        frames[ranges(begin[~left], count[~left])] = self.spool.take(at[~left], count[~left])
        return frames

    def _read(self, first: Ints, past: Ints) -> NDArray[np.uint64]:
        offsets = offsets_of(past - first) * 8
        words = np.zeros(int(offsets[-1]) >> 3, np.uint64)
        memory: Any = memoryview(words.view(np.uint8))  # type: ignore[arg-type]
        for at, low, high in zip(first.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            self._source.readinto(at * 8, memory[low:high])
        return words


STACK_BYTES = 64 << 20
"""Default of bytes that `Stacks` holds in memory."""

# ``at``, ``count``: the frames. ``at`` of a reference by key is the key until the definition is found. ``time`` is that
# of the event it belongs to, ``when`` its own, which orders several parts of a kind.
_REFERENCE = np.dtype(
    [("time", "<i8"), ("when", "<i8"), ("at", "<i8"), ("tid", "<i4"), ("count", "<u2"), ("part", "<u2")]
)
_DEFINITION = np.dtype([("key", "<u8"), ("time", "<i8"), ("at", "<i8"), ("count", "<i8")])
_KERNEL, _DIRECT_KERNEL, _DIRECT_USER, _USER = range(4)  # parts, in the order they are joined
_DIRECT = (_DIRECT_KERNEL, _DIRECT_USER)
_KERNEL_HALF = {8: np.uint64(KERNEL_HALF), 4: np.uint64(KERNEL_HALF_32)}  # by pointer size
_STEP = 4096  # rows of a run between those whose times are kept


def _table(dtype: np.dtype[np.void], rows: int, **columns: Array | int) -> Array:
    table = np.empty(rows, dtype)
    for name, values in columns.items():
        table[name] = values
    return table


@dataclass(slots=True)
class _SortedRun:
    """Rows ``first:past`` of a spool, in the end sorted by time. ``times`` int64: those of every `_STEP`-th row."""

    first: int
    past: int
    last: int = 0
    times: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def around(self, time: Ints) -> tuple[int, int]:
        """The range of rows that holds those of all ``time``."""
        inside = time[(time >= self.times[0]) & (time <= self.last)] if len(self.times) else time[:0]
        if not len(inside):
            return 0, 0
        low = max(int(np.searchsorted(self.times, inside.min(), "left")) - 1, 0)
        high = int(np.searchsorted(self.times, inside.max(), "right"))
        return self.first + low * _STEP, min(self.first + high * _STEP, self.past)


class _Runs:
    """Rows as runs of at most about ``limit`` bytes. All parts but the last are in the file."""

    def __init__(self, dtype: np.dtype[np.void], limit: int) -> None:
        self._rows = max(1, limit // dtype.itemsize)
        self.spool = StackSpool(dtype, limit)
        self._runs: list[_SortedRun] = []

    def append(self, rows: Array) -> None:
        for begin in range(0, len(rows), self._rows):
            piece = rows[begin : begin + self._rows]
            first = self.spool.append(piece)
            if self._runs and first + len(piece) - self._runs[-1].first <= self._rows:
                self._runs[-1].past += len(piece)
            else:
                self._runs.append(_SortedRun(first, first + len(piece)))

    def __iter__(self) -> Iterator[_SortedRun]:
        return iter(self._runs)

    def read(self, run: _SortedRun) -> Array:
        return self.spool.read(run.first, run.past)


class Stacks:
    """The stacks of the log ``source``. ``limit``: bytes held in memory, about."""

    def __init__(self, source: Source, limit: int = STACK_BYTES) -> None:
        self._frames = Frames(source, limit // 2)
        self._references = _Runs(_REFERENCE, limit // 8)
        self._definitions = _Runs(_DEFINITION, limit // 8)
        self.joined = 0
        """Stacks joined to samples so far."""
        self.unresolved = 0
        """References whose key has no definition."""
        self.short: Counter[int] = Counter()
        """By hook: events that end before their required fields."""

    def __bool__(self) -> bool:
        return bool(self._frames)

    def gather(self, block: EventBlock) -> None:
        """Add the stack events of ``block``."""
        hook = block.kernel_hook
        group = np.flatnonzero((hook >> 8) == STACK_WALK)
        if not len(group):
            return
        for size in (8, 4):
            mine = group[block.pointer_size[group] == size]
            if len(mine):
                part = block.take(mine)
                for hooks, take in (
                    (STACK_DEFINITIONS, self._define),
                    ((STACK_KEY_KERNEL, STACK_KEY_USER), self._refer),
                    ((STACK,), self._direct),
                ):
                    rows = np.flatnonzero(np.isin(part.kernel_hook, hooks))
                    if len(rows):
                        take(part.take(rows), size)

    def _whole(self, block: EventBlock, least: int) -> EventBlock:
        """The events of ``block`` with ``least`` bytes; the others are counted."""
        whole = block.payload_size >= least
        if whole.all():
            return block
        self.short.update(block.kernel_hook[~whole].tolist())
        return block.take(whole)

    def _define(self, block: EventBlock, size: int) -> None:
        whole = self._whole(block, size)
        count = whole.payload_size // size - 1
        key = pointers(whole, whole.payload, np.ones(len(whole), np.int64), size)
        at = self._frames.add(whole, whole.payload + size, count, size)
        self._definitions.append(_table(_DEFINITION, len(whole), key=key, time=whole.time, at=at, count=count))

    def _refer(self, block: EventBlock, size: int) -> None:
        whole = self._whole(block, 16 + size)
        key = pointers(whole, whole.payload + 16, np.ones(len(whole), np.int64), size)
        part = np.where(whole.kernel_hook == STACK_KEY_KERNEL, _KERNEL, _USER)
        self._add_references(whole, at=key.view(np.int64), count=0, part=part)

    def _direct(self, block: EventBlock, size: int) -> None:
        """The user part may precede the kernel part, and come from another processor."""
        whole = self._whole(block, 16)
        count = (whole.payload_size - 16) // size
        at = self._frames.add(whole, whole.payload + 16, count, size)
        some = np.flatnonzero(count)
        first = pointers(whole, whole.payload[some] + 16, np.ones(len(some), np.int64), size)
        part = np.full(len(whole), _DIRECT_USER)
        part[some[first >= _KERNEL_HALF[size]]] = _DIRECT_KERNEL
        self._add_references(whole, at=at, count=count, part=part)

    def _add_references(self, block: EventBlock, **columns: Array | int) -> None:
        """The payload begins with the event that the stack belongs to: u64 time, u32 pid, u32 tid."""
        at = block.payload >> 3
        time = block.words.take(at).view(np.int64)
        if block.rules.to_log is not None:
            time = block.rules.to_log(time)
        tid = (block.words.take(at + 1) >> np.uint64(32)).astype(np.int32)
        self._references.append(_table(_REFERENCE, len(block), time=time, when=block.time, tid=tid, **columns))

    def finish(self) -> None:
        """Resolve keys and sort the runs, after the last `gather`."""
        for run in self._definitions:
            rows = self._definitions.read(run)
            self._definitions.spool.replace(run.first, rows[np.lexsort((rows["time"], rows["key"]))])
        for run in self._references:
            rows = self._with_definitions(self._references.read(run))
            rows = rows[np.lexsort((rows["when"], rows["part"], rows["tid"], rows["time"]))]
            self._references.spool.replace(run.first, rows)
            run.past = run.first + len(rows)
            if len(rows):
                run.times, run.last = rows["time"][::_STEP].copy(), int(rows["time"][-1])
        self._definitions = _Runs(_DEFINITION, 0)

    def _with_definitions(self, rows: Array) -> Array:
        """The references ``rows``; a reference by key has the frames of its definition, and is left out without a
        definition."""
        keyed = np.flatnonzero(~np.isin(rows["part"], _DIRECT))
        key, time = rows["at"][keyed].view(np.uint64), rows["time"][keyed]
        found = np.zeros(len(keyed), _DEFINITION)
        state = np.zeros(len(keyed), np.int8)  # 1: a definition before the reference, 2: a definition at or after it
        for run in self._definitions:
            table = self._definitions.read(run)
            after = insertion_points(table["key"], table["time"], key, time)
            for place, kind in ((after - 1, 1), (after, 2)):
                mine = np.flatnonzero((place >= 0) & (place < len(table)) & (state <= kind))
                mine = mine[table["key"][place[mine]] == key[mine]]
                other = table["time"][place[mine]]
                # The nearest definition: of definitions with the same time, the last before, the first after.
                nearer = other >= found["time"][mine] if kind == 1 else other < found["time"][mine]
                mine = mine[nearer | (state[mine] < kind)]
                found[mine], state[mine] = table[place[mine]], kind
        rows = rows.copy()
        rows["at"][keyed], rows["count"][keyed] = found["at"], found["count"]
        keep = np.ones(len(rows), bool)
        keep[keyed[state == 0]] = False
        self.unresolved += int((~keep).sum())
        return rows[keep]

    def find(self, time: Ints, tid: Ints) -> tuple[Ints, NDArray[np.uint64]]:
        """(offsets, frames): the call chain of each sample, kernel part first; empty without one."""
        samples, found = [np.empty(0, np.int64)], [np.empty(0, _REFERENCE)]
        for run in self._references:
            first, past = run.around(time)
            if first < past:
                rows = self._references.spool.read(first, past)
                at, who = rows["time"], rows["tid"]
                low = insertion_points(at, who, time, tid)
                count = insertion_points(at, who, time, tid, right=True) - low
                samples.append(np.repeat(np.arange(len(time)), count))
                found.append(rows[ranges(low, count)])
        sample, stack = np.concatenate(samples), np.concatenate(found)
        self.joined += len(sample)
        order = np.lexsort((stack["when"], stack["part"], sample))
        sample, stack = sample[order], stack[order]
        count = stack["count"].astype(np.int64)
        depth = np.zeros(len(time), np.int64)
        np.add.at(depth, sample, count)
        return offsets_of(depth), self._frames.take(stack["at"].astype(np.int64), count)
