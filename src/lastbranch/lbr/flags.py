"""The flag word of a branch entry: perf's layout, which the model uses for every source.

Source: ``struct perf_branch_entry`` in the kernel's include/uapi/linux/perf_event.h. ``mispred`` and ``predicted``
both 0 means that the processor did not tell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BRANCH_TYPES",
    "FLAG_FIELDS",
    "KIND",
    "NEW_TYPES",
    "SPEC",
    "branch_type",
    "flag",
    "flags_of_kinds",
    "repack_big_endian",
    "type_name",
]

FLAG_FIELDS: dict[str, tuple[int, int]] = {
    "mispred": (0, 1),
    "predicted": (1, 1),
    "in_tx": (2, 1),
    "abort": (3, 1),
    "cycles": (4, 16),  # since the older entry, 0 unknown
    "type": (20, 4),
    "spec": (24, 2),
    "new_type": (26, 4),  # means something where type is 15
    "priv": (30, 3),
    "not_taken": (33, 1),  # only stacks made from Arm SPE
    "reserved": (34, 30),
}
"""Field -> (lowest bit, width), from bit 0 up without gaps."""

BRANCH_TYPES = (
    "unknown", "cond", "uncond", "ind", "call", "ind_call", "ret", "syscall",
    "sysret", "cond_call", "cond_ret", "eret", "irq", "serror", "no_tx", "extended",
)  # fmt: skip
KIND = {name: code for code, name in enumerate(BRANCH_TYPES)}
"""Branch type by name."""

NEW_TYPES = ("fault_algn", "fault_data", "fault_inst", "arch_1", "arch_2", "arch_3", "arch_4", "arch_5")
SPEC = ("", "spec_wrong_path", "non_spec_correct_path", "spec_correct_path")

_EXTENDED = 15

# perf swaps field by field, and priv and what follows it are one field of 34 bits there: not_taken came later.
_BIG_ENDIAN = [*[name for name in FLAG_FIELDS if name not in ("not_taken", "reserved")], "rest"]


def flag(words: NDArray[np.uint64], name: str) -> NDArray[np.uint64]:
    """The field ``name`` (a key of `FLAG_FIELDS`) of each flag word, uint64."""
    shift, width = FLAG_FIELDS[name]
    return (words >> np.uint64(shift)) & np.uint64((1 << width) - 1)


def branch_type(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """uint8 branch type of each flag word: index into `BRANCH_TYPES`, or 16 + index into `NEW_TYPES`."""
    kind = flag(words, "type")
    return np.where(kind == _EXTENDED, 16 + flag(words, "new_type"), kind).astype(np.uint8)


def flags_of_kinds(kind: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """uint64 flag words that tell the branch type (codes below 16) and nothing else, as code analysis gives it."""
    return kind.astype(np.uint64) << np.uint64(FLAG_FIELDS["type"][0])


def type_name(code: int) -> str:
    """The name of a `branch_type` code."""
    if code < 16:
        return BRANCH_TYPES[code]
    return NEW_TYPES[code - 16] if code - 16 < len(NEW_TYPES) else f"extended_{code - 16}"


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
