"""Shared tools of the sources' tests: an output that makes a trace log, and a kernel with rings filled by hand."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fake_kernel import Attr, FakeKernel, FakeRing, Machine
from lastbranch.etw.portable.sources.configuration import SourceConfiguration
from lastbranch.etw.portable.sources.event_words import Events
from lastbranch.etw.portable.sources.recorder import Recorder
from lastbranch.formats.etl import LogHeader, TraceFile
from lastbranch.formats.etl.container.writer import Packer

MONOTONIC = 10**9
SWITCH_FORMAT = """name: sched_switch
ID: 317
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;
\tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;
\tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;
\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;
"""
ENTER_FORMAT = (
    "\tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n\tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;\n"
)
EXIT_FORMAT = "\tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n\tfield:long ret;\toffset:16;\tsize:8;\tsigned:1;\n"
WAKING_FORMAT = (
    "\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n"
)
TRACEPOINTS = {
    "sched/sched_switch": ("317", SWITCH_FORMAT), "raw_syscalls/sys_enter": ("21", ENTER_FORMAT),
    "raw_syscalls/sys_exit": ("20", EXIT_FORMAT), "sched/sched_waking": ("318", WAKING_FORMAT),
}  # fmt: skip


class Kept:
    """Keeps events apart, by processor, in the order they came."""

    def __init__(self) -> None:
        self.events: dict[int, list[bytes]] = {}
        self.lost_events = 0

    def put(self, events: Events) -> None:
        assert len(events.words) == events.size.sum()
        self.lost_events += events.unwritten.total()
        at = 0
        for cpu, size in zip(events.cpu.tolist(), events.size.tolist(), strict=True):
            self.events.setdefault(cpu, []).append(events.words[at : at + size].tobytes())
            at += size

    def lost(self, number: int) -> None:
        self.lost_events += number

    def of(self, *hooks: int) -> list[bytes]:
        """The events of kernel hooks, of all processors."""
        return [e for cpu in sorted(self.events) for e in self.events[cpu] if hook_of(e) in hooks]


def hook_of(event: bytes) -> int:
    """-1 for what has another header than the kernel's."""
    return struct.unpack_from("<H", event, 6)[0] if event[2] in (1, 2, 3, 4, 16, 17) else -1


def time_of(event: bytes) -> int:
    return struct.unpack_from("<q", event, 8 if event[2] in (16, 17) else 16)[0]


class Log:
    """Writes a trace log; what is out of order is refused by `Packer`'s reader, so it is checked here."""

    def __init__(self, path: Path) -> None:
        now = time.monotonic_ns()
        wall = 116_444_736_000_000_000 + time.time_ns() // 100
        header = LogHeader(
            buffer_size=1 << 16,
            timestamp=now,
            start_time=wall,
            clock_type=1,
            perf_freq=MONOTONIC,
            mode=1,
            session_name="test",
            file_name=path.name,
        )
        self.file = TraceFile(path, header)
        self.packer = Packer(self.file)
        self.newest: dict[int, int] = {}
        self.lost_events = 0

    def put(self, events: Events) -> None:
        self.lost_events += events.unwritten.total()
        for cpu, data, sizes in events.by_processor():
            ends = np.cumsum(sizes)
            times = [time_of(data[end - size : end]) for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)]
            assert times == sorted(times)
            assert times[0] >= self.newest.get(cpu, self.file.header.timestamp)
            self.newest[cpu] = times[-1]
            self.packer.extend(cpu, data, ends, np.array(times))

    def lost(self, number: int) -> None:
        self.lost_events += number

    def close(self) -> None:
        self.packer.flush()
        self.file.header = replace(self.file.header, processors=os.cpu_count() or 1)
        self.file.close()


def record_log(path: Path, configuration: SourceConfiguration, action: Callable[[Recorder], object]) -> Log:
    """A log of what happens while ``action`` runs, recorded by this machine's kernel."""
    log = Log(path)
    recorder = Recorder(configuration, log)
    recorder.begin()
    try:
        action(recorder)
        recorder.end()
    finally:
        recorder.close()
        log.close()
    return log


# -- the fake


