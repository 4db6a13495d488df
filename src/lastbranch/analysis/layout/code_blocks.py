"""The basic blocks of x86-64 functions, found in their code as BOLT 19 finds them (BinaryFunction::buildCFG).

A block begins at the entry of a function; where a direct branch of any function goes, an exception continues or a
symbol is; at the targets of jump tables; and after each branch that is no call, also where only padding is left.
An unconditional jump within the function stays in the block of the conditional jump before it. Calls do not end blocks.
"""

from __future__ import annotations

import numpy as np

from ...arrays import Ints, distinct
from ...binaries.block_map import BlockFlags, BlockMap
from ...binaries.image import Code, Image
from ...isa import Decoder, Instructions
from ...lbr import KIND
from ...model import Array, Source, read_at
from ...x86 import UD2, Opcode, Prefix
from ..counting.branch_kinds import CALLS, kinds_table

__all__ = ["code_blocks"]

_DIRECT = kinds_table("cond", "uncond") | CALLS
_ENDS = kinds_table("uncond", "ind", "ret", "eret", "sysret")
_LONGEST_TABLE = 1 << 16


def code_blocks(source: Source, image: Image, start: Array, end: Array, leaders: Array) -> BlockMap:
    """The blocks of the functions at ``start`` to ``end`` (uint64 link addresses, ascending and disjoint).

    ``leaders`` (uint64) are addresses where blocks begin besides those that the code itself says. Ids are places within
    a function, by address. Raises `UnavailableError` where instructions cannot be decoded.
    """
    code = Code(source, image)
    size = (end - start).astype(np.int64)
    raw, offsets = code.read_many(start, size)
    found, each = Decoder(code.arch).classify(raw, offsets, start, size)
    if not len(found.address):
        none, nowhere = np.empty(0, np.int64), np.empty(0, np.uint64)
        return BlockMap(nowhere, nowhere, none, none.astype(np.uint8), none, none, start)
    function = np.repeat(np.arange(len(start)), each)
    address, length, kind, target = found
    at = address - start[function] + offsets[:-1].astype(np.uint64)[function]
    begins = _table_targets(source, image, raw, at, found, function, len(start))
    leader = np.isin(address, distinct(np.concatenate([start, leaders, target[_DIRECT[kind]], begins])))
    own = (target >= start[function]) & (target < end[function])
    # Nothing runs on after ud2.
    trap = (length == 2) & (raw[np.minimum(at.astype(np.int64), len(raw) - 1)] == UD2[0])
    trap[trap] = raw[at[trap].astype(np.int64) + 1] == UD2[1]
    ends = _ENDS[kind] | trap
    conditional = kind == KIND["cond"]
    joined = (kind == KIND["uncond"]) & own & ~leader
    joined[1:] &= conditional[:-1] & own[:-1]
    joined[:1] = False
    new = leader.copy()
    new[1:] |= (ends[:-1] | conditional[:-1]) & ~joined[1:]
    row = np.flatnonzero(new)
    last = np.append(row[1:], len(address)) - 1
    f = function[row]
    first = np.searchsorted(f, np.arange(len(start)))
    # The next block can be the target of a jump, which a record that compares addresses does not see as taken.
    after = address[last] + length[last]
    ahead = (target[last] == after) | ((kind[last] == KIND["ind"]) & np.isin(after, begins))
    flags = np.where(ends[last] & ~ahead, 0, BlockFlags.FALL_THROUGH).astype(np.uint8)
    return BlockMap(address[row], after, np.arange(len(row)) - first[f], flags, f, f, start)


def _table_targets(
    source: Source, image: Image, raw: Array, at: Array, found: Instructions, function: Ints, functions: int
) -> Array:
    """uint64: where the jump tables of functions with indirect jumps lead.

    A table is where an address is taken relative to the instruction, and its first words (4 bytes) are distances from
    there to instructions of the function; or where an operand with an index of 8 bytes points to addresses of it.
    """
    address, length, kind, _ = found
    jumps = np.zeros(functions, bool)
    jumps[function[kind == KIND["ind"]]] = True
    targets = list[int]()
    place = at.astype(np.int64)
    for f in np.flatnonzero(jumps).tolist():
        rows = slice(*np.searchsorted(function, [f, f + 1]).tolist())
        known = set(address[rows].tolist())
        relative, absolute = list[int](), list[int]()
        for i, a, n in zip(place[rows].tolist(), address[rows].tolist(), length[rows].tolist(), strict=True):
            code = raw[i : i + n].tobytes()
            here = code[1:] if code[:1] and code[0] & 0xF0 == Prefix.REX else code
            if n >= 7 and len(here) >= 6 and here[0] == Opcode.LEA and here[1] & 0xC7 == 5:  # lea r, [rip + disp32]
                relative.append(a + n + int.from_bytes(here[2:6], "little", signed=True))
            elif (
                len(here) >= 7
                and here[0] in (Opcode.GROUP_5, Opcode.LOAD)
                and here[1] & 0xC7 == 4
                and here[2] & 0xC7 == 0xC5
            ):
                absolute.append(int.from_bytes(here[3:7], "little", signed=True))  # [r * 8 + disp32]
        for width, tables in ((4, relative), (8, absolute)):
            for table in tables:
                targets += _entries(source, image, table, width, known, {*relative, *absolute} - {table})
    return np.array(targets, np.uint64)


def _entries(source: Source, image: Image, table: int, width: int, known: set[int], others: set[int]) -> list[int]:
    """The targets in a table up to the first word that leads elsewhere, or the next table."""
    section = next((s for s in image.sections if s.vaddr <= table < s.vaddr + s.file_size and s.flags), None)
    if section is None:
        return []
    at = section.offset + table - section.vaddr
    words = read_at(source, at, min(section.vaddr + section.file_size - table, _LONGEST_TABLE))
    found = list[int]()
    for i in range(0, len(words) - width + 1, width):
        word = int.from_bytes(words[i : i + width], "little", signed=width == 4)
        target = table + word if width == 4 else word
        if target not in known or (i and table + i in others):
            break
        found.append(target)
    return found
