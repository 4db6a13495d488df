"""The daemon's side of the writers: buffers out to them, and what they committed back.

What a slot says is a claim. How many buffers a writer has finished must lie between what it had finished before and
what it was given, in the order in which it was given them; what a buffer holds must fit into it. A writer that claims
anything else gets nothing and gives nothing any more: it is `broken`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ...formats.etl.layout import BUFFER_HEADER_SIZE
from .pool import BELL_AT, COMMIT_AT, EVENT, LOST, REFUSED, RING, RING_SIZE, Mapping, settle
from .pool import DONE as DONE_AT

__all__ = ["Piece", "Slot", "collect"]

_MOST = (1 << 32) - 1
_LEAST_EVENT = 8
_SLOT_WORDS = 512


@dataclass(slots=True)
class _Lease:
    """A buffer that a writer has; ``used`` bytes and ``events`` of it were taken already."""

    index: int
    used: int = 0
    events: int = 0


@dataclass(slots=True)
class Piece:
    """Events that a writer committed: ``size`` bytes from ``start`` in the pool, ``events`` of them as it claims.

    ``index`` is the buffer if this is the last of it, else -1. ``marked``: the writer lost events before these.
    """

    cpu: int
    start: int
    size: int
    events: int
    index: int
    marked: bool
    owner: int
    """Process id of the writer."""


class Slot:
    """One writer: process ``pid``, whose buffers have ProcessorIndex ``cpu``."""

    def __init__(self, mapping: Mapping, number: int, cpu: int, pid: int) -> None:
        self.number, self.cpu, self.pid = number, cpu, pid
        self.broken = self.hungry = False
        """``hungry``: it used up half of its buffers between two looks."""
        self.leased: deque[_Lease] = deque()
        self._mapping, self._words = mapping, mapping.words
        self._at = mapping.geometry.slot(number)
        self._given = self._seen = self._ready = 0
        self._lost = self._marked = 0
        mapping.words[self._at : self._at + _SLOT_WORDS] = memoryview(bytes(8 * _SLOT_WORDS)).cast("Q")

    def give(self, index: int) -> None:
        """Let the writer have buffer ``index``."""
        words = self._words
        words[(self._mapping.geometry.buffer(index) + COMMIT_AT) // 8] = 0
        self.leased.append(_Lease(index))
        self._given += 1
        words[self._at + RING + (self._given - 1) % RING_SIZE] = (self._given & _MOST) * EVENT | index

    def ask_bell(self, after: int) -> None:
        """Have the writer ring when it has finished ``after`` more buffers."""
        self._words[self._at + BELL_AT] = self._seen + after

    @property
    def lost(self) -> int:
        """Events that the writer, or a thread of its process without a slot, had no buffer for."""
        claimed = self._words[self._at + LOST] + self._words[self._at + REFUSED]
        self._lost = max(self._lost, min(claimed, _MOST))
        return self._lost

    @property
    def filling(self) -> bool:
        """Whether a buffer is being filled, or has been in part."""
        if not self.leased:
            return False
        return self._words[(self._mapping.geometry.buffer(self.leased[0].index) + COMMIT_AT) // 8] > 0

    def look(self) -> None:
        """Read how many buffers are finished."""
        done = self._words[self._at + DONE_AT]
        if self._seen <= done <= self._given:
            self._ready = done - self._seen
            self.hungry = 0 < self._ready >= len(self.leased) // 2
        else:
            self.broken, self._ready = True, 0

    def take(self, unfinished: bool) -> list[Piece]:
        """What is committed in the finished buffers, and if wanted in the one that is being filled."""
        geometry, found = self._mapping.geometry, []
        count = self._ready + (1 if unfinished and len(self.leased) > self._ready else 0)
        for number in range(0 if self.broken else count):
            finished = number < self._ready
            lease = self.leased.popleft() if finished else self.leased[0]
            start = geometry.buffer(lease.index)
            events, used = divmod(self._words[(start + COMMIT_AT) // 8], EVENT)
            size = used - lease.used
            events -= lease.events
            if used > geometry.capacity or used % 8 or size < 0 or not 0 <= events <= size // _LEAST_EVENT:
                self.broken, size, events = True, 0, max(0, min(events, geometry.capacity // _LEAST_EVENT))
            if size or events or finished:
                marked = self.lost > self._marked
                index = lease.index if finished else -1
                at = start + BUFFER_HEADER_SIZE + lease.used
                found.append(Piece(self.cpu, at, size, events, index, marked, self.pid))
                self._marked = self._lost
            lease.used, lease.events = used, lease.events + events
            if self.broken and not finished:
                break
        self._seen += self._ready
        self._ready = 0
        return found

    def peek(self) -> Piece | None:
        """What is committed in the buffer that is being filled, which stays where it is; ``None`` if nothing."""
        if self.broken or not self.leased:
            return None
        start = self._mapping.geometry.buffer(self.leased[0].index)
        events, used = divmod(self._words[(start + COMMIT_AT) // 8], EVENT)
        if not 0 < used <= self._mapping.geometry.capacity or used % 8 or events > used // _LEAST_EVENT:
            return None
        return Piece(self.cpu, start + BUFFER_HEADER_SIZE, used, events, -1, False, self.pid)

    def end(self) -> list[int]:
        """Take back the buffers; nothing may be written to them any more."""
        indices = [lease.index for lease in self.leased]
        self.leased.clear()
        return indices


def collect(slots: Iterable[Slot], unfinished: bool) -> list[Piece]:
    """What the writers of ``slots`` committed since the last time, of each in its order."""
    found = list(slots)
    for slot in found:
        slot.look()
    settle()  # before a commit word is read: what was committed last in a finished buffer
    pieces = [piece for slot in found for piece in slot.take(unfinished)]
    settle()  # before an event is read
    return pieces
