"""Symbol tables of ELF files, PE files and PDBs: names of functions, no lines."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from ...binaries.files import File, Space, strings_at
from ...binaries.image import SegmentFlags
from ...binaries.pdb import DBI_STREAM, PdbStreams
from ...binaries.pe import pe_headers
from ...binaries.sections import Binary, open_binary, unpack_xz
from ...model import Source
from ..model import DebugFiles, FunctionTable, Names
from .plt import stub_symbols
from .symbols import Symbols, until_next

__all__ = ["defines_data", "elf_symbols", "functions", "pdb_symbols", "resolve", "symbols_of"]


def resolve(files: DebugFiles, address: NDArray[np.uint64]) -> Names:
    """The symbols that ``address`` belongs to. Raises `FormatError` or `OSError`."""
    return symbols_of(files).by_address().resolve(address)


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
