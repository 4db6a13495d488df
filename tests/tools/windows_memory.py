"""The fake Windows' access to the caller's memory, and its state of sessions."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from uuid import UUID

PLAIN, V2 = 120, 144
"""sizeof EVENT_TRACE_PROPERTIES and _V2, and offsets in them (64 bits, the vendor's pages)."""
HISTORICAL, GUID, CLOCK, FLAGS = 8, 24, 40, 44
BUFFER, MINIMUM, MAXIMUM, FILE_SIZE, MODE, FLUSH, ENABLE = 48, 52, 56, 60, 64, 68, 72
BUFFERS, FREE, LOST, WRITTEN, THREAD, FILE_AT, NAME_AT = 80, 84, 88, 92, 104, 112, 116
KEPT = range(BUFFER, THREAD, 4)
"""Offsets of the numbers that a session has."""
FIXED = {"nt kernel logger": UUID("9e814aad-3204-11d2-9a82-006008a86939")}
HANDLES = 0x5A00_0000_0000_0000
"""Handles begin here: they need all of their 64 bits."""


def u32(address: int) -> int:
    return ctypes.c_uint32.from_address(address).value


def put(address: int, value: int, size: int = 4) -> None:
    ctypes.memmove(address, value.to_bytes(size, "little"), size)


def text(address: int, most: int = 1 << 20) -> str:
    units = []
    while len(units) < most and (unit := ctypes.c_uint16.from_address(address + 2 * len(units)).value):
        units.append(unit)
    return struct.pack(f"<{len(units)}H", *units).decode("utf-16-le", "surrogatepass")


@dataclass
class FakeEvent:
    """An event of a session or a file."""

    provider: UUID
    id: int
    data: bytes
    time: int
    level: int = 0
    keyword: int = 0
    classic: bool = False


@dataclass
class FakeSession:
    """The state of one session in Windows."""

    name: str
    file: str
    guid: bytes
    handle: int
    numbers: dict[int, int]
    clock: int
    masks: list[int] = field(default_factory=lambda: [0] * 8)
    lbr_flags: int = 0
    lbr_hooks: list[int] = field(default_factory=list)
    disallowed: bytes = b""
    stacks: bytes = b""
    enabled: dict[UUID, tuple[int, int, int]] = field(default_factory=dict)
    events: list[FakeEvent] = field(default_factory=list)

    @property
    def system(self) -> bool:
        return bool(self.numbers[MODE] & 0x2000000) or self.name.casefold() in FIXED
