"""Memory around a window: how far behind it is looked, and freed blocks that are kept."""

from __future__ import annotations

import numpy as np

__all__ = ["PAD", "keep_freed_memory"]

PAD = 256
"""Bytes behind the last buffer: header fields are looked at where the last event has none."""

_KEPT = 31 << 20


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks of up to 31 MiB for the next request instead of giving them back.

    Every window makes arrays of some MB, and fetching their pages from the system anew took 40 % of the time of a
    pass. Freeing a mapped block raises the size from which blocks are mapped to its own (mallopt(3), M_MMAP_THRESHOLD:
    "dynamic threshold"), up to 32 MiB. Elsewhere this does nothing.
    """
    np.empty(_KEPT, np.uint8)
