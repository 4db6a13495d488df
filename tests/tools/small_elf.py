"""The smallest ELF file that has code at a given address."""

from __future__ import annotations


def tiny_elf(code: bytes) -> bytes:
    """An executable whose only segment has ``code`` at 0x401000, file offset 0x1000."""
    import struct

    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, 0x401000, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0x1000, 0x401000, 0x401000, len(code), len(code), 0x1000)
    return (header + segment).ljust(0x1000, b"\0") + code
