"""ELF symbol tables as columns (System V gABI, chapter 4, "Symbol Table").

The choice of symbols and of one name for each address is that of llvm-symbolizer (``SymbolizableObjectFile``): symbols
of sections that are loaded, of the types NOTYPE, OBJECT, FUNC and GNU_IFUNC, no mapping symbols; of several for one
address the largest, of equal ones the last in the table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...binaries.sections import Binary, unpack_xz
from .plt import stub_symbols
from .symbols import Symbols

__all__ = ["elf_symbols"]

WORDS = {  # st_name and so on, in the order of each class
    32: [("name", "u4"), ("value", "u4"), ("size", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2")],
    64: [("name", "u4"), ("info", "u1"), ("other", "u1"), ("shndx", "u2"), ("value", "u8"), ("size", "u8")],
}
NOTYPE, OBJECT, FUNC, GNU_IFUNC = 0, 1, 2, 10  # st_info & 15
LOCAL, GLOBAL = 0, 1  # st_info >> 4
UNDEF, LORESERVE = 0, 0xFF00  # st_shndx
SHF_ALLOC, SHF_EXECINSTR = 2, 4

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
            found = _read(file, ".symtab", ".strtab")
            if len(found):
                return found
    mini = unpack_xz(binary.section(".gnu_debugdata"), binary.name)
    more = [_read(mini, ".symtab", ".strtab")] if mini else []
    return Symbols.join([_read(binary, ".dynsym", ".dynstr"), *more])


def _read(binary: Binary, name: str, strings: str) -> Symbols:
    space, names = binary.section(name), binary.section(strings)
    fields = np.dtype(
        [(field, (binary.order + code) if code != "u1" else code) for field, code in WORDS[binary.image.bits]]
    )
    table = space.data[: space.size // fields.itemsize * fields.itemsize].view(fields)
    kind, number = table["info"] & 15, table["shndx"].astype(np.int64)
    flags = np.array([*binary.flags, 0], np.uint64)
    known = (number != UNDEF) & (number < len(flags) - 1)
    section_flags = flags[np.where(known, number, len(flags) - 1)]
    wanted = known & np.isin(kind, (NOTYPE, OBJECT, FUNC, GNU_IFUNC)) & (section_flags & SHF_ALLOC != 0)
    wanted &= table["name"] < max(1, names.size)
    row = np.flatnonzero(wanted)
    row = row[~_is_mapping(binary, names.raw, table["name"][row], kind[row])]
    start = table["value"][row].astype(np.uint64)
    if binary.image.machine == "arm":  # the lowest bit of a function says that it is Thumb code
        start &= ~(np.isin(kind[row], (FUNC, GNU_IFUNC)).astype(np.uint64))
    code = np.isin(kind[row], (FUNC, GNU_IFUNC)) | (kind[row] == NOTYPE) & (section_flags[row] & SHF_EXECINSTR != 0)
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
