"""Events in time order: a merge of one stream of buffers for each processor, in bounded memory.

Within a processor, buffers are in the order of their SequenceNumbers and their events in time order; over the file
nothing is in order. The merge therefore holds one buffer of each processor, and releases what is older than the newest
event of the buffer that ends first. If processors share buffers (NO_PER_PROCESSOR_BUFFERING), neighbouring buffers may
overlap; the merge then holds two. Events of equal time stay in the order of the buffers, within one in that of the
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....arrays import ranges
from ..container.buffers import Buffers
from ..container.read_windows import PAD, Window
from ..layout import BUFFER_TYPE
from .columns import CARRIED, EventBlock
from .walk import Walk

__all__ = ["Held", "Index", "LAST", "Run", "blocks_of_runs", "in_order", "join_runs", "release"]


LAST = np.iinfo(np.int64).max
"""A time after all events."""

MOST_HELD = 64 << 20
"""Bytes of buffers that may wait beyond one for each processor.

Only time stamps that jump back make more wait. Then the merge releases everything, and older events come late.
"""


@dataclass(slots=True)
class Index:
    """All buffers of a log: ``session`` is the number of the one that each belongs to."""

    buffers: Buffers
    session: NDArray[np.int64]

    def rank(self) -> NDArray[np.int64]:
        """The place of each buffer in the order in which they were written."""
        b = self.buffers
        rank = np.empty(len(b), np.int64)
        rank[np.lexsort((b.offset, b.sequence, self.session))] = np.arange(len(b))
        return rank


Load = Callable[[int], EventBlock | None]
"""The events of one row of the index, None if it cannot be read."""


@dataclass(slots=True)
class Run:
    """Events in time order: event ``i`` is row ``row[i]`` of ``blocks[owner[i]]``; both int64."""

    blocks: list[EventBlock]
    owner: NDArray[np.int64]
    row: NDArray[np.int64]


@dataclass(slots=True)
class Held:
    """Events that wait: ``order`` int64 are rows of ``block`` by time, ``time`` their times.

    ``rank`` decides between blocks at equal times.
    """

    block: EventBlock
    rank: int
    order: NDArray[np.int64]
    time: NDArray[np.int64]

    @classmethod
    def of(cls, block: EventBlock, rank: int) -> Held:
        """All events of ``block``."""
        order = np.argsort(block.time, kind="stable")
        return cls(block, rank, order, block.time[order])


def release(waiting: list[Held], until: int) -> Run | None:
    """Take the events before ``until`` (all: `LAST`) out of ``waiting``, in order; None if no event is that old."""
    parts = []
    for held in waiting:
        count = len(held.time) if until == LAST else int(np.searchsorted(held.time, until))
        if count:
            parts.append((held.block, held.rank, held.order[:count], held.time[:count]))
            held.order, held.time = held.order[count:], held.time[count:]
    if not parts:
        return None
    blocks, ranks, rows, times = zip(*parts, strict=True)
    counts = list(map(len, rows))
    row, owner = np.concatenate(rows), np.repeat(np.arange(len(blocks)), counts)
    order = np.lexsort((row, np.repeat(ranks, counts), np.concatenate(times)))
    return Run(list(blocks), owner[order], row[order])


@dataclass(slots=True)
class _Stream:
    """One processor: the rows of its buffers to come, in order, and the buffers that are held."""

    rows: Iterator[int]
    ahead: int
    held: list[Held] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    """Times of the last events of the newest buffers."""
    done: bool = False

    def load(self, load: Load, rank: NDArray[np.int64]) -> None:
        """Hold another buffer, if the processor has more."""
        for row in self.rows:
            block = load(row)
            if block is None or not len(block):
                continue
            self.held.append(Held.of(block, int(rank[row])))
            self.last = [*self.last, int(block.time[-1])][-self.ahead - 1 :]
            return
        self.done = True

    def safe(self) -> int:
        """A time before which no further event comes."""
        return LAST if self.done else self.last[0]


def in_order(index: Index, load: Load, *, overlap: bool) -> Iterator[Run]:
    """All events in time order. ``overlap``: neighbouring buffers of a processor may overlap in time."""
    rank = index.rank()
    # A header buffer also has events from the end of the session: it is a stream of its own.
    lane = np.where(index.buffers.type == BUFFER_TYPE.HEADER, -1 - index.session, index.buffers.cpu)
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
            until = LAST
        waiting = [held for stream in streams for held in stream.held]
        run = release(waiting, until)
        if run is not None:
            yield run
        for stream in streams:
            stream.held = [held for held in stream.held if len(held.time)]
            if not stream.done and stream.safe() <= until:
                stream.load(load, rank)
        streams = [stream for stream in streams if stream.held or not stream.done]


# -- Several runs of a merge copied to one block
#
# A merge releases a few hundred events at a time, from a buffer of each processor. Work on columns needs more.


LEAST = 1 << 14
"""Events of a block, except for the last one and `HEAVY` ones."""
HEAVY = 8 << 20
"""Bytes of buffers that wait for their block to be full."""


def blocks_of_runs(runs: Iterable[Run]) -> Iterator[EventBlock]:
    """The events of ``runs``, in their order, in blocks of their own memory."""
    waiting: list[Run] = []
    events = weight = 0
    for run in runs:
        waiting.append(run)
        events += len(run.row)
        weight += _weight(run)
        if events >= LEAST or weight >= HEAVY:
            yield join_runs(waiting)
            waiting, events, weight = [], 0, 0
    if waiting:
        yield join_runs(waiting)


def _weight(run: Run) -> int:
    """Bytes of the buffers that the events of ``run`` are in, by their share of the events there."""
    counts = np.bincount(run.owner, minlength=len(run.blocks)).tolist()
    return sum(count * block.raw.nbytes // len(block) for count, block in zip(counts, run.blocks, strict=True))


def join_runs(runs: Sequence[Run], copied: Sequence[str] = CARRIED) -> EventBlock:
    """The events of ``runs``, in their order, as a block with memory of its own.

    ``copied`` are columns that keep the values they have in the blocks of the runs.
    """
    blocks = list({id(block): block for run in runs for block in run.blocks}.values())
    number = {id(block): i for i, block in enumerate(blocks)}
    owners = [np.array([number[id(block)] for block in run.blocks], np.int64)[run.owner] for run in runs]
    owner, row = np.concatenate(owners), np.concatenate([run.row for run in runs])
    places = [np.flatnonzero(owner == i) for i in range(len(blocks))]
    rows = [row[place] for place in places]

    def gathered(name: str) -> NDArray[Any]:
        whole = np.empty(len(row), getattr(blocks[0], name).dtype)
        for block, place, taken in zip(blocks, places, rows, strict=True):
            whole[place] = getattr(block, name)[taken]
        return whole

    size, buffer = gathered("size"), gathered("buffer")
    words = (size + 7) >> 3
    at = np.cumsum(words) - words + 1  # columns gather from the word before an event
    memory = np.zeros(1 + int(words.sum()) + PAD, np.uint64)
    first = 0
    for block, place, taken in zip(blocks, places, rows, strict=True):
        memory[ranges(at[place], words[place])] = block.words.take(ranges(block.at[taken], words[place]))
        buffer[place] += np.int32(first)
        first += len(block.window.buffers)
    buffers = Buffers.concatenate([block.window.buffers for block in blocks])
    window = Window(memory.view(np.uint8), memory, np.zeros(first, np.int64), buffers, blocks[0].window.header)
    made = EventBlock(window, Walk(at, gathered("head"), gathered("header"), size, buffer), blocks[0].rules)
    for name in copied:
        made.__dict__[name] = gathered(name)
    return made
