"""Columns of flag words of branch entries: perf's layout (see `words`), which the model uses for every source."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import native
from .words import FLAG_FIELDS, KIND

__all__ = ["branch_type", "flag", "flag_known", "flags_from_info", "flags_of_kinds", "repack_big_endian"]


_EXTENDED = 15

# perf swaps field by field, and treats priv and all later bits as one field of 34 bits: not_taken came later.
_BIG_ENDIAN = [*[name for name in FLAG_FIELDS if name not in ("not_taken", "reserved")], "rest"]


def flag(words: NDArray[np.uint64], name: str) -> NDArray[np.uint64]:
    """The field ``name`` (a key of `FLAG_FIELDS`) of each flag word, uint64."""
    shift, width = FLAG_FIELDS[name]
    return (words >> np.uint64(shift)) & np.uint64((1 << width) - 1)


def branch_type(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """uint8 branch type of each flag word: index into `words.BRANCH_TYPES`, or 16 + index into `words.NEW_TYPES`."""
    kind = flag(words, "type")
    return np.where(kind == _EXTENDED, 16 + flag(words, "new_type"), kind).astype(np.uint8)


_EVIDENCE = {
    "mispred": ("mispred", "predicted"),
    "predicted": ("mispred", "predicted"),
    "cycles": ("cycles",),
    "type": ("type",),
    "spec": ("spec",),
    "priv": ("priv",),
}
"""Field -> fields that are all 0 where the processor did not report it (include/uapi/linux/perf_event.h)."""


def flag_known(words: NDArray[np.uint64], name: str) -> NDArray[np.bool_]:
    """Whether each flag word records the field ``name``, bool: of the others its 0 has no meaning.

    Always of transactions and branches not taken: where a processor does not record them the bits are 0.
    """
    if name not in _EVIDENCE:
        return np.ones(len(words), bool)
    mask = sum((1 << width) - 1 << low for low, width in map(FLAG_FIELDS.__getitem__, _EVIDENCE[name]))
    known: NDArray[np.bool_] = words & np.uint64(mask) != 0
    return known


def flags_of_kinds(kind: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """uint64 flag words with only the branch type (codes below 16), as code analysis finds it."""
    return kind.astype(np.uint64) << np.uint64(FLAG_FIELDS["type"][0])


def repack_big_endian(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Flag words of a big-endian machine, already byte-swapped as 64-bit values, in the little-endian layout.

    C bit fields are laid out from the most significant bit there, so every field moves.
    """
    out = np.zeros_like(words)
    top = 64
    for name in _BIG_ENDIAN:
        shift, width = FLAG_FIELDS.get(name, (33, 31))
        top -= width
        out |= ((words >> np.uint64(top)) & np.uint64((1 << width) - 1)) << np.uint64(shift)
    return out


# -- LBR_INFO words whose processor is not known (an ETW entry's Information) to perf's flag word


_ARCHITECTURAL = np.uint64(0x1F << 56)
"""Cycle count valid, and the branch type: 0 on processors before architectural LBR."""


def flags_from_info(info: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """uint64 flag words for uint64 LBR_INFO words. A word of 0 records nothing: neither mispredicted nor predicted.

    A word with a bit that only architectural LBR has is read in that format, whose cycle count is valid only if the
    word says so. Any other word is read in format ``info``, whose cycle count is always valid. An architectural record
    of a conditional branch without a valid count cannot be distinguished from the latter.
    """
    from .registers import FORMATS

    library = native.library()
    if library is None:
        return _flags_in_numpy(info)
    info, flags = np.ascontiguousarray(info), np.empty(len(info), np.uint64)
    types = flags_of_kinds(np.array([KIND[kind] for kind in FORMATS["arch"].types], np.uint8))
    library.lb_info_flags(native.address(info), len(info), native.address(types), native.address(flags))
    return flags


def _flags_in_numpy(info: NDArray[np.uint64]) -> NDArray[np.uint64]:
    from .registers import decode

    nowhere = np.zeros_like(info)
    flags = decode("info", nowhere, nowhere, info).flags
    architectural = (info & _ARCHITECTURAL) != 0
    if architectural.any():
        flags = np.where(architectural, decode("arch", nowhere, nowhere, info).flags, flags)
    flags[info == 0] = 0
    return flags
