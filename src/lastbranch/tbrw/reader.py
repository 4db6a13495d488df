"""The reading calls: get_, get_one_, enumerate_, and their forms for bound streams."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import numpy as np

from ..formats.tb5.layout import (
    POINTERS,
    STRUCTS,
    Pointer,
    Scope,
    Section,
    StreamSection,
    StreamType,
    Struct,
    Table,
    struct_of,
    with_children,
)
from ..formats.tb5.reader import Tb5File
from ..formats.tb5.sample_reader import SampleRecords
from ..model import Array
from .rules import Access, Rules
from .status import Status, TbrwError
from .store import Store
from .structures import ID_MARK, PLACES, RECORDS, Record, register

__all__ = ["Block", "Reader", "events", "rows"]


# -- from rows to the guide's structures, with unique ids and real pointers

_CHUNK = 1024
"""Most records that a callback gets at a time."""


class Tables(Protocol):
    """A source of records, such as a `Tb5File`."""

    def has(self, key: Table, /) -> bool: ...
    def count(self, key: Table, /) -> int: ...
    def records(self, key: Table, first: int = ..., count: int | None = ..., /) -> Array: ...


def marked(struct: Struct, found: Array) -> Array:
    """A copy whose string ids are marked as such."""
    out = np.frombuffer(bytearray(found.tobytes()), struct.dtype)  # copy() would not keep the bytes between fields
    for name in struct.strings():
        out[name] |= np.where(out[name] != 0, np.uint64(ID_MARK), np.uint64(0))
    return out


def rows(view: Tables, key: Table, start: int) -> Iterator[Any]:
    """The records of a table from ``start`` on, as ctypes arrays of the guide's structure."""
    struct = struct_of(key)
    assert struct is not None
    for first in range(start, view.count(key) if view.has(key) else 0, _CHUNK):
        found = marked(struct, view.records(key, first, _CHUNK))
        yield (RECORDS[struct.name] * len(found)).from_buffer_copy(found.tobytes())


