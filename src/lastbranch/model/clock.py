"""Time as integers: ticks of a source's clock, and their conversion to nanoseconds and wall time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import NotRecordedError

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = ["Clock"]

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a profile's ``time`` columns.

    ``name``       what it is: ``perf_clock``, ``CLOCK_MONOTONIC``, ``QPC``, ``system time``, ``TSC``, or ``file order``
                   where the source has no time stamps and ``time`` only orders records.
    ``frequency``  ticks a second; 0 for ``file order``. ``wall`` ``(ticks, ns since 1970-01-01 UTC)`` of one instant,
    if the source gives one.
    """

    name: str = "perf_clock"
    frequency: int = _NS
    wall: tuple[int, int] | None = None

    @property
    def has_time(self) -> bool:
        """Whether ticks measure time at all (``False``: they only order records)."""
        return self.frequency > 0

    def to_ns(self, ticks: int) -> int:
        """Nanoseconds in ``ticks``, rounded down; exact integer arithmetic. 0 where the source has no time."""
        return ticks * _NS // self.frequency if self.frequency else 0

    def to_ns_array(self, ticks: NDArray[np.int64]) -> NDArray[np.int64]:
        """`to_ns` for an int64 array; exact as long as the result fits in 64 bits."""
        if self.frequency == _NS:
            return ticks
        if not self.frequency:
            return np.zeros_like(ticks)
        whole, part = np.divmod(ticks, self.frequency)
        if self.frequency < (1 << 63) // _NS:
            ns: NDArray[np.int64] = whole * _NS + part * _NS // self.frequency
            return ns
        return np.array([self.to_ns(int(t)) for t in ticks], np.int64)

    def ticks(self, seconds: Fraction) -> int:
        """Ticks in ``seconds``, rounded up: the first tick that is not earlier. Exact integer arithmetic.

        Raises `NotRecordedError` where the source has no time.
        """
        if not self.frequency:
            raise NotRecordedError("the capture has no time stamps to select by")
        return ceil(seconds * self.frequency)

    def wall_ns(self, ticks: int) -> int | None:
        """Nanoseconds since 1970-01-01 UTC at ``ticks``; ``None`` where the source does not tie its clock to it."""
        if self.wall is None:
            return None
        at, epoch = self.wall
        return epoch + self.to_ns(ticks - at)