class SourceKernel(FakeKernel):
    """A ring of its own for each event and processor, `ring_of`; some processes in /proc; tracepoints."""

    def __init__(self, machine: Machine, tracefs: bool = True) -> None:
        super().__init__(machine)
        self.own: dict[int, FakeRing] = {}
        self.periods: dict[int, int] = {}
        self.leaders: dict[int, int] = {}
        """Descriptor of an event -> descriptor of the leader of its group."""
        self.counters = 1 << 20
        """The number of counters of a processor for events of the processor itself."""
        self.taken = 0
        """The number of counters that others use."""
        self.stalled: set[int] = set()
        """Pinned events that found their counters taken."""
        self.waiting: set[int] = set()
        """Events that joined a group and do nothing before that begins (anew)."""
        self.contents |= {"/proc/meminfo": "MemTotal: 1024 kB\n", "/proc/sys/kernel/hostname": "box\n"}
        if tracefs:
            for name, (number, layout) in TRACEPOINTS.items():
                folder = f"/sys/kernel/tracing/events/{name}"
                self.contents |= {f"{folder}/id": number + "\n", f"{folder}/format": layout}
        self.contents |= {
            "/proc/77/status": "Name:\tapp\nPPid:\t1\n",
            "/proc/77/task/77/comm": "app\n",
            "/proc/77/task/78/comm": "worker\n",
            "/proc/77/maps": "00400000-00500000 r-xp 00001000 08:01 123      /bin/known\n"
            "00600000-00700000 rw-p 00000000 00:00 0        [heap]\n",
        }
        self.folders["/proc/77/task"] = lambda: ["77", "78"]
        self.folders["/proc"] = lambda: ["77", "self", "sys"]

    def open_event(self, attr: bytes, tid: int, cpu: int, group: int = -1) -> int:
        """Rules of groups: perf_event_open in kernel/events/core.c, validate_group in arch/x86/events/core.c."""
        new, leader = Attr(attr), group if group >= 0 else self.next
        if group >= 0:
            first, _, place = self.opened[group]
            clocks = {struct.unpack_from("=i", a.raw, 92)[0] if a.flags >> 25 & 1 else -1 for a in (new, first)}
            if place != cpu or len(clocks) > 1 or self.leaders[group] != group or new.flags >> 2 & 1:  # pinned
                raise OSError(errno.EINVAL, "no")
            if self._of_processor(group) + (new.type not in (1, 2)) > self.counters:
                raise OSError(errno.EINVAL, "no")
        fd = super().open_event(attr, tid, cpu)
        self.leaders[fd] = leader
        if fd != leader:
            self.waiting.add(fd)
        if new.flags & 1:
            self.disabled.add(fd)
        self._schedule(leader)
        return fd

    def _of_processor(self, leader: int) -> int:
        """How many counters a group takes."""
        return sum(self.leaders[fd] == leader and a.type not in (1, 2) for fd, (a, _, _) in self.opened.items())

    def _schedule(self, leader: int) -> None:
        attr, _, _ = self.opened[leader]
        if attr.flags >> 2 & 1 and self._of_processor(leader) > self.counters - self.taken:
            self.stalled.add(leader)

    def counts(self, fd: int) -> bool:
        attr, _, _ = self.opened[fd]
        assert self.leaders[fd] == fd
        assert attr.flags >> 2 & 1
        assert not attr.read_format
        return fd not in self.stalled | self.disabled

    def enable(self, fd: int) -> None:
        assert fd in self.disabled
        self.disabled.discard(fd)
        self.stalled.discard(fd)
        self.waiting -= {member for member, leader in self.leaders.items() if leader == fd}
        self._schedule(fd)

    def ring(self, fd: int, pages: int) -> FakeRing:
        assert self.opened[fd][0].period or self.leaders[fd] == fd
        self.own[fd] = FakeRing()
        return self.own[fd]

    def set_period(self, fd: int, period: int) -> None:
        assert fd in self.opened
        self.periods[fd] = period

    def event(self, kind: int, config: int, cpu: int) -> int:
        """The descriptor of an event that is open and samples."""
        sampling = ((fd, a, c) for fd, (a, _, c) in self.opened.items() if a.period)
        return next(fd for fd, a, c in sampling if (a.type, a.config, c) == (kind, config, cpu))

    def give(self, kind: int, config: int, cpu: int, *records: bytes) -> None:
        """Put records into the ring of an event."""
        event = self.event(kind, config, cpu)
        assert event not in self.waiting
        assert self.leaders[event] not in self.stalled | self.disabled
        self.own[event].pending.append(b"".join(records))

    def identifier(self, kind: int, config: int, cpu: int) -> int:
        return 1000 + self.event(kind, config, cpu)


def sample(
    time: int,
    cpu: int,
    *,
    ip: int = 0x1000,
    pid: int = 77,
    tid: int = 77,
    address: int | None = None,
    period: int = 1,
    counts: Sequence[int] | None = None,
    chain: Sequence[int] | None = None,
    raw: bytes | None = None,
    branches: Sequence[tuple[int, int, int]] | None = None,
    misc: int = 2,
) -> bytes:
    """PERF_RECORD_SAMPLE in the order of the kernel ABI."""
    body = struct.pack("=QQiiQ", 1, ip, pid, tid, time)
    body += b"" if address is None else struct.pack("=Q", address)
    body += struct.pack("=IIQ", cpu, 0, period)
    body += b"" if counts is None else struct.pack(f"={1 + len(counts)}Q", len(counts), *counts)
    body += b"" if chain is None else struct.pack(f"={1 + len(chain)}Q", len(chain), *chain)
    if raw is not None:
        padded = raw + bytes(-(len(raw) + 4) % 8)
        body += struct.pack("=I", len(padded)) + padded
    if branches is not None:
        body += struct.pack("=Q", len(branches)) + b"".join(struct.pack("=QQQ", *entry) for entry in branches)
    return struct.pack("=IHH", 9, misc, 8 + len(body)) + body


def trailer(time: int, cpu: int, pid: int = 77, tid: int = 77) -> bytes:
    return struct.pack("=iiQIIQ", pid, tid, time, cpu, 0, 1)


def side_band(kind: int, body: bytes, time: int, cpu: int, misc: int = 0, tid: int = 77) -> bytes:
    """Any other record; the trailer has TID, TIME, CPU, IDENTIFIER."""
    body += bytes(-len(body) % 8) + trailer(time, cpu, tid=tid)
    return struct.pack("=IHH", kind, misc, 8 + len(body)) + body


def lost(number: int, time: int, cpu: int) -> bytes:
    return side_band(2, struct.pack("=QQ", 1, number), time, cpu)


def switched(old: tuple[int, int, int], new: tuple[int, int]) -> bytes:
    """Raw data of sched_switch: (pid, priority, state) -> (pid, priority)."""
    return (
        bytes(8)
        + b"old".ljust(16, b"\0")
        + struct.pack("=iiq", *old)
        + b"new".ljust(16, b"\0")
        + struct.pack("=ii", *new)
    )
