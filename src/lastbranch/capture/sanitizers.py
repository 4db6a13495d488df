"""Whether a program has LeakSanitizer, which fails under a tracer.

Every program that is executed during a recording is examined, and a build executes many. So a few kilobytes of a file
decide: the needed libraries, and whether the program defines its own ``malloc``, as programs with the sanitizer's
runtime linked in do. Only files that do are searched for the runtime's message.

Sources: System V gABI, chapter 5 (program header, dynamic section); for DT_GNU_HASH dl-lookup.c of the GNU C library.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

__all__ = ["file_contains", "has_leak_sanitizer"]

_LIBRARIES = (b"libasan.so.", b"liblsan.so.", b"libclang_rt.asan")
"""The beginnings of the names of libraries with LeakSanitizer."""
_MESSAGE = b"LeakSanitizer does not work under ptrace"
"""A message of the runtime. Compilers contain the names of its functions, too."""
_MALLOC = b"malloc\0"
_MOST_SEARCHED, _PIECE = 64 << 20, 1 << 20

_HEADER, _SEGMENT = struct.Struct("=32xQ14xHH"), struct.Struct("=IIQQQQQQ")
"""e_phoff, e_phentsize, e_phnum; Elf64_Phdr: type, flags, offset, address, physical address, bytes in the file..."""
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3  # PT_*
_ENTRY = struct.Struct("=QQ")
_NEEDED, _STRINGS, _SYMBOLS, _GNU_HASH = 1, 5, 6, 0x6FFFFEF5  # DT_*
_MOST_SEGMENTS, _MOST_DYNAMIC, _LONGEST_NAME = 128, 1 << 16, 64
_TABLE, _SYMBOL_BYTES, _MOST_CHAINED = struct.Struct("=IIII"), 24, 256
"""The header of the hash table: buckets, first symbol, words of the filter, shift of the filter."""


def has_leak_sanitizer(file: int) -> bool:
    """Whether the ELF file open as ``file``, of this machine's kind, has it. `False` for a file that is none."""
    try:
        program = _Program(file)
        if program.needs(_LIBRARIES):
            return True
        if program.is_dynamic and not program.defines(_MALLOC):
            return False
    except (struct.error, ValueError, OverflowError, OSError):
        pass  # nothing can be said without a search
    return file_contains(file, (_MESSAGE,))


def file_contains(file: int, words: Iterable[bytes]) -> bool:
    """Whether the first 64 MB of an open file contain one of ``words``."""
    words = tuple(words)
    overlap, end = max(map(len, words)) - 1, b""
    for at in range(0, _MOST_SEARCHED, _PIECE):
        piece = os.pread(file, _PIECE, at)  # not mapped: who cuts the file short would end us
        if not piece:
            break
        searched = end + piece
        if any(word in searched for word in words):
            return True
        end = searched[-overlap:]
    return False


class _Program:
    """The dynamic section of an ELF file. Raises `struct.error`, `ValueError`, `OverflowError` or `OSError` if the
    section is malformed."""

    def __init__(self, file: int) -> None:
        self._file = file
        at, size, count = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
        if size != _SEGMENT.size or count > _MOST_SEGMENTS:
            raise ValueError("program headers of another size")
        headers = os.pread(file, size * count, at)
        segments = [_SEGMENT.unpack_from(headers, row * size) for row in range(count)]
        self._loaded = [segment[2:] for segment in segments if segment[0] == _LOAD]
        self.is_dynamic = any(segment[0] == _INTERPRETER for segment in segments)
        """Whether a loader starts it, with libraries."""
        self._entries: list[tuple[int, int]] = []
        for segment in segments:
            if segment[0] == _DYNAMIC:
                words = os.pread(file, min(segment[5], _MOST_DYNAMIC), segment[2])
                self._entries += _ENTRY.iter_unpack(words[: len(words) // _ENTRY.size * _ENTRY.size])

    def needs(self, libraries: tuple[bytes, ...]) -> bool:
        """Whether the name of any needed library begins with an element of ``libraries``."""
        names = [value for tag, value in self._entries if tag == _NEEDED]
        return any(self._name(at).startswith(libraries) for at in names)

    def defines(self, name: bytes) -> bool:
        """Whether the program exports a symbol ``name`` (with its zero byte) to its libraries."""
        at, number = self._at(_GNU_HASH), _hash(name[:-1])
        buckets, first, words, _ = _TABLE.unpack(os.pread(self._file, _TABLE.size, at))
        at += _TABLE.size + 8 * words
        symbol = self._word(at + number % buckets * 4) if buckets else 0
        if symbol < first:
            return False
        chain = os.pread(self._file, 4 * _MOST_CHAINED, at + 4 * (buckets + symbol - first))
        for row, (value,) in enumerate(struct.iter_unpack("=I", chain[: len(chain) & -4])):
            if (value ^ number) & ~1 == 0:
                found = self._word(self._at(_SYMBOLS) + (symbol + row) * _SYMBOL_BYTES)
                if self._name(found).startswith(name):
                    return True
            if value & 1:  # the last one of the bucket
                return False
        raise ValueError("a long chain")

    def _at(self, tag: int) -> int:
        """The offset in the file of the table that entry ``tag`` of the dynamic section points to."""
        address = next((value for each, value in self._entries if each == tag), 0)
        for offset, start, _, size, *_ in self._loaded:
            if address and 0 <= address - start < size:
                return int(offset + address - start)
        raise ValueError("not in the file")

    def _word(self, at: int) -> int:
        (word,) = struct.unpack("=I", os.pread(self._file, 4, at))
        return int(word)

    def _name(self, begin: int) -> bytes:
        return os.pread(self._file, _LONGEST_NAME, self._at(_STRINGS) + begin)


def _hash(name: bytes) -> int:
    """dl_new_hash."""
    value = 5381
    for letter in name:
        value = value * 33 + letter & 0xFFFFFFFF
    return value
