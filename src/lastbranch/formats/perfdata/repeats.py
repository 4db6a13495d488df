"""Records that stand in a block again and again, in the same bytes: each is to be worked off once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .chain import Block

__all__ = ["first_of_each"]

_LONGEST = 64
"""Words of the longest record that is compared: a block holds few of longer ones."""
_FACTORS = np.random.default_rng(1).integers(1, 1 << 63, _LONGEST, np.uint64) | np.uint64(1)


def first_of_each(block: Block, at: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For the records at word positions ``at`` of ``sizes`` bytes: index of the first one that has the same bytes."""
    first = np.arange(len(at))
    for size in np.unique(sizes[(sizes & 7 == 0) & (sizes <= 8 * _LONGEST)]).tolist():
        mine = np.flatnonzero(sizes == size)
        if len(mine) == 1:
            continue
        columns = [block.words.take(at[mine] + word) for word in range(size >> 3)]
        mixed = sum((c * f for c, f in zip(columns, _FACTORS, strict=False)), np.zeros(len(mine), np.uint64))
        _, one, back = np.unique(mixed, return_index=True, return_inverse=True)
        same = one[back]
        for column in columns:  # what only has the same sum is not the same
            same = np.where(column == column[same], same, np.arange(len(mine)))
        first[mine] = mine[same]
    return first
