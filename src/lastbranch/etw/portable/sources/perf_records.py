"""Records of perf from the kernel or the collector: found in bytes, kept for later, and applied to a profile."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from ....arrays import take_ranges
from ....formats.perfdata.records import handle
from ....formats.perfdata.state import IndexState
from ....formats.perfdata.walk import Block, find_records
from ....model import Timeline
from ...flags import ClientContext
from ..clock import FILETIME_EPOCH

__all__ = ["FOREVER", "Ints", "Ticks", "follow_records", "handle_records", "record_bytes", "records_in"]

Ints = NDArray[np.int64]

FOREVER = (1 << 63) - 1
"""A time after all others."""


class Ticks:
    """Turns ns of the monotonic clock, which the kernel uses, into ticks of a session with this ClientContext."""

    def __init__(self, clock: int) -> None:
        self._wall = clock == ClientContext.SYSTEM_TIME
        self.now()

    def now(self) -> int:
        """Now, in ns. Measures anew how far the system time is from the monotonic clock."""
        now = time.monotonic_ns()
        self._offset = time.time_ns() - now
        return now

    def __call__(self, ns: Ints) -> Ints:
        return (ns + self._offset) // 100 + FILETIME_EPOCH if self._wall else ns

    def of(self, ns: int) -> int:
        """One time."""
        return int(self(np.array(ns, np.int64)))


def records_in(data: bytes) -> Block:
    """The whole perf records in ``data``."""
    words = len(data) >> 3
    return find_records(np.frombuffer(data, np.uint64, words), words * 8, 0, False)[0]


def record_bytes(block: Block, rows: NDArray[np.bool_]) -> bytes:
    """The bytes of these records of ``block``."""
    at = block.at[rows]
    return take_ranges(block.words, at, block.sizes(at) >> 3).tobytes()


def handle_records(state: IndexState, block: Block, at: Ints, types: Ints) -> None:
    """Apply the records at ``at``, which have these types, to ``state``."""
    columns = types.tolist(), block.misc(at).tolist(), at.tolist(), block.sizes(at).tolist()
    for kind, misc, place, size in zip(*columns, strict=True):
        handle(state, kind, misc, block.body(place, size), place * 8)


def follow_records(state: IndexState, block: Block, at: Ints, types: Ints, ticks: Ticks, floor: int) -> None:
    """As `handle_records`. The profile's timeline then has the changes of these records, in ticks, none before
    ``floor``."""
    profile = state.profile
    profile.timeline = Timeline()
    handle_records(state, block, at, types)
    columns, names = profile.timeline.columns(), profile.timeline.names
    columns["time"] = np.maximum(ticks(columns["time"]), floor)
    profile.timeline = Timeline()
    profile.timeline.extend(columns)
    profile.timeline.names = names
