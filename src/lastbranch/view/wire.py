"""An `Answer` as bytes, for the viewer (web/src/wire.ts reads them).

    0   4 bytes   "LBV1"
    4   uint32    length of the header
    8   header    JSON: {"header": ..., "columns": [[name, kind, length], ...]}, then spaces up to a multiple of 8
    ..  columns   one after the other, each padded with zeros to a multiple of 8

All numbers are little-endian. ``kind`` is a dtype of `DTYPES`, or ``text``: ``length + 1`` uint32 offsets into the
UTF-8 bytes that follow the offsets.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ..errors import FormatError
from .answer import Answer, Column

__all__ = ["DTYPES", "MAGIC", "decode", "encode", "packed"]

MAGIC = b"LBV1"
DTYPES = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8")
"""The dtypes of columns of numbers."""
_START = struct.Struct("<4sI")
_ALIGN = 8


def encode(answer: Answer) -> bytes:
    """``answer`` as bytes. Raises `ValueError` for a column that is none of `DTYPES`, `TypeError` for a header that is
    not JSON."""
    table, parts = [], list[bytes]()
    for name, column in answer.columns.items():
        kind, data = _numbers(name, column) if isinstance(column, np.ndarray) else ("text", _texts(column))
        table.append([name, kind, len(column)])
        parts.append(data + bytes(-len(data) % _ALIGN))
    header = json.dumps({"header": answer.header, "columns": table}, separators=(",", ":"), allow_nan=False).encode()
    header += b" " * (-len(header) % _ALIGN)
    return b"".join([_START.pack(MAGIC, len(header)), header, *parts])


def packed(answer: Answer) -> bytes:
    """`encode`, compressed: the same bytes for the same answer, as nothing in it is a time."""
    return gzip.compress(encode(answer), _LEVEL, mtime=0)


_LEVEL = 6
"""The highest, 9, takes six times as long for 2 % less (benchmarks/bench_view.py)."""


def _numbers(name: str, column: Column) -> tuple[str, bytes]:
    assert isinstance(column, np.ndarray)
    values = column.astype(np.uint8) if column.dtype == bool else column
    values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    kind = values.dtype.str
    if kind not in DTYPES or values.ndim != 1:
        raise ValueError(f"column {name}: {column.ndim} dimensions of {column.dtype}, not one of {', '.join(DTYPES)}")
    return kind, values.tobytes()


def _texts(column: Sequence[str]) -> bytes:
    raw = [text.encode("utf-8", "backslashreplace") for text in column]  # a lone surrogate has no UTF-8
    offsets = np.zeros(len(raw) + 1, "<u4")
    sizes = np.cumsum([len(one) for one in raw], dtype=np.int64)
    if len(sizes) and sizes[-1] > np.iinfo(np.uint32).max:
        raise ValueError(f"{sizes[-1]} bytes of text do not fit into one column")
    offsets[1:] = sizes
    return offsets.tobytes() + b"".join(raw)


# -- back again: for tests, and for programs that read a single file


def decode(data: bytes) -> Answer:
    """The answer in ``data``. Raises `FormatError` where these are not the bytes of one."""
    if len(data) < _START.size:
        raise FormatError("no answer: too short", offset=0)
    magic, size = _START.unpack_from(data)
    if magic != MAGIC or size > len(data) - _START.size:
        raise FormatError("no answer", offset=0, field="magic", value=magic)
    try:
        whole = json.loads(data[_START.size : _START.size + size])
        header, table = (
            whole["header"],
            [(str(name), str(kind), int(length)) for name, kind, length in whole["columns"]],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError("no answer: its header is damaged", offset=_START.size) from error
    return Answer(header, dict(_columns(data, _START.size + size, table)))


def _columns(data: bytes, at: int, table: list[tuple[str, str, int]]) -> Iterator[tuple[str, Column]]:
    for name, kind, length in table:
        width = 4 if kind == "text" else np.dtype(kind).itemsize if kind in DTYPES else 0
        size = width * (length + (kind == "text"))
        if not width or length < 0 or size > len(data) - at:
            raise FormatError("damaged answer", offset=at, field=name, value=length)
        values = np.frombuffer(data, "<u4" if kind == "text" else kind, size // width, at)
        at += size
        if kind != "text":
            yield name, values
        else:
            bounds = values.tolist()
            if sorted(bounds) != bounds or bounds[0] or bounds[-1] > len(data) - at:
                raise FormatError("damaged answer", offset=at, field=name)
            yield name, [data[at + lo : at + hi].decode(errors="replace") for lo, hi in pairwise(bounds)]
            size, at = size + bounds[-1], at + bounds[-1]
        at += -size % _ALIGN
