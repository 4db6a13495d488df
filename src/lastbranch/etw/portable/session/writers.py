"""The daemon's side of a session's writers: who is attached, their buffers and their losses.

Each process has a pool and a doorbell of its own, which its threads share. So a process cannot harm the others by what
it does to its memory. A process that wrote to the daemon's page is refused until all its writers hang up.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ....closing import on_failure
from ....formats.etl import BUFFER_HEADER_SIZE
from ...status import EtwError, Status
from ..pool import (
    ANY_PROCESSOR,
    BELL_AT,
    COMMIT_AT,
    EVENT,
    FULL,
    LEAST_AHEAD,
    LOST,
    PAGE,
    REFUSED,
    RING,
    RING_SIZE,
    Attached,
    Geometry,
    Mapping,
    make_pool,
    read_barrier,
)
from ..pool import DONE as DONE_AT
from ..session_registry import ProcessKey, process_key

__all__ = ["Leases", "Piece", "Slot", "Writers"]


# -- slots: one for each writer
#
# The words of a slot are claims that are checked. The number of finished buffers lies between what it was and the
# number of buffers given, in their order; the content of a buffer fits into it; losses only grow; the daemon's words
# are those that it stored. Otherwise the writer is `broken`: the daemon gives it no more buffers and takes nothing from
# it, and what it has committed since is lost.


_MOST = (1 << 32) - 1
MOST_LOST = 1 << 48
"""More events than a writer can lose: ten million per second for three hundred days."""
LEAST_EVENT = 8
_SLOT_WORDS = 512


@dataclass(slots=True)
class _Lease:
    """A buffer that a writer has. ``used`` bytes and ``events`` of it have been taken."""

    index: int
    used: int = 0
    events: int = 0


@dataclass(slots=True)
class Piece:
    """Events that a writer committed: ``size`` bytes from ``start`` in ``bytes``; the buffer claims to hold ``events``
    events.

    ``bytes`` are those of ``pool``, or a copy if that is ``None``. ``index`` is the buffer if this is its last piece,
    else -1. ``marked``: the writer lost events before these.
    """

    pool: Mapping | None
    bytes: memoryview
    cpu: int
    start: int
    size: int
    events: int
    index: int
    marked: bool
    owner: int
    """Process id of the writer."""


class Slot:
    """A writer of process ``pid``. Its buffers are in ``pool`` and have ProcessorIndex ``cpu``."""

    def __init__(self, pool: Mapping, number: int, cpu: int, pid: int, *, fresh: bool = True) -> None:
        self.pool, self.number, self.cpu, self.pid = pool, number, cpu, pid
        self.broken = self.hungry = False
        """``hungry``: the writer used up half of its buffers between two looks."""
        self.leased: deque[_Lease] = deque()
        self.buffers_lost = 0
        """Buffers that held events when the writer broke, at least 1."""
        self._words = pool.words
        self._at = pool.geometry.slot(number)
        self._given = self._seen = self._ready = 0
        self._lost = self._dropped = self._marked = 0
        self._bytes = bytearray(8 * (_SLOT_WORDS - BELL_AT))
        self._stored = memoryview(self._bytes).cast("Q")
        """The daemon's words as it stored them, from `BELL_AT` to the end of the page."""
        if fresh:
            pool.words[self._at : self._at + _SLOT_WORDS] = memoryview(bytes(8 * _SLOT_WORDS)).cast("Q")

    def _store(self, word: int, value: int) -> None:
        self._stored[word - BELL_AT] = self._words[self._at + word] = value

    @property
    def _untouched(self) -> bool:
        """Whether the daemon's words are unchanged."""
        begin = 8 * (self._at + BELL_AT)
        return self.pool.memory[begin : begin + len(self._bytes)] == self._bytes

    def give(self, index: int) -> None:
        """Give buffer ``index`` to the writer."""
        self._words[(self.pool.geometry.buffer(index) + COMMIT_AT) // 8] = 0
        self.leased.append(_Lease(index))
        self._given += 1
        self._store(RING + (self._given - 1) % RING_SIZE, (self._given & _MOST) * EVENT | index)

    def ask_bell(self, after: int) -> None:
        """Ask the writer to ring after it has finished ``after`` more buffers."""
        self._store(BELL_AT, self._seen + after)

    @property
    def lost(self) -> int:
        """Events that found no buffer, of the writer and of threads of its process without a slot, and events that were
        in its buffers when it broke."""
        if not self.broken:
            claimed = self._words[self._at + LOST] + self._words[self._at + REFUSED]
            if self._lost <= claimed < MOST_LOST:
                self._lost = claimed
            else:
                self.fail()
        return self._lost + self._dropped

    def fail(self) -> None:
        """Mark the writer as broken. The events in its buffers are counted as lost, as far as their number is known. It
        gets no more buffers, so that its writes fail."""
        if self.broken:
            return
        self.broken, self._ready = True, 0
        for word in range(RING, RING + RING_SIZE):
            self._store(word, 0)
        lost = [self._read_commit(lease)[1] for lease in self.leased]
        self._dropped = sum(lost)
        self.buffers_lost = max(1, sum(map(bool, lost)))

    def _read_commit(self, lease: _Lease) -> tuple[int, int, bool]:
        """Bytes and events that a buffer got since the last look, and whether these are plausible. The events are
        limited to what fits into a buffer."""
        capacity = self.pool.geometry.capacity
        events, used = divmod(self._words[(self.pool.geometry.buffer(lease.index) + COMMIT_AT) // 8], EVENT)
        size, events = used - lease.used, events - lease.events
        sound = used <= capacity and used % 8 == 0 and size >= 0 and 0 <= events <= size // LEAST_EVENT
        return size, max(0, min(events, capacity // LEAST_EVENT)), sound

    @property
    def filling(self) -> bool:
        """Whether the first buffer holds events."""
        if self.broken or not self.leased:
            return False
        return self._words[(self.pool.geometry.buffer(self.leased[0].index) + COMMIT_AT) // 8] > 0

    def look(self) -> None:
        """Read the number of finished buffers."""
        if self.broken:
            return
        done = self._words[self._at + DONE_AT]
        if self._seen <= done <= self._given and self._untouched:
            self._ready = done - self._seen
            self.hungry = 0 < self._ready >= len(self.leased) // 2
        else:
            self.fail()

    def take(self, unfinished: bool) -> list[Piece]:
        """The content of the finished buffers and, if ``unfinished``, of the current buffer, too."""
        found: list[Piece] = []
        count = self._ready + (1 if unfinished and len(self.leased) > self._ready else 0)
        for number in range(0 if self.broken else count):
            lease, finished = self.leased[0], number < self._ready
            size, events, sound = self._read_commit(lease)
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
        return Piece(self.pool, self.pool.bytes, self.cpu, start, size, events, index, marked, self.pid)

    def end(self) -> list[int]:
        """Take back the buffers. Later writes to these buffers are not read."""
        indices = [lease.index for lease in self.leased]
        self.leased.clear()
        return indices


S = TypeVar("S", bound=Slot)


def collect(slots: Iterable[Slot], unfinished: bool) -> list[Piece]:
    """The events that the writers of ``slots`` have committed since the last call, in each writer's order."""
    found = list(slots)
    for slot in found:
        slot.look()
    read_barrier()  # before commit words are read: to see the last commit of a finished buffer
    pieces = [piece for slot in found for piece in slot.take(unfinished)]
    read_barrier()  # before an event is read
    return pieces


# -- how many buffers each writer gets


CALM = 4
"""A writer has at most this part (1/n) of the pool ahead of its need, and more only while it uses up half of that at a
time: buffers cannot be taken back for a writer that attaches later."""


class Leases:
    """The ``most`` buffers of a session, of which it uses up to ``maximum`` (or two a writer, if that is more).

    Unused buffers have no memory, so writers get some ahead of their need. A free buffer keeps its memory in the pool
    of its last use, and returns the memory before it is used in another pool.
    """

    def __init__(self, most: int, maximum: int) -> None:
        self.maximum = maximum
        self._most = most
        self._fresh = self._out = 0
        self._free: dict[Mapping | None, list[int]] = {}
        """Free buffers by the pool that has their memory."""

    @property
    def out(self) -> int:
        """Buffers that writers have."""
        return self._out

    def release(self, index: int, pool: Mapping) -> None:
        """A buffer that was used in ``pool`` is free again."""
        self._out -= 1
        self._free.setdefault(pool, []).append(index)

    def forget(self, pool: Mapping) -> None:
        """``pool`` is closed: its free buffers have no memory any more."""
        self._free.setdefault(None, []).extend(self._free.pop(pool, []))

    def share(self, slots: Sequence[Slot]) -> bool:
        """Fill the writers' rings. False if there are too few buffers."""
        bound = max(self.maximum, LEAST_AHEAD * len(slots))
        calm = max(LEAST_AHEAD, self.maximum // max(CALM, len(slots) + 1))
        hungry = max(calm, self.maximum // (len(slots) + 1))
        wanted = {slot: min(hungry if slot.hungry else calm, RING_SIZE) for slot in slots if not slot.broken}
        # Round by round, to share a scarce pool evenly.
        for ahead in range(max(wanted.values(), default=0)):
            for slot, most in wanted.items():
                if not len(slot.leased) <= ahead < most:
                    continue
                index = self._next(slot.pool, bound, ahead < LEAST_AHEAD)
                if index is None:
                    return False
                slot.give(index)
        return True

    def _next(self, pool: Mapping, bound: int, needed: bool) -> int | None:
        """A buffer for a writer in ``pool``."""
        if self.out >= bound and not needed:
            return None
        own = self._free.get(pool)
        for home, free in [(pool, own)] if own else self._free.items():
            if free:
                index = free.pop()
                if home not in (pool, None):
                    home.forget(index)
                break
        else:
            if self._fresh >= self._most:
                return None
            index = self._fresh
            self._fresh += 1
        self._out += 1
        return index


class _Process:
    """The objects that the session shares with a process: a pool and a doorbell, and the slots of its threads."""

    def __init__(self, geometry: Geometry) -> None:
        self.slots: set[Slot] = set()
        self._page = bytearray(PAGE)
        """The first page as the daemon stored it."""
        self.fd = make_pool(geometry)
        with on_failure(os.close, self.fd):
            self.pool = Mapping(self.fd, geometry)
            self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def sound(self) -> bool:
        """Whether the daemon's page is unchanged."""
        return self.pool.memory[:PAGE] == self._page

    def set_full(self, full: bool) -> None:
        """Store the word `FULL`."""
        memoryview(self._page).cast("Q")[FULL] = self.pool.words[FULL] = full

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.bell)


class Writers(Generic[S]):
    """The slots of a session, made by ``slot``, and its buffers: ``maximum`` of them, or two a writer if that is more.

    A writer that asks for no processor index gets one from ``processors`` on.
    """

    def __init__(
        self, geometry: Geometry, maximum: int, processors: int, slot: Callable[[Mapping, int, int, int], S]
    ) -> None:
        self._slot = slot
        self.slots: dict[int, S] = {}
        self.processes: dict[ProcessKey, _Process] = {}
        self.peak = 0
        """Most buffers that held events at a time."""
        self.geometry, self._processors = geometry, processors
        self._leases = Leases(geometry.buffers, maximum)
        self._lost = self._buffers_lost = 0
        self._full = False
        self._described = geometry.sealed()
        self._bells = select.epoll()
        self._spare: _Process | None = _Process(geometry)
        """For the next process. A session that has no memory to share does not start."""

    @property
    def maximum(self) -> int:
        """MaximumBuffers."""
        return self._leases.maximum

    @maximum.setter
    def maximum(self, buffers: int) -> None:
        self._leases.maximum = buffers

    @property
    def lost(self) -> int:
        """Events that found no buffer."""
        return self._lost + sum(slot.lost for slot in self.slots.values())

    @property
    def buffers_lost(self) -> int:
        """Buffers of broken writers."""
        return self._buffers_lost + sum(slot.buffers_lost for slot in self.slots.values())

    @property
    def doorbell(self) -> int:
        """A descriptor that is readable while the doorbell of a process rings."""
        return self._bells.fileno()

    @property
    def busy(self) -> int:
        """Buffers that hold events."""
        return sum(slot.filling for slot in self.slots.values())

    # -- coming and going

    def attach(self, pid: int, processor: int) -> tuple[Attached, list[int]]:
        """A slot for a writer of process ``pid``, and the descriptors of geometry, pool and doorbell, which stay open.

        Raises `EtwError` 1450 if all slots are taken, if there is no memory for another process, and for a process that
        wrote outside its area.
        """
        number = next((n for n in range(self.geometry.slots) if n not in self.slots), None)
        if number is None:
            raise EtwError("attach", Status.NO_SYSTEM_RESOURCES, f"the session has {len(self.slots)} writers")
        process = self._process(pid)
        used = {slot.cpu for slot in self.slots.values()}
        if processor in used or not 0 <= processor < ANY_PROCESSOR:
            processor = next(n for n in range(self._processors, ANY_PROCESSOR) if n not in used)
        slot = self.slots[number] = self._slot(process.pool, number, processor, pid)
        process.slots.add(slot)
        slot.ask_bell(1)
        self._give()
        return Attached(number, processor), [self._described, process.fd, process.bell]

    def _process(self, pid: int) -> _Process:
        key = process_key(pid)
        process = self.processes.get(key)
        if process is None:
            try:
                process = self._spare or _Process(self.geometry)
            except (EtwError, OSError) as error:
                reason = f"nothing can be shared with process {pid}: {error}"
                raise EtwError("attach", Status.NO_SYSTEM_RESOURCES, reason) from error
            self.processes[key] = process
            self._bells.register(process.bell, select.EPOLLIN)
            process.set_full(self._full)
            with contextlib.suppress(EtwError, OSError):
                self._spare = None
                self._spare = _Process(self.geometry)
        self._check(process)
        if not process.sound:
            reason = f"process {pid} wrote to session memory that it must not change"
            raise EtwError("attach", Status.NO_SYSTEM_RESOURCES, reason)
        return process

    def _check(self, process: _Process) -> None:
        """Take back the buffers of broken writers. All are broken if the process wrote to the daemon's page."""
        sound = process.sound
        for slot in process.slots:
            if not sound:
                slot.fail()
            if slot.broken:
                for index in slot.end():
                    self._leases.release(index, slot.pool)

    def detach(self, number: int) -> None:
        """Take back the buffers of a writer that has gone, after a `take` of their content."""
        slot = self.slots.pop(number)
        self._lost += slot.lost
        self._buffers_lost += slot.buffers_lost
        for index in slot.end():
            self._leases.release(index, slot.pool)
        key, process = next((key, process) for key, process in self.processes.items() if slot in process.slots)
        process.slots.discard(slot)
        if not process.slots:
            del self.processes[key]
            self._leases.forget(process.pool)
            self._bells.unregister(process.bell)
            process.close()

    def close(self) -> None:
        """Release all shared memory, after all writers were detached or the start has failed."""
        for process in (*self.processes.values(), *filter(None, [self._spare])):
            process.close()
        self._bells.close()
        os.close(self._described)

    # -- doorbells

    def answer_bells(self) -> None:
        """Reset the doorbells that ring."""
        for bell, _ in self._bells.poll(0):
            with contextlib.suppress(BlockingIOError):  # writers share the descriptor, and may clear its O_NONBLOCK
                os.preadv(bell, [bytearray(8)], -1, os.RWF_NOWAIT)

    def set_full(self, full: bool) -> None:
        """Store for the writers whether no buffer gets free because nobody reads the session in real time."""
        if full != self._full:
            self._full = full
            for process in self.processes.values():
                process.set_full(full)

    # -- buffers

    def take(self, only: Iterable[int] | None, unfinished: bool) -> list[Piece]:
        """The events that the slots ``only``, or all slots, have committed since the last call, in each slot's
        order."""
        for process in self.processes.values():
            self._check(process)
        slots = list(self.slots.values()) if only is None else [self.slots[number] for number in only]
        pieces = collect(slots, unfinished)
        self.peak = max(self.peak, self.busy + sum(piece.index >= 0 for piece in pieces))
        return pieces

    def done(self, pieces: list[Piece]) -> int:
        """``pieces`` were delivered: free their finished buffers. Returns how many."""
        finished = 0
        for piece in pieces:
            if piece.index >= 0 and piece.pool is not None:
                self._leases.release(piece.index, piece.pool)
                finished += 1
        return finished

    def share(self, busy: bool) -> bool:
        """Fill the writers' rings. False if there are too few buffers.

        Writers ring when they have used up half of their buffers; if they are not ``busy``, after the next one.
        """
        enough = self._give()
        for slot in self.slots.values():
            slot.ask_bell(max(1, len(slot.leased) // 2) if busy else 1)
        return enough

    def _give(self) -> bool:
        return self._leases.share(list(self.slots.values()))
