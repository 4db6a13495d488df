"""A trace log: its header, its events as columns or as objects, what it counts and what is damaged in it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import Damage
from ....model import Clock, Source
from ..container.buffers import Buffers, DamageLog
from ..container.header import LogHeader
from ..container.windows import BufferReader, Segment
from ..event import Event
from ..kernel.hooks import hook_provider
from ..layout import BUFFER_FLAG, LogFileMode
from .columns import CHUNK, EventBlock, Rules, events_of
from .merge import Index, Run, blocks_of_runs, in_order

__all__ = ["EventType", "TraceLog", "count_events", "first_of_types", "to_log"]


_NS = 1_000_000_000

MOST_WORKERS = 8
"""So many processes decompress by default: each takes 40 MB, and the walk of what they give goes on in one."""


class EventType(NamedTuple):
    """What events are counted by.

    ``provider`` is the GUID as 16 bytes of the file. ``hook`` is -1 for events of user providers; ``id`` is 0 for
    kernel and classic events, whose ``opcode`` is their Type.
    """

    provider: bytes
    hook: int
    id: int
    opcode: int


class TraceLog:
    """An .etl file as events.

    ``pointer_size`` overrides what events say themselves (some tools wrote 64-bit payloads behind 32-bit headers);
    ``workers`` processes decompress, by default one for each processor up to `MOST_WORKERS` where the blocks are worth
    it. Raises `FormatError` where nothing can be had of the file: no .etl, a header cut short, pre-Vista. What else is
    wrong is stepped over and found in `damage` by the time a pass has ended.
    """

    def __init__(self, source: Source, *, pointer_size: int | None = None, workers: int | None = None) -> None:
        self.source = source
        self._damage = DamageLog()
        workers = workers or min(_processors(), MOST_WORKERS)
        self._reader = BufferReader(source, self._damage, workers=workers)
        self._override = pointer_size or 0
        self.most_blocks: int | None = None
        """So many are read of the log, where its tables have no room for more."""

    @property
    def header(self) -> LogHeader:
        """The header of the file: of its first session, if it was appended to."""
        return self._reader.header

    @property
    def headers(self) -> list[LogHeader]:
        """The headers of all sessions, as far as the file has been read."""
        return [segment.header for segment in self._reader.segments]

    @property
    def clock(self) -> Clock:
        """The clock of all event times. Those of an appended session are converted to it."""
        return self.header.clock

    @property
    def damage(self) -> list[Damage]:
        """What was found damaged, by file offset, in the passes made so far; `counts` makes a whole one."""
        return list(self._damage)

    @property
    def skipped(self) -> int:
        """Buffers that were given up as a whole."""
        return len(self._damage.skipped)

    @property
    def unwritten(self) -> int:
        """Places of a preallocated file that no buffer was written to, once a pass has ended."""
        return self._reader.unwritten

    @property
    def events_lost(self) -> int:
        """Events that found no room in a buffer, by the headers."""
        return sum(header.events_lost for header in self.headers)

    @property
    def buffers_lost(self) -> int:
        """Buffers that could not be written, by the headers."""
        return sum(header.buffers_lost for header in self.headers)

    # -- events

    def blocks(self) -> Iterator[EventBlock]:
        """All events as columns, in file order. A block is valid until the next one is asked for."""
        walked = 0
        for window in self._reader.windows():
            block = EventBlock.of(window, self._rules(window.segment))
            if len(block):
                yield block
                walked += 1
            if walked == self.most_blocks:
                return

    def events(self, *, ordered: bool = False, select: Callable[[EventBlock], Any] | None = None) -> Iterator[Event]:
        """All events as objects, in file order or, if ``ordered``, in time order.

        In time order, events of equal time stay in the order in which their buffers were written. Memory is bounded by
        one buffer for each processor. ``select`` gives the rows of a block that are wanted (a mask or an index array in
        ascending order), so that of the others no object is made.
        """
        if ordered:
            for run in self._ordered(select):
                yield from _run_events(run)
            return
        for block in self.blocks():
            wanted = block if select is None else block.take(select(block))
            for begin in range(0, len(wanted), CHUNK):
                yield from events_of(wanted.take(slice(begin, begin + CHUNK)))

    def ordered_blocks(
        self, *, select: Callable[[EventBlock], Any] | None = None, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[EventBlock]:
        """The events of `events` with ``ordered``, as columns. Blocks have memory of their own.

        ``progress`` is called with the number of buffers read and that of all.
        """
        yield from blocks_of_runs(self._ordered(select, progress))

    def index(self) -> Index:
        """All buffers of the log, by their headers alone."""
        parts, numbers = [], []
        for segment, buffers in self._reader.index():
            parts.append(buffers)
            numbers.append(np.full(len(buffers), segment.number))
        return Index(Buffers.concatenate(parts), np.concatenate([np.empty(0, np.int64), *numbers]))

    @cached_property
    def counts(self) -> Counter[EventType]:
        """How many events there are of each type: one pass over the file."""
        counts: Counter[EventType] = Counter()
        for block in self.blocks():
            count_events(block, counts)
            block.header_size  # noqa: B018 - so that damage within events is found, too
        return counts

    @cached_property
    def lossy(self) -> int:
        """Buffers whose flags say that events or buffers were lost before them: one pass over the headers."""
        flags = BUFFER_FLAG.EVENTS_LOST | BUFFER_FLAG.BUFFER_LOST
        return int(np.count_nonzero(self.index().buffers.flags & flags))

    def _ordered(
        self, select: Callable[[EventBlock], Any] | None, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[Run]:
        index = self.index()
        read = count()

        def load(row: int) -> EventBlock | None:
            if progress is not None:
                progress(next(read), len(index.buffers))
            segment = self._reader.segments[int(index.segment[row])]
            window = self._reader.load(segment, index.buffers.take(slice(row, row + 1)))
            if window is None:
                return None
            block = EventBlock.of(window, self._rules(segment))
            return block if select is None else block.take(select(block))

        modes = [header.mode for header in self.headers]
        overlap = any(mode & LogFileMode.NO_PER_PROCESSOR_BUFFERING for mode in modes)
        return in_order(index, load, overlap=overlap)

    def _rules(self, segment: Segment) -> Rules:
        own = segment.header.pointer_size
        return Rules(self._damage, own if own in (4, 8) else 8, self._override, to_log(self.header, segment.header))


def _run_events(run: Run) -> Iterator[Event]:
    for begin in range(0, len(run.row), CHUNK):
        owner, row = run.owner[begin : begin + CHUNK], run.row[begin : begin + CHUNK]
        made: list[Any] = [None] * len(row)
        for block in np.unique(owner).tolist():
            where = np.flatnonzero(owner == block)
            for i, event in zip(where.tolist(), events_of(run.blocks[block].take(row[where])), strict=True):
                made[i] = event
        yield from made


def _processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def to_log(log: LogHeader, own: LogHeader) -> Callable[[NDArray[np.int64]], NDArray[np.int64]] | None:
    """From the ticks of an appended session to those of the log, by the wall times of both headers.

    System time needs none, and neither does one performance counter over one uptime of the machine, whose ticks are
    more exact than the wall times.
    """
    same_clock = (own.clock_type, own.frequency) == (log.clock_type, log.frequency)
    if own is log or not (own.frequency and log.frequency):
        return None
    if same_clock and (log.clock_type == 2 or own.boot_time == log.boot_time):
        return None
    clock, between = own.clock, (own.start_time - log.start_time) * 100

    def convert(ticks: NDArray[np.int64]) -> NDArray[np.int64]:
        whole, part = np.divmod(clock.to_ns_array(ticks - own.timestamp) + between, _NS)
        result: NDArray[np.int64] = whole * log.frequency + part * log.frequency // _NS + log.timestamp
        return result

    return convert


def count_events(block: EventBlock, counts: Counter[EventType]) -> None:
    """Add the events of ``block`` to ``counts``."""
    kernel = block.is_kernel
    hooks = np.bincount(block.hook[kernel])
    for hook in np.flatnonzero(hooks).tolist():
        counts[EventType(hook_provider(hook), hook, 0, hook & 0xFF)] += int(hooks[hook])
    user = np.flatnonzero(~kernel)
    if not len(user):
        return
    keys, begin, _ = _by_type(block.take(user))
    numbers = np.diff(np.append(begin, len(keys))).tolist()
    for kind, number in zip(_types(keys[begin]), numbers, strict=True):
        counts[kind] += number


def first_of_types(users: EventBlock) -> tuple[list[EventType], NDArray[np.int64]]:
    """The types of ``users``, which are events of user providers, and the row of the first event of each."""
    if not len(users):
        return [], np.empty(0, np.int64)
    keys, begin, order = _by_type(users)
    return _types(keys[begin]), order[begin]


def _by_type(users: EventBlock) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """(keys in their order, where in it each type begins, the rows in that order: of a type the first one first)"""
    low = users.id.astype(np.uint64) << np.uint64(8) | users.opcode
    keys = np.column_stack([users.provider, low])
    order = np.lexsort(keys.T)
    keys = keys[order]
    return keys, np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1))), order


def _types(keys: NDArray[np.uint64]) -> list[EventType]:
    providers, words = np.ascontiguousarray(keys[:, :2]).tobytes(), keys[:, 2].tolist()
    return [EventType(providers[16 * i : 16 * i + 16], -1, word >> 8, word & 0xFF) for i, word in enumerate(words)]
