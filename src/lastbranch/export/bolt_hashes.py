"""By what BOLT finds the blocks of a profile again in a binary that was built since (``--infer-stale-profile``).

The hash of a block has five parts (BOLT's StaleProfileMatching.cpp, HashUtilities.cpp): its distance from the entry of
the function (16 bits), a loose hash of the mnemonics in it, whatever their order and operands (16), an exact hash of
its instructions (16), and the loose hashes of its predecessors and of its successors (8 each; jumps through tables are
left out here). BOLT takes the block with the same loose hash; of several, the one whose other parts differ least.

The exact hash is made of LLVM's names of opcodes and its numbers of registers, which change with its versions. It is 0
in all blocks here, and so decides nothing. A function's hash is made of exact hashes of its blocks, and is 0, too.
"""

from __future__ import annotations

import re

import numpy as np
from xxhash import xxh3_64_intdigest

from ..arrays import Ints
from ..binaries.block_map import BlockMap
from ..binaries.image import Code
from ..isa import NOT_A_BRANCH, Decoder
from ..lbr import KIND

__all__ = ["block_hashes"]

_PREFIXES = frozenset(["bnd", "data16", "lock", "notrack", "rep", "repe", "repne", "repnz", "repz"])
_OPERAND_IN_NAME = (
    (re.compile(r"(?:sh[lr]d?|sa[lr]|ro[lr]|rc[lr])[bwlq] %cl, "), "%cl,"),
    (re.compile(r"stos[bwlq] %[a-z]+, "), ""),
    (re.compile(r"(?:call|jmp)[wlq]? \*"), "*"),
)
"""LLVM's mnemonics have the operands that their instructions always have."""
_BY_OPERANDS = re.compile(r"(?:sh[lr]d?|sa[lr]|ro[lr]|rc[lr]|stos)[bwlq]|(?:call|jmp|xchg)[wlq]?")
"""Mnemonics for which the operands count."""
_ON_CONDITION = re.compile(r"(cmov|set)(?:n?[abglcospez]|n?[abgl]e|p[eo])[wlq]?")
_NOT_LEFT = re.compile(r"(?:(?:rep\w*|bnd|notrack) )?(?:jmp|ret|iret|sysret|ud2)")
_LOW = (1 << 64) - 1
_COND, _UNCOND = KIND["cond"], KIND["uncond"]


def block_hashes(blocks: BlockMap, code: Code, functions: Ints) -> dict[int, int]:
    """The hashes of all blocks of ``functions`` (rows of `BlockMap.entry`), by row of ``blocks``.

    Raises `UnavailableError` where instructions cannot be decoded.
    """
    decoder, known, names = Decoder(code.arch, att=True), dict[str, int](), dict[str, str]()
    out = dict[int, int]()
    for f in functions.tolist():
        first, past = np.searchsorted(blocks.function, [f, f + 1]).tolist()
        start, end = blocks.start[first:past].tolist(), blocks.end[first:past].tolist()
        if start:
            out.update(enumerate(_of_function(start, end, code, decoder, known, names), first))
    return out


def _of_function(
    start: list[int], end: list[int], code: Code, decoder: Decoder, known: dict[str, int], names: dict[str, str]
) -> list[int]:
    """The hashes of the blocks of one function; the blocks follow each other. ``known`` are those of texts. ``names``
    are the mnemonics that lead nowhere else, with what they add to a text whatever their operands: nearly all."""
    row = {address: i for i, address in enumerate(start)}
    words, taken, stays = [set[str]() for _ in start], list[tuple[int, int]](), [True] * len(start)
    here, current = 0, words[0]
    for address, length, mnemonic, operands in decoder.texts(code.read(start[0], end[-1] - start[0]), start[0]):
        if address in row:
            here = row[address]
            current = words[here]
        if (word := names.get(mnemonic)) is not None:
            current.add(word)
            continue
        kind, target = decoder.kind_of(mnemonic, operands)
        text = f"{mnemonic} {operands}" if operands else mnemonic
        leaves = kind == _UNCOND or _NOT_LEFT.match(text) is not None
        if leaves and (address + length in row or address + length >= end[-1]):  # it is the last of its block
            stays[here] = False
        if target in row and kind in (_COND, _UNCOND):
            taken.append((here, row[target]))
        if kind == _COND:
            current.add("JMP")
        elif kind != _UNCOND or not start[0] <= target < end[-1]:
            found, always = _words(text, mnemonic.partition(" ")[0])
            current.update(found)
            if always and not leaves and kind == NOT_A_BRANCH and " " not in mnemonic:
                names[mnemonic] = "".join(found)
    texts = ["".join(sorted(found)) for found in words]
    for text in texts:
        if text not in known:
            known[text] = xxh3_64_intdigest(text.encode())
    loose = [known[text] for text in texts]
    next_ = [(i, i + 1) for i in range(len(start) - 1) if stays[i]]
    after, before = [0] * len(start), [0] * len(start)
    for source, target in taken + next_:  # the order in which BOLT finds them
        after[source] = _with(after[source], loose[target])
        before[target] = _with(before[target], loose[source])
    return [
        (address - start[0]) & 0xFFFF | (loose[i] & 0xFFFF) << 16 | (before[i] & 0xFF) << 48 | (after[i] & 0xFF) << 56
        for i, address in enumerate(start)
    ]


def _words(text: str, name: str) -> tuple[tuple[str, ...], bool]:
    """The mnemonic of the instruction ``text`` in LLVM's spelling, which the loose hash of its block takes in; and
    whether the mnemonic stays the same with other operands."""
    if name in _PREFIXES and " " in text:
        rest = text.partition(" ")[2]
        after, always = _words(rest, rest.partition(" ")[0])
        return ((name, *after) if name == "lock" else after), always  # only this one is an instruction of its own
    if name.startswith("nop") or text == "xchgw %ax, %ax":
        return (), name.startswith("nop")
    for pattern, operand in _OPERAND_IN_NAME:
        if found := pattern.match(text):
            return (name + operand if operand else found[0].replace(" ", ""),), False
    conditional = _ON_CONDITION.fullmatch(name)
    return (conditional[1] if conditional else name,), not _BY_OPERANDS.fullmatch(name)


def _with(sum_: int, value: int) -> int:
    """LLVM's ``hash_16_bytes`` (llvm/ADT/Hashing.h)."""
    multiplier = 0x9DDFEA08EB382D69
    a = (sum_ ^ value) * multiplier & _LOW
    b = (value ^ a ^ a >> 47) * multiplier & _LOW
    return (b ^ b >> 47) * multiplier & _LOW
