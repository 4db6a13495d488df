"""Branches and ranges counted by the compiled library (``native/count_stacks.c``), in batches, where the entries are.

`count_stacks.EntryCounter` without the library, which sorts keys instead, is its oracle.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...model import BRANCH, ENTRY, Array, SampleBatch

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["NativeStackCounter", "entry_places"]

_SUMS, _DETAILS = 3, 6
"""Columns: count, mispredicted, predicted; with details those of `bound_pairs.BRANCH_VALUES`, too."""
_BRANCHES, _RANGES = 0, 1
_WORD = 8

Sink = Callable[[Array, Array, Array, list[Array]], None]
"""Gets scope (int64), a and b (uint64), and the columns (int64). A pair can come in several rows."""


class NativeStackCounter:
    """Counts branches, and the ranges between branches; either only if it has a sink."""

    def __init__(self, library: CDLL, branches: Sink | None, ranges: Sink | None, details: bool) -> None:
        self._library, self._sinks = library, (branches, ranges)
        self._columns = _SUMS + (_DETAILS if details else 0)
        self._counter = library.lb_counter_new(int.from_bytes(os.urandom(8)), bool(branches), bool(ranges), details)
        if not self._counter:
            raise MemoryError
        weakref.finalize(self, library.lb_counter_free, self._counter)

    @classmethod
    def available(cls, branches: Sink | None, ranges: Sink | None, details: bool) -> NativeStackCounter | None:
        """A counter, or ``None`` without the library."""
        library = native.library()
        return None if library is None else cls(library, branches, ranges, details)

    @property
    def broken(self) -> int:
        """Neighbours of empty entries, between which there is no range."""
        return int(self._library.lb_counter_broken(self._counter))

    def add(self, scope: NDArray[np.int64], batch: SampleBatch) -> int:
        """Count the stacks of ``batch``, each of which belongs to its ``scope`` (int64).

        How many were counted: the next one has addresses that the kernel cannot compact.
        """
        scope = np.ascontiguousarray(scope, np.int64)
        first, columns = entry_places(batch)
        depth = np.diff(batch.offsets[BRANCH])
        done, flushed = 0, False
        while done < len(batch):
            given = map(native.address, (scope[done:], first[done:], depth[done:]))
            added = self._library.lb_counter_add(self._counter, *given, len(batch) - done, *columns)
            if added < 0:
                raise MemoryError
            done += added
            if done == len(batch) or flushed > (added > 0) or not self._full(int(depth[done])):
                break
            self.flush()
            flushed = True
        return done

    def _full(self, depth: int) -> bool:
        return bool(self._library.lb_counter_full(self._counter, depth))

    def flush(self) -> None:
        """Hand the counts to the sinks, and begin anew."""
        for which, sink in enumerate(self._sinks):
            room = self._library.lb_counter_rows(self._counter, which)
            if room and sink:
                width = self._columns if which == _BRANCHES else _SUMS
                scope, a, b = np.empty(room, np.int64), np.empty(room, np.uint64), np.empty(room, np.uint64)
                values = np.empty((width, room), np.int64)
                addresses = map(native.address, (scope, a, b, values))
                rows = self._library.lb_counter_take(self._counter, which, room, *addresses)
                sink(scope[:rows], a[:rows], b[:rows], [column[:rows] for column in values])
        self._library.lb_counter_clear(self._counter)


def entry_places(batch: SampleBatch) -> tuple[NDArray[np.int64], list[int]]:
    """How kernels get the branch stacks of a batch: (the place where each stack begins; for each column of entries its
    address, the bytes of a place, and the bytes of an entry)."""
    if batch.in_place is not None:
        base = native.address(batch.in_place.words)
        each = (word for n in range(len(ENTRY)) for word in (base + n * _WORD, _WORD, len(ENTRY) * _WORD))
        return np.ascontiguousarray(batch.in_place.first), list(each)
    columns = [batch[name] for name in ENTRY]
    return batch.offsets[BRANCH], [word for c in columns for word in (native.address(c), c.strides[0], c.strides[0])]
