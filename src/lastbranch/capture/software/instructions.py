"""x86-64 instructions: the target of a branch, from the registers before it; the effects of other instructions.

Opcodes, condition codes and ModRM addressing: Intel SDM volume 2 (appendix B.1.4.7, 2.1.5, 2.2.1). Instructions that
`evaluation_of` does not know (far branches, interrupts, system calls) end a burst.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...x86 import PREFIXES, Opcode, Prefix
from ..ptrace import EFLAGS, FS_BASE, GENERAL, GS_BASE, RCX, RIP, RSP

__all__ = [
    "ADDRESSES",
    "ANYWHERE",
    "Branch",
    "Condition",
    "Evaluation",
    "InMemory",
    "InRegister",
    "LONGEST",
    "Memory",
    "NOT_TAKEN",
    "Store",
    "WORD",
    "direct",
    "evaluation_of",
    "moved",
    "register_of",
    "returns",
    "step_refusal",
    "stored",
    "written",
]


Memory = Callable[[int, int], bytes]
"""(address, length) -> the bytes that could be read."""


class Registers(Protocol):
    """`ptrace.Registers`, or a list in its order."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class Branch(NamedTuple):
    """A branch instruction. ``goes`` evaluates it; ``None`` where that is not modelled."""

    address: int
    length: int
    kind: int
    target: int
    """The target of a direct branch; the address of the word that a `RIP`-relative branch reads; else 0."""
    goes: Evaluation | None
    reads: int | None = None
    """The register that alone determines where an indirect branch goes, `RIP` for the word at ``target``; for LOOP RCX,
    which it decrements."""


Evaluation = Callable[[Registers, Branch, Memory], int | None]
"""(registers before the branch, the branch, memory) -> target, `NOT_TAKEN`, or ``None`` where memory cannot be read."""

NOT_TAKEN = -1
LONGEST = 15
"""Bytes of an instruction."""

ADDRESSES, _LOW = (1 << 64) - 1, (1 << 32) - 1
_CF, _PF, _ZF, _SF, _OF = 1, 4, 0x40, 0x80, 0x800

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
    """The evaluation of the branch instruction ``code``; ``None`` where it is not modelled."""
    at = 0
    while code[at] in PREFIXES:
        at += 1
    prefixes = code[:at]
    rex = code[at] if code[at] & 0xF0 == Prefix.REX else 0
    at += bool(rex)
    opcode = code[at]
    if opcode == Opcode.TWO_BYTES and code[at + 1] & 0xF0 == Opcode.JCC_NEAR:
        return Condition(code[at + 1] & 15)
    if opcode & 0xF0 == Opcode.JCC_SHORT:
        return Condition(opcode & 15)
    if Opcode.LOOPNE <= opcode <= Opcode.JRCXZ:
        if prefixes and opcode != Opcode.JRCXZ:
            return None  # it might count ECX
        return Counted(opcode & 3, _LOW if Prefix.ADDRESS_SIZE in prefixes else ADDRESSES)
    if opcode in (Opcode.CALL, Opcode.JMP, Opcode.JMP_SHORT):
        return direct
    if Prefix.OPERAND_SIZE in prefixes:
        return None  # processors differ
    if opcode in (Opcode.RET_POP, Opcode.RET):
        return returns
    if opcode == Opcode.GROUP_5 and code[at + 1] >> 3 & 7 in (Opcode.CALL_INDIRECT, Opcode.JMP_INDIRECT):
        return _indirect(code, at + 1, rex, prefixes)
    return None


def register_of(goes: Evaluation | None) -> int | None:
    """`Branch.reads` of a branch that is evaluated by ``goes``."""
    match goes:
        case Counted(code) if code != _JRCXZ:
            return RCX
        case InRegister(register):
            return register
        case InMemory(relative=True, segment=None, mask=mask) if mask == ADDRESSES:
            return RIP
        case _:
            return None


def direct(registers: Registers, branch: Branch, read: Memory) -> int:
    return branch.target


@dataclass(frozen=True, slots=True)
class Condition:
    """A conditional branch with a condition ``code``."""

    code: int

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int:
        return branch.target if _TESTS[self.code >> 1](registers[EFLAGS]) != bool(self.code & 1) else NOT_TAKEN


_LOOP, _JRCXZ = Opcode.LOOP & 3, Opcode.JRCXZ & 3


@dataclass(frozen=True, slots=True)
class Counted:
    """LOOPNE, LOOPE, LOOP (which count RCX down first) and JRCXZ, by the lowest bits of the opcode."""

    code: int
    mask: int

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int:
        if self.code == _JRCXZ:
            taken = registers[RCX] & self.mask == 0
        else:
            zero = bool(registers[EFLAGS] & _ZF)
            taken = (registers[RCX] - 1) & self.mask != 0 and (self.code == _LOOP or zero == bool(self.code))
        return branch.target if taken else NOT_TAKEN


def returns(registers: Registers, branch: Branch, read: Memory) -> int | None:
    return _word(read(registers[RSP], 8))


