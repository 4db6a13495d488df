"""What both forms of compacted addresses share: a region is 16 MiB of one scope's addresses."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Array

__all__ = ["LOW", "SHIFT", "Sides", "Unpacked", "base_of", "distinct", "for_entries", "sparse_zeros"]

Sides = Sequence[Array]
"""The from and to columns, or their compacted forms."""
Unpacked = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8]]

LOW = np.uint64(0xFFFFFF)
SHIFT = np.uint64(24)


def base_of(region: NDArray[np.int64]) -> NDArray[np.uint64]:
    """First address of regions, given as bits 24 to 47. Where bit 47 is set all bits above are set too."""
    kernel = region >= 1 << 23
    return (region.astype(np.uint64) << SHIFT) | np.where(kernel, np.uint64(0xFFFF << 48), np.uint64(0))


def for_entries(values: Array, where: Array, depth: Array) -> Array:
    """``values`` of scopes for entries: one for all, one a sample where all stacks are equally deep, else one an entry.

    ``where`` is the index of each sample's scope in ``values``.
    """
    if len(values) == 1:
        return np.asarray(values[0])
    each: Array = values[where]
    return each if int(depth.min()) == int(depth.max()) else np.repeat(each, depth)


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """What `np.unique` gives, without the hash table that it makes: with many values that took ten times as long."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def sparse_zeros(count: int, dtype: Any) -> NDArray[Any]:
    """Zeros of which only the pages that are written to take memory.

    Those of `np.zeros` are huge pages on Linux: a number in each of 63 regions took 105 MB.
    """
    kind = np.dtype(dtype)
    memory = mmap.mmap(-1, max(count, 1) * kind.itemsize)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, kind, count)
