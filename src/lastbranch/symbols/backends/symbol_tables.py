"""Symbol tables only: names of functions, no lines. In-tree, for ELF, PE and PDB."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...binaries import SegmentFlags
from ...binaries.files import File, Space, strings_at
from ...binaries.pe import pe_headers
from ...binaries.sections import Binary, open_binary, unpack_xz
from ..model import DebugFiles, FunctionTable, Names
from .plt import stub_symbols
from .symbols import Symbols, until_next

__all__ = ["elf_symbols", "functions", "resolve", "symbols_of"]


def resolve(files: DebugFiles, address: NDArray[np.uint64]) -> Names:
    """The symbols that ``address`` belongs to. Raises `FormatError` or `OSError`."""
    return symbols_of(files).by_address().resolve(address)


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols. Raises `FormatError` or `OSError`."""
    return symbols_of(files).table()


def symbols_of(files: DebugFiles, binary: Binary | None = None, debug: Binary | None = None) -> Symbols:
    """All symbols of a module; those of a PE file by addresses that count from the image's base.

    ``binary`` and ``debug`` are the files' contents where they are open already.
    """
    if files.kind == "elf":
        debug = debug or (open_binary(files.debug) if files.debug else None)
        main = binary or (open_binary(files.binary) if files.binary else debug)
        return elf_symbols(main, debug) if main else Symbols.empty()
    if files.debug:
        from .pdb import pdb_symbols

        return pdb_symbols(File(files.debug))

    return coff_symbols(binary or open_binary(files.binary))


# -- ELF symbol tables as columns (System V gABI, chapter 4, "Symbol Table")
#
# The choice of symbols and of one name for each address is that of llvm-symbolizer (``SymbolizableObjectFile``):
# symbols of sections that are loaded, of the types NOTYPE, OBJECT, FUNC and GNU_IFUNC, no mapping symbols; of several
# for one address the largest, of equal ones the last in the table.


WORDS = {  # st_name and so on, in the order of each class
    32: [("name", "u4"), ("value", "u4"), ("size", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2")],
    64: [("name", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2"), ("value", "u8"), ("size", "u8")],
}
NOTYPE, OBJECT, FUNC, GNU_IFUNC = 0, 1, 2, 10  # st_info & 15
LOCAL, GLOBAL = 0, 1  # st_info >> 4
UNDEF, LORESERVE = 0, 0xFF00  # st_shndx

MAPPING = {"arm": ("$a", "$d", "$t"), "aarch64": ("$d", "$x"), "riscv": ("$d", "$x", ".L0 ")}
"""Machine -> what names of symbols begin with that only tell code from data (psABIs of those processors)."""


def elf_symbols(binary: Binary, debug: Binary | None = None) -> Symbols:
    """The symbols of a module: ``.symtab`` of the binary or of its debug file, else ``.dynsym`` and MiniDebugInfo;
    and the stubs of its calls of other modules' functions, which are in no table."""
    found = _tables(binary, debug)
    return Symbols.join([found, stub_symbols(binary, found)])


def _tables(binary: Binary, debug: Binary | None) -> Symbols:
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
    fields = np.dtype(
        [(field, (binary.order + code) if code != "u1" else code) for field, code in WORDS[binary.image.bits]]
    )
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
    found = _table(binary)
    return found if len(found) else _exports(binary)


def _table(binary: Binary) -> Symbols:
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
    # Of several at one address the last one is taken: a function rather than a label that a linker script makes.
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
    """Rows that are symbols: each says how many auxiliary records follow it."""
    rows, at, counts = [], 0, following.tolist()
    while at < len(counts):
        rows.append(at)
        at += 1 + counts[at]
    return np.array(rows, np.int64)


def _exports(binary: Binary) -> Symbols:
    """Exported functions. None has a size: it goes to the next one, or to where the exception table begins another."""
    address, size = _directory(binary, EXPORT)
    space = _at(binary, address)
    if not size or space.size < EXPORT_DIRECTORY.itemsize:
        return Symbols.empty()
    table = space.data[: EXPORT_DIRECTORY.itemsize].view(EXPORT_DIRECTORY)[0]
    functions, names, ordinals = (
        _words(binary, int(table[place]), int(table[count]), code)
        for place, count, code in (
            ("AddressOfFunctions", "NumberOfFunctions", "<u4"), ("AddressOfNames", "NumberOfNames", "<u4"),
            ("AddressOfNameOrdinals", "NumberOfNames", "<u2"),
        )
    )  # fmt: skip
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
        raise space.bad("a table that is longer than its section", address, "export table", count)
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
