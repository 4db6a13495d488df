"""The contents of sections and streams being written, until they are complete and go to the file.

A global section is committed when it is done, a stream as a whole. This module checks the rules on values (chapters 3,
6, 7 and 8); `rules` decides when a section may be used.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..closing import on_failure
from ..formats.tb5.descriptors import check_descriptors
from ..formats.tb5.layout import (
    NOT_EMPTY,
    POINTERS,
    SAMPLE_FILE_VERSION,
    STRUCTS,
    ArchType,
    DescType,
    OsFamily,
    Scope,
    Section,
    StreamSection,
    StreamType,
    Struct,
    Table,
    with_children,
)
from ..model import Array, temporary_file
from .status import Status, TbrwError
from .store import Store, translated
from .structures import ID_MARK, PLACES, REQUIRED, Record, buffer_of, memory_at, parts_of, text_at

__all__ = ["Drafts", "record_size_of"]


Resolve = Callable[[int], str | None]
"""The text of a unique id."""


class _Rows:
    """The records of one table in their order, with the texts of their string fields."""

    def __init__(self, name: str) -> None:
        self.struct = STRUCTS[name]
        self.data = bytearray()
        self.texts: list[tuple[str | None, ...]] = []

    def __len__(self) -> int:
        return len(self.texts)

    def array(self, intern: Callable[[str | None], int]) -> Array:
        """The records with the ids of their texts."""
        rows = np.frombuffer(bytearray(self.data), self.struct.dtype)
        for j, name in enumerate(self.struct.strings()):
            rows[name] = [intern(texts[j]) for texts in self.texts]
        return rows


class RecordsDraft:
    """Records of one section. ``where`` names it in messages."""

    def __init__(self, scope: Scope, section: int, where: str, resolve: Resolve) -> None:
        self.scope, self.section, self.where, self._resolve = scope, section, where, resolve
        self.rows = {name: _Rows(name) for name in parts_of(scope, section)}

    def add(self, record: Record, *, instead: bool = False) -> None:
        """Append a record and what its pointers lead to; ``instead`` of what an earlier set_ wrote."""
        name = record.declared.name
        if instead:
            for dropped in with_children(name):
                self.rows[dropped] = _Rows(dropped)
        taken: list[tuple[str, bytes, tuple[str | None, ...]]] = []
        data, own = bytes(record)[: record.declared.size], buffer_of(record)
        self._take(record.declared, data, own, taken, Counter())
        for part, data, texts in taken:
            self.rows[part].data += data
            self.rows[part].texts.append(texts)

    def _take(
        self,
        struct: Struct,
        data: bytes,
        own: range,
        taken: list[tuple[str, bytes, tuple[str | None, ...]]],
        seen: Counter[str],
    ) -> None:
        """Copy one record out of the buffer ``own``: strings become texts, pointers the rows of what they lead to."""
        row = np.frombuffer(data, struct.dtype)[0]
        first = struct.fields[0].name
        if first.endswith("_size") and row[first] != struct.size:
            raise TbrwError(
                Status.INCOMPATIBLE_VERSION, f"{struct.name}.{first} is {row[first]}; it must be {struct.size}"
            )
        texts = tuple(self._text(struct, field, int(row[field])) for field in struct.strings())
        copy = bytearray(data)
        seen[struct.name] += 1
        below: list[tuple[Struct, bytes]] = []
        for field in struct.fields:
            if field.code == "pointer":
                child, found = _follow(struct, row, own)
                position = len(self.rows[child.name]) + seen[child.name]
                copy[field.offset : field.offset + 8] = position.to_bytes(8, "little")
                below += [(child, found[i : i + child.size]) for i in range(0, len(found), child.size)]
        taken.append((struct.name, bytes(copy), texts))
        for child, found in below:
            self._take(child, found, own, taken, seen)

    def _text(self, struct: Struct, field: str, word: int) -> str | None:
        if word & ID_MARK:
            return self._resolve(word)
        text = text_at(word)
        if text is None and word:
            raise TbrwError(
                Status.INVALID_STRING, f"{struct.name}.{field} is {word:#x}: neither a string nor an id of this file"
            )
        return text

    def check_complete(self) -> None:
        """Raises `TbrwError` (NO_DATA_TO_WRITE) if the section lacks what it must hold."""
        missing = [name for name in REQUIRED.get((self.scope, self.section), ()) if not self.rows[name]]
        if missing:
            raise TbrwError(Status.NO_DATA_TO_WRITE, f"{self.where} lacks {', '.join(missing)}")
        for name in NOT_EMPTY.keys() & self.rows.keys():
            row = self.rows[name].array(bool)[0]  # a string counts by whether it has text
            if not any(row[field] for field in NOT_EMPTY[name]):
                raise TbrwError(
                    Status.NO_DATA_TO_WRITE, f"{self.where}: {name} is empty; give {' or '.join(NOT_EMPTY[name])}"
                )

    def tables(self, intern: Callable[[str | None], int]) -> Iterator[tuple[int, Array]]:
        """(part, records) to write. The first part is always among them, so that an empty section exists too."""
        for part, rows in enumerate(self.rows.values()):
            if len(rows) or not part:
                yield part, rows.array(intern)


class BytesDraft:
    """The content of a user-defined section."""

    def __init__(self, where: str) -> None:
        self.where, self.data = where, b""
        self.given = False

    def set(self, data: bytes) -> None:
        """The whole content."""
        self.data, self.given = data, True

    def check_complete(self) -> None:
        """Raises `TbrwError` (NO_DATA_TO_WRITE) if nothing was set."""
        if not self.given:
            raise TbrwError(Status.NO_DATA_TO_WRITE, f"{self.where} has no data")

    def tables(self, _intern: Callable[[str | None], int]) -> Iterator[tuple[int, Array]]:
        """The only part."""
        yield 0, np.frombuffer(self.data, np.uint8)


def _follow(struct: Struct, row: Array, own: range) -> tuple[Struct, bytes]:
    """(structure, bytes) of the entries that a pointer leads to. Raises `TbrwError` if the path does not lead to a
    field."""
    pointer = POINTERS[struct.name]
    arch = int(row["arch_type"]) if len(pointer.targets) > 1 else ArchType.UNKNOWN
    if arch not in set(ArchType):
        raise TbrwError(Status.UNSUPPORTED_ARCH_TYPE, f"{struct.name}.arch_type is {arch}")
    name, kind = pointer.target(arch)
    child, number = STRUCTS[kind], int(row[pointer.counter])
    if not number:
        return child, b""
    found = memory_at(int(row[pointer.field]), number * child.size, own)
    if found is None:
        raise TbrwError(
            Status.UNEXPECTED_NULL_PTR, f"{struct.name}.{name} does not point to {number} {kind} ({pointer.counter})"
        )
    return child, found


# -- records of a stream: bytes in any portions, possibly before their descriptor is known (5.2)

_HELD = 1 << 20


class DataDraft:
    """Data of one stream until that is done, in a temporary file in ``folder``; the last bytes are in memory.

    The TB5 file does not contain them before, so that a commit that fails loses nothing.
    """

    def __init__(self, stream: int, folder: str) -> None:
        self.stream, self.size, self._folder = stream, 0, folder
        self._file: io.BufferedRandom | None = None
        self._stored = 0
        self._end = bytearray()

    def add(self, portions: Iterable[bytes], record_size: int) -> None:
        """Append all portions, or none of them after an error.

        They must be whole records, or a part of one. Raises `TbrwError` (UNSUPPORTED_DATA_SIZE) otherwise. A
        ``record_size`` of 0 (no descriptor yet) accepts any size.
        """
        before = self.size
        with on_failure(self._cut, before):
            for portion in portions:
                self._end += portion
                self.size += len(portion)
                if len(self._end) >= _HELD:
                    self._store()
            self._check_fits(before, record_size)

    def _check_fits(self, before: int, record_size: int) -> None:
        size, inside = self.size - before, before % record_size if record_size else 0
        whole = not inside and record_size and not size % record_size
        if record_size and not whole and inside + size > record_size:
            raise TbrwError(
                Status.UNSUPPORTED_DATA_SIZE,
                f"stream {self.stream}: {size} bytes do not fit; {inside} of a record of {record_size} bytes are "
                f"present",
            )

    def _store(self) -> None:
        if self._file is None:
            self._file = temporary_file(self._folder)
        self._file.seek(self._stored)
        rest = memoryview(bytes(self._end))
        raw = self._file.raw  # unbuffered: a buffer would keep what a full disk refused
        while rest:
            rest = rest[raw.write(rest) :]
        self._stored, self._end = self._stored + len(self._end), bytearray()

    def _cut(self, size: int) -> None:
        self.size = size
        self._stored = min(self._stored, size)
        del self._end[size - self._stored :]
        if self._file is not None:
            self._file.truncate(self._stored)

    def pieces(self) -> Iterator[bytes]:
        """All of it."""
        if self._file is not None:
            self._file.seek(0)
            while piece := self._file.read(_HELD):
                yield piece
        yield bytes(self._end)

    def check_complete(self, record_size: int) -> None:
        """Raises `TbrwError` (UNSUPPORTED_DATA_SIZE) if the last record is incomplete."""
        if record_size and self.size % record_size:
            raise TbrwError(
                Status.UNSUPPORTED_DATA_SIZE,
                f"stream {self.stream}: {self.size} bytes of data are not whole records of {record_size}",
            )

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


# -- what a record must hold to be accepted, by structure

_PLATFORMS = {*OsFamily, *range(0x100, 0x200)}
_USER_STREAMS = (StreamType.SAMPLING, StreamType.AGGREGATED, StreamType.BOOKMARK, StreamType.CUSTOM)
_ENTRY = STRUCTS["TBRW_SAMPREC_DESC_ENTRY"]
_LEGACY_SIZE = STRUCTS["TBRW_SampleRecordPC"].size
_LARGEST_RECORD = 1 << 26
_IN_LEGACY = {
    DescType.NONE,
    DescType.IP,
    DescType.PID,
    DescType.TID,
    DescType.PROCESSOR_NUMBER,
    DescType.PROCESSOR_STATUS,
}
"""What a legacy sample record holds. An entry may name these inside one."""


class Check(NamedTuple):
    """The rule for a ``record`` whose section already has ``before`` records of its kind; ``problem`` if the rule is
    broken."""

    holds: Callable[[Any, int], bool]
    status: Status
    problem: str
    """Formatted with ``record``, ``before`` and ``stream``."""


CHECKS = {
    "TBRW_OS": Check(
        lambda record, _: record.os_platform in _PLATFORMS,
        Status.UNEXPECTED_VALUE,
        "os_platform = {record.os_platform:#x} is reserved; 1 to 6 are TBRW_OSFAMILY_*, 0x100 to 0x1FF are free (7.1)",
    ),
    "TBRW_VERSION_INFO": Check(
        lambda record, _: record.sample_file_version >= SAMPLE_FILE_VERSION,
        Status.INCOMPATIBLE_VERSION,
        "sample_file_version = {record.sample_file_version}; 16 and higher are supported (1)",
    ),
    "TBRW_MODULE": Check(
        lambda record, _: record.module_load_address + record.module_length <= 1 << 64,
        Status.BAD_MODULE,
        "module_load_address = {record.module_load_address:#x} and module_length = {record.module_length:#x} leave the"
        " address space",
    ),
    "TBRW_STREAM_INFO": Check(
        lambda record, _: record.stream_type in _USER_STREAMS,
        Status.UNEXPECTED_VALUE,
        "stream_type = {record.stream_type} is none that can be written (8.9)",
    ),
    "TBRW_EVENT": Check(
        lambda record, before: record.event_id == before,
        Status.UNEXPECTED_VALUE,
        "event_id = {record.event_id} in stream {stream}; ids count from 0, the next is {before} (6.7)",
    ),
}


def record_size_of(entries: Array) -> int:
    """Bytes of a record that TBRW_SAMPREC_DESC_ENTRY records describe: where the last entry ends."""
    return int((entries["desc_offset"].astype(np.int64) + entries["desc_data_size"]).max(initial=0))


def check_descriptor(entries: Array, stream: int) -> None:
    """Check the last of ``entries`` against the others. Raises `TbrwError` with entry, field and value.

    Legacy sample records belong in stream 0 (3.2.2); records have no fields of reserved or computed types (8.11);
    entries are inside the record and do not overlap, unless they name what a legacy sample record holds.
    """
    entry, number = entries[-1], len(entries) - 1
    kind, start, size = (int(entry[f"desc_{name}"]) for name in ("type", "offset", "data_size"))
    if kind == DescType.LEGACY_SAMPLE_RECORD and stream:
        raise TbrwError(Status.INVALID_STREAM, f"legacy sample records belong in stream 0, not stream {stream} (3.2.2)")
    if kind == DescType.LEGACY_SAMPLE_RECORD and size != _LEGACY_SIZE:
        raise TbrwError(
            Status.UNSUPPORTED_DATA_SIZE, f"descriptor entry {number}: a legacy sample record has 32 bytes, not {size}"
        )
    problem = check_descriptors(entries, _LARGEST_RECORD)
    for before, other in enumerate(entries[:-1]):
        low, high = int(other["desc_offset"]), int(other["desc_offset"]) + int(other["desc_data_size"])
        if start < high and low < start + size and not _inside_legacy({kind, int(other["desc_type"])}):
            problem = f"descriptor entries {before} and {number} overlap", "desc_offset", start
    if problem is not None:
        reason, field, value = problem
        status = Status.UNEXPECTED_VALUE if field != "desc_data_size" else Status.UNSUPPORTED_DATA_SIZE
        if "exceeds" in reason:
            status = Status.UNSUPPORTED_DATA_SIZE
        raise TbrwError(status, f"stream {stream}: {reason} ({field} = {value})")


def _inside_legacy(kinds: set[int]) -> bool:
    return len(kinds) == 2 and kinds - _IN_LEGACY == {DescType.LEGACY_SAMPLE_RECORD}


# -- everything that a handle writes, from the first set_ or add_ to the commit

_RECORDS = Table(Scope.STREAM, 0, StreamSection.DATA)


class Drafts:
    """Everything of one handle that is not in the file yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._drafts: dict[tuple[int | None, int], RecordsDraft | BytesDraft] = {}
        self._data: dict[int, DataDraft] = {}
        self._record_sizes: dict[int, int] = {}

    # -- begin

    def begin_section(self, section: int, stream: int | None) -> None:
        """writing_section, writing_stream_section."""
        free: Section | StreamSection
        if stream is None:
            scope, where, free = Scope.GLOBAL, Section(section).name, Section.USER_DEFINED_GLOBAL
        elif section == StreamSection.DATA:
            self._data[stream] = DataDraft(stream, os.path.dirname(self._store.path) or os.curdir)
            return
        else:
            where = f"{StreamSection(section).name} of stream {stream}"
            scope, free = Scope.STREAM, StreamSection.USER_DEFINED_STREAM
        self._drafts[stream, section] = (
            BytesDraft(where) if section == free else RecordsDraft(scope, section, where, self._store.text)
        )

    # -- contents

    def set_bytes(self, section: int, stream: int | None, data: bytes) -> None:
        """The content of a user-defined section."""
        draft = self._drafts[stream, section]
        assert isinstance(draft, BytesDraft)
        draft.set(data)

    def add(self, record: Record, stream: int | None, *, single: bool) -> None:
        """Add a record to its section. A ``single`` one replaces what was set before."""
        name = record.declared.name
        draft = self._drafts[stream, PLACES[name].section]
        assert isinstance(draft, RecordsDraft)
        before, check = len(draft.rows[name]), CHECKS.get(name)
        if check is not None and not check.holds(record, before):
            raise TbrwError(check.status, check.problem.format(record=record, before=before, stream=stream or 0))
        if name == "TBRW_SAMPREC_DESC_ENTRY":
            entry = np.frombuffer(bytes(record), record.declared.dtype)
            check_descriptor(np.concatenate([self._entries(draft), entry]), stream or 0)
        draft.add(record, instead=single)

    def add_data(self, stream: int, portions: Iterable[bytes]) -> None:
        """Add records, all of them or none."""
        with self._store.lock, translated():
            self._data[stream].add(portions, self._record_sizes.get(stream, 0))

    def whole_records(self, stream: int) -> int:
        """Bytes of a record if a stream that is being written holds whole records so far, else 0."""
        data, size = self._data.get(stream), self._record_sizes.get(stream, 0)
        return size if data is not None and size and not data.size % size else 0

    # -- done

    def done_section(self, section: int, stream: int | None) -> None:
        """Check that a section is complete; commit a global section."""
        if stream is not None and section == StreamSection.DATA:
            self._data[stream].check_complete(self._record_sizes.get(stream, 0))
            return
        draft = self._drafts[stream, section]
        draft.check_complete()
        if stream is None:
            self._store.put(self._tables(Scope.GLOBAL, 0, section, draft))
            del self._drafts[None, section]
        elif section == StreamSection.DATA_DESCRIPTION and isinstance(draft, RecordsDraft):
            self._record_sizes[stream] = record_size_of(self._entries(draft))

    def done_stream(self, stream: int) -> None:
        """Commit a stream, which the rules allow to be done."""
        data, size = self._data.get(stream), self._record_sizes[stream]
        if data is not None:
            data.check_complete(size)
        with self._store.adding() as writer:
            if data is not None:
                table = writer.table(_RECORDS._replace(stream=stream), size)
                for piece in data.pieces():
                    table.write(piece)
                table.done()
            mine = [section for owner, section in self._drafts if owner == stream]
            for section in mine:
                for key, records in self._tables(Scope.STREAM, stream, section, self._drafts[stream, section]):
                    writer.put(key, records)
        if data is not None:
            self._data.pop(stream).close()
        for section in mine:
            del self._drafts[stream, section]
        del self._record_sizes[stream]

    def close(self) -> None:
        """Remove temporary files."""
        for data in self._data.values():
            data.close()

    def _tables(
        self, scope: Scope, stream: int, section: int, draft: RecordsDraft | BytesDraft
    ) -> Iterator[tuple[Table, Array]]:
        for part, records in draft.tables(self._store.writer.string):
            yield Table(scope, stream, section, part), records

    # -- data and its descriptor

    @staticmethod
    def _entries(draft: RecordsDraft) -> Array:
        return draft.rows["TBRW_SAMPREC_DESC_ENTRY"].array(lambda _text: 0)
