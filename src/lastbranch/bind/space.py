"""The address space of one process, as it is now."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

__all__ = ["Space"]


@dataclass(slots=True)
class Space:
    """Mapped intervals, sorted and disjoint: parallel lists of start, end, mapping and the moment it came."""

    number: int
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    since: list[int] = field(default_factory=list)
    shared: bool = False

    def copy(self) -> Space:
        return Space(self.number, self.starts[:], self.ends[:], self.owners[:], self.since[:])

    def holds(self, start: int, end: int, mapping: int) -> bool:
        """Whether exactly this interval already belongs to ``mapping``: rundown events repeat what is known."""
        i = bisect_right(self.ends, start)
        return i < len(self.starts) and (self.starts[i], self.ends[i], self.owners[i]) == (start, end, mapping)
