"""PE as declarations, in the order and with the names of Microsoft's "PE Format" specification (and ``winnt.h``).

PE32 and PE32+ have the same fields; PE32+ lacks ``BaseOfData``, and four sizes and ``ImageBase`` have 64 bits.
Everything is little-endian.
"""

from __future__ import annotations

from typing import Literal

from .image import SegmentFlags
from .layout import Layout

__all__ = [
    "CODEVIEW", "DATA_DIRECTORY", "DEBUG_DIRECTORY", "DEBUG_ENTRY", "DIRECTORY_ENTRIES", "DOS_HEADER", "FILE_DLL",
    "FILE_HEADER", "MACHINES", "OPTIONAL_HEADERS", "OPTIONAL_MAGIC", "SCN", "SECTION_HEADER", "STRING_TABLE",
    "SYMBOL_SIZE", "TYPE_CODEVIEW",
]  # fmt: skip

DOS_HEADER = Layout(
    "IMAGE_DOS_HEADER",
    ("e_magic", "2s"), ("e_cblp...e_res2", "58s"), ("e_lfanew", "I"),  # 0x00, 0x02, 0x3c
)  # fmt: skip

FILE_HEADER = Layout(
    "IMAGE_NT_HEADERS",
    ("Signature", "4s"),  # 0x00
    ("Machine", "H"), ("NumberOfSections", "H"), ("TimeDateStamp", "I"),  # 0x04
    ("PointerToSymbolTable", "I"), ("NumberOfSymbols", "I"),  # 0x0c
    ("SizeOfOptionalHeader", "H"), ("Characteristics", "H"),  # 0x14
)  # fmt: skip

OPTIONAL32 = Layout(
    "IMAGE_OPTIONAL_HEADER32",
    ("Magic", "H"), ("MajorLinkerVersion", "B"), ("MinorLinkerVersion", "B"),  # 0x00
    ("SizeOfCode", "I"), ("SizeOfInitializedData", "I"), ("SizeOfUninitializedData", "I"),  # 0x04
    ("AddressOfEntryPoint", "I"), ("BaseOfCode", "I"), ("BaseOfData", "I"),  # 0x10
    ("ImageBase", "I"), ("SectionAlignment", "I"), ("FileAlignment", "I"),  # 0x1c
    ("MajorOperatingSystemVersion", "H"), ("MinorOperatingSystemVersion", "H"),  # 0x28
    ("MajorImageVersion", "H"), ("MinorImageVersion", "H"),  # 0x2c
    ("MajorSubsystemVersion", "H"), ("MinorSubsystemVersion", "H"), ("Win32VersionValue", "I"),  # 0x30
    ("SizeOfImage", "I"), ("SizeOfHeaders", "I"), ("CheckSum", "I"),  # 0x38
    ("Subsystem", "H"), ("DllCharacteristics", "H"),  # 0x44
    ("SizeOfStackReserve", "I"), ("SizeOfStackCommit", "I"),  # 0x48
    ("SizeOfHeapReserve", "I"), ("SizeOfHeapCommit", "I"),  # 0x50
    ("LoaderFlags", "I"), ("NumberOfRvaAndSizes", "I"),  # 0x58
)  # fmt: skip

OPTIONAL64 = Layout(
    "IMAGE_OPTIONAL_HEADER64",
    ("Magic", "H"), ("MajorLinkerVersion", "B"), ("MinorLinkerVersion", "B"),  # 0x00
    ("SizeOfCode", "I"), ("SizeOfInitializedData", "I"), ("SizeOfUninitializedData", "I"),  # 0x04
    ("AddressOfEntryPoint", "I"), ("BaseOfCode", "I"),  # 0x10
    ("ImageBase", "Q"), ("SectionAlignment", "I"), ("FileAlignment", "I"),  # 0x18
    ("MajorOperatingSystemVersion", "H"), ("MinorOperatingSystemVersion", "H"),  # 0x28
    ("MajorImageVersion", "H"), ("MinorImageVersion", "H"),  # 0x2c
    ("MajorSubsystemVersion", "H"), ("MinorSubsystemVersion", "H"), ("Win32VersionValue", "I"),  # 0x30
    ("SizeOfImage", "I"), ("SizeOfHeaders", "I"), ("CheckSum", "I"),  # 0x38
    ("Subsystem", "H"), ("DllCharacteristics", "H"),  # 0x44
    ("SizeOfStackReserve", "Q"), ("SizeOfStackCommit", "Q"),  # 0x48
    ("SizeOfHeapReserve", "Q"), ("SizeOfHeapCommit", "Q"),  # 0x58
    ("LoaderFlags", "I"), ("NumberOfRvaAndSizes", "I"),  # 0x68
)  # fmt: skip

OPTIONAL_MAGIC = Layout("IMAGE_OPTIONAL_HEADER", ("Magic", "H"))
OPTIONAL_HEADERS: dict[int, tuple[Literal[32, 64], Layout]] = {
    0x10B: (32, OPTIONAL32),
    0x20B: (64, OPTIONAL64),
}  # Magic

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

MACHINES = {  # Machine: the names that elf_layout has for the same processors
    0x014C: "i386", 0x01C0: "arm", 0x01C2: "arm", 0x01C4: "arm", 0x8664: "x86_64", 0xAA64: "aarch64",
    0x5032: "riscv", 0x5064: "riscv", 0x6264: "loongarch",
}  # fmt: skip

FILE_DLL = 0x2000  # Characteristics of the file: IMAGE_FILE_DLL
SCN = {  # Characteristics of a section: IMAGE_SCN_MEM_EXECUTE, _READ, _WRITE
    0x2000_0000: SegmentFlags.EXECUTE, 0x4000_0000: SegmentFlags.READ, 0x8000_0000: SegmentFlags.WRITE,
}  # fmt: skip

SYMBOL_SIZE = 18  # bytes of a COFF symbol
DEBUG_ENTRY = 6  # place in the table of data directories: IMAGE_DIRECTORY_ENTRY_DEBUG
DIRECTORY_ENTRIES = 16  # IMAGE_NUMBEROF_DIRECTORY_ENTRIES: Windows does not look at more, whatever the count says
TYPE_CODEVIEW = 2  # Type of a debug directory entry: IMAGE_DEBUG_TYPE_CODEVIEW
