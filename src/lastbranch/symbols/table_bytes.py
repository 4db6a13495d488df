"""Names and function tables as bytes, for the pipe to the worker and for the cache.

A JSON header lists the columns that follow: name, dtype and length. A list of texts is one column of bytes. Readers
check the header against the bytes that follow it, and accept no types but ``DTYPES``.
"""

from __future__ import annotations

import json
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import IO, Any, overload

import numpy as np
from numpy.typing import NDArray

from .model import NAME_COLUMNS, Function, FunctionTable, Names

__all__ = [
    "Columns",
    "PackedFunctions",
    "pack",
    "pack_functions",
    "pack_names",
    "read_packed",
    "texts_column",
    "texts_of",
    "unpack",
    "unpack_functions",
    "unpack_names",
]

DTYPES = frozenset({"<i4", "<i8", "<u4", "<u8", "|u1"})
_HEAD = struct.Struct("<4sIQ")
"""Magic, bytes of JSON, bytes of data."""
_MAGIC = b"LBsy"
_ALIGNED = 8
"""Columns begin at multiples of this: NumPy is slow with others."""

Columns = dict[str, NDArray[Any]]


def pack(meta: Mapping[str, object], columns: Mapping[str, NDArray[Any]]) -> bytes:
    """``meta`` (for JSON) and one-dimensional ``columns`` as bytes."""
    parts = [np.ascontiguousarray(c, c.dtype.newbyteorder("<")) for c in columns.values()]
    listed = [[name, p.dtype.str, len(p)] for name, p in zip(columns, parts, strict=True)]
    text = json.dumps({"meta": meta, "columns": listed}).encode()
    text += b" " * (-len(text) % _ALIGNED)
    size = sum(_pad(p.nbytes) for p in parts)
    padded = (part for p in parts for part in (p.data, bytes(-p.nbytes % _ALIGNED)))
    return b"".join([_HEAD.pack(_MAGIC, len(text), size), text, *padded])


def _pad(size: int) -> int:
    return size + -size % _ALIGNED


def _sizes(head: bytes) -> tuple[int, int]:
    """(bytes of JSON, bytes of data) that follow ``head``. Raises `ValueError`."""
    magic, text, data = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0)
    if magic != _MAGIC:
        raise ValueError("not columns")
    return text, data


def unpack(packed: bytes | memoryview) -> tuple[dict[str, Any], Columns]:
    """(meta, columns as views of ``packed``). Raises `ValueError` where the header contradicts the bytes."""
    packed = memoryview(packed)
    text, data = _sizes(bytes(packed[: _HEAD.size]))
    if _HEAD.size + text + data != len(packed):
        raise ValueError("columns are cut short")
    header = json.loads(bytes(packed[_HEAD.size : _HEAD.size + text]))
    if (
        not isinstance(header, dict)
        or not isinstance(header.get("meta"), dict)
        or not isinstance(header.get("columns"), list)
    ):
        raise ValueError("columns without their list")
    out: Columns = {}
    at = _HEAD.size + text
    for entry in header["columns"]:
        name, dtype, count = entry if isinstance(entry, list) and len(entry) == 3 else ("", "", 0)
        if dtype not in DTYPES or not isinstance(count, int) or not isinstance(name, str):
            raise ValueError(f"a column of {dtype!r}")
        kind = np.dtype(dtype)
        if not 0 <= count * kind.itemsize <= len(packed) - at:
            raise ValueError(f"a column of {count} values is longer than what is left")
        out[name] = np.frombuffer(packed, kind, count, at)
        at += _pad(count * kind.itemsize)
    return header["meta"], out


def read_packed(stream: IO[bytes], limit: int = 1 << 40) -> bytes:
    """The next columns in ``stream``, empty at its end. Raises `ValueError` for other bytes or more than ``limit``."""
    head = stream.read(_HEAD.size)
    if not head:
        return b""
    length = sum(_sizes(head))
    if length > limit:
        raise ValueError(f"an answer of {length} bytes")
    rest = stream.read(length)
    if len(rest) != length:
        raise ValueError("cut short")
    return head + rest


def pack_names(names: Names) -> Columns:
    """``names`` as columns."""
    return {
        **{name: getattr(names, name) for name in NAME_COLUMNS},
        "files": texts_column(names.files),
        "notes": texts_column(names.notes),
        **_function_columns(names.functions),
    }


def unpack_names(columns: Columns, count: int) -> Names:
    """The names of ``count`` addresses in ``columns``. Raises `ValueError` where they are not sound."""
    arrays: dict[str, Any] = {name: _column(columns, name, dtype) for name, dtype in NAME_COLUMNS.items()}
    functions, files, notes = PackedFunctions(columns), texts_of(columns, "files"), texts_of(columns, "notes")
    return Names(**arrays, functions=functions, files=files, notes=notes).check(count)


def pack_functions(table: FunctionTable) -> Columns:
    """``table`` as columns."""
    rows = [row for row, names in table.aliases.items() for _ in names]
    return {
        "start": table.start,
        "end": table.end,
        "alias_row": np.array(rows, np.int64),
        "alias": texts_column([name for names in table.aliases.values() for name in names]),
        **_function_columns(table.functions),
    }


