"""Fields of binary records: one declaration, as names and codes, drives both reading and writing.

Errors are in words: what `struct` says of its format codes helps no user.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

__all__ = ["Fields", "Hex", "decode", "decoder", "encode", "misfit", "pack_number", "unpack"]

Fields = tuple[tuple[str, Any], ...]
"""Names with their codes, in the order of the specification.

A code is one of `struct`, or one of `CODES`; ``text`` (up to a NUL) and ``bytes`` (the rest of the record) come last. A
tuple of fields is repeated up to the end of the record.
"""
CODES: dict[str, str] = {"A": "Q", "X": "I", "N": "16s"}
"""Beyond `struct`: addresses and bits of 64 and of 32 bits, which people read in hexadecimal, and names of 16 bytes."""


class Hex(int):
    """A number that people read in hexadecimal: an address, a key, a mask."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{int(self):#x}"


def decode(
    fields: Fields, data: bytes, order: str, number: Callable[[int], int] = int, *, cut: bool = False
) -> dict[str, Any]:
    """Values of ``fields`` in ``data``, of byte order ``order`` (``<``, ``>`` or ``=``). ``number`` makes those of
    codes A and X. Bytes after the last field are padding.

    Raises `ValueError` if ``data`` end inside the fields; with ``cut``, returns the fields before the end.
    """
    if cut:
        while _struct_of(fields, order).size > len(data):
            fields = fields[:-1]
    return decoder(fields, order, number)(data)


@cache
def decoder(fields: Fields, order: str, number: Callable[[int], int] = int) -> Callable[[bytes], dict[str, Any]]:
    """`decode` with these arguments, for many records."""
    fixed, last = _split(fields)
    packed, names = _struct_of(fields, order), [name for name, _ in fixed]
    kinds: dict[str, Callable[[Any], Any]] = {"N": _text} | ({} if number is int else {"A": number, "X": number})
    shown = [(name, kinds[code]) for name, code in fixed if code in kinds]
    rest_of: Callable[[bytes], Any] = bytes
    if last is not None and last[1] != "bytes":
        rest_of = _text if last[1] == "text" else _rows(last[1], order, number)

    def values_of(data: bytes) -> dict[str, Any]:
        if packed.size > len(data):
            raise ValueError(f"{packed.size} bytes of fields needed, {len(data)} available")
        found = dict(zip(names, packed.unpack_from(data), strict=True))
        for name, made_of in shown:
            found[name] = made_of(found[name])
        if last is not None:
            found[last[0]] = rest_of(data[packed.size :])
        return found

    return values_of


def _split(fields: Fields) -> tuple[Fields, tuple[str, Any] | None]:
    """(fields of fixed size, the field after them that takes the rest of the record)."""
    if fields and (isinstance(fields[-1][1], tuple) or fields[-1][1] in ("text", "bytes")):
        return fields[:-1], fields[-1]
    return fields, None


@cache
def _struct_of(fields: Fields, order: str) -> struct.Struct:
    codes: list[str] = [code for _, code in _split(fields)[0]]
    return struct.Struct(order + "".join(CODES.get(code, code) for code in codes))


def _rows(fields: Fields, order: str, number: Callable[[int], int]) -> Callable[[bytes], list[Any]]:
    """The repeated groups; for a group of one field, its values."""
    row_of, width = decoder(fields, order, number), _struct_of(fields, order).size

    def rows_of(data: bytes) -> list[Any]:
        rows = [row_of(data[at : at + width]) for at in range(0, len(data) - width + 1, width)]
        return [next(iter(row.values())) for row in rows] if len(fields) == 1 else rows

    return rows_of


def _text(data: bytes) -> str:
    return data.split(b"\0")[0].decode("utf-8", "surrogateescape")


def encode(fields: Fields, values: Mapping[str, Any], order: str = "=") -> bytes:
    """The bytes from which `decode` reads ``values``. Fields without a value are 0; text may be `bytes`, and gets its
    NUL."""
    fixed, last = _split(fields)
    data = _struct_of(fields, order).pack(
        *(values.get(name, b"" if str(code).endswith("s") else 0) for name, code in fixed)
    )
    if last is not None:
        rest = values.get(last[0], b"")
        data += rest.encode("utf-8", "surrogateescape") if isinstance(rest, str) else rest
        data += b"\0" if last[1] == "text" else b""
    return data


def unpack(codes: str, data: bytes, at: int = 0) -> tuple[Any, ...]:
    """`struct.unpack_from`. Raises `ValueError` where ``data`` ends inside the fields."""
    size = struct.calcsize(codes)
    if size > len(data) - at:
        raise ValueError(f"{size} bytes needed at byte {at}, {max(0, len(data) - at)} left")
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
