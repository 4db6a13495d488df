"""Process/PerfCtr events: memory and open files of a process, from /proc, at its end and at both ends of the session.

A process that has ended is in /proc no more. So its counters are those of the last look: each round at processes that
have just begun, every few seconds at all.
"""

from __future__ import annotations

from ....capture.perf_events.host import Host
from ....capture.perf_events.linux_kernel import Kernel
from ....formats.etl import Event, kernel_event
from ....formats.etl.kernel.hooks import PROCESS
from ....formats.perfdata.layout import RECORD
from .event_words import Events, encoded
from .perf_records import Ticks
from .ring_stream import Round, Stream, tracking

__all__ = ["ProcessCounters"]

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
"""Field -> lines of /proc/PID/status, in kB, that it is the sum of."""


class ProcessCounters:
    """``ticks`` turns ns into ticks of the session."""

    def __init__(self, kernel: Kernel, host: Host, ticks: Ticks) -> None:
        self._kernel, self._ticks, self._cpu = kernel, ticks, host.cpus[0]
        self.stream = Stream(tracking(host, images=False), kernel, host)
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
        return encoded(made, self._cpu)

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
        return encoded([self._event(_RUNDOWN, one, now) for _, one in sorted(self._known.items())], self._cpu)

    def _event(self, kind: int, counters: dict[str, int], time: int) -> Event:
        return kernel_event((PROCESS, kind), time, 8, counters, version=2, pid=counters["ProcessID"], cut=True)

    def close(self) -> None:
        self.stream.close()
