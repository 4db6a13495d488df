"""Time order over processors: a merge of one stream of buffers for each, in bounded memory.

Within a processor, buffers are in the order of their SequenceNumbers and their events in time order; over the file
nothing is in order. So one buffer of each processor is held, and what is older than the newest event of the one that
ends first can go out. Where processors share buffers (NO_PER_PROCESSOR_BUFFERING) neighbours may overlap, so that two
are held. Equal times stay in the order of the buffers, within one in that of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .buffers import Buffers
from .columns import EventBlock
from .layout import BUFFER_TYPE

__all__ = ["Index", "Run", "in_order"]

_LAST = np.iinfo(np.int64).max

MOST_HELD = 64 << 20
"""Bytes of buffers that may wait beyond one for each processor.

Only time stamps that jump back make more wait; then all that is held goes out, and what is older comes late.
"""


@dataclass(slots=True)
class Index:
    """All buffers of a log: ``segment`` is the number of the one that each belongs to."""

    buffers: Buffers
    segment: NDArray[np.int64]

    def rank(self) -> NDArray[np.int64]:
        """The place of each buffer in the order in which they were written."""
        b = self.buffers
        rank = np.empty(len(b), np.int64)
        rank[np.lexsort((b.offset, b.sequence, self.segment))] = np.arange(len(b))
        return rank


Load = Callable[[int], EventBlock | None]
"""The events of one row of the index, None if it cannot be read."""


@dataclass(slots=True)
class _Held:
    """Events of one buffer that have not gone out: ``order`` int64 are rows of ``block`` by time, ``time`` theirs."""

    block: EventBlock
    rank: int
    order: NDArray[np.int64]
    time: NDArray[np.int64]


@dataclass(slots=True)
class _Stream:
    """One processor: buffers that are still to come, in order, and those that are held."""

    rows: Iterator[int]
    ahead: int
    held: list[_Held] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    """Times of the last events of the buffers that were loaded last."""
    done: bool = False

    def load(self, load: Load, rank: NDArray[np.int64]) -> None:
        """Hold one buffer more, if there is one."""
        for row in self.rows:
            block = load(row)
            if block is None or not len(block):
                continue
            order = np.argsort(block.time, kind="stable")
            time = block.time[order]
            self.held.append(_Held(block, int(rank[row]), order, time))
            self.last = [*self.last, int(block.time[-1])][-self.ahead - 1 :]
            return
        self.done = True

    def safe(self) -> int:
        """No event earlier than this is still to come."""
        return _LAST if self.done else self.last[0]


@dataclass(slots=True)
class Run:
    """Events in time order: event ``i`` is row ``row[i]`` of ``blocks[owner[i]]``; both int64."""

    blocks: list[EventBlock]
    owner: NDArray[np.int64]
    row: NDArray[np.int64]


def in_order(index: Index, load: Load, *, overlap: bool) -> Iterator[Run]:
    """All events in time order. ``overlap``: neighbouring buffers of a processor may overlap in time."""
    rank = index.rank()
    # A header buffer also has events from the end of the session: it is a stream of its own.
    lane = np.where(index.buffers.type == BUFFER_TYPE.HEADER, -1 - index.segment, index.buffers.cpu)
    order = np.lexsort((rank, lane))
    cuts = np.flatnonzero(np.diff(lane[order])) + 1
    streams = [_Stream(iter(rows.tolist()), 1 if overlap else 0) for rows in np.split(order, cuts) if len(rows)]
    while streams:
        for stream in streams:
            while not stream.done and len(stream.last) <= stream.ahead:
                stream.load(load, rank)
        until = min(stream.safe() for stream in streams)
        spare = sum(held.block.raw.nbytes for stream in streams for held in stream.held[stream.ahead + 1 :])
        if spare > MOST_HELD:
            until = _LAST
        run = _release(streams, until)
        if run is not None:
            yield run
        for stream in streams:
            if not stream.done and stream.safe() <= until:
                stream.load(load, rank)
        streams = [stream for stream in streams if stream.held or not stream.done]


def _release(streams: list[_Stream], until: int) -> Run | None:
    """Everything before ``until``, in order."""
    blocks: list[EventBlock] = []
    times, ranks, rows, which = [], [], [], []
    for stream in streams:
        for held in stream.held:
            count = len(held.time) if until == _LAST else int(np.searchsorted(held.time, until))
            if count:
                times.append(held.time[:count])
                rows.append(held.order[:count])
                ranks.append(np.full(count, held.rank))
                which.append(np.full(count, len(blocks)))
                blocks.append(held.block)
                held.time, held.order = held.time[count:], held.order[count:]
        stream.held = [held for held in stream.held if len(held.time)]
    if not blocks:
        return None
    row, owner = np.concatenate(rows), np.concatenate(which)
    order = np.lexsort((row, np.concatenate(ranks), np.concatenate(times)))
    return Run(blocks, owner[order], row[order])
