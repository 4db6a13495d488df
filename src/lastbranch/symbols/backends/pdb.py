"""Functions of a PDB: public symbols, and procedures of its modules (LLVM documentation, "The PDB File Format").

Public symbols have linkage names and no sizes, and only functions that other modules may call have one. Procedures have
sizes and plain names. A function gets the linkage name where it has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import numpy as np

from ...binaries.files import Space
from ...binaries.pdb import DBI_STREAM, Streams
from ...model import Source
from .symbols import Symbols, until_next

__all__ = ["pdb_symbols"]

DBI = np.dtype([
    ("VersionSignature", "<i4"), ("VersionHeader", "<u4"), ("Age", "<u4"), ("GlobalStreamIndex", "<u2"),
    ("BuildNumber", "<u2"), ("PublicStreamIndex", "<u2"), ("PdbDllVersion", "<u2"), ("SymRecordStream", "<u2"),
    ("PdbDllRbld", "<u2"), ("ModInfoSize", "<i4"), ("SectionContributionSize", "<i4"), ("SectionMapSize", "<i4"),
    ("SourceInfoSize", "<i4"), ("TypeServerMapSize", "<i4"), ("MFCTypeServerIndex", "<u4"),
    ("OptionalDbgHeaderSize", "<i4"), ("ECSubstreamSize", "<i4"), ("Flags", "<u2"), ("Machine", "<u2"),
    ("Padding", "<u4"),
])  # fmt: skip
BEFORE_DEBUG_HEADER = (
    "ModInfoSize", "SectionContributionSize", "SectionMapSize", "SourceInfoSize", "TypeServerMapSize",
    "ECSubstreamSize",
)  # fmt: skip
"""The substreams, in their order, before the one that lists the debug streams."""
SECTION_HEADERS = 5  # row of that list
SECTION = np.dtype([("Name", "S8"), ("VirtualSize", "<u4"), ("VirtualAddress", "<u4"), ("rest", "V24")])

S_PUB32, S_LPROC32, S_GPROC32, S_LPROC32_ID, S_GPROC32_ID = 0x110E, 0x110F, 0x1110, 0x1146, 0x1147
PROCEDURES = frozenset({S_LPROC32, S_GPROC32, S_LPROC32_ID, S_GPROC32_ID})
PUBLIC = Struct("<IIH")  # flags, offset, segment; the name follows
PROCEDURE = Struct("<IIIIIIIIHB")  # parent, end, next, size, debug start, debug end, type, offset, segment, flags
IS_CODE = 1 | 2  # flags of S_PUB32: code, function
RECORD = Struct("<HH")
MODULE = Struct("<HI")  # stream and bytes of symbols, at 34 of a module's record
MODULE_SIZE = 64
NO_STREAM = 0xFFFF
GLOBALS = frozenset({S_GPROC32, S_GPROC32_ID})


def pdb_symbols(source: Source) -> Symbols:
    """The functions and public symbols of the PDB in ``source``, by addresses that count from the image's base."""
    streams = Streams(source)
    space = streams.stream(DBI_STREAM, "DBI")
    if space.size < DBI.itemsize:
        raise space.bad("shorter than its header", 0, "DBI", space.size)
    header = space.data[: DBI.itemsize].view(DBI)[0]
    at = DBI.itemsize
    for name in BEFORE_DEBUG_HEADER:
        size = int(header[name])
        if not 0 <= size <= space.size - at:
            raise space.bad("a substream that is longer than what is left", at, name, size)
        at += size
    listed = space.read(at + 2 * np.arange(SECTION_HEADERS + 1), 2)
    sections = streams.stream(int(listed[SECTION_HEADERS]), "SectionHeaders")
    table = sections.data[: sections.size // SECTION.itemsize * SECTION.itemsize].view(SECTION)
    bases = table["VirtualAddress"].astype(np.int64).tolist()

    found: list[tuple[int, int, bool, bool, bytes]] = []
    linkage: dict[int, bytes] = {}
    for code, segment, offset, called in _publics(streams.stream(int(header["SymRecordStream"]), "SymRecords")):
        if 0 < segment <= len(bases):
            start = bases[segment - 1] + offset
            linkage.setdefault(start, called)
            found.append((start, 0, code, True, called))
    known = set()
    for stream, size in _modules(space, DBI.itemsize, int(header["ModInfoSize"])):
        for kind, segment, offset, length, called in _procedures(streams.stream(stream, "ModuleSymbols"), size):
            if 0 < segment <= len(bases):
                start = bases[segment - 1] + offset
                known.add(start)
                found.append((start, length, True, kind in GLOBALS, linkage.get(start, called)))
    found = [f for f in found if f[1] or f[0] not in known]
    ends = [base + size for base, size in zip(bases, table["VirtualSize"].tolist(), strict=True)]
    return until_next(Symbols.of(found), np.array(ends, np.uint64))


def _records(space: Space, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(kind, offset of its fields, offset of the next one) of each record. Raises `FormatError`."""
    while at + RECORD.size <= end:
        length, kind = RECORD.unpack_from(space.raw, at)
        following = at + 2 + length
        if length < 2 or following > end:
            raise space.bad("a record that is longer than what is left", at, "RecordLen", length)
        yield kind, at + RECORD.size, following
        at = following


def _publics(space: Space) -> Iterator[tuple[bool, int, int, bytes]]:
    for kind, at, end in _records(space, 0, space.size):
        if kind == S_PUB32 and end - at > PUBLIC.size:
            flags, offset, segment = PUBLIC.unpack_from(space.raw, at)
            yield bool(flags & IS_CODE), segment, offset, _name(space, at + PUBLIC.size, end)


def _modules(space: Space, at: int, size: int) -> Iterator[tuple[int, int]]:
    """(stream, bytes of symbols) of each module that has any."""
    end = at + size
    while at + MODULE_SIZE < end:
        stream, symbols = MODULE.unpack_from(space.raw, at + 34)
        name = space.raw.find(b"\0", at + MODULE_SIZE, end)
        path = space.raw.find(b"\0", name + 1, end) if name >= 0 else -1
        if path < 0:
            raise space.bad("a module without its names", at, "ModuleName", stream)
        if stream != NO_STREAM and symbols:
            yield stream, symbols
        at += -(-(path + 1 - at) // 4) * 4


def _procedures(space: Space, size: int) -> Iterator[tuple[int, int, int, int, bytes]]:
    """(kind, segment, offset, size, name) of each procedure of a module; the first four bytes are a signature."""
    for kind, at, end in _records(space, 4, min(size, space.size)):
        if kind in PROCEDURES and end - at > PROCEDURE.size:
            fields = PROCEDURE.unpack_from(space.raw, at)
            yield kind, fields[8], fields[7], fields[3], _name(space, at + PROCEDURE.size, end)


def _name(space: Space, at: int, end: int) -> bytes:
    stop = space.raw.find(b"\0", at, end)
    return bytes(space.raw[at : stop if stop >= 0 else end])
