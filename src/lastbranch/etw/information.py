"""TraceQueryInformation and TraceSetInformation as two tables: the requirements and the bytes of each class.

Sources: the page of TraceQueryInformation for what can be queried (five classes, everything else is 50), the vendor's
list of TRACE_INFO_CLASS for what can be set. A code that neither states is our choice: ``docs/reference/etw.md``.
A class that the tables do not have is the kernel's to answer: Windows itself knows more of them with each version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .flags import LBR_EXCLUDE_KERNEL, LBR_EXCLUDE_USER, LBR_FLAGS, MAX_LBR_EVENTS, Info
from .interface import Kernel, ProfileSource
from .status import EtwError, Status

__all__ = [
    "CONFIGURE_LBR",
    "MAX_STACK_EVENTS",
    "QUERIES",
    "SETS",
    "VERSION",
    "Codec",
    "Query",
    "Setting",
    "check_lbr",
    "decode",
    "encode",
    "query_information",
    "set_information",
]

VERSION = 1
"""EtwTraceProcessingVersion."""
MAX_STACK_EVENTS = 256
"""Triggers of stack walks that one session may have."""
MAX_TARGETS = 64
"""Targets that one session may name. Our choice."""
QUERY, SET, CONFIGURE_LBR = "TraceQueryInformation", "TraceSetInformation", "TraceConfigureLastBranchRecord"
_MASK_WORDS = 8


# -- values <-> bytes


@dataclass(frozen=True, slots=True)
class Codec:
    """Elements of ``size`` bytes; a value is a list of elements, or the result of `one` for a single element."""

    size: int
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


def _event_ids(data: bytes) -> list[tuple[UUID, int]]:
    return [(UUID(bytes_le=guid), kind) for guid, kind in struct.iter_unpack("<16sB7x", data)]


def _words(data: bytes) -> list[int]:
    return [word for (word,) in struct.iter_unpack("<I", data)]


def _pack_words(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def _masks(data: bytes) -> list[int]:
    return _words(data.ljust(4 * _MASK_WORDS, b"\0"))


_ENTRY = struct.Struct("<IIIIQ")
_LEAST_ENTRY = 0x20
"""sizeof(PROFILE_SOURCE_INFO): 0x18 and one character, in whole 8 bytes."""


def _pack_sources(sources: Sequence[ProfileSource]) -> bytes:
    """A chain of PROFILE_SOURCE_INFO: each says where the next begins, the last says 0."""
    chain = b""
    for left, one in zip(range(len(sources) - 1, -1, -1), sources, strict=True):
        text = one.name.encode("utf-16-le", "surrogatepass") + b"\0\0"
        size = max(_LEAST_ENTRY, -(-(_ENTRY.size + len(text)) // 8) * 8)
        head = _ENTRY.pack(size if left else 0, one.source, one.minimum, one.maximum, one.reserved)
        chain += (head + text).ljust(size, b"\0")
    return chain


def _sources(chain: bytes) -> list[ProfileSource]:
    """Raises `EtwError` (13) where an offset leads out of the chain."""
    found: list[ProfileSource] = []
    at = 0
    while chain:
        if at + _ENTRY.size > len(chain):
            raise EtwError(QUERY, Status.INVALID_DATA, f"a profile source begins at {at:#x} of {len(chain):#x} bytes")
        following, source, minimum, maximum, reserved = _ENTRY.unpack_from(chain, at)
        text = chain[at + _ENTRY.size : at + following if following else len(chain)]
        name = text[: len(text) & ~1].decode("utf-16-le", "surrogatepass").partition("\0")[0]
        found.append(ProfileSource(source, name, minimum, maximum, reserved=reserved))
        if not following:
            break
        at += following
    return found


EVENT_IDS = Codec(24, _event_ids, lambda ids: b"".join(struct.pack("<16sB7x", g.bytes_le, t) for g, t in ids))
WORDS = Codec(4, _words, _pack_words)
TARGETS = Codec(
    4,
    lambda data: [number for (number,) in struct.iter_unpack("<i", data)],
    lambda numbers: struct.pack(f"<{len(numbers)}i", *numbers),
)
"""N for process N, -N for all descendants of process N, as kill(2) counts."""
MASKS = Codec(4, _masks, _pack_words)
WORD = Codec(4, lambda data: _words(data)[0], lambda word: _pack_words([word]))
INTERVAL = Codec(8, lambda data: struct.unpack("<II", data), lambda pair: struct.pack("<II", *pair))
GUIDS = Codec(
    16,
    lambda data: [UUID(bytes_le=g) for (g,) in struct.iter_unpack("<16s", data)],
    lambda guids: b"".join(guid.bytes_le for guid in guids),
)
SOURCES = Codec(1, _sources, _pack_sources)


# -- the tables


@dataclass(frozen=True, slots=True)
class Setting:
    """How a class is set: of the machine (the handle must be 0) or of a session, and ``least`` to ``most`` elements."""

    codec: Codec
    of_machine: bool = False
    least: int = 0
    most: int | None = None
    too_many: Status = Status.BAD_LENGTH
    once: bool = False
    """A session takes the class only once; a second time is 170."""


SETS: dict[Info, Setting] = {
    Info.STACK_TRACING_INFO: Setting(EVENT_IDS, most=MAX_STACK_EVENTS, too_many=Status.INVALID_PARAMETER),
    Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO: Setting(MASKS, least=1, most=_MASK_WORDS),
    Info.SAMPLED_PROFILE_INTERVAL_INFO: Setting(INTERVAL, of_machine=True, least=1, most=1),
    Info.PROFILE_SOURCE_CONFIG_INFO: Setting(WORDS, of_machine=True),
    Info.PMC_EVENT_LIST_INFO: Setting(EVENT_IDS, once=True),
    Info.PMC_COUNTER_LIST_INFO: Setting(WORDS, once=True),
    Info.SET_DISALLOW_LIST: Setting(GUIDS),
    Info.LBR_CONFIGURATION_INFO: Setting(WORD, least=1, most=1),
    Info.LBR_EVENT_LIST_INFO: Setting(WORDS, most=MAX_LBR_EVENTS, too_many=Status.IMPLEMENTATION_LIMIT),
    Info.SOFTWARE_BRANCH_TARGETS_INFO: Setting(TARGETS, most=MAX_TARGETS, too_many=Status.IMPLEMENTATION_LIMIT),
}


@dataclass(frozen=True, slots=True)
class Query:
    """How a class is queried. ``fixed`` is the size of its structure, ``None`` where it varies."""

    codec: Codec
    of_machine: bool = False
    fixed: int | None = None
    exact: bool = False
    """The buffer must be of that size; else it may be larger."""
    buffer_optional: bool = False
    """Without a buffer the length is ignored, and only the size that is needed comes back."""


QUERIES: dict[Info, Query] = {
    Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO: Query(MASKS, fixed=4 * _MASK_WORDS),
    Info.SAMPLED_PROFILE_INTERVAL_INFO: Query(INTERVAL, of_machine=True, fixed=INTERVAL.size, exact=True),
    Info.PROFILE_SOURCE_LIST_INFO: Query(SOURCES, of_machine=True, buffer_optional=True),
    Info.VERSION_INFO: Query(WORD, of_machine=True, fixed=8, exact=True),
    Info.DISALLOW_LIST_QUERY: Query(GUIDS),
}


def encode(info: Info, value: Any) -> bytes:
    """The bytes of ``value`` for a class of either table; of class 5 the value is (source, interval).

    Raises `EtwError` 87 for numbers that its elements cannot hold.
    """
    try:
        return (SETS.get(info) or QUERIES[info]).codec.encode(value)
    except struct.error as error:
        raise EtwError(SET, Status.INVALID_PARAMETER, f"{info.name}: a number that its field cannot hold") from error


def decode(info: Info, data: bytes) -> Any:
    """The value that ``data`` is for a class of either table."""
    return (SETS.get(info) or QUERIES[info]).codec.decode(data)


# -- the functions, in the order of their checks


def query_information(kernel: Kernel, handle: int, info: int, buffer: Any, length: int) -> tuple[int, int]:
    """(status, ReturnLength): class, handle, length, buffer are checked in this order, then the kernel is asked.

    ReturnLength is set as soon as it is known, also where the call fails for the length.
    """
    row = QUERIES.get(info)  # type: ignore[call-overload]
    if row is None:
        return _query_other(kernel, handle, info, buffer, length)
    if row.of_machine == bool(handle):
        return Status.INVALID_PARAMETER, 0
    room = _room(buffer, length)
    if row.fixed is not None:
        if room < row.fixed or (row.exact and length != row.fixed):
            return Status.BAD_LENGTH, row.fixed
        if buffer is None:
            return Status.INVALID_PARAMETER, row.fixed
    try:
        data = row.codec.encode(_query_value(kernel, handle, Info(info), buffer))
    except EtwError as error:
        return error.status, row.fixed or 0
    if buffer is None and not row.buffer_optional:
        return Status.INVALID_PARAMETER, len(data)
    if buffer is None or room < len(data):
        return Status.BAD_LENGTH, len(data)
    _bytes(buffer)[: len(data)] = data  # the Reserved member of TRACE_VERSION_INFO is left as it is
    return Status.SUCCESS, row.fixed or len(data)


def _query_value(kernel: Kernel, handle: int, info: Info, buffer: Any) -> Any:
    """The value of a class, in the form that its codec takes."""
    if info == Info.SAMPLED_PROFILE_INTERVAL_INFO:
        source, _ = INTERVAL.decode(bytes(_bytes(buffer)[: INTERVAL.size]))
        return source, kernel.query_information(handle, info, source)
    return kernel.query_information(handle, info, None)


def set_information(kernel: Kernel, handle: int, info: int, buffer: Any, length: int) -> None:
    """Set a class: class, handle, length, buffer are checked in this order. Raises `EtwError`."""
    row = SETS.get(info)  # type: ignore[call-overload]
    if row is None:
        kernel.set_other(handle, info, _check_length(SET, buffer, length), length)
        return
    if row.of_machine == bool(handle):
        raise EtwError(SET, Status.INVALID_PARAMETER, "the handle must be 0" if handle else "a session's handle is 0")
    count, rest = divmod(length, row.codec.size)
    if rest or count < row.least:
        raise EtwError(SET, Status.BAD_LENGTH, f"{length} bytes for elements of {row.codec.size} bytes")
    if row.most is not None and count > row.most:
        raise EtwError(SET, row.too_many, f"{count} elements; {row.most} are the most")
    if length and buffer is None:
        raise EtwError(SET, Status.INVALID_PARAMETER, f"no buffer for {length} bytes")
    if _room(buffer, length) < length:
        raise EtwError(SET, Status.BAD_LENGTH, f"the buffer has fewer than {length} bytes")
    data = bytes(_bytes(buffer)[:length]) if length else b""
    kernel.set_information(handle, Info(info), row.codec.decode(data))


def _query_other(kernel: Kernel, handle: int, info: int, buffer: Any, length: int) -> tuple[int, int]:
    try:
        status, data, used = kernel.query_other(handle, info, _check_length(QUERY, buffer, length), length)
    except EtwError as error:
        return error.status, 0
    if data:
        _bytes(buffer)[: len(data)] = data
    return status, used


def _check_length(call: str, buffer: Any, length: int) -> bytes | None:
    """The caller's buffer. Raises `EtwError` (24) where it has fewer bytes than ``length``."""
    if buffer is None:
        return None
    if len(_bytes(buffer)) < length:
        raise EtwError(call, Status.BAD_LENGTH, f"the buffer has fewer than {length} bytes")
    return bytes(_bytes(buffer)[:length])


