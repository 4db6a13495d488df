"""Equal stacks found in many: by a hash of each, and by comparing what the hash says is equal."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..model import Array

__all__ = ["distinct_stacks", "taken"]

_ODD = np.uint64(1)
_FRAME, _PLACE, _KEY = np.frombuffer(os.urandom(24), np.uint64) | _ODD
"""Multipliers that nobody can know, so that no file can be made to have many stacks with one hash."""
_HALF = np.uint64(32)


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


def taken(values: Array, offsets: Array, rows: Array) -> tuple[Array, NDArray[np.int64]]:
    """(values, offsets) of these rows of a ragged column."""
    sizes = np.diff(offsets)[rows]
    out = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return values[np.repeat(offsets[:-1][rows] - out[:-1], sizes) + np.arange(int(out[-1]))], out


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
    (a, bounds), (b, _) = taken(frame, offsets, one[rows]), taken(frame, offsets, other[rows])
    differing = np.concatenate([[0], np.cumsum(a != b)])[bounds]
    same[rows] = differing[1:] == differing[:-1]
    return same
