"""AArch64 instructions: the target of a branch, from the registers before it; loads and stores that belong together.

Encodings: Arm Architecture Reference Manual for A-profile, C4.1. Every instruction has four bytes, and those that may
go elsewhere than to the next one are all in the group "branches, exception generating and system instructions".
"""

from __future__ import annotations

from dataclasses import dataclass

from ..architectures import ARCHITECTURES
from .instructions import NOT_TAKEN, Branch, Evaluation, Memory, Registers, direct

__all__ = ["LENGTH", "evaluation_of", "is_branch_group", "is_code", "is_system", "monitor_after", "step_refusal"]

LENGTH = 4
"""Bytes of an instruction."""
_FLAGS = ARCHITECTURES["aarch64"].flags
_LINK, _ZERO = 30, 31
"""X30, and the register number that means zero in the instructions here."""
_N, _Z, _C, _V = 31, 30, 29, 28
"""Bits of pstate."""


def is_code(word: int) -> bool:
    """Whether ``word`` may be an instruction: those with 16 leading zeros are permanently undefined."""
    return word >> 16 != 0


def is_branch_group(word: int) -> bool:
    """Whether ``word`` may be a branch: any other instruction is followed by the next one."""
    return word & 0x1C000000 == 0x14000000


def is_system(word: int) -> bool:
    """Whether ``word``, of that group, is a hint, a barrier or another system instruction: no branch."""
    return word >> 24 == 0xD5


def evaluation_of(code: bytes) -> Evaluation | None:
    """The evaluation of the branch instruction ``code``; ``None`` where it is not modelled (exceptions, their
    returns)."""
    word = int.from_bytes(code[:LENGTH], "little")
    if word & 0x7C000000 == 0x14000000:  # B, BL
        return direct
    if word & 0xFF000000 == 0x54000000:  # B.cond, BC.cond
        return Condition(word & 15)
    register = word & 31
    if word & 0x7E000000 == 0x34000000:  # CBZ, CBNZ
        return Bits(register, (1 << (64 if word >> 31 else 32)) - 1, bool(word >> 24 & 1))
    if word & 0x7E000000 == 0x36000000:  # TBZ, TBNZ
        return Bits(register, 1 << (word >> 31 << 5 | word >> 19 & 31), bool(word >> 24 & 1))
    if word & 0xFE000000 == 0xD6000000:
        return _by_register(word)
    return None


def _by_register(word: int) -> Evaluation | None:
    """BR, BLR, RET, and their forms that authenticate the pointer: BRAA, RETAB and others."""
    operation, key = word >> 21 & 15, word >> 10 & 63
    if word >> 16 & 31 != 31 or operation & 7 > 2 or (key not in (0, 2, 3)):
        return None  # ERET, DRPS, and what came later
    register = word >> 5 & 31
    if key == 0:
        return ToRegister(register) if operation < 3 and word & 31 == 0 else None
    if operation == 2:
        return ToRegister(_LINK) if register == 31 else None  # RETAA, RETAB
    return ToRegister(register)


@dataclass(frozen=True, slots=True)
class Condition:
    """A conditional branch with a condition ``code`` (C1.2.4)."""

    code: int

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int:
        flags = registers[_FLAGS]
        n, z, c, v = (flags >> bit & 1 for bit in (_N, _Z, _C, _V))
        holds = (z, c, n, v, c and not z, n == v, n == v and not z, True)[self.code >> 1]
        negated = self.code & 1 and self.code != 15  # 14 and 15 are both always
        return branch.target if bool(holds) != bool(negated) else NOT_TAKEN


@dataclass(frozen=True, slots=True)
class Bits:
    """A branch that is taken if any of the bits ``mask`` of a register is set (``nonzero``), or if none is."""

    register: int
    mask: int
    nonzero: bool

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int:
        value = 0 if self.register == _ZERO else registers[self.register] & self.mask
        return branch.target if (value != 0) == self.nonzero else NOT_TAKEN


@dataclass(frozen=True, slots=True)
class ToRegister:
    """A branch to the address in a register."""

    register: int

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int:
        return 0 if self.register == _ZERO else registers[self.register] & _ADDRESS


_ADDRESS = (1 << 48) - 1
"""What is left of a pointer to code of a program: above are its authentication code, and the byte that is ignored."""


# -- loads and stores that belong together (LDXR ... STXR)
#
# The store succeeds only if nothing came between, and a stop of the thread is enough: then the store fails, the program
# loads again, and a recorder that stops there each time would keep it there.


def monitor_after(word: int) -> bool | None:
    """Whether an exclusive store is awaited after the instruction ``word``; ``None``: it changes nothing of that."""
    if word & 0x3F800000 == 0x08000000 and word & 0x80200000 != 0x00200000:  # else compare and swap of pairs
        return bool(word >> 22 & 1)
    return False if word & 0xFFFFF0FF == 0xD503305F else None  # CLREX


def step_refusal(code: bytes) -> str:
    """Why the instruction at the start of ``code`` must not be executed by a single step; empty: it may be."""
    return "exclusive access" if monitor_after(int.from_bytes(code[:LENGTH], "little")) else ""
