"""What a source process is told: the session's part that concerns events of Linux, as bytes between processes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..enable_map import WORDS

__all__ = ["SourceConfiguration"]

_FIXED = struct.Struct(f"<H4B{WORDS}III")
_VERSION = 1
_MOST = 4096
"""Entries of one list: more than any class takes."""


@dataclass(frozen=True, slots=True)
class SourceConfiguration:
    """A session as its sources see it. Hooks are group << 8 | type."""

    masks: tuple[int, ...] = (0,) * WORDS
    """PERFINFO_GROUPMASK, as `enable_map.settled` leaves it."""
    sysconfig: bool = True
    """Whether the machine is described (no EVENT_TRACE_FLAG_NO_SYSCONFIG)."""
    kernel_stacks: bool = True
    """Whether call stacks have their kernel part (no V2Option.EXCLUDE_KERNEL_STACK)."""
    clock: int = 1
    """ClientContext: 1 monotonic, 2 system time."""
    stack_hooks: tuple[int, ...] = ()
    """Events with call stacks (class 3)."""
    pmc_sources: tuple[int, ...] = ()
    """Profile sources that PMC_PROFILE enables (class 6)."""
    pmc_hooks: tuple[int, ...] = ()
    pmc_counters: tuple[int, ...] = ()
    """Events with counter values, and which (classes 8, 9)."""
    lbr_flags: int = 0
    lbr_hooks: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    """Processes that the software LBR may trace."""
    intervals: dict[int, int] = field(default_factory=dict)
    """Profile source -> interval, of those that were set."""

    def pack(self) -> bytes:
        """The bytes of it; `struct.error` for a number that is larger than its field."""
        masks = [*self.masks, *[0] * WORDS][:WORDS]
        head = _FIXED.pack(_VERSION, self.sysconfig, self.kernel_stacks, self.clock, 0, *masks, self.lbr_flags, 0)
        flat = [number for pair in self.intervals.items() for number in pair]
        return head + b"".join(map(_pack, (*(getattr(self, name) for name in _LISTS), flat)))

    @classmethod
    def unpack(cls, data: bytes) -> SourceConfiguration:
        """The other direction. ValueError for bytes that are none."""
        if len(data) < _FIXED.size:
            raise ValueError(f"a configuration of {len(data)} bytes")
        version, sysconfig, kernel_stacks, clock, _, *numbers = _FIXED.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"a configuration of version {version}")
        *masks, lbr_flags, _ = numbers
        lists, at = [], _FIXED.size
        for _ in range(len(_LISTS) + 1):
            numbers_of, at = _unpack(data, at)
            lists.append(numbers_of)
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes behind a configuration")
        flat = lists.pop()
        return cls(
            masks=tuple(masks), sysconfig=bool(sysconfig), kernel_stacks=bool(kernel_stacks), clock=clock,
            lbr_flags=lbr_flags, intervals=dict(zip(flat[::2], flat[1::2], strict=True)),
            **dict(zip(_LISTS, lists, strict=True)),
        )  # fmt: skip


_LISTS = ("stack_hooks", "pmc_sources", "pmc_hooks", "pmc_counters", "lbr_hooks", "targets")


def _pack(numbers: Iterable[int]) -> bytes:
    listed = list(numbers)
    return struct.pack(f"<I{len(listed)}I", len(listed), *listed)


def _unpack(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """(numbers of the list at ``at``, where the next one begins)."""
    if at + 4 > len(data):
        raise ValueError("a configuration ends inside")
    (count,) = struct.unpack_from("<I", data, at)
    if count > _MOST or at + 4 + 4 * count > len(data):
        raise ValueError(f"a list of {count} numbers in {len(data) - at - 4} bytes")
    return struct.unpack_from(f"<{count}I", data, at + 4), at + 4 + 4 * count
