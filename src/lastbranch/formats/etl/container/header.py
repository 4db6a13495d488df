"""The header buffer of an .etl file: the logger, its settings, its times and its clock."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any

from ....errors import Damage, FormatError
from ....model import Clock, Source, read_at
from ...interface import not_of_format
from ..layout import (
    BUFFER_HEADER,
    BUFFER_HEADER_SIZE,
    BUFFER_STATE,
    BUFFER_TYPE,
    CLOCK_NAMES,
    FILETIME_EPOCH,
    HEADERS,
    LOGFILE_HEADER,
    MAX_BUFFER,
    TIME_ZONE_SIZE,
    LogFileMode,
    pack_fields,
    packed,
    unpack_fields,
)
from ..single_event import Event, encode_event

__all__ = [
    "LogHeader",
    "TimeZone",
    "encode_log_header",
    "is_etl",
    "pack_log_header",
    "read_header",
]


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

    bias: int = 0
    standard_name: str = ""
    standard_bias: int = 0
    daylight_name: str = ""
    daylight_bias: int = 0
    raw: bytes = bytes(TIME_ZONE_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHeader:
    """TRACE_LOGFILE_HEADER with its names, its event header and its buffer header. The defaults are those of a new log.

    FILETIMEs count 100 ns since 1601 UTC.
    """

    # The fields of `layout.LOGFILE_HEADER` in their order
    buffer_size: int = 1 << 16
    """Bytes that a buffer holds."""
    major: int = 10
    minor: int = 0
    sub_version: int = 1
    sub_minor: int = 5
    provider_version: int = 19_045
    """Build of the operating system."""
    processors: int = 1
    end_time: int = 0
    timer_resolution: int = 156_250
    maximum_file_size: int = 0
    """MB, or KB where ``mode`` has USE_KBYTES_FOR_SIZE; 0: no limit."""
    mode: int = LogFileMode.FILE_MODE_SEQUENTIAL
    buffers_written: int = 0
    start_buffers: int = 1
    pointer_size: int = 8
    events_lost: int = 0
    cpu_mhz: int = 0
    logger_name_word: int = 0
    file_name_word: int = 0
    time_zone: TimeZone = TimeZone()
    padding: int = 0
    boot_time: int = 0
    perf_freq: int = 10_000_000
    """Hz of the performance counter."""
    start_time: int = 0
    clock_type: int = 1
    """1 performance counter, 2 system time (100 ns), 3 cycles of ``cpu_mhz``."""
    buffers_lost: int = 0

    session_name: str = ""
    file_name: str = ""

    timestamp: int = 0
    """Time of the header event: the session's clock at ``start_time``."""
    process_id: int = 0
    thread_id: int = 0

    offset: int = 0
    """File offset of the header buffer."""
    stride: int = 0
    """Bytes to the next buffer. In a compressed file that is not ``buffer_size``."""
    logger_id: int = 1
    state: int = BUFFER_STATE.FLUSH

    @property
    def wrong_size(self) -> Damage | None:
        """The damage where BufferSize differs from the size of the buffers, which no session writes."""
        if self.compressed or self.buffer_size == self.stride:
            return None
        at = self.offset + _EVENT_AT + _SYSTEM
        return Damage("log file header has another BufferSize than the buffers", at, "BufferSize", self.buffer_size)

    @property
    def payload_pointer_size(self) -> int:
        """Pointer size of events whose header does not say it: ``pointer_size``, 8 where that is damaged."""
        return self.pointer_size if self.pointer_size in (4, 8) else 8

    @property
    def compressed(self) -> bool:
        """Whether buffers may be compressed and thus differ in length."""
        return bool(self.mode & LogFileMode.COMPRESSED_MODE)

    @property
    def compression_format(self) -> int:
        """COMPRESSION_FORMAT_* of the compressed buffers: 2 LZNT1, 3 XPRESS, 4 XPRESS_HUFF."""
        return self.state & 0xFFFF

    @property
    def frequency(self) -> int:
        """Ticks per second of event time stamps; 0 if the header does not say.

        Clock types are those of WNODE_HEADER.ClientContext. Old sessions that chose none have 0, which means QPC.
        """
        by_type = {2: 10_000_000, 3: self.cpu_mhz * _TSC_HZ}
        return max(0, by_type.get(self.clock_type, self.perf_freq))

    @property
    def clock(self) -> Clock:
        """The session's clock. Its wall reference is ``timestamp``, which was taken at ``start_time``."""
        name = CLOCK_NAMES.get(self.clock_type, CLOCK_NAMES[1])
        ns = (self.start_time - FILETIME_EPOCH) * 100
        known = self.start_time and -_LATEST <= ns < _LATEST  # up to the year 2262: 64 bits of nanoseconds
        return Clock(name, self.frequency, (self.timestamp, ns) if known else None)


