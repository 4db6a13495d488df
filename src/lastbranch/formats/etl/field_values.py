"""What decoded fields hold beside plain int, str, bool and lists: values that know how to be shown, and stay exact.

The number kinds are ints (they compare, hash and compute as such) whose ``str()`` is the customary form. An `Exact` is
a string that also keeps the bytes it was read from, for text that does not determine them: a string cut off by the end
of its event, letters behind the NUL of a fixed-size array, a SID behind a pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

__all__ = ["Exact", "FileTime", "Hex", "Named"]

_FILETIME_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)


class Hex(int):
    """A number that people read in hexadecimal: an address, a key, a mask."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{int(self):#x}"


class FileTime(int):
    """100-ns ticks since 1601-01-01 UTC; shown as ISO 8601 with all seven decimals."""

    __slots__ = ()

    def __str__(self) -> str:
        try:
            moment = _FILETIME_EPOCH + timedelta(seconds=int(self) // 10_000_000)
        except OverflowError:
            return f"{int(self):#x}"
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(self) % 10_000_000:07d}Z"


class Named(int):
    """A number whose values (or, with ``flags``, bits) have names. ``names`` is the whole table."""

    names: Mapping[int, str]
    flags: bool

    def __new__(cls, value: int, names: Mapping[int, str], flags: bool = False) -> Named:
        made = super().__new__(cls, value)
        made.names, made.flags = names, flags
        return made

    def __str__(self) -> str:
        value = int(self)
        if not self.flags or not value:
            return self.names.get(value, str(value))
        bits = sorted(bit for bit in self.names if bit > 0 and bit & (bit - 1) == 0 and bit & value)
        unknown = value & ~sum(bits)
        return "|".join([*(self.names[bit] for bit in bits), *([f"{unknown:#x}"] if unknown else [])])

    def __reduce__(self) -> tuple[object, ...]:
        return Named, (int(self), self.names, self.flags)


class Exact(str):
    """A string and the ``raw`` bytes of its whole field, which encoding writes back as they are."""

    raw: bytes

    def __new__(cls, text: str, raw: bytes) -> Exact:
        made = super().__new__(cls, text)
        made.raw = raw
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return Exact, (str(self), self.raw)
