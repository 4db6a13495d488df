"""Processes, threads and images as kernel events, from records of the kernel and /proc, and counters of processes.

These events are few and have names, so they are made singly, by the reader of perf.data and the writer of profiles
(`formats.perfdata.records`, `formats.etl.profile.lifecycle_events`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ....capture.perf_events.host import Host
from ....capture.perf_events.linux_kernel import Kernel
from ....capture.perf_events.synthesis import kernel_records, process_records
from ....formats.etl import Event, kernel_event
from ....formats.etl.kernel.hooks import IMAGE, PROCESS, THREAD
from ....formats.etl.profile.lifecycle_events import LifecycleEvents
from ....formats.perfdata.layout import RECORD
from ....formats.perfdata.state import IndexState
from ....formats.perfdata.writer import SideRecords
from ....model import ModuleKind, Profile
from ....opening import attach_binaries
from ....symbols import running_build_id
from .event_words import Events, encode_events
from .perf_records import FOREVER, Ticks, follow_records, handle_records, records_in
from .ring_stream import Round, Stream, task_spec

__all__ = ["ProcessCounters", "Tasks"]


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
        self.stream = Stream(task_spec(host, images="image" in wanted), kernel, host)
        self._state = IndexState(Profile("session", "perf"), "<", attrs=[self.stream.attr])
        self._lives: LifecycleEvents | None = None
        self._identified = 0

    # -- begin and end

    def begin(self, now: int) -> Events:
        """The lists of what exists at ``now`` (ticks). The rings report what began after the events were opened."""
        self._take(b"".join(self._list_tasks()), *self._in_rings())
        self._identify()
        self._lives = LifecycleEvents(self._state.profile, now, 8)
        return self._encode(self._lives.until(FOREVER))

    def end(self, now: int) -> Events:
        """The lists of what exists at ``now``."""
        assert self._lives is not None
        return self._encode(self._lives.end(now))

    def _list_tasks(self) -> Iterator[bytes]:
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
            return Events.join([])
        assert self._lives is not None
        self._state.profile.damage.clear()
        follow_records(self._state, took.block, took.at[rows], took.types[rows], self._ticks, floor)
        self._identify()
        self._lives.reload()
        return self._encode(self._lives.until(FOREVER))

    def _identify(self) -> None:
        """Identify new modules: load segments of files, and the kernel's build id."""
        new = self._state.profile.modules[self._identified :]
        self._identified += len(new)
        attach_binaries((module for module in new if module.kind is ModuleKind.FILE), self._kernel.release)
        for module in new:
            if module.kind is ModuleKind.KERNEL:
                module.build_id = running_build_id(read=self._kernel.data)

    def _encode(self, events: Iterable[Event]) -> Events:
        return encode_events(filter(self._is_wanted, events), self._cpu)

    def _is_wanted(self, event: Event) -> bool:
        group = event.hook >> 8
        if event.hook in (_LOAD, -1) or group == IMAGE:
            return "image" in self.wanted
        return "process" in self.wanted if group == PROCESS else group != THREAD or "thread" in self.wanted

    def close(self) -> None:
        self.stream.close()


# -- Process/PerfCtr events: memory and open files of a process, from /proc, at its end and at both ends of the session
#
# A process that has ended is in /proc no more. So its counters are those of the last look: each round at processes that
# have just begun, every few seconds at all.


_END, _RUNDOWN = 32, 33
_EVERY, _YOUNG = 5_000_000_000, 1_000_000_000  # ns
_SIZES = {
    "PeakVirtualSize": ("VmPeak",),
    "PeakWorkingSetSize": ("VmHWM",),
    "VirtualSize": ("VmSize",),
    "WorkingSetSize": ("VmRSS",),
    "PagefileUsage": ("VmData",),
    "PrivatePageCount": ("RssAnon", "VmSwap"),
}
"""Field -> lines of /proc/PID/status, in kB, whose sum is the field's value."""


class ProcessCounters:
    """``ticks`` turns ns into ticks of the session."""

    def __init__(self, kernel: Kernel, host: Host, ticks: Ticks) -> None:
        self._kernel, self._ticks, self._cpu = kernel, ticks, host.cpus[0]
        self.stream = Stream(task_spec(host, images=False), kernel, host)
        self._known: dict[int, dict[str, int]] = {}
        self._young: dict[int, int] = {}
        self._looked = 0

    def begin(self, now: int) -> Events:
        """The rundown of the processes that exist at ``now`` (ticks)."""
        self._look()
        return self._rundown(now)

    def end(self, now: int) -> Events:
        """The rundown of the processes that still exist at ``now`` (ticks)."""
        self._look()
        return self._rundown(now)

    def of(self, took: Round, floor: int) -> Events:
        """The processes that ended in a round, none before ``floor`` (ticks)."""
        now = self._ticks.now()
        made: list[Event] = []
        for at, kind in zip(took.at.tolist(), took.types.tolist(), strict=True):
            if kind not in (RECORD["FORK"], RECORD["EXIT"]):
                continue
            ids, threads = int(took.block.words[at + 1]), int(took.block.words[at + 2])  # u32 pid, ppid, tid, ptid
            pid, time = ids & 0xFFFFFFFF, int(took.block.words[at + 3])
            if pid != threads & 0xFFFFFFFF:
                continue
            if kind == RECORD["FORK"]:
                self._young[pid] = now
                self._known.pop(pid, None)
            else:
                self._young.pop(pid, None)
                last = self._known.pop(pid, None) or self._read(pid) or {"ProcessID": pid}
                made.append(self._event(_END, last, max(floor, self._ticks.of(time))))
        for pid, since in list(self._young.items()):
            if counters := self._read(pid):
                self._known[pid] = counters
            if now - since > _YOUNG:
                del self._young[pid]
        if now - self._looked > _EVERY:
            self._look()
        return encode_events(made, self._cpu)

    def _look(self) -> None:
        self._looked = self._ticks.now()
        for pid in [int(name) for name in self._kernel.names("/proc") if name.isdecimal()]:
            if counters := self._read(pid):
                self._known[pid] = counters

    def _read(self, pid: int) -> dict[str, int] | None:
        """The counters of a process; ``None`` for one without memory of its own, or that has ended."""
        status = self._kernel.text(f"/proc/{pid}/status") or ""
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmSize" not in lines:
            return None
        sizes = {
            field: sum(int(lines[name].split()[0]) * 1024 for name in names if name in lines)
            for field, names in _SIZES.items()
        }
        handles = len(self._kernel.names(f"/proc/{pid}/fd"))
        return {"ProcessID": pid, "HandleCount": handles, **sizes}

    def _rundown(self, now: int) -> Events:
        return encode_events([self._event(_RUNDOWN, one, now) for _, one in sorted(self._known.items())], self._cpu)

    def _event(self, kind: int, counters: dict[str, int], time: int) -> Event:
        return kernel_event((PROCESS, kind), time, 8, counters, version=2, pid=counters["ProcessID"], cut=True)

    def close(self) -> None:
        self.stream.close()
