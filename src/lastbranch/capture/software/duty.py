"""How often bursts may be: a limit on the share of wall time, and the period that keeps to it."""

from __future__ import annotations

import random
import time

__all__ = ["Duty"]

_LEAST = 10_000
"""What the kernel makes of any shorter period of this clock (perf_swevent_start_hrtimer)."""
_SHORTEST, _LONGEST = 1_000_000, 1_000_000_000
_SAVED = 0.1
"""Seconds of time for bursts that may be saved up while nothing ran."""
_JITTER = 0.25
_NEWEST = 0.1
"""Weight of the newest burst in the running means."""


class Duty:
    """Allows bursts within ``share`` of wall time, and proposes CPU-time periods that come out just there.

    ``period`` ns is fixed if given. Otherwise it follows what a burst costs and how many threads run at once.
    """

    def __init__(self, share: float, period: int = 0, first_cost: float = 0.002) -> None:
        self.share = share
        self._fixed = period
        self._cost = first_cost
        self._cpu = self._apart = first_cost / share
        self._saved = 0.0
        self._last = self._last_burst = time.monotonic()

    @property
    def period(self) -> int:
        """Mean ns of a thread's CPU time between two bursts."""
        if self._fixed:
            return self._fixed
        running = max(self._cpu / self._apart, 1.0)
        # A thread that runs alone does not run beside its bursts; of several, the others do.
        bursts_apart = running / self.share - (running == 1)
        return min(max(int(self._cost * bursts_apart * 1e9), _SHORTEST), _LONGEST)

    def next_period(self) -> int:
        """A period with jitter, so that bursts do not fall in step with the program; none before what was overdrawn has
        come in again."""
        owed = max(-self._saved, 0.0) / self.share * 1e9
        return int(max(self.period, owed, _LEAST) * random.uniform(1 - _JITTER, 1 + _JITTER))

    def first_period(self) -> int:
        """The first one of a thread is anywhere within a period: short-lived ones are seen as often as they run."""
        return max(int(self.period * random.random()), 1)

    def allows(self) -> bool:
        """Whether a burst may begin now."""
        now = time.monotonic()
        self._saved = min(self._saved + (now - self._last) * self.share, _SAVED)
        self._last = now
        return self._saved > 0

    def spent(self, seconds: float, cpu: int) -> None:
        """A burst took ``seconds``; its thread had run ``cpu`` ns since its last one."""
        self._saved -= seconds
        self._cost += (seconds - self._cost) * _NEWEST
        now = time.monotonic()
        apart, self._last_burst = now - self._last_burst, now
        # CPU time of all threads over wall time, as the bursts see it: how many run at once
        self._cpu += (cpu / 1e9 - self._cpu) * _NEWEST
        self._apart += (apart - self._apart) * _NEWEST
