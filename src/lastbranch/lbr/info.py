"""LBR_INFO words to perf's flag word.

Bits (Intel SDM 3B, Last Branch Records; the same word is an ETW entry's Information): 63 mispredicted, 62 in a
transaction, 61 transaction abort, 15:0 cycles; architectural LBR adds 60 cycle count valid and 59:56 branch type.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .flags import FLAG_FIELDS

__all__ = ["flags_from_info"]

_MISPRED, _IN_TX, _ABORT, _CYCLES_VALID = (np.uint64(1 << bit) for bit in (63, 62, 61, 60))
_ARCH_TYPES = np.zeros(16, np.uint64)  # 0 JCC, 1 ind jmp, 2 rel jmp, 3 ind call, 4 rel call, 5 ret; others unknown
_ARCH_TYPES[:6] = (1, 3, 2, 5, 4, 6)


def flags_from_info(info: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64 flag words for uint64 LBR_INFO words. A word of 0 tells nothing: neither mispredicted nor predicted."""

    def put(values: NDArray[np.uint64], name: str) -> NDArray[np.uint64]:
        return values << np.uint64(FLAG_FIELDS[name][0])

    def bit(mask: np.uint64) -> NDArray[np.uint64]:
        return np.asarray((info & mask) != 0).astype(np.uint64)

    known = (info != 0).astype(np.uint64)
    wrong = bit(_MISPRED)
    out = put(wrong, "mispred") | put(known & ~wrong, "predicted")
    out |= put(bit(_IN_TX), "in_tx") | put(bit(_ABORT), "abort") | put(info & np.uint64(0xFFFF), "cycles")
    kind = (info >> np.uint64(56)) & np.uint64(15)
    # Only architectural LBR has types; a word with neither bit 60 nor a type is of an older processor.
    architectural = (bit(_CYCLES_VALID) != 0) | (kind != 0)
    types = np.where(architectural, _ARCH_TYPES[kind.astype(np.intp)], np.uint64(0))
    result: NDArray[np.uint64] = out | put(types, "type")
    return result
