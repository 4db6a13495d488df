"""The events of several streams in one time order, a block of each at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .streams import Part, Stream, filetimes

__all__ = ["Timed", "merged", "timed"]

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Timed:
    """A part of stream number ``owner``, with the FILETIMEs of its events; those from ``at`` to ``stop`` have not gone
    out."""

    owner: int
    part: Part
    times: Ints
    at: int
    stop: int


def timed(owner: int, stream: Stream, start: int | None = None, end: int | None = None) -> Iterator[Timed]:
    """The parts of ``stream`` that have events from ``start`` to ``end``, both FILETIMEs and included."""
    for part in stream.parts():
        times = filetimes(part.block.time, stream.header)
        # Where a damaged time stamp jumps back, the order of the log counts.
        order = np.maximum.accumulate(times)
        at = 0 if start is None else int(np.searchsorted(order, start))
        stop = len(times) if end is None else int(np.searchsorted(order, end, "right"))
        if at < stop:
            yield Timed(owner, part, times, at, stop)
        if stop < len(times):
            return


def merged(streams: list[Iterator[Timed]]) -> Iterator[tuple[Timed, int, int]]:
    """(part, first row, row behind the last) in time order; equal times in the order of ``streams``."""
    heads = [(stream, head) for stream in streams if (head := next(stream, None)) is not None]
    while heads:
        yield from _runs([head for _, head in heads])
        following = ((stream, head if head.at < head.stop else next(stream, None)) for stream, head in heads)
        heads = [(stream, head) for stream, head in following if head is not None]


def _runs(heads: list[Timed]) -> Iterator[tuple[Timed, int, int]]:
    """What can go out of parts: all up to the end of the one that ends first."""
    until = min(int(head.times[head.stop - 1]) for head in heads)
    if len(heads) == 1:
        stops = [heads[0].stop]
    else:
        stops = [head.at + int(np.searchsorted(head.times[head.at : head.stop], until, "right")) for head in heads]
    counts = [stop - head.at for head, stop in zip(heads, stops, strict=True)]
    times = np.concatenate([head.times[head.at : stop] for head, stop in zip(heads, stops, strict=True)])
    owner = np.repeat(np.arange(len(heads)), counts)[np.argsort(times, kind="stable")]
    cuts = np.flatnonzero(np.diff(owner)) + 1
    for begin, end in pairwise([0, *cuts.tolist(), len(owner)]):
        head = heads[int(owner[begin])]
        first, head.at = head.at, head.at + end - begin
        yield head, first, head.at
