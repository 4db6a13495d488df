# ruff: noqa: N801 - the specification's names
"""Numbers of DWARF by their names, and the LEB128 encoding: ``DW_AT_low_pc`` is `DW_AT.low_pc` (DWARF 5, chapter 7).

Only numbers that lastbranch reads are here, and GNU's extensions of DWARF 4. Names that are words of Python end with an
underscore. Recordings start without NumPy, and so does this module.
"""

from __future__ import annotations

import sys

__all__ = [
    "DW_AT",
    "DW_CFA",
    "DW_EH_PE",
    "DW_FORM",
    "DW_LNCT",
    "DW_LNE",
    "DW_LNS",
    "DW_OP",
    "DW_RLE",
    "DW_SECT",
    "DW_TAG",
    "DW_UT",
    "TOO_LONG",
    "sleb",
    "uleb",
]


class DW_UT:
    """Types of units (7.5.1)."""

    compile = 0x01
    type = 0x02
    skeleton = 0x04
    split_compile = 0x05
    split_type = 0x06


class DW_TAG:
    """Tags of entries (7.5.3)."""

    array_type = 0x01
    class_type = 0x02
    enumeration_type = 0x04
    structure_type = 0x13
    subroutine_type = 0x15
    union_type = 0x17
    inlined_subroutine = 0x1D
    subprogram = 0x2E
    interface_type = 0x38
    call_site = 0x48
    GNU_call_site = 0x4109


class DW_AT:
    """Attributes (7.5.4)."""

    sibling = 0x01
    name = 0x03
    stmt_list = 0x10
    low_pc = 0x11
    high_pc = 0x12
    comp_dir = 0x1B
    abstract_origin = 0x31
    decl_file = 0x3A
    decl_line = 0x3B
    specification = 0x47
    ranges = 0x55
    call_column = 0x57
    call_file = 0x58
    call_line = 0x59
    linkage_name = 0x6E
    str_offsets_base = 0x72
    addr_base = 0x73
    rnglists_base = 0x74
    dwo_name = 0x76
    MIPS_linkage_name = 0x2007
    GNU_dwo_name = 0x2130
    GNU_dwo_id = 0x2131
    GNU_ranges_base = 0x2132
    GNU_addr_base = 0x2133
    GNU_discriminator = 0x2136


class DW_FORM:
    """Forms of attributes (7.5.6)."""

    addr = 0x01
    block2 = 0x03
    block4 = 0x04
    data2 = 0x05
    data4 = 0x06
    data8 = 0x07
    string = 0x08
    block = 0x09
    block1 = 0x0A
    data1 = 0x0B
    flag = 0x0C
    sdata = 0x0D
    strp = 0x0E
    udata = 0x0F
    ref_addr = 0x10
    ref1 = 0x11
    ref2 = 0x12
    ref4 = 0x13
    ref8 = 0x14
    ref_udata = 0x15
    indirect = 0x16
    sec_offset = 0x17
    exprloc = 0x18
    flag_present = 0x19
    strx = 0x1A
    addrx = 0x1B
    ref_sup4 = 0x1C
    strp_sup = 0x1D
    data16 = 0x1E
    line_strp = 0x1F
    ref_sig8 = 0x20
    implicit_const = 0x21
    loclistx = 0x22
    rnglistx = 0x23
    ref_sup8 = 0x24
    strx1 = 0x25
    strx2 = 0x26
    strx3 = 0x27
    strx4 = 0x28
    addrx1 = 0x29
    addrx2 = 0x2A
    addrx3 = 0x2B
    addrx4 = 0x2C
    GNU_addr_index = 0x1F01
    GNU_str_index = 0x1F02
    GNU_ref_alt = 0x1F20
    GNU_strp_alt = 0x1F21


class DW_OP:
    """Operations of expressions (7.7.1)."""

    addr = 0x03
    deref = 0x06
    const1u = 0x08
    const1s = 0x09
    const2u = 0x0A
    const2s = 0x0B
    const4u = 0x0C
    const4s = 0x0D
    const8u = 0x0E
    const8s = 0x0F
    constu = 0x10
    consts = 0x11
    dup = 0x12
    drop = 0x13
    over = 0x14
    pick = 0x15
    swap = 0x16
    rot = 0x17
    abs = 0x19
    and_ = 0x1A
    div = 0x1B
    minus = 0x1C
    mod = 0x1D
    mul = 0x1E
    neg = 0x1F
    not_ = 0x20
    or_ = 0x21
    plus = 0x22
    plus_uconst = 0x23
    shl = 0x24
    shr = 0x25
    shra = 0x26
    xor = 0x27
    bra = 0x28
    eq = 0x29
    ge = 0x2A
    gt = 0x2B
    le = 0x2C
    lt = 0x2D
    ne = 0x2E
    skip = 0x2F
    lit0 = 0x30
    """The first of 32: `lit31` is the last."""
    breg0 = 0x70
    """The first of 32: `breg31` is the last."""
    bregx = 0x92
    deref_size = 0x94
    nop = 0x96


