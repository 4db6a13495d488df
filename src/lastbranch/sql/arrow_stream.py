"""Chunks of a table as a stream of Arrow's C interface, which DuckDB reads while it runs a query, without pyarrow.

https://arrow.apache.org/docs/format/CDataInterface.html, CStreamInterface.html and .../PyCapsuleInterface.html
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterator, Sequence
from errno import EIO
from itertools import count
from typing import Any

import numpy as np

from .. import native
from ..model import Array

__all__ = ["FORMATS", "ChunkStream"]

FORMATS = {"int64": b"l", "uint64": b"L", "int32": b"i", "uint8": b"C", "bool": b"C"}
"""NumPy dtype of a column -> its format in Arrow. There a bool would be one bit: it is sent as a byte."""


# -- The structures, in the order of the specification


class _Schema(c.Structure):
    pass


class _Array(c.Structure):
    pass


class _Stream(c.Structure):
    pass


_ReleaseSchema = c.CFUNCTYPE(None, c.POINTER(_Schema))
_ReleaseArray = c.CFUNCTYPE(None, c.POINTER(_Array))
_ReleaseStream = c.CFUNCTYPE(None, c.POINTER(_Stream))
_GetSchema = c.CFUNCTYPE(c.c_int, c.POINTER(_Stream), c.POINTER(_Schema))
_GetNext = c.CFUNCTYPE(c.c_int, c.POINTER(_Stream), c.POINTER(_Array))
_GetLastError = c.CFUNCTYPE(c.c_void_p, c.POINTER(_Stream))
_Schema._fields_ = [
    ("format", c.c_char_p), ("name", c.c_char_p), ("metadata", c.c_char_p), ("flags", c.c_int64),
    ("n_children", c.c_int64), ("children", c.POINTER(c.POINTER(_Schema))), ("dictionary", c.POINTER(_Schema)),
    ("release", _ReleaseSchema), ("private_data", c.c_void_p),
]  # fmt: skip
_Array._fields_ = [
    ("length", c.c_int64), ("null_count", c.c_int64), ("offset", c.c_int64), ("n_buffers", c.c_int64),
    ("n_children", c.c_int64), ("buffers", c.POINTER(c.c_void_p)), ("children", c.POINTER(c.POINTER(_Array))),
    ("dictionary", c.POINTER(_Array)), ("release", _ReleaseArray), ("private_data", c.c_void_p),
]  # fmt: skip
_Stream._fields_ = [
    ("get_schema", _GetSchema),
    ("get_next", _GetNext),
    ("get_last_error", _GetLastError),
    ("release", _ReleaseStream),
    ("private_data", c.c_void_p),
]
_NULLABLE = 2
_capsule: Callable[[int, bytes, None], object] = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_char_p, c.c_void_p)(
    ("PyCapsule_New", c.pythonapi)
)
_SCHEMA_NAME, _STREAM_NAME = b"arrow_schema", b"arrow_array_stream"


# -- The objects that the reader holds, by the number in ``private_data``; an object lives until the reader's release

_held: dict[int, Any] = {}
_numbers = count(1)


def _hold(what: Any) -> int:
    number = next(_numbers)
    _held[number] = what
    return number


def _pointers(structures: Sequence[Any], kind: Any) -> Any:
    return (c.POINTER(kind) * len(structures))(*map(c.pointer, structures))


class _Chunks:
    """A stream that is open: what is left of the chunks."""

    def __init__(self, owner: ChunkStream) -> None:
        self.owner, self.left = owner, owner.chunks()


# -- What the reader calls, from any of its threads but one at a time for each stream


def _release_function(release: Any) -> Any:
    """The `release` function of a structure, which the reader calls."""

    def let_go(structure: Any) -> None:
        _held.pop(structure.contents.private_data, None)
        structure.contents.release = release()

    return release(let_go)


def _schema_of(stream: Any, out: Any) -> int:
    _held[stream.contents.private_data].owner.describe(out.contents)
    return 0


def _next_of(stream: Any, out: Any) -> int:
    chunks: _Chunks = _held[stream.contents.private_data]
    try:
        chunk = next(chunks.left, None)
        if chunk is None:
            out.contents.release = _ReleaseArray()  # the end
        else:
            chunks.owner.fill(out.contents, chunk)
    except BaseException as error:  # whoever runs the query raises it
        chunks.owner.error = error
        return EIO
    return 0


_FAILED = c.create_string_buffer(b"the table cannot be read")
_release_schema, _release_array = _release_function(_ReleaseSchema), _release_function(_ReleaseArray)
_CALLS = (
    _GetSchema(_schema_of),
    _GetNext(_next_of),
    _GetLastError(lambda _: c.addressof(_FAILED)),
    _release_function(_ReleaseStream),
)


class ChunkStream:
    """``chunks()`` begins to read a table from its front; a chunk has columns by name, and missing columns are NULL.

    ``columns``: name and dtype of each (`FORMATS`). ``error`` is what went wrong in reading.
    """

    def __init__(self, columns: Sequence[tuple[str, str]], chunks: Callable[[], Iterator[dict[str, Array]]]) -> None:
        self.columns, self.chunks = columns, chunks
        self.error: BaseException | None = None

    def __arrow_c_schema__(self) -> object:
        self._schema = _Schema()  # the capsule points to it
        self.describe(self._schema)
        return _capsule(c.addressof(self._schema), _SCHEMA_NAME, None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        number = _hold(_Chunks(self))
        stream = _Stream(*_CALLS, number)
        _held[number].structure = stream  # until the reader has moved it
        return _capsule(c.addressof(stream), _STREAM_NAME, None)

    def describe(self, out: _Schema) -> None:
        """Fill in the schema: a structure of the columns."""
        parts = [
            _Schema(FORMATS[kind], name.encode(), None, _NULLABLE, 0, None, None, _release_schema, None)
            for name, kind in self.columns
        ]
        children = _pointers(parts, _Schema)
        number = _hold((parts, children))
        values = b"+s", b"", None, 0, len(parts), children, None, _release_schema, number
        for (field, *_), value in zip(_Schema._fields_, values, strict=True):
            setattr(out, field, value)

    def fill(self, out: _Array, chunk: dict[str, Array]) -> None:
        """Give a copy of ``chunk`` to the reader: the reader keeps it longer than the chunk lives."""
        rows = len(next(iter(chunk.values())))
        held: list[Any] = []
        parts = []
        for name, declared in self.columns:
            kind = "uint8" if declared == "bool" else declared  # beside 0 and 1 there is what means NULL
            column = np.array(chunk[name], kind) if name in chunk else np.zeros(rows, kind)
            known = None if name in chunk else np.zeros((rows + 7) // 8, np.uint8)
            buffers = (c.c_void_p * 2)(None if known is None else native.address(known), native.address(column))
            held += [column, known, buffers]
            nulls = 0 if known is None else rows
            parts.append(_Array(rows, nulls, 0, 2, 0, buffers, None, None, _release_array, None))
        children, none = _pointers(parts, _Array), (c.c_void_p * 1)(None)
        number = _hold((held, parts, children, none))
        values = rows, 0, 0, 1, len(parts), none, children, None, _release_array, number
        for (field, *_), value in zip(_Array._fields_, values, strict=True):
            setattr(out, field, value)
