"""TB5 files in Python's terms, under the same rules: context managers, exceptions, NumPy arrays.

    with open_file("run.tb5", "w") as file:
        with file.writing(Section.SOFTWARE) as section:
            section.put(TBRW_HOST(host_name="a"), TBRW_APPLICATION(app_page_size=4096))
            section.put(TBRW_OS(os_platform=TBRW_OSFAMILY_LINUX64))
        with file.writing_stream() as stream, stream.writing(StreamSection.STREAM_INFO) as section:
            section.put(TBRW_STREAM_INFO(stream_type=TBRW_CUSTOM_STREAM))

A ``with`` block that ends normally completes its section or stream; an exception discards the section or stream.
Sections and streams completed before stay in the file. Refusals are `TbrwError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from ..errors import Damage
from ..formats.tb5 import layout
from ..formats.tb5.layout import SINGLE, STRUCTS, DescSubtype, DescType, Scope, StreamSection
from ..model import Array
from .drafts import record_size_of
from .handle import Handle
from .rules import Access, FileMode
from .structures import RECORDS, TBRW_STRING_OR_ID, VIEWABLE, Record

__all__ = ["Owner", "SectionReader", "SectionWriter", "Stream", "Tb5", "open_file", "record_dtype"]


# -- records of a stream as NumPy sees them, from the data descriptor

_PC = STRUCTS["TBRW_SampleRecordPC"]
_WORDS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_BRANCH = 16
"""Bytes of a branch entry: from and to."""


def record_dtype(entries: Array, names: list[str]) -> np.dtype[Any]:
    """dtype of the records that TBRW_SAMPREC_DESC_ENTRY ``entries`` with these ``names`` describe.

    A legacy sample record gives the fields of TBRW_SampleRecordPC, LBR_FROM_TO entries (n, 2) uint64, everything of 1,
    2, 4 or 8 bytes an unsigned integer, the rest bytes. An entry without a name is called after its type; a name that
    is taken gets the number of its entry.
    """
    fields: dict[str, tuple[Any, int]] = {}
    for i, (entry, name) in enumerate(zip(entries, names, strict=True)):
        kind, size, at = (int(entry[f"desc_{part}"]) for part in ("type", "data_size", "offset"))
        if kind == DescType.LEGACY_SAMPLE_RECORD and size == _PC.size:
            found = [(f.name, f"<{f.code}", at + f.offset) for f in _PC.fields]
        else:
            code: Any = _WORDS.get(size, f"V{size}")
            if entry["desc_subtype"] == DescSubtype.LBR_FROM_TO and size % _BRANCH == 0:
                code = ("<u8", (size // _BRANCH, 2))
            found = [(name or (DescType(kind).name if kind in set(DescType) else f"type_{kind:#x}"), code, at)]
        for called, code, offset in found:
            fields[called if called not in fields else f"{called}_{i}"] = (code, offset)
    return layout.record_dtype(fields, record_size_of(entries))


# -- files, streams and sections

_Kind = TypeVar("_Kind", bound=Record)
_MODES = {
    "r": FileMode.READ,
    "a": FileMode.READ | FileMode.WRITE,
    "w": FileMode.READ | FileMode.WRITE | FileMode.CREATE_ALWAYS,
}


def open_file(path: str | os.PathLike[str], mode: str = "r") -> Tb5:
    """Open a TB5 file: ``r`` to read, ``a`` to add sections and streams too, ``w`` to make a new one.

    Raises `TbrwError` where it cannot be opened, `ValueError` for another mode.
    """
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(_MODES)}")
    return Tb5(Handle(os.fspath(path), _MODES[mode]))


class SectionReader:
    """A section that is being read."""

    def __init__(self, handle: Handle, section: int, stream: int | None) -> None:
        self._handle, self._section, self._stream = handle, section, stream

    def get(self, kind: type[_Kind]) -> _Kind:
        """The only structure of ``kind``; its pointers lead to memory that it keeps."""
        found = self._handle.reader.block(kind.__name__, self._stream).record()
        assert isinstance(found, kind)
        return found

    def records(self, kind: type[_Kind], start: int = 0) -> Iterator[_Kind]:
        """The structures of ``kind`` from index ``start`` on."""
        for array in self._handle.reader.enumerate(kind.__name__, self._stream, start):
            yield from array

    def array(self, kind: type[Record]) -> Array:
        """All structures of ``kind`` as a structured array with the guide's field names; strings are unique ids."""
        found = [
            np.frombuffer(a, kind.declared.dtype) for a in self._handle.reader.enumerate(kind.__name__, self._stream)
        ]
        return np.concatenate(found) if found else np.empty(0, kind.declared.dtype)

    def bytes(self) -> bytes:
        """The content of a user-defined section."""
        return self._handle.reader.bytes(self._section, self._stream)


class SectionWriter:
    """A section that is being written."""

    def __init__(self, handle: Handle, section: int, stream: int | None) -> None:
        self._handle, self._section, self._stream = handle, section, stream

    def put(self, *records: Record) -> None:
        """Set or append structures."""
        for record in records:
            self._handle.put(record, self._stream, single=record.declared.name in SINGLE)

    def write(self, data: Any) -> None:
        """The content of a user-defined section, or records of a data section: bytes or an array."""
        raw = data if isinstance(data, bytes) else memoryview(data).tobytes()
        if self._stream is not None and self._section == StreamSection.DATA:
            self._handle.add_data(self._stream, raw)
        else:
            self._handle.put_bytes(self._section, self._stream, raw)


