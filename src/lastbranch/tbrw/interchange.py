"""The files that ``tbrw_reader`` leaves for ``tbrw_writer``: a TB5 file without records and bindings, and files of
records.

Instead of the records of a stream, the file holds their number, their CRC-32 and the name of their file: a table of
`RECORDS`. Strings keep their ids, and tables that the guide does not know are copied, so that the file that is written
in the end holds exactly what the first one did.

Outputs appear under their names when they are complete, and then all inputs have been read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO
from zlib import crc32

import numpy as np

from ..errors import Damage, FormatError
from ..formats.tb5.layout import CHILDREN, HEADS, SINGLE, STRINGS, Scope, StreamSection, Table
from ..formats.tb5.reader import Tb5File
from ..formats.tb5.verification import verify
from ..formats.tb5.writer import Tb5Writer
from ..model import PartFolder, check_replaceable, writing_file
from ..opening import FileSource
from .files import Owner, Tb5, open_file
from .reader import Block, events, rows
from .store import translated
from .structures import ID_MARK, PLACES, Record, parts_of

__all__ = ["load_exchange", "save_exchange"]

RECORDS = 4
"""A section of ``Scope.STORE`` that only these files have. A table for each stream: `_SUMMARY`, and a file name."""
_SUMMARY = np.dtype([("count", "<u8"), ("check", "<u4"), ("record_size", "<u4"), ("head_size", "<u4")])
_PIECE = 1 << 20


def _is_data(key: Table) -> bool:
    return key.scope is Scope.STREAM and key.section == StreamSection.DATA


def _is_store(key: Table, *sections: int) -> bool:
    return key.scope is Scope.STORE and key.section in sections


# -- tbrw_reader


def save_exchange(
    source: str, target: str, check: Callable[[list[str]], None] = lambda names: None
) -> tuple[list[str], list[Damage]]:
    """Write what the TB5 file ``source`` holds to ``target``, and its records to files next to it.

    Returns the names of these files, and what is damaged in ``source``. ``check`` gets the names before anything is
    written. Raises `TbrwError` if ``source`` cannot be read, `FileExistsError` if two of the files would be one.
    """
    with open_file(source) as file:
        view = file.handle.store.view
        beside = {key: _beside(source, target, key.stream) for key in sorted(view.tables) if _is_data(key)}
        names = [target, *beside.values()]
        _check_different([source, *names])
        check(names)
        with translated(), ExitStack() as outputs:
            for name in names:
                check_replaceable(name)
            out = outputs.enter_context(Tb5Writer.create(target))
            for expected, text in enumerate(view.all_strings(), 1):
                _check_id(view, out.string(text), expected)
            for key in sorted(view.tables):
                if key in beside:
                    summary = _save_records(outputs.enter_context(writing_file(beside[key])), view, key)
                    out.put(
                        Table(Scope.STORE, key.stream, RECORDS), summary + os.fsencode(os.path.basename(beside[key]))
                    )
                elif key.scope is not Scope.BIND and not _is_store(key, STRINGS, HEADS):
                    out.put(key, view.read(key))
        return names, file.damage


def _check_different(names: list[str]) -> None:
    for i, name in enumerate(names):
        for other in names[:i]:
            if os.path.abspath(name) == os.path.abspath(other) or (
                os.path.exists(name) and os.path.exists(other) and os.path.samefile(name, other)
            ):
                raise FileExistsError(17, f"is the same file as {other}; give a different one", name)


def _check_id(file: Tb5File, unique_id: int, expected: int) -> None:
    if unique_id != expected:
        raise FormatError("a string is stored twice", file=file.name, field="string", value=expected)


def _beside(source: str, target: str, stream: int) -> str:
    """``sample.tb5.dat`` beside ``target`` for stream 0, as in the guide (2.5); ``sample.tb5.1.dat`` for stream 1."""
    number = f".{stream}" if stream else ""
    return os.path.join(os.path.dirname(target), f"{os.path.basename(source)}{number}.dat")


def _save_records(file: IO[bytes], view: Tb5File, key: Table) -> bytes:
    check = 0
    for block in view.blocks(key):
        file.write(block.data)
        check = crc32(block.data, check)
    heads = Table(Scope.STORE, key.stream, HEADS)
    head_size = view.record_size(heads) if view.has(heads) else 0
    return np.array((view.count(key), check, view.record_size(key), head_size), _SUMMARY).tobytes()


# -- tbrw_writer


def load_exchange(source: str, target: str, check: Callable[[str], None] = lambda name: None) -> None:
    """Write the TB5 file ``target`` from what `save_exchange` left, through the calls of the guide.

    ``check`` gets its name before anything is written. Raises `FormatError` if ``source`` or a file of records was
    changed after writing, `TbrwError` if ``source`` breaks a rule, and `FileExistsError` if ``target`` is one of these
    files.
    """
    _check_different([source, target])
    with Tb5File(FileSource(source)) as saved:
        if any(map(_is_data, saved.tables)):
            raise FormatError("a TB5 file with its records, not a file of tbrw_reader", file=source)
        for fault in verify(saved):
            raise FormatError(fault.reason, file=source, offset=fault.offset, field=fault.field, value=fault.value)
        records = {key.stream: _records_file(saved, key) for key in saved.tables if _is_store(key, RECORDS)}
        _check_different([target, *records.values()])
        check(target)
        check_replaceable(target)
        name = os.path.basename(target)
        with PartFolder(target, private=True) as part:
            with open_file(part.file(name), "w") as file:
                for expected, text in enumerate(saved.all_strings(), 1):
                    _check_id(saved, file.handle.store.writer.string(text), expected)
                _write_sections(saved, file, Scope.GLOBAL, {})
                for _ in range(saved.streams):
                    with file.writing_stream() as stream:
                        _write_sections(saved, stream, Scope.STREAM, records)
                _copy_unknown(saved, file)
            part.give(name)


def _records_file(saved: Tb5File, key: Table) -> str:
    """The file that holds the records of a stream, after a look at all of it."""
    if key.stream >= saved.streams:
        raise FormatError("records of a stream that is not there", file=saved.name, field="stream", value=key.stream)
    data = saved.bytes(key)
    name = os.fsdecode(data[_SUMMARY.itemsize :])
    if len(data) <= _SUMMARY.itemsize or os.path.basename(name) != name or "\0" in name:
        reason = f"no file name for the records of stream {key.stream}"
        raise FormatError(reason, file=saved.name, field="name", value=name)
    count, expected, record_size, _ = np.frombuffer(data, _SUMMARY, 1)[0].item()
    path, found, check = os.path.join(os.path.dirname(saved.name), name), 0, 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            found, check = found + len(piece), crc32(piece, check)
    if found != count * record_size:
        reason = f"{saved.name} was written with {count} records of {record_size} bytes for this file"
        raise FormatError(reason, file=path, offset=0, field="bytes", value=found)
    if check != expected:
        raise FormatError("has changed since it was written", file=path, offset=0, field="check", value=f"{check:#x}")
    return path


def _write_sections(saved: Tb5File, owner: Owner, scope: Scope, records: dict[int, str]) -> None:
    """Write all sections of the file, or of a stream."""
    stream = owner.stream
    sections = {key.section for key in saved.tables if key.scope is scope and key.stream == (stream or 0)}
    for section in sorted(sections):
        with owner.writing(section) as writer:
            names = [name for name in parts_of(scope, section) if name not in CHILDREN]
            if not names:
                writer.write(saved.bytes(Table(scope, stream or 0, section)))
            for name in names:
                key = PLACES[name].table(stream)
                if name in SINGLE and saved.has(key):
                    writer.put(_with_texts(saved, Block(saved, name, stream).record()))
                elif name not in SINGLE:
                    arrays = events(saved, stream or 0, 0) if name == "TBRW_EVENT" else rows(saved, key, 0)
                    writer.put(*(_with_texts(saved, record) for array in arrays for record in array))
    if stream in records:
        with owner.writing(StreamSection.DATA):
            owner.handle.add_data_from_file(stream, records[stream])


def _with_texts(saved: Tb5File, record: Record) -> Record:
    """The record with its strings in place of their ids."""
    for name in record.declared.strings():
        unique_id = getattr(record, name).soi_uniqueid & ~ID_MARK
        setattr(record, name, saved.string(unique_id) if unique_id else None)
    return record


def _copy_unknown(saved: Tb5File, file: Tb5) -> None:
    """Copy the tables that the guide does not know, and make heads of records again."""
    store = file.handle.store
    with store.adding() as writer, store.reading() as view:
        for key in saved.tables:
            if _is_store(key, RECORDS):
                size = int(np.frombuffer(saved.bytes(key), _SUMMARY, 1)[0]["head_size"])
                data, heads = Table(Scope.STREAM, key.stream, StreamSection.DATA), key._replace(section=HEADS)
                if size > view.record_size(data):
                    reason = f"heads of {size} bytes of records of {view.record_size(data)}"
                    raise FormatError(reason, file=saved.name, field="head_size", value=size)
                if size:
                    table = writer.table(heads, size)
                    for block in view.blocks(data):
                        table.write(block[:, :size])
                    table.done()
            elif key.scope is Scope.STORE and key.section != STRINGS:
                writer.put(key, saved.read(key))
