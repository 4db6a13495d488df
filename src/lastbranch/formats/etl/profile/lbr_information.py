"""The Information word of a branch entry (LBR_INFO) to perf's flag word, and back.

LBR_INFO cannot leave a field out: a word other than 0 means "predicted" unless it says "mispredicted". Logs of our own
put what LBR_INFO cannot express into bits that processors keep 0 (55, and 30 to 16), and declare it (event Information
of `supplement`). Other readers see the other bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....lbr import FLAG_FIELDS, flag, flags_from_info

__all__ = ["flags_of", "information_of", "is_extended"]


EXTENDED = np.uint64(1 << 55)
"""Set in an extended word, whose bits 30 to 16 are the fields of `_MORE`."""
_MORE = {"type": 16, "spec": 20, "new_type": 22, "priv": 26, "not_taken": 29, "predicted": 30}
"""Fields of perf's flag word that an extended word holds whole -> lowest bit."""
_SAME = {"mispred": 63, "in_tx": 62, "abort": 61, "cycles": 0}
"""Fields that every LBR_INFO has -> lowest bit."""

_TYPES = np.full(16, 8, np.uint64)  # perf's branch types as those of architectural LBR; 8 is "other branch"
_TYPES[[1, 2, 3, 4, 5, 6]] = 0, 2, 1, 4, 3, 5
_CYCLES_VALID, _OTHER = np.uint64(1 << 60), np.uint64(8 << 56)
_PREDICTION = np.uint64(3)
_KNOWN = np.uint64((1 << FLAG_FIELDS["reserved"][0]) - 1)
Words = NDArray[np.uint64]


def information_of(flags: Words) -> Words:
    """LBR_INFO words for perf's flag words, extended where a plain word would come back as other flags.

    A word of 0 means "not known", so a plain "predicted" is written as a word of type "other branch".
    """
    info = sum((flag(flags, name) << np.uint64(at) for name, at in _SAME.items()), np.zeros_like(flags))
    kind = flag(flags, "type")
    info |= np.where(kind > 0, _TYPES[kind.astype(np.intp)] << np.uint64(56) | _CYCLES_VALID, np.uint64(0))
    info = np.where(info == 0, _OTHER, info)
    plain = np.where((flags & _PREDICTION) != 0, info, np.uint64(0))
    enough = (flags_from_info(plain) ^ flags) & _KNOWN == 0
    more = sum((flag(flags, name) << np.uint64(at) for name, at in _MORE.items()), info | EXTENDED)
    words: Words = np.where(enough, plain, more)
    return words


def flags_of(info: Words, narrow: NDArray[np.bool_], *, extended: bool) -> Words:
    """perf's flag words. ``extended``: whether the log declares extended words.

    ``narrow``: which words had 32 bits. They have no room for bit 63, "mispredicted", so the prediction is not known.
    """
    flags = flags_from_info(info)
    rows = np.flatnonzero(is_extended(info)) if extended else ()
    if len(rows):
        flags[rows] = 0
        for name, at in (_SAME | _MORE).items():
            shift, width = FLAG_FIELDS[name]
            flags[rows] |= (info[rows] >> np.uint64(at) & np.uint64((1 << width) - 1)) << np.uint64(shift)
    flags[narrow] &= ~_PREDICTION
    return flags


def is_extended(info: Words) -> NDArray[np.bool_]:
    """Which words have the `EXTENDED` bit. The bit means nothing in a log that does not declare extended words."""
    extended: NDArray[np.bool_] = info & EXTENDED != 0
    return extended
