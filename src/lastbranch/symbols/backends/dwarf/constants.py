"""Numbers of DWARF 2 to 5 (DWARF 5, section 7) and of GNU's extensions, and how long each form is."""

from __future__ import annotations

__all__ = ["AT", "ADDRESS", "BLOCKS", "FIXED", "FORM", "INDEXED", "OFFSET", "REFERENCES", "RLE", "STRINGS", "TAG", "UT"]


class TAG:
    """Tags of entries that matter here."""

    ARRAY, CLASS, ENUMERATION, LEXICAL_BLOCK, COMPILE_UNIT, STRUCTURE, SUBROUTINE_TYPE = (
        0x01,
        0x02,
        0x04,
        0x0B,
        0x11,
        0x13,
        0x15,
    )
    UNION, INLINED_SUBROUTINE, SUBPROGRAM, INTERFACE, CALL_SITE, GNU_CALL_SITE = 0x17, 0x1D, 0x2E, 0x38, 0x48, 0x4109


class AT:
    """Attributes that are read."""

    SIBLING, NAME, STMT_LIST, LOW_PC, HIGH_PC, COMP_DIR, ABSTRACT_ORIGIN = 0x01, 0x03, 0x10, 0x11, 0x12, 0x1B, 0x31
    DECL_FILE, DECL_LINE, SPECIFICATION, RANGES, CALL_COLUMN, CALL_FILE, CALL_LINE = (
        0x3A,
        0x3B,
        0x47,
        0x55,
        0x57,
        0x58,
        0x59,
    )
    LINKAGE_NAME, STR_OFFSETS_BASE, ADDR_BASE, RNGLISTS_BASE, DWO_NAME = 0x6E, 0x72, 0x73, 0x74, 0x76
    MIPS_LINKAGE_NAME, GNU_DWO_NAME, GNU_DWO_ID, GNU_RANGES_BASE, GNU_ADDR_BASE = 0x2007, 0x2130, 0x2131, 0x2132, 0x2133
    GNU_DISCRIMINATOR = 0x2136


class FORM:
    """Forms of attributes."""

    ADDR, BLOCK2, BLOCK4, DATA2, DATA4, DATA8, STRING, BLOCK, BLOCK1 = (
        0x01,
        0x03,
        0x04,
        0x05,
        0x06,
        0x07,
        0x08,
        0x09,
        0x0A,
    )
    DATA1, FLAG, SDATA, STRP, UDATA, REF_ADDR, REF1, REF2, REF4, REF8 = (
        0x0B,
        0x0C,
        0x0D,
        0x0E,
        0x0F,
        0x10,
        0x11,
        0x12,
        0x13,
        0x14,
    )
    REF_UDATA, INDIRECT, SEC_OFFSET, EXPRLOC, FLAG_PRESENT, STRX, ADDRX = 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B
    REF_SUP4, STRP_SUP, DATA16, LINE_STRP, REF_SIG8, IMPLICIT_CONST = 0x1C, 0x1D, 0x1E, 0x1F, 0x20, 0x21
    LOCLISTX, RNGLISTX, REF_SUP8, STRX1, STRX2, STRX3, STRX4 = 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28
    ADDRX1, ADDRX2, ADDRX3, ADDRX4 = 0x29, 0x2A, 0x2B, 0x2C
    GNU_ADDR_INDEX, GNU_STR_INDEX, GNU_REF_ALT, GNU_STRP_ALT = 0x1F01, 0x1F02, 0x1F20, 0x1F21


class UT:
    """``unit_type`` of DWARF 5."""

    COMPILE, TYPE, PARTIAL, SKELETON, SPLIT_COMPILE, SPLIT_TYPE = 1, 2, 3, 4, 5, 6


class RLE:
    """Kinds of entries in range lists of DWARF 5."""

    END, BASE_ADDRESSX, STARTX_ENDX, STARTX_LENGTH, OFFSET_PAIR, BASE_ADDRESS, START_END, START_LENGTH = range(8)


OFFSET, ADDRESS, LEB, TEXT = -1, -2, -3, -4
"""Sizes of forms that are not a number of bytes: section offset, address, LEB128 number, string with its zero."""

FIXED: dict[int, int] = {
    FORM.ADDR: ADDRESS, FORM.DATA1: 1, FORM.DATA2: 2, FORM.DATA4: 4, FORM.DATA8: 8, FORM.DATA16: 16, FORM.FLAG: 1,
    FORM.FLAG_PRESENT: 0, FORM.IMPLICIT_CONST: 0, FORM.SDATA: LEB, FORM.UDATA: LEB, FORM.STRING: TEXT,
    FORM.STRP: OFFSET, FORM.LINE_STRP: OFFSET, FORM.STRP_SUP: OFFSET, FORM.GNU_STRP_ALT: OFFSET,
    FORM.SEC_OFFSET: OFFSET, FORM.REF_ADDR: OFFSET, FORM.GNU_REF_ALT: OFFSET, FORM.REF1: 1, FORM.REF2: 2, FORM.REF4: 4,
    FORM.REF8: 8, FORM.REF_UDATA: LEB, FORM.REF_SIG8: 8, FORM.REF_SUP4: 4, FORM.REF_SUP8: 8,
    FORM.STRX: LEB, FORM.STRX1: 1, FORM.STRX2: 2, FORM.STRX3: 3, FORM.STRX4: 4, FORM.GNU_STR_INDEX: LEB,
    FORM.ADDRX: LEB, FORM.ADDRX1: 1, FORM.ADDRX2: 2, FORM.ADDRX3: 3, FORM.ADDRX4: 4, FORM.GNU_ADDR_INDEX: LEB,
    FORM.LOCLISTX: LEB, FORM.RNGLISTX: LEB,
}  # fmt: skip
"""Form -> bytes."""

BLOCKS: dict[int, int] = {FORM.BLOCK1: 1, FORM.BLOCK2: 2, FORM.BLOCK4: 4, FORM.BLOCK: LEB, FORM.EXPRLOC: LEB}
"""Form -> bytes of the length that stands before its bytes."""

REFERENCES = frozenset({FORM.REF1, FORM.REF2, FORM.REF4, FORM.REF8, FORM.REF_UDATA})
"""Forms that count from the start of their unit."""

INDEXED = frozenset({FORM.ADDRX, FORM.ADDRX1, FORM.ADDRX2, FORM.ADDRX3, FORM.ADDRX4, FORM.GNU_ADDR_INDEX})
"""Forms that are rows of ``.debug_addr``."""

STRINGS = frozenset({FORM.STRX, FORM.STRX1, FORM.STRX2, FORM.STRX3, FORM.STRX4, FORM.GNU_STR_INDEX})
"""Forms that are rows of ``.debug_str_offsets``."""
