"""A session without a daemon: logger and writers in the test's own process, so that it decides what happens when."""

from __future__ import annotations

import os
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastbranch.etw.flags import LogFileMode
from lastbranch.etw.portable.provider.writer import Writer
from lastbranch.etw.portable.request import Host, adjusted
from lastbranch.etw.portable.session.log_file import Disk
from lastbranch.etw.portable.session.logger import Logger
from lastbranch.etw.properties import SessionRequest
from lastbranch.formats.etl import Event, LogHeader, TraceLog
from lastbranch.model import BytesSource

# EVENT_HEADER as evntcons.h has it, with the ids and EVENT_DESCRIPTOR spelled out.
_HEADER = struct.Struct("<HBBHHIIq16sHBBBBHQQ16s")
ANY_DISK = Disk(free=lambda folder: 1 << 50, system=lambda folder: False)
PROVIDER = bytes(range(16))


def event(number: int, time: int, payload: int = 24) -> bytes:
    """An event whose id and payload hold its number; ``payload`` bytes, 8 at least."""
    data = number.to_bytes(8, "little") + bytes([number % 251]) * (payload - 8)
    size = _HEADER.size + len(data)
    head = _HEADER.pack(size, 19, 0xC0, 0, 0, 7, 6, time, PROVIDER, number & 0xFFFF, 0, 0, 4, 0, 0, 1, 0, bytes(16))
    return head + data + bytes(-size % 8)


def number_of(found: Event) -> int:
    """The number that `event` gave; the whole payload is checked."""
    number = int.from_bytes(found.payload[:8], "little")
    assert found.payload[8:] == bytes([number % 251]) * (len(found.payload) - 8)
    assert found.id == number & 0xFFFF
    return number


@dataclass
class Written:
    """A log file as our reader sees it: damage is an error."""

    header: LogHeader
    headers: list[LogHeader]
    events: list[Event]

    @property
    def numbers(self) -> list[int]:
        """Numbers of the events, sorted."""
        return sorted(number_of(found) for found in self.events)

    @property
    def by_cpu(self) -> dict[int, list[int]]:
        """Numbers by processor index, in the order of the buffers."""
        found: dict[int, list[int]] = {}
        for each in self.events:
            found.setdefault(each.cpu, []).append(number_of(each))
        return found


def read(path: Path | str) -> Written:
    """All events but the headers, in file order; they must be in time order within each processor index."""
    log = TraceLog(BytesSource(Path(path).read_bytes(), str(path)))
    events = [found for found in log.events() if found.hook < 0]
    assert not log.damage, log.damage
    last: Counter[int] = Counter()
    for found in events if not log.header.mode & LogFileMode.FILE_MODE_CIRCULAR else []:
        assert found.time >= last[found.cpu], "not in time order"
        last[found.cpu] = found.time
    return Written(log.header, log.headers, events)


class Rig:
    """A logger with writers. ``time`` is both of its clocks, in ns from ``begin`` s on; an event takes 1,000."""

    kind, frequency = 1, 1_000_000_000

    def __init__(self, host: Host | None = None, disk: Disk = ANY_DISK, begin: int = 1, **request: Any) -> None:
        self.time = begin * 1_000_000_000
        self.offered = 0
        self.request = adjusted(SessionRequest(name="rig", **request), host or Host(2, 1 << 32))
        self.logger = Logger(self.request, 5, clock=self, disk=disk, monotonic=lambda: self.time / 1e9)
        self._slots: dict[Writer, int] = {}
        self.logger.poll()

    # the clock

    def now(self) -> int:
        return self.time

    def filetime(self) -> int:
        return 133_000_000_000_000_000 + self.time // 100

    # writers

    def writer(self, **wanted: int) -> Writer:
        """A new writer of this process."""
        slot, answer, descriptors = self.logger.attach(os.getpid(), **wanted)
        writer = Writer.of_answer(answer, [os.dup(descriptor) for descriptor in descriptors])
        self._slots[writer] = slot
        return writer

    def write(self, writer: Writer, count: int = 1, payload: int = 24) -> int:
        """Write the next ``count`` events; how many were taken."""
        taken = 0
        for _ in range(count):
            self.time += 1000
            taken += writer.write(event(self.offered, self.time, payload))
            self.offered += 1
        return taken

    def gone(self, writer: Writer, *, cleanly: bool = True) -> None:
        """The daemon learns that a writer hung up; ``cleanly`` if it closed before."""
        if cleanly:
            writer.close()
        self.logger.detach(self._slots.pop(writer))

    def poll(self) -> float | None:
        return self.logger.poll()

    def stop(self) -> Any:
        """Stop; the last state."""
        self.logger.stop()
        return self.logger.state()


__all__ = ["ANY_DISK", "PROVIDER", "Rig", "Written", "event", "number_of", "read"]
