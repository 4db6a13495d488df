"""A builder of .etl bytes with `struct` alone, which shares nothing with the reader: what tests hold it against.

Layouts from the public descriptions of WMI_BUFFER_HEADER, TRACE_LOGFILE_HEADER and the event headers. `Trace` collects
events for processors and cuts them into buffers; every knob that a damaged or odd file needs is an argument.
"""

import struct
from dataclasses import dataclass, field

START_TIME = 133_000_000_000_000_000  # FILETIME, June 2022
NAMES = ("session", "C:\\trace.etl")


def system(hook, time, payload=b"", *, pid=4, tid=8, version=2, bits=64, compact=False, times=(0, 0)):
    kind = (3 if compact else 1) + (bits == 64)
    size = (0x18 if compact else 0x20) + len(payload)
    head = struct.pack("<HBBHHIIq", version, kind, 0xC0, size, hook, tid & 0xFFFFFFFF, pid & 0xFFFFFFFF, time)
    return head + (b"" if compact else struct.pack("<II", *times)) + payload


def perfinfo(hook, time, payload=b"", *, version=2, bits=64, counters=(), pebs=None):
    version |= len(counters) << 8 | (0x8000 if pebs is not None else 0)
    extra = struct.pack(f"<{len(counters)}Q", *counters) + (b"" if pebs is None else struct.pack("<Q", pebs))
    size = 0x10 + len(extra) + len(payload)
    return struct.pack("<HBBHHq", version, 16 + (bits == 64), 0xC0, size, hook, time) + extra + payload


def full(guid, type_, time, payload=b"", *, pid=4, tid=8, version=2, level=0, bits=64, instance=None):
    kind = {(32, False): 10, (64, False): 20, (32, True): 11, (64, True): 21}[bits, instance is not None]
    tail = b"" if instance is None else struct.pack("<II16s", *instance)
    head = struct.pack(
        "<HBBBBHIIq16sQ", 0x30 + len(tail) + len(payload), kind, 0xC0, type_, level, version, tid, pid, time, guid, 0
    )
    return head + tail + payload


def manifest(
    guid,
    id_,
    time,
    payload=b"",
    *,
    pid=4,
    tid=8,
    version=0,
    channel=0,
    level=4,
    opcode=0,
    task=0,
    keyword=0,
    activity=bytes(16),
    bits=64,
    items=None,
):
    extra = b""
    for i, (type_, data) in enumerate(items or ()):
        room = -len(data) % 8
        extra += struct.pack("<HHHH", 8 + len(data) + room, type_, i + 1 < len(items), len(data)) + data + bytes(room)
    size = 0x50 + len(extra) + len(payload)
    return (
        struct.pack(
            "<HBBHHIIq16sHBBBBHQQ16s",
            size,
            18 + (bits == 64),
            0xC0,
            bool(items),
            0,
            tid & 0xFFFFFFFF,
            pid & 0xFFFFFFFF,
            time,
            guid,
            id_,
            version,
            channel,
            level,
            opcode,
            task,
            keyword,
            0,
            activity,
        )
        + extra
        + payload
    )


def message(number, payload=b"", *, sequence=None, guid=None, component=None, time=None, ids=None, flags=0):
    fields = (
        (0x01, "<I", sequence),
        (0x04, "<I", component),
        (0x02, "<16s", guid),
        (0x08, "<q", time),
        (0x20, "<ii", ids),
    )
    body = b""
    for flag, form, value in fields:
        if value is not None:
            flags |= flag
            if not (flag == 0x02 and component is not None):
                body += struct.pack(form, *(value if isinstance(value, tuple) else (value,)))
    return struct.pack("<HBBHH", 8 + len(body) + len(payload), 0, 0x90, number, flags) + body + payload


def error(payload=b""):
    return struct.pack("<HBBI", 8 + len(payload), 13, 0xC0, 0) + payload


def aligned(event):
    return event + bytes(-len(event) % 8)


