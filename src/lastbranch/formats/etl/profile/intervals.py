"""The intervals that profile sources were programmed with over time, from the interval events of a log."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..decode import Decoder
from ..events.columns import EventBlock, events_of
from ..kernel.hooks import SET_INTERVAL

__all__ = ["INTERVAL_HOOKS", "IntervalTable", "Intervals"]


INTERVAL_HOOKS = (0x0F49, SET_INTERVAL, 0x0F4A)
"""Intervals when the session starts, changes, intervals when it ends; events of one tick are in this order."""
_NUMBERS = 12  # bytes of a payload that ends before the name
_NAMELESS = 14  # bytes of a payload with an empty name

Ints = NDArray[np.int64]


class Intervals(NamedTuple):
    """The intervals of a profile source, and the ticks (int64, ascending) from which each holds."""

    since: Ints
    interval: Ints

    @property
    def first(self) -> int:
        """The first interval; 0 where none is known."""
        return int(self.interval[0]) if len(self.interval) else 0


class IntervalTable:
    """The intervals of all profile sources of a log. The names of sources go to ``sources``."""

    def __init__(self, sources: dict[int, str]) -> None:
        self._sources = sources
        self._rows = [np.empty((0, 5), np.int64)]
        """Time, order within a tick, profile source, interval from then on, interval until then or 0."""
        self.short: Counter[int] = Counter()
        """By hook: events without all their numbers."""

    def gather(self, block: EventBlock, decoder: Decoder) -> None:
        """Add the interval events of ``block``; those without all their numbers are counted."""
        rows = np.flatnonzero(np.isin(block.kernel_hook, INTERVAL_HOOKS))
        if not len(rows):
            return
        whole = block.payload_size[rows] >= _NUMBERS
        self.short.update(block.kernel_hook[rows[~whole]].tolist())
        rows = rows[whole]
        if not len(rows):
            return
        part = block.take(rows)
        words = part.raw[part.payload[:, None] + np.arange(_NUMBERS)].view("<u4").astype(np.int64)
        words[part.kernel_hook != SET_INTERVAL, 2] = 0
        rank = np.argmax(part.kernel_hook[:, None] == INTERVAL_HOOKS, axis=1)
        self._rows.append(np.column_stack([part.time, rank, words]))
        named = np.flatnonzero(part.payload_size > _NAMELESS)
        known, first = np.unique(words[named, 0], return_index=True)
        names = (decoder.decode(event).fields.get("SourceName") for event in events_of(part.take(named[first])))
        self._sources.update({number: str(name) for number, name in zip(known.tolist(), names, strict=True) if name})

    def of(self, source: int, first: int, last: int) -> Intervals:
        """The intervals of a profile source from tick ``first`` to ``last``, in 100 ns for the timer, in events for the
        other sources; empty if the log has none."""
        table = np.concatenate(self._rows)
        table = table[table[:, 2] == source]
        if not len(table):
            return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
        table = table[np.lexsort((table[:, 1], table[:, 0]))]
        # Until the first event its OldInterval holds.
        time, interval = np.append(0, table[:, 0]), np.append(table[0, 4] or table[0, 3], table[:, 3])
        changes = np.append(True, interval[1:] != interval[:-1])
        time, interval = time[changes], interval[changes]
        begin = max(int(np.searchsorted(time, first, "right")) - 1, 0)
        past = max(int(np.searchsorted(time, last, "right")), begin + 1)
        return Intervals(time[begin:past], interval[begin:past])