_LOG_FIELDS = [field.name for field in fields(LogHeader)][: len(LOGFILE_HEADER)]


def is_etl(start: bytes) -> bool:
    """Whether ``start``, the first 80 bytes or more of a file, begins an .etl. The first event decides, not a magic."""
    if len(start) < _EVENT_AT + 8:
        return False
    _, kind, marker, size, hook = struct.unpack_from("<HBBHH", start, _EVENT_AT)
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
    session, file = _names(event[_SYSTEM + layout.size :])
    values = dict(zip(_LOG_FIELDS, log.values(), strict=True))
    values["time_zone"] = _time_zone(log["TimeZone"])
    return LogHeader(
        **values,
        session_name=session,
        file_name=file,
        timestamp=system["TimeStamp"],
        process_id=system["ProcessId"],
        thread_id=system["ThreadId"],
        offset=offset,
        stride=_stride(source, offset, buffer, log),
        logger_id=buffer["LoggerId"],
        state=buffer["State"],
    )


def _refuse_old(source: Source, offset: int, log: dict[str, Any]) -> None:
    if log["MajorVersion"] >= 6 and not 0 < log["ProviderVersion"] < _VISTA:
        return
    raise FormatError(
        "written before Windows Vista, in an older buffer format that lastbranch does not read",
        file=source.name,
        offset=offset + _EVENT_AT + _SYSTEM + 8,
        field="ProviderVersion",
        value=log["ProviderVersion"],
        hint="convert it on its own system, for example with tracerpt",
    )


def _stride(source: Source, offset: int, buffer: dict[str, Any], log: dict[str, Any]) -> int:
    """BufferSize of the header buffer, or that of the log file header if more buffers follow at that distance.

    Without damage both are the same. In a compressed file each buffer has its own size; there the bytes in use are the
    least length of the header buffer.
    """
    compressed = log["LogFileMode"] & LogFileMode.COMPRESSED_MODE
    stride, other = buffer["BufferSize"], buffer["Offset"] if compressed else log["BufferSize"]
    sizes = [size for size in dict.fromkeys((stride, other)) if _LEAST <= size <= MAX_BUFFER]
    if not sizes:
        raise FormatError(
            "buffers of impossible size",
            file=source.name,
            offset=offset,
            field="BufferSize",
            value=stride,
            hint=f"a session has buffers of at most {MAX_BUFFER >> 20} MiB",
        )
    if compressed or len(sizes) == 1:
        return int(sizes[0])
    return int(max(sizes, key=lambda size: _fit(source, offset, size)))


def _fit(source: Source, offset: int, size: int) -> tuple[int, bool]:
    """How many of the next places hold a buffer of ``size`` bytes; and whether such buffers fill the file."""
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
    raw = raw[: len(raw) & ~1]
    try:
        text = raw.decode("utf-16-le", "surrogatepass")
    except UnicodeDecodeError:
        text = raw.decode("utf-16-le", "replace")
    first, _, rest = text.partition("\0")
    return first, rest.partition("\0")[0]


# -- writing


def pack_log_header(header: LogHeader, pointer_size: int) -> bytes:
    """TRACE_LOGFILE_HEADER for programs with pointers of that size. `ValueError` for what its fields cannot hold."""
    values = {name: getattr(header, own) for (name, _), own in zip(LOGFILE_HEADER, _LOG_FIELDS, strict=True)}
    return pack_fields(LOGFILE_HEADER, values | {"TimeZone": header.time_zone.raw}, pointer_size)


def encode_log_header(header: LogHeader) -> bytes:
    """The event that begins a file: TRACE_LOGFILE_HEADER and the two names, with a SYSTEM header of its pointer size.

    FormatError for values that its fields cannot hold.
    """
    if header.pointer_size not in (4, 8):
        raise FormatError("pointers have 4 or 8 bytes", field="PointerSize", value=header.pointer_size)
    try:
        payload = pack_log_header(header, header.pointer_size)
    except ValueError as error:
        raise FormatError(f"log file header cannot be written: {error}", field="TRACE_LOGFILE_HEADER") from error
    payload += f"{header.session_name}\0{header.file_name}\0".encode("utf-16-le", "surrogatepass")
    event = Event(
        header.pointer_size // 4,
        header.pointer_size,
        header.timestamp,
        header.process_id,
        header.thread_id,
        0,
        0,
        bytes(16),
        0,
        2,
        0,
        payload=payload,
    )
    return encode_event(event)
