"""The files between ``tbrw_reader`` and ``tbrw_writer``: all sections of a TB5 file, and beside them its records.

Numbers are little-endian. `MAGIC`; then portions, each a `PORTION` and its bytes, one for each table of the TB5 file;
at the end the CRC-32 of all before it. Records of streams are in files beside: their portion is a `RECORDS` and the
name of the file. Strings are one portion, the first: u32 length and bytes of each.

Strings keep their ids and tables that the guide does not know are carried
along, so that the file that is written holds exactly what the file that was read did. Binding is left out.

No file is replaced before all that was to be read is read: outputs have other names until they are complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO
from zlib import crc32

import numpy as np

from ..errors import Damage, FormatError
from ..formats.tb5 import Tb5File
from ..formats.tb5.layout import CHILDREN, HEADS, SINGLE, STRINGS, Scope, StreamSection, Table, struct_of
from ..formats.tb5.strings import decode, encode
from ..model import Array, check_replaceable
from ..model.output import PartFolder, writing_file
from .files import Owner, Tb5, open_file
from .reader import Block, events, rows
from .sections import PLACES, parts_of
from .store import translated
from .structures import ID_MARK, Record

__all__ = ["load", "save"]


# -- the file, read: it and the files of records are checked first, whole


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
    """Tables as `Block`, `rows` and `events` ask for them.

    Raises `FormatError` where the file, or one of records, is not as written.
    """

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


def save(
    source: str, target: str, check: Callable[[list[str]], None] = lambda names: None
) -> tuple[list[str], list[Damage]]:
    """Write what the TB5 file ``source`` holds to ``target``, and its records to files beside it.

    All their names, and what is damaged in ``source``. ``check`` gets the names before anything is written. Raises
    `TbrwError` where ``source`` cannot be read, `FileExistsError` where two of the files would be one.
    """
    with open_file(source) as file:
        view = file.handle.store.view
        beside = {key: _beside(source, target, key.stream) for key in sorted(view.tables) if is_data(key)}
        names = [target, *beside.values()]
        _check_different([source, *names])
        check(names)
        with translated(), ExitStack() as outputs:
            for name in names:
                check_replaceable(name)
            out = _Checked(outputs.enter_context(writing_file(target)))
            out.write(MAGIC)
            texts = [encode(text) for text in view.all_strings()]
            _save_portion(out, STRING_TABLE, 1, b"".join(len(t).to_bytes(4, "little") + t for t in texts))
            for key in sorted(view.tables):
                if key.scope is Scope.BIND or (key.scope is Scope.STORE and key.section == STRINGS):
                    continue
                if _is_heads(key):
                    data = b""  # they are made again from the records
                elif key in beside:
                    records = outputs.enter_context(writing_file(beside[key]))
                    data = _save_records(records, view, key) + os.fsencode(os.path.basename(beside[key]))
                else:
                    data = view.read(key).tobytes()
                _save_portion(out, key, view.record_size(key), data)
            out.file.write(out.check.to_bytes(CHECK_SIZE, "little"))
        return names, file.damage


def load(source: str, target: str, check: Callable[[str], None] = lambda name: None) -> None:
    """Write the TB5 file ``target`` from what `save` left, through the calls of the guide.

    ``check`` gets its name before anything is written. Raises `FormatError` where ``source`` or a file of records is
    not as it was written, `TbrwError` where it breaks a rule, `FileExistsError` where ``target`` is one of them.
    """
    _check_different([source, target])
    saved = Saved(source)
    _check_different([target, *saved.records_files.values()])
    check(target)
    check_replaceable(target)
    name = os.path.basename(target)
    with PartFolder(target, mode=0o700) as part:
        with open_file(part.file(name), "w") as file:
            for expected, text in enumerate(saved.texts, 1):
                if file.handle.store.writer.string(text) != expected:
                    raise saved.error("a string is there twice", 0, "string", expected)
            for section in saved.sections(Scope.GLOBAL, 0):
                _write_section(saved, file, Scope.GLOBAL, None, section)
            for number in range(saved.streams):
                with file.writing_stream() as stream:
                    for section in saved.sections(Scope.STREAM, number):
                        _write_section(saved, stream, Scope.STREAM, number, section)
            _carry(saved, file)
        part.give(name)


# -- outputs


def _check_different(names: list[str]) -> None:
    for i, name in enumerate(names):
        for other in names[:i]:
            if os.path.abspath(name) == os.path.abspath(other) or (
                os.path.exists(name) and os.path.exists(other) and os.path.samefile(name, other)
            ):
                raise FileExistsError(17, f"is the same file as {other}; give another", name)


class _Checked:
    """A file that is being written, and the CRC-32 of what went there."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.check = file, 0

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.check = crc32(data, self.check)


