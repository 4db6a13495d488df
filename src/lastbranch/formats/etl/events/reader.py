"""Trace logs: header, events as columns or objects, counts and damage."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import Damage
from ....model import Clock, Source
from ..container.buffers import Buffers, DamageLog
from ..container.header import LogHeader
from ..container.read_windows import BufferReader, Window
from ..kernel.hooks import hook_provider
from ..layout import BUFFER_FLAG, LogFileMode
from ..single_event import Event
from .columns import CHUNK, EventBlock, Rules, events_of
from .merge import Index, Run, blocks_of_runs, in_order

__all__ = ["EventType", "TraceLog", "count_events", "first_of_types", "runs_of"]


MOST_WORKERS = 8
"""Processes that decompress by default: each takes 40 MB, and a single process walks the result."""


class EventType(NamedTuple):
    """The key that events are counted by.

    ``provider`` is the GUID as 16 bytes of the file. ``hook`` is -1 for events of user providers; ``id`` is 0 for
    kernel and classic events, whose ``opcode`` is their Type.
    """

    provider: bytes
    hook: int
    id: int
    opcode: int


class TraceLog:
    """An .etl file as events.

    ``pointer_size`` overrides the pointer size of event headers (some tools wrote 64-bit payloads after 32-bit
    headers). Without the compiled library, ``workers`` processes decompress: by default as many as there are
    processors, at most `MOST_WORKERS`, if the blocks are worth the start of processes. Raises `FormatError` for a file
    that cannot be read at all: no .etl, a header cut short, pre-Vista. A pass skips other damage and reports it in
    `damage`.
    """

    def __init__(self, source: Source, *, pointer_size: int | None = None, workers: int | None = None) -> None:
        self.source = source
        self._damage = DamageLog()
        workers = workers or min(_processors(), MOST_WORKERS)
        self._reader = BufferReader(source, self._damage, workers=workers)
        self._override = pointer_size or 0
        self.most_blocks: int | None = None
        """Blocks after which `blocks` ends, for tables without room for more."""
        self.base: LogHeader | None = None
        """The header whose clock event times are converted to, by default `header`."""

    @property
    def header(self) -> LogHeader:
        """The header of the file: of its first session, if it was appended to."""
        return self._reader.header

    @property
    def headers(self) -> list[LogHeader]:
        """The headers of all sessions, as far as the file has been read."""
        return list(self._reader.headers)

    @property
    def clock(self) -> Clock:
        """The clock of all event times. Times of an appended session are converted to this clock."""
        return self.header.clock

    @property
    def damage(self) -> list[Damage]:
        """Damage by file offset, as far as the file was read; `counts` reads all of it."""
        return list(self._damage)

    @property
    def skipped(self) -> int:
        """Buffers that were skipped as a whole."""
        return len(self._damage.skipped)

    @property
    def unwritten(self) -> int:
        """Places of a preallocated file that no buffer was written to, after a whole pass."""
        return self._reader.unwritten

    @property
    def events_lost(self) -> int:
        """Events lost for lack of room in a buffer, by the headers."""
        return sum(header.events_lost for header in self.headers)

    @property
    def buffers_lost(self) -> int:
        """Buffers that could not be written, by the headers."""
        return sum(header.buffers_lost for header in self.headers)

    # -- events

    def blocks(self) -> Iterator[EventBlock]:
        """All events as columns, in file order. A block is valid until the next one is requested."""
        walked = 0
        for window in self._reader.windows():
            block = self._block(window)
            if len(block):
                yield block
                walked += 1
            if walked == self.most_blocks:
                return

    def events(self, *, ordered: bool = False, select: Callable[[EventBlock], Any] | None = None) -> Iterator[Event]:
        """All events as objects, in file order or, if ``ordered``, in time order.

        In time order, events of equal time stay in the order in which their buffers were written. Memory is bounded by
        one buffer for each processor and a block. ``select`` returns the wanted rows of a block (a mask or an index
        array in ascending order); no object is made of the others.
        """
        for block in self.ordered_blocks(select=select) if ordered else self.blocks():
            wanted = block if select is None or ordered else block.take(select(block))
            for begin in range(0, len(wanted), CHUNK):
                yield from events_of(wanted.take(slice(begin, begin + CHUNK)))

    def ordered_blocks(
        self, *, select: Callable[[EventBlock], Any] | None = None, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[EventBlock]:
        """The events of `events` with ``ordered``, as columns. Blocks have memory of their own.

        ``progress`` is called with the number of buffers read and that of all.
        """
        taken = None if select is None else lambda block: block.take(select(block))
        yield from blocks_of_runs(runs_of([self], [self.index()], taken, progress))

    def index(self) -> Index:
        """All buffers of the log, by their headers alone."""
        parts, numbers = [], []
        for session, buffers in self._reader.index():
            parts.append(buffers)
            numbers.append(np.full(len(buffers), session))
        return Index(Buffers.concatenate(parts), np.concatenate([np.empty(0, np.int64), *numbers]))

    @cached_property
    def counts(self) -> Counter[EventType]:
        """How many events there are of each type: one pass over the file."""
        counts: Counter[EventType] = Counter()
        for block in self.blocks():
            count_events(block, counts)
            block.header_size  # noqa: B018 - to find damage within events, too
        return counts

    @cached_property
    def lossy(self) -> int:
        """Buffers whose flag says that events or buffers were lost before, from a pass over the headers."""
        return len(self.lossy_times)

    @cached_property
    def lossy_times(self) -> NDArray[np.int64]:
        """Times of `lossy` buffers, as in their headers: one pass over these."""
        buffers = self.index().buffers
        marked: NDArray[np.int64] = buffers.time[
            buffers.flags & (BUFFER_FLAG.EVENTS_LOST | BUFFER_FLAG.BUFFER_LOST) != 0
        ]
        return marked

    def load(self, index: Index, row: int) -> EventBlock | None:
        """The events of buffer ``row`` of `index`, None if it cannot be read. Blocks have memory of their own."""
        header = self._reader.headers[int(index.session[row])]
        window = self._reader.load(header, index.buffers.take(slice(row, row + 1)))
        return None if window is None else self._block(window)

    def _block(self, window: Window) -> EventBlock:
        rules = Rules.of(self._damage, window.header, self.base or self.header, self._override)
        return EventBlock.of(window, rules)


_APART = 1 << 16
"""Processors, and sessions, of one log are numbered below this."""


def runs_of(
    logs: Sequence[TraceLog],
    indexes: Sequence[Index],
    select: Callable[[EventBlock], EventBlock] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Run]:
    """The events of several logs, whose `TraceLog.index` are ``indexes``, in one time order.

    ``select`` returns the wanted events of a block.
    """
    log_of = np.repeat(np.arange(len(logs)), [len(index.buffers) for index in indexes]).tolist()
    own_row = np.concatenate([np.arange(len(index.buffers)) for index in indexes]).tolist()
    parts = (replace(one.buffers, cpu=one.buffers.cpu + np.int32(_APART * i)) for i, one in enumerate(indexes))
    sessions = np.concatenate([index.session + _APART * i for i, index in enumerate(indexes)])
    read = count()

    def load(row: int) -> EventBlock | None:
        if progress is not None:
            progress(next(read), len(log_of))
        number = log_of[row]
        block = logs[number].load(indexes[number], own_row[row])
        return block if block is None or select is None else select(block)

    modes = [header.mode for log in logs for header in log.headers]
    overlap = any(mode & LogFileMode.NO_PER_PROCESSOR_BUFFERING for mode in modes)
    return in_order(Index(Buffers.concatenate(parts), sessions), load, overlap=overlap)


def _processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
