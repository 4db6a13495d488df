"""Which branches were asked for, and whether fall-through ranges exist between those that were recorded.

A range ``[to of the older entry, from of the newer]`` is straight-line code only if no taken branch between them
went unrecorded: every near branch class must have been on, and call-stack mode off (it deletes entries on return).
"""

from __future__ import annotations

__all__ = ["ETW_NEAR_BRANCHES", "PERF_SELECT", "call_stack_mode", "describe_perf", "no_ranges_because"]

PERF_SELECT: dict[str, int] = {
    name: 1 << bit
    for bit, name in enumerate(
        (
            "USER", "KERNEL", "HV", "ANY", "ANY_CALL", "ANY_RETURN", "IND_CALL", "ABORT_TX", "IN_TX", "NO_TX", "COND",
            "CALL_STACK", "IND_JUMP", "CALL", "NO_FLAGS", "NO_CYCLES", "TYPE_SAVE", "HW_INDEX", "PRIV_SAVE", "COUNTERS",
        )
    )
}  # fmt: skip
"""PERF_SAMPLE_BRANCH_* of include/uapi/linux/perf_event.h, in bit order."""

_CLASSES = ("ANY_CALL", "ANY_RETURN", "IND_CALL", "COND", "IND_JUMP", "CALL")
_TX = ("ABORT_TX", "IN_TX", "NO_TX")

ETW_NEAR_BRANCHES = 0x2FC
"""Bits of ETW's LBR options that suppress a near branch class (2-7) or turn call-stack mode on (9)."""
_ETW_CALL_STACK = 0x200


def describe_perf(select: int) -> str:
    """``any,user`` for PERF_SAMPLE_BRANCH_* bits, as ``perf record -j`` takes them; unknown bits in hex."""
    names = [name.lower() for name, bit in PERF_SELECT.items() if select & bit]
    rest = select & ~((1 << len(PERF_SELECT)) - 1)
    return ",".join(names + ([f"{rest:#x}"] if rest else [])) or "none"


def call_stack_mode(kind: str, select: int) -> bool:
    """Whether the entries are the call frames of LBR call-stack mode instead of the newest branches."""
    return bool(select & (_ETW_CALL_STACK if kind == "etw" else PERF_SELECT["CALL_STACK"]))


def no_ranges_because(kind: str, select: int) -> str | None:
    """Why a selection of ``kind`` ``perf`` or ``etw`` gives no fall-through ranges; ``None`` where it does."""
    if call_stack_mode(kind, select):
        return "the branch records were collected in call-stack mode, which deletes calls that returned"
    if kind == "etw":
        bits = select & ETW_NEAR_BRANCHES
        return f"near branch classes were filtered out (ETW LBR options {bits:#x})" if bits else None
    classes = [name.lower() for name in _CLASSES if select & PERF_SELECT[name]]
    if classes and not select & PERF_SELECT["ANY"]:
        return f"only some branch classes were recorded ({','.join(classes)})"
    tx = [name.lower() for name in _TX if select & PERF_SELECT[name]]
    return f"branches were filtered by transaction state ({','.join(tx)})" if tx else None
