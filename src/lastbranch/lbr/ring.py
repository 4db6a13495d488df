"""The ring of last branch records as an executable model: filter, record, top of stack, freeze, call-stack mode.

Source: Intel SDM 3B, Last Branch, Interrupt, and Exception Recording; call-stack profiling. In call-stack mode a near
return takes back the newest record (last in, first out), and a zero-length call (``call`` to the next instruction, by
which position-independent code reads its own address) is left out because no return will answer it. The text names no
encoding, so every near call whose target is the end of its own instruction is one: with prefixes, or indirect.

Two cases are not in the text. A return that finds an empty ring leaves the top of stack as it is; a branch of a
type that no class bit names (a fault, a type that is not known) goes by the FAR_BRANCH bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .filters import CALL_STACK, CAPTURES, capture_mask, validate
from .words import KIND

__all__ = ["ZERO_LENGTH", "Record", "Ring", "ring_contents"]

ZERO_LENGTH = 5
"""Bytes of the near relative call without prefixes: what a direct call has if the length of its instruction is not
known."""

_KINDS_OF_CLASS = {
    "JCC": ("cond",),
    "NEAR_REL_CALL": ("call", "cond_call"),
    "NEAR_IND_CALL": ("ind_call",),
    "NEAR_RET": ("ret", "cond_ret"),
    "NEAR_IND_JMP": ("ind",),
    "NEAR_REL_JMP": ("uncond",),
}
_CLASS_OF_KIND = np.full(256, CAPTURES.index("FAR_BRANCH"), np.uint8)
for _class, _kinds in _KINDS_OF_CLASS.items():
    _CLASS_OF_KIND[[KIND[name] for name in _kinds]] = CAPTURES.index(_class)

_CALLS = np.zeros(256, bool)
_CALLS[[KIND["call"], KIND["ind_call"], KIND["cond_call"]]] = True
_DIRECT = KIND["call"]
_RETURNS = np.zeros(256, bool)
_RETURNS[[KIND["ret"], KIND["cond_ret"]]] = True


class Record(NamedTuple):
    """One branch. ``kind`` is perf's branch type (index into `BRANCH_TYPES`), ``info`` whatever rides along."""

    source: int
    target: int
    kind: int
    info: int = 0


class Ring:
    """The reference model: ``depth`` slots, and the selection ``select`` (MSR_LBR_SELECT) that decides what goes in.

    Takes one branch at a time, like the processor. The tests compare `ring_contents` (what the software branch record
    uses) and `open_calls` with it.

    Raises `SelectionError` for a selection that is not valid: what the ring would hold is undefined.
    """

    def __init__(self, depth: int, select: int = 0) -> None:
        if depth < 1:
            raise ValueError(f"a ring of {depth} slots")
        self._lifo, self._captures = _captures_of(select)
        self.depth, self.select = depth, select
        self.enabled = True
        """IA32_DEBUGCTL.LBR."""
        self.frozen = False
        """Set by the interrupt that IA32_DEBUGCTL.FREEZE_LBRS_ON_PMI reacts to; clear it to go on."""
        self.clear()

    def clear(self) -> None:
        """Empty every slot, with the top of stack at the last one: the next record goes into slot 0."""
        self._slots: list[Record | None] = [None] * self.depth
        self.tos = self.depth - 1
        """Slot of the newest record."""

    def record(self, source: int, target: int, kind: int, cpl: int = 3, info: int = 0, length: int = 0) -> None:
        """A branch was taken. ``cpl`` is the privilege level that it ends in, ``length`` the bytes of its instruction,
        0 where that is not known (see `ZERO_LENGTH`)."""
        if not self.enabled or self.frozen or not self._captures[int(cpl != 0), kind]:
            return
        if not self._lifo:
            self._push(Record(source, target, kind, info))
        elif _RETURNS[kind]:
            self._pop()
        elif not (_CALLS[kind] and target - source == (length or (ZERO_LENGTH if kind == _DIRECT else None))):
            self._push(Record(source, target, kind, info))

    def read(self) -> list[Record]:
        """The records held, newest first: slots TOS, TOS - 1, ... modulo depth, up to an empty one."""
        found = []
        for i in range(self.depth):
            record = self._slots[(self.tos - i) % self.depth]
            if record is None:
                break
            found.append(record)
        return found

    def _push(self, record: Record) -> None:
        self.tos = (self.tos + 1) % self.depth
        self._slots[self.tos] = record

    def _pop(self) -> None:
        if self._slots[self.tos] is not None:
            self._slots[self.tos] = None
            self.tos = (self.tos - 1) % self.depth


def ring_contents(
    source: NDArray[np.uint64],
    target: NDArray[np.uint64],
    kind: NDArray[np.uint8],
    *,
    depth: int,
    select: int = 0,
    cpl: ArrayLike = 3,
    length: NDArray[np.uint64] | None = None,
) -> NDArray[np.intp]:
    """The content of an empty `Ring` after a burst of branches: indices in the burst, newest first.

    ``source``, ``target`` and ``kind`` have one value a branch, oldest first; ``cpl`` is one level for all branches, or
    one level a branch. ``length`` are the bytes of the instructions, 0 or ``None`` where they are not known (see
    `ZERO_LENGTH`). Raises `SelectionError` as `Ring` does.
    """
    lifo, captures = _captures_of(select)
    rows = np.flatnonzero(captures[(np.asarray(cpl) != 0).astype(np.intp), kind])
    if not lifo:
        return rows[: -depth - 1 : -1]
    bytes_of = np.zeros(len(rows), np.uint64) if length is None else length[rows]
    bytes_of = np.where((bytes_of == 0) & (kind[rows] == _DIRECT), np.uint64(ZERO_LENGTH), bytes_of)
    empty_call = _CALLS[kind[rows]] & (bytes_of != 0) & (target[rows] - source[rows] == bytes_of)
    rows = rows[~empty_call]
    step = np.where(_RETURNS[kind[rows]], -1, 1)
    height = np.cumsum(step)  # returns to an empty stack only shift what comes later
    # A call is still there if the stack was never lower since (not returned) and never depth higher (not overwritten).
    lowest = np.minimum.accumulate(height[::-1])[::-1]
    highest = np.maximum.accumulate(height[::-1])[::-1]
    open_calls = (step > 0) & (height <= lowest) & (highest - height < depth)
    found: NDArray[np.intp] = rows[open_calls][::-1]
    return found


@lru_cache(maxsize=16)
def _captures_of(select: int) -> tuple[bool, NDArray[np.bool_]]:
    """Call-stack mode, and a table [user level][kind] of what is captured, for a valid ``select``."""
    validate(select, "msr")
    word = capture_mask(select, "msr")
    of_kind = np.array(word >> _CLASS_OF_KIND.astype(np.int64) & 1, bool)
    levels = np.array([word >> CAPTURES.index(level) & 1 for level in ("KERNEL", "USER")], bool)
    return bool(word & CALL_STACK), levels[:, None] & of_kind
