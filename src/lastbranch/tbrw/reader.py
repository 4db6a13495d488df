"""The reading calls: get_, get_one_, enumerate_ and their bound forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..formats.tb5 import Tb5File
from ..formats.tb5.constants import DescType, Section, StreamSection, StreamType
from ..formats.tb5.layout import Scope, Table, struct_of
from ..model import Array
from . import exchange
from .places import PLACES
from .rules import Rules
from .sections import Access
from .status import Status, TbrwError
from .store import Store
from .structures import RECORDS, Record

__all__ = ["BOUND", "Reader"]

BOUND = {
    "DATA_BIND_STRUCT": StreamType.BIND_DATA_INFORMATION,
    "MODULE_BIND_STRUCT": StreamType.BIND_MODULE_INFORMATION,
    "TID_BIND_STRUCT": StreamType.BIND_TID_INFORMATION,
}
"""Bind structure -> the bind-information stream that holds one for each sample, module or thread."""
_GENERATED = {"TBRW_PID": StreamType.BIND_PID_INFORMATION, "TBRW_TID": StreamType.BIND_TID_INFORMATION}


class Reader:
    """Reads what is committed, where the rules allow it."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self.store, self.rules = store, rules

    def require(self, section: int, stream: int | None) -> None:
        """Raises `TbrwError` (SECTION_NOT_READABLE) unless the section is open for reading."""
        with self.store.lock:
            self.rules.require(section, stream, Access.READING)

    def block(self, name: str, stream: int | None = None) -> exchange.Block:
        """get_ of a structure: it and all that its pointers lead to."""
        self.require(PLACES[name].section, stream)
        with self.store.reading() as view:
            return exchange.Block(view, name, stream)

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
            row = exchange.marked(RECORDS[name].declared, view.records(key, index, 1))
            return RECORDS[name].from_buffer_copy(row.tobytes())

    def enumerate(self, name: str, stream: int | None, start: int = 0) -> Iterator[Any]:
        """enumerate_ of a structure: ctypes arrays of those from index ``start`` on."""
        self.require(PLACES[name].section, stream)
        with self.store.reading() as view:
            key = self._table(name, stream)
            _check_start(start, _count(view, key))
            if name == "TBRW_EVENT":
                yield from exchange.events(view, stream or 0, start)
            else:
                yield from exchange.rows(view, key, start)

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
        """Raises `TbrwError` (LEGACY_DATA_NOT_EXIST) where the records of a stream have no address to bind."""
        with self.store.reading() as view:
            if not {DescType.LEGACY_SAMPLE_RECORD, DescType.IP}.intersection(
                view.descriptors(stream)["desc_type"].tolist()
            ):
                raise TbrwError(Status.LEGACY_DATA_NOT_EXIST, f"the records of stream {stream} have no address")

    def bound_stream(self) -> int:
        """The stream whose binding calls without a stream show: of the bound ones the one that is being read, or else
        the first.

        Raises `TbrwError`: TB5_IS_NOT_BOUND, and UNEXPECTED_BIND_MISMATCH where two are being read that each have
        processes and threads of their own. What a file has of them itself is that of all.
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
        """Where a section call reads: processes and threads of the binding where the file has no section of its own."""
        own = PLACES[name].table(stream)
        if name in _GENERATED and Section.PROCESS_THREAD not in self.rules.sections.existing:
            return Table(Scope.BIND, self.bound_stream(), _GENERATED[name], 1)
        return own


def _count(view: Tb5File, key: Table) -> int:
    """Records of a table; 0 where an empty one was left out. Raises `TbrwError` for one of another layout."""
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
