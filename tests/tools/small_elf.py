"""The smallest ELF file that has code at a given address."""

from __future__ import annotations

import struct

GO_NOTE = struct.pack("<III", 4, 12, 4) + b"Go\0\0" + b"aB3_/cD-4/eF"
"""The note of Go's linker: owner "Go", type 4, the text that `go tool buildid` prints."""


def tiny_elf(code: bytes, note: bytes = b"") -> bytes:
    """An executable whose only segment of code has ``code`` at 0x401000, file offset 0x1000."""
    number = 2 if note else 1
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, 0x401000, 64, 0, 0, 64, 56, number, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0x1000, 0x401000, 0x401000, len(code), len(code), 0x1000)
    if note:
        segment += struct.pack("<IIQQQQQQ", 4, 4, 0x200, 0x200, 0x200, len(note), len(note), 4)
    return ((header + segment).ljust(0x200, b"\0") + note).ljust(0x1000, b"\0") + code
