"""Records on their way out of a file: rows become the guide's structures, with unique ids and real pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import numpy as np

from ..formats.tb5.constants import ArchType
from ..formats.tb5.layout import Table, struct_of
from ..formats.tb5.records import STRUCTS, Struct
from ..model import Array
from . import memory
from .places import PLACES
from .status import Status, TbrwError
from .structures import CHILDREN, RECORDS, Record

__all__ = ["Block", "Tables", "events", "marked", "rows"]

_CHUNK = 1024
"""Records that one call of a callback gets at most."""


class Tables(Protocol):
    """Where records come from: a `Tb5File`, or the file between two programs."""

    def has(self, key: Table, /) -> bool: ...
    def count(self, key: Table, /) -> int: ...
    def records(self, key: Table, first: int = ..., count: int | None = ..., /) -> Array: ...


def marked(struct: Struct, found: Array) -> Array:
    """A copy whose string ids are marked as such."""
    out = np.frombuffer(bytearray(found.tobytes()), struct.dtype)  # copy() would not keep the bytes between fields
    for name in struct.strings():
        out[name] |= np.where(out[name] != 0, np.uint64(memory.ID_MARK), np.uint64(0))
    return out


def rows(view: Tables, key: Table, start: int) -> Iterator[Any]:
    """The records of a table from ``start`` on, as ctypes arrays of the guide's structure."""
    struct = struct_of(key)
    assert struct is not None
    for first in range(start, view.count(key) if view.has(key) else 0, _CHUNK):
        found = marked(struct, view.records(key, first, _CHUNK))
        yield (RECORDS[struct.name] * len(found)).from_buffer_copy(found.tobytes())


class Block:
    """One structure with all that its pointers lead to, as one piece of memory: what get_ fills a buffer with."""

    def __init__(self, view: Tables, name: str, stream: int | None) -> None:
        self.name = name
        self.parts: dict[str, Array] = {}
        self.offsets: dict[str, int] = {}
        self.size = 0
        for part in _with_children(name):
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
        for (owner, field), (counter, targets) in CHILDREN.items():
            if owner in self.parts:
                self._point(self.parts[owner], field, counter, [kind for _, kind in targets], base, buffer)
        ctypes.memmove(target, b"".join(part.tobytes() for part in self.parts.values()), self.size)

    def _point(self, found: Array, field: str, counter: str, kinds: list[str], base: int, owner: Any) -> None:
        for i in range(len(found)):
            kind = kinds[1] if len(kinds) > 1 and found["arch_type"][i] == ArchType.ITANIUM else kinds[0]
            first, number, size = int(found[field][i]), int(found[counter][i]), STRUCTS[kind].size
            if first + number > len(self.parts[kind]):
                raise TbrwError(
                    Status.INVALID_SAMPLE_FILE,
                    f"{counter} = {number} from row {first}: there are {len(self.parts[kind])}",
                )
            address = base + self.offsets[kind] + first * size if number else 0
            found[field][i] = address
            if number and not isinstance(owner, bytearray | memoryview):
                memory.register(owner, address, number * size)


def _with_children(name: str) -> list[str]:
    below = [kind for (owner, _), (_, targets) in CHILDREN.items() if owner == name for _, kind in targets]
    return [name, *(k for b in below for k in _with_children(b))]


def events(view: Tables, stream: int, start: int) -> Iterator[Any]:
    """The events of a stream from ``start`` on. In memory the details of an event follow it (8.10), so an array holds
    events with equally many."""
    struct, detail = STRUCTS["TBRW_EVENT"], STRUCTS["TBRW_EVENT_DETAIL"]
    found = marked(struct, view.records(PLACES[struct.name].table(stream)))
    details = view.records(PLACES[detail.name].table(stream))
    counts, total = found["event_num_details"].astype(np.int64), len(details)
    behind = total - np.minimum(found["event_detail_array"], total).astype(np.int64)
    if (counts > behind).any():
        raise TbrwError(Status.INVALID_SAMPLE_FILE, f"stream {stream}: events have more details than there are")
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
            memory.register(array, at + head, stride - head)
    return array


@cache
def _with_details(number: int) -> type[Record]:
    """TBRW_EVENT with ``number`` details behind it."""
    event = RECORDS["TBRW_EVENT"]
    if not number:
        return event
    body = {"_fields_": [("details", RECORDS["TBRW_EVENT_DETAIL"] * number)], "__doc__": event.__doc__}
    return type("TBRW_EVENT", (event,), body)
