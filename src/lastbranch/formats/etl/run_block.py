"""Events in time order as blocks: what several runs of a merge release, copied together.

A merge gives a few hundred events at a time, from one buffer of each processor; whoever works on columns wants more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import Buffers
from .columns import EventBlock
from .field_columns import ragged
from .merge import Run
from .walk import Walk
from .windows import Window

__all__ = ["LEAST", "blocks_of_runs"]

LEAST = 1 << 14
"""Events of a block, but for the last and for those that are `HEAVY`."""
HEAVY = 8 << 20
"""Bytes of buffers that wait for their block to be full."""

_COPIED = ("time", "header_size", "pointer_size")  # what an event has from its neighbours, its log or its place


def blocks_of_runs(runs: Iterable[Run]) -> Iterator[EventBlock]:
    """The events of ``runs``, in their order, in blocks of their own memory."""
    waiting: list[Run] = []
    events = weight = 0
    for run in runs:
        waiting.append(run)
        events += len(run.row)
        weight += _weight(run)
        if events >= LEAST or weight >= HEAVY:
            yield _join(waiting)
            waiting, events, weight = [], 0, 0
    if waiting:
        yield _join(waiting)


def _weight(run: Run) -> int:
    """Bytes of the buffers that the events of ``run`` are in, by their share of the events there."""
    counts = np.bincount(run.owner, minlength=len(run.blocks)).tolist()
    return sum(count * block.raw.nbytes // len(block) for count, block in zip(counts, run.blocks, strict=True))


def _join(runs: list[Run]) -> EventBlock:
    blocks = {id(block): block for run in runs for block in run.blocks}
    number = {key: i for i, key in enumerate(blocks)}
    owners = [np.array([number[id(block)] for block in run.blocks], np.int64)[run.owner] for run in runs]
    owner, row = np.concatenate(owners), np.concatenate([run.row for run in runs])
    sources = list(blocks.values())
    places = [np.flatnonzero(owner == i) for i in range(len(sources))]
    taken = [row[place] for place in places]
    size = _spread(places, [block.size[rows] for block, rows in zip(sources, taken, strict=True)])
    words = (size + 7) >> 3
    at = np.cumsum(words) - words
    memory = np.zeros(int(words.sum()) + 256, np.uint64)  # header fields are looked at behind the last event, too
    first = 0
    buffers = []
    for block, place, rows in zip(sources, places, taken, strict=True):
        index, _ = ragged(block.at[rows], words[place])
        into, _ = ragged(at[place], words[place])
        memory[into] = block.words.take(index)
        buffers.append(block.buffer[rows] + np.int32(first))
        first += len(block.window.buffers)
    raw = memory.view(np.uint8)
    together = Buffers.concatenate([block.window.buffers for block in sources])
    window = Window(raw, memory, np.zeros(first, np.int64), together, sources[0].window.segment)
    head, header = (
        _spread(places, [getattr(block, name)[rows] for block, rows in zip(sources, taken, strict=True)])
        for name in ("head", "header")
    )
    made = EventBlock(window, Walk(at, head, header, size, _spread(places, buffers)), sources[0].rules)
    for name in _COPIED:
        values = [getattr(block, name)[rows] for block, rows in zip(sources, taken, strict=True)]
        made.__dict__[name] = _spread(places, values)
    return made


def _spread(places: list[NDArray[np.int64]], parts: list[NDArray[Any]]) -> NDArray[Any]:
    """One array with ``parts[i]`` at ``places[i]``."""
    whole = np.empty(sum(map(len, parts)), parts[0].dtype)
    for place, part in zip(places, parts, strict=True):
        whole[place] = part
    return whole
