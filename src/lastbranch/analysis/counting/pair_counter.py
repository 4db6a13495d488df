"""Counting pairs of addresses: the hot loop of branch counts and ranges.

A pair of compacted addresses (`compact`) and a tag make one 64-bit key; keys are sorted a million at a time, on another
thread, and runs of equal keys become counts. Pairs that cannot be compacted (addresses beyond 48 bits, many processes)
are gathered and merged uncompacted, which takes up to half as long again.

`count_stacks.NativeStackCounter` is the compiled form of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...arrays import group, group_unordered
from ...model import Array
from ...threads import Threads
from .compact import INVALID, Compactor

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["PairCounter", "RawPairs"]

_CHUNK = 1 << 20
_MERGE_ROWS = 1 << 19

RawPairs = tuple[Array, Array, Array, Array, list[Array]]
"""Distinct (scope int64, a uint64, b uint64, tag uint8), and the list of count (int64) and value columns."""


class PairCounter:
    """Counts of (scope, a, b, tag of 2 bits), with value columns combined by ``ops``.

    ``sink`` gets the distinct rows (`RawPairs`), now and then and at `finish`: the same pair may come several times.
    """

    def __init__(
        self,
        compactor: Compactor,
        thread: Threads,
        sink: Callable[[RawPairs], None],
        ops: Sequence[np.ufunc] = (),
    ) -> None:
        self._compactor, self._thread, self._sink = compactor, thread, sink
        self._ops: list[np.ufunc] = [np.add, *ops]
        self._chunk = _CHUNK // 4 if ops else _CHUNK  # with values three of all their columns took 250 MB
        self._distinct = _Distinct(self._ops)
        self._free: list[list[Array]] = []
        self._sorting: deque[tuple[list[Array], Future[int]]] = deque()
        self._new_buffers()
        self._as_is: list[Array] = []
        """Scope, a, b, tag and values of pairs that cannot be compacted, ``_as_is_rows`` of them."""
        self._as_is_rows = 0

    def add(
        self,
        a: Array,
        b: Array,
        *,
        flags: NDArray[np.uint64] | None = None,
        values: Sequence[Array] = (),
        leave_out: Array | None = None,
    ) -> None:
        """Count compacted pairs (at most `MAX_ENTRIES`) except the pairs in ``leave_out``, a mask or indices.

        The two low bits of ``flags`` are the tag.
        """
        n = len(a)
        if self._filled + n > self._chunk:
            self._flush()
        into = slice(self._filled, self._filled + n)
        self._compactor.keys(a, b, flags, leave_out, self._keys[into])
        self._filled += n
        for buffer, value in zip(self._values, values, strict=True):
            buffer[into] = value

    def add_as_is(self, scope: Array, a: Array, b: Array, tag: Array, values: Sequence[Array] = ()) -> None:
        """Count pairs that cannot be compacted; one element an entry."""
        if self._as_is_rows + len(a) > self._chunk:
            self._flush_as_is()
        if not self._as_is:  # the columns of a batch may be written over
            self._as_is = [np.empty(max(self._chunk, len(a)), c.dtype) for c in (scope, a, b, *values)]
        into = slice(self._as_is_rows, self._as_is_rows + len(a))
        for buffer, column in zip(self._as_is, ((scope << 2) | tag, a, b, *values), strict=True):
            buffer[into] = column
        self._as_is_rows = into.stop

    def _flush_as_is(self) -> None:
        owner, a, b, *values = (column[: self._as_is_rows] for column in self._as_is)
        self._as_is_rows = 0
        ones = np.ones(len(a), np.int64)
        (owner, a, b), columns = group_unordered([owner, a, b], [ones, *values], self._ops)
        self._sink((owner >> 2, a, b, (owner & 3).astype(np.uint8), columns))

    def _flush(self) -> None:
        """Hand the full buffer to the other thread (sorting lets go of the interpreter) and go on with a new one."""
        if len(self._sorting) > 1 and self._wait() > _MERGE_ROWS // 2:
            while self._sorting:
                self._wait()
            self._hand_over()
        keys, values = self._keys[: self._filled], [v[: self._filled] for v in self._values]
        future = self._thread.submit(self._distinct.add, keys, values)
        self._sorting.append(([self._keys, *self._values], future))
        self._new_buffers()

    def _new_buffers(self) -> None:
        """A chunk to fill: one that has been sorted, since new memory has to be touched page by page."""
        kinds = (np.uint64, *(np.int64 for _ in self._ops[1:]))
        buffers: list[Array] = self._free.pop() if self._free else [np.empty(self._chunk, kind) for kind in kinds]
        self._keys, self._values = buffers[0], buffers[1:]
        self._filled = 0

    def _wait(self) -> int:
        """Wait for the oldest chunk that is being sorted; the distinct rows there were after the last merge."""
        buffers, future = self._sorting.popleft()
        merged = future.result()
        self._free.append(buffers)
        return merged

    def decode(self) -> None:
        """Hand everything counted so far to the sink, with full scopes and addresses."""
        if self._as_is_rows:
            self._flush_as_is()
        if self._filled:
            self._flush()
        while self._sorting:
            self._wait()
        self._hand_over()

    def _hand_over(self) -> None:
        keys, columns = self._distinct.take()
        if not len(keys):
            return
        scope, a, b, tag = self._compactor.expand(keys)
        self._sink((scope, a, b, tag, columns))


class _Distinct:
    """Distinct keys with their counts and combined values: chunks come in, few rows stay."""

    def __init__(self, ops: list[np.ufunc]) -> None:
        self._ops = ops
        self._clear()

    def _clear(self) -> None:
        self._parts: list[tuple[Array, list[Array]]] = []
        self._rows = self._merged = 0

    def add(self, keys: Array, values: list[Array]) -> int:
        """Count a chunk, overwriting ``keys``; the rows that the last merge has left."""
        self._parts.append(_runs(keys, values, self._ops))
        self._rows += len(self._parts[-1][0])
        if self._rows > _MERGE_ROWS:
            self._merge()
        return self._merged

    def _merge(self) -> None:
        columns = [np.concatenate([p[1][i] for p in self._parts]) for i in range(len(self._ops))]
        (keys,), columns = group([np.concatenate([p[0] for p in self._parts])], columns, self._ops)
        self._parts = [(keys, columns)]
        self._rows = self._merged = len(keys)

    def take(self) -> tuple[Array, list[Array]]:
        """All there is, once each; starts anew."""
        if not self._parts:
            return np.empty(0, np.uint64), []
        self._merge()
        (taken,) = self._parts
        self._clear()
        return taken


def _runs(keys: Array, values: list[Array], ops: list[np.ufunc]) -> tuple[Array, list[Array]]:
    """Distinct keys with their count and combined values. Overwrites ``keys``."""
    if values:
        (distinct,), columns = group([keys], [np.ones(len(keys), np.int64), *values], ops)
    else:
        keys.sort()
        new = np.empty(len(keys), bool)
        new[0] = True
        np.not_equal(keys[1:], keys[:-1], out=new[1:])
        starts = np.flatnonzero(new)
        distinct, columns = keys[starts], [np.diff(starts, append=len(keys))]
    if distinct[-1] == INVALID:
        distinct, columns = distinct[:-1], [c[:-1] for c in columns]
    return distinct, columns
