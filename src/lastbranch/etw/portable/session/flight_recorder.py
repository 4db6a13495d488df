"""Buffering mode: each writer fills buffers of its own in turn (`pool`), and the session copies them when asked.

The newest MinimumBuffers of all writers are what the session has, by the time of the last event in each. A writer never
waits for the session and never loses an event to it, so each has as many buffers of its own. The events of a departed
writer are copied, as far as they are among the newest of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....formats.etl import BUFFER_HEADER_SIZE
from ..pool import BELL_AT, COMMIT_AT, EVENT, RING, SPARE, Attached, Geometry, Mapping, read_barrier
from ..pool import DONE as DONE_AT
from .writers import LEAST_EVENT, MOST_LOST, Piece, Slot, Writers

__all__ = ["Changed", "Copies", "FlightRecorder", "RecorderSlot", "newest", "with_times"]

_MOST_ROUNDS = 16
"""Copies of a writer that goes on fast: what is newer than the last of them is missing."""
_NEVER = (1 << 62) - 1
"""Finished buffers at which a writer would ring the doorbell: nobody waits for it."""


Copies = list[tuple[int, Piece]]
"""Copies of buffers with the time of the last event in each."""


class RecorderSlot(Slot):
    """A writer with buffers of its own. Not ``fresh``: it wrote into the pool of a session that has ended."""

    def __init__(self, pool: Mapping, number: int, cpu: int, pid: int, *, fresh: bool = True) -> None:
        super().__init__(pool, number, cpu, pid, fresh=fresh)
        self._first = number * pool.geometry.kept
        self._kept = pool.geometry.kept - SPARE
        """The newest buffers that can always be copied."""
        if fresh:
            pool.words[self._commit_word(0)] = 0
            self._store(RING, 1)
            self.ask_bell(_NEVER)
        else:
            self._stored[RING - BELL_AT] = 1
            self._stored[0] = self._words[self._at + BELL_AT]

    def _commit_word(self, number: int) -> int:
        return (self._start(number) + COMMIT_AT) // 8

    def _start(self, number: int) -> int:
        geometry = self.pool.geometry
        return geometry.buffer(self._first + number % geometry.kept)

    def _count_finished(self) -> int:
        """How many buffers the writer has finished."""
        done = self._words[self._at + DONE_AT]
        if not self._seen <= done < MOST_LOST or not self._untouched:
            self.fail()
            return self._seen
        self._seen = done
        return done

    def _read_fill(self, number: int) -> tuple[int, int, bool]:
        """Bytes and events of buffer ``number``, and whether these are plausible."""
        capacity = self.pool.geometry.capacity
        events, used = divmod(self._words[self._commit_word(number)], EVENT)
        sound = used <= capacity and used % 8 == 0 and events <= used // LEAST_EVENT
        return used, min(events, capacity // LEAST_EVENT), sound

    def fail(self) -> None:
        if self.broken:
            return
        self.broken = True
        self._store(RING, 0)
        lost = [self._read_fill(number)[1] for number in self._newest(self._seen)]
        self._dropped = sum(lost)
        self.buffers_lost = max(1, sum(map(bool, lost)))

    def _newest(self, done: int) -> range:
        return range(max(0, done - self._kept), done + 1)

    def look(self) -> None:
        if not self.broken:
            self._count_finished()

    def take(self, unfinished: bool) -> list[Piece]:
        """Nothing: what writers have stays theirs."""
        return []

    @property
    def held(self) -> int:
        """Buffers that hold events, at most MinimumBuffers."""
        if self.broken:
            return 0
        done = self._count_finished()
        return min(self._kept, done + (self._words[self._commit_word(done)] > 0))

    def copies(self) -> list[Piece]:
        """The newest buffers, oldest first; none of a broken writer."""
        copied: dict[int, Piece] = {}
        complete = -1
        """The newest buffer that was copied when it was finished."""
        for _ in range(_MOST_ROUNDS):
            done = self._count_finished()
            if self.broken:
                return []
            made = {number: self._copy(number) for number in self._newest(done) if number > complete}
            read_barrier()  # before DONE is read again: to see it if a buffer was used again meanwhile
            after = self._count_finished()
            copied |= {number: piece for number, piece in made.items() if number >= after - self._kept}
            complete = done - 1
            if after == done:
                break
        if not all(self._is_sound(piece) for piece in copied.values()):
            self.fail()
        if self.broken:
            return []
        newest = max(copied, default=0)
        while newest - len(copied) + 1 > min(copied, default=0):  # the writer overtook the copying
            del copied[min(copied)]
        return [copied[number] for number in sorted(copied) if copied[number].size][-self._kept :]

    def _copy(self, number: int) -> Piece:
        size, events, _ = self._read_fill(number)
        read_barrier()  # before an event is read: to see all that the commit word counts
        start = self._start(number) + BUFFER_HEADER_SIZE
        end = start + min(size, self.pool.geometry.capacity)
        copy = memoryview(bytes(self.pool.bytes[start:end]))
        return Piece(None, copy, self.cpu, 0, size, events, -1, marked=False, owner=self.pid)

    def _is_sound(self, piece: Piece) -> bool:
        return piece.size == len(piece.bytes) and piece.size % 8 == 0 and piece.events <= piece.size // LEAST_EVENT

    def forget(self) -> None:
        """Return the memory of all its buffers."""
        for number in range(self.pool.geometry.kept):
            self.pool.forget(self._first + number)


class FlightRecorder(Writers[RecorderSlot]):
    """The writers of a session in buffering mode."""

    def __init__(self, geometry: Geometry, processors: int) -> None:
        super().__init__(geometry, geometry.kept - SPARE, processors, RecorderSlot)
        self.changed: Changed | None = None
        """Called when writers have come or gone, and before the buffers of one are used again."""
        self._left: Copies = []
        """The buffers that writers had when they left."""

    def attach(self, pid: int, processor: int) -> tuple[Attached, list[int]]:
        made = super().attach(pid, processor)
        self._tell(None)
        return made

    def _tell(self, left: Copies | None, without: int = -1) -> None:
        if self.changed is not None:
            slots = [slot for slot in self.slots.values() if slot.number != without]
            fds = {process.pool: process.fd for process in self.processes.values()}
            self.changed(self.geometry, slots, fds, left, (self._lost, self._buffers_lost))

    @property
    def busy(self) -> int:
        return min(self.maximum, len(self._left) + sum(slot.held for slot in self.slots.values()))

    def detach(self, number: int) -> None:
        slot = self.slots[number]
        copies = slot.copies()
        if copies:
            self._left = self._newest([*self._left, *with_times(copies)])
            self._tell(self._left, without=number)
        slot.forget()
        super().detach(number)
        self._tell(None)

    def in_memory(self) -> list[Piece]:
        """Copies of the newest buffers, those of each processor in the order of time."""
        for process in self.processes.values():
            self._check(process)
        copies = [copy for slot in list(self.slots.values()) for copy in slot.copies()]
        return [copy for _, copy in self._newest([*self._left, *with_times(copies)])]

    def _newest(self, copies: Copies) -> Copies:
        return newest(copies, self.maximum)

    def _give(self) -> bool:
        return True


Changed = Callable[[Geometry, Sequence[RecorderSlot], dict[Mapping, int], Copies | None, tuple[int, int]], None]
"""(layout, writers, their pools with descriptors, what other writers left or ``None`` if nothing changed, events and
buffers that the other writers lost)."""


def newest(copies: Copies, most: int) -> Copies:
    """The ``most`` newest, in the order of time."""
    return sorted(copies, key=lambda copy: copy[0])[-most:]


def with_times(copies: list[Piece]) -> Copies:
    """Each copy with the time of its last event; 0 where its events do not chain."""
    from .delivery import Staging, times  # NumPy, which the start of a session does not wait for

    found = []
    for stage in Staging().stages(copies):
        for i, copy in enumerate(stage.pieces):
            at = stage.events(i)
            known = len(at) and bool(stage.good[i])
            found.append((int(times(stage.words, at)[-1]) if known else 0, replace(copy)))
    return found
