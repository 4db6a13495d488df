"""PE files: headers, sections and the identity of the PDB (Microsoft, "PE Format")."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..model import Source, read_at
from .image import Image, Section, Segment, SegmentFlags
from .layout import Layout, Strings, Structure, guid_of, text_of

if TYPE_CHECKING:
    from uuid import UUID

__all__ = ["PeHeaders", "pe_headers", "read_pe"]


# -- Declarations, in the order and with the names of Microsoft's "PE Format" specification (and ``winnt.h``)
#
# PE32 and PE32+ have the same fields; PE32+ lacks ``BaseOfData``, and four sizes and ``ImageBase`` have 64 bits.
# Everything is little-endian.


DOS_HEADER = Layout(
    "IMAGE_DOS_HEADER",
    ("e_magic", "2s"),
    ("e_cblp...e_res2", "58s"),
    ("e_lfanew", "I"),  # 0x00, 0x02, 0x3c
)

FILE_HEADER = Layout(
    "IMAGE_NT_HEADERS",
    ("Signature", "4s"),  # 0x00
    ("Machine", "H"),
    ("NumberOfSections", "H"),
    ("TimeDateStamp", "I"),  # 0x04
    ("PointerToSymbolTable", "I"),
    ("NumberOfSymbols", "I"),  # 0x0c
    ("SizeOfOptionalHeader", "H"),
    ("Characteristics", "H"),  # 0x14
)

# "N" is a number as wide as an address.
OPTIONAL = (
    ("Magic", "H"), ("MajorLinkerVersion", "B"), ("MinorLinkerVersion", "B"),
    ("SizeOfCode", "I"), ("SizeOfInitializedData", "I"), ("SizeOfUninitializedData", "I"),
    ("AddressOfEntryPoint", "I"), ("BaseOfCode", "I"), ("BaseOfData", "I"),
    ("ImageBase", "N"), ("SectionAlignment", "I"), ("FileAlignment", "I"),
    ("MajorOperatingSystemVersion", "H"), ("MinorOperatingSystemVersion", "H"),
    ("MajorImageVersion", "H"), ("MinorImageVersion", "H"),
    ("MajorSubsystemVersion", "H"), ("MinorSubsystemVersion", "H"), ("Win32VersionValue", "I"),
    ("SizeOfImage", "I"), ("SizeOfHeaders", "I"), ("CheckSum", "I"), ("Subsystem", "H"), ("DllCharacteristics", "H"),
    ("SizeOfStackReserve", "N"), ("SizeOfStackCommit", "N"), ("SizeOfHeapReserve", "N"), ("SizeOfHeapCommit", "N"),
    ("LoaderFlags", "I"), ("NumberOfRvaAndSizes", "I"),
)  # fmt: skip
OPTIONAL32 = Layout("IMAGE_OPTIONAL_HEADER32", *((field, code.replace("N", "I")) for field, code in OPTIONAL))
OPTIONAL64 = Layout(
    "IMAGE_OPTIONAL_HEADER64", *((field, code.replace("N", "Q")) for field, code in OPTIONAL if field != "BaseOfData")
)

OPTIONAL_MAGIC = Layout("IMAGE_OPTIONAL_HEADER", ("Magic", "H"))
OPTIONAL_HEADERS: dict[int, tuple[Literal[32, 64], Layout]] = {0x10B: (32, OPTIONAL32), 0x20B: (64, OPTIONAL64)}
"""``Magic`` -> bits, layout."""

DATA_DIRECTORY = Layout("IMAGE_DATA_DIRECTORY", ("VirtualAddress", "I"), ("Size", "I"))

SECTION_HEADER = Layout(
    "IMAGE_SECTION_HEADER",
    ("Name", "8s"), ("VirtualSize", "I"), ("VirtualAddress", "I"),  # 0x00
    ("SizeOfRawData", "I"), ("PointerToRawData", "I"),  # 0x10
    ("PointerToRelocations", "I"), ("PointerToLinenumbers", "I"),  # 0x18
    ("NumberOfRelocations", "H"), ("NumberOfLinenumbers", "H"), ("Characteristics", "I"),  # 0x20
)  # fmt: skip

DEBUG_DIRECTORY = Layout(
    "IMAGE_DEBUG_DIRECTORY",
    ("Characteristics", "I"), ("TimeDateStamp", "I"), ("MajorVersion", "H"), ("MinorVersion", "H"),  # 0x00
    ("Type", "I"), ("SizeOfData", "I"), ("AddressOfRawData", "I"), ("PointerToRawData", "I"),  # 0x0c
)  # fmt: skip

STRING_TABLE = Layout("COFF string table", ("size", "I"))  # with these 4 bytes; offsets count from them

# CodeView records, which the specification only names; the fields are those of Microsoft's microsoft-pdb
# (langapi/include/cvinfo.h and PDB/dbi/locator.cpp: RSDSI, NB10I). A file name that ends with a zero follows.
RSDS = Layout("CV_INFO_PDB70", ("CvSignature", "4s"), ("Signature", "16s"), ("Age", "I"))  # 0x00, 0x04, 0x14
NB10 = Layout("CV_INFO_PDB20", ("CvSignature", "4s"), ("Offset", "I"), ("Signature", "I"), ("Age", "I"))  # 0x00
CODEVIEW = {b"RSDS": RSDS, b"NB10": NB10}  # CvSignature

MACHINES = {  # Machine: the names that `elf` has for the same processors
    0x014C: "i386", 0x01C0: "arm", 0x01C2: "arm", 0x01C4: "arm", 0x8664: "x86_64", 0xAA64: "aarch64",
    0x5032: "riscv", 0x5064: "riscv", 0x6264: "loongarch",
}  # fmt: skip

FILE_DLL = 0x2000  # Characteristics of the file: IMAGE_FILE_DLL
SCN = {  # Characteristics of a section: IMAGE_SCN_MEM_EXECUTE, _READ, _WRITE
    0x2000_0000: SegmentFlags.EXECUTE,
    0x4000_0000: SegmentFlags.READ,
    0x8000_0000: SegmentFlags.WRITE,
}

SYMBOL_SIZE = 18  # bytes of a COFF symbol
DEBUG_ENTRY = 6  # place in the table of data directories: IMAGE_DIRECTORY_ENTRY_DEBUG
DIRECTORY_ENTRIES = 16  # IMAGE_NUMBEROF_DIRECTORY_ENTRIES: Windows does not look at more, whatever the count says
TYPE_CODEVIEW = 2  # Type of a debug directory entry: IMAGE_DEBUG_TYPE_CODEVIEW


@dataclass(frozen=True, slots=True)
class PeHeaders:
    """The headers of a PE file."""

    source: Source
    bits: Literal[32, 64]
    file: Structure
    optional: Structure
    sections: tuple[Structure, ...]

    def directory(self, number: int) -> Structure | None:
        """Data directory ``number``; ``None`` where the file has none. Raises `FormatError` where they do not fit."""
        optional, layout = self.optional, self.optional.layout
        count = min(optional["NumberOfRvaAndSizes"], DIRECTORY_ENTRIES)
        if layout.size + count * DATA_DIRECTORY.size > self.file["SizeOfOptionalHeader"]:
            reason = "the data directories are past the end of the optional header"
            raise optional.bad("NumberOfRvaAndSizes", reason)
        if count <= number:
            return None
        offset = optional.offset + layout.size + number * DATA_DIRECTORY.size
        directory = DATA_DIRECTORY.read(self.source, offset, "little")
        return directory if directory["VirtualAddress"] and directory["Size"] else None


def read_pe(source: Source) -> Image:
    """The PE32 or PE32+ file in ``source``: programs, DLLs and drivers of any processor.

    Every section is a segment too, as the Windows loader maps sections. Raises `FormatError` where a header,
    a count, an address or a name contradicts the specification or the file's size. The contents of sections are not
    read, except for the debug directory and the CodeView record.
    """
    pe = pe_headers(source)
    optional = pe.optional
    segments = tuple(_segment(header, pe) for header in pe.sections)
    guid, age, name = _pdb(pe)
    return Image(
        format="pe",
        bits=pe.bits,
        byte_order="little",
        machine=MACHINES.get(pe.file["Machine"], hex(pe.file["Machine"])),
        kind="shared object" if pe.file["Characteristics"] & FILE_DLL else "executable",
        segments=segments,
        sections=tuple(map(_section, _names(pe), segments)),
        image_base=optional["ImageBase"],
        entry=_address(optional, "AddressOfEntryPoint", 0, pe) if optional["AddressOfEntryPoint"] else 0,
        timestamp=pe.file["TimeDateStamp"],
        checksum=optional["CheckSum"],
        image_size=optional["SizeOfImage"],
        pdb_guid=guid,
        pdb_age=age,
        pdb_name=name,
    )


def pe_headers(source: Source) -> PeHeaders:
    """The headers of the PE file in ``source``. Raises `FormatError`."""
    dos = DOS_HEADER.read(source, 0, "little")
    if dos.raw("e_magic") != b"MZ":
        raise dos.bad("e_magic", "not a PE file")
    dos.require(dos["e_lfanew"], FILE_HEADER.size, "e_lfanew")
    file = FILE_HEADER.read(source, dos["e_lfanew"], "little")
    if file.raw("Signature") != b"PE\0\0":
        raise file.bad("Signature", "a program for MS-DOS, or for another system than Windows NT")
    begin = file.offset + FILE_HEADER.size
    bits, layout = _optional_layout(source, begin)
    if file["SizeOfOptionalHeader"] < layout.size:
        raise file.bad("SizeOfOptionalHeader", f"an optional header of {bits} bits has at least {layout.size} bytes")
    optional = layout.read(source, begin, "little")
    after = begin + file["SizeOfOptionalHeader"]
    sections = SECTION_HEADER.table(file, "NumberOfSections", after, file["NumberOfSections"], "little")
    return PeHeaders(source, bits, file, optional, tuple(sections))


def _optional_layout(source: Source, offset: int) -> tuple[Literal[32, 64], Layout]:
    magic = OPTIONAL_MAGIC.read(source, offset, "little")
    found = OPTIONAL_HEADERS.get(magic["Magic"])
    if found is None:
        raise magic.bad("Magic", "neither PE32 (0x10b) nor PE32+ (0x20b)")
    return found


def _address(owner: Structure, field: str, size: int, pe: PeHeaders) -> int:
    """The link address for the RVA in ``field``, from which ``size`` bytes must be in the address space."""
    address = pe.optional["ImageBase"] + owner[field]
    if address + size > 1 << pe.bits:
        raise owner.bad(field, f"with the image base the address is past the {pe.bits}-bit addresses")
    return address


def _segment(header: Structure, pe: PeHeaders) -> Segment:
    raw = header["SizeOfRawData"] if header["PointerToRawData"] else 0
    memory = header["VirtualSize"] or raw  # 0 is written by some old linkers, and the loader takes the other size then
    return Segment(
        vaddr=_address(header, "VirtualAddress", max(memory, raw), pe),
        memory_size=memory,
        offset=header["PointerToRawData"],
        file_size=raw,
        flags=SegmentFlags.of(header["Characteristics"], SCN),
    )


def _section(name: str, segment: Segment) -> Section:
    return Section(name, segment.vaddr, segment.memory_size, segment.offset, segment.file_size, segment.flags)


def _names(pe: PeHeaders) -> Iterator[str]:
    """Names of the sections. ``/123`` is an offset into the string table, which only GNU tools and LLVM still write."""
    strings: Strings | None = None
    for header in pe.sections:
        name = header.raw("Name").rstrip(b"\0")
        place = _long_name(name)
        if place is None or pe.file["PointerToSymbolTable"] == 0:
            yield text_of(name)
            continue
        strings = strings or _string_table(pe)
        yield strings.at(place, header, "Name")


def _long_name(name: bytes) -> int | None:
    """The offset that a section name means: decimal, or base 64 from eight digits on (LLVM, ``//`` and 6 digits)."""
    if name[:1] == b"/" and name[1:].isdigit():
        return int(name[1:])
    digits = name[2:]
    if name[:2] == b"//" and len(digits) == 6 and digits.replace(b"+", b"A").replace(b"/", b"A").isalnum():
        return int.from_bytes(b64decode(b"AA" + digits), "big")
    return None


def _string_table(pe: PeHeaders) -> Strings:
    offset = pe.file["PointerToSymbolTable"] + pe.file["NumberOfSymbols"] * SYMBOL_SIZE
    pe.file.require(offset, STRING_TABLE.size, "PointerToSymbolTable")
    table = STRING_TABLE.read(pe.source, offset, "little")
    table.require(offset, table["size"], "size")
    return Strings(pe.source, offset, table["size"])


def _pdb(pe: PeHeaders) -> tuple[UUID | None, int | None, str | None]:
    """(GUID, age, name) of the PDB, from the first CodeView record that names one: RSDS, or NB10 (until 2002) without
    GUID."""
    for entry in _debug_entries(pe):
        offset = entry["PointerToRawData"]
        if offset == 0 and entry["AddressOfRawData"]:
            offset = _file_offset(entry, "AddressOfRawData", pe)
        if entry["Type"] != TYPE_CODEVIEW or offset == 0:  # neither: moved to a .dbg file
            continue
        entry.require(offset, entry["SizeOfData"], "SizeOfData")
        layout = CODEVIEW.get(read_at(pe.source, offset, 4))
        if layout is None:
            continue
        if entry["SizeOfData"] <= layout.size:
            raise entry.bad("SizeOfData", f"{layout.name} has more than {layout.size} bytes")
        record = layout.read(pe.source, offset, "little")
        names = Strings(pe.source, offset + layout.size, entry["SizeOfData"] - layout.size)
        guid = guid_of(record.raw("Signature")) if layout is RSDS else None
        return guid, record["Age"], names.at(0, entry, "SizeOfData")
    return None, None, None


def _debug_entries(pe: PeHeaders) -> Iterator[Structure]:
    directory = pe.directory(DEBUG_ENTRY)
    entries = directory["Size"] // DEBUG_DIRECTORY.size if directory else 0
    if directory is None or entries == 0:
        return iter(())
    offset = _file_offset(directory, "VirtualAddress", pe)
    return DEBUG_DIRECTORY.table(directory, "Size", offset, entries, "little")


def _file_offset(owner: Structure, field: str, pe: PeHeaders) -> int:
    """The file offset of the byte at the RVA in ``field``, from the section that has data for it."""
    for header in pe.sections:
        inside = owner[field] - header["VirtualAddress"]
        if header["PointerToRawData"] and 0 <= inside < header["SizeOfRawData"]:
            return header["PointerToRawData"] + inside
    raise owner.bad(field, "no section has data for this address")
