"""Symbol tables of ELF files, PE files and PDBs: names of functions, no lines.

A module's symbols are columns, from whatever table they come, and addresses are looked up in them. Stubs of the
procedure linkage table get the names of the functions that they call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...binaries.files import File, Space, strings_at
from ...binaries.image import Section, SegmentFlags
from ...binaries.pdb import DBI_STREAM, PdbStreams
from ...binaries.pe import pe_headers
from ...binaries.sections import Binary, open_binary, unpack_xz
from ...errors import FormatError
from ...model import Source
from ...x86 import ENDBR32, ENDBR64, Opcode, Prefix
from ..model import DebugFiles, Function, FunctionTable, Names, used_rows

__all__ = [
    "FINDERS",
    "Symbols",
    "defines_data",
    "elf_symbols",
    "functions",
    "pdb_symbols",
    "symbolize",
    "stub_symbols",
    "symbols_of",
    "until_next",
]


# -- The symbols of one module as columns


_COLUMNS = ("start", "size", "name", "code", "public")


@dataclass(eq=False)
class Symbols:
    """n symbols in the order of their table. Names are decoded on use: most never are."""

    start: NDArray[np.uint64]
    """Link addresses."""
    size: NDArray[np.uint64]
    """Bytes; 0 unknown: such a symbol reaches to the next one."""
    name: NDArray[np.int64]
    """Offsets into ``strings``, where the names end with a zero byte."""
    code: NDArray[np.bool_]
    """Whether it is a function or a label of code."""
    public: NDArray[np.bool_]
    """Whether other modules may see it."""
    strings: bytes | bytearray = b""

    @classmethod
    def empty(cls) -> Symbols:
        none = np.empty(0, np.uint64)
        return cls(none, none, np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool))

    @classmethod
    def of(cls, found: Sequence[tuple[int, int, bool, bool, bytes]]) -> Symbols:
        """Symbols from (start, size, whether code, whether public, name)."""
        if not found:
            return cls.empty()
        start, size, code, public, name = zip(*found, strict=True)
        begin = np.cumsum([0, *(len(n) + 1 for n in name)])[:-1]
        words = np.array(start, np.uint64), np.array(size, np.uint64)
        return cls(*words, begin, np.array(code, bool), np.array(public, bool), b"\0".join(name) + b"\0")

    @classmethod
    def join(cls, parts: list[Symbols]) -> Symbols:
        """All symbols of ``parts``, in that order."""
        if len(parts) == 1:
            return parts[0]
        base = np.cumsum([0, *(len(p.strings) for p in parts)])[:-1]
        moved = [replace(p, name=p.name + b) for p, b in zip(parts, base, strict=True)]
        columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in moved]) for name in _COLUMNS}
        return cls(**columns, strings=b"".join(p.strings for p in parts))

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Symbols:
        """The symbols in ``rows``."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, **columns)

    def by_address(self) -> Symbols:
        """One symbol for each address, ascending: the last of the largest symbols in the table."""
        order = np.lexsort((self.size, self.start))
        start = self.start[order]
        last = np.append(start[1:] != start[:-1], True) if len(start) else np.empty(0, bool)
        return self.take(order[last])

    def at(self, address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64[n]: the row of each address, or -1, where symbols are `by_address`."""
        if not len(self):
            return np.full(len(address), -1, np.int64)
        row = np.searchsorted(self.start, address, side="right").astype(np.int64) - 1
        size = self.size[np.maximum(row, 0)]
        inside = (size == 0) | (address - self.start[np.maximum(row, 0)] < size)
        return np.where((row >= 0) & inside, row, -1)

    def names(self, rows: NDArray[np.integer]) -> list[str]:
        """The names of ``rows``."""
        return strings_at(self.strings, self.name[rows].tolist())

    def functions(self, rows: NDArray[np.integer]) -> list[Function]:
        """``rows`` as functions, without a place in the source."""
        columns = self.names(rows), self.start[rows].tolist(), self.size[rows].tolist()
        return [Function(name, name, start, size) for name, start, size in zip(*columns, strict=True)]

    def symbolize(self, address: NDArray[np.uint64]) -> Names:
        """The names of ``address``, where symbols are `by_address`."""
        used, rows = used_rows(self.at(address))
        return Names.of_functions(rows, self.functions(used))

    def table(self) -> FunctionTable:
        """All code symbols by address; one without a size reaches to the next symbol."""
        code = self.take(self.code)
        chosen = code.by_address()
        following = np.append(chosen.start[1:], chosen.start[-1:] + np.uint64(1))
        end = np.where(chosen.size == 0, following, chosen.start + chosen.size)
        everyone = np.arange(len(chosen))
        functions = chosen.functions(everyone)
        return FunctionTable(chosen.start, np.maximum(end, chosen.start), functions, code._aliases(chosen, functions))

    def _aliases(self, chosen: Symbols, functions: list[Function]) -> dict[int, tuple[str, ...]]:
        row = np.searchsorted(chosen.start, self.start)
        shared = np.flatnonzero(np.bincount(row, minlength=len(chosen))[row] > 1)
        names: dict[int, dict[str, None]] = {}
        for i, name in zip(row[shared].tolist(), self.names(shared), strict=True):
            if name != functions[i].name:
                names.setdefault(i, {})[name] = None
        return {i: tuple(other) for i, other in sorted(names.items())}


def until_next(symbols: Symbols, ends: NDArray[np.uint64]) -> Symbols:
    """``symbols`` where each without a size reaches to the next address that has one, or to the next of ``ends``."""
    if not len(symbols):
        return symbols
    stops = distinct(np.concatenate([symbols.start, ends]))
    following = np.append(stops, stops[-1])[np.searchsorted(stops, symbols.start, side="right")]
    return replace(symbols, size=np.where(symbols.size == 0, following - symbols.start, symbols.size))


# -- Stubs of calls to other modules (procedure linkage tables), which symbol tables do not name
#
# A stub jumps to where a slot of the global offset table points, and a relocation names the function whose address the
# dynamic linker writes there (psABI of x86-64, 5.2 "Procedure Linkage Table"; of i386, the same; ELF for the Arm 64-bit
# Architecture, "Procedure Linkage Table"). This search finds stubs whatever a linker puts around the jump, in any
# order. Names are those of GNU's and LLVM's objdump: ``name@plt``.


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


# -- Tables of ELF, PE and PDB files


def symbolize(files: DebugFiles, address: NDArray[np.uint64]) -> Names:
    """The symbols that ``address`` belongs to. Raises `FormatError` or `OSError`."""
    return symbols_of(files).by_address().symbolize(address)


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols. Raises `FormatError` or `OSError`."""
    return symbols_of(files).table()


def symbols_of(files: DebugFiles, binary: Binary | None = None, debug: Binary | None = None) -> Symbols:
    """All symbols of a module; addresses in a PE file count from the image's base.

    ``binary`` and ``debug`` are the files' contents where they are open already.
    """
    if files.kind == "elf":
        debug = debug or (open_binary(files.debug) if files.debug else None)
        main = binary or (open_binary(files.binary) if files.binary else debug)
        return elf_symbols(main, debug) if main else Symbols.empty()
    if files.debug:
        return pdb_symbols(File(files.debug))
    return coff_symbols(binary or open_binary(files.binary))


# -- ELF symbol tables as columns (System V gABI, chapter 4, "Symbol Table")
#
# The choice of symbols and of one name for each address is that of llvm-symbolizer (``SymbolizableObjectFile``):
# symbols of sections that are loaded, of the types NOTYPE, OBJECT, FUNC and GNU_IFUNC, no mapping symbols; of several
# for one address the largest, of equal ones the last in the table.


SYMBOLS = {
    32: np.dtype([("name", "u4"), ("value", "u4"), ("size", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2")]),
    64: np.dtype([("name", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2"), ("value", "u8"), ("size", "u8")]),
}
"""``Elf32_Sym`` and ``Elf64_Sym``; the names lack ``st_``."""
NOTYPE, OBJECT, FUNC, GNU_IFUNC = 0, 1, 2, 10  # st_info & 15
LOCAL = 0  # st_info >> 4
UNDEF = 0  # st_shndx

MAPPING = {"arm": ("$a", "$d", "$t"), "aarch64": ("$d", "$x"), "riscv": ("$d", "$x", ".L0 ")}
"""Machine -> first letters of mapping symbols, which mark code and data (psABIs of those processors)."""


def elf_symbols(binary: Binary, debug: Binary | None = None) -> Symbols:
    """The symbols of a module: ``.symtab`` of the binary or of its debug file, else ``.dynsym`` and MiniDebugInfo; and
    the stubs of its calls to other modules, which are in no table."""
    found = _elf_tables(binary, debug)
    return Symbols.join([found, stub_symbols(binary, found)])


def defines_data(binary: Binary, name: bytes) -> bool:
    """Whether the symbol table of an ELF file has ``name`` as data that is loaded."""
    at = binary.section(".strtab").raw.find(b"\0%s\0" % name)
    if at < 0:
        return False
    found = _read_elf(binary, ".symtab", ".strtab")
    return bool(((found.name == at + 1) & ~found.code).any())


def _elf_tables(binary: Binary, debug: Binary | None) -> Symbols:
    for file in (binary, debug):
        if file and file.has(".symtab"):
            found = _read_elf(file, ".symtab", ".strtab")
            if len(found):
                return found
    mini = unpack_xz(binary.section(".gnu_debugdata"), binary.name)
    more = [_read_elf(mini, ".symtab", ".strtab")] if mini else []
    return Symbols.join([_read_elf(binary, ".dynsym", ".dynstr"), *more])


def _read_elf(binary: Binary, name: str, strings: str) -> Symbols:
    space, names = binary.section(name), binary.section(strings)
    fields = SYMBOLS[binary.image.bits].newbyteorder(binary.order)
    table = space.data[: space.size // fields.itemsize * fields.itemsize].view(fields)
    kind, number = table["info"] & 15, table["shndx"].astype(np.int64)
    flags = np.array([*(int(s.flags) for s in binary.image.sections), 0])
    known = (number != UNDEF) & (number < len(flags) - 1)
    section_flags = flags[np.where(known, number, len(flags) - 1)]
    wanted = known & np.isin(kind, (NOTYPE, OBJECT, FUNC, GNU_IFUNC)) & (section_flags & SegmentFlags.READ != 0)
    wanted &= table["name"] < max(1, names.size)
    row = np.flatnonzero(wanted)
    row = row[~_is_mapping(binary, names.raw, table["name"][row], kind[row])]
    start = table["value"][row].astype(np.uint64)
    if binary.image.machine == "arm":  # the lowest bit of a function says that it is Thumb code
        start &= ~(np.isin(kind[row], (FUNC, GNU_IFUNC)).astype(np.uint64))
    runs = section_flags[row] & SegmentFlags.EXECUTE != 0
    code = np.isin(kind[row], (FUNC, GNU_IFUNC)) | (kind[row] == NOTYPE) & runs
    return Symbols(
        start=start,
        size=table["size"][row].astype(np.uint64),
        name=table["name"][row].astype(np.int64),
        code=code,
        public=table["info"][row] >> 4 != LOCAL,
        strings=names.raw,
    )


def _is_mapping(
    binary: Binary, strings: bytes | bytearray, name: NDArray[np.integer], kind: NDArray[np.integer]
) -> NDArray[np.bool_]:
    prefixes = MAPPING.get(binary.image.machine)
    found = np.zeros(len(name), bool)
    if prefixes:
        for i in np.flatnonzero(kind == NOTYPE):
            at = int(name[i])
            found[i] = any(strings.startswith(p.encode(), at) for p in prefixes) or strings[at : at + 1] == b"\0"
    return found


# -- COFF symbol tables and export tables of PE files (Microsoft, "PE Format"). Addresses count from the image's base


SYMBOL = np.dtype([
    ("Zeroes", "<u4"), ("Offset", "<u4"), ("Value", "<u4"), ("SectionNumber", "<i2"), ("Type", "<u2"),
    ("StorageClass", "u1"), ("NumberOfAuxSymbols", "u1"),
])  # fmt: skip
FUNCTION = 0x20  # Type & 0xf0: IMAGE_SYM_DTYPE_FUNCTION
EXTERNAL, STATIC = 2, 3  # StorageClass
EXPORT_DIRECTORY = np.dtype([
    ("Characteristics", "<u4"), ("TimeDateStamp", "<u4"), ("MajorVersion", "<u2"), ("MinorVersion", "<u2"),
    ("Name", "<u4"), ("Base", "<u4"), ("NumberOfFunctions", "<u4"), ("NumberOfNames", "<u4"),
    ("AddressOfFunctions", "<u4"), ("AddressOfNames", "<u4"), ("AddressOfNameOrdinals", "<u4"),
])  # fmt: skip
EXPORT, EXCEPTION = 0, 3  # rows of the data directories
RUNTIME_FUNCTION = {"x86_64": 12, "aarch64": 8}
"""Machine -> bytes of an entry of the exception table, which begins with the address of a function."""


def coff_symbols(binary: Binary) -> Symbols:
    """The symbols of a PE file: its COFF symbol table, else the exported functions."""
    found = _coff_table(binary)
    return found if len(found) else _exports(binary)


def _coff_table(binary: Binary) -> Symbols:
    source = binary.source
    header = pe_headers(source).file
    at, count = header["PointerToSymbolTable"], header["NumberOfSymbols"]
    if not at or not count:
        return Symbols.empty()
    header.require(at, count * SYMBOL.itemsize, "NumberOfSymbols")
    space = Space.part(source, at, count * SYMBOL.itemsize, "<", "COFF symbols")
    table = space.data[: space.size].view(SYMBOL)
    strings_from = at + space.size
    strings = Space.part(source, strings_from, source.size - strings_from, "<", "COFF strings")
    sections = binary.image.sections
    base = np.array([s.vaddr - binary.image.image_base for s in sections], np.int64)
    row = _main_records(table["NumberOfAuxSymbols"])
    number = table["SectionNumber"][row].astype(np.int64)
    # A static symbol with auxiliary records and no type describes a section.
    describes = (
        (table["StorageClass"][row] == STATIC) & (table["NumberOfAuxSymbols"][row] > 0) & (table["Type"][row] == 0)
    )
    row = row[(number > 0) & (number <= len(sections)) & ~describes]
    # The last one of an address counts: a function rather than a label of a linker script.
    row = row[np.argsort(table["Type"][row] & 0xF0 == FUNCTION, kind="stable")]
    number = table["SectionNumber"][row].astype(np.int64) - 1
    short = np.zeros((len(row), 9), np.uint8)
    short[:, :8] = table[row].view(np.uint8).reshape(len(row), SYMBOL.itemsize)[:, :8] if len(row) else 0
    long = table["Zeroes"][row] == 0
    name = np.where(long, table["Offset"][row].astype(np.int64), len(strings.raw) + 9 * np.arange(len(row)))
    runs = np.array([bool(s.flags & SegmentFlags.EXECUTE) for s in sections], bool)
    symbols = Symbols(
        start=(base[number] + table["Value"][row]).astype(np.uint64),
        size=np.zeros(len(row), np.uint64),
        name=name,
        code=runs[number],
        public=table["StorageClass"][row] == EXTERNAL,
        strings=bytes(strings.raw) + short.tobytes(),
    )
    return until_next(symbols, _ends(binary))


def _main_records(following: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Rows that are symbols: a symbol states how many auxiliary records follow."""
    rows, at, counts = [], 0, following.tolist()
    while at < len(counts):
        rows.append(at)
        at += 1 + counts[at]
    return np.array(rows, np.int64)


def _exports(binary: Binary) -> Symbols:
    """Exported functions. Each reaches to the next one, or to the next function of the exception table."""
    address, size = _directory(binary, EXPORT)
    space = _at(binary, address)
    if not size or space.size < EXPORT_DIRECTORY.itemsize:
        return Symbols.empty()
    table = space.data[: EXPORT_DIRECTORY.itemsize].view(EXPORT_DIRECTORY)[0]
    functions, names, ordinals = (
        _words(binary, int(table[place]), int(table[count]), code)
        for place, count, code in (
            ("AddressOfFunctions", "NumberOfFunctions", "<u4"),
            ("AddressOfNames", "NumberOfNames", "<u4"),
            ("AddressOfNameOrdinals", "NumberOfNames", "<u2"),
        )
    )
    known = min(len(names), len(ordinals))
    names, ordinals = names[:known], ordinals[:known]
    inside = ordinals < len(functions)
    start, name = functions[ordinals[inside]].astype(np.int64), names[inside].astype(np.int64)
    forwarded = (start >= address) & (start < address + size)
    start, name = start[~forwarded], name[~forwarded]
    texts = [t.encode("utf-8", "backslashreplace") for t in strings_at(space.raw, (name - address).tolist())]
    runs = _is_code(binary, start)
    found = [(s, 0, c, True, t) for s, c, t in zip(start.tolist(), runs.tolist(), texts, strict=True) if t]
    return until_next(Symbols.of(found), np.concatenate([_ends(binary), _function_starts(binary)]))


def _function_starts(binary: Binary) -> NDArray[np.uint64]:
    width = RUNTIME_FUNCTION.get(binary.image.machine)
    address, size = _directory(binary, EXCEPTION)
    if not width or not size:
        return np.empty(0, np.uint64)
    words = _words(binary, address, size // width * width // 4, "<u4")
    return words[:: width // 4].astype(np.uint64)


def _directory(binary: Binary, row: int) -> tuple[int, int]:
    """(address, size) of a data directory; zeros where there is none."""
    entry = pe_headers(binary.source).directory(row)
    return (entry["VirtualAddress"], entry["Size"]) if entry else (0, 0)


def _at(binary: Binary, address: int) -> Space:
    """The bytes from ``address`` to the end of its section; empty where no section has it."""
    for section in binary.image.sections:
        inside = address - (section.vaddr - binary.image.image_base)
        if section.file_size and 0 <= inside < section.file_size:
            return Space.part(binary.source, section.offset + inside, section.file_size - inside, "<", section.name)
    return Space.of(b"", name="exports", file=binary.name)


def _words(binary: Binary, address: int, count: int, code: str) -> NDArray[np.unsignedinteger]:
    space = _at(binary, address)
    width = np.dtype(code).itemsize
    if count * width > space.size:
        raise space.bad("a table longer than its section", address, "export table", count)
    return space.data[: count * width].view(code)


def _is_code(binary: Binary, address: NDArray[np.int64]) -> NDArray[np.bool_]:
    found = np.zeros(len(address), bool)
    for section in binary.image.sections:
        if section.flags & SegmentFlags.EXECUTE:
            inside = address - (section.vaddr - binary.image.image_base)
            found |= (inside >= 0) & (inside < section.size)
    return found


def _ends(binary: Binary) -> NDArray[np.uint64]:
    base = binary.image.image_base
    return np.array([s.vaddr - base + max(s.size, s.file_size) for s in binary.image.sections], np.uint64)


# -- Functions of a PDB: public symbols, and procedures of its modules (LLVM documentation, "The PDB File Format")
#
# Public symbols have linkage names and no sizes, and only functions that other modules may call have one. Procedures
# have sizes and plain names. A function gets the linkage name where it has both.


DBI = np.dtype([
    ("VersionSignature", "<i4"), ("VersionHeader", "<u4"), ("Age", "<u4"), ("GlobalStreamIndex", "<u2"),
    ("BuildNumber", "<u2"), ("PublicStreamIndex", "<u2"), ("PdbDllVersion", "<u2"), ("SymRecordStream", "<u2"),
    ("PdbDllRbld", "<u2"), ("ModInfoSize", "<i4"), ("SectionContributionSize", "<i4"), ("SectionMapSize", "<i4"),
    ("SourceInfoSize", "<i4"), ("TypeServerMapSize", "<i4"), ("MFCTypeServerIndex", "<u4"),
    ("OptionalDbgHeaderSize", "<i4"), ("ECSubstreamSize", "<i4"), ("Flags", "<u2"), ("Machine", "<u2"),
    ("Padding", "<u4"),
])  # fmt: skip
BEFORE_DEBUG_HEADER = (
    "ModInfoSize",
    "SectionContributionSize",
    "SectionMapSize",
    "SourceInfoSize",
    "TypeServerMapSize",
    "ECSubstreamSize",
)
"""The substreams, in their order, before the one that lists the debug streams."""
SECTION_HEADERS = 5  # row of that list
SECTION = np.dtype([("Name", "S8"), ("VirtualSize", "<u4"), ("VirtualAddress", "<u4"), ("rest", "V24")])

S_PUB32, S_LPROC32, S_GPROC32, S_LPROC32_ID, S_GPROC32_ID = 0x110E, 0x110F, 0x1110, 0x1146, 0x1147
PROCEDURES = frozenset({S_LPROC32, S_GPROC32, S_LPROC32_ID, S_GPROC32_ID})
PUBLIC = Struct("<IIH")  # flags, offset, segment; the name follows
PROCEDURE = Struct("<IIIIIIIIHB")  # parent, end, next, size, debug start, debug end, type, offset, segment, flags
IS_CODE = 1 | 2  # flags of S_PUB32: code, function
RECORD = Struct("<HH")
MODULE = Struct("<HI")  # stream and bytes of symbols, at 34 of a module's record
MODULE_SIZE = 64
NO_STREAM = 0xFFFF
GLOBALS = frozenset({S_GPROC32, S_GPROC32_ID})


def pdb_symbols(source: Source) -> Symbols:
    """The functions and public symbols of the PDB in ``source``, by addresses that count from the image's base."""
    streams = PdbStreams(source)
    space = streams.stream(DBI_STREAM, "DBI")
    if space.size < DBI.itemsize:
        raise space.bad("shorter than its header", 0, "DBI", space.size)
    header = space.data[: DBI.itemsize].view(DBI)[0]
    at = DBI.itemsize
    for name in BEFORE_DEBUG_HEADER:
        size = int(header[name])
        if not 0 <= size <= space.size - at:
            raise space.bad("a substream longer than the remaining data", at, name, size)
        at += size
    listed = space.read(at + 2 * np.arange(SECTION_HEADERS + 1), 2)
    sections = streams.stream(int(listed[SECTION_HEADERS]), "SectionHeaders")
    table = sections.data[: sections.size // SECTION.itemsize * SECTION.itemsize].view(SECTION)
    bases = table["VirtualAddress"].astype(np.int64).tolist()

    found: list[tuple[int, int, bool, bool, bytes]] = []
    linkage: dict[int, bytes] = {}
    for code, segment, offset, called in _publics(streams.stream(int(header["SymRecordStream"]), "SymRecords")):
        if 0 < segment <= len(bases):
            start = bases[segment - 1] + offset
            linkage.setdefault(start, called)
            found.append((start, 0, code, True, called))
    known = set()
    for stream, size in _modules(space, DBI.itemsize, int(header["ModInfoSize"])):
        for kind, segment, offset, length, called in _procedures(streams.stream(stream, "ModuleSymbols"), size):
            if 0 < segment <= len(bases):
                start = bases[segment - 1] + offset
                known.add(start)
                found.append((start, length, True, kind in GLOBALS, linkage.get(start, called)))
    found = [f for f in found if f[1] or f[0] not in known]
    ends = [base + size for base, size in zip(bases, table["VirtualSize"].tolist(), strict=True)]
    return until_next(Symbols.of(found), np.array(ends, np.uint64))


def _records(space: Space, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(kind, offset of its fields, offset of the next one) of each record. Raises `FormatError`."""
    while at + RECORD.size <= end:
        length, kind = RECORD.unpack_from(space.raw, at)
        following = at + 2 + length
        if length < 2 or following > end:
            raise space.bad("a record longer than the remaining data", at, "RecordLen", length)
        yield kind, at + RECORD.size, following
        at = following


def _publics(space: Space) -> Iterator[tuple[bool, int, int, bytes]]:
    for kind, at, end in _records(space, 0, space.size):
        if kind == S_PUB32 and end - at > PUBLIC.size:
            flags, offset, segment = PUBLIC.unpack_from(space.raw, at)
            yield bool(flags & IS_CODE), segment, offset, _name(space, at + PUBLIC.size, end)


def _modules(space: Space, at: int, size: int) -> Iterator[tuple[int, int]]:
    """(stream, bytes of symbols) of each module that has any."""
    end = at + size
    while at + MODULE_SIZE < end:
        stream, symbols = MODULE.unpack_from(space.raw, at + 34)
        name = space.raw.find(b"\0", at + MODULE_SIZE, end)
        path = space.raw.find(b"\0", name + 1, end) if name >= 0 else -1
        if path < 0:
            raise space.bad("a module without its names", at, "ModuleName", stream)
        if stream != NO_STREAM and symbols:
            yield stream, symbols
        at += -(-(path + 1 - at) // 4) * 4


def _procedures(space: Space, size: int) -> Iterator[tuple[int, int, int, int, bytes]]:
    """(kind, segment, offset, size, name) of each procedure of a module; the first four bytes are a signature."""
    for kind, at, end in _records(space, 4, min(size, space.size)):
        if kind in PROCEDURES and end - at > PROCEDURE.size:
            fields = PROCEDURE.unpack_from(space.raw, at)
            yield kind, fields[8], fields[7], fields[3], _name(space, at + PROCEDURE.size, end)


def _name(space: Space, at: int, end: int) -> bytes:
    stop = space.raw.find(b"\0", at, end)
    return bytes(space.raw[at : stop if stop >= 0 else end])
