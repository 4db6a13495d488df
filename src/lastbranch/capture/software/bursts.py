"""One burst: its branches, why it ended, and the limits at which every engine ends it."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import dataclass, field
from math import inf

from .control_flow import Edge

__all__ = ["Burst", "BurstLimits"]


_WHOLE = 0.8
"""The deadline of a burst, as a part of the deadline of a wait."""


@dataclass(frozen=True, slots=True)
class BurstLimits:
    """When a burst ends: after ``depth`` branches of the kinds ``counted`` (perf's branch types), or ``stops`` stops.

    ``seconds`` is the deadline of each wait; after four fifths of it a burst that is followed begins no other one, and
    if it has a branch also from ``until`` on. ``in_place`` is how long after its beginning that is for a burst that is
    followed because it cannot be foreseen, or as a check.
    """

    depth: int = 32
    counted: frozenset[int] = frozenset(range(1, 16))
    stops: int = 512
    seconds: float = 0.1
    in_place: float = inf
    until: float = inf
    """`time.monotonic`."""
    kinds: int = field(init=False)
    """``counted`` as bits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", sum(1 << kind for kind in self.counted))

    def of(self, depth: int, until: float = inf) -> BurstLimits:
        """The same for another number of branches, ``until`` another time."""
        other = copy(self)
        object.__setattr__(other, "depth", depth)
        object.__setattr__(other, "until", until)
        return other

    def end(self, burst: Burst) -> float:
        """`time.monotonic` from which on it takes too long: signals to the recorder wait for its end."""
        end = burst.begun + self.seconds * _WHOLE
        return min(end, self.until) if burst.edges else end

    def late(self, burst: Burst) -> bool:
        """Whether it is not to go on."""
        return time.monotonic() > self.end(burst)

    def full(self, burst: Burst) -> bool:
        """Whether the burst has all its branches."""
        return len(burst.edges) >= self.depth and self.missing(burst) <= 0

    def missing(self, burst: Burst) -> int:
        """How many branches it lacks."""
        burst.counted += sum(self.kinds >> edge[2] & 1 for edge in burst.edges[burst.looked_at :])
        burst.looked_at = len(burst.edges)
        return self.depth - burst.counted


@dataclass(slots=True)
class Burst:
    """The result of a burst. ``edges`` are taken branches, oldest first, without a gap."""

    start: int = 0
    """Address of the trigger."""
    end: int = 0
    """The address at which the thread is, or goes next: the end of the straight line from the newest target."""
    edges: list[Edge] = field(default_factory=list)
    why: str = "full"
    """Why it ended: ``full``, ``stops``, ``system call``, ``unreadable code``, ``flags``, ``exclusive access``
    (loads and stores of AArch64 that a stop between them would make fail), ``signal``, ``unexpected path`` (the program
    did not come by the expected path), ``time`` (it took too long), ``deadline`` (as did one stop), ``gone``; of one
    that was foreseen also ``instructions`` (too many of them, or too much that they move), ``repeats itself`` (it waits
    for another thread), ``memory changed`` (by another thread)."""
    counted: int = 0
    """Branches of the wanted kinds among the first ``looked_at``."""
    looked_at: int = 0
    status: int | None = None
    """A wait status that came instead of the next stop, for the collector to handle."""
    stops: int = 0
    begun: float = field(default_factory=time.monotonic, compare=False)
    """`time.monotonic`."""
    faulted: bool = False
    """Whether ``status`` is a signal that an instruction of the thread raised: a fault, or a trap."""

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def ends_itself(self) -> bool:
        """Whether an instruction of the thread ended it."""
        return self.faulted or self.why == "system call"

    @property
    def dropped(self) -> bool:
        return self.why in ("deadline", "gone")
