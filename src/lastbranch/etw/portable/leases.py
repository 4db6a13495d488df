"""How many buffers of a pool there are, who gets how many, and which are free."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..adjust import MEMORY_SHARE
from ..flags import LogFileMode
from ..properties import SessionRequest
from .pool import MOST_SLOTS, RING_SIZE, Geometry
from .slots import Slot

__all__ = ["LEAST_AHEAD", "Leases", "geometry_for"]

LEAST_AHEAD = 2
"""Buffers that every writer has, whatever MaximumBuffers says: as Windows has two for each processor."""


CALM = 4
"""A writer has at most this part (1/n) of the pool ahead of its need, and more only while it uses up half of that at a
time: what it was given cannot be taken back for one that comes later."""
_MOST_FOR_WRITERS = 4 << 30  # bytes of the pool beyond its clamp, for two buffers a writer
_LEAST_SLOTS = 64


class Leases:
    """The buffers of a pool of ``most``, of which a session uses up to ``maximum`` (or two a writer, if that is more).

    Buffers that were never used have no memory behind them, so writers get some ahead of their need.
    """

    def __init__(self, most: int, maximum: int) -> None:
        self.maximum = maximum
        self._most = most
        self._fresh = 0
        self._free: list[int] = []

    @property
    def out(self) -> int:
        """Buffers that are with writers, or held."""
        return self._fresh - len(self._free)

    def release(self, index: int) -> None:
        """A buffer is free again."""
        self._free.append(index)

    def share(self, slots: list[Slot], evict: Callable[[], int | None] | None = None) -> bool:
        """Fill up the writers' rings; ``evict`` gives up a buffer that is held. False if there were too few buffers."""
        bound = max(self.maximum, LEAST_AHEAD * len(slots))
        calm = LEAST_AHEAD if evict else max(LEAST_AHEAD, self.maximum // max(CALM, len(slots) + 1))
        # In memory what is ahead is taken from what is kept, so that it is less.
        hungry = max(calm, self.maximum // (len(slots) + 1) // (CALM if evict else 1))
        wanted = {slot: min(hungry if slot.hungry else calm, RING_SIZE) for slot in slots if not slot.broken}
        # Round by round, so that a scarce pool is shared out evenly.
        for ahead in range(max(wanted.values(), default=0)):
            for slot, most in wanted.items():
                if not len(slot.leased) <= ahead < most:
                    continue
                index = self._next(bound, ahead < LEAST_AHEAD, evict)
                if index is None:
                    return False
                slot.give(index)
        return True

    def _next(self, bound: int, needed: bool, evict: Callable[[], int | None] | None) -> int | None:
        if self.out >= bound:
            oldest = evict() if evict else None
            if oldest is not None or not needed:
                return oldest
        if self._free:
            return self._free.pop()
        if self._fresh >= self._most:
            return None
        self._fresh += 1
        return self._fresh - 1


def geometry_for(request: SessionRequest, handle: int, clock: int) -> Geometry:
    """The pool for ``request``, with room for the largest MaximumBuffers that an update may ask for."""
    size = request.buffer_size * 1024
    slots = max(_LEAST_SLOTS, min(MOST_SLOTS, _MOST_FOR_WRITERS // (LEAST_AHEAD * size)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    buffers = max(request.maximum_buffers, memory // MEMORY_SHARE // size) + LEAST_AHEAD * slots
    return Geometry(size, buffers, slots, handle, clock, bool(request.mode & LogFileMode.BLOCKING_MODE))
