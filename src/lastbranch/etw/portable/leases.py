"""How many buffers of a pool there are, who gets how many, and which are free."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..adjust import MEMORY_SHARE
from ..flags import LogFileMode
from ..properties import SessionRequest
from .pool import MOST_SLOTS, RING_SIZE, Geometry, Mapping
from .slots import Piece, Slot

__all__ = ["LEAST_AHEAD", "Leases", "geometry_for"]

LEAST_AHEAD = 2
"""Buffers that every writer has, whatever MaximumBuffers says: as Windows has two for each processor."""


CALM = 4
"""A writer has at most this part (1/n) of the pool ahead of its need, and more only while it uses up half of that at a
time: what it was given cannot be taken back for one that comes later."""
_MOST_FOR_WRITERS = 4 << 30  # bytes of the pool beyond its clamp, for two buffers a writer
_LEAST_SLOTS = 64


class Leases:
    """The ``most`` buffers of a session, of which it uses up to ``maximum`` (or two a writer, if that is more).

    Buffers that were never used have no memory, so writers get some ahead of their need. A free buffer keeps its memory
    in the pool where it was used last; to be used in another one it gives that back.
    """

    def __init__(self, most: int, maximum: int) -> None:
        self.maximum = maximum
        self._most = most
        self._fresh = self._out = 0
        self._free: dict[Mapping | None, list[int]] = {}
        """By the pool that has their memory."""

    @property
    def out(self) -> int:
        """Buffers that are with writers, or held."""
        return self._out

    def release(self, index: int, pool: Mapping) -> None:
        """A buffer that was used in ``pool`` is free again."""
        self._out -= 1
        self._free.setdefault(pool, []).append(index)

    def forget(self, pool: Mapping) -> None:
        """Nobody uses ``pool`` any more: its free buffers have no memory then."""
        self._free.setdefault(None, []).extend(self._free.pop(pool, []))

    def share(self, slots: list[Slot], evict: Callable[[], Piece | None] | None = None) -> bool:
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
                index = self._next(slot.pool, bound, ahead < LEAST_AHEAD, evict)
                if index is None:
                    return False
                slot.give(index)
        return True

    def _next(
        self, pool: Mapping, bound: int, needed: bool, evict: Callable[[], Piece | None] | None
    ) -> int | None:  # fmt: skip
        """A buffer for a writer in ``pool``."""
        if self.out >= bound:
            oldest = evict() if evict else None
            if oldest is not None:
                self.release(oldest.index, oldest.pool)
            elif not needed:
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


def geometry_for(request: SessionRequest, handle: int, clock: int) -> Geometry:
    """The layout of the pools for ``request``, with room for the largest MaximumBuffers that an update may ask for."""
    size = request.buffer_size * 1024
    slots = max(_LEAST_SLOTS, min(MOST_SLOTS, _MOST_FOR_WRITERS // (LEAST_AHEAD * size)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    buffers = max(request.maximum_buffers, memory // MEMORY_SHARE // size) + LEAST_AHEAD * slots
    return Geometry(size, buffers, slots, handle, clock, bool(request.mode & LogFileMode.BLOCKING_MODE))
