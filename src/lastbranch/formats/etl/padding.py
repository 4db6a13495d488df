"""Memory around a window: how far behind it is looked, and freed blocks that are kept."""

from __future__ import annotations

import numpy as np

__all__ = ["FEW_LANES", "PAD", "keep_freed_memory", "pad_for"]

PAD = (1 << 20) + (1 << 16)
"""Bytes behind the last buffer that the walk may look at, see `walk`."""

FEW_LANES = 24
"""So many buffers are walked one after the other, and never left: then `pad_for` needs room for header fields only."""

_KEPT = 31 << 20


def pad_for(buffers: int) -> int:
    """Bytes that an array with so many buffers needs behind the last one."""
    return PAD if buffers > FEW_LANES else 256


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks of up to 31 MiB for the next request instead of giving them back.

    Every window makes arrays of some MB, and fetching their pages from the system anew took 40 % of the time of a
    pass. Freeing a mapped block raises the size from which blocks are mapped to its own (mallopt(3), M_MMAP_THRESHOLD:
    "dynamic threshold"), up to 32 MiB. Elsewhere this does nothing.
    """
    np.empty(_KEPT, np.uint8)