class DW_LNS:
    """Standard opcodes of line number programs (7.22)."""

    extended_op = 0x00
    copy = 0x01
    advance_pc = 0x02
    advance_line = 0x03
    set_file = 0x04
    set_column = 0x05
    const_add_pc = 0x08
    fixed_advance_pc = 0x09


class DW_LNE:
    """Extended opcodes of line number programs (7.22)."""

    end_sequence = 0x01
    set_address = 0x02
    set_discriminator = 0x04


class DW_LNCT:
    """The kinds of content in a table of folders or files (7.22)."""

    path = 0x1
    directory_index = 0x2


class DW_CFA:
    """Instructions of call frame information (7.24), and those of vendors that compilers write.

    The first three have an operand in their low six bits.
    """

    advance_loc = 0x40
    offset = 0x80
    restore = 0xC0
    nop = 0x00
    set_loc = 0x01
    advance_loc1 = 0x02
    advance_loc2 = 0x03
    advance_loc4 = 0x04
    offset_extended = 0x05
    restore_extended = 0x06
    undefined = 0x07
    same_value = 0x08
    register = 0x09
    remember_state = 0x0A
    restore_state = 0x0B
    def_cfa = 0x0C
    def_cfa_register = 0x0D
    def_cfa_offset = 0x0E
    def_cfa_expression = 0x0F
    expression = 0x10
    offset_extended_sf = 0x11
    def_cfa_sf = 0x12
    def_cfa_offset_sf = 0x13
    val_offset = 0x14
    val_offset_sf = 0x15
    val_expression = 0x16
    MIPS_advance_loc8 = 0x1D
    GNU_window_save = 0x2D
    """On AArch64 the same number is ``DW_CFA_AARCH64_negate_ra_state``."""
    GNU_args_size = 0x2E
    GNU_negative_offset_extended = 0x2F


class DW_EH_PE:
    """Encodings of pointers in ``.eh_frame`` (LSB 5.0, 10.5): a form, what it counts from, and two flags."""

    absptr = 0x00
    uleb128 = 0x01
    udata2 = 0x02
    udata4 = 0x03
    udata8 = 0x04
    signed = 0x08
    sleb128 = 0x09
    sdata2 = 0x0A
    sdata4 = 0x0B
    sdata8 = 0x0C
    pcrel = 0x10
    textrel = 0x20
    datarel = 0x30
    funcrel = 0x40
    aligned = 0x50
    indirect = 0x80
    omit = 0xFF
    """There is no value."""


class DW_RLE:
    """Kinds of entries in range lists (7.25)."""

    end_of_list = 0x00
    base_addressx = 0x01
    startx_endx = 0x02
    startx_length = 0x03
    offset_pair = 0x04
    base_address = 0x05
    start_end = 0x06
    start_length = 0x07


class DW_SECT:
    """Columns of the index of a package file (7.3.5.3). GNU's index of DWARF 4 has the same for these three."""

    info = 1
    abbrev = 3
    str_offsets = 6
    rnglists = 8
    """Only in DWARF 5."""


# -- Single LEB128 numbers (7.6). `files.Space` reads many at once


_BITS = 70
"""A number of 64 bits takes ten bytes at most, which have that many."""
TOO_LONG = 1 << 71
"""This bit marks a number of more than ten bytes, whose other bits are those of the first ten."""


def uleb(raw: bytes | bytearray, at: int, end: int = sys.maxsize) -> tuple[int, int]:
    """(the unsigned LEB128 number at ``at``, the offset after it), for the caller to check.

    The offset is past ``end`` where the number does not end before; without ``end`` the padding of a `Space` ends every
    number. One of more than ten bytes is marked `TOO_LONG` and not read further.
    """
    value = shift = 0
    while at < end:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift == _BITS:
            return value | TOO_LONG, at
    return value, end + 1


def sleb(raw: bytes | bytearray, at: int, end: int = sys.maxsize) -> tuple[int, int]:
    """The same, signed."""
    value, after = uleb(raw, at, end)
    bits = 7 * (after - at)
    return (value - (1 << bits) if after <= end and value >> (bits - 1) & 1 else value), after
