"""ELF files: headers, load segments, sections, build id and debug link (System V gABI; GDB manual, 18.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import FormatError
from ..model import Source
from .elf_layout import CLASSES, IDENT, KINDS, MACHINES, ORDERS, PF, PN_XNUM, PT, SHF, SHN, SHT, ElfClass
from .elf_notes import build_id
from .image import DebugLink, Image, Section, Segment, SegmentFlags
from .layout import ByteOrder, Record, Strings, read_exactly, text_of

__all__ = ["read_elf"]

LINK_LIMIT = 4096 + 8
"""Longest ``.gnu_debuglink`` in bytes: a file name (``PATH_MAX``), its padding and the CRC."""


@dataclass(frozen=True, slots=True)
class _Elf:
    """A file whose ELF header was read."""

    source: Source
    layout: ElfClass
    order: ByteOrder
    ehdr: Record


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


def _section_headers(elf: _Elf) -> Iterator[Record]:
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


def _program_headers(elf: _Elf, sections: list[Record]) -> Iterator[Record]:
    """All program headers; 0xffff and more are counted in ``sh_info`` of section 0 (gABI, ``e_phnum``)."""
    ehdr, layout = elf.ehdr, elf.layout.phdr
    owner, field, count = ehdr, "e_phnum", ehdr["e_phnum"]
    if count == PN_XNUM:
        if not sections:
            raise ehdr.bad("e_phnum", "the number of program headers is in section 0, and there are no sections")
        owner, field, count = sections[0], "sh_info", sections[0]["sh_info"]
    if count == 0:
        return iter(())
    if ehdr["e_phentsize"] != layout.size:
        raise ehdr.bad("e_phentsize", f"program headers have {layout.size} bytes")
    return layout.table(owner, field, ehdr["e_phoff"], count, elf.order)


def _section_names(elf: _Elf, headers: list[Record]) -> Iterator[str]:
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


def _section(header: Record, name: str) -> Section:
    flags = SegmentFlags.of(header["sh_flags"], SHF)
    return Section(
        name=name,
        vaddr=header["sh_addr"],
        size=header["sh_size"],
        offset=header["sh_offset"],
        file_size=0 if header["sh_type"] in (SHT.NULL, SHT.NOBITS) else header["sh_size"],
        flags=flags if flags & SegmentFlags.READ else SegmentFlags(0),  # without SHF_ALLOC it takes no memory
    )


def _segment(header: Record, bits: int) -> Segment:
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


def _base(header: Record) -> int:
    return header["p_vaddr"] - header["p_vaddr"] % max(1, header["p_align"])


def _debug_link(elf: _Elf, headers: list[Record], sections: tuple[Section, ...]) -> DebugLink | None:
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
            file=elf.source.name, offset=section.offset, field=".gnu_debuglink", value=data[:64],
        )  # fmt: skip
    return DebugLink(text_of(data[:end]), int.from_bytes(data[crc : crc + 4], elf.order))
