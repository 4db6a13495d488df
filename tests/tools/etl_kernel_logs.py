"""Kernel trace logs built event by event, and the profile that is read from them."""

from __future__ import annotations

import struct

import etl_builder as eb
from lastbranch.bind import bind
from lastbranch.formats.etl import read_etl
from lastbranch.model import BytesSource, Profile

SAMPLE, PMC, LBR, CSWITCH = 0x0F2E, 0x0F2F, 0x0C20, 0x0524


KERNEL = 0xFFFFF80000000000


def lbr(time: int, pid: int, tid: int, options: int, entries: list[tuple[int, int, int]], bits: int = 64) -> bytes:
    """The documented LBR_TRACE_EVENT_DATA: u64 time, u32 pid, tid, options, unused, then from, to, information."""
    head = struct.pack("<QIIII", time, pid, tid, options, 0)
    head = head if bits == 64 else head[:-4]
    body = b"".join(struct.pack("<3Q" if bits == 64 else "<3I", *e) for e in entries)
    return eb.perfinfo(LBR, time, head + body, bits=bits)


def sample(time: int, ip: int, tid: int) -> bytes:
    return eb.perfinfo(SAMPLE, time, struct.pack("<QIHBB", ip, tid, 1, 0, 0))


def pmc(time: int, ip: int, tid: int, source: int) -> bytes:
    return eb.perfinfo(PMC, time, struct.pack("<QIHH", ip, tid, source, 0))


def wide(text: str) -> bytes:
    return (text + "\0").encode("utf-16-le")


def thread(kind: int, time: int, pid: int, tid: int) -> bytes:
    return eb.system(0x0500 | kind, time, struct.pack("<II6QI4B", pid, tid, *[0] * 6, 0, 0, 0, 0, 0), version=3)


def process(kind: int, time: int, pid: int, name: str) -> bytes:
    fixed = struct.pack("<QIIIiQI", 0xFFFF, pid, 4, 0, 0, 0, 0) + struct.pack("<I", 0)
    return eb.system(0x0300 | kind, time, fixed + name.encode() + b"\0" + wide("") * 3, version=4)


def image(
    hook: int, time: int, pid: int, base: int, size: int, name: str, *, checksum: int = 1, stamp: int = 2
) -> bytes:
    fixed = struct.pack("<QQIIIIQ4I", base, size, pid, checksum, stamp, 0, base, 0, 0, 0, 0)
    return eb.system(hook, time, fixed + wide(name), version=2)


def interval(time: int, source: int, period: int, name: str) -> bytes:
    return eb.system(0x0F49, time, struct.pack("<III", source, period, period) + wide(name), version=3)


def profile_of(events: list[tuple[int, bytes]]) -> Profile:
    trace = eb.Trace()
    for cpu, event in events:
        trace.add(cpu, event)
    return bind(read_etl(BytesSource(bytes(trace), "made.etl")))


WORLD = [
    (0, process(3, 100, 42, "app.exe")),
    (0, thread(3, 100, 42, 420)),
    (0, image(0x1403, 100, 42, 0x140000000, 0x10000, "\\Device\\HarddiskVolume1\\app.exe")),
    (0, image(0x1403, 100, 0, KERNEL, 0x100000, "\\SystemRoot\\ntoskrnl.exe")),
    (0, interval(100, 6, 65536, "BranchInstructions")),
]


PAIR = [(0x140001010, 0x140001100, 1 << 63 | 7), (0x140001050, 0x140001000, 5)]


def flow(profile: Profile) -> list[tuple[int, str, int, int]]:
    """(time, event, address, branches) of all samples."""
    return [
        (int(b.time[i]), profile.events[int(b.event[i])].name, int(b.ip[i]), int(b.depth[i]))
        for b in profile.batches()
        for i in range(len(b))
    ]


def stack_event(time: int, tid: int, frames: list[int]) -> bytes:
    return eb.system(0x1820, time + 50, struct.pack(f"<QII{len(frames)}Q", time, 42, tid, *frames))


def key_event(hook: int, time: int, tid: int, key: int) -> bytes:
    return eb.system(hook, time + 60, struct.pack("<QIIQ", time, 42, tid, key))
