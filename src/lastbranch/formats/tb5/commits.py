"""Commits: how to find the last complete state of a file, how to write the next, and how to check its blocks.

A file has a header, two commit slots, and a directory of tables. The valid slot with the larger sequence number is in
force and refers to the directory. Each has a CRC-32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage, FormatError
from ...model import Source, read_at
from ..interface import not_of_format
from . import is_tb5, layout
from .layout import Scope, Table, TableEntry, check_record_size, describe

__all__ = ["Commit", "block_check", "encode_directory", "encode_header", "encode_slot", "read_commit"]


_MOST_GAPS = 4096
"""Streams are numbered one after the other; so many may have no table yet."""


@dataclass(slots=True)
class Commit:
    """One state of a file."""

    version: int
    sequence: int
    slot: int
    """Which of the two slots it is in."""
    end: int
    """Everything of it lies before this offset."""
    closed: bool
    tables: dict[Table, TableEntry]


def encode_header() -> bytes:
    return _seal(layout.HEADER, magic=layout.MAGIC, version=layout.VERSION, data_start=layout.DATA_START)


def encode_slot(sequence: int, directory: int, data: bytes, end: int, closed: bool) -> bytes:
    """The slot that puts the directory ``data``, which is at ``directory``, in force."""
    return _seal(
        layout.SLOT,
        sequence=sequence,
        directory=directory,
        directory_bytes=len(data),
        end=end,
        flags=layout.CLOSED if closed else 0,
        directory_crc=crc32(data),
    )


def _seal(dtype: np.dtype[Any], **fields: object) -> bytes:
    record = np.zeros((), dtype)
    for name, value in fields.items():
        record[name] = value
    record["crc"] = crc32(record.tobytes()[:-4])
    return record.tobytes()


def encode_directory(tables: dict[Table, TableEntry]) -> bytes:
    rows = np.zeros(len(tables), layout.DIRECTORY_ENTRY)
    for row, (key, entry) in zip(rows, sorted(tables.items()), strict=True):
        row["scope"], row["stream"], row["section"], row["part"] = key
        for name in ("record_size", "count", "block_bytes", "blocks", "index", "index_crc"):
            row[name] = getattr(entry, name)
    return rows.tobytes()


def read_commit(source: Source, damage: list[Damage]) -> Commit:
    """The newest readable commit of ``source``; an unreadable newer commit, or an end without a commit, is
    ``damage``."""
    version = _read_header(source)
    slots = [(i, slot) for i in range(2) if (slot := _read_slot(source, i, damage)) is not None]
    slots.sort(key=lambda s: -int(s[1]["sequence"]))
    contradiction: FormatError | None = None
    for which, slot in slots:
        data = read_at(source, int(slot["directory"]), int(slot["directory_bytes"]))
        whole = len(data) == int(slot["directory_bytes"]) and crc32(data) == int(slot["directory_crc"])
        if not whole or len(data) % layout.DIRECTORY_ENTRY.itemsize:
            reason = "directory is damaged or cut off; the previous one is used"
            damage.append(Damage(reason, int(slot["directory"]), "directory_crc", crc32(data)))
            continue
        end = int(slot["end"])
        try:
            tables = _tables(source, data, int(slot["directory"]), end)
        except FormatError as error:
            contradiction = contradiction or error
            reason = f"{error.reason}; the previous commit is used"
            damage.append(Damage(reason, error.offset or 0, error.field, error.value))
            continue
        closed = bool(slot["flags"] & layout.CLOSED)
        if not closed:
            damage.append(Damage("its writer did not close it: incomplete parts are missing", source.size))
        if source.size < end:
            damage.append(Damage("file is cut short", source.size, "end", end, end - source.size))
        return Commit(version, int(slot["sequence"]), which, end, closed, tables)
    if contradiction is not None:
        raise contradiction
    if slots:
        raise FormatError(
            "no directory can be read",
            file=source.name,
            offset=int(slots[0][1]["directory"]),
            field="directory",
            hint="the file is cut short or damaged",
        )
    raise FormatError(
        "nothing was committed",
        file=source.name,
        offset=layout.SLOT_OFFSETS[0],
        field="sequence",
        value=damage[-1].value if damage else 0,
        hint="its writer crashed before the first section was complete",
    )


def _read_header(source: Source) -> int:
    data = read_at(source, 0, layout.HEADER.itemsize)
    if not is_tb5(data):
        hint = "`lastbranch convert CAPTURE OUT.tb5` makes one of a capture"
        raise not_of_format(source.name, data, "not a TB5 file written by lastbranch", hint)
    if len(data) < layout.HEADER.itemsize:
        raise FormatError("header is cut short", file=source.name, offset=0, field="header", value=len(data))
    header = np.frombuffer(data, layout.HEADER)[0]
    if int(header["version"]) > layout.VERSION:
        raise FormatError(
            "written by a later version",
            file=source.name,
            offset=16,
            field="version",
            value=int(header["version"]),
            hint=f"this lastbranch reads up to version {layout.VERSION}: upgrade it",
        )
    if crc32(data[:-4]) != int(header["crc"]) or int(header["version"]) == 0:
        raise FormatError("header is damaged", file=source.name, offset=0, field="crc", value=int(header["crc"]))
    return int(header["version"])


def _read_slot(source: Source, which: int, damage: list[Damage]) -> Any:
    at = layout.SLOT_OFFSETS[which]
    data = read_at(source, at, layout.SLOT.itemsize)
    if len(data) < layout.SLOT.itemsize or not any(data):
        return None
    slot = np.frombuffer(data, layout.SLOT)[0]
    if crc32(data[:-4]) != int(slot["crc"]):
        damage.append(Damage("commit slot is damaged", at, "crc", int(slot["crc"])))
        return None
    return slot


def _tables(source: Source, data: bytes, directory: int, end: int) -> dict[Table, TableEntry]:
    tables: dict[Table, TableEntry] = {}
    rows = np.frombuffer(data, layout.DIRECTORY_ENTRY)
    room = end
    for number, row in enumerate(rows.tolist()):
        scope, section, part, _, stream, size, count, block_bytes, blocks, index, index_crc, _ = row
        at = directory + number * rows.itemsize

        def error(reason: str, field: str, value: int, at: int = at) -> FormatError:
            return FormatError(f"directory: {reason}", file=source.name, offset=at, field=field, value=value)

        if scope not in set(Scope):
            raise error("unknown scope", "scope", scope)
        key = Table(Scope(scope), stream, section, part)
        if key in tables:
            raise error(f"{describe(key)} is there twice", "section", section)
        try:
            check_record_size(key, size)
        except ValueError as problem:
            raise error(str(problem), "record_size", size) from None
        if not block_bytes or block_bytes % size:
            raise error(f"{describe(key)}: blocks are not whole records", "block_bytes", block_bytes)
        if blocks != -(-count * size // block_bytes) or count * size > end:
            raise error(f"{describe(key)}: the numbers of records and of blocks disagree", "count", count)
        room -= count * size
        if room < 0:
            raise error(f"{describe(key)}: all tables together are larger than the file", "count", count)
        if scope == Scope.STREAM and stream >= len(rows) + _MOST_GAPS:
            raise error("impossible stream number", "stream", stream)
        if blocks and not layout.DATA_START <= index <= end - blocks * layout.BLOCK_INDEX.itemsize:
            raise error(f"{describe(key)}: block index is outside the file", "index", index)
        tables[key] = TableEntry(size, count, block_bytes, blocks, index, index_crc)
    return tables


# -- the check of a block: three folds of its 64-bit words, at the speed of memory in NumPy
#
# Words are in rows of 512 (4 KiB), the last row filled with zeros. ``v`` is the exclusive-or of each column, then of
# each row. The check is the CRC-32 of the low halves of ``v``, that of the high halves, and the sum of all words modulo
# 2**64.
#
# A change in one word changes its column and its row by the same bits, two words that trade places change two of either
# or both: patterns of at most four words among under 2,974 with equal differences under 2**32, which CRC-32 detects
# without exception as long as a block has fewer than 2,462 rows. The sum detects equal words that vanish in pairs, such
# as pages of a constant that read as zeros; exclusive-or cannot see such a loss.


ROW_WORDS = 512
_ROW = ROW_WORDS * 8


def block_check(data: NDArray[np.uint8]) -> tuple[int, int]:
    """(CRC-32 of low halves | CRC-32 of high halves << 32, sum of words) of contiguous uint8 ``data``."""
    whole = len(data) // _ROW * _ROW
    rows = data[:whole].view("<u8").reshape(-1, ROW_WORDS)
    columns = np.bitwise_xor.reduce(rows, axis=0)
    across = np.bitwise_xor.reduce(rows, axis=1)
    total = int(rows.sum(dtype=np.uint64))
    if whole < len(data):
        last = np.zeros(_ROW, np.uint8)
        last[: len(data) - whole] = data[whole:]
        words = last.view("<u8")
        columns ^= words
        across = np.append(across, np.bitwise_xor.reduce(words))
        total += int(words.sum(dtype=np.uint64))
    halves = np.concatenate([columns, across]).view("<u4").reshape(-1, 2).T.tobytes()
    middle = len(halves) // 2
    return crc32(halves[:middle]) | crc32(halves[middle:]) << 32, total & ((1 << 64) - 1)
