"""What an instruction does to the stack pointer and to registers, told from its text (Intel syntax).

A branch through a register, or back to the word at the top of the stack, can be told ahead along a straight line that
moves the stack pointer by constants only and leaves the register, or the word, as it is. What is not known here counts
as changing everything.
"""

from __future__ import annotations

import re

from ..ptrace import R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI

__all__ = ["WORD", "moved", "stored", "written"]

WORD = 8
_POINTER = frozenset(("rsp", "esp", "sp", "spl"))
_NOT_WRITING = frozenset(("cmp", "test", "push", "bt", "nop", "endbr64", "prefetcht0", "pushfq"))
_MOVING = {"push": -WORD, "pushfq": -WORD, "pop": WORD, "popfq": WORD}
_ADDED = re.compile(r"(?:add|sub) rsp, (-?\d\w*)|lea rsp, \[rsp ([+-]) (\d\w*)\]")
_STORED = re.compile(r"[a-z]\w* (?:[a-z]+ )*\[rsp(?: ([+-]) (\d\w*))?\](?:,.*)?")
_LOADED = re.compile(r"mov (r\w+), qword ptr \[rsp(?: ([+-]) (\d\w*))?\]")
_WRITES_FIRST = re.compile(
    r"v?mov\w*|lea|add|sub|adc|sbb|and|andn|or|xor|inc|dec|neg|not|sh[lr]x?|sa[lr]x?|ro[lr]|bswap|pop|cmov\w+|set\w+|"
    r"bs[fr]|[lt]zcnt|popcnt|bl\w+|v?p(?:add|sub|and|or|xor|cmpeq|cmpgt|min|max|shuf|unpck|movmsk|sll|srl)\w*|"
    r"v?(?:add|sub|mul|div|and|or|xor|cvt|ucomi|comi|sqrt|unpck)\w*[sp][sd]\w*"
)
_OPERAND_16 = 0x66


def _names() -> dict[str, int]:
    found: dict[str, int] = {}
    for letter, index in zip("abcd", (RAX, RBX, RCX, RDX), strict=True):
        found |= dict.fromkeys((f"r{letter}x", f"e{letter}x", f"{letter}x", f"{letter}l", f"{letter}h"), index)
    for name, index in (("si", RSI), ("di", RDI), ("bp", RBP)):
        found |= dict.fromkeys((f"r{name}", f"e{name}", name, f"{name}l"), index)
    for number, index in enumerate((R8, R9, R10, R11, R12, R13, R14, R15), 8):
        found |= dict.fromkeys((f"r{number}", f"r{number}d", f"r{number}w", f"r{number}b"), index)
    return found


_REGISTERS = _names()
_ALL: dict[int, int | None] = dict.fromkeys(_REGISTERS.values())


def moved(text: str, code: bytes) -> int | None:
    """By how much the instruction moves the stack pointer; ``None`` where that is not a constant."""
    mnemonic, _, operands = text.partition(" ")
    words = operands.split(", ")
    if mnemonic in _MOVING:
        return None if words[0] in _POINTER or code[0] == _OPERAND_16 else _MOVING[mnemonic]
    if mnemonic in _NOT_WRITING:
        return 0
    if _POINTER.isdisjoint(words) and mnemonic not in ("leave", "enter"):
        return 0
    found = _ADDED.fullmatch(text)
    if found is None:
        return 0 if _WRITES_FIRST.fullmatch(mnemonic) and words[0] not in _POINTER else None
    constant = _number(found[1] or found[3])
    return -constant if mnemonic == "sub" or found[2] == "-" else constant


def stored(text: str) -> int | None:
    """How far from the stack pointer the instruction writes, if that is in its text."""
    found = _STORED.fullmatch(text)
    if found is None or text.partition(" ")[0] in _NOT_WRITING:
        return None
    offset = _number(found[2] or "0")
    return -offset if found[1] == "-" else offset


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
