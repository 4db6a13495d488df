"""Plain values (text, whole numbers, truth, bytes, lists and dicts of them) as records of 24 bytes, in preorder.

What the guide has no place for is stored so: strings by their ids, once each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import numpy as np

from ...model import Array

__all__ = ["NODE", "pack", "unpack"]

NODE = np.dtype([("key", "<u8"), ("value", "<u8"), ("length", "<u4"), ("tag", "u1"), ("reserved", "u1", 3)])
"""``key`` is the string id of the name in a dict, else 0; ``value`` by ``tag``."""


class Tag(IntEnum):
    NONE = 0
    FALSE = 1
    TRUE = 2
    NUMBER = 3
    """``value`` is the number, unsigned."""
    NEGATIVE = 4
    """``value`` is -1 - the number."""
    TEXT = 5
    """``value`` is a string id."""
    BYTES = 6
    """``length`` bytes at ``value`` of the part beside."""
    LIST = 7
    """``value`` nodes follow, each with what is in it."""
    DICT = 8


_MOST = (1 << 64) - 1
_DEEPEST = 16


def pack(value: Any, string: Callable[[str], int]) -> tuple[Array, bytes]:
    """(records, bytes) of a value; ``string`` gives the id of a text."""
    rows: list[tuple[int, int, int, int]] = []
    data = bytearray()

    def add(value: Any, key: int = 0) -> None:
        match value:
            case None:
                rows.append((key, 0, 0, Tag.NONE))
            case bool():
                rows.append((key, 0, 0, Tag.TRUE if value else Tag.FALSE))
            case int():
                if not -_MOST - 1 <= value <= _MOST:
                    raise ValueError(f"{value} takes more than 64 bits")
                rows.append((key, value, 0, Tag.NUMBER) if value >= 0 else (key, -1 - value, 0, Tag.NEGATIVE))
            case str():
                rows.append((key, string(value), 0, Tag.TEXT))
            case bytes():
                rows.append((key, len(data), len(value), Tag.BYTES))
                data.extend(value)
            case list() | tuple():
                rows.append((key, len(value), 0, Tag.LIST))
                for one in value:
                    add(one)
            case dict():
                rows.append((key, len(value), 0, Tag.DICT))
                for name, one in value.items():
                    add(one, string(str(name)))
            case _:
                raise TypeError(f"{type(value).__name__} has no form in a TB5 file")

    add(value)
    out = np.zeros(len(rows), NODE)
    for name, column in zip(("key", "value", "length", "tag"), zip(*rows, strict=True), strict=True):
        out[name] = np.array(column, np.uint64)
    return out, bytes(data)


def unpack(records: Array, data: bytes, text: Callable[[int], str]) -> Any:
    """The value that `pack` was given (tuples as lists). Raises `ValueError` where the records make none."""
    if int(records["length"][records["tag"] == Tag.BYTES].sum(dtype=np.float64)) > len(data):
        raise ValueError("bytes of several values are the same")
    rows = iter(records[["tag", "key", "value", "length"]].tolist())
    value = _value(rows, data, text, 0)[1]
    if next(rows, None) is not None:
        raise ValueError("values are left over")
    return value


def _value(
    rows: Iterator[tuple[int, int, int, int]], data: bytes, text: Callable[[int], str], depth: int
) -> tuple[int, Any]:
    row = next(rows, None)
    if row is None or depth > _DEEPEST:
        raise ValueError("values are cut short" if row is None else "values are nested too deep")
    tag, key, value, length = row
    match tag:
        case Tag.NONE:
            return key, None
        case Tag.FALSE | Tag.TRUE:
            return key, tag == Tag.TRUE
        case Tag.NUMBER:
            return key, value
        case Tag.NEGATIVE:
            return key, -1 - value
        case Tag.TEXT:
            return key, text(value)
        case Tag.BYTES if value + length <= len(data):
            return key, data[value : value + length]
        case Tag.LIST:
            return key, [_value(rows, data, text, depth + 1)[1] for _ in range(value)]
        case Tag.DICT:
            inside = [_value(rows, data, text, depth + 1) for _ in range(value)]
            return key, {text(name): one for name, one in inside}
    raise ValueError(f"value of unknown kind {tag}" if tag > Tag.DICT else "bytes outside of their table")
