"""Buffers and strings between the caller and the calls: size_of_buffer with buf_ptr, and wide strings (9.4)."""

from __future__ import annotations

import ctypes
from typing import Any

from .call import TooSmall
from .status import Status, TbrwError

__all__ = ["fill", "fill_text", "room", "taken", "utf8_to_wcs", "wcs_to_utf8"]

_WIDE = ctypes.sizeof(ctypes.c_wchar)


def _raw(data: Any) -> bytes:
    if data is None:
        raise TbrwError(Status.BUFFER_NULL, "no data")
    try:
        return data if isinstance(data, bytes) else memoryview(data).tobytes()
    except TypeError:
        raise TbrwError(Status.BAD_PARAMETER, f"a {type(data).__name__} is not data") from None


def taken(size: int, data: Any) -> bytes:
    """The first ``size`` bytes of what a caller gave as data."""
    found = _raw(data)
    if not 0 <= size <= len(found):
        raise TbrwError(Status.BUFFER_OVERFLOW, f"{size} bytes of data are announced, {len(found)} are there")
    return found[:size]


def room(size: int, buffer: Any, needed: int) -> Any:
    """A view of ``needed`` bytes of a caller's buffer that has ``size``."""
    if size < needed:
        raise TooSmall(size, needed)
    if buffer is None:
        raise TbrwError(Status.BUFFER_NULL, "no buffer")
    try:
        return (ctypes.c_char * needed).from_buffer(buffer)
    except TypeError:
        raise TbrwError(Status.BAD_PARAMETER, f"a {type(buffer).__name__} cannot be written to") from None
    except ValueError:
        raise TbrwError(Status.BUFFER_OVERFLOW, f"the buffer does not have the {size} bytes it is said to") from None


def fill(size: int, buffer: Any, data: bytes) -> int:
    """Copy ``data`` into a caller's buffer; the bytes used."""
    if size or data:  # the size of nothing can be asked for as that of anything else
        ctypes.memmove(room(size, buffer, len(data)), data, len(data))
    return len(data)


def fill_text(size: int, buffer: Any, text: str) -> int:
    """Copy a string with its NUL into a caller's buffer of wide characters; the bytes used."""
    return fill(size, buffer, ctypes.string_at(ctypes.create_unicode_buffer(text), (len(text) + 1) * _WIDE))


def utf8_to_wcs(utf8: Any, wcs: Any, wcs_size: int) -> int:
    """UTF-8 into a buffer of ``wcs_size`` wide characters; the characters used, with the NUL."""
    data = _raw(utf8).partition(b"\0")[0]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TbrwError(Status.INVALID_STRING, f"not UTF-8: {error}") from None
    wide = ctypes.create_unicode_buffer(text)
    if wcs_size < len(wide):
        raise TooSmall(wcs_size, len(wide))
    return fill(wcs_size * _WIDE, wcs, bytes(wide)) // _WIDE


def wcs_to_utf8(wcs: Any, utf8: Any, utf8_size: int) -> int:
    """A wide string (`str`, or a ctypes buffer) into a buffer of ``utf8_size`` bytes; the bytes used, with the NUL."""
    if wcs is None:
        raise TbrwError(Status.BUFFER_NULL, "no string")
    text = wcs if isinstance(wcs, str) else getattr(wcs, "value", None)
    if not isinstance(text, str):
        raise TbrwError(Status.BAD_PARAMETER, f"a {type(wcs).__name__} is not a wide string")
    try:
        return fill(utf8_size, utf8, text.partition("\0")[0].encode() + b"\0")
    except UnicodeEncodeError as error:
        raise TbrwError(Status.INVALID_STRING, f"not Unicode: {error}") from None
