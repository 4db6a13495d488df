"""The header buffer of an .etl file: who logged what, when, with which clock."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any

from ....errors import Damage, FormatError
from ....model import Clock, Source, read_at
from ...interface import not_of_format
from ...numbers import misfit
from ..event import Event, encode_event
from ..layout import (
    BUFFER_HEADER,
    BUFFER_HEADER_SIZE,
    BUFFER_TYPE,
    CLOCK_NAMES,
    FILETIME_EPOCH,
    HEADERS,
    LOG_FILE_MODE,
    LOGFILE_HEADER,
    pack_fields,
    packed,
    unpack_fields,
)

__all__ = ["LogHeader", "MAX_BUFFER", "TimeZone", "buffer_head", "encode_log_header", "is_etl", "read_header"]


MAX_BUFFER = 16 << 20
"""Largest buffer in bytes that a session can have (EVENT_TRACE_PROPERTIES.BufferSize, since Windows 8)."""

_EVENT_AT = BUFFER_HEADER_SIZE
_SYSTEM = HEADERS[2].size
_LEAST = _EVENT_AT + _SYSTEM + packed(LOGFILE_HEADER, 4).size
_LATEST = 1 << 63
_VISTA = 6000
_TSC_HZ = 1_000_000
_PLACES = 8  # are looked at: one damaged buffer does not decide


@dataclass(frozen=True, slots=True)
class TimeZone:
    """TIME_ZONE_INFORMATION. ``bias`` is in minutes, UTC = local time + bias."""

    bias: int
    standard_name: str
    standard_bias: int
    daylight_name: str
    daylight_bias: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class LogHeader:
    """TRACE_LOGFILE_HEADER with its names, and the headers it stands behind. FILETIMEs are 100 ns since 1601 UTC.

    ``timestamp`` is that of the header event itself: the session's clock at ``start_time``. ``stride`` is the distance
    to the next buffer; in a compressed file that is not ``buffer_size``, what a buffer holds.
    """

    offset: int
    stride: int
    logger_id: int
    state: int
    timestamp: int
    thread_id: int
    process_id: int
    buffer_size: int
    major: int
    minor: int
    sub_version: int
    sub_minor: int
    provider_version: int
    processors: int
    end_time: int
    timer_resolution: int
    maximum_file_size: int
    mode: int
    buffers_written: int
    start_buffers: int
    pointer_size: int
    events_lost: int
    cpu_mhz: int
    logger_name_word: int
    file_name_word: int
    time_zone: TimeZone
    padding: int
    boot_time: int
    perf_freq: int
    start_time: int
    clock_type: int
    buffers_lost: int
    session_name: str
    file_name: str

    @property
    def wrong_size(self) -> Damage | None:
        """What is said where BufferSize of the log file header is not that of the buffers, as it is in every file."""
        if self.compressed or self.buffer_size == self.stride:
            return None
        at = self.offset + _EVENT_AT + _SYSTEM
        return Damage("log file header tells of buffers of another size", at, "BufferSize", self.buffer_size)

    @property
    def compressed(self) -> bool:
        """Whether buffers may be compressed, and so have any length."""
        return bool(self.mode & LOG_FILE_MODE.COMPRESSED)

    @property
    def compression_format(self) -> int:
        """COMPRESSION_FORMAT_* of the compressed buffers: 2 LZNT1, 3 XPRESS, 4 XPRESS_HUFF."""
        return self.state & 0xFFFF

    @property
    def frequency(self) -> int:
        """Ticks a second of event time stamps; 0 if the header does not tell.

        Clock types are those of WNODE_HEADER.ClientContext; 0 is what old sessions have that chose none: QPC.
        """
        by_type = {2: 10_000_000, 3: self.cpu_mhz * _TSC_HZ}
        return max(0, by_type.get(self.clock_type, self.perf_freq))

    @property
    def clock(self) -> Clock:
        """The session's clock; its wall reference is this header's time stamp, which was taken at ``start_time``."""
        name = CLOCK_NAMES.get(self.clock_type, CLOCK_NAMES[1])
        ns = (self.start_time - FILETIME_EPOCH) * 100
        known = self.start_time and -_LATEST <= ns < _LATEST  # up to the year 2262; what is beyond says nothing
        return Clock(name, self.frequency, (self.timestamp, ns) if known else None)


def is_etl(start: bytes) -> bool:
    """Whether a file that begins with ``start`` (80 bytes or more) is an .etl: no magic, so by its first event."""
    return _is_header_event(start[_EVENT_AT : _EVENT_AT + 8])


def _is_header_event(word: bytes) -> bool:
    if len(word) < 8:
        return False
    _, kind, marker, size, hook = struct.unpack("<HBBHH", word)
    return kind in (1, 2) and marker & 0xC0 == 0xC0 and hook == 0 and size >= _LEAST - _EVENT_AT


def read_header(source: Source, offset: int = 0) -> LogHeader:
    """The header of the buffer at ``offset``.

    Raises `FormatError` if there is none: no .etl, cut short, written before Windows Vista, or buffers of a size that
    no session has.
    """
    head = read_at(source, offset, _EVENT_AT + 8)
    if not is_etl(head):
        hint = "an .etl file begins with a buffer whose first event is the log file header"
        where: dict[str, object] = {"offset": offset + _EVENT_AT, "field": "Marker", "value": head[_EVENT_AT:].hex()}
        if len(head) < _EVENT_AT + 8:
            where = {"offset": offset, "field": None, "value": None}
        raise not_of_format(source.name, head, "not an .etl file", hint, **where)
    _, kind, _, size, _ = struct.unpack_from("<HBBHH", head, _EVENT_AT)
    event = read_at(source, offset + _EVENT_AT, size)
    layout = packed(LOGFILE_HEADER, HEADERS[kind].pointer_size)
    if len(event) < _SYSTEM + layout.size:
        at = offset + _EVENT_AT
        raise FormatError("log file header is cut short", file=source.name, offset=at, field="Size", value=len(event))
    system = unpack_fields(HEADERS[kind].fields, event)
    log = unpack_fields(LOGFILE_HEADER, event, _SYSTEM, HEADERS[kind].pointer_size)
    _refuse_old(source, offset, log)
    buffer = unpack_fields(BUFFER_HEADER, head)
    stride = _stride(source, offset, buffer, log)
    session, file = _names(event[_SYSTEM + layout.size :])
    own = (system["TimeStamp"], system["ThreadId"], system["ProcessId"])
    log["TimeZone"] = _time_zone(log["TimeZone"])
    fields: list[Any] = [offset, stride, buffer["LoggerId"], buffer["State"], *own, *log.values(), session, file]
    return LogHeader(*fields)  # the fields of LOGFILE_HEADER stand in the class in their order


def _refuse_old(source: Source, offset: int, log: dict[str, Any]) -> None:
    if log["MajorVersion"] >= 6 and not 0 < log["ProviderVersion"] < _VISTA:
        return
    raise FormatError(
        "written before Windows Vista, in another buffer format, which lastbranch does not read",
        file=source.name,
        offset=offset + _EVENT_AT + _SYSTEM + 8,
        field="ProviderVersion",
        value=log["ProviderVersion"],
        hint="convert it on its own system, for example with tracerpt",
    )


def _stride(source: Source, offset: int, buffer: dict[str, Any], log: dict[str, Any]) -> int:
    """BufferSize of the header buffer, or that of the log file header if it leads to more buffers.

    They are the same unless damaged, but in a compressed file, where each buffer has a size of its own: there what is
    in use tells at least how long the header buffer is.
    """
    compressed = log["LogFileMode"] & LOG_FILE_MODE.COMPRESSED
    stride, other = buffer["BufferSize"], buffer["Offset"] if compressed else log["BufferSize"]
    possible = [size for size in dict.fromkeys((stride, other)) if _LEAST <= size <= MAX_BUFFER]
    if compressed:
        possible = possible[:1]
    if not possible:
        raise FormatError(
            "buffers of impossible size", file=source.name, offset=offset, field="BufferSize", value=stride,
            hint=f"a session has buffers of at most {MAX_BUFFER >> 20} MiB",
        )  # fmt: skip
    return int(max(possible, key=lambda size: _fit(source, offset, size)) if len(possible) > 1 else possible[0])


def _fit(source: Source, offset: int, size: int) -> tuple[int, bool]:
    """How many of the next places have a buffer of ``size`` bytes; and whether such buffers fill the file."""
    heads = [read_at(source, offset + size * i, BUFFER_HEADER_SIZE) for i in range(1, _PLACES + 1)]
    return sum(_is_buffer(head, size) for head in heads), (source.size - offset) % size == 0


def _is_buffer(head: bytes, size: int) -> bool:
    if len(head) < BUFFER_HEADER_SIZE:
        return False
    buffer = unpack_fields(BUFFER_HEADER, head)
    filled = BUFFER_HEADER_SIZE <= buffer["Offset"] <= size
    return bool(buffer["BufferSize"] == size and filled and buffer["BufferType"] <= BUFFER_TYPE.DBG_INFO)


def _time_zone(raw: bytes) -> TimeZone:
    bias, standard, _, standard_bias, daylight, _, daylight_bias = struct.unpack("<i64s16si64s16si", raw)
    return TimeZone(bias, _names(standard)[0], standard_bias, _names(daylight)[0], daylight_bias, raw)


def _names(raw: bytes) -> tuple[str, str]:
    """Two UTF-16 strings that end with NUL; either may be missing."""
    text = raw[: len(raw) & ~1].decode("utf-16-le", "surrogatepass" if _whole(raw) else "replace")
    first, _, rest = text.partition("\0")
    return first, rest.partition("\0")[0]


def _whole(raw: bytes) -> bool:
    try:
        raw[: len(raw) & ~1].decode("utf-16-le", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


# -- writing


def buffer_head(
    size: int, time: int, sequence: int, cpu: int, logger: int, state: int, used: int, flags: int, kind: int
) -> bytes:
    """WMI_BUFFER_HEADER of a buffer that takes ``size`` bytes in the file and has ``used`` bytes of events."""
    used += BUFFER_HEADER_SIZE
    # SavedOffset is what some readers take for the used length.
    values: dict[str, Any] = {
        "BufferSize": size, "SavedOffset": used, "CurrentOffset": used, "ReferenceCount": 0, "TimeStamp": time,
        "SequenceNumber": sequence, "ClockTypeFrequency": 0, "ProcessorIndex": cpu, "LoggerId": logger, "State": state,
        "Offset": used, "BufferFlag": flags, "BufferType": kind, "Reserved": bytes(16),
    }  # fmt: skip
    return pack_fields(BUFFER_HEADER, values)


def encode_log_header(header: LogHeader) -> bytes:
    """The event that begins a file: TRACE_LOGFILE_HEADER and the two names behind a SYSTEM header of its pointer size.

    FormatError for values that its fields cannot hold.
    """
    if header.pointer_size not in (4, 8):
        raise FormatError("pointers have 4 or 8 bytes", field="PointerSize", value=header.pointer_size)
    first = [f.name for f in fields(LogHeader)].index("buffer_size")
    names = [f.name for f in fields(LogHeader)][first : first + len(LOGFILE_HEADER)]
    values = [header.time_zone.raw if name == "time_zone" else getattr(header, name) for name in names]
    try:
        payload = packed(LOGFILE_HEADER, header.pointer_size).pack(*values)
    except struct.error as error:
        pointer = "I" if header.pointer_size == 4 else "Q"
        reason = misfit(((name, code.replace("P", pointer)) for name, code in LOGFILE_HEADER), values)
        raise FormatError(f"log file header cannot be written: {reason}", field="TRACE_LOGFILE_HEADER") from error
    payload += b"".join(
        n.encode("utf-16-le", "surrogatepass") + bytes(2) for n in (header.session_name, header.file_name)
    )
    event = Event(
        header.pointer_size // 4, header.pointer_size, header.timestamp, header.process_id, header.thread_id, 0, 0,
        bytes(16), 0, 2, 0, payload=payload,
    )  # fmt: skip
    return encode_event(event)
