"""Stubs of calls to other modules (procedure linkage tables), which symbol tables do not name.

A stub jumps to where a slot of the global offset table points, and a relocation names the function whose address the
dynamic linker writes there (psABI of x86-64, 5.2 "Procedure Linkage Table"; of i386, the same; ELF for the Arm 64-bit
Architecture, "Procedure Linkage Table"). This search finds stubs whatever a linker puts around the jump, in any order.
Names are those of GNU's and LLVM's objdump: ``name@plt``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...binaries.files import Space, strings_at
from ...binaries.image import Section
from ...binaries.sections import Binary
from ...errors import FormatError
from ...x86 import ENDBR32, ENDBR64, Opcode, Prefix
from .symbols import Symbols

__all__ = ["FINDERS", "stub_symbols"]

SECTIONS = ".plt", ".plt.sec", ".plt.got", ".iplt"
RELOCATIONS = ".rela.plt", ".rela.dyn", ".rela.iplt", ".rel.plt", ".rel.dyn", ".rel.iplt"
DYNSYM_SIZE = {32: 16, 64: 24}
"""Bytes of a symbol, whose first word is the offset of its name in ``.dynstr`` (gABI, chapter 4, "Symbol Table")."""

Stubs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(link address of each stub, ascending; link address of the slot that it jumps through)."""


def stub_symbols(binary: Binary, symbols: Symbols) -> Symbols:
    """The stubs of ``binary``; the rest of their sections has the name of the section. ``symbols`` names functions that
    are chosen at run time (STT_GNU_IFUNC), of which relocations only have the addresses."""
    find = FINDERS.get(binary.image.machine)
    sections = {s.name: s for s in reversed(binary.image.sections) if s.name in SECTIONS and s.file_size}
    sections = {name: s for name, s in sections.items() if s.vaddr + s.size <= _TOP}
    if find is None or not sections:
        return Symbols.empty()
    got = {s.name: s.vaddr for s in binary.image.sections if s.vaddr <= _TOP}
    found: list[tuple[int, int, bool, bool, bytes]] = []
    with contextlib.suppress(FormatError):  # damaged relocations or names cost no other names
        base = got.get(".got.plt", got.get(".got", 0))
        stubs = {name: find(binary.section(name), s.vaddr, base) for name, s in sections.items()}
        names = _names(binary, symbols, distinct(np.concatenate([slot for _, slot in stubs.values()])))
        for name, (start, slot) in stubs.items():
            named = {where: names[at] for where, at in zip(start.tolist(), slot.tolist(), strict=True) if at in names}
            found += _of_section(sections[name], named)
    return Symbols.of(found)


def _of_section(section: Section, named: dict[int, bytes]) -> list[tuple[int, int, bool, bool, bytes]]:
    """Symbols of the stubs ``named`` (address, ascending -> function). Each is as long as the shortest distance of two;
    code before, after and between them is the linker's own."""
    end = section.vaddr + section.size
    step = min((b - a for a, b in pairwise(named)), default=section.size)
    found, at = [], section.vaddr
    for where, function in [*named.items(), (end, b"")]:
        if at < where:
            found.append((at, where - at, True, False, section.name.encode()))
        if where < end:
            at = min(where + step, end)
            found.append((where, at - where, True, False, function + b"@plt"))
    return found


