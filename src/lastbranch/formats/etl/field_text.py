"""String and SID types of ETW payloads.

Wide strings are UTF-16LE in which lone surrogates are kept; narrow ones are shown as UTF-8, with bytes that are not
UTF-8 (the system's ANSI code page is not recorded) as surrogate escapes, so that both encode back exactly. Text that
its bytes alone do not follow from, such as one cut by the end of the event, comes as an `Exact`.
"""

from __future__ import annotations

import codecs
import struct
from typing import Any

from .field_values import Exact
from .fields import FieldType, Scalar, Short

__all__ = ["ANSI", "PLAIN_SID", "SID", "WIDE", "Counted", "Fixed", "Text", "Text16", "Text8"]


class Text:
    """A character coding: from bytes to a string and exactly back."""

    unit = 1
    coding, errors = "utf-8", "surrogateescape"
    decoder = staticmethod(codecs.utf_8_decode)

    def read(self, raw: bytes) -> str:
        return raw.decode(self.coding, self.errors)

    def write(self, text: str) -> bytes:
        return text.encode(self.coding, self.errors)

    def find_end(self, data: bytes, at: int, end: int) -> int:
        """Where the first NUL character stands, -1 without one."""
        return data.find(b"\0", at, end)


class Text8(Text):
    """One byte a unit."""


class Text16(Text):
    """Two bytes a unit."""

    unit = 2
    coding, errors = "utf-16-le", "surrogatepass"
    decoder = staticmethod(codecs.utf_16_le_decode)

    def read(self, raw: bytes) -> str:
        return raw[: len(raw) & ~1].decode(self.coding, self.errors)

    def find_end(self, data: bytes, at: int, end: int) -> int:
        found = data.find(b"\0\0", at, end)
        while found >= 0 and (found - at) % 2:
            found = data.find(b"\0\0", found + 1, end)
        return found


class _Terminated(FieldType):
    """A string up to its NUL character; without one before the end, all that is there (an `Exact`)."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        if at >= end:
            raise Short
        stop = self.text.find_end(data, at, end)
        if stop < 0:
            raw = bytes(data[at:end])
            return Exact(self.text.read(raw), raw), end
        return self.text.read(bytes(data[at:stop])), stop + self.text.unit

    def encode(self, value: Any, pointer: int) -> bytes:
        if isinstance(value, Exact):
            return value.raw
        if "\0" in value:
            raise ValueError("a NUL inside of a NUL-terminated string")
        return self.text.write(value) + bytes(self.text.unit)


class Fixed(FieldType):
    """A string in ``units`` characters of room, filled up with NUL; what else stands behind the first NUL is kept."""

    def __init__(self, units: int, text: Text) -> None:
        self.size, self.text = units * text.unit, text

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        after = at + self.size
        if after > end:
            raise Short
        raw = bytes(data[at:after])
        stop = self.text.find_end(raw, 0, self.size)
        text = self.text.read(raw if stop < 0 else raw[:stop])
        return (text if stop < 0 or not any(raw[stop:]) else Exact(text, raw)), after

    def encode(self, value: Any, pointer: int) -> bytes:
        raw = value.raw if isinstance(value, Exact) else self.text.write(value).ljust(self.size, b"\0")
        if len(raw) != self.size:
            raise ValueError(f"{len(raw)} bytes for a field of {self.size}")
        return raw


class Counted(FieldType):
    """A string behind its size, in bytes or units of ``scale`` bytes; NUL characters have no meaning in it."""

    def __init__(self, size: Scalar, text: Text, scale: int = 1) -> None:
        self.size, self.text, self.scale = size, text, scale

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        size, start = self.size.decode(data, at, end, pointer)
        size *= self.scale
        after = start + size
        if after > end:
            raise Short
        text = self.text.read(bytes(data[start:after]))
        return (Exact(text, bytes(data[at:after])) if size % self.text.unit else text), after

    def encode(self, value: Any, pointer: int) -> bytes:
        if isinstance(value, Exact):
            return value.raw
        raw = self.text.write(value)
        return self.size.encode(len(raw) // self.scale, pointer) + raw


WIDE, ANSI = _Terminated(Text16()), _Terminated(Text8())


class _Sid(FieldType):
    """A binary SID: u8 revision, u8 count, 6-byte authority (big endian), count u32 sub-authorities. As "S-1-5-18"."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        if at + 8 > end or data[at + 1] > 15 or at + 8 + 4 * data[at + 1] > end:
            raise Short
        after = at + 8 + 4 * data[at + 1]
        authority = int.from_bytes(data[at + 2 : at + 8], "big")
        subs = struct.unpack_from(f"<{data[at + 1]}I", data, at + 8)
        shown = authority if authority < 1 << 32 else f"{authority:#x}"
        return "-".join(map(str, ("S", data[at], shown, *subs))), after

    def encode(self, value: Any, pointer: int) -> bytes:
        if isinstance(value, Exact):
            return value.raw
        letter, revision, authority, *subs = value.split("-")
        if letter != "S" or len(subs) > 15:
            raise ValueError(f"not a SID: {value}")
        head = bytes([int(revision), len(subs)]) + int(authority, 0).to_bytes(6, "big")
        return head + struct.pack(f"<{len(subs)}I", *map(int, subs))


class _UserSid(FieldType):
    """The block before a process' name: TOKEN_USER (two pointers) and the SID, or 4 zero bytes for none (as "").

    The rule of Microsoft's reader takes a zero first u32 for "none"; some writers zero the TOKEN_USER and put a SID
    behind it all the same (facts: the Windows 7 test captures), so there the SID itself decides.
    """

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[Any, int]:
        if at + 4 > end:
            raise Short
        start = at + 2 * pointer
        if data[at : at + 4] == bytes(4) and not self._looks_like_sid(data, at, start, end):
            return "", at + 4
        text, after = PLAIN_SID.decode(data, start, end, pointer)
        return Exact(text, bytes(data[at:after])), after

    @staticmethod
    def _looks_like_sid(data: bytes, at: int, start: int, end: int) -> bool:
        if start + 8 > end or any(data[at:start]) or data[start] != 1:
            return False
        return 1 <= data[start + 1] <= 15 and start + 8 + 4 * data[start + 1] <= end

    def encode(self, value: Any, pointer: int) -> bytes:
        if isinstance(value, Exact):
            return value.raw
        if not value:
            return bytes(4)
        return b"\1".ljust(2 * pointer, b"\0") + PLAIN_SID.encode(value, pointer)


PLAIN_SID, SID = _Sid(), _UserSid()
