"""The clock of a session: the unit of its time stamps (WNODE_HEADER.ClientContext).

1 is the monotonic clock in nanoseconds, presented as a performance counter of 1 GHz; perf events and the software
branch record use the same clock. 2 is the system time as FILETIME, 100 ns since 1601. 3, processor cycles, is refused:
cycles of different processors cannot be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from ..flags import ClientContext
from ..status import EtwError, Status

__all__ = ["FILETIME_EPOCH", "Clock", "filetime"]

FILETIME_EPOCH = 116_444_736_000_000_000
"""1970-01-01 as FILETIME."""


def filetime() -> int:
    """Now, in 100 ns since 1601 UTC."""
    return FILETIME_EPOCH + time.time_ns() // 100


class Clock(NamedTuple):
    """A session's clock. Tests pass their own with the same attributes."""

    kind: int = ClientContext.QPC

    @property
    def frequency(self) -> int:
        """Ticks a second."""
        return 10_000_000 if self.kind == ClientContext.SYSTEM_TIME else 1_000_000_000

    def now(self) -> int:
        """The current time in ticks."""
        return filetime() if self.kind == ClientContext.SYSTEM_TIME else time.monotonic_ns()

    def ticks(self) -> Callable[[], int]:
        """A function that returns the time for the events of one writer, and never goes back.

        If the system time is set back, the function repeats its last value until the clock has caught up. So events of
        a processor index are always in time order.
        """
        if self.kind != ClientContext.SYSTEM_TIME:
            return time.monotonic_ns
        last = 0

        def ticks() -> int:
            nonlocal last
            last = max(last, filetime())
            return last

        return ticks

    def filetime(self) -> int:
        """The wall time as FILETIME."""
        return filetime()

    @classmethod
    def of(cls, kind: int) -> Clock:
        """The clock of a ClientContext. Raises `EtwError` 87 for an unknown one."""
        if kind not in (ClientContext.DEFAULT, ClientContext.QPC, ClientContext.SYSTEM_TIME):
            raise EtwError("StartTrace", Status.INVALID_PARAMETER, f"ClientContext = {kind}: no such clock here")
        return cls(kind or ClientContext.QPC)
