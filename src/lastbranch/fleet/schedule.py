"""When an agent records a service: at random times, so many seconds of each hour.

Time is cut into slots; a slot is as long as one recording at the wanted rate needs: at 36 seconds an hour and 6 seconds
a recording, 600 seconds. Each slot has one recording, which begins at a random time of the slot. So every moment is
recorded with the same probability, the rate is kept over any few slots, and nothing that happens on the hour, or each
so many minutes, is seen always or never. Slots begin at a random time of their own on each host.

Times are seconds of the agent's clock, which only runs forward: setting the machine's time moves nothing. After a start
of the machine it begins at the seconds since 1970, so that a schedule can be kept in a file; a turn that is then far in
the future is drawn anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

__all__ = ["HOUR", "MOST", "Rate", "Turn", "fit_rates"]

HOUR = 3600.0
MOST = HOUR / 2
"""Seconds of an hour that are recorded at most, of all services of a host: one is recorded after the other."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``seconds`` of each hour are recorded, ``length`` seconds at a time."""

    seconds: float
    length: float

    @property
    def slot(self) -> float:
        """Seconds in which there is one recording."""
        return HOUR * self.length / self.seconds

    @property
    def weight(self) -> float:
        """The seconds of its run that a recorded second of the service stands for."""
        return HOUR / self.seconds


@dataclass(frozen=True, slots=True)
class Turn:
    """The next recording of a service: in slot number ``slot``, at ``due``. ``origin`` is when slot 0 began."""

    rate: Rate
    origin: float
    slot: int
    due: float

    @property
    def key(self) -> int:
        """A key of the turn's slot that survives restarts of the agent: the time when the slot begins, in ms."""
        return round(1000 * (self.origin + self.slot * self.rate.slot))

    @staticmethod
    def first(rate: Rate, now: float, draw: Random) -> Turn:
        """The first turn of a service: slots begin at a random time, and the turn of the slot at ``now`` may be
        over."""
        origin = now - draw.random() * rate.slot
        return Turn(rate, origin, 0, origin + draw.random() * rate.slot)._not_before(now, draw)

    def following(self, now: float, draw: Random) -> Turn:
        """The turn after this turn, which is done. Slots that are over by a whole slot are left out: unwatched time is
        not made up for."""
        return self._of(self.slot + 1, draw)._catch_up(now, draw)

    def resumed(self, rate: Rate, now: float, draw: Random) -> Turn:
        """This turn, at the start of an agent. A turn that was missed is drawn anew, soon, unless it was due long
        ago."""
        if rate != self.rate or self.due > now + 2 * rate.slot:  # another rate, or the clock was set back
            return Turn.first(rate, now, draw)
        caught_up = self._catch_up(now, draw)
        if caught_up.due >= now:
            return caught_up
        return replace(caught_up, due=now + draw.random() * rate.slot / 4)

    def _of(self, slot: int, draw: Random) -> Turn:
        return replace(self, slot=slot, due=self.origin + (slot + draw.random()) * self.rate.slot)

    def _catch_up(self, now: float, draw: Random) -> Turn:
        if now - self.due < self.rate.slot:
            return self
        return self._of(int((now - self.origin) // self.rate.slot), draw)._not_before(now, draw)

    def _not_before(self, now: float, draw: Random) -> Turn:
        return self if self.due >= now else self._of(self.slot + 1, draw)


def fit_rates(rates: Mapping[str, Rate]) -> dict[str, Rate]:
    """The same rates, or, if their sum is above `MOST`, smaller rates in the same proportions."""
    whole = sum(rate.seconds for rate in rates.values())
    share = min(1.0, MOST / whole) if whole else 1.0
    return {name: replace(rate, seconds=rate.seconds * share) for name, rate in rates.items()}