def buffer(
    events,
    *,
    size,
    sequence=1,
    cpu=0,
    time=0,
    flags=None,
    kind=0,
    state=3,
    logger=7,
    windows7=False,
    filled=None,
    marker=True,
    length=None,
):
    """One buffer of ``size`` bytes, the tail 0xFF. ``filled`` overrides what its header says."""
    body = b"".join(map(aligned, events)) if not isinstance(events, bytes) else events
    used = 72 + len(body)
    assert used <= size, (used, size)
    if flags is None:
        flags = 0 if windows7 else 0x20
    processor = struct.pack("<BB", cpu, 8) if windows7 else struct.pack("<H", cpu)
    head = struct.pack(
        "<IIIiqqQ",
        size if length is None else length,
        0 if windows7 else used,
        size + used,
        0,
        time,
        sequence,
        0x123456,
    )
    head += processor + struct.pack(
        "<HIIHH16s", logger, state, used if filled is None else filled, flags, kind, b"\xaa" * 16
    )
    return head + body + (b"\xff" if marker else b"\0") * (size - used)


def logfile_header(
    *,
    size,
    bits=64,
    pointer=None,
    version=(10, 0, 1, 5),
    build=19045,
    processors=4,
    mode=1,
    written=2,
    lost=0,
    buffers_lost=0,
    mhz=3000,
    frequency=10_000_000,
    start=START_TIME,
    end=START_TIME + 10**8,
    boot=START_TIME - 10**10,
    clock=1,
    names=NAMES,
):
    """TRACE_LOGFILE_HEADER and the names."""
    zone = struct.pack("<i64s16si64s16si", -60, "W. Europe".encode("utf-16-le"), bytes(16), 0, b"", bytes(16), -60)
    word = "I" if bits == 32 else "Q"
    data = struct.pack(
        f"<I4BIIqIIIIIIII{word}{word}",
        size,
        *version,
        build,
        processors,
        end,
        156250,
        64,
        mode,
        written,
        1,
        pointer or bits // 8,
        lost,
        mhz,
        6,
        7,
    )
    data += zone + struct.pack("<IqqqII", 0, boot, frequency, start, clock, buffers_lost)
    return data + b"".join(name.encode("utf-16-le") + b"\0\0" for name in names)


@dataclass
class Trace:
    """A file under construction. ``add`` events in time order for each processor; ``bytes(trace)`` is the file."""

    size: int = 4096
    bits: int = 64
    begin: int = 1_000_000
    windows7: bool = False
    header: dict = field(default_factory=dict)
    header_events: list = field(default_factory=list)
    compress: object = None
    """A compressor: the file gets mode COMPRESSED and ``state`` in its header buffer."""
    state: int = 3
    parts: list = field(default_factory=list)
    open: dict = field(default_factory=dict)
    sequence: int = 0
    log: list = field(default_factory=list)
    """(cpu, event bytes) in the order of `add`."""

    def add(self, cpu, event):
        events, used = self.open.setdefault(cpu, ([], 72))
        if used + len(aligned(event)) > self.size:
            self.flush(cpu)
            events, used = self.open.setdefault(cpu, ([], 72))
        events.append(event)
        self.open[cpu] = (events, used + len(aligned(event)))
        self.log.append((cpu, event))

    def flush(self, cpu):
        events, _ = self.open.pop(cpu)
        self.sequence += 1
        self.parts.append(self.data_buffer(events, cpu, self.sequence))

    def data_buffer(self, events, cpu, sequence):
        whole = buffer(events, size=self.size, sequence=sequence, cpu=cpu, windows7=self.windows7)
        if self.compress is None:
            return whole
        (used,) = struct.unpack_from("<I", whole, 0x30)
        packed = self.compress(whole[72:used])
        head = bytearray(whole[:72])
        struct.pack_into("<I", head, 0, 72 + len(packed))
        struct.pack_into("<H", head, 0x34, head[0x34] | 0x40)
        return bytes(head) + packed

    def header_buffer(self):
        mode = self.header.get("mode", 1) | (0x4000000 if self.compress else 0)
        log = logfile_header(**{"size": self.size, "bits": self.bits, **self.header, "mode": mode})
        events = [system(0, self.begin, log, bits=self.bits, pid=100, tid=101), *self.header_events]
        size = self.size if self.compress is None else 2048
        return buffer(events, size=size, sequence=0, kind=4, flags=1, state=self.state, windows7=self.windows7)

    def __bytes__(self):
        for cpu in list(self.open):
            self.flush(cpu)
        return self.header_buffer() + b"".join(self.parts)
