"""Branches and ranges counted by the compiled library (``native/count_stacks.c``), batch by batch.

A batch is gathered from its columns, whose memory readers may reuse, and then counted by another thread while the next
one is read. `counting.EntryCounter` without the library, which sorts keys instead, is its oracle.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..model import Array
from ..threads import Threads

if TYPE_CHECKING:
    from concurrent.futures import Future
    from ctypes import CDLL

__all__ = ["NativeStackCounter"]

_COUNTED, _DECLINED = 0, 1
_WORTH_A_THREAD = 1 << 14
"""Entries, which take 0.2 ms; less are counted at once."""
_SUMS, _DETAILS = 3, 6
"""Columns: count, mispredicted, predicted; with details those of `counting.BRANCH_VALUES`, too."""
_BRANCHES, _RANGES = 0, 1

Sink = Callable[[Array, Array, Array, list[Array]], None]
"""Gets scope (int64), a and b (uint64), and the columns (int64). A pair can come in several rows."""


class NativeStackCounter:
    """Counts branches and the ranges between them, each where there is a sink for it."""

    def __init__(self, library: CDLL, branches: Sink | None, ranges: Sink | None, details: bool) -> None:
        self._library, self._sinks = library, (branches, ranges)
        self._columns = _SUMS + (_DETAILS if details else 0)
        self._counter = library.lb_counter_new(int.from_bytes(os.urandom(8)), bool(branches), bool(ranges), details)
        if not self._counter:
            raise MemoryError
        self._thread = Threads(1, "lastbranch-count")
        self._counting: Future[int] | None = None
        self._slot = 0
        weakref.finalize(self, _release, library, self._counter, self._thread)

    @classmethod
    def available(cls, branches: Sink | None, ranges: Sink | None, details: bool) -> NativeStackCounter | None:
        """A counter, or ``None`` without the library."""
        library = native.library()
        return None if library is None else cls(library, branches, ranges, details)

    @property
    def broken(self) -> int:
        """Neighbours of empty entries, between which there is no range."""
        return int(self._library.lb_counter_broken(self._counter))

    def add(
        self, scope: NDArray[np.int64], offsets: NDArray[np.int64], source: Array, target: Array, flags: Array
    ) -> bool:
        """Count a batch: stacks ``offsets`` (int64) of ``source``, ``target`` and ``flags`` (uint64, any stride).

        ``scope`` (int64) has the owner of each stack. ``False``, and nothing is counted, for addresses that the kernel
        cannot compact.
        """
        scope, offsets = np.ascontiguousarray(scope, np.int64), np.ascontiguousarray(offsets, np.int64)
        columns = [word for c in (source, target, flags) for word in (native.address(c), c.strides[0])]
        library, counter, slot = self._library, self._counter, self._slot
        arguments = counter, slot, native.address(scope), native.address(offsets), len(scope), *columns
        done = library.lb_counter_gather(*arguments)
        self._wait()
        if done == _COUNTED and library.lb_counter_full(counter, slot):
            self.flush()
            done = library.lb_counter_gather(*arguments)  # into the regions of now
        if done == _DECLINED:
            return False
        _check(done)
        if len(source) >= _WORTH_A_THREAD and _PROCESSORS > 1:
            self._counting, self._slot = self._thread.submit(library.lb_counter_count, counter, slot), 1 - slot
        else:
            _check(library.lb_counter_count(counter, slot))
        return True

    def _wait(self) -> None:
        """Until the batch before is counted."""
        if self._counting is not None:
            counting, self._counting = self._counting, None
            _check(counting.result())

    def flush(self) -> None:
        """Hand what was counted to the sinks, and begin anew."""
        self._wait()
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

    def finish(self) -> None:
        """Hand what was counted to the sinks, and end the thread."""
        self.flush()
        self._thread.close()


_PROCESSORS = os.cpu_count() or 1


def _check(done: int) -> None:
    if done != _COUNTED:
        raise MemoryError


def _release(library: CDLL, counter: int, thread: Threads) -> None:
    thread.close()  # it may still count
    library.lb_counter_free(counter)
