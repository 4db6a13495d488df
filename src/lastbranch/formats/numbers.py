"""Numbers out of bytes and into them, with errors in words: what `struct` says of its format codes helps no user."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

__all__ = ["misfit", "pack_number", "unpack"]


def unpack(codes: str, data: bytes, at: int = 0) -> tuple[Any, ...]:
    """`struct.unpack_from`. Raises `ValueError` where ``data`` ends inside the fields."""
    size = struct.calcsize(codes)
    if size > len(data) - at:
        raise ValueError(f"{size} bytes wanted at byte {at}, and {max(0, len(data) - at)} are left")
    return struct.unpack_from(codes, data, at)


def pack_number(code: struct.Struct, value: Any) -> bytes:
    """``value`` as the one field ``code``. Raises `ValueError` for what it cannot hold."""
    try:
        return code.pack(value)
    except (struct.error, OverflowError, TypeError) as error:
        raise ValueError(f"{value!r} does not fit in a field of {code.size} bytes") from error


def misfit(fields: Iterable[tuple[str, str]], values: Iterable[Any]) -> str:
    """Which of ``values`` does not fit in its field (name, `struct` code), for an error message."""
    for (name, code), value in zip(fields, values, strict=False):
        try:
            pack_number(struct.Struct("<" + code), value)
        except ValueError as error:
            return f"{name}: {error}"
    return "the fields do not match the layout"
