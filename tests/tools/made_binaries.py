"""ELF and PE files written field by field."""

from __future__ import annotations

import struct

RSDS = b"RSDS" + bytes.fromhex("b9db443817206749be7aa4a2c20430fa") + struct.pack("<I", 5) + b"dir\\\xc3\xa4.pdb\0"


# Offsets in the files made here.
PE, OPTIONAL, TEXT, RDATA = 0x80, 0x98, 0x400, 0x600


DIRECTORY = RDATA + 0x40


RECORD = DIRECTORY + 0x60


def directory_entry(kind=2, size=None, rva=0x20A0, pointer=RECORD, record=RSDS):
    return struct.pack("<IIHHIIII", 0, 0x5F000000, 0, 0, kind, len(record) if size is None else size, rva, pointer)


def make_pe(
    bits=64, machine=0x8664, record=RSDS, entries=None, directories=16, names=(b".text", b".rdata", b".bss"), tail=b""
):
    """Headers, ``.text`` at 0x400 for RVA 0x1000, ``.rdata`` at 0x600 for RVA 0x2000 with the debug directory."""
    wide = bits == 64
    magic, base = (0x20B, 0x1_4000_0000) if wide else (0x10B, 0x40_0000)
    optional = struct.pack("<HBBIIIII", magic, 14, 0, 0x200, 0x200, 0x1000, 0x1010, 0x1000)
    optional += struct.pack("<Q", base) if wide else struct.pack("<II", 0x2000, base)
    optional += struct.pack("<IIHHHHHHIIIIHH", 0x1000, 0x200, 6, 0, 0, 0, 6, 0, 0, 0x5000, 0x400, 0xBEEF, 3, 0x8160)
    optional += struct.pack("<QQQQ" if wide else "<IIII", 0x100000, 0x1000, 0x100000, 0x1000)
    optional += struct.pack("<II", 0, directories)
    entries = [directory_entry(record=record)] if entries is None else entries
    for number in range(min(directories, 16)):
        optional += struct.pack("<II", 0x2040, 28 * len(entries)) if number == 6 else bytes(8)
    symbols = 0x800 if tail else 0
    file = struct.pack(
        "<4sHHIIIHH", b"PE\0\0", machine, 3, 0x60000001, symbols, 2 if tail else 0, len(optional), 0x2022
    )
    rows = [
        (names[0], 0x123, 0x1000, 0x200, TEXT, 0, 0, 0, 0, 0x60000020),
        (names[1], 0x1F0, 0x2000, 0x200, RDATA, 0, 0, 0, 0, 0x40000040),
        (names[2], 0x1000, 0x3000, 0, 0, 0, 0, 0, 0, 0xC0000080),
    ]
    table = b"".join(struct.pack("<8sIIIIIIHHI", *row) for row in rows)
    head = b"MZ" + bytes(58) + struct.pack("<I", PE) + bytes(64) + file + optional + table
    data = head.ljust(TEXT, b"\0") + b"\xcc" * 0x200
    rdata = bytes(0x40) + b"".join(entries).ljust(0x60, b"\0") + record
    return data + rdata.ljust(0x200, b"\0") + tail


BUILD_ID = bytes(range(1, 21))


def note(prefix, name, kind, description, align=4):
    def pad(data):
        return data + bytes(-len(data) % align)

    head = struct.pack(prefix + "III", len(name), len(description), kind) + name
    return pad(head) + pad(description)


def make_elf(
    bits=64, prefix="<", programs=(), sections=(), machine=62, kind=3, entry=0x1234, extended=False, names=True
):
    """An ELF file: header, program headers, contents, names, section headers.

    ``programs`` are (type, flags, offset or contents, vaddr, memory size, align), ``sections`` (name, type, flags,
    vaddr, contents or (offset, size)). ``extended`` counts in section 0 instead of the header.
    """
    wide = bits == 64
    ehsize, phsize, shsize = (64, 56, 64) if wide else (52, 32, 40)
    word = "Q" if wide else "I"
    contents = bytearray()
    start = ehsize + phsize * len(programs)

    def place(data):
        contents.extend(bytes(-(start + len(contents)) % 8))
        contents.extend(data)
        return start + len(contents) - len(data), len(data)

    program_table = b""
    for p_type, flags, where, vaddr, memory, align in programs:
        offset, size = place(where) if isinstance(where, bytes) else where
        if wide:
            program_table += struct.pack(prefix + "IIQQQQQQ", p_type, flags, offset, vaddr, vaddr, size, memory, align)
        else:
            program_table += struct.pack(prefix + "IIIIIIII", p_type, offset, vaddr, vaddr, size, memory, flags, align)

    rows, strings = [], b"\0"
    for name, s_type, flags, vaddr, where in sections:
        offset, size = place(where) if isinstance(where, bytes) else where
        rows.append((len(strings) if names else 0, s_type, flags, vaddr, offset, size, 0, 0, 1, 0))
        strings += name + b"\0"
    shnum = shstrndx = shoff = 0
    section_table = b""
    if sections or extended:
        if names:
            rows.append((len(strings), 3, 0, 0, *place(strings + b".shstrtab\0"), 0, 0, 1, 0))
        shnum, shstrndx = len(rows) + 1, len(rows) if names else 0
        first = (0, 0, 0, 0, 0, shnum, shstrndx, len(programs), 0, 0) if extended else (0,) * 10
        form = prefix + "II" + word * 4 + "II" + word * 2
        section_table = b"".join(struct.pack(form, *row) for row in [first, *rows])
        contents.extend(bytes(-(start + len(contents)) % 8))
        shoff = start + len(contents)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if prefix == "<" else 2, 1]) + bytes(9)
    counts = (0xFFFF, shsize, 0, 0xFFFF) if extended else (len(programs), shsize, shnum, shstrndx)
    header = ident + struct.pack(
        prefix + "HHI" + word * 3 + "IHHHHHH",
        *(kind, machine, 1, entry, ehsize if programs else 0, shoff, 0, ehsize, phsize, *counts),
    )
    assert len(header) == ehsize
    return bytes(header + program_table + contents + section_table)


def typical(bits=64, prefix="<", **more):
    """The shape of a program that lld links: code in the page of the file where data ends, and another page of memory.

    The segments' contents are not there, as in a separate debug file.
    """
    link = b"x.debug\0" + struct.pack(prefix + "I", 0xDEADBEEF)
    return make_elf(
        bits,
        prefix,
        programs=[
            (1, 4, (0, 0x93C), 0x10000, 0x93C, 0x1000),
            (1, 5, (0x940, 0x4C0), 0x11940, 0x4C0, 0x1000),
            (1, 6, (0xE00, 0x260), 0x12E00, 0x1200, 0x1000),
            (4, 4, note(prefix, b"Go\0\0", 4, b"abc") + note(prefix, b"GNU\0", 3, BUILD_ID), 0, 0, 4),
        ],
        sections=[
            (b".text", 1, 6, 0x11940, (0x940, 0x4C0)),
            (b".bss", 8, 3, 0x13060, (0x1060, 0x1200)),
            (b".gnu_debuglink", 1, 1, 0, link),  # SHF_WRITE means nothing without SHF_ALLOC
        ],
        **more,
    )


def patched(data, offset, form, value):
    out = bytearray(data)
    struct.pack_into(form, out, offset, value)
    return bytes(out)
