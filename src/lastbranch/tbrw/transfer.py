"""The files between ``tbrw_reader`` and ``tbrw_writer``: all sections of a TB5 file, and beside them its records.

How they are made up is told in `saved`. Strings keep their ids and tables that the guide does not know are carried
along, so that the file that is written holds exactly what the file that was read did. Binding is left out.

No file is replaced before all that was to be read is read: outputs have other names until they are complete.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import IO
from zlib import crc32

import numpy as np

from ..errors import Damage
from ..formats.tb5 import Tb5File
from ..formats.tb5.constants import StreamSection
from ..formats.tb5.layout import HEADS, STRINGS, Scope, Table
from ..formats.tb5.strings import encode
from ..model import check_replaceable
from ..model.output import PartFolder, writing_file
from . import exchange
from .face import Owner, Tb5, open_file
from .memory import ID_MARK
from .places import PLACES, SINGLE, parts_of
from .saved import CHECK_SIZE, MAGIC, PORTION, RECORDS, STRING_TABLE, Saved, is_data
from .store import translated
from .structures import CHILDREN, Record

__all__ = ["load", "save"]

_CHILDREN = {kind for _, targets in CHILDREN.values() for _, kind in targets}


def save(source: str, target: str) -> tuple[list[str], list[Damage]]:
    """Write what the TB5 file ``source`` holds to ``target``, and its records to files beside it.

    All their names, and what is damaged in ``source``. Raises `TbrwError` where it cannot be read, `FileExistsError`
    where two of the files would be one.
    """
    with open_file(source) as file:
        view = file.handle.store.view
        beside = {key: _beside(source, target, key.stream) for key in sorted(view.tables) if is_data(key)}
        names = [target, *beside.values()]
        _check_different([source, *names])
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


def load(source: str, target: str) -> None:
    """Write the TB5 file ``target`` from what `save` left, through the calls of the guide.

    Raises `FormatError` where ``source`` or a file of records is not as it was written, `TbrwError` where it breaks a
    rule, `FileExistsError` where ``target`` is one of them.
    """
    _check_different([source, target])
    saved = Saved(source)
    _check_different([target, *saved.records_files.values()])
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
        names = [name for name in parts_of(scope, section) if name not in _CHILDREN]
        if not names:
            key = Table(scope, stream or 0, section)
            if stream is not None and section == StreamSection.DATA:
                owner.handle.add_data_from_file(stream, saved.records_files[key])
            else:
                writer.write(saved.tables[key][1])
        for name in names:
            key = PLACES[name].table(stream)
            if name in SINGLE and saved.has(key):
                writer.put(_with_texts(saved, exchange.Block(saved, name, stream).record()))
            elif name not in SINGLE:
                arrays = (
                    exchange.events(saved, stream or 0, 0) if name == "TBRW_EVENT" else exchange.rows(saved, key, 0)
                )
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
