"""The daemon's side of the writers: buffers out to them, and what they committed back.

What a slot says is a claim. How many buffers a writer has finished must lie between what it had finished before and
what it was given, in the order in which it was given them; what a buffer holds must fit into it; losses only grow; and
the daemon's words must be those that it stored. A writer of which anything else is found gets nothing and gives nothing
any more: it is `broken`, and what it has committed since is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ....formats.etl.layout import BUFFER_HEADER_SIZE
from ..pool import BELL_AT, COMMIT_AT, EVENT, LOST, REFUSED, RING, RING_SIZE, Mapping, settle
from ..pool import DONE as DONE_AT

__all__ = ["Piece", "Slot", "collect"]


_MOST = (1 << 32) - 1
_MOST_LOST = 1 << 48
"""More events than a writer can lose: ten million a second for three hundred days."""
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
    """Events that a writer committed: ``size`` bytes from ``start`` in ``pool``, ``events`` of them as it claims.

    ``index`` is the buffer if this is the last of it, else -1. ``marked``: the writer lost events before these.
    """

    pool: Mapping
    cpu: int
    start: int
    size: int
    events: int
    index: int
    marked: bool
    owner: int
    """Process id of the writer."""


class Slot:
    """One writer: process ``pid``, whose buffers are in ``pool`` and have ProcessorIndex ``cpu``."""

    def __init__(self, pool: Mapping, number: int, cpu: int, pid: int) -> None:
        self.pool, self.number, self.cpu, self.pid = pool, number, cpu, pid
        self.broken = self.hungry = False
        """``hungry``: it used up half of its buffers between two looks."""
        self.leased: deque[_Lease] = deque()
        self.buffers_lost = 0
        """Buffers that had events in them when it broke; 1 at least then."""
        self._words = pool.words
        self._at = pool.geometry.slot(number)
        self._given = self._seen = self._ready = 0
        self._lost = self._dropped = self._marked = 0
        self._bytes = bytearray(8 * (_SLOT_WORDS - BELL_AT))
        self._stored = memoryview(self._bytes).cast("Q")
        """The daemon's words as it has stored them, from `BELL_AT` to the end of the page."""
        pool.words[self._at : self._at + _SLOT_WORDS] = memoryview(bytes(8 * _SLOT_WORDS)).cast("Q")

    def _store(self, word: int, value: int) -> None:
        self._stored[word - BELL_AT] = self._words[self._at + word] = value

    @property
    def _untouched(self) -> bool:
        """Whether nobody else has written to the daemon's words."""
        begin = 8 * (self._at + BELL_AT)
        return self.pool.memory[begin : begin + len(self._bytes)] == self._bytes

    def give(self, index: int) -> None:
        """Let the writer have buffer ``index``."""
        self._words[(self.pool.geometry.buffer(index) + COMMIT_AT) // 8] = 0
        self.leased.append(_Lease(index))
        self._given += 1
        self._store(RING + (self._given - 1) % RING_SIZE, (self._given & _MOST) * EVENT | index)

    def ask_bell(self, after: int) -> None:
        """Have the writer ring when it has finished ``after`` more buffers."""
        self._store(BELL_AT, self._seen + after)

    @property
    def lost(self) -> int:
        """Events that the writer, or a thread of its process without a slot, had no buffer for, and those that were in
        its buffers when it broke."""
        if not self.broken:
            claimed = self._words[self._at + LOST] + self._words[self._at + REFUSED]
            if self._lost <= claimed < _MOST_LOST:
                self._lost = claimed
            else:
                self.fail()
        return self._lost + self._dropped

    def fail(self) -> None:
        """Believe nothing of the writer any more: it is broken. What is in its buffers is counted as lost, as far as
        that can be known. It gets no other buffer, so that its writes fail."""
        if self.broken:
            return
        self.broken, self._ready = True, 0
        for word in range(RING, RING + RING_SIZE):
            self._store(word, 0)
        lost = [self._committed(lease)[1] for lease in self.leased]
        self._dropped = sum(lost)
        self.buffers_lost = max(1, sum(map(bool, lost)))

    def _committed(self, lease: _Lease) -> tuple[int, int, bool]:
        """Bytes and events that came to a buffer since it was last looked at, and whether that can be. The events are
        no more than a buffer takes."""
        capacity = self.pool.geometry.capacity
        events, used = divmod(self._words[(self.pool.geometry.buffer(lease.index) + COMMIT_AT) // 8], EVENT)
        size, events = used - lease.used, events - lease.events
        sound = used <= capacity and used % 8 == 0 and size >= 0 and 0 <= events <= size // _LEAST_EVENT
        return size, max(0, min(events, capacity // _LEAST_EVENT)), sound

    @property
    def filling(self) -> bool:
        """Whether a buffer is being filled, or has been in part."""
        if self.broken or not self.leased:
            return False
        return self._words[(self.pool.geometry.buffer(self.leased[0].index) + COMMIT_AT) // 8] > 0

    def look(self) -> None:
        """Read how many buffers are finished."""
        if self.broken:
            return
        done = self._words[self._at + DONE_AT]
        if self._seen <= done <= self._given and self._untouched:
            self._ready = done - self._seen
            self.hungry = 0 < self._ready >= len(self.leased) // 2
        else:
            self.fail()

    def take(self, unfinished: bool) -> list[Piece]:
        """What is committed in the finished buffers, and if wanted in the one that is being filled."""
        found: list[Piece] = []
        count = self._ready + (1 if unfinished and len(self.leased) > self._ready else 0)
        for number in range(0 if self.broken else count):
            lease, finished = self.leased[0], number < self._ready
            size, events, sound = self._committed(lease)
            if not sound:
                self.fail()
            lost = self.lost
            if self.broken:
                break
            if size or events or finished:
                found.append(self._piece(lease, size, events, lease.index if finished else -1, lost > self._marked))
                self._marked = lost
            lease.used, lease.events = lease.used + size, lease.events + events
            if finished:
                self.leased.popleft()
                self._seen += 1
        self._ready = 0
        return found

    def _piece(self, lease: _Lease, size: int, events: int, index: int, marked: bool) -> Piece:
        start = self.pool.geometry.buffer(lease.index) + BUFFER_HEADER_SIZE + lease.used
        return Piece(self.pool, self.cpu, start, size, events, index, marked, self.pid)

    def peek(self) -> Piece | None:
        """What is committed in the buffer that is being filled, which stays where it is; ``None`` if nothing."""
        if self.broken or not self.leased:
            return None
        size, events, sound = self._committed(self.leased[0])
        if not sound:
            self.fail()
        return self._piece(self.leased[0], size, events, -1, marked=False) if sound and size else None

    def end(self) -> list[int]:
        """Take back the buffers: what is written to them now is not read any more."""
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
