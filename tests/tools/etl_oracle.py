"""Shared tools of tests of .etl files: real files, a walk event by event in plain `struct`, and small made traces.

`slow` shares nothing with the reader: tests compare walk, writer and verbs with `slow`.
"""

import os
import re
import struct
from pathlib import Path
from uuid import UUID

import pytest

import etl_builder as build
from lastbranch.formats.etl import TraceLog, decompress
from lastbranch.model import BytesSource

GUID = UUID("12345678-9abc-def0-1122-334455667788").bytes_le


COUNTS = {  # SOURCES.md of the captures, and for what it does not say, its own probe
    "net.4.5.2.x64.etl": 179_474, "diaghub.kernel.1.etl": 16_335, "gcevents.PerfViewData.etl": 71,
    "gcrundownevents.PerfViewData.clrRundown.etl": 112, "primitive-types.etl": 7, "SelfDescribingSingleEvent.etl": 23,
    "smallEtlFile.etl": 2, "ShutdownPerfDiagLogger.etl": 17_078, "AMSITrace.etl": 21, "lxcore_kernel.etl": 4,
    "syzygy.image_data_32_v0.etl": 27, "syzygy.image_data_32_v2.etl": 27, "syzygy.process_data_32_v1.etl": 3,
    "syzygy.process_data_64_v3.etl": 9, "krabs.powershell.etl": 114, "waasmedic.20251005_113019_195.etl": 21,
    "WindowsUpdate.20251008.140245.443.8.etl": 82,
}  # fmt: skip


LINE = re.compile(r"EVENT ([\d,.]+): (\S.*?) PID=(-?\d+); TID=(-?\d+); PName=.*?; ProceNum=(\d+); DataLen=([\d,]+);")


FULL = {10: 0x30, 20: 0x30, 11: 0x48, 21: 0x48}


def largest_thorough(names):
    """``names`` as parameters, of which that of the largest capture is left to ``make fuzz``."""
    return [pytest.param(n, marks=pytest.mark.thorough) if n.startswith("net.4.5.2") else n for n in names]


def real(name):
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: no real captures")
    return (Path(root) / "etl" / name).read_bytes()


def log_of(data, **options):
    return TraceLog(BytesSource(bytes(data), "test.etl"), **options)


def slow(data):
    """Every event of an undamaged file without messages, in file order.

    (buffer offset, offset in it, header, size, hook, time, pid, tid, cpu, version, opcode, id, GUID or None, payload)
    """
    at, found = 0, []
    while at < len(data):
        length, used = struct.unpack_from("<I44xI", data, at)
        (flags,) = struct.unpack_from("<H", data, at + 0x34)
        cpu = struct.unpack_from("<H", data, at + 0x28)[0] if flags & 0x20 else data[at + 0x28]
        body = data[at : at + used]
        if flags & 0x40:
            body = data[at : at + 72] + decompress(data[at + 72 : at + length], used - 72)
        place = 72
        while place < used and body[place : place + 4] != b"\xff\xff\xff\xff":
            kind, marker = body[place + 2], body[place + 3]
            assert marker == 0xC0
            event = slow_event(body, place, kind)
            found.append((at, place, kind, event[0], *event[1 : 4 + 1], cpu, *event[5:]))
            place += event[0] + 7 & ~7
        at += length
    return found


def slow_event(body, at, kind):
    if kind in (1, 2, 3, 4, 16, 17):
        version, size, hook = struct.unpack_from("<H2xHH", body, at)
        if kind >= 16:
            pid = tid = -1
            (time,), head = struct.unpack_from("<q", body, at + 8), 16
        else:
            (tid, pid, time), head = struct.unpack_from("<iiq", body, at + 8), 0x20 if kind < 3 else 0x18
        assert version < 256
        return size, hook, time, pid, tid, version, hook & 0xFF, 0, None, body[at + head : at + size]
    (size,) = struct.unpack_from("<H", body, at)
    tid, pid, time, guid = struct.unpack_from("<iiq16s", body, at + 8)
    if kind in FULL:
        type_, _, version = struct.unpack_from("<BBH", body, at + 4)
        return size, -1, time, pid, tid, version & 0xFF, type_, 0, guid, body[at + FULL[kind] : at + size]
    flags, id_, version, _, _, opcode = struct.unpack_from("<4xH34xHBBBB", body, at)
    head = 0x50
    while flags & 1:
        step, _, more, _ = struct.unpack_from("<HHHH", body, at + head)
        head += step
        if not more & 1:
            break
    return size, -1, time, pid, tid, version, opcode, id_, guid, body[at + head : at + size]


def as_row(e):
    guid = None if e.hook >= 0 else e.provider
    return (
        e.buffer,
        e.offset,
        e.header,
        e.hook,
        e.time,
        e.pid,
        e.tid,
        e.cpu,
        e.version,
        e.opcode,
        e.id,
        guid,
        e.payload,
    )


def sample(time, size=16):
    return build.perfinfo(0x0F2E, time, bytes(size))


def some_trace(events=300, cpus=3, **options):
    trace = build.Trace(**options)
    for i in range(events):
        trace.add(i * 7 % cpus, sample(trace.begin + 10 * i, i % 40))
    return trace


def times(log, **options):
    return [event.time for event in log.events(**options)]