class Block:
    """A structure and everything that its pointers lead to, as one piece of memory: what get_ copies to a buffer."""

    def __init__(self, view: Tables, name: str, stream: int | None) -> None:
        self.name = name
        self.parts: dict[str, Array] = {}
        self.offsets: dict[str, int] = {}
        self.size = 0
        for part in with_children(name):
            found = view.records(PLACES[part].table(stream))
            self.parts[part], self.offsets[part] = marked(STRUCTS[part], found), self.size
            self.size += found.nbytes
        if not len(self.parts[name]):
            raise TbrwError(Status.ENTRY_NOT_FOUND, f"the section holds no {name}")

    def record(self) -> Record:
        """The structure, in memory of its own."""
        kind = RECORDS[self.name]
        memory = (kind * -(-self.size // kind.declared.size))()
        self.fill(memory)
        found: Record = memory[0]
        return found

    def fill(self, buffer: Any) -> None:
        """Write it to the start of a writable buffer of at least ``size`` bytes."""
        target = (ctypes.c_char * self.size).from_buffer(buffer)
        base = ctypes.addressof(target)
        for owner, part in self.parts.items():
            if owner in POINTERS:
                self._point(part, POINTERS[owner], base, buffer)
        ctypes.memmove(target, b"".join(part.tobytes() for part in self.parts.values()), self.size)

    def _point(self, found: Array, pointer: Pointer, base: int, owner: Any) -> None:
        field, counter = pointer.field, pointer.counter
        for i in range(len(found)):
            kind = pointer.target(int(found["arch_type"][i]) if len(pointer.targets) > 1 else 0)[1]
            first, number, size = int(found[field][i]), int(found[counter][i]), STRUCTS[kind].size
            if first + number > len(self.parts[kind]):
                raise TbrwError(
                    Status.INVALID_SAMPLE_FILE,
                    f"{counter} = {number} from row {first}: there are {len(self.parts[kind])}",
                )
            address = base + self.offsets[kind] + first * size if number else 0
            found[field][i] = address
            if number and not isinstance(owner, bytearray | memoryview):
                register(owner, address, number * size)


def events(view: Tables, stream: int, start: int) -> Iterator[Any]:
    """The events of a stream from ``start`` on. In memory the details of an event follow it (8.10), so an array holds
    events with equally many."""
    struct, detail = STRUCTS["TBRW_EVENT"], STRUCTS["TBRW_EVENT_DETAIL"]
    found = marked(struct, view.records(PLACES[struct.name].table(stream)))
    details = view.records(PLACES[detail.name].table(stream))
    counts, total = found["event_num_details"].astype(np.int64), len(details)
    after = total - np.minimum(found["event_detail_array"], total).astype(np.int64)
    if (counts > after).any():
        raise TbrwError(Status.INVALID_SAMPLE_FILE, f"stream {stream}: events refer to more details than there are")
    order = np.arange(start, len(found))
    for run in np.split(order, np.flatnonzero(np.diff(counts[start:])) + 1):
        for first in run[::_CHUNK].tolist():
            some = found[first : min(first + _CHUNK, int(run[-1]) + 1)]
            yield _event_array(some, details, int(counts[first]))


def _event_array(found: Array, details: Array, number: int) -> Any:
    kind = _with_details(number)
    array = (kind * len(found))()
    base, stride, head = ctypes.addressof(array), ctypes.sizeof(kind), STRUCTS["TBRW_EVENT"].size
    for i, row in enumerate(found):
        at, first = base + i * stride, int(row["event_detail_array"])
        row["event_detail_array"] = at + head if number else 0
        block = row.tobytes() + details[first : first + number].tobytes()
        ctypes.memmove(at, block, len(block))
        if number:
            register(array, at + head, stride - head)
    return array


@cache
def _with_details(number: int) -> type[Record]:
    """TBRW_EVENT followed by ``number`` details."""
    event = RECORDS["TBRW_EVENT"]
    if not number:
        return event
    body = {"_fields_": [("details", RECORDS["TBRW_EVENT_DETAIL"] * number)], "__doc__": event.__doc__}
    return type("TBRW_EVENT", (event,), body)


BOUND = {
    "DATA_BIND_STRUCT": StreamType.BIND_DATA_INFORMATION,
    "MODULE_BIND_STRUCT": StreamType.BIND_MODULE_INFORMATION,
    "TID_BIND_STRUCT": StreamType.BIND_TID_INFORMATION,
}
"""Bind structure -> the bind-information stream that holds one for each sample, module or thread."""
_GENERATED = {"TBRW_PID": StreamType.BIND_PID_INFORMATION, "TBRW_TID": StreamType.BIND_TID_INFORMATION}


class Reader:
    """Reads what is committed, if the rules allow it."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self.store, self.rules = store, rules

    def require(self, section: int, stream: int | None) -> None:
        """Raises `TbrwError` (SECTION_NOT_READABLE) unless the section is open for reading."""
        with self.store.lock:
            self.rules.require(section, stream, Access.READING)

    def block(self, name: str, stream: int | None = None) -> Block:
        """get_ of a structure: it and all that its pointers lead to."""
        self.require(PLACES[name].section, stream)
        with self.store.reading() as view:
            return Block(view, name, stream)

    def bytes(self, section: int, stream: int | None) -> bytes:
        """get_user_defined_global, get_user_defined_stream."""
        self.require(section, stream)
        with self.store.reading() as view:
            return view.bytes(Table(Scope.GLOBAL if stream is None else Scope.STREAM, stream or 0, section))

    def count(self, name: str, stream: int | None) -> int:
        """How many of a structure the section holds."""
        self.require(PLACES[name].section, stream)
        with self.store.reading() as view:
            return _count(view, self._table(name, stream))

    def one(self, name: str, index: int) -> Record:
        """get_one_ of a structure. Raises `TbrwError` (ENTRY_NOT_FOUND)."""
        self.require(PLACES[name].section, None)
        with self.store.reading() as view:
            key = self._table(name, None)
            count = _count(view, key)
            if not 0 <= index < count:
                raise TbrwError(Status.ENTRY_NOT_FOUND, f"there is no {name} {index}; the section has {count}")
            row = marked(RECORDS[name].declared, view.records(key, index, 1))
            return RECORDS[name].from_buffer_copy(row.tobytes())

    def enumerate(self, name: str, stream: int | None, start: int = 0) -> Iterator[Any]:
        """enumerate_ of a structure: ctypes arrays of those from index ``start`` on."""
        self.require(PLACES[name].section, stream)
        with self.store.reading() as view:
            key = self._table(name, stream)
            _check_start(start, _count(view, key))
            if name == "TBRW_EVENT":
                yield from events(view, stream or 0, start)
            else:
                yield from rows(view, key, start)

    def data(self, stream: int, start: int = 0, count: int | None = None) -> Iterator[tuple[memoryview, int]]:
        """enumerate_data: (records, how many) from index ``start`` on, about a megabyte at a time."""
        self.require(StreamSection.DATA, stream)
        with self.store.reading() as view:
            key = Table(Scope.STREAM, stream, StreamSection.DATA)
            _check_start(start, view.count(key))
            for records in view.blocks(key, start, count):
                yield memoryview(records.tobytes()), len(records)

    # -- bound

    def bind_array(self, stream: int, start: int = 0, count: int | None = None) -> Array:
        """DATA_BIND_STRUCTs of the records of a bound stream."""
        self.require(StreamSection.DATA, stream)
        self.rules.require_bound(stream)
        with self.store.reading() as view:
            return view.records(Table(Scope.BIND, stream, BOUND["DATA_BIND_STRUCT"]), start, count)

    def bind_rows(self, name: str, stream: int, start: int, count: int) -> Any:
        """Bind structures ``start`` to ``start + count`` of a stream as a ctypes array."""
        with self.store.reading() as view:
            found = view.records(Table(Scope.BIND, stream, BOUND[name]), start, count)
            if len(found) < count:
                raise TbrwError(
                    Status.UNEXPECTED_BIND_MISMATCH,
                    f"stream {stream} has {len(found)} {name} from {start}, not {count}",
                )
            return (RECORDS[name] * count).from_buffer_copy(found.tobytes())

    def bound_data(self, stream: int, start: int = 0) -> Iterator[tuple[memoryview, int, Any]]:
        """bind_enumerate_data: (records, how many, their DATA_BIND_STRUCTs)."""
        self.require(StreamSection.DATA, stream)
        self.rules.require_bound(stream)
        for records, count in self.data(stream, start):
            yield records, count, self.bind_rows("DATA_BIND_STRUCT", stream, start, count)
            start += count

    def bound_records(self, name: str, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """bind_enumerate_modules and _threads: (records, bind structures), of `bound_stream`."""
        self.require(PLACES[name].section, None)
        stream = self.bound_stream()
        bind = {"TBRW_MODULE": "MODULE_BIND_STRUCT", "TBRW_TID": "TID_BIND_STRUCT"}[name]
        for records in self.enumerate(name, None, start):
            yield records, self.bind_rows(bind, stream, start, len(records))
            start += len(records)

    def require_addresses(self, stream: int) -> None:
        """Raises `TbrwError` (LEGACY_DATA_NOT_EXIST) if the records of a stream have no address to bind."""
        with self.store.reading() as view:
            if "iip" not in SampleRecords(view, stream).names:
                raise TbrwError(Status.LEGACY_DATA_NOT_EXIST, f"the records of stream {stream} have no address")

    def bound_stream(self) -> int:
        """The bound stream that calls without a stream number refer to: the one that is being read, else the first.

        Raises `TbrwError`: TB5_IS_NOT_BOUND if no stream is bound, and UNEXPECTED_BIND_MISMATCH if several bound
        streams are being read and the file has no processes and threads of its own, which would apply to all streams.
        """
        with self.store.lock:
            read = self.rules.bound & self.rules.being_read()
            candidates = read or self.rules.bound
            own = Section.PROCESS_THREAD in self.rules.sections.existing
        if not candidates:
            raise TbrwError(Status.TB5_IS_NOT_BOUND, "no stream of the file is bound")
        if len(read) > 1 and not own:
            numbers = ", ".join(map(str, sorted(read)))
            raise TbrwError(
                Status.UNEXPECTED_BIND_MISMATCH, f"bound streams {numbers} are being read; read one at a time"
            )
        return min(candidates)

    def bind_size(self, name: str, stream: int) -> int:
        """get_size_of_*_bind_entry: bytes of a bind structure of a bound stream."""
        with self.store.lock:
            self.rules.require_bound(stream)
        return RECORDS[name].declared.size

    def _table(self, name: str, stream: int | None) -> Table:
        """The table of a call. Processes and threads come from the binding if the file has no section of them."""
        own = PLACES[name].table(stream)
        if name in _GENERATED and Section.PROCESS_THREAD not in self.rules.sections.existing:
            return Table(Scope.BIND, self.bound_stream(), _GENERATED[name], 1)
        return own


def _count(view: Tb5File, key: Table) -> int:
    """Records of a table, 0 if it is absent. Raises `TbrwError` for a table of another layout."""
    if key not in view.tables:
        return 0
    struct = struct_of(key)
    if struct is not None and view.record_size(key) != struct.size:
        raise TbrwError(
            Status.INVALID_SAMPLE_FILE,
            f"{view.name}: {struct.name} has {view.record_size(key)} bytes, not {struct.size}",
        )
    return view.count(key)


def _check_start(start: int, count: int) -> None:
    if not 0 <= start <= count:
        raise TbrwError(Status.INVALID_READ_START, f"start_index = {start}; there are {count} entries")