def _beside(source: str, target: str, stream: int) -> str:
    """``sample.tb5.dat`` beside the first file, as the guide has it (2.5); ``sample.tb5.1.dat`` for stream 1."""
    number = f".{stream}" if stream else ""
    return os.path.join(os.path.dirname(target), f"{os.path.basename(source)}{number}.dat")


def _save_portion(out: _Checked, key: Table, record_size: int, data: bytes) -> None:
    header = np.zeros(1, PORTION)
    header[0] = (key.scope, key.section, key.part, 0, key.stream, record_size, len(data))
    out.write(header.tobytes())
    out.write(data)


def _save_records(file: IO[bytes], view: Tb5File, key: Table) -> bytes:
    out = _Checked(file)
    for block in view.blocks(key):
        out.write(block.tobytes())
    header = np.zeros(1, RECORDS)
    header[0] = (view.count(key), out.check, 0)
    return header.tobytes()


# -- contents


def _write_section(saved: Saved, owner: Owner, scope: Scope, stream: int | None, section: int) -> None:
    with owner.writing(section) as writer:
        names = [name for name in parts_of(scope, section) if name not in CHILDREN]
        if not names:
            key = Table(scope, stream or 0, section)
            if stream is not None and section == StreamSection.DATA:
                owner.handle.add_data_from_file(stream, saved.records_files[key])
            else:
                writer.write(saved.tables[key][1])
        for name in names:
            key = PLACES[name].table(stream)
            if name in SINGLE and saved.has(key):
                writer.put(_with_texts(saved, Block(saved, name, stream).record()))
            elif name not in SINGLE:
                arrays = events(saved, stream or 0, 0) if name == "TBRW_EVENT" else rows(saved, key, 0)
                writer.put(*(_with_texts(saved, record) for array in arrays for record in array))


def _with_texts(saved: Saved, record: Record) -> Record:
    """The record with its strings in the place of their ids."""
    for name in record.declared.strings():
        unique_id = getattr(record, name).soi_uniqueid & ~ID_MARK
        if unique_id > len(saved.texts):
            raise saved.error(f"string id out of range (1 to {len(saved.texts)})", 0, name, unique_id)
        setattr(record, name, saved.texts[unique_id - 1] if unique_id else None)
    return record


def _carry(saved: Saved, file: Tb5) -> None:
    """Tables that the guide does not know."""
    for key, (size, _) in saved.tables.items():
        if _is_heads(key):
            _make_heads(saved, file, key, size)
    file.handle.store.put(
        (key, np.frombuffer(data, np.uint8).reshape(-1, size))
        for key, (size, data) in saved.tables.items()
        if key.scope is Scope.STORE and not _is_heads(key)
    )


def _make_heads(saved: Saved, file: Tb5, key: Table, size: int) -> None:
    data = Table(Scope.STREAM, key.stream, StreamSection.DATA)
    with file.handle.store.adding() as writer, file.handle.store.reading() as view:
        if not view.has(data) or view.record_size(data) < size:
            raise saved.error(f"heads of {size} bytes of records that are not there", 0, "record_size", size)
        table = writer.table(key, size)
        for rows in view.blocks(data):
            table.write(rows[:, :size])
        table.done()


def _is_heads(key: Table) -> bool:
    return key.scope is Scope.STORE and key.section == HEADS