def check_lbr(flags: int, count: int, given: bool = True) -> None:
    """The checks of TraceConfigureLastBranchRecord. The page has no codes: these, and their order, are our choice after
    public notes on Windows' own function.

    Raises `EtwError`: 1292 for too many events, then 87. ``given``: whether there is an array of events.
    """
    call = CONFIGURE_LBR
    if count > MAX_LBR_EVENTS:
        raise EtwError(call, Status.IMPLEMENTATION_LIMIT, f"{count} events; {MAX_LBR_EVENTS} are the most")
    if count and not given:
        raise EtwError(call, Status.INVALID_PARAMETER, f"no array for {count} events")
    both = LBR_EXCLUDE_KERNEL | LBR_EXCLUDE_USER
    if flags & both == both:
        raise EtwError(call, Status.INVALID_PARAMETER, "kernel and user branches are both filtered out")
    if flags & ~LBR_FLAGS:
        raise EtwError(call, Status.INVALID_PARAMETER, f"unknown flags {flags & ~LBR_FLAGS:#x}")


def _room(buffer: Any, length: int) -> int:
    """Bytes that may be touched: never more than the buffer has. C cannot know; here it can be known."""
    return length if buffer is None else min(length, len(_bytes(buffer)))


def _bytes(buffer: Any) -> memoryview:
    return memoryview(buffer).cast("B")
