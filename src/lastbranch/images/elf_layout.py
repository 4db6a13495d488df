"""ELF as declarations, in the order and with the names of the System V gABI (4.1, chapters 4 and 5; gabi 2013 draft).

The 32- and the 64-bit class have the same fields with other sizes, and program headers in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .image import SegmentFlags
from .layout import ByteOrder, Layout

__all__ = ["CLASSES", "IDENT", "KINDS", "MACHINES", "NOTE", "ORDERS", "PF", "PN_XNUM", "PT", "SHF", "SHN", "SHT"]

IDENT = Layout(
    "e_ident",
    ("EI_MAG", "4s"), ("EI_CLASS", "B"), ("EI_DATA", "B"), ("EI_VERSION", "B"),  # 0x00
    ("EI_OSABI", "B"), ("EI_ABIVERSION", "B"), ("EI_PAD", "7s"),  # 0x07
)  # fmt: skip

EHDR32 = Layout(
    "Elf32_Ehdr",
    ("e_ident", "16s"),  # 0x00
    ("e_type", "H"), ("e_machine", "H"), ("e_version", "I"),  # 0x10
    ("e_entry", "I"), ("e_phoff", "I"), ("e_shoff", "I"), ("e_flags", "I"),  # 0x18
    ("e_ehsize", "H"), ("e_phentsize", "H"), ("e_phnum", "H"),  # 0x28
    ("e_shentsize", "H"), ("e_shnum", "H"), ("e_shstrndx", "H"),  # 0x2e
)  # fmt: skip

EHDR64 = Layout(
    "Elf64_Ehdr",
    ("e_ident", "16s"),  # 0x00
    ("e_type", "H"), ("e_machine", "H"), ("e_version", "I"),  # 0x10
    ("e_entry", "Q"), ("e_phoff", "Q"), ("e_shoff", "Q"), ("e_flags", "I"),  # 0x18
    ("e_ehsize", "H"), ("e_phentsize", "H"), ("e_phnum", "H"),  # 0x34
    ("e_shentsize", "H"), ("e_shnum", "H"), ("e_shstrndx", "H"),  # 0x3a
)  # fmt: skip

SHDR32 = Layout(
    "Elf32_Shdr",
    ("sh_name", "I"), ("sh_type", "I"), ("sh_flags", "I"), ("sh_addr", "I"),  # 0x00
    ("sh_offset", "I"), ("sh_size", "I"),  # 0x10
    ("sh_link", "I"), ("sh_info", "I"), ("sh_addralign", "I"), ("sh_entsize", "I"),  # 0x18
)  # fmt: skip

SHDR64 = Layout(
    "Elf64_Shdr",
    ("sh_name", "I"), ("sh_type", "I"), ("sh_flags", "Q"), ("sh_addr", "Q"),  # 0x00
    ("sh_offset", "Q"), ("sh_size", "Q"),  # 0x18
    ("sh_link", "I"), ("sh_info", "I"), ("sh_addralign", "Q"), ("sh_entsize", "Q"),  # 0x28
)  # fmt: skip

PHDR32 = Layout(
    "Elf32_Phdr",
    ("p_type", "I"), ("p_offset", "I"), ("p_vaddr", "I"), ("p_paddr", "I"),  # 0x00
    ("p_filesz", "I"), ("p_memsz", "I"), ("p_flags", "I"), ("p_align", "I"),  # 0x10
)  # fmt: skip

PHDR64 = Layout(
    "Elf64_Phdr",
    ("p_type", "I"), ("p_flags", "I"), ("p_offset", "Q"), ("p_vaddr", "Q"), ("p_paddr", "Q"),  # 0x00
    ("p_filesz", "Q"), ("p_memsz", "Q"), ("p_align", "Q"),  # 0x20
)  # fmt: skip

NOTE = Layout("Elf_Nhdr", ("namesz", "I"), ("descsz", "I"), ("type", "I"))  # the same in both classes


@dataclass(frozen=True, slots=True)
class ElfClass:
    """The structures of one ``EI_CLASS``."""

    bits: Literal[32, 64]
    ehdr: Layout
    phdr: Layout
    shdr: Layout


CLASSES = {1: ElfClass(32, EHDR32, PHDR32, SHDR32), 2: ElfClass(64, EHDR64, PHDR64, SHDR64)}  # EI_CLASS
ORDERS: dict[int, ByteOrder] = {1: "little", 2: "big"}  # EI_DATA
KINDS = {0: "none", 1: "relocatable", 2: "executable", 3: "shared object", 4: "core"}  # e_type

MACHINES = {  # e_machine: names as `uname -m` has them, without byte order and width
    3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv",
    258: "loongarch",
}  # fmt: skip

PN_XNUM = 0xFFFF  # e_phnum: the number is in sh_info of section 0


class SHN:
    """Special section numbers."""

    UNDEF, LORESERVE, XINDEX = 0, 0xFF00, 0xFFFF


class PT:
    """Values of p_type."""

    LOAD, NOTE = 1, 4


class SHT:
    """Values of sh_type."""

    NULL, STRTAB, NOTE, NOBITS = 0, 3, 7, 8


PF = {1: SegmentFlags.EXECUTE, 2: SegmentFlags.WRITE, 4: SegmentFlags.READ}  # bits of p_flags
SHF = {1: SegmentFlags.WRITE, 2: SegmentFlags.READ, 4: SegmentFlags.EXECUTE}  # sh_flags: WRITE, ALLOC, EXECINSTR
