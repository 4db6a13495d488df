"""Encodings of a text: ASCII or UTF-8 as perf writes it, and UTF-16 with a byte order mark as PowerShell's ``>`` does.

A reader sees all of them as bytes of one character each in the ASCII range; what is beyond is only in names.
"""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE

import numpy as np

from ...model import Source

__all__ = ["is_text", "one_byte_text"]

_CONTROL = bytes(byte for byte in range(32) if byte not in b"\t\r\n") + b"\x7f"
_WIDE = {BOM_UTF16_LE: "<u2", BOM_UTF16_BE: ">u2"}
_UNKNOWN = ord("?")


def is_text(start: bytes) -> bool:
    """Whether ``start`` is the beginning of a text."""
    dtype = _WIDE.get(start[:2])
    if dtype:
        start = _narrow(start[2 : len(start) & ~1], dtype)
    return bool(start) and start.translate(None, _CONTROL) == start


def one_byte_text(source: Source) -> Source:
    """``source`` without a byte order mark; a source of UTF-16 with a byte a character, ``?`` for those beyond ASCII.

    Offsets count from the byte after the mark, in characters.
    """
    start = bytearray(3)
    got = bytes(start[: source.readinto(0, memoryview(start))])
    if dtype := _WIDE.get(got[:2]):
        return _Marked(source, 2, dtype)
    return _Marked(source, 3, None) if got == BOM_UTF8 else source


def _narrow(data: bytes, dtype: str) -> bytes:
    units = np.frombuffer(data, dtype)
    return np.where(units < 0x80, units, _UNKNOWN).astype(np.uint8).tobytes()


class _Marked:
    """The characters of ``source`` after a mark of ``skip`` bytes; ``dtype``: of UTF-16."""

    def __init__(self, source: Source, skip: int, dtype: str | None) -> None:
        self._source, self._skip, self._dtype = source, skip, dtype
        self._width = 2 if dtype else 1
        self.name, self.limits = source.name, source.limits

    @property
    def size(self) -> int:
        return max(0, self._source.size - self._skip) // self._width

    def readinto(self, offset: int, buffer: memoryview) -> int:
        at = self._skip + offset * self._width
        if self._dtype is None:
            return self._source.readinto(at, buffer)
        wide = bytearray(2 * len(buffer))
        got = self._source.readinto(at, memoryview(wide)) // 2
        buffer[:got] = _narrow(bytes(wide[: 2 * got]), self._dtype)
        return got

    def expect(self, offset: int, length: int) -> None:
        self._source.expect(self._skip + offset * self._width, length * self._width)
