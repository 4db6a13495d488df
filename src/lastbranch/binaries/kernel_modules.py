"""Kernel modules (``.ko``) as the kernel loads them: unpacked, laid out and relocated.

A module is a relocatable object: every section begins at address 0, and its code and debugging information lack the
addresses that relocations put in. Here it becomes a file with segments whose addresses count from where its code is
loaded, which is what the kernel reports as the address of a module. `as_loaded` makes this file, and all other code
reads the file as a library.

The layout is the kernel's (``layout_sections``, kernel/module/main.c): executable sections come first, in the order of
their headers and at their alignments; those whose names begin with ``.init`` are elsewhere. Relocations to symbols of
other modules and of the kernel are not in the file and stay out. (System V gABI, "Relocation"; x86-64 psABI; AAELF64.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, UnavailableError
from ..model import BytesSource, Source, read_at

__all__ = ["PACKED_SUFFIXES", "as_loaded", "module_name"]

_ELF, _RELOCATABLE, _SHARED = b"\x7fELF", 1, 3  # e_type
_WRITE, _ALLOC, _EXECUTE, _COMPRESSED = 1, 2, 4, 0x800  # sh_flags
_SYMTAB, _RELA, _NOBITS = 2, 4, 8  # sh_type
_RESERVED = 0xFF00  # st_shndx: SHN_LORESERVE; SHN_ABS and SHN_COMMON are above
_PAGE = 4096

_EHDR = np.dtype([
    ("ident", "S16"), ("type", "<u2"), ("machine", "<u2"), ("version", "<u4"), ("entry", "<u8"), ("phoff", "<u8"),
    ("shoff", "<u8"), ("flags", "<u4"), ("ehsize", "<u2"), ("phentsize", "<u2"), ("phnum", "<u2"),
    ("shentsize", "<u2"), ("shnum", "<u2"), ("shstrndx", "<u2"),
])  # fmt: skip
_SHDR = np.dtype([
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("addr", "<u8"), ("offset", "<u8"), ("size", "<u8"),
    ("link", "<u4"), ("info", "<u4"), ("addralign", "<u8"), ("entsize", "<u8"),
])  # fmt: skip
_PHDR = np.dtype([
    ("type", "<u4"), ("flags", "<u4"), ("offset", "<u8"), ("vaddr", "<u8"), ("paddr", "<u8"), ("filesz", "<u8"),
    ("memsz", "<u8"), ("align", "<u8"),
])  # fmt: skip
_SYM = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")])
_RELA_ENTRY = np.dtype([("offset", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])

_WORDS: dict[int, dict[int, tuple[int, bool]]] = {
    62: {1: (8, False), 2: (4, True), 4: (4, True), 10: (4, False), 11: (4, False), 24: (8, True)},  # x86-64
    183: {257: (8, False), 258: (4, False), 260: (8, True), 261: (4, True)},  # AArch64
}
"""e_machine -> type of relocation -> (bytes that it fills, whether they are relative to their own place)."""
_BRANCHES = {183: (282, 283)}
"""R_AARCH64_JUMP26 and CALL26: 26 bits of words in an instruction."""


# -- Compressed files


def as_loaded(source: Source) -> Source:
    """``source`` itself, or, for a kernel module (a relocatable ELF file of 64 bits, or an .xz, .zst or .gz file), the
    module as the kernel loads it.

    Raises `FormatError` where it cannot be unpacked or its tables contradict its size.
    """
    start = read_at(source, 0, 20)
    unpack = next((unpack for magic, unpack in _PACKED.items() if start.startswith(magic)), None)
    if unpack is not None:
        data = _unpack(source, unpack)
        if data[:4] != _ELF:
            raise FormatError("no ELF file is in it", file=source.name, offset=0, field="magic", value=data[:4])
        source, start = BytesSource(data, source.name), data[:20]
    if start[:7] != _ELF + b"\2\1\1" or int.from_bytes(start[16:18], "little") != _RELOCATABLE:
        return source
    return BytesSource(_make_loadable(bytearray(read_at(source, 0, source.size)), source.name), source.name)


def _unpack(source: Source, unpack: Callable[[bytes, int], bytes]) -> bytes:
    """The content, no more than the limits allow."""
    most = source.limits.expanded(source.size)
    try:
        data = unpack(read_at(source, 0, source.size), most + 1)
    except ValueError as error:
        raise FormatError(f"cannot be unpacked: {error}", file=source.name, offset=0, field="compression") from None
    if len(data) > most:
        reason = f"{source.size} compressed bytes become more than {most}"
        raise FormatError(reason, file=source.name, offset=0, field="size", value=len(data))
    return data


class _Decompressor(Protocol):
    """The common interface of lzma's and zlib's decompressors."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _unxz(packed: bytes, most: int) -> bytes:
    import lzma

    return _decompress(lzma.LZMADecompressor(memlimit=256 << 20), lzma.LZMAError, packed, most)


