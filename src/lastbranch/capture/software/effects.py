"""What an instruction does to the stack pointer, to registers and to memory, told from its text (Intel syntax).

A branch through a register, or back to the word at the top of the stack, can be told ahead along a straight line that
moves the stack pointer by constants only and leaves the register, or the word, as it is. What is not known here counts
as changing everything.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..ptrace import FS_BASE, GENERAL, GS_BASE, RIP, RSP
from .branching import Registers

__all__ = ["ANYWHERE", "WORD", "Store", "moved", "stored", "written"]

WORD = 8


class Store(NamedTuple):
    """Bytes that are written: where they begin is ``displacement`` and the sum of ``scale`` times each register."""

    terms: tuple[tuple[int, int], ...] | None
    """``(register, scale)``, registers as indexes into `ptrace.Registers`; ``None``: it may be anywhere."""
    displacement: int = 0
    size: int = 0

    def hits(self, word: int, registers: Registers, stack: int | None) -> bool:
        """Whether it may write to the word at ``word``. ``stack`` is what RSP is, ``None`` if that is not known."""
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
        """Whether it never writes to the word that is ``place`` from the stack pointer, whatever registers are."""
        return self.terms == _BY_STACK and not _overlap(self.displacement, self.size, place)

    def never_misses(self, place: int) -> bool:
        """Whether it writes to that word for certain, or may be anywhere."""
        return self.terms is None or (self.terms == _BY_STACK and not self.misses(place))


_BY_STACK = ((RSP, 1),)
ANYWHERE = Store(None)


def _overlap(address: int, size: int, word: int) -> bool:
    """Whether ``size`` bytes at ``address`` have one of the word's; addresses wrap around."""
    return word - address & _ADDRESSES < size or address - word & _ADDRESSES < WORD


_ADDRESSES = (1 << 64) - 1
_POINTER = frozenset(("rsp", "esp", "sp", "spl"))
_NOT_WRITING = frozenset(("cmp", "test", "push", "bt", "nop", "endbr64", "prefetcht0", "pushfq"))
_WORDLESS = frozenset(("leave", "enter", "pushf", "popf"))
"""They move the stack pointer and do not name it, and not by a word."""
_MOVING = {"push": -WORD, "pushfq": -WORD, "pop": WORD, "popfq": WORD}
_ADDED = re.compile(r"(?:add|sub) rsp, (-?\d\w*)|lea rsp, \[rsp ([+-]) (\d\w*)\]")
_STORED = re.compile(r"(\w+) ptr (?:(\w\w):)?\[([^]]+)\].*")
_TERM = re.compile(r"(?:^| ([+-]) )(\w+)(?:\*([1248]))?")
_SIZES = {"byte": 1, "word": 2, "dword": 4, "fword": 6, "qword": 8, "xword": 10, "tbyte": 10, "xmmword": 16,
          "ymmword": 32, "zmmword": 64}  # fmt: skip
_SEGMENTS = {"fs": ((FS_BASE, 1),), "gs": ((GS_BASE, 1),)}
_STORES_ELSEWHERE = frozenset(("clzero", "enclu", "enqcmd", "enqcmds", "enter", "maskmovdqu", "maskmovq", "montmul",
                               "movdir64b", "vmaskmovdqu"))  # fmt: skip
"""They write to memory that the first operand does not name; so does what begins with `_PADLOCK`."""
_PADLOCK = ("xcrypt", "xsha", "xstore")
_MAYBE_SECOND = frozenset(("xchg",))
_REPEATED = ("rep ", "repe ", "repne ")
_LOADED = re.compile(r"mov (r\w+), qword ptr \[rsp(?: ([+-]) (\d\w*))?\]")
_WRITES_FIRST = re.compile(
    r"v?mov(?!dir)\w*|lea|add|sub|adc|sbb|and|andn|or|xor|inc|dec|neg|not|sh[lr]x?|sa[lr]x?|ro[lr]|bswap|pop|cmov\w+|set\w+|"
    r"bs[fr]|[lt]zcnt|popcnt|bl\w+|v?p(?:add|sub|and|or|xor|cmpeq|cmpgt|min|max|shuf|unpck|movmsk|sll|srl)\w*|"
    r"v?(?:add|sub|mul|div|and|or|xor|cvt|ucomi|comi|sqrt|unpck)\w*[sp][sd]\w*"
)
_OPERAND_16 = 0x66


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
    """By how much the instruction moves the stack pointer; ``None`` where that is not a constant."""
    mnemonic, _, operands = text.partition(" ")
    words = operands.split(", ")
    if mnemonic in _MOVING:
        return None if words[0] in _POINTER or code[0] == _OPERAND_16 else _MOVING[mnemonic]
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
    """Where the instruction writes to memory, with registers as they are before it; ``None`` if it does not.

    In this syntax the destination comes first; the exceptions are named above. `RIP` among the registers is the
    address behind the instruction.
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
    return _placed(found[3], _SEGMENTS.get(found[2], ()), _SIZES[found[1]])


def _placed(inside: str, terms: tuple[tuple[int, int], ...], size: int) -> Store:
    """``inside``: what stands in the brackets of an operand."""
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

    With each stands how far from the stack pointer the word is that it is loaded from, ``None`` for any other value.
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
