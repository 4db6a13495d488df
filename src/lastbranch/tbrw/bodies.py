"""Bodies of the functions that share a shape: each function here makes one for a structure or a section.

What a function of a stream is given has the number of the stream before all else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from .buffers import fill, fill_text, room, taken
from .handle import Handle
from .status import Status, TbrwError
from .structures import TBRW_STRING_OR_ID

__all__ = [
    "adder", "bind_sizer", "bound_data", "bound_enumerator", "bytes_getter", "bytes_setter", "data", "enumerator",
    "getter", "one_getter", "setter", "text",
]  # fmt: skip

Body = Callable[..., Any]


def setter() -> Body:
    """set_ of a structure."""
    return lambda h, *args: h.put(args[-1], *args[:-1], single=True)


def adder() -> Body:
    """add_ of a structure."""
    return lambda h, *args: h.put(args[-1], *args[:-1], single=False)


def getter(name: str) -> Body:
    """get_ of a structure."""

    def body(h: Handle, *args: Any) -> int:
        *stream, size, buffer = args
        block = h.reader.block(name, *stream)
        room(size, buffer, block.size)
        block.fill(buffer)
        return block.size

    return body


def one_getter(name: str) -> Body:
    """get_one_ of a structure."""
    return lambda h, index: h.reader.one(name, index)


def enumerator(name: str, streamed: bool) -> Body:
    """enumerate_ of a structure."""

    def body(h: Handle, *args: Any) -> int:
        stream, (callback, user, *start) = (args[0], args[1:]) if streamed else (None, args)
        arrays = h.reader.enumerate(name, stream, *start)
        return _call_back(callback, ((a, _size(a), len(a), user) for a in arrays))

    return body


def bound_enumerator(name: str) -> Body:
    """bind_enumerate_ of a structure."""

    def body(h: Handle, callback: Any, user: Any, start: int) -> int:
        pairs = h.reader.bound_records(name, start)
        return _call_back(callback, ((a, _size(a), len(a), b, _size(b), user) for a, b in pairs))

    return body


def bind_sizer(name: str) -> Body:
    """get_size_of_ a bind structure."""
    return lambda h, stream: h.reader.bind_size(name, stream)


def bytes_setter(section: int) -> Body:
    """set_ of free bytes."""

    def body(h: Handle, *args: Any) -> None:
        *stream, size, given = args
        h.put_bytes(section, stream[0] if stream else None, taken(size, given))

    return body


def bytes_getter(section: int) -> Body:
    """get_ of free bytes."""

    def body(h: Handle, *args: Any) -> int:
        *stream, size, buffer = args
        return fill(size, buffer, h.reader.bytes(section, stream[0] if stream else None))

    return body


def data(h: Handle, stream: int, callback: Any, user: Any, start: int) -> int:
    """enumerate_data."""
    found = h.reader.data(stream, start)
    return _call_back(callback, ((records, records.nbytes, count, user) for records, count in found))


def bound_data(h: Handle, stream: int, callback: Any, user: Any, start: int) -> int:
    """bind_enumerate_data."""
    found = h.reader.bound_data(stream, start)
    return _call_back(callback, ((r, r.nbytes, count, bind, _size(bind), user) for r, count, bind in found))


def text(h: Handle, size: int, string: TBRW_STRING_OR_ID | int | None, buffer: Any) -> int:
    """convert_uniqueid_to_string."""
    unique_id = string.soi_uniqueid if isinstance(string, TBRW_STRING_OR_ID) else string
    if not isinstance(unique_id, int):
        raise TbrwError(Status.UNEXPECTED_NULL_PTR, "string_id is no TBRW_STRING_OR_ID")
    return fill_text(size, buffer, h.store.text(unique_id))


def _call_back(callback: Body, calls: Iterable[tuple[Any, ...]]) -> int:
    """Call back until it returns 0 (no more) or, instead of 1 (go on), an error, which is the status then."""
    for arguments in calls:
        answer = callback(*arguments)
        try:
            status = operator.index(answer)
        except TypeError:
            raise TbrwError(Status.BAD_PARAMETER, f"the callback returned {answer!r}, not a number") from None
        if status != 1:
            return status
    return Status.SUCCESS


def _size(array: Any) -> int:
    return memoryview(array).nbytes