def _gunzip(packed: bytes, most: int) -> bytes:
    import zlib

    return _decompress(zlib.decompressobj(16 + zlib.MAX_WBITS), zlib.error, packed, most)


def _decompress(unpacker: _Decompressor, failure: type[Exception], packed: bytes, most: int) -> bytes:
    try:
        data = unpacker.decompress(packed, most)
    except failure as error:
        raise ValueError(str(error)) from None
    return _whole(data, unpacker.eof, most)


def _unzstd(packed: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        hint = "pip install zstandard, or unpack the file"
        raise UnavailableError("a module in a .zst file needs zstandard", hint=hint) from None
    try:
        unpacker = zstandard.ZstdDecompressor().stream_reader(packed)
        data = bytes(unpacker.read(most))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    size = zstandard.frame_content_size(packed)  # -1 where the frame does not say it
    return _whole(data, size < 0 or len(data) == size, most)


def _whole(data: bytes, complete: bool, most: int) -> bytes:
    if not complete and len(data) < most:
        raise ValueError("the compressed data end early")
    return data


_PACKED: dict[bytes, Callable[[bytes, int], bytes]] = {
    b"\xfd7zXZ\0": _unxz,
    b"\x28\xb5\x2f\xfd": _unzstd,
    b"\x1f\x8b\x08": _gunzip,
}
"""The first bytes of compressed files, and what unpacks so many bytes of them (CONFIG_MODULE_COMPRESS_XZ, _ZSTD,
_GZIP)."""

PACKED_SUFFIXES = ("", ".xz", ".zst", ".gz")
"""The suffixes that may follow ``.ko`` in the name of a module's file."""

_SUFFIXES = (".debug", ".zst", ".xz", ".gz", ".ko")


def module_name(name: str) -> str:
    """The kernel's name of a module: ``/lib/modules/R/kernel/net/nf-tables.ko.xz`` or ``[nf_tables]`` ->
    ``nf_tables``."""
    stem = name.replace("\\", "/").rpartition("/")[2].strip("[]")
    for end in _SUFFIXES:
        stem = stem.removesuffix(end)
    return stem.replace("-", "_")


# -- Layout and relocation


def _make_loadable(data: bytearray, name: str) -> bytearray:
    """The file with addresses and segments."""

    def table(what: str, kind: np.dtype[np.void], offset: int, count: int) -> NDArray[np.void]:
        if offset + count * kind.itemsize > len(data):
            reason = f"{count} entries of {kind.itemsize} bytes are past the end of the file"
            raise FormatError(reason, file=name, offset=offset, field=what, value=count)
        return np.frombuffer(data, kind, count, offset)

    header = table("e_ident", _EHDR, 0, 1)[0]
    if int(header["shentsize"]) != _SHDR.itemsize:
        raise FormatError(
            f"section headers have {_SHDR.itemsize} bytes",
            file=name,
            offset=58,
            field="e_shentsize",
            value=int(header["shentsize"]),
        )
    shoff = int(header["shoff"])
    count = int(header["shnum"]) or int(table("sh_size", _SHDR, shoff, 1)["size"][0])
    sections = table("e_shnum", _SHDR, shoff, count).copy()
    names = _names(data, sections, int(header["shstrndx"]))
    _lay_out(sections, names)
    code = np.flatnonzero((sections["flags"] & _EXECUTE != 0) & (sections["flags"] & _ALLOC != 0))
    core = [row for row in code.tolist() if not names[row].startswith(b".init") and sections["size"][row]]
    machine = int(header["machine"])
    for row in np.flatnonzero(sections["type"] == _RELA).tolist():
        rela, target, link = sections[row], int(sections["info"][row]), int(sections["link"][row])
        fits = 0 < target < count and 0 < link < count
        if not fits or sections["type"][target] == _NOBITS or sections["flags"][target] & _COMPRESSED:
            continue
        place, size = int(sections["offset"][target]), int(sections["size"][target])
        entries = table("sh_size", _RELA_ENTRY, int(rela["offset"]), int(rela["size"]) // _RELA_ENTRY.itemsize)
        table("sh_size", np.dtype("V1"), place, size)
        symbols = table("sh_size", _SYM, int(sections["offset"][link]), int(sections["size"][link]) // _SYM.itemsize)
        part = memoryview(data)[place : place + size]
        _relocate(machine, np.frombuffer(part, np.uint8), int(sections["addr"][target]), entries, symbols, sections)
    for row in np.flatnonzero(sections["type"] == _SYMTAB).tolist():
        number = int(sections["size"][row]) // _SYM.itemsize
        symbols = table("sh_size", _SYM, int(sections["offset"][row]), number)
        owner = symbols["shndx"].astype(np.int64)
        inside = (owner > 0) & (owner < min(count, _RESERVED))
        symbols["value"][inside] += sections["addr"][owner[inside]]
    joined = _join(data, sections, names)
    table("e_shnum", _SHDR, shoff, count)[:] = sections
    programs = np.zeros(len(core), _PHDR)
    programs["type"], programs["flags"], programs["align"] = 1, 5, 1  # PT_LOAD, readable and executable
    for mine, theirs in (("offset", "offset"), ("vaddr", "addr"), ("filesz", "size"), ("memsz", "size")):
        programs[mine] = sections[theirs][core]
    changed = table("e_ident", _EHDR, 0, 1)
    changed["type"], changed["phoff"] = _SHARED, len(data) + len(joined)
    changed["phnum"], changed["phentsize"] = len(core), _PHDR.itemsize
    del changed
    return bytearray(bytes(data) + joined + programs.tobytes())


_JOINED = (b".llvm_bb_addr_map", b".pseudo_probe")
"""Sections of which a relocatable file has one for each section of code; linkers make one of them."""


def _join(data: bytearray, sections: NDArray[np.void], names: list[bytes]) -> bytes:
    """Bytes to append to the file, which the first section of each of these names has instead of its own."""
    out = b""
    for wanted in _JOINED:
        rows = [row for row, name in enumerate(names) if name == wanted and sections["type"][row] != _NOBITS]
        if len(rows) < 2:
            continue
        parts = [bytes(data[int(s["offset"]) : int(s["offset"]) + int(s["size"])]) for s in sections[rows]]
        sections["offset"][rows[0]], sections["size"][rows] = len(data) + len(out), 0
        sections["size"][rows[0]] = sum(map(len, parts))
        out += b"".join(parts)
    return out


def _names(data: bytearray, sections: NDArray[np.void], strings: int) -> list[bytes]:
    if not 0 < strings < len(sections):
        return [b""] * len(sections)
    first, size = int(sections["offset"][strings]), int(sections["size"][strings])
    table = bytes(data[first : first + size])
    return [table[at : table.find(b"\0", at)] if at < len(table) else b"" for at in sections["name"].tolist()]


def _lay_out(sections: NDArray[np.void], names: list[bytes]) -> None:
    """Give the sections that are loaded their addresses: code from 0 on, all else after it, each where no other is."""
    flags = sections["flags"].astype(np.int64)
    loaded, code = flags & _ALLOC != 0, flags & _EXECUTE != 0
    init = np.array([name.startswith(b".init") for name in names], bool)
    groups = [code & ~init, ~code & ~init & (flags & _WRITE == 0), ~code & ~init & (flags & _WRITE != 0), init]
    sections["addr"] = 0
    at = 0
    for group in groups:
        for row in np.flatnonzero(loaded & group).tolist():
            align = max(1, int(sections["addralign"][row]))
            at = -(-at // align) * align
            sections["addr"][row] = at & (1 << 64) - 1
            at += int(sections["size"][row])
        at = -(-at // _PAGE) * _PAGE


def _relocate(
    machine: int,
    part: NDArray[np.uint8],
    address: int,
    entries: NDArray[np.void],
    symbols: NDArray[np.void],
    sections: NDArray[np.void],
) -> None:
    """Fill in the places of ``part``, a section at ``address``, whose symbols are in one of the ``sections``."""
    entries = entries[entries["symbol"] < len(symbols)]
    symbol = symbols[entries["symbol"]]
    owner = symbol["shndx"].astype(np.int64)
    known = (owner > 0) & (owner < min(len(sections), _RESERVED))
    entries, symbol, owner = entries[known], symbol[known], owner[known]
    value = symbol["value"] + sections["addr"][owner] + entries["addend"].view(np.uint64)
    place = entries["offset"]
    for kind, (width, relative) in _WORDS.get(machine, {}).items():
        rows = np.flatnonzero((entries["kind"] == kind) & (place <= np.uint64(max(0, len(part) - width))))
        if len(rows) and len(part) >= width:
            words = value[rows] - (place[rows] + np.uint64(address) if relative else np.uint64(0))
            bytes_of = np.ascontiguousarray(words.astype("<u8")).view(np.uint8).reshape(-1, 8)[:, :width]
            part[place[rows].astype(np.int64)[:, None] + np.arange(width)] = bytes_of
    rows = np.flatnonzero(np.isin(entries["kind"], _BRANCHES.get(machine, ())) & (place + np.uint64(4) <= len(part)))
    if len(rows):
        at = place[rows].astype(np.int64)[:, None] + np.arange(4)
        words = (value[rows] - place[rows] - np.uint64(address)).view(np.int64) >> 2
        old = np.ascontiguousarray(part[at]).view("<u4").reshape(-1)
        new = (old & np.uint32(0xFC000000)) | (words & 0x3FFFFFF).astype(np.uint32)
        part[at] = np.ascontiguousarray(new.astype("<u4")).view(np.uint8).reshape(-1, 4)
