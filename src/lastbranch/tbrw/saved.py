"""The file between ``tbrw_reader`` and ``tbrw_writer``, read: it and the files of records are checked first, whole.

Numbers are little-endian. `MAGIC`; then portions, each a `PORTION` and its bytes, one for each table of the TB5 file as
it stands there; at the end the CRC-32 of all before it. Records of streams are in files beside: their portion is a
`RECORDS` and the name of the file. Strings are one portion, the first: u32 length and bytes of each.
"""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import numpy as np

from ..errors import FormatError
from ..formats.tb5.constants import StreamSection
from ..formats.tb5.layout import STRINGS, Scope, Table, struct_of
from ..formats.tb5.strings import decode
from ..model import Array

__all__ = ["CHECK_SIZE", "MAGIC", "PORTION", "RECORDS", "STRING_TABLE", "Saved", "is_data"]

MAGIC = b"lastbranch TBRW2\n"
PORTION = np.dtype(
    [("scope", "<u2"), ("section", "<u2"), ("part", "<u2"), ("reserved", "<u2"), ("stream", "<u4"),
     ("record_size", "<u4"), ("bytes", "<u8")]
)  # fmt: skip
RECORDS = np.dtype([("count", "<u8"), ("check", "<u4"), ("reserved", "<u4")])
"""How many records a file beside holds, and the CRC-32 of its bytes."""
CHECK_SIZE = 4
STRING_TABLE = Table(Scope.STORE, 0, STRINGS)
_PIECE = 1 << 20


def is_data(key: Table) -> bool:
    """Whether a table is the records of a stream."""
    return key.scope is Scope.STREAM and key.section == StreamSection.DATA


class Saved:
    """Tables as `exchange` asks for them. Raises `FormatError` where the file, or one of records, is not as written."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tables: dict[Table, tuple[int, bytes]] = {}
        data = Path(path).read_bytes()
        if not data.startswith(MAGIC):
            raise self.error("not a file of tbrw_reader", 0, "magic", data[: len(MAGIC)])
        data, check = data[:-CHECK_SIZE], data[-CHECK_SIZE:]
        if crc32(data).to_bytes(CHECK_SIZE, "little") != check:
            raise self.error("changed or cut short since it was written", len(data), "check", check.hex())
        at = len(MAGIC)
        while at < len(data):
            if len(data) - at < PORTION.itemsize:
                raise self.error("cut short in a portion header", at, "bytes", len(data) - at)
            head = np.frombuffer(data, PORTION, 1, at)[0]
            start, size = at + PORTION.itemsize, int(head["bytes"])
            if size > len(data) - start:
                raise self.error("a portion is longer than the file", at, "bytes", size)
            self._take(head, data[start : start + size], at)
            at = start + size
        self.texts = self._texts()
        self.records_files = {key: self._records_file(key) for key in self.tables if is_data(key)}
        """Where the records of streams are."""
        self.streams = 1 + max((k.stream for k in self.tables if k.scope is Scope.STREAM), default=-1)

    def _take(self, head: Array, data: bytes, at: int) -> None:
        scope, record_size = int(head["scope"]), int(head["record_size"])
        if scope not in (Scope.GLOBAL, Scope.STREAM, Scope.STORE):
            raise self.error("unknown scope", at, "scope", scope)
        key = Table(Scope(scope), int(head["stream"]), int(head["section"]), int(head["part"]))
        struct = struct_of(key)
        if not record_size or (struct is not None and record_size != struct.size):
            raise self.error("records of a wrong size", at, "record_size", record_size)
        if len(data) % record_size and not is_data(key):
            raise self.error(f"half a record of {record_size} bytes", at, "bytes", len(data))
        self.tables[key] = record_size, data

    def _texts(self) -> list[str]:
        _, data = self.tables.pop(STRING_TABLE, (1, b""))
        texts: list[str] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            at += 4 + size
            if at > len(data):
                raise self.error(f"string {len(texts) + 1} is cut short", 0, "length", size)
            texts.append(decode(data[at - size : at]))
        return texts

    def _records_file(self, key: Table) -> str:
        size, data = self.tables[key]
        name = os.fsdecode(data[RECORDS.itemsize :])
        if len(data) <= RECORDS.itemsize or os.path.basename(name) != name or "\0" in name:
            raise self.error(f"no name of a file for the records of stream {key.stream}", 0, "name", name)
        expected = np.frombuffer(data, RECORDS, 1)[0]
        path, found, check = os.path.join(os.path.dirname(self.path), name), 0, 0
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                found, check = found + len(piece), crc32(piece, check)
        if found != int(expected["count"]) * size:
            reason = f"{self.path} was written with {expected['count']} records of {size} bytes in this file"
            raise FormatError(reason, file=path, offset=0, field="bytes", value=found)
        if check != expected["check"]:
            raise FormatError("changed since it was written", file=path, offset=0, field="check", value=f"{check:#x}")
        return path

    def error(self, reason: str, offset: int, field: str, value: object) -> FormatError:
        return FormatError(reason, file=self.path, offset=offset, field=field, value=value)

    def sections(self, scope: Scope, stream: int) -> list[int]:
        return sorted({k.section for k in self.tables if k.scope is scope and k.stream == stream})

    def has(self, key: Table) -> bool:
        return key in self.tables

    def count(self, key: Table) -> int:
        size, data = self.tables[key]
        return len(data) // size

    def records(self, key: Table, first: int = 0, count: int | None = None) -> Array:
        struct = struct_of(key)
        assert struct is not None
        found = np.frombuffer(self.tables[key][1] if key in self.tables else b"", struct.dtype)
        return found[first:] if count is None else found[first : first + count]