@dataclass(frozen=True, slots=True)
class InRegister:
    """A branch to the address in a register, an index into `ptrace.Registers` like all here."""

    register: int

    def __call__(self, registers: Registers, branch: Branch, read: Memory) -> int:
        return registers[self.register]


@dataclass(frozen=True, slots=True)
class InMemory:
    """A branch to the address in a word of memory."""

    displacement: int
    relative: bool
    """Whether the displacement is relative to the end of the instruction."""
    base: int | None
    index: int | None
    scale: int
    """The shift of the index, in bits."""
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
        return _word(read(address & ADDRESSES, 8))


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
        segment=FS_BASE if Prefix.FS in prefixes else GS_BASE if Prefix.GS in prefixes else None,
        mask=_LOW if Prefix.ADDRESS_SIZE in prefixes else ADDRESSES,
    )


def step_refusal(code: bytes) -> str:
    """Why the instruction at the start of ``code`` must not be executed by a single step: PUSHF and POPF would carry
    the trap flag into the program. Empty: it may be."""
    opcode = next((byte for byte in code[:4] if byte != Prefix.OPERAND_SIZE and byte & 0xF0 != Prefix.REX), -1)
    return "flags" if opcode in (Opcode.PUSHF, Opcode.POPF) else ""


def _word(found: bytes) -> int | None:
    return int.from_bytes(found, "little") if len(found) == 8 else None


# -- effects of an instruction on stack pointer, registers and memory, from its text (Intel syntax)
#
# The target of a branch through a register, or of a return, is known at the start of a straight line that changes the
# stack pointer by constants only and leaves the register, or the word on the stack, unchanged. An instruction that is
# not known here counts as changing everything.


WORD = 8


class Store(NamedTuple):
    """A store of ``size`` bytes at ``displacement`` plus the sum of ``scale`` times each register."""

    terms: tuple[tuple[int, int], ...] | None
    """``(register, scale)``, registers as indexes into `ptrace.Registers`; ``None``: the address is not known."""
    displacement: int = 0
    size: int = 0

    def hits(self, word: int, registers: Registers, stack: int | None) -> bool:
        """Whether it may write to the word at ``word``. ``stack`` is RSP, ``None`` if not known."""
        if self.terms is None:
            return True
        address = self.displacement
        for register, scale in self.terms:
            value = stack if register == RSP else registers[register]
            if value is None:
                return True
            address += value * scale
        return _overlap(address, self.size, word)

    def misses(self, place: int) -> bool:
        """Whether it misses the word at the stack offset ``place``, whatever the registers."""
        return self.terms == _BY_STACK and not _overlap(self.displacement, self.size, place)

    def never_misses(self, place: int) -> bool:
        """Whether it certainly hits that word, or its address is not known."""
        return self.terms is None or (self.terms == _BY_STACK and not self.misses(place))


_BY_STACK = ((RSP, 1),)
ANYWHERE = Store(None)


def _overlap(address: int, size: int, word: int) -> bool:
    """Whether ``size`` bytes at ``address`` have one of the word's; addresses wrap around."""
    return word - address & ADDRESSES < size or address - word & ADDRESSES < WORD


_POINTER = frozenset(("rsp", "esp", "sp", "spl"))
_NOT_WRITING = frozenset(("cmp", "test", "push", "bt", "nop", "endbr64", "prefetcht0", "pushfq"))
_WORDLESS = frozenset(("leave", "enter", "pushf", "popf"))
"""These instructions change the stack pointer without naming it, and not by one word."""
_MOVING = {"push": -WORD, "pushfq": -WORD, "pop": WORD, "popfq": WORD}
_ADDED = re.compile(r"(?:add|sub) rsp, (-?\d\w*)|lea rsp, \[rsp ([+-]) (\d\w*)\]")
_STORED = re.compile(r"(\w+) ptr (?:(\w\w):)?\[([^]]+)\].*")
_TERM = re.compile(r"(?:^| ([+-]) )(\w+)(?:\*([1248]))?")
_SIZES = {"byte": 1, "word": 2, "dword": 4, "fword": 6, "qword": 8, "xword": 10, "tbyte": 10, "xmmword": 16,
          "ymmword": 32, "zmmword": 64}  # fmt: skip
_SEGMENTS = {"fs": ((FS_BASE, 1),), "gs": ((GS_BASE, 1),)}
_STORES_ELSEWHERE = frozenset(
    ("clzero", "enclu", "enqcmd", "enqcmds", "enter", "maskmovdqu", "maskmovq", "montmul", "movdir64b", "vmaskmovdqu")
)
"""They write to memory that the first operand does not name, as do those that begin with `_PADLOCK`."""
_PADLOCK = ("xcrypt", "xsha", "xstore")
_MAYBE_SECOND = frozenset(("xchg",))
_REPEATED = ("rep ", "repe ", "repne ")
_LOADED = re.compile(r"mov (r\w+), qword ptr \[rsp(?: ([+-]) (\d\w*))?\]")
_WRITES_FIRST = re.compile(
    r"v?mov(?!dir)\w*|lea|add|sub|adc|sbb|and|andn|or|xor|inc|dec|neg|not|sh[lr]x?|sa[lr]x?|ro[lr]|bswap|pop|cmov\w+|set\w+|"
    r"bs[fr]|[lt]zcnt|popcnt|bl\w+|v?p(?:add|sub|and|or|xor|cmpeq|cmpgt|min|max|shuf|unpck|movmsk|sll|srl)\w*|"
    r"v?(?:add|sub|mul|div|and|or|xor|cvt|ucomi|comi|sqrt|unpck)\w*[sp][sd]\w*"
)