class Owner:
    """A file or an open stream: each has sections."""

    def __init__(self, handle: Handle, stream: int | None) -> None:
        self.handle, self.stream = handle, stream

    @contextmanager
    def reading(self, section: int) -> Iterator[SectionReader]:
        """Read a section."""
        self.handle.begin_section(section, Access.READING, self.stream)
        try:
            yield SectionReader(self.handle, section, self.stream)
        finally:
            self.handle.done_section(section, self.stream)

    @contextmanager
    def writing(self, section: int) -> Iterator[SectionWriter]:
        """Write a section that does not exist."""
        self.handle.begin_section(section, Access.WRITING, self.stream)
        yield SectionWriter(self.handle, section, self.stream)
        self.handle.done_section(section, self.stream)


class Stream(Owner):
    """A data stream that is open."""

    @property
    def number(self) -> int:
        """Which stream of the file it is."""
        assert self.stream is not None
        return self.stream

    def dtype(self) -> np.dtype[Any]:
        """The records, as the data descriptor says: `record_dtype`."""
        with self.reading(StreamSection.DATA_DESCRIPTION) as section:
            entries = section.array(RECORDS["TBRW_SAMPREC_DESC_ENTRY"])
        names = [self.handle.store.text(i) if i else "" for i in entries["desc_name"].tolist()]
        return record_dtype(entries, names)

    def portions(self, bound: bool) -> Iterator[tuple[memoryview, Any]]:
        """(bytes of records, their DATA_BIND_STRUCTs if ``bound``) while the data section is being read."""
        reader = self.handle.reader
        if bound:
            yield from ((data, bind) for data, _, bind in reader.bound_data(self.number))
        else:
            yield from ((data, None) for data, _ in reader.data(self.number))

    def batches(self, start: int = 0) -> Iterator[Array]:
        """Structured arrays of the records from index ``start`` on, about a megabyte each."""
        dtype = self.dtype()
        with self.reading(StreamSection.DATA):
            for data, _ in self.handle.reader.data(self.number, start):
                yield np.frombuffer(data, dtype)

    def array(self, start: int = 0) -> Array:
        """All records from index ``start`` on."""
        found = list(self.batches(start))
        return np.concatenate(found) if found else np.empty(0, self.dtype())

    def bound(self, start: int = 0, count: int | None = None) -> Array:
        """Indices of the module, process and thread of ``count`` records from ``start`` on, as uint64 fields."""
        with self.reading(StreamSection.DATA):
            return self.handle.reader.bind_array(self.number, start, count)


class Tb5(Owner):
    """An open TB5 file. ``handle`` can be passed to the functions of the guide as their ``ptr``."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle, None)

    def __enter__(self) -> Tb5:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.handle.close()
        else:
            self.handle.abort()

    @property
    def streams(self) -> int:
        """Number of complete data streams."""
        return self.handle.rules.count

    @property
    def damage(self) -> list[Damage]:
        """The damage that was found at opening."""
        return self.handle.store.damage

    @contextmanager
    def reading_stream(self, number: int) -> Iterator[Stream]:
        """Read a stream."""
        self.handle.begin_stream(number, Access.READING)
        try:
            yield Stream(self.handle, number)
        finally:
            self.handle.done_stream(number)

    @contextmanager
    def writing_stream(self) -> Iterator[Stream]:
        """Write the next stream."""
        with self.handle.lock:
            number = self.handle.rules.next_stream
            self.handle.begin_stream(number, Access.WRITING)
        yield Stream(self.handle, number)
        self.handle.done_stream(number)

    def text(self, string: TBRW_STRING_OR_ID | int) -> str:
        """The string of a unique id; empty for the NULL string."""
        unique_id = string.soi_uniqueid if isinstance(string, TBRW_STRING_OR_ID) else int(string)
        return self.handle.store.text(unique_id) if unique_id else ""

    def missing(self) -> list[str]:
        """Names of the sections that the file lacks to be viewed as a sampling session (6.2)."""
        rules = self.handle.rules
        stream = rules.existing(0) if rules.count else set()
        missing = [s.name for s in VIEWABLE[Scope.GLOBAL] if s not in rules.sections.existing]
        return missing + [f"{s.name} of stream 0" for s in VIEWABLE[Scope.STREAM] if s not in stream]

    def verify(self) -> None:
        """Check every block, string id, descriptor and bind index. Raises `TbrwError` (INVALID_SAMPLE_FILE)."""
        self.handle.verify()

    def is_bound(self, stream: int) -> bool:
        """Whether a stream is bound."""
        return self.handle.is_bound(stream)

    def bind(self, stream: int) -> None:
        """Find the module, process and thread of each sample of a stream."""
        self.handle.dobind(stream)

    def unbind(self, stream: int) -> None:
        """Remove what binding a stream added."""
        self.handle.unbind(stream)
