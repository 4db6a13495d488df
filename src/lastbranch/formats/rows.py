"""What `dump` prints, whatever the format: one row for each event, and which rows are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil
from typing import Any

from ..errors import Damage
from ..model import Clock

__all__ = ["Dump", "Row", "Wanted", "milliseconds"]

_FINEST = 9


@dataclass(slots=True)
class Row:
    """One event. ``time`` is in ticks since the first event of the capture, ``None`` where it has no time stamp.

    ``pid`` and ``tid`` are what the event is about (-1: not known), ``size`` the bytes of its payload (``None``: not
    kept). ``event`` is the full name, ``fields`` are the values by their names in the format's specification.
    """

    time: int | None
    pid: int
    tid: int
    cpu: int
    event: str
    size: int | None
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are asked for; what is empty or ``None`` does not restrict.

    ``events`` are names in lower case, ``provider`` the 16 bytes of a GUID as files have them, ``start`` and ``end``
    seconds since the first event (``start <= time < end``).
    """

    events: frozenset[str] = frozenset()
    provider: bytes | None = None
    pids: frozenset[int] = frozenset()
    start: Decimal | None = None
    end: Decimal | None = None

    def named(self, *names: str) -> bool:
        """Whether one of the names that an event goes by is asked for."""
        return not self.events or any(name.lower() in self.events for name in names)

    def ticks(self, clock: Clock) -> tuple[int | None, int | None]:
        """``start`` and ``end`` in ticks, rounded up: exact, without floats."""
        first, last = (None if s is None else ceil(s * clock.frequency) for s in (self.start, self.end))
        return first, last


@dataclass(slots=True)
class Dump:
    """The wanted events of a capture in time order; ``damage`` is complete when ``rows`` has ended."""

    name: str
    clock: Clock
    rows: Iterator[Row]
    damage: Callable[[], list[Damage]] = field(default=list)


def milliseconds(clock: Clock) -> Callable[[int], str]:
    """Ticks as text in milliseconds, by integers alone.

    With all decimals where the clock's rate has finitely many (4 at 10 MHz, 6 at 1 GHz), else rounded to nanoseconds. A
    clock without a rate only orders events: its ticks stay what they are.
    """
    if not clock.has_time:
        return str
    exact = (n for n in range(3, _FINEST + 1) if 10**n % clock.frequency == 0)
    places = next(exact, _FINEST) - 3
    scale, frequency = 10 ** (places + 3), clock.frequency

    def text(ticks: int) -> str:
        sign, ticks = ("-", -ticks) if ticks < 0 else ("", ticks)
        whole, part = divmod((2 * ticks * scale + frequency) // (2 * frequency), 10**places)
        return f"{sign}{whole}.{part:0{places}d}" if places else f"{sign}{whole}"

    return text
