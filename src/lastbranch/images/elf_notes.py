"""The build id of an ELF file: a note of type ``NT_GNU_BUILD_ID`` by "GNU" (gABI, Note Section; ld, --build-id)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from ..errors import FormatError
from ..model import BytesSource, Source
from .elf_layout import NOTE, PT, SHT
from .layout import ByteOrder, Record, read_exactly

__all__ = ["build_id", "build_id_in"]

NT_GNU_BUILD_ID = 3
OWNER = b"GNU\0"

NOTES_LIMIT = 1 << 16
"""Most notes looked at in one file. A core file has some five for each thread, and no build id of its own."""

ID_LIMIT = 256
"""Longest build id in bytes; linkers write 8 to 32, and ``--build-id=0x...`` what the user gives."""


def build_id(programs: Sequence[Record], sections: Sequence[Record], order: ByteOrder) -> bytes | None:
    """The build id from the note segments, or else from the note sections; ``None`` if there is none.

    Sections come second, and are needed: kernel modules and other relocatable files have no segments, and in some
    separate debug files the program headers are those of the program and point anywhere. Damage in one place is
    therefore raised (`FormatError`) only if no other holds an id.
    """
    budget = iter(range(NOTES_LIMIT))  # for all areas together: they may be many, and the same bytes
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
    """The build id among ``notes`` of this machine, as a running kernel shows its own; empty where there is none."""
    try:
        return _walk(BytesSource(notes), 0, len(notes), 4, sys.byteorder, iter(range(NOTES_LIMIT))) or b""
    except FormatError:
        return b""


def _areas(programs: Sequence[Record], sections: Sequence[Record]) -> Iterator[tuple[Record, str, str, int]]:
    """Where notes are: the header, its fields for offset and length, and what the notes are aligned to."""
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
    # gABI says 8 in 64-bit files; what linkers write is 4, and 8 only where the header says so (.note.gnu.property).
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
        offset = description + _up(note["descsz"], step)  # at least the header further, so the walk ends
    return None


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
