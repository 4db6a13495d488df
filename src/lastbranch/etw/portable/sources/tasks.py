"""Processes, threads and images: records of the kernel and /proc as kernel events, with the rundown at start and end.

These events are few and have names, so they are made singly, by the reader of perf.data and the writer of profiles
(`formats.perfdata.records`, `formats.etl.profile.lifecycle_events`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ....capture.perf_events.host import Host
from ....capture.perf_events.linux_kernel import Kernel
from ....capture.perf_events.synthesis import kernel_records, process_records
from ....formats.etl import Event
from ....formats.etl.kernel.hooks import IMAGE, PROCESS, THREAD
from ....formats.etl.profile.lifecycle_events import LifecycleEvents
from ....formats.perfdata.layout import RECORD
from ....formats.perfdata.state import State
from ....formats.perfdata.writer import SideRecords
from ....model import ModuleKind, Profile
from ....opening import attach_binaries
from ....symbols import running_build_id
from .event_words import Events, encoded
from .perf_records import FOREVER, Ticks, follow_records, handle_records, records_in
from .ring_stream import Round, Stream, tracking

__all__ = ["Tasks"]


_SAMPLE, _LOAD = RECORD["SAMPLE"], 0x030A
_IDLE = "Idle"
"""The name of process 0: the kernel's idle threads."""


class Tasks:
    """The tasks of the machine and their images. ``wanted``: which of "process", "thread" and "image" are written.

    ``ticks`` turns ns into ticks of the session.
    """

    def __init__(self, wanted: frozenset[str], kernel: Kernel, host: Host, ticks: Ticks) -> None:
        self._kernel, self.wanted, self._ticks = kernel, wanted, ticks
        self._cpu = host.cpus[0]
        self.stream = Stream(tracking(host, images="image" in wanted), kernel, host)
        self._state = State(Profile("session", "perf"), "<", attrs=[self.stream.attr])
        self._lives: LifecycleEvents | None = None
        self._identified = 0

    # -- begin and end

    def begin(self, now: int) -> Events:
        """The lists of what exists at ``now`` (ticks). The rings report what began after the events were opened."""
        self._take(b"".join(self._listed()), *self._in_rings())
        self._identify()
        self._lives = LifecycleEvents(self._state.profile, now, 8)
        return self._made(self._lives.until(FOREVER))

    def end(self, now: int) -> Events:
        """The lists of what exists at ``now``."""
        assert self._lives is not None
        return self._made(self._lives.end(now))

    def _listed(self) -> Iterator[bytes]:
        spec = self.stream.spec
        records = SideRecords(spec.fields["sample_type"], spec.ids[0])
        images = "image" in self.wanted
        if images:
            yield from kernel_records(self._kernel, records)
        yield records.fork(0, 0, 0, 0)
        yield records.comm(0, 0, _IDLE)
        known: dict[object, bytes] = {}
        for pid in sorted(int(name) for name in self._kernel.names("/proc") if name.isdecimal()):
            yield from process_records(self._kernel, pid, records, known, images)

    def _in_rings(self) -> tuple[set[int], set[tuple[int, int]]]:
        """(threads that began, (process, address) of mappings made) since the events were opened."""
        ahead = self.stream.peek()
        at = ahead.at[ahead.types == RECORD["FORK"]]  # u32 pid, ppid, tid, ptid
        forked = set(ahead.halves(ahead.words[at + 2])[0].tolist())
        at = ahead.at[ahead.types == RECORD["MMAP2"]]  # u32 pid, tid; u64 addr
        pids = ahead.halves(ahead.words[at + 1])[0].tolist()
        return forked, set(zip(pids, ahead.words[at + 2].tolist(), strict=True))

    def _take(self, data: bytes, forked: set[int], mapped: set[tuple[int, int]]) -> None:
        """Apply records made from /proc, except what the rings report."""
        block = records_in(data)
        new = np.ones(len(block.at), bool)
        for row, (at, kind) in enumerate(zip(block.at.tolist(), block.types.tolist(), strict=True)):
            first, second = int(block.words[at + 1]), int(block.words[at + 2])
            if kind == RECORD["FORK"]:
                known = second & 0xFFFFFFFF in forked
            elif kind == RECORD["COMM"]:
                known = first >> 32 in forked
            else:
                known = first & 0xFFFFFFFF in forked or (first & 0xFFFFFFFF, second) in mapped
            new[row] = not known
        handle_records(self._state, block, block.at[new], block.types[new])

    # -- between

    def of(self, took: Round, floor: int) -> Events:
        """The events of a round, none of them before ``floor`` (ticks)."""
        rows = took.types != _SAMPLE
        if not rows.any():
            return Events.joined([])
        assert self._lives is not None
        self._state.profile.damage.clear()
        follow_records(self._state, took.block, took.at[rows], took.types[rows], self._ticks, floor)
        self._identify()
        self._lives.reload()
        return self._made(self._lives.until(FOREVER))

    def _identify(self) -> None:
        """Identify new modules: load segments of files, and the kernel's build id."""
        new = self._state.profile.modules[self._identified :]
        self._identified += len(new)
        attach_binaries((module for module in new if module.kind is ModuleKind.FILE), self._kernel.release)
        for module in new:
            if module.kind is ModuleKind.KERNEL:
                module.build_id = running_build_id(read=self._kernel.data)

    def _made(self, events: Iterable[Event]) -> Events:
        return encoded(filter(self._is_wanted, events), self._cpu)

    def _is_wanted(self, event: Event) -> bool:
        group = event.hook >> 8
        if event.hook in (_LOAD, -1) or group == IMAGE:
            return "image" in self.wanted
        return "process" in self.wanted if group == PROCESS else group != THREAD or "thread" in self.wanted

    def close(self) -> None:
        self.stream.close()
