"""Reading a TB5 file: its tables by key, checked block by block on first read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar
from weakref import proxy
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...closing import Closing
from ...errors import Damage, FormatError
from ...model import Array, Source, read_at
from ...threads import Threads
from ..readahead import page_aligned
from . import layout
from .commits import Commit, block_check, read_commit
from .descriptors import check_descriptors
from .layout import Scope, Section, StreamSection, StreamType, Table, TableEntry, describe, struct_of
from .strings import StringTable

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Tb5File", "damage_of"]


# -- work on numbered things in order, a few ahead of the caller on other threads

_THREADS = 2
_ROOMS = 4

Room = TypeVar("Room")
Done = TypeVar("Done")


def ahead(
    numbers: range, work: Callable[[int, Room], Done], new_room: Callable[[], Room], *, alone: bool = False
) -> Iterator[tuple[int, Done]]:
    """(number, ``work(number, room)``) of each number, in order.

    A result may lie in its room, which is reused for the next result. Many numbers are worked on by other threads, at
    most three ahead; few, and all where it is to work ``alone``, by the caller's. An exception of ``work`` is delivered
    in place of its result.
    """
    if alone or len(numbers) < _ROOMS:
        room = new_room()
        yield from ((number, work(number, room)) for number in numbers)
        return
    rooms = [new_room() for _ in range(_ROOMS)]
    waiting: deque[tuple[int, Future[Done]]] = deque()
    pool = Threads(_THREADS, "lastbranch-ahead")
    try:
        for at, number in enumerate(numbers):
            waiting.append((number, pool.submit(work, number, rooms[at % _ROOMS])))
            if len(waiting) == _ROOMS:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        pool.close()


# -- the file

_BIND_KINDS = (
    StreamType.BIND_DATA_INFORMATION,
    StreamType.BIND_MODULE_INFORMATION,
    StreamType.BIND_PID_INFORMATION,
    StreamType.BIND_TID_INFORMATION,
)


def damage_of(error: FormatError, lost: int = 0) -> Damage:
    """The ``error`` as a place to step over, at the cost of ``lost`` bytes."""
    return Damage(error.reason, error.offset or 0, error.field, error.value, lost)


class Tb5File(Closing):
    """The tables that the last commit left.

    Raises `FormatError` for another kind of file, a later version, and where no commit can be read. ``damage`` lists
    what can be stepped over. ``verify=False`` reads blocks without looking at their checks.
    """

    def __init__(self, source: Source, *, verify: bool = True) -> None:
        self.source, self.name, self._verify = source, source.name, verify
        self.damage: list[Damage] = []
        self._reading = Lock()  # a source need not allow several threads
        self._commit: Commit = read_commit(source, self.damage)
        self.tables: Mapping[Table, TableEntry] = MappingProxyType(self._commit.tables)
        """Every table: key -> record size, count and place."""
        self._indexes: dict[Table, Array] = {}
        self._checked: set[int] = set()
        me = proxy(self)  # which has the strings: no cycle
        self._strings = StringTable(self.tables, lambda *place: me.read(*place), self.name)

    def close(self) -> None:
        close = getattr(self.source, "close", None)
        if close is not None:
            close()

    @property
    def closed_well(self) -> bool:
        """Whether the last writer closed the file, or died between two commits."""
        return self._commit.closed

    @property
    def streams(self) -> int:
        """Number of data streams. Bind information is not counted."""
        return 1 + max((key.stream for key in self.tables if key.scope is Scope.STREAM), default=-1)

    def has(self, key: Table) -> bool:
        return key in self.tables

    def count(self, key: Table) -> int:
        """Number of records; `KeyError` for a table that is not there."""
        return self.tables[key].count

    def record_size(self, key: Table) -> int:
        return self.tables[key].record_size

    def is_bound(self, stream: int) -> bool:
        """Whether all bind information of a stream is there."""
        return not self.missing_bind_tables(stream)

    def missing_bind_tables(self, stream: int) -> list[Table]:
        """The parts that a stream's bind information lacks. Modules, processes, threads and data have a table each; in
        a file without a section of processes and threads, the inferred processes and threads have tables of their
        own."""
        tasks = Table(Scope.GLOBAL, 0, Section.PROCESS_THREAD)
        own = tasks in self.tables or tasks._replace(part=1) in self.tables
        wanted = [Table(Scope.BIND, stream, kind) for kind in _BIND_KINDS]
        wanted += [] if own else [Table(Scope.BIND, stream, kind, 1) for kind in _BIND_KINDS[2:]]
        return [key for key in wanted if key not in self.tables]

    # -- records

    def blocks(self, key: Table, first: int = 0, count: int | None = None) -> Iterator[NDArray[np.uint8]]:
        """Records ``first`` to ``first + count`` as uint8 (records, record size), a block at a time.

        An array is valid until the next is requested. Raises `FormatError` at a damaged block, `KeyError` for a table
        that is not there.
        """
        entry = self.tables[key]
        last = entry.count if count is None else min(entry.count, first + count)
        if first >= last:
            return
        one, past = first // entry.block_records, -(-last // entry.block_records)
        for number, rows in self.some_blocks(key, range(one, past)):
            if isinstance(rows, FormatError):
                raise rows
            at = number * entry.block_records
            yield rows[max(0, first - at) : last - at]

    def some_blocks(self, key: Table, numbers: range) -> Iterator[tuple[int, NDArray[np.uint8] | FormatError]]:
        """(number, records or error) for each of the blocks, buffer after buffer."""
        entry, index = self.tables[key], self._index(key)

        def load(number: int, buffer: NDArray[np.uint8]) -> NDArray[np.uint8] | FormatError:
            try:
                return self._load(key, entry, index, number, buffer)
            except FormatError as error:
                return error

        few = entry.block_bytes <= layout.SMALL_BLOCK_BYTES  # handing a block over takes as long as reading it
        return ahead(numbers, load, lambda: page_aligned(min(entry.block_bytes, entry.bytes)), alone=few)

    def read(self, key: Table, first: int = 0, count: int | None = None) -> NDArray[np.uint8]:
        """As `blocks`, all at once: uint8 (records, record size)."""
        entry = self.tables[key]
        count = max(0, min(entry.count - first, entry.count if count is None else count))
        out = np.empty((count, entry.record_size), np.uint8)
        at = 0
        for rows in self.blocks(key, first, count):
            out[at : at + len(rows)] = rows
            at += len(rows)
        return out

    def records(self, key: Table, first: int = 0, count: int | None = None) -> Array:
        """As `read`, in the guide's structure; empty where the table is not there. `KeyError` for one without."""
        struct = struct_of(key)
        if struct is None:
            raise KeyError(f"{describe(key)} has no structure from the guide")
        if key not in self.tables:
            return np.empty(0, struct.dtype)
        return self.read(key, first, count).reshape(-1).view(struct.dtype)

    def bytes(self, key: Table) -> bytes:
        """A table of bytes."""
        return self.read(key).tobytes()

    def offsets(self, key: Table) -> NDArray[np.uint64]:
        """uint64: the offset of each block of a table."""
        out: NDArray[np.uint64] = self._index(key)["offset"]
        return out

    def _index(self, key: Table) -> Array:
        index = self._indexes.get(key)
        if index is None:
            entry = self.tables[key]
            with self._reading:
                data = read_at(self.source, entry.index, entry.blocks * layout.BLOCK_INDEX.itemsize)
            if crc32(data) != entry.index_crc:
                raise self._error(f"block index of {describe(key)} is damaged", entry.index, "index_crc", crc32(data))
            index = self._indexes[key] = np.frombuffer(data, layout.BLOCK_INDEX)
        return index

    def _load(
        self, key: Table, entry: TableEntry, index: Array, number: int, buffer: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        offset, check, total = index[number].item()
        length = min(entry.block_bytes, entry.bytes - number * entry.block_bytes)
        if offset < layout.DATA_START or offset + length > self._commit.end:
            raise self._error(f"block {number} of {describe(key)} is outside the file", offset, "offset", offset)
        part = buffer[:length]
        with self._reading:
            got = self.source.readinto(offset, memoryview(part))  # type: ignore[arg-type]
        if got < length:
            raise self._error(
                f"block {number} of {describe(key)} is cut short by {length - got} bytes",
                offset,
                "length",
                length,
            )
        if self._verify and offset not in self._checked:
            found = block_check(part)
            if found != (check, total):
                raise self._error(f"block {number} of {describe(key)} is damaged", offset, "check", found[0])
            self._checked.add(offset)
        return part.reshape(-1, entry.record_size)

    def _error(self, reason: str, offset: int, field: str, value: object) -> FormatError:
        return FormatError(reason, file=self.name, offset=offset, field=field, value=value)

    # -- strings

    @property
    def string_count(self) -> int:
        """The largest string id."""
        return self._strings.count

    def string(self, unique_id: int) -> str:
        """The string of an id. Raises `FormatError` for 0, the NULL string, and for ids that are not in the file."""
        return self._strings.find(unique_id)

    def text(self, unique_id: int) -> str:
        """As `string`; the NULL string is empty."""
        return self.string(unique_id) if unique_id else ""

    def all_strings(self) -> Iterator[str]:
        """The strings of ids 1, 2, 3..."""
        yield from self._strings.all()  # which reads by this file: it stays as long as somebody asks

    # -- descriptors

    def descriptors(self, stream: int) -> Array:
        """The data descriptor of a stream (TBRW_SAMPREC_DESC_ENTRY). Raises `FormatError` where it cannot be right."""
        found = self.records(Table(Scope.STREAM, stream, StreamSection.DATA_DESCRIPTION))
        data = Table(Scope.STREAM, stream, StreamSection.DATA)
        if data in self.tables:
            problem = check_descriptors(found, self.record_size(data))
            if problem is not None:
                raise FormatError(f"stream {stream}: {problem[0]}", file=self.name, field=problem[1], value=problem[2])
        return found
