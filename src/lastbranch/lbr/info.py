"""LBR_INFO words whose processor is not told (an ETW entry's Information) to perf's flag word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .registers import decode

__all__ = ["flags_from_info"]

_ARCHITECTURAL = np.uint64(0x1F << 56)
"""Cycle count valid, and the branch type: 0 on processors before architectural LBR."""


def flags_from_info(info: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64 flag words for uint64 LBR_INFO words. A word of 0 tells nothing: neither mispredicted nor predicted.

    A word with one of the bits that only architectural LBR has is read by that format, where a cycle count is one only
    if the word says so; any other by format ``info``, where it always is. An architectural record of a conditional
    branch without a valid count cannot be told from the latter.
    """
    nowhere = np.zeros_like(info)
    flags = decode("info", nowhere, nowhere, info).flags
    architectural = (info & _ARCHITECTURAL) != 0
    if architectural.any():
        flags = np.where(architectural, decode("arch", nowhere, nowhere, info).flags, flags)
    flags[info == 0] = 0
    return flags
