"""Counting pairs of addresses: the hot loop behind branch counts and ranges.

An address of 48 bits is compacted to 31: 7 bits of region number (handed out at first sight, for 16 MiB of one scope's
addresses) and its 24 low bits. A pair then fits one 64-bit key; keys are sorted 256 thousand at a time, which stays in
the cache, and runs of equal keys become counts. When region numbers run out, all is decoded and numbering starts anew.
What does not fit the scheme (addresses beyond 48 bits, very many scopes at once) is grouped as it stands.

`PairCounter` and `Compactor.compact` are the seam for a compiled kernel, with this as its oracle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ..model import Array

__all__ = ["Compactor", "PairCounter", "RawPairs", "group"]

_REGIONS = 127  # so that no pair has a key of all ones
_SCOPES = 16
_LOW = np.uint64(0xFFFFFF)
_SHIFT = np.uint64(24)
_CHUNK = 1 << 20
_MERGE_ROWS = 1 << 19
_ADDRESS_BITS = np.uint64(31)
_VALUE = np.uint64((1 << 31) - 1)
_CANONICAL = 1 << 47
_TAG_SHIFT = np.uint64(62)
_INVALID = np.uint64(0xFFFFFFFFFFFFFFFF)  # no pair has this key

RawPairs = tuple[Array, Array, Array, Array, list[Array]]
"""Distinct (scope int64, a uint64, b uint64, tag uint8), and the list of count (int64) and value columns."""


def group(keys: Sequence[Array], values: Sequence[Array], ops: Sequence[np.ufunc]) -> tuple[list[Array], list[Array]]:
    """Make one row of all rows with equal ``keys``, combining each value column by its ufunc; sorted by the keys."""
    if not len(keys[0]):
        return list(keys), list(values)
    order = np.lexsort(tuple(keys)[::-1]) if len(keys) > 1 else np.argsort(keys[0])
    ordered = [k[order] for k in keys]
    new = np.zeros(len(order), bool)
    new[0] = True
    for k in ordered:
        new[1:] |= k[1:] != k[:-1]
    starts = np.flatnonzero(new)
    return [k[starts] for k in ordered], [op.reduceat(v[order], starts) for v, op in zip(values, ops, strict=True)]


class Compactor:
    """Region numbers, shared by the counters of one pass."""

    def __init__(self) -> None:
        # One byte for each region of each scope; only pages that are touched take memory.
        self._table = np.zeros(_SCOPES << 24, np.uint8)
        self._counters: list[PairCounter] = []
        self.thread = ThreadPoolExecutor(1, "lastbranch-sort")
        self._clear()

    def _clear(self) -> None:
        self._touched: list[NDArray[np.int64]] = []
        self._scopes: dict[int, int] = {}
        self._scope_of = np.zeros(_REGIONS, np.int64)
        self._base_of = np.zeros(_REGIONS, np.uint64)
        self._distance = np.zeros(_REGIONS, np.uint64)
        """Compacted minus full address, modulo 2**64."""
        self._next = 1

    def compact(
        self, scope: NDArray[np.int64], depth: NDArray[np.int64], *addresses: NDArray[np.uint64]
    ) -> list[NDArray[np.uint64]] | None:
        """31-bit values for ragged ``addresses`` (``depth[i]`` of each belong to ``scope[i]``); ``None``: cannot be."""
        lowest = [int(a.view(np.int64).min(initial=0)) for a in addresses]
        highest = max(int(a.view(np.int64).max(initial=0)) for a in addresses)
        if min(lowest) < -_CANONICAL or highest >= _CANONICAL:
            return None
        distinct = np.unique(scope)
        where = np.searchsorted(distinct, scope)
        for _ in range(2):
            if len(self._scopes.keys() | set(distinct.tolist())) <= _SCOPES:
                ranks = [self._scopes.setdefault(s, len(self._scopes)) for s in distinct.tolist()]
                shift = _for_entries(np.array(ranks, np.int64) << 24, where, depth)
                done = [self._compact(a, shift, low < 0) for a, low in zip(addresses, lowest, strict=True)]
                if all(d is not None for d in done):
                    return [d for d in done if d is not None]
            self.restart()
        return None

    def _compact(self, address: NDArray[np.uint64], shift: Array, signed: bool) -> NDArray[np.uint64] | None:
        index = address >> _SHIFT
        if signed:  # kernel addresses
            index &= _LOW
        place = index.view(np.int64)
        if shift.ndim:  # one for each sample, or for each entry
            by_shift = place.reshape(len(shift), -1)
            by_shift += shift[:, None]
        else:
            place += shift
        number = self._table.take(place)
        if not number.all():
            if not self._number(np.unique(place[number == 0])):
                return None
            number = self._table.take(place)
        out = self._distance.take(number, out=index, mode="clip")
        out += address
        return out

    def _number(self, index: NDArray[np.int64]) -> bool:
        if self._next + len(index) > _REGIONS:
            return False
        numbers = np.arange(self._next, self._next + len(index))
        self._next += len(index)
        self._table[index] = numbers
        self._touched.append(index)
        self._scope_of[numbers] = np.array(list(self._scopes), np.int64)[index >> 24]
        region = (index & 0xFFFFFF).astype(np.uint64)
        kernel = region >= np.uint64(1 << 23)  # bit 47 of a canonical address: all bits above are set too
        base = self._base_of[numbers] = (region << _SHIFT) | np.where(kernel, np.uint64(0xFFFF << 48), np.uint64(0))
        self._distance[numbers] = (numbers.astype(np.uint64) << _SHIFT) - base
        return True

    def attach(self, counter: PairCounter) -> None:
        self._counters.append(counter)

    def restart(self) -> None:
        """Give up all region numbers, after the counters have decoded what they hold."""
        for counter in self._counters:
            counter.decode()
        for index in self._touched:
            self._table[index] = 0
        self._clear()

    def expand(self, value: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """(scope, address) of compacted values."""
        number = (value >> _SHIFT).astype(np.int64)
        return self._scope_of[number], self._base_of[number] | (value & _LOW)


def _for_entries(rank: Array, where: Array, depth: Array) -> Array:
    """Ranks of scopes for entries: one for all, one a sample where all stacks are equally deep, else one an entry."""
    if len(rank) == 1:
        return np.asarray(rank[0])
    ranks: Array = rank[where]
    return ranks if int(depth.min()) == int(depth.max()) else np.repeat(ranks, depth)


class PairCounter:
    """Counts of (scope, a, b, tag of 2 bits), with value columns combined by ``ops``.

    ``sink`` gets the distinct rows (`RawPairs`), now and then and at `finish`: the same pair may come several times.
    """

    def __init__(self, compactor: Compactor, sink: Callable[[RawPairs], None], ops: Sequence[np.ufunc] = ()) -> None:
        self._compactor, self._sink = compactor, sink
        self._ops: list[np.ufunc] = [np.add, *ops]
        compactor.attach(self)
        self._free: list[list[Array]] = []
        self._sorting: deque[tuple[list[Array], Future[tuple[Array, list[Array]]]]] = deque()
        self._new_buffers()
        self._parts: list[tuple[Array, list[Array]]] = []
        self._rows = 0

    def add(
        self,
        a: NDArray[np.uint64],
        b: NDArray[np.uint64],
        *,
        flags: NDArray[np.uint64] | None = None,
        values: Sequence[Array] = (),
        leave_out: Array | None = None,
    ) -> None:
        """Count compacted pairs (at most `MAX_ENTRIES`) but those that ``leave_out``, a mask or indices, names.

        The two low bits of ``flags`` are the tag.
        """
        n = len(a)
        if self._filled + n > _CHUNK:
            self._flush()
        into = slice(self._filled, self._filled + n)
        self._filled += n
        keys = self._keys[into]
        np.left_shift(a, _ADDRESS_BITS, out=keys)
        keys |= b
        if flags is not None:
            keys |= flags << _TAG_SHIFT
        if leave_out is not None:
            keys[leave_out] = _INVALID
        for buffer, value in zip(self._values, values, strict=True):
            buffer[into] = value

    def add_as_is(self, scope: Array, a: Array, b: Array, tag: Array, values: Sequence[Array] = ()) -> None:
        """Count pairs that cannot be compacted; one element an entry."""
        ones = np.ones(len(a), np.int64)
        keys, columns = group([scope, a, b, tag], [ones, *values], self._ops)
        self._sink((keys[0], keys[1], keys[2], keys[3], columns))

    def _flush(self) -> None:
        """Hand the full buffer to the other thread (sorting lets go of the interpreter) and go on with a new one."""
        if len(self._sorting) > 1:
            self._collect(self._sorting.popleft())
        keys, values = self._keys[: self._filled], [v[: self._filled] for v in self._values]
        future = self._compactor.thread.submit(_runs, keys, values, self._ops)
        self._sorting.append(([self._keys, *self._values], future))
        self._new_buffers()

    def _new_buffers(self) -> None:
        """A chunk to fill: one that has been sorted, since new memory has to be touched page by page."""
        kinds = (np.uint64, *(np.int64 for _ in self._ops[1:]))
        buffers: list[Array] = self._free.pop() if self._free else [np.empty(_CHUNK, kind) for kind in kinds]
        self._keys, self._values = buffers[0], buffers[1:]
        self._filled = 0

    def _collect(self, done: tuple[list[Array], Future[tuple[Array, list[Array]]]]) -> None:
        buffers, future = done
        self._parts.append(future.result())
        self._free.append(buffers)
        self._rows += len(self._parts[-1][0])
        if self._rows > _MERGE_ROWS:
            self._merge()
            if self._rows > _MERGE_ROWS // 2:
                self._hand_over()

    def _merge(self) -> None:
        columns = [np.concatenate([p[1][i] for p in self._parts]) for i in range(len(self._ops))]
        (keys,), columns = group([np.concatenate([p[0] for p in self._parts])], columns, self._ops)
        self._parts, self._rows = [(keys, columns)], len(keys)

    def decode(self) -> None:
        """Hand everything counted so far to the sink, with full scopes and addresses."""
        if self._filled:
            self._flush()
        while self._sorting:
            self._collect(self._sorting.popleft())
        if self._parts:
            self._merge()
            self._hand_over()

    def _hand_over(self) -> None:
        ((keys, columns),) = self._parts
        self._parts, self._rows = [], 0
        tag = (keys >> _TAG_SHIFT).astype(np.uint8)
        scope, b = self._compactor.expand(keys & _VALUE)
        _, a = self._compactor.expand((keys >> _ADDRESS_BITS) & _VALUE)
        self._sink((scope, a, b, tag, columns))


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
    if distinct[-1] == _INVALID:
        distinct, columns = distinct[:-1], [c[:-1] for c in columns]
    return distinct, columns
