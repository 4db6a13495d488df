"""Where an x86-64 branch goes, told from the registers before it is executed.

Opcodes, condition codes and ModRM addressing: Intel SDM volume 2 (appendix B.1.4.7, 2.1.5, 2.2.1). What `evaluation_of`
does not know (far branches, interrupts, system calls) is left to the processor: a burst ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..ptrace import EFLAGS, FS_BASE, GENERAL, GS_BASE, RCX, RIP, RSP

__all__ = [
    "NOT_TAKEN", "Branch", "Condition", "Evaluation", "InMemory", "InRegister", "Memory", "direct", "evaluation_of",
    "register_of", "returns",
]  # fmt: skip

Memory = Callable[[int, int], bytes]
"""(address, length) -> what could be read of it."""


class Registers(Protocol):
    """`ptrace.Registers`, or a list in its order."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class Branch(NamedTuple):
    """A branch at its place. ``goes`` is ``None`` where it is not known how to tell."""

    address: int
    length: int
    kind: int
    target: int
    """Of a direct branch; of an indirect one that reads a word of the program, where that is; else 0."""
    goes: Evaluation | None
    reads: int | None = None
    """Of an indirect branch: the register that alone tells where it goes, `RIP` for a word at ``target``. Of LOOP: RCX,
    which it counts down."""


Evaluation = Callable[[Registers, Branch, Memory], int | None]
"""(registers, the branch they stand before, memory) -> its target, `NOT_TAKEN`, or ``None`` where memory cannot be
read."""

NOT_TAKEN = -1

_MASK, _LOW = (1 << 64) - 1, (1 << 32) - 1
_CF, _PF, _ZF, _SF, _OF = 1, 4, 0x40, 0x80, 0x800
_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_FS, _GS, _OPERAND_16, _ADDRESS_32 = 0x64, 0x65, 0x66, 0x67

_TESTS: tuple[Callable[[int], bool], ...] = (
    lambda f: bool(f & _OF),
    lambda f: bool(f & _CF),
    lambda f: bool(f & _ZF),
    lambda f: bool(f & (_CF | _ZF)),
    lambda f: bool(f & _SF),
    lambda f: bool(f & _PF),
    lambda f: bool(f & _SF) != bool(f & _OF),
    lambda f: bool(f & _ZF) or bool(f & _SF) != bool(f & _OF),
)
"""By condition code without its lowest bit, which negates: o, b, e, be, s, p, l, le."""


def evaluation_of(code: bytes) -> Evaluation | None:
    """How to tell where the branch instruction ``code`` goes; ``None`` where that is not modelled."""
    at = 0
    while code[at] in _PREFIXES:
        at += 1
    prefixes = code[:at]
    rex = code[at] if code[at] & 0xF0 == 0x40 else 0
    at += bool(rex)
    opcode = code[at]
    if opcode == 0x0F and code[at + 1] & 0xF0 == 0x80:
        return Condition(code[at + 1] & 15)
    if opcode & 0xF0 == 0x70:
        return Condition(opcode & 15)
    if 0xE0 <= opcode <= 0xE3:
        if prefixes and opcode != 0xE3:
            return None  # it might count ECX
        return _counted(opcode & 3, _LOW if _ADDRESS_32 in prefixes else _MASK)
    if opcode in (0xE8, 0xE9, 0xEB):
        return direct
    if _OPERAND_16 in prefixes:
        return None  # processors differ in what they make of it
    if opcode in (0xC2, 0xC3):
        return returns
    if opcode == 0xFF and code[at + 1] >> 3 & 7 in (2, 4):
        return _indirect(code, at + 1, rex, prefixes)
    return None


def register_of(code: bytes) -> int | None:
    """`Branch.reads` of the branch instruction ``code``."""
    at = 0
    if 0xE0 <= code[0] <= 0xE2:
        return RCX
    rex = code[0] if code[0] & 0xF0 == 0x40 else 0
    at += bool(rex)
    if code[at] != 0xFF or code[at + 1] >> 3 & 7 not in (2, 4):
        return None
    mod, rm = code[at + 1] >> 6, code[at + 1] & 7 | (rex & 1) << 3
    if mod == 3:
        return GENERAL[rm]
    return RIP if mod == 0 and rm & 7 == 5 else None


def direct(registers: Registers, branch: Branch, read: Memory) -> int:
    return branch.target


@dataclass(frozen=True, slots=True)
class Condition:
    """By a condition ``code``."""

    code: int

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int:
        return branch.target if _TESTS[self.code >> 1](registers[EFLAGS]) != bool(self.code & 1) else NOT_TAKEN


def _counted(code: int, mask: int) -> Evaluation:
    """LOOPNE, LOOPE, LOOP (which count RCX down first) and JRCXZ."""

    def goes(registers: Registers, branch: Branch, read: Memory) -> int:
        if code == 3:
            taken = registers[RCX] & mask == 0
        else:
            zero = bool(registers[EFLAGS] & _ZF)
            taken = (registers[RCX] - 1) & mask != 0 and (code == 2 or zero == bool(code))
        return branch.target if taken else NOT_TAKEN

    return goes


def returns(registers: Registers, branch: Branch, read: Memory) -> int | None:
    return _word(read(registers[RSP], 8))


@dataclass(frozen=True, slots=True)
class InRegister:
    """To where a register points, an index into `ptrace.Registers` as all of them here."""

    register: int

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int:
        return registers[self.register]


@dataclass(frozen=True, slots=True)
class InMemory:
    """To where a word of memory points."""

    displacement: int
    relative: bool
    """It counts from the end of the instruction."""
    base: int | None
    index: int | None
    scale: int
    """So many bits the index is shifted."""
    segment: int | None
    mask: int
    """Of the address before the segment's is added."""

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int | None:
        address = self.displacement
        if self.relative:
            address += branch.address + branch.length
        if self.base is not None:
            address += registers[self.base]
        if self.index is not None:
            address += registers[self.index] << self.scale
        address &= self.mask
        if self.segment is not None:
            address += registers[self.segment]
        return _word(read(address & _MASK, 8))


def _indirect(code: bytes, at: int, rex: int, prefixes: bytes) -> Evaluation:
    """JMP or CALL through the ModRM operand at ``code[at]``."""
    mod, rm = code[at] >> 6, code[at] & 7
    if mod == 3:
        return InRegister(GENERAL[rm | (rex & 1) << 3])
    base: int | None = rm | (rex & 1) << 3
    index, scale, after = None, 0, at + 1
    if rm == 4:
        sib, after = code[at + 1], at + 2
        index, scale = sib >> 3 & 7 | (rex & 2) << 2, sib >> 6
        index = None if index == 4 else index
        base = sib & 7 | (rex & 1) << 3
    relative = mod == 0 and rm == 5
    if mod == 0 and base is not None and base & 7 == 5:
        base = None
    size = 1 if mod == 1 else 4 if mod == 2 or base is None else 0
    return InMemory(
        displacement=int.from_bytes(code[after : after + size], "little", signed=True),
        relative=relative,
        base=None if base is None else GENERAL[base],
        index=None if index is None else GENERAL[index],
        scale=scale,
        segment=FS_BASE if _FS in prefixes else GS_BASE if _GS in prefixes else None,
        mask=_LOW if _ADDRESS_32 in prefixes else _MASK,
    )


def _word(found: bytes) -> int | None:
    return int.from_bytes(found, "little") if len(found) == 8 else None
