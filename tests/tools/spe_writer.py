"""Writes Arm SPE traces: the packets of a record as the architecture lays them out (DDI 0487, "Statistical Profiling
Extension"), and a perf.data with AUX areas of them. It shares nothing with the package.

A record is an `Operation`. ``trace`` wraps areas of bytes as perf does: AUX, then AUXTRACE with the bytes after it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import perfdata_writer as pw
from perfdata_writer import Builder

SPE_TYPE = 9
EL0, EL1, EL2, EL3 = range(4)
RETIRED, NOT_TAKEN, MISPREDICTED = 1 << 1, 1 << 6, 1 << 7
OTHER, MEMORY, BRANCH = range(3)
CONDITIONAL, INDIRECT, CALL, RETURN = 1, 2, 1 << 3, 2 << 3


def address(index: int, value: int, level: int = EL0, *, extended: bool = False) -> bytes:
    """An address packet: an instruction's has the exception level and non-secure state in its highest byte."""
    top = (0x80 | level << 5) << 56 if index in (0, 1, 4) else value & 0xFF << 56
    return b"\x20" * extended + bytes([0xB0 | index]) + struct.pack("<Q", value & (1 << 56) - 1 | top)


def counter(index: int, cycles: int) -> bytes:
    return bytes([0x98 | index]) + struct.pack("<H", cycles)


def events(bits: int, size: int = 2) -> bytes:
    return bytes([0x42 | {1: 0, 2: 1, 4: 2, 8: 3}[size] << 4]) + bits.to_bytes(size, "little")


def context(level: int, tid: int) -> bytes:
    return bytes([0x64 | level - 1]) + struct.pack("<I", tid)


@dataclass
class Operation:
    """One record; what is ``None`` has no packet. ``previous`` is the target of the last taken branch before."""

    pc: int | None
    kind: int | None = BRANCH
    detail: int = 0
    events: int | None = RETIRED
    target: int | None = None
    previous: int | None = None
    level: int = EL0
    target_level: int | None = None
    tid: int | None = None
    guest_tid: int | None = None
    addr: int | None = None
    phys: int | None = None
    source: int | None = None
    total: int | None = None
    issue: int | None = None
    translation: int | None = None
    time: int | None = None
    pad: int = 64
    order: Sequence[str] = field(default_factory=lambda: ORDER)

    def parts(self) -> dict[str, bytes]:
        level = self.level if self.target_level is None else self.target_level
        given = {
            "pc": self.pc is not None and address(0, self.pc, self.level),
            "guest": self.guest_tid is not None and context(1, self.guest_tid),
            "context": self.tid is not None and context(2, self.tid),
            "operation": self.kind is not None and bytes([0x48 | self.kind, self.detail]),
            "events": self.events is not None and events(self.events, 2 if self.events < 1 << 16 else 4),
            "issue": self.issue is not None and counter(1, self.issue),
            "total": self.total is not None and counter(0, self.total),
            "translation": self.translation is not None and counter(2, self.translation),
            "target": self.target is not None and address(1, self.target, level),
            "addr": self.addr is not None and address(2, self.addr),
            "phys": self.phys is not None and address(3, self.phys),
            "previous": self.previous is not None and address(4, self.previous, self.level),
            "source": self.source is not None and bytes([0x43, self.source]),
        }
        return {name: part for name, part in given.items() if part}

    def bytes(self) -> bytes:
        parts = self.parts()
        body = b"".join(parts[name] for name in self.order if name in parts)
        close = b"\x01" if self.time is None else b"\x71" + struct.pack("<Q", self.time)
        return body + bytes(-(len(body) + len(close)) % self.pad) + close


ORDER = ("pc", "guest", "context", "operation", "events", "issue", "total", "translation", "target", "addr", "phys",
         "previous", "source")  # fmt: skip


@dataclass
class Area:
    """A stretch of an AUX area: its bytes, its offset in the area, and the fields of its AUX record."""

    data: bytes
    offset: int = 0
    cpu: int = 0
    tid: int = -1
    flags: int = 0
    index: int | None = None
    time: int = 9_000_000_000
    said: bool = True


def capture(
    *areas: Area,
    kind: int = 4,
    priv: Sequence[int] = (SPE_TYPE, 1),
    conversion: dict[str, int] | None = None,
    maps: Sequence[tuple[int, int, int, str]] = (),
    period: int = 1000,
    build_id: bytes | None = None,
    **attr: int,
) -> Builder:
    """A capture of ``arm_spe_0//`` and a dummy event. ``maps`` are (pid, address, length, name); every pid has a COMM.

    ``conversion`` are fields of TIME_CONV: without, ticks are ns from 5 s on.
    """
    kinds = pw.IP | pw.TID | pw.TIME | pw.CPU | pw.IDENTIFIER
    b = Builder(sample_type=kinds, type=SPE_TYPE, config=1, sample_period=period, size=128, **attr)
    b.attr(sample_type=kinds, type=1, config=9, size=128)
    known = {"shift": 0, "mult": 1, "zero": 5_000_000_000, "cycles": 0, "mask": (1 << 56) - 1, "has_zero": 1}
    b.record("TIME_CONV", **{**known, "has_short": 0, "pad": bytes(6), **(conversion or {})})
    b.record("AUXTRACE_INFO", type=kind, reserved=0, priv=list(priv))
    for pid in dict.fromkeys(pid for pid, *_ in maps):
        b.comm(pid=pid, name=f"prog{pid}", time=0)
    for pid, start, length, name in maps:
        b.mmap2(pid=pid, addr=start, length=length, pgoff=0, name=name, time=0, build_id=build_id)
    for area in areas:
        if area.said:
            b.record(
                "AUX",
                aux_offset=area.offset,
                aux_size=len(area.data),
                flags=area.flags,
                cpu=area.cpu,
                tid=area.tid,
                pid=area.tid,
                time=area.time,
            )
        data = area.data + bytes(-len(area.data) % 8)
        index = area.cpu if area.index is None else area.index
        b.record(
            "AUXTRACE",
            size=len(data),
            aux_offset=area.offset,
            reference=0x1234,
            idx=index,
            tid=area.tid & 0xFFFFFFFF if area.tid < 0 else area.tid,
            cpu=area.cpu & 0xFFFFFFFF,
            payload=data,
            reserved=0,
        )
    b.feature("ARCH", value="aarch64")
    b.feature(
        "EVENT_DESC",
        nr=2,
        attr_size=128,
        events=[
            {"attr": b.capture.attrs[i].raw, "name": name, "nr_ids": 1, "ids": b.capture.attrs[i].ids}
            for i, name in enumerate(("arm_spe_0//", "dummy:u"))
        ],
    )
    return b


def write(path: Path, *areas: Area, **options: Any) -> Path:
    path.write_bytes(capture(*areas, **options).build())
    return path