def _names(binary: Binary, symbols: Symbols, wanted: NDArray[np.int64]) -> dict[int, bytes]:
    """Slot -> the function whose address a relocation puts there, for slots in ``wanted``. Raises `FormatError`."""
    wide = binary.image.bits == 64
    width, mask = (8, 0xFFFFFFFF) if wide else (4, 0xFF)
    symbol_names, table = binary.section(".dynstr"), binary.section(".dynsym")
    names: dict[int, bytes] = {}
    for name in filter(binary.has, RELOCATIONS):
        has_addend, space = name.startswith(".rela"), binary.section(name)
        entry = width * (3 if has_addend else 2)
        at = np.arange(space.size // entry, dtype=np.int64) * entry
        slot = space.read(at, width).view(np.int64)
        at, slot = at[np.isin(slot, wanted)], slot[np.isin(slot, wanted)]
        info = space.read(at + width, width)
        symbol, kind = (info >> np.uint64(32 if wide else 8)).astype(np.int64), info & np.uint64(mask)
        offset = table.read(symbol * DYNSYM_SIZE[binary.image.bits], 4).astype(np.int64)
        texts = strings_at(symbol_names.raw, offset.tolist())
        if has_addend:
            chosen = np.flatnonzero((symbol == 0) & (kind == np.uint64(_IRELATIVE[binary.image.machine])))
            resolver = space.read(at[chosen] + 2 * width, width)
            for row, text in zip(chosen.tolist(), _resolvers(symbols, resolver), strict=True):
                texts[row] = text
        names |= {at: text.encode() for at, text in zip(slot.tolist(), texts, strict=True) if text}
    return names


def _resolvers(symbols: Symbols, address: NDArray[np.uint64]) -> list[str]:
    """The names of the functions at ``address``, which return the function to use."""
    by_address = symbols.by_address() if len(address) else symbols
    row = by_address.at(address)
    begins = (row >= 0) & (np.append(by_address.start, np.uint64(0))[row] == address)
    names = by_address.names(np.maximum(row, 0)) if begins.any() else [""] * len(address)
    return [n if b else f"*ABS*+{a:#x}" for n, b, a in zip(names, begins.tolist(), address.tolist(), strict=True)]


_TOP = (1 << 63) - 1
_IRELATIVE = {"x86_64": 37, "i386": 42, "aarch64": 1032}
"""Relocations whose value is the return of a function that runs when the program starts."""

_RELATIVE_TO_RIP, _RELATIVE_TO_EBX = 0x25, 0xA3
"""The operand of the jump: ``[rip + disp32]``, which is ``[disp32]`` in 32-bit code, and ``[ebx + disp32]``."""
_BTI_C = 0xD503245F


def _x86_jumps(space: Space, operand_byte: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(where stubs begin, where their jump ends, its 32-bit operand) of jumps ``ff operand_byte``.

    Before the jump may be a prefix (``bnd``) and the landing pad of indirect branch tracking."""
    data = space.data[: space.size]
    at = (
        np.flatnonzero((data[:-5] == Opcode.GROUP_5) & (data[1:-4] == operand_byte))
        if len(data) > 5
        else np.empty(0, np.int64)
    )
    operand = space.read(at + 2, 4).astype(np.uint32).view(np.int32).astype(np.int64)
    start = at.copy()
    for i, where in enumerate(at.tolist()):
        where -= where > 0 and space.raw[where - 1] == Prefix.BND
        start[i] = where - 4 if where >= 4 and bytes(space.raw[where - 4 : where]) in (ENDBR64, ENDBR32) else where
    return start, at + 6, operand


def _x86_64(space: Space, address: int, _got: int) -> Stubs:
    """``jmp *slot(%rip)``."""
    start, end, operand = _x86_jumps(space, _RELATIVE_TO_RIP)
    return address + start, address + end + operand


def _i386(space: Space, address: int, got: int) -> Stubs:
    """``jmp *slot``, or ``jmp *slot(%ebx)`` where ebx has the address of the global offset table."""
    fixed, moved = _x86_jumps(space, _RELATIVE_TO_RIP), _x86_jumps(space, _RELATIVE_TO_EBX)
    start = np.concatenate([fixed[0], moved[0]])
    slot = np.concatenate([fixed[2] & 0xFFFFFFFF, (moved[2] + got) & 0xFFFFFFFF])
    order = np.argsort(start, kind="stable")
    return address + start[order], slot[order]


def _aarch64(space: Space, address: int, _got: int) -> Stubs:
    """``adrp x16, page; ldr x17, [x16, #offset]``, after ``bti c`` where that is needed. Instructions are
    little-endian whatever the data are."""
    words = space.data[: space.size // 4 * 4].view("<u4").astype(np.int64)
    if len(words) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = np.flatnonzero((words[:-1] & 0x9F00001F == 0x90000010) & (words[1:] & 0xFFC003FF == 0xF9400211))
    adrp, ldr = words[at], words[at + 1]
    pages = (adrp >> 5 & 0x7FFFF) << 2 | adrp >> 29 & 3
    pages -= (pages >> 20) << 21
    slot = ((address + 4 * at) >> 12 << 12) + (pages << 12) + (ldr >> 10 & 0xFFF) * 8
    padded = words[np.maximum(at - 1, 0)] == _BTI_C
    return address + 4 * (at - (padded & (at > 0))), slot


FINDERS: dict[str, Callable[[Space, int, int], Stubs]] = {"x86_64": _x86_64, "i386": _i386, "aarch64": _aarch64}
"""Machine -> function of (section, its link address, that of the global offset table) that finds its stubs."""
