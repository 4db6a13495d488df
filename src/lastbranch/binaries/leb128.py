"""Single LEB128 numbers (DWARF 5, 7.6); `files.Space` reads many at once. Recordings start without NumPy, so this
module does, too."""

from __future__ import annotations

import sys

__all__ = ["TOO_LONG", "sleb", "uleb"]

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
