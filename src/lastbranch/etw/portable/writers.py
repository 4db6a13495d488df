"""All writers of a session, from the daemon's side: who is attached, which buffers they have, what they lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from ..status import EtwError, Status
from .leases import Leases
from .pool import ANY_PROCESSOR, Attached, Mapping
from .slots import Piece, Slot, collect

__all__ = ["Writers"]


class Writers:
    """The slots of a pool, and its buffers: ``maximum`` of them, or two a writer if that is more.

    In buffering mode (``in_memory``) finished buffers are held in the pool, and the oldest is used again when all are.
    Who asks for no processor index gets one from ``processors`` on.
    """

    def __init__(self, mapping: Mapping, maximum: int, processors: int, in_memory: bool) -> None:
        self.slots: dict[int, Slot] = {}
        self.peak = 0
        """Most buffers that had events in them at a time."""
        self._mapping, self._processors, self._in_memory = mapping, processors, in_memory
        self._leases = Leases(mapping.geometry.buffers, maximum)
        self._held: deque[Piece] = deque()
        self._lost = 0

    @property
    def maximum(self) -> int:
        """MaximumBuffers, and the number of buffers in buffering mode."""
        return self._leases.maximum

    @maximum.setter
    def maximum(self, buffers: int) -> None:
        self._leases.maximum = buffers

    @property
    def lost(self) -> int:
        """Events that writers had no buffer for."""
        return self._lost + sum(slot.lost for slot in self.slots.values())

    @property
    def busy(self) -> int:
        """Buffers with events in them."""
        return len(self._held) + sum(slot.filling for slot in self.slots.values())

    # -- coming and going

    def attach(self, pid: int, processor: int) -> Attached:
        """A slot for a writer of process ``pid``. `EtwError` 1450 if all are taken."""
        number = next((n for n in range(self._mapping.geometry.slots) if n not in self.slots), None)
        if number is None:
            raise EtwError("attach", Status.NO_SYSTEM_RESOURCES, f"the session has {len(self.slots)} writers")
        used = {slot.cpu for slot in self.slots.values()}
        if processor in used or processor >= ANY_PROCESSOR:
            processor = next(n for n in range(self._processors, ANY_PROCESSOR) if n not in used)
        slot = self.slots[number] = Slot(self._mapping, number, processor, pid)
        slot.ask_bell(1)
        self._give()
        return Attached(number, processor)

    def detach(self, number: int) -> None:
        """Take back the buffers of a writer that writes no more; `take` has been called for what is in them."""
        slot = self.slots.pop(number)
        if self._in_memory and (last := slot.peek()):
            self._held.append(replace(last, index=slot.leased.popleft().index))
        self._lost += slot.lost
        for index in slot.end():
            self._leases.release(index)

    # -- buffers

    def take(self, only: Iterable[int] | None, unfinished: bool) -> list[Piece]:
        """What was committed since the last time, of the slots ``only`` or of all; in order for each."""
        slots = list(self.slots.values()) if only is None else [self.slots[number] for number in only]
        pieces = collect(slots, unfinished and not self._in_memory)
        self.peak = max(self.peak, self.busy + sum(piece.index >= 0 for piece in pieces))
        return pieces

    def done(self, pieces: list[Piece]) -> int:
        """``pieces`` have been delivered, or are to be held: their finished buffers are free, or held. How many."""
        finished = [piece for piece in pieces if piece.index >= 0]
        if self._in_memory:
            self._held.extend(finished)
        else:
            for piece in finished:
                self._leases.release(piece.index)
        return len(finished)

    def in_memory(self) -> list[Piece]:
        """What is held, and what writers have in the buffers that they are filling; oldest first for each."""
        return [*self._held, *filter(None, (slot.peek() for slot in self.slots.values()))]

    def share(self, busy: bool) -> bool:
        """Give the writers what they are to have. False if there are too few buffers.

        They ring when half of it is used up; if they are not ``busy``, with their next buffer.
        """
        enough = self._give()
        for slot in self.slots.values():
            slot.ask_bell(max(1, len(slot.leased) // 2) if busy else 1)
        return enough

    def _give(self) -> bool:
        return self._leases.share(list(self.slots.values()), self._evict if self._in_memory else None)

    def _evict(self) -> int | None:
        return self._held.popleft().index if self._held else None