def unpack_functions(columns: Columns) -> FunctionTable:
    """The table in ``columns``. Raises `ValueError` where it is not sound."""
    start, end = _column(columns, "start", np.uint64), _column(columns, "end", np.uint64)
    functions = PackedFunctions(columns)
    if not len(start) == len(end) == len(functions):
        raise ValueError("starts, ends and functions differ in number")
    if (start[1:] < start[:-1]).any() or (end < start).any():
        raise ValueError("functions are not sorted")
    aliases: dict[int, tuple[str, ...]] = {}
    rows, names = _column(columns, "alias_row", np.int64).tolist(), texts_of(columns, "alias")
    if len(rows) != len(names) or (rows and not 0 <= min(rows) <= max(rows) < len(functions)):
        raise ValueError("aliases of missing functions")
    for row, name in zip(rows, names, strict=True):
        aliases[row] = (*aliases.get(row, ()), name)
    return FunctionTable(start, end, functions, aliases)


_FUNCTION_NUMBERS: dict[str, type[np.generic]] = {
    "function_start": np.uint64,
    "function_size": np.uint64,
    "function_file": np.int32,
    "function_line": np.uint32,
    "function_described": np.uint8,
}
_FUNCTION_COLUMNS = ("name", "shown", "compiled", *_FUNCTION_NUMBERS, "function_files")


def _function_columns(functions: Sequence[Function]) -> Columns:
    if isinstance(functions, PackedFunctions):
        return functions.columns
    columns = zip(*functions, strict=True) if functions else ((),) * len(Function._fields)
    name, shown, start, size, file, line, described, compiled = columns
    files: dict[str, int] = {}
    rows = [files.setdefault(f, len(files)) for f in file]
    numbers = zip(_FUNCTION_NUMBERS.items(), (start, size, rows, line, described), strict=True)
    return {
        "name": texts_column(name),
        "shown": texts_column(["" if s == n else s for s, n in zip(shown, name, strict=True)]),  # equal: written once
        "compiled": texts_column(compiled),
        **{column: np.array(values, dtype) for (column, dtype), values in numbers},
        "function_files": texts_column(list(files)),
    }


class PackedFunctions(Sequence[Function]):
    """Functions that are made on use: a program has tens of thousands, a report shows a few.

    Raises `ValueError` at once where the columns are not sound. Texts that are no UTF-8 get escapes.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = {name: columns[name] for name in _FUNCTION_COLUMNS if name in columns}
        """Those of `pack_names` and `pack_functions`."""
        self._name, self._shown, self._compiled = (_Texts(columns, name) for name in ("name", "shown", "compiled"))
        self._numbers = [_column(columns, name, dtype) for name, dtype in _FUNCTION_NUMBERS.items()]
        self._files = texts_of(columns, "function_files")
        if len({len(self._name), len(self._shown), len(self._compiled), *map(len, self._numbers)}) != 1:
            raise ValueError("the columns of functions differ in length")
        rows = self._numbers[2]
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._files):
            raise ValueError("functions in missing files")
        self._made: list[Function] | None = None

    def __len__(self) -> int:
        return len(self._name)

    @overload
    def __getitem__(self, row: int) -> Function: ...
    @overload
    def __getitem__(self, row: slice) -> list[Function]: ...
    def __getitem__(self, row: int | slice) -> Function | list[Function]:
        if self._made is not None or isinstance(row, slice):
            return self._all()[row]
        at = operator.index(row)
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        name = self._name.at(at)
        start, size, file, line, described = (int(n[at]) for n in self._numbers)
        shown, compiled = self._shown.at(at) or name, self._compiled.at(at)
        return Function(name, shown, start, size, self._files[file], line, bool(described), compiled)

    def __iter__(self) -> Iterator[Function]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> list[Function]:
        if self._made is None:
            names = self._name.all()
            shown = [s or n for s, n in zip(self._shown.all(), names, strict=True)]
            start, size, row, line = (n.tolist() for n in self._numbers[:4])
            described = (self._numbers[4] != 0).tolist()
            files, compiled = [self._files[r] for r in row], self._compiled.all()
            rows = zip(names, shown, start, size, files, line, described, compiled, strict=True)
            self._made = list(map(tuple.__new__, repeat(Function), rows))  # as Function._make, many times
        return self._made


class _Texts:
    """A column of texts, each followed by a zero. Raises `ValueError` where the last one is not."""

    def __init__(self, columns: Columns, name: str) -> None:
        self._data = _column(columns, name, np.uint8)
        if len(self._data) and self._data[-1]:
            raise ValueError(f"{name} is cut inside a string")
        self._count = len(self._data) - int(np.count_nonzero(self._data))
        self._ends: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self._count

    def at(self, row: int) -> str:
        if self._ends is None:
            self._ends = np.flatnonzero(self._data == 0)
        return _decode(self._data[self._ends[row - 1] + 1 if row else 0 : self._ends[row]].tobytes())

    def all(self) -> list[str]:
        return _decode(self._data[:-1].tobytes()).split("\0") if len(self) else []


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def texts_column(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Texts as bytes, each followed by a zero. Bytes that are not UTF-8 stay as they are."""
    if any("\0" in text for text in texts):
        texts = [text.replace("\0", "\ufffd") for text in texts]
    return np.frombuffer("".join(f"{text}\0" for text in texts).encode("utf-8", "surrogatepass"), np.uint8)


def texts_of(columns: Columns, name: str) -> list[str]:
    """The texts in a column. Raises `ValueError` where the last one is cut."""
    return _Texts(columns, name).all()


def _column(columns: Columns, name: str, dtype: type[np.generic]) -> NDArray[Any]:
    found = columns.get(name)
    if found is None or found.dtype != np.dtype(dtype).newbyteorder("<"):
        raise ValueError(f"no column {name!r} of {np.dtype(dtype)}")
    return found
