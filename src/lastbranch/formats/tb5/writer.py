"""Writing a TB5 file: tables appear when they are complete and committed, and never change afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...closing import on_failure
from ...errors import FormatError, UnavailableError
from ...model import Array, NamedFile, OpenFile, PartFile, Source
from ..interface import Conversion, Rewriting
from . import layout
from .commits import block_check, encode_directory, encode_header, encode_slot
from .layout import Scope, Table, TableEntry, check_record_size, describe
from .reader import Tb5File
from .strings import StringIds, encode_segment

__all__ = ["TableWriter", "Tb5Writer", "compact", "copy_tb5", "lock", "sync_folder", "write_at"]


# -- the file: bytes onto the disk, one writer at a time, and the writer as a source


def write_at(file: IO[bytes], offset: int, data: bytes | NDArray[np.uint8]) -> None:
    """Write all of ``data`` to an unbuffered file."""
    file.seek(offset)
    view = memoryview(data)  # type: ignore[arg-type]
    while len(view):
        view = view[file.write(view) :]


def put_in_force(file: NamedFile, offset: int, slot: bytes) -> None:
    """Write a commit slot, durably; where that fails the slot counts for nothing."""
    try:
        write_at(file, offset, slot)
        file.sync()
    except BaseException:
        with suppress(OSError):  # it may have been written and not be durable
            write_at(file, offset, bytes(len(slot)))
        raise


def sync_folder(path: str) -> None:
    """Make a rename to ``path`` durable, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def lock(file: IO[bytes], path: str) -> None:
    """Take the file for writing until it is closed. Raises `UnavailableError` where another program has it."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(1 << 62)  # a byte that no reader touches
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UnavailableError(f"{path}: another program is writing to it", hint="try again when it is done") from error


# -- a table, and the file of tables

Append = Callable[[bytes | NDArray[np.uint8]], int]
"""Writes at the end of the file; the offset."""


class TableWriter:
    """A table in the making. Bytes may come in any pieces; they are cut into blocks of whole records."""

    def __init__(
        self, key: Table, record_size: int, append: Append, finish: Callable[[Table, TableEntry], None]
    ) -> None:
        """``append`` writes bytes at the end of the file, ``finish`` gets the place of the complete table."""
        self.key, self.record_size = key, record_size
        self._append, self._finish = append, finish
        self._block = layout.records_of_block(key, record_size) * record_size
        self._waiting: NDArray[np.uint8] | None = None
        self._filled = self._stored = 0
        self._index: list[tuple[int, int, int]] = []
        self._over: BaseException | None = None

    @property
    def count(self) -> int:
        """Whole records so far."""
        return self._bytes // self.record_size

    @property
    def _bytes(self) -> int:
        return self._stored + self._filled

    def end(self, reason: BaseException) -> None:
        """No more `write` or `done`: each raises ``reason`` from now on."""
        self._over = self._over or reason

    def write(self, data: Array | bytes | bytearray | memoryview) -> None:
        """Add records, or any bytes of them. A failed call makes all later calls fail with the same error, because a
        piece is lost."""
        rest = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        with self._once():
            self._take(rest.reshape(-1).view(np.uint8))

    def done(self) -> None:
        """Complete the table: it is in the file from the next commit on. `ValueError` for half a record."""
        if self._over is None and self._bytes % self.record_size:
            raise ValueError(f"{describe(self.key)}: {self._bytes} bytes are not whole records of {self.record_size}")
        with self._once():
            self._end()
        self.end(ValueError(f"{describe(self.key)} is complete"))

    @contextmanager
    def _once(self) -> Iterator[None]:
        if self._over is not None:
            raise self._over
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise

    def _take(self, rest: NDArray[np.uint8]) -> None:
        while len(rest):
            if not self._filled and len(rest) >= self._block:
                self._store(rest[: self._block])
                rest = rest[self._block :]
                continue
            if self._waiting is None:
                self._waiting = np.empty(self._block, np.uint8)
            taken = min(len(rest), self._block - self._filled)
            self._waiting[self._filled : self._filled + taken] = rest[:taken]
            self._filled, rest = self._filled + taken, rest[taken:]
            if self._filled == self._block:
                self._flush()

    def _end(self) -> None:
        self._flush()
        self._waiting = None
        if len(self._index) != -(-self._bytes // self._block):
            raise ValueError(f"{describe(self.key)}: {len(self._index)} blocks do not hold {self.count} records")
        data = np.array(self._index, layout.BLOCK_INDEX).tobytes()
        at = self._append(data) if data else 0
        entry = TableEntry(self.record_size, self.count, self._block, len(self._index), at, crc32(data))
        self._finish(self.key, entry)

    def _flush(self) -> None:
        if self._filled and self._waiting is not None:
            filled, self._filled = self._filled, 0
            self._store(self._waiting[:filled])

    def _store(self, block: NDArray[np.uint8]) -> None:
        self._index.append((self._append(block), *block_check(block)))
        self._stored += len(block)


class Tb5Writer:
    """Writes one file: `create` makes a new file, `append` adds to a file.

    Tables are in the file from `commit` on, and stay readable if the program crashes after that. After an
    error (a full disk) `rollback` goes back to the last commit, and the writer can be used on.
    """

    def __init__(self, path: str, file: NamedFile, part: PartFile | None) -> None:
        self.path = path
        """Where the file is now."""
        self._file, self._part = file, part
        self._tables: dict[Table, TableEntry] = {}
        self._open: dict[Table, TableWriter] = {}
        self._sequence, self._slot, self._end = 0, 1, layout.DATA_START
        self._strings, self._segments = StringIds(), 0
        self._keep(layout.DATA_START)

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Tb5Writer:
        """A new file, which appears as ``path`` at `close` (`PartFile`)."""
        part = PartFile(path)
        with on_failure(part.discard):
            write_at(part.file, 0, encode_header().ljust(layout.DATA_START, b"\0"))
            return cls(part.path, part.file, part)

    @classmethod
    def append(cls, path: str | os.PathLike[str]) -> Tb5Writer:
        """Add tables to the file at ``path``. Raises `FormatError` if the file is not a TB5 file or its tables are
        damaged, `UnavailableError` while another writer has the file."""
        name = os.fspath(path)
        file = NamedFile(name, "r+b", name)
        with on_failure(file.close):
            lock(file, name)
            reader = Tb5File(OpenFile(file, name))
            commit = reader._commit
            if file.seek(0, os.SEEK_END) < commit.end:
                raise FormatError(
                    "file is cut short; nothing can be added to it", file=name, field="end", value=commit.end
                )
            writer = cls(name, file, None)
            writer._tables = dict(commit.tables)
            writer._sequence, writer._slot = commit.sequence, commit.slot
            size = file.seek(0, os.SEEK_END)
            writer._end = _align(size)
            writer._strings = StringIds(reader.all_strings())
            writer._segments = 1 + max((k.stream for k in commit.tables if _is_strings(k)), default=-1)
            writer._keep(size)
        return writer

    def __enter__(self) -> Tb5Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # -- contents

    @property
    def next_stream(self) -> int:
        """The number that the next new stream has: streams are dense."""
        return 1 + max((k.stream for k in [*self._tables, *self._open] if k.scope is Scope.STREAM), default=-1)

    def has(self, key: Table) -> bool:
        """Whether the table is written or being written."""
        return key in self._tables or key in self._open

    def string(self, text: str | None) -> int:
        """The unique id of ``text``, which is stored once; 0, the NULL string, for ``None``."""
        return 0 if text is None else self._strings.id_of(text)

    def put(self, key: Table, records: Array | bytes) -> None:
        """Write a whole table: a structured or uint8 (records, size) array, or bytes. `ValueError` if it is there."""
        if isinstance(records, bytes):
            records = np.frombuffer(records, np.uint8)
        size = records.itemsize * int(np.prod(records.shape[1:], dtype=np.int64))
        table = self.table(key, size)
        table.write(records)
        table.done()

    def table(self, key: Table, record_size: int, *, in_order: bool = True) -> TableWriter:
        """Start a table whose records come in pieces. `ValueError` if it is there, or its records have another size.

        Streams may be written side by side; a stream number must be an existing number or the next (``in_order``).
        """
        check_record_size(key, record_size)
        if self.has(key):
            raise ValueError(f"{describe(key)} exists: written sections do not change")
        if in_order and key.scope is Scope.STREAM and key.stream > self.next_stream:
            raise ValueError(f"stream {key.stream} out of order: the next one is {self.next_stream}")
        self._open[key] = TableWriter(key, record_size, self._append, self._finish)
        return self._open[key]

    def unbind(self, stream: int) -> None:
        """Leave the bind information of ``stream`` out of the next directory; `compact` gives its space back."""
        for key in [k for k in self._tables if k.scope is Scope.BIND and k.stream == stream]:
            del self._tables[key]

    # -- ends

    def commit(self) -> None:
        """Make all complete tables part of the file, durably: everything else first, then one slot of 48 bytes.

        A failed commit (`OSError`) has been rolled back."""
        self._commit(closed=False)

    def rollback(self) -> None:
        """Back to the last commit: tables and strings that came since are forgotten, and their ids are void.

        Tables that are not done can no longer be written (`ValueError`). Raises nothing.
        """
        for key, table in self._open.items():
            table.end(ValueError(f"{describe(key)} was abandoned with everything that was not committed"))
        self._open = {}
        tables, strings, self._segments, self._committed = self._kept
        self._tables = dict(tables)
        self._strings.forget(strings)
        self._end = _align(self._committed)
        with suppress(OSError):  # nothing refers to bytes after the end
            self._file.truncate(self._committed)

    def close(self) -> None:
        """Commit, and let a new file appear under its name, or go away. `ValueError` while a table is not done."""
        if self._file.closed:
            return
        if self._open:
            raise ValueError(f"not done: {', '.join(describe(k) for k in sorted(self._open))}")
        with on_failure(self.abort):
            self._commit(closed=True)
        if self._part is None:
            self._file.close()
        else:
            self._part.appear()
            sync_folder(self._part.final)

    def abort(self) -> None:
        """Leave what was there before: a new file goes away, one that was added to keeps its last commit."""
        if self._file.closed:
            return
        if self._part is not None:
            self._part.discard()
            return
        with suppress(OSError):  # nothing refers to bytes after the last commit
            self._file.truncate(self._committed)
        self._file.close()

    def view(self) -> Tb5File:
        """The file as last committed, for reading while it is written. Raises `FormatError` before the first commit."""

        name = self.path if self._part is None else self._part.final
        return Tb5File(OpenFile(open(self.path, "rb", buffering=0), name))

    def _commit(self, closed: bool) -> None:
        with on_failure(self.rollback):
            self._store_strings()
            data = encode_directory(self._tables)
            directory = self._append(data)
            self._file.sync()
            end = directory + len(data)
            slot = encode_slot(self._sequence + 1, directory, data, end, closed)
            put_in_force(self._file, layout.SLOT_OFFSETS[1 - self._slot], slot)
        self._sequence, self._slot = self._sequence + 1, 1 - self._slot
        self._keep(end)

    def _keep(self, end: int) -> None:
        """`rollback` returns to the current state, which ends at ``end``."""
        self._kept = dict(self._tables), self._strings.count, self._segments, end
        self._committed = end

    def _store_strings(self) -> None:
        if self._strings.fresh:
            ends, data = encode_segment(self._strings.fresh)
            key = Table(Scope.STORE, self._segments, layout.STRINGS)
            self.put(key, ends)
            if len(data):
                self.put(key._replace(part=1), data)
            self._segments += 1
            self._strings.fresh = []

    # -- bytes

    def _append(self, data: bytes | NDArray[np.uint8]) -> int:
        """Write at the end; the offset."""
        at, self._end = self._end, _align(self._end + len(data))
        write_at(self._file, at, data)
        return at

    def _finish(self, key: Table, entry: TableEntry) -> None:
        del self._open[key]
        self._tables[key] = entry


def _is_strings(key: Table) -> bool:
    return key.scope is Scope.STORE and key.section == layout.STRINGS


def _align(offset: int) -> int:
    return offset + -offset % layout.ALIGNMENT


# -- files written anew, table by table: what the last commit refers to, and nothing else


def copy_tb5(sources: Sequence[Source], path: str, _how: Rewriting) -> Conversion:
    """Write all tables of the one TB5 file of ``sources`` as a file that appears at ``path`` when it is complete.
    Raises `FormatError` at a damaged block."""
    (source,) = sources
    with Tb5File(source) as old, Tb5Writer.create(path) as new:
        _copy_tables(old, new)
        return Conversion(f"{len(old.tables)} tables copied")


def compact(path: str | os.PathLike[str]) -> int:
    """Rewrite a TB5 file without what its directory no longer refers to. Returns the bytes that this freed.

    The new file replaces the old file once it is complete, with the old file's permissions; a link keeps pointing to
    the file. Raises `FormatError` at a damaged block, and leaves the old file as it was.
    """
    name = os.path.realpath(path)
    with open(name, "r+b", buffering=0) as file, Tb5File(OpenFile(file, name)) as old, Tb5Writer.create(name) as new:
        lock(file, name)
        shutil.copymode(name, new.path)
        before = old.source.size
        _copy_tables(old, new)
    return before - os.path.getsize(name)


def _copy_tables(old: Tb5File, new: Tb5Writer) -> None:
    """Write all tables of ``old``. Raises `FormatError` at a damaged block."""
    for key, entry in old.tables.items():
        table = new.table(key, entry.record_size, in_order=False)
        for rows in old.blocks(key):
            table.write(rows)
        table.done()
