"""The files between ``tbrw_reader`` and ``tbrw_writer``: all sections of a TB5 file, and beside them its records.

The first file is a head of 16 bytes and one portion for each table: a header (`PORTION`) and bytes. Strings come first,
in the order of their ids, each as u32 length and bytes. Where the table is the records of a stream, the bytes are the
name of the file beside the first that they are in. Strings keep their ids and tables that the guide does not know are
carried along, so that the file that is written holds exactly what the file that was read did. Binding is left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import FormatError
from ..formats.tb5.constants import StreamSection
from ..formats.tb5.layout import STRINGS, Scope, Table, struct_of
from ..formats.tb5.strings import decode, encode
from ..model import Array
from . import exchange
from .face import Owner, Tb5, open_file
from .memory import ID_MARK
from .places import PLACES, SINGLE, parts_of
from .store import translated
from .structures import CHILDREN, Record

__all__ = ["load", "save"]

MAGIC = b"lastbranch TBRW\n"
PORTION = np.dtype(
    [("scope", "<u2"), ("section", "<u2"), ("part", "<u2"), ("reserved", "<u2"), ("stream", "<u4"),
     ("record_size", "<u4"), ("bytes", "<u8")]
)  # fmt: skip
_STRINGS = Table(Scope.STORE, 0, STRINGS)
_CHILDREN = {kind for _, targets in CHILDREN.values() for _, kind in targets}


def save(source: str, target: str) -> list[str]:
    """Write what the TB5 file ``source`` holds to ``target``, and its records to files beside it. All their names.

    Raises `TbrwError` where ``source`` cannot be read, `FileExistsError` where the records would go to ``target``.
    """
    names = [target]
    with open_file(source) as file, translated(), open(target, "wb") as out:
        view = file.handle.store.view
        out.write(MAGIC)
        texts = [encode(text) for text in view.all_strings()]
        _save_portion(out, _STRINGS, 1, b"".join(len(t).to_bytes(4, "little") + t for t in texts))
        for key in sorted(view.tables):
            if key.scope is Scope.BIND or (key.scope is Scope.STORE and key.section == STRINGS):
                continue
            if not _is_data(key):
                _save_portion(out, key, view.record_size(key), view.read(key).tobytes())
                continue
            names.append(_beside(source, target, key.stream))
            if names[-1] in names[:-1]:
                raise FileExistsError(17, "is the name of the file for the records; give another", names[-1])
            with open(names[-1], "wb") as records:
                for block in view.blocks(key):
                    records.write(block.tobytes())
            _save_portion(out, key, view.record_size(key), os.fsencode(os.path.basename(names[-1])))
    return names


def load(source: str, target: str) -> None:
    """Write the TB5 file ``target`` from what `save` left, through the calls of the guide.

    Raises `FormatError` where ``source`` is damaged, `TbrwError` where it breaks a rule.
    """
    saved = _Saved(source)
    with open_file(target, "w") as file:
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


def _is_data(key: Table) -> bool:
    return key.scope is Scope.STREAM and key.section == StreamSection.DATA


def _beside(source: str, target: str, stream: int) -> str:
    """``sample.tb5.dat`` beside the first file, as the guide has it (2.5); ``sample.tb5.1.dat`` for stream 1."""
    number = f".{stream}" if stream else ""
    return os.path.join(os.path.dirname(target), f"{os.path.basename(source)}{number}.dat")


def _save_portion(out: IO[bytes], key: Table, record_size: int, data: bytes) -> None:
    header = np.zeros(1, PORTION)
    header[0] = (key.scope, key.section, key.part, 0, key.stream, record_size, len(data))
    out.write(header.tobytes())
    out.write(data)


class _Saved:
    """The first file, read: tables as `exchange` asks for them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tables: dict[Table, tuple[int, bytes]] = {}
        data = Path(path).read_bytes()
        if not data.startswith(MAGIC):
            raise self.error("not a file of tbrw_reader", 0, "magic", data[: len(MAGIC)])
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
        self.streams = 1 + max((k.stream for k in self.tables if k.scope is Scope.STREAM), default=-1)

    def _take(self, head: Array, data: bytes, at: int) -> None:
        scope, record_size = int(head["scope"]), int(head["record_size"])
        if scope not in (Scope.GLOBAL, Scope.STREAM, Scope.STORE):
            raise self.error("unknown scope", at, "scope", scope)
        key = Table(Scope(scope), int(head["stream"]), int(head["section"]), int(head["part"]))
        struct = struct_of(key)
        if not record_size or (struct is not None and record_size != struct.size):
            raise self.error("records of a wrong size", at, "record_size", record_size)
        if len(data) % record_size and not _is_data(key):
            raise self.error(f"half a record of {record_size} bytes", at, "bytes", len(data))
        self.tables[key] = record_size, data

    def _texts(self) -> list[str]:
        _, data = self.tables.pop(_STRINGS, (1, b""))
        texts: list[str] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            at += 4 + size
            if at > len(data):
                raise self.error(f"string {len(texts) + 1} is cut short", 0, "length", size)
            texts.append(decode(data[at - size : at]))
        return texts

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


def _write_section(saved: _Saved, owner: Owner, scope: Scope, stream: int | None, section: int) -> None:
    with owner.writing(section) as writer:
        names = [name for name in parts_of(scope, section) if name not in _CHILDREN]
        if not names:
            _, data = saved.tables[Table(scope, stream or 0, section)]
            if stream is not None and section == StreamSection.DATA:
                owner.handle.add_data_from_file(stream, os.path.join(os.path.dirname(saved.path), os.fsdecode(data)))
            else:
                writer.write(data)
        for name in names:
            key = PLACES[name].table(stream)
            if name in SINGLE and saved.has(key):
                writer.put(_with_texts(saved, exchange.Block(saved, name, stream).record()))
            elif name not in SINGLE:
                arrays = (
                    exchange.events(saved, stream or 0, 0) if name == "TBRW_EVENT" else exchange.rows(saved, key, 0)
                )
                writer.put(*(_with_texts(saved, record) for array in arrays for record in array))


def _with_texts(saved: _Saved, record: Record) -> Record:
    """The record with its strings in the place of their ids."""
    for name in record.declared.strings():
        unique_id = getattr(record, name).soi_uniqueid & ~ID_MARK
        if unique_id > len(saved.texts):
            raise saved.error(f"string id out of range (1 to {len(saved.texts)})", 0, name, unique_id)
        setattr(record, name, saved.texts[unique_id - 1] if unique_id else None)
    return record


def _carry(saved: _Saved, file: Tb5) -> None:
    """Tables that the guide does not know."""
    for key, (size, data) in saved.tables.items():
        if key.scope is Scope.STORE:
            rows = np.frombuffer(data, np.uint8).reshape(-1, size)
            file.handle.store.put([(key, rows)])
