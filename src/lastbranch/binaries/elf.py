"""ELF files: headers, load segments, sections, build id and debug link (System V gABI; GDB manual, 18.3)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from ..errors import FormatError
from ..model import BytesSource, Source
from .image import DebugLink, Image, Section, Segment, SegmentFlags
from .layout import ByteOrder, Layout, Strings, Structure, read_exactly, text_of

__all__ = ["CLASSES", "build_id_in", "read_elf"]


# -- Declarations, in the order and with the names of the System V gABI (4.1, chapters 4 and 5; gabi 2013 draft)
#
# The 32- and the 64-bit class have the same fields with other sizes, and program headers in another order.


IDENT = Layout(
    "e_ident",
    ("EI_MAG", "4s"), ("EI_CLASS", "B"), ("EI_DATA", "B"), ("EI_VERSION", "B"),  # 0x00
    ("EI_OSABI", "B"), ("EI_ABIVERSION", "B"), ("EI_PAD", "7s"),  # 0x07
)  # fmt: skip

# "N" is a number as wide as an address of the class.
EHDR = (
    ("e_ident", "16s"), ("e_type", "H"), ("e_machine", "H"), ("e_version", "I"),
    ("e_entry", "N"), ("e_phoff", "N"), ("e_shoff", "N"), ("e_flags", "I"),
    ("e_ehsize", "H"), ("e_phentsize", "H"), ("e_phnum", "H"),
    ("e_shentsize", "H"), ("e_shnum", "H"), ("e_shstrndx", "H"),
)  # fmt: skip

SHDR = (
    ("sh_name", "I"), ("sh_type", "I"), ("sh_flags", "N"), ("sh_addr", "N"), ("sh_offset", "N"), ("sh_size", "N"),
    ("sh_link", "I"), ("sh_info", "I"), ("sh_addralign", "N"), ("sh_entsize", "N"),
)  # fmt: skip

PHDR32 = (
    ("p_type", "I"), ("p_offset", "I"), ("p_vaddr", "I"), ("p_paddr", "I"), ("p_filesz", "I"), ("p_memsz", "I"),
    ("p_flags", "I"), ("p_align", "I"),
)  # fmt: skip

PHDR64 = (
    ("p_type", "I"), ("p_flags", "I"), ("p_offset", "Q"), ("p_vaddr", "Q"), ("p_paddr", "Q"), ("p_filesz", "Q"),
    ("p_memsz", "Q"), ("p_align", "Q"),
)  # fmt: skip

NOTE = Layout("Elf_Nhdr", ("namesz", "I"), ("descsz", "I"), ("type", "I"))  # the same in both classes


class ElfClass:
    """The structures of one ``EI_CLASS``."""

    def __init__(self, bits: Literal[32, 64], program_header: tuple[tuple[str, str], ...]) -> None:
        word = {32: "I", 64: "Q"}[bits]
        self.bits: Literal[32, 64] = bits
        self.ehdr, self.phdr, self.shdr = (
            Layout(f"Elf{bits}_{name}", *((field, code.replace("N", word)) for field, code in fields))
            for name, fields in (("Ehdr", EHDR), ("Phdr", program_header), ("Shdr", SHDR))
        )


CLASSES = {1: ElfClass(32, PHDR32), 2: ElfClass(64, PHDR64)}  # EI_CLASS
ORDERS: dict[int, ByteOrder] = {1: "little", 2: "big"}  # EI_DATA
KINDS = {0: "none", 1: "relocatable", 2: "executable", 3: "shared object", 4: "core"}  # e_type

MACHINES = {  # e_machine: names as `uname -m` has them, without byte order and width
    3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv",
    258: "loongarch",
}  # fmt: skip

PN_XNUM = 0xFFFF  # e_phnum: the number is in sh_info of section 0


class SHN:
    """Special section numbers."""

    UNDEF, XINDEX = 0, 0xFFFF


class PT:
    """Values of p_type."""

    LOAD, NOTE = 1, 4


class SHT:
    """Values of sh_type."""

    NULL, STRTAB, NOTE, NOBITS = 0, 3, 7, 8


PF = {1: SegmentFlags.EXECUTE, 2: SegmentFlags.WRITE, 4: SegmentFlags.READ}  # bits of p_flags
SHF = {1: SegmentFlags.WRITE, 2: SegmentFlags.READ, 4: SegmentFlags.EXECUTE}  # sh_flags: WRITE, ALLOC, EXECINSTR
SHF_COMPRESSED = 0x800


# -- The build id of an ELF file: a note of type ``NT_GNU_BUILD_ID`` by "GNU" (gABI, Note Section; ld, --build-id)


NT_GNU_BUILD_ID = 3
OWNER = b"GNU\0"

NOTES_LIMIT = 1 << 16
"""Most notes to read in one file. A core file has some five for each thread, and no build id of its own."""

ID_LIMIT = 256
"""Longest build id in bytes; linkers write 8 to 32, and ``--build-id=0x...`` what the user gives."""


def build_id(programs: Sequence[Structure], sections: Sequence[Structure], order: ByteOrder) -> bytes | None:
    """The build id from the note segments, or else from the note sections; ``None`` if there is none.

    Sections come second: kernel modules and other relocatable files have no segments, and the program headers of some
    separate debug files are those of the program and point anywhere. So damage in one place raises `FormatError` only
    if no other place has an id.
    """
    budget = iter(range(NOTES_LIMIT))  # for all areas: a file can have many of them over the same bytes
    damage: FormatError | None = None
    for owner, begin, length, alignment in _areas(programs, sections):
        try:
            owner.require(owner[begin], owner[length], length)
            end = owner[begin] + owner[length]
            found = _walk(owner.source, owner[begin], end, alignment, order, budget)
        except FormatError as error:
            damage = damage or error
            continue
        if found:
            return found
    if damage is not None:
        raise damage
    return None


def build_id_in(notes: bytes) -> bytes:
    """The build id in ``notes``, which a running kernel shows for itself; empty if they have none."""
    try:
        return _walk(BytesSource(notes), 0, len(notes), 4, sys.byteorder, iter(range(NOTES_LIMIT))) or b""
    except FormatError:
        return b""


def _areas(programs: Sequence[Structure], sections: Sequence[Structure]) -> Iterator[tuple[Structure, str, str, int]]:
    """Segments and sections of notes: the header, its fields for offset and length, and the alignment of the notes."""
    for header in programs:
        if header["p_type"] == PT.NOTE:
            yield header, "p_offset", "p_filesz", header["p_align"]
    for header in sections:
        if header["sh_type"] == SHT.NOTE:
            yield header, "sh_offset", "sh_size", header["sh_addralign"]


def _walk(
    source: Source, offset: int, end: int, alignment: int, order: ByteOrder, budget: Iterator[int]
) -> bytes | None:
    """The build id among the notes from ``offset`` to ``end``; every note takes one item of ``budget``."""
    # gABI says 8 in 64-bit files. Linkers write 4, and 8 only where the header says so (.note.gnu.property).
    step = 8 if alignment == 8 else 4
    for _ in budget:
        if offset + NOTE.size > end:
            break
        note = NOTE.read(source, offset, order)
        name = offset + NOTE.size
        description = offset + _up(NOTE.size + note["namesz"], step)
        if name + note["namesz"] > end:
            raise note.bad("namesz", f"the note's name ends past its segment or section, at {end:#x}")
        if description + note["descsz"] > end and note["descsz"]:
            raise note.bad("descsz", f"the note's description ends past its segment or section, at {end:#x}")
        is_id = note["type"] == NT_GNU_BUILD_ID and note["namesz"] == len(OWNER) and note["descsz"] > 0
        if is_id and read_exactly(source, name, len(OWNER), "note name") == OWNER:
            if note["descsz"] > ID_LIMIT:
                raise note.bad("descsz", f"a build id has at most {ID_LIMIT} bytes")
            return read_exactly(source, description, note["descsz"], "build id")
        offset = description + _up(note["descsz"], step)  # at least a header further, so the walk ends
    return None


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


LINK_LIMIT = 4096 + 8
"""Longest ``.gnu_debuglink`` in bytes: a file name (``PATH_MAX``), its padding and the CRC."""


class _Elf(NamedTuple):
    """A file whose ELF header was read."""

    source: Source
    layout: ElfClass
    order: ByteOrder
    ehdr: Structure


def read_elf(source: Source) -> Image:
    """The ELF file in ``source``: either class, either byte order, every ``e_type``.

    Raises `FormatError` where a header, a count, a name or a note contradicts the specification or the file's size.
    The contents of segments and sections are not read, so a separate debug file, which lacks them, can be read too.
    """
    elf = _open(source)
    headers = list(_section_headers(elf))
    programs = list(_program_headers(elf, headers))
    loads = [header for header in programs if header["p_type"] == PT.LOAD]
    names = _section_names(elf, headers)
    sections = tuple(map(_section, headers, names))
    return Image(
        format="elf",
        bits=elf.layout.bits,
        byte_order=elf.order,
        machine=MACHINES.get(elf.ehdr["e_machine"], hex(elf.ehdr["e_machine"])),
        kind=KINDS.get(elf.ehdr["e_type"], hex(elf.ehdr["e_type"])),
        segments=tuple(_segment(header, elf.layout.bits) for header in loads),
        sections=sections,
        image_base=min((_base(header) for header in loads), default=0),
        entry=elf.ehdr["e_entry"],
        build_id=build_id(programs, headers, elf.order),
        debug_link=_debug_link(elf, headers, sections),
    )


def _open(source: Source) -> _Elf:
    ident = IDENT.read(source, 0, "little")
    if ident.raw("EI_MAG") != b"\x7fELF":
        raise ident.bad("EI_MAG", "not an ELF file")
    layout, order = CLASSES.get(ident["EI_CLASS"]), ORDERS.get(ident["EI_DATA"])
    if layout is None:
        raise ident.bad("EI_CLASS", "neither 32 (1) nor 64 bits (2)")
    if order is None:
        raise ident.bad("EI_DATA", "neither little (1) nor big endian (2)")
    return _Elf(source, layout, order, layout.ehdr.read(source, 0, order))


def _section_headers(elf: _Elf) -> Iterator[Structure]:
    """All section headers; 0xff00 and more are counted in ``sh_size`` of the first (gABI, ``e_shnum``)."""
    ehdr, layout = elf.ehdr, elf.layout.shdr
    if ehdr["e_shoff"] == 0:
        return iter(())
    owner, field, count = ehdr, "e_shnum", ehdr["e_shnum"]
    if count == 0:
        (owner,) = layout.table(ehdr, "e_shoff", ehdr["e_shoff"], 1, elf.order)
        field, count = "sh_size", owner["sh_size"]
    if count and ehdr["e_shentsize"] != layout.size:
        raise ehdr.bad("e_shentsize", f"section headers have {layout.size} bytes")
    return layout.table(owner, field, ehdr["e_shoff"], count, elf.order)


def _program_headers(elf: _Elf, sections: list[Structure]) -> Iterator[Structure]:
    """All program headers; 0xffff and more are counted in ``sh_info`` of section 0 (gABI, ``e_phnum``)."""
    ehdr, layout = elf.ehdr, elf.layout.phdr
    owner, field, count = ehdr, "e_phnum", ehdr["e_phnum"]
    if count == PN_XNUM:
        if not sections:
            raise ehdr.bad("e_phnum", "the number of program headers is in section 0, but there are no sections")
        owner, field, count = sections[0], "sh_info", sections[0]["sh_info"]
    if count == 0:
        return iter(())
    if ehdr["e_phentsize"] != layout.size:
        raise ehdr.bad("e_phentsize", f"program headers have {layout.size} bytes")
    return layout.table(owner, field, ehdr["e_phoff"], count, elf.order)


def _section_names(elf: _Elf, headers: list[Structure]) -> Iterator[str]:
    owner, field, number = elf.ehdr, "e_shstrndx", elf.ehdr["e_shstrndx"]
    if number == SHN.XINDEX and headers:
        owner, field, number = headers[0], "sh_link", headers[0]["sh_link"]
    if number == SHN.UNDEF or not headers:
        return ("" for _ in headers)
    if number >= len(headers):
        raise owner.bad(field, f"the section of names is not one of the {len(headers)} sections")
    table = headers[number]
    if table["sh_type"] != SHT.STRTAB:
        raise table.bad("sh_type", "the section of names is not a string table")
    table.require(table["sh_offset"], table["sh_size"], "sh_size")
    strings = Strings(elf.source, table["sh_offset"], table["sh_size"])
    return (strings.at(header["sh_name"], header, "sh_name") for header in headers)


def _section(header: Structure, name: str) -> Section:
    flags = SegmentFlags.of(header["sh_flags"], SHF)
    return Section(
        name=name,
        vaddr=header["sh_addr"],
        size=header["sh_size"],
        offset=header["sh_offset"],
        file_size=0 if header["sh_type"] in (SHT.NULL, SHT.NOBITS) else header["sh_size"],
        flags=flags if flags & SegmentFlags.READ else SegmentFlags(0),  # without SHF_ALLOC it takes no memory
        compressed=bool(header["sh_flags"] & SHF_COMPRESSED),
    )


def _segment(header: Structure, bits: int) -> Segment:
    # Addresses that wrap around would give link addresses no 64-bit column can hold.
    if header["p_vaddr"] + max(header["p_memsz"], header["p_filesz"]) > 1 << bits:
        raise header.bad("p_vaddr", f"a segment of {header['p_memsz']:#x} bytes ends past the {bits}-bit addresses")
    return Segment(
        vaddr=header["p_vaddr"],
        memory_size=header["p_memsz"],
        offset=header["p_offset"],
        file_size=header["p_filesz"],
        flags=SegmentFlags.of(header["p_flags"], PF),
    )


def _base(header: Structure) -> int:
    return header["p_vaddr"] - header["p_vaddr"] % max(1, header["p_align"])


def _debug_link(elf: _Elf, headers: list[Structure], sections: tuple[Section, ...]) -> DebugLink | None:
    """``.gnu_debuglink``: a name, zeros up to a multiple of 4, the CRC in the file's byte order."""
    number = next((n for n, section in enumerate(sections) if section.name == ".gnu_debuglink"), None)
    if number is None or sections[number].file_size == 0:
        return None
    header, section = headers[number], sections[number]
    header.require(section.offset, section.file_size, "sh_size")
    if section.file_size > LINK_LIMIT:
        raise header.bad("sh_size", f"a debug link has at most {LINK_LIMIT} bytes")
    data = read_exactly(elf.source, section.offset, section.file_size, ".gnu_debuglink")
    end = data.find(b"\0")
    crc = (end + 4) // 4 * 4  # the zero, then padding
    if end < 0 or crc + 4 > len(data):
        raise FormatError(
            "a debug link without its name or its CRC",
            file=elf.source.name,
            offset=section.offset,
            field=".gnu_debuglink",
            value=data[:64],
        )
    return DebugLink(text_of(data[:end]), int.from_bytes(data[crc : crc + 4], elf.order))