def _names() -> dict[str, int]:
    found: dict[str, int] = {}
    for letter, index in zip("acdb", GENERAL[:4], strict=True):
        found |= dict.fromkeys((f"r{letter}x", f"e{letter}x", f"{letter}x", f"{letter}l", f"{letter}h"), index)
    for name, index in zip(("bp", "si", "di"), GENERAL[5:8], strict=True):
        found |= dict.fromkeys((f"r{name}", f"e{name}", name, f"{name}l"), index)
    for number, index in enumerate(GENERAL[8:], 8):
        found |= dict.fromkeys((f"r{number}", f"r{number}d", f"r{number}w", f"r{number}b"), index)
    return found


_REGISTERS = _names()
_ALL: dict[int, int | None] = dict.fromkeys((*_REGISTERS.values(), FS_BASE, GS_BASE))
_BASES = {name: index for name, index in _REGISTERS.items() if name[0] == "r" and name[-1] not in "bdw"}
_BASES |= {"rsp": RSP, "rip": RIP}
_PUSH = Store(_BY_STACK, -WORD, WORD)


def moved(text: str, code: bytes) -> int | None:
    """The change of the stack pointer; ``None`` where it is not a constant."""
    mnemonic, _, operands = text.partition(" ")
    words = operands.split(", ")
    if mnemonic in _MOVING:
        return None if words[0] in _POINTER or code[0] == Prefix.OPERAND_SIZE else _MOVING[mnemonic]
    if mnemonic in _NOT_WRITING:
        return 0
    if _POINTER.isdisjoint(words) and mnemonic not in _WORDLESS:
        return 0
    found = _ADDED.fullmatch(text)
    if found is None:
        return 0 if _WRITES_FIRST.fullmatch(mnemonic) and words[0] not in _POINTER else None
    constant = _number(found[1] or found[3])
    return -constant if mnemonic == "sub" or found[2] == "-" else constant


def stored(text: str) -> Store | None:
    """The store of the instruction, in terms of the registers before it; ``None`` if it has none.

    In this syntax the destination comes first; the exceptions are named above. `RIP` is the address after the
    instruction.
    """
    text = text.removeprefix("lock ")
    mnemonic, _, operands = text.partition(" ")
    first, _, rest = operands.partition(", ")
    if mnemonic in _MOVING and _MOVING[mnemonic] < 0:
        return _PUSH
    if mnemonic in _NOT_WRITING:
        return None
    unnamed = mnemonic in _STORES_ELSEWHERE or mnemonic.startswith(_PADLOCK) or mnemonic == "pushf"
    if unnamed or text.startswith(_REPEATED) or ("[" in rest and ("[" in first or mnemonic in _MAYBE_SECOND)):
        return ANYWHERE
    if "[" not in first:
        return None
    found = _STORED.fullmatch(first)
    if found is None or found[1] not in _SIZES or mnemonic == "pop":
        return ANYWHERE
    return _store_at(found[3], _SEGMENTS.get(found[2], ()), _SIZES[found[1]])


def _store_at(inside: str, terms: tuple[tuple[int, int], ...], size: int) -> Store:
    """``inside`` is the text in the brackets of an operand."""
    displacement, end = 0, 0
    for found in _TERM.finditer(inside):
        sign, name, scale = found.groups()
        end = found.end()
        if name[0].isdigit():
            displacement += -_number(name) if sign == "-" else _number(name)
        elif name in _BASES and sign != "-":
            terms = (*terms, (_BASES[name], int(scale or 1)))
        else:
            return ANYWHERE  # half a register, or a vector of addresses
    return Store(terms, displacement, size) if end == len(inside) else ANYWHERE


def written(text: str) -> dict[int, int | None]:
    """Registers that the instruction may change, as indexes into `ptrace.Registers`; RSP is not among them.

    The value is the stack offset of the word that the register is loaded from, ``None`` for any other source.
    """
    mnemonic, _, operands = text.partition(" ")
    first, _, rest = operands.partition(", ")
    if mnemonic in _NOT_WRITING:
        return {}
    if not _WRITES_FIRST.fullmatch(mnemonic) or ("[" in first and "[" in rest):  # MOVS has two operands in memory
        return _ALL
    if first in _SEGMENTS:
        return _ALL
    if first not in _REGISTERS:
        return {}
    loaded = _LOADED.fullmatch(text)
    if loaded is None:
        return {_REGISTERS[first]: None}
    offset = _number(loaded[3] or "0")
    return {_REGISTERS[first]: -offset if loaded[2] == "-" else offset}


def _number(text: str) -> int:
    value = int(text, 0)
    return value - (1 << 64) if value >= 1 << 63 else value
