"""Trace logs built from a list of events, for tests of verbs."""

from __future__ import annotations

import struct

import etl_builder as build


def trace(*events, **options):
    made = build.Trace(**options)
    for cpu, event in events:
        made.add(cpu, event)
    return made


def write(tmp_path, data):
    path = tmp_path / "capture"
    path.write_bytes(bytes(data))
    return path


def lbr(time, pid, tid, *entries, options=0):
    payload = struct.pack("<QIIII", time, pid, tid, options, 0) + b"".join(struct.pack("<3Q", *e) for e in entries)
    return build.perfinfo(0x0C20, time, payload)


def pmc(time, ip, tid, counters=()):
    return build.perfinfo(0x0F2F, time, struct.pack("<QIHH", ip, tid, 6, 0), counters=counters)


def thread(hook, time, pid, tid):
    return build.system(hook, time, struct.pack("<II", pid, tid) + bytes(64), pid=1, tid=2, version=3)


BEGIN = 1_000_000


BIND, PMC = 0x7, 0x400


def masks(hook, time, first, second):
    payload = struct.pack("<9I", first, second, 0, 0, 0, 0, 0, 0, 0x55)
    return build.system(hook, BEGIN + time, payload)


def rundown():
    process = struct.pack("<QIIIiQI", 1, 7, 0, 0, 0, 0, 0) + bytes(4) + b"a.exe\0" + b"\0\0" * 3
    image = struct.pack("<QQIIIIQIIII", 0x400000, 0x10000, 7, 0, 0, 0, 0, 0, 0, 0, 0) + "\\a.exe\0".encode("utf-16-le")
    return [
        (0, build.system(0x0303, BEGIN + 1, process, version=4)),
        (0, build.system(0x1403, BEGIN + 1, image, version=3)),
        (0, thread(0x0503, BEGIN + 1, 7, 71)),
    ]


def session(*events, start=(BIND, PMC), end=None):
    """A trace with the masks of its start and of its end, a rundown and ``events`` between them."""
    states = [(0, masks(0x0005, 0, *start))] if start else []
    last = start if end is None else end
    states_after = [(0, masks(0x0020, 900, *last)), (0, masks(0x0005, 901, 0, 0))] if last else []
    return trace(*states, *rundown(), *events, *states_after)


def sampled(time, cpu=0, ip=0x400010, options=0):
    return [(cpu, pmc(BEGIN + time, ip, 71)), (cpu, lbr(BEGIN + time, 7, 71, (0x400000, 0x400004, 0), options=options))]


def process(bits, pid):
    """A process event of version 3 or 4 with pointers of so many bits."""
    word = "I" if bits == 32 else "Q"
    body = struct.pack(
        f"<{word}IIIi{word}I", 0x8123_4560 if bits == 32 else 0xFFFF_FA80_0123_4560, pid, 4, 1, 259, 0, 0
    )
    return body + bytes(4) + b"a.exe\0" + "a.exe -x\0".encode("utf-16-le") + b"\0\0" * 2
