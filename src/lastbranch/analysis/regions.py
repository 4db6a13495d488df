"""What both forms of compacted addresses share: a region is 16 MiB of one scope's addresses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..model import Array

__all__ = ["LOW", "SHIFT", "Sides", "Unpacked", "base_of", "for_entries"]

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
