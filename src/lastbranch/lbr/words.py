"""Names of the bits of a flag word and of branch types. No NumPy here: a recording starts with these.

Source: ``struct perf_branch_entry`` in the kernel's include/uapi/linux/perf_event.h. ``mispred`` and ``predicted``
both 0 means that the processor did not report it.
"""

from __future__ import annotations

__all__ = ["BRANCH_TYPES", "FLAG_FIELDS", "KIND", "NEW_TYPES", "SPEC", "type_name"]

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


def type_name(code: int) -> str:
    """The name of a `branch_type` code."""
    if code < 16:
        return BRANCH_TYPES[code]
    return NEW_TYPES[code - 16] if code - 16 < len(NEW_TYPES) else f"extended_{code - 16}"
