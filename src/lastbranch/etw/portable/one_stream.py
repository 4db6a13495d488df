"""NO_PER_PROCESSOR_BUFFERING: the events of all writers as one stream with processor index 0, in the order of time.

An event is let go some time after its time stamp, as another writer may be about to commit an older one. One that
comes later still stands in the next buffer, at its place there. Nothing waits that is of later than now: the system
time was set back, and what comes next is not before it but behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...arrays import take_ranges
from .event_times import at_least, times
from .sinks import Finished
from .staging import Staged

__all__ = ["OneStream"]


class OneStream:
    """Merges pieces into buffers of ``capacity`` bytes; ``owner`` is the process whose file they go to, 0 for all.

    ``steady``: the time stands still where the clock goes back; ``last`` is the last time that was let go then.
    """

    def __init__(self, capacity: int, owner: int = 0, *, steady: bool = False) -> None:
        self.last = 0
        self._owner, self._steady = owner, steady
        self._room = capacity // 8
        self._words: list[NDArray[np.uint64]] = []
        self._held = 0
        self._first = np.empty(0, np.int64)
        self._size = np.empty(0, np.int64)
        self._time = np.empty(0, np.int64)
        self._lost = False

    def add(self, stage: Staged, i: int) -> None:
        """Take piece ``i`` of ``stage``, which has events and is good."""
        at = stage.events(i)
        words = stage.words[stage.first[i] : stage.end[i]].copy()
        first = at - stage.first[i]
        self._time = np.concatenate([self._time, times(words, first)])
        self._first = np.concatenate([self._first, first + self._held])
        self._size = np.concatenate([self._size, np.diff(first, append=len(words))])
        self._words.append(words)
        self._held += len(words)
        self._lost |= stage.pieces[i].marked

    def buffers(self, before: int | None, now: int) -> Iterator[Finished]:
        """Full buffers of the events with times before ``before``; all events, if that is ``None``."""
        order = np.argsort(self._time, kind="stable")
        ahead = len(order) > 0 and self._time[order[-1]] > now
        ready = len(order) if ahead or before is None else int(np.searchsorted(self._time[order], before))
        order, rest = order[:ready], order[ready:]
        words = np.concatenate(self._words) if self._words else np.empty(0, np.uint64)
        ends = np.cumsum(self._size[order])
        done = begin = 0
        while done < ready:
            count = int(np.searchsorted(ends, begin + self._room, "right"))
            if count == ready and before is not None and begin + self._room - ends[-1] > 0:
                break  # not full yet
            rows = order[done:count]
            body = take_ranges(words, self._first[rows], self._size[rows])
            if self._steady:
                sizes = self._size[rows]
                self.last = at_least(self.last, body, np.cumsum(sizes) - sizes)
            yield Finished(0, body.view(np.uint8).data, count - done, now, self._lost, self._owner)
            self._lost = False
            done, begin = count, int(ends[count - 1])
        self._keep(words, np.concatenate([order[done:], rest]))

    def _keep(self, words: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        self._words = [take_ranges(words, self._first[rows], self._size[rows])]
        self._held = len(self._words[0])
        self._size, self._time = self._size[rows], self._time[rows]
        self._first = np.cumsum(self._size) - self._size
