"""Rows with equal keys made one: distinct values, groups of rows with combined values, distinct ragged rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .ragged import Array, take_rows

__all__ = ["distinct", "distinct_stacks", "group", "group_unordered"]


def distinct(values: Array) -> Array:
    """The distinct values, in order: what `numpy.unique` gives.

    `numpy.unique` loads masked arrays, a tenth of the time to start, and makes a hash table, which took ten times as
    long where there are many values.
    """
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def group(keys: Sequence[Array], values: Sequence[Array], ops: Sequence[np.ufunc]) -> tuple[list[Array], list[Array]]:
    """Make one row of all rows with equal ``keys``, combining each value column by its ufunc; sorted by the keys."""
    if not len(keys[0]):
        return list(keys), list(values)
    narrow = keys[0].itemsize < 4  # a stable sort of those goes by their digits
    order = np.lexsort(tuple(keys)[::-1]) if len(keys) > 1 else np.argsort(keys[0], stable=narrow)
    ordered = [k[order] for k in keys]
    new = np.zeros(len(order), bool)
    new[0] = True
    for k in ordered:
        new[1:] |= k[1:] != k[:-1]
    starts = np.flatnonzero(new)
    return [k[starts] for k in ordered], [op.reduceat(v[order], starts) for v, op in zip(values, ops, strict=True)]


# -- Rows with equal keys made one, by a sort of hashes: for tables whose order does not matter yet


_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2**64 by the golden ratio
_HALF = np.uint64(32)


def group_unordered(
    keys: Sequence[Array], values: Iterable[Array], ops: Sequence[np.ufunc]
) -> tuple[list[Array], list[Array]]:
    """What `group` gives, in no order, in a fraction of its time where there are several keys.

    Numbers are sorted that have a hash of the keys above and the row below. Where two keys have one hash, `group` does
    it. ``values`` are asked for one after the other, so that not all need be in memory twice.
    """
    rows = len(keys[0])
    if not rows:
        return list(keys), list(values)
    low = np.uint64((1 << rows.bit_length()) - 1)
    mixed = np.zeros(rows, np.uint64)
    for key in keys:
        mixed ^= key.astype(np.uint64)
        mixed *= _GOLDEN
        mixed ^= mixed >> _HALF
    mixed *= _GOLDEN
    mixed &= ~low
    mixed |= np.arange(rows, dtype=np.uint64)
    mixed.sort()
    order = (mixed & low).view(np.int64)
    mixed &= ~low
    new = np.append(True, mixed[1:] != mixed[:-1])
    starts, merged = np.flatnonzero(new), []
    for key in keys:
        ordered = key.take(order)
        if ((ordered[1:] != ordered[:-1]) & ~new[1:]).any():
            return group(keys, list(values), ops)
        merged.append(ordered.take(starts))
    return merged, [op.reduceat(value.take(order), starts) for value, op in zip(values, ops, strict=True)]


# -- Equal stacks found in many: by a hash of each, and by comparing what the hash says is equal


_ODD = np.uint64(1)
_FRAME, _PLACE, _KEY = np.frombuffer(os.urandom(24), np.uint64) | _ODD
"""Multipliers that nobody can know, so that no file can be made to have many stacks with one hash."""


def distinct_stacks(keys: Sequence[Array], frame: Array, offsets: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows int64[k], which int64[n]): the first stack of each kind, ascending, and for each stack its index in them.

    Stack ``i`` has the values ``frame[offsets[i]:offsets[i + 1]]`` (integers of any size). Equal are those with the
    same frames and the same value in each of ``keys`` (n integers).
    """
    first = np.full(len(offsets) - 1, -1, np.int64)
    digest, left = _digest(keys, frame, offsets), np.arange(len(first))
    while len(left):  # again for stacks that have the hash of a different one
        _, at, back = np.unique(digest[left], return_index=True, return_inverse=True)
        one = left[at][back.reshape(-1)]
        same = _equal(keys, frame, offsets, left, one)
        first[left[same]] = one[same]
        left = left[~same]
    rows, which = np.unique(first, return_inverse=True)
    return rows, which.reshape(-1)


def _digest(keys: Sequence[Array], frame: Array, offsets: Array) -> NDArray[np.uint64]:
    """A hash of each stack; all sums and products are modulo 2**64."""
    sizes = np.diff(offsets)
    deepest = int(sizes.max(initial=0))
    of_place = np.cumprod(np.full(deepest + 1, _PLACE))
    mixed = frame.astype(np.uint64) * _FRAME
    mixed ^= mixed >> _HALF
    mixed *= of_place[np.arange(len(frame)) - np.repeat(offsets[:-1], sizes)]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
    out: NDArray[np.uint64] = sums[offsets[1:]] - sums[offsets[:-1]] + of_place[sizes]
    for key in keys:
        out = (out ^ (out >> _HALF)) * _KEY + key.astype(np.uint64)
    return out


def _equal(keys: Sequence[Array], frame: Array, offsets: Array, one: Array, other: Array) -> NDArray[np.bool_]:
    """Whether these stacks are equal, pair by pair."""
    sizes = np.diff(offsets)
    same = np.asarray(sizes[one] == sizes[other])
    for key in keys:
        same &= key[one] == key[other]
    rows = np.flatnonzero(same & (one != other))
    (a, bounds), (b, _) = take_rows(frame, offsets, one[rows]), take_rows(frame, offsets, other[rows])
    differing = np.concatenate([[0], np.cumsum(a != b)])[bounds]
    same[rows] = differing[1:] == differing[:-1]
    return same
