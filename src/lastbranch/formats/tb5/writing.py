"""A TB5 file, written: tables appear when they are complete and committed, and are never touched again."""

from __future__ import annotations

import os
from typing import IO
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from ...model import Array
from . import layout
from .checksum import block_check
from .directory import encode_directory, encode_header, encode_slot
from .layout import Entry, Scope, Table, check_record_size, describe
from .reading import Tb5File
from .strings import encode, encode_segment

__all__ = ["TableWriter", "Tb5Writer"]


class Tb5Writer:
    """Writes one file: `create` for a new one, `append` to add to one.

    What dies before `commit` is not in the file; what was committed stays readable whatever happens after.
    """

    def __init__(self, path: str, file: IO[bytes], final: str | None) -> None:
        self.path = path
        self._file, self._final = file, final
        self._tables: dict[Table, Entry] = {}
        self._open: set[Table] = set()
        self._sequence, self._slot, self._end = 0, 1, layout.DATA_START
        self._committed = layout.DATA_START
        self._string_count = 0
        self._ids: dict[str, int] = {}
        self._fresh: list[bytes] = []
        self._segments = 0

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Tb5Writer:
        """A new file, which appears as ``path`` at `close`; until then it is ``path.part`` and the process number."""
        final = os.fspath(path)
        part = f"{final}.part{os.getpid()}"
        writer = cls(part, open(part, "xb", buffering=0), final)  # noqa: SIM115 - close or abort
        writer._write_at(0, encode_header().ljust(layout.DATA_START, b"\0"))
        return writer

    @classmethod
    def append(cls, path: str | os.PathLike[str]) -> Tb5Writer:
        """Add tables to the file at ``path``. Raises `FormatError` where it is none or its tables are damaged,
        `UnavailableError` while another writer has it."""
        from ...errors import LastbranchError
        from .file_source import PathSource
        from .locking import lock

        name = os.fspath(path)
        file = open(name, "r+b", buffering=0)  # noqa: SIM115 - close or abort
        try:
            lock(file, name)
            reader = Tb5File(PathSource(file, name))
            commit = reader._commit
            if file.seek(0, os.SEEK_END) < commit.end:
                raise FormatError("file is cut short; nothing can be added to it", file=name, field="end",
                                  value=commit.end)  # fmt: skip
            writer = cls(name, file, None)
            writer._tables = dict(commit.tables)
            writer._sequence, writer._slot = commit.sequence, commit.slot
            writer._committed = file.seek(0, os.SEEK_END)
            writer._end = _aligned(writer._committed)
            for unique_id, text in enumerate(reader.all_strings(), 1):
                writer._ids.setdefault(text, unique_id)
            writer._string_count = reader.string_count
            writer._segments = 1 + max((k.stream for k in commit.tables if _is_strings(k)), default=-1)
        except (LastbranchError, OSError):
            file.close()
            raise
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
        if text is None:
            return 0
        unique_id = self._ids.get(text)
        if unique_id is None:
            self._fresh.append(encode(text))
            self._string_count += 1
            unique_id = self._ids[text] = self._string_count
        return unique_id

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

        Streams may be written side by side; a stream number must be that of a stream or the next one (``in_order``).
        """
        check_record_size(key, record_size)
        if self.has(key):
            raise ValueError(f"{describe(key)} is there already: what is written does not change")
        if in_order and key.scope is Scope.STREAM and key.stream > self.next_stream:
            raise ValueError(f"stream {key.stream} out of order: the next one is {self.next_stream}")
        self._open.add(key)
        return TableWriter(self, key, record_size)

    def unbind(self, stream: int) -> None:
        """Leave the bind information of ``stream`` out of the next directory; `compact` gives its space back."""
        for key in [k for k in self._tables if k.scope is Scope.BIND and k.stream == stream]:
            del self._tables[key]

    # -- ends

    def commit(self) -> None:
        """Make all complete tables part of the file, durably: everything else first, then one slot of 48 bytes."""
        self._commit(closed=False)

    def close(self) -> None:
        """Commit, and let a new file appear under its name. `ValueError` while a table is not done."""
        if self._file.closed:
            return
        if self._open:
            raise ValueError(f"not done: {', '.join(describe(k) for k in sorted(self._open))}")
        try:
            self._commit(closed=True)
        except BaseException:
            self.abort()
            raise
        self._file.close()
        if self._final is not None:
            os.replace(self.path, self._final)
            _sync_folder(self._final)

    def abort(self) -> None:
        """Leave what was there before: a new file goes away, one that was added to keeps its last commit."""
        if self._file.closed:
            return
        if self._final is None:
            self._file.truncate(self._committed)
        self._file.close()
        if self._final is not None:
            os.unlink(self.path)

    def view(self) -> Tb5File:
        """The file as last committed, for reading while it is written. Raises `FormatError` before the first commit."""
        from .file_source import PathSource

        return Tb5File(PathSource(open(self.path, "rb", buffering=0), self._final or self.path))

    def _commit(self, closed: bool) -> None:
        self._store_strings()
        data = encode_directory(self._tables)
        directory = self._append(data)
        os.fsync(self._file.fileno())
        self._sequence, self._slot = self._sequence + 1, 1 - self._slot
        slot = encode_slot(self._sequence, directory, data, directory + len(data), closed)
        self._write_at(layout.SLOT_OFFSETS[self._slot], slot)
        os.fsync(self._file.fileno())
        self._committed = directory + len(data)

    def _store_strings(self) -> None:
        if self._fresh:
            ends, data = encode_segment(self._fresh)
            key = Table(Scope.STORE, self._segments, layout.STRINGS)
            self.put(key, ends)
            if len(data):
                self.put(key._replace(part=1), data)
            self._segments += 1
            self._fresh = []

    # -- bytes

    def _append(self, data: bytes | NDArray[np.uint8]) -> int:
        """Write at the end; the offset."""
        at, self._end = self._end, _aligned(self._end + len(data))
        self._write_at(at, data)
        return at

    def _write_at(self, offset: int, data: bytes | NDArray[np.uint8]) -> None:
        self._file.seek(offset)
        view = memoryview(data)  # type: ignore[arg-type]
        while len(view):
            view = view[self._file.write(view) :]

    def _finish(self, key: Table, entry: Entry) -> None:
        self._open.discard(key)
        self._tables[key] = entry


class TableWriter:
    """A table in the making. Bytes may come in any pieces; they are cut into blocks of whole records."""

    def __init__(self, writer: Tb5Writer, key: Table, record_size: int) -> None:
        self._writer, self.key, self.record_size = writer, key, record_size
        self._block = layout.records_of_block(record_size) * record_size
        self._waiting: NDArray[np.uint8] | None = None
        self._filled = self._bytes = 0
        self._index: list[tuple[int, int, int]] = []

    @property
    def count(self) -> int:
        """Whole records so far."""
        return self._bytes // self.record_size

    def write(self, data: Array | bytes | bytearray | memoryview) -> None:
        """Add records, or any bytes of them."""
        if isinstance(data, np.ndarray):
            rest = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        else:
            rest = np.frombuffer(data, np.uint8)
        self._bytes += len(rest)
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

    def done(self) -> None:
        """Complete the table: it is in the file from the next commit on. `ValueError` for half a record."""
        if self._bytes % self.record_size:
            raise ValueError(f"{describe(self.key)}: {self._bytes} bytes are not whole records of {self.record_size}")
        self._flush()
        self._waiting = None
        data = np.array(self._index, layout.BLOCK_INDEX).tobytes()
        at = self._writer._append(data) if data else 0
        entry = Entry(self.record_size, self.count, self._block, len(self._index), at, crc32(data))
        self._writer._finish(self.key, entry)

    def _flush(self) -> None:
        if self._filled and self._waiting is not None:
            self._store(self._waiting[: self._filled])
            self._filled = 0

    def _store(self, block: NDArray[np.uint8]) -> None:
        self._index.append((self._writer._append(block), *block_check(block)))


def _is_strings(key: Table) -> bool:
    return key.scope is Scope.STORE and key.section == layout.STRINGS


def _aligned(offset: int) -> int:
    return offset + -offset % layout.ALIGNMENT


def _sync_folder(path: str) -> None:
    """Make a rename durable, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
