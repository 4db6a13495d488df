"""The tables of a profile, from what the lines of a text say."""

from __future__ import annotations

from ...lbr import PERF_SELECT
from ...model import Change, Event, Module, Profile
from ..perfdata.state import classify
from .lines import NOTHING, Header, Map, Task
from .samples import Found

__all__ = ["Tables"]

_LAST = (1 << 64) - 1
_NO_EVENT = "samples"
_TASKS = {"FORK": Change.FORK, "EXIT": Change.EXIT}


class Tables:
    """Gathers events, modules and the timeline of ``profile``."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        profile.recorder = "perf script"
        profile.machine.os = "Linux"
        self.maps: list[tuple[Map, int, int | None]] = []
        """Mappings with their place in the file and their time, where they have one."""
        self._tasks: list[tuple[Task, int, int | None]] = []
        self.events: dict[str, int] = {}
        self._modules: dict[tuple[str, bytes], int] = {}
        self._pids = False
        """Whether samples name their process."""
        self._names: dict[tuple[int, int], str] = {}

    @property
    def weight(self) -> int:
        """Bytes that this takes, about, with what is made of it in the end."""
        return 900 * (len(self.maps) + len(self._tasks) + len(self._names)) + 100 * len(self._profile.records)

    def event_of(self, name: str | None) -> int:
        """The row of the event of that name."""
        return self.events[name or _NO_EVENT]

    def see(self, found: Found) -> None:
        """Learn events and threads from samples."""
        profile = self._profile
        headers = dict.fromkeys(found.headers.values())  # in the order of the text
        if len(found.headers) < len(found.ip):
            headers[NOTHING] = None
        for header in headers:
            name = header.event or _NO_EVENT
            if name not in self.events:
                self.events[name] = len(profile.events)
                profile.events.append(
                    Event(
                        name,
                        branch_select=PERF_SELECT["ANY"],
                        has_callchain=False,
                        has_period=header.period is not None,
                    )
                )
            if header.pid is None and header.tid is None:
                continue
            self._pids = True
            pid = header.pid if header.pid is not None else header.tid
            tid = header.tid if header.tid is not None else pid
            assert pid is not None
            assert tid is not None
            profile.seen_threads.add((pid, tid))
            if header.comm and self._names.get((pid, tid)) != header.comm:
                self._names[pid, tid] = header.comm
                profile.timeline.name(header.time or 0, pid, tid, header.comm)

    def add(self, record: Map | Task | None, text: bytes, offset: int, header: Header) -> None:
        """A record beside the samples."""
        kind = text.split(b" ", 1)[0].split(b"(", 1)[0].rstrip(b":").decode("ascii", "replace")
        records = self._profile.records
        records[kind] = records.get(kind, 0) + 1
        if isinstance(record, Map):
            self.maps.append((record, offset, header.time))
        elif isinstance(record, Task):
            self._tasks.append((record, offset, header.time))

    def finish(self, timed: bool) -> int:
        """Fill the timeline, once it is known whether samples are ``timed``; the process of samples that name none."""
        users = {m.pid for m, _, _ in self.maps if m.pid >= 0}
        alone = users.pop() if len(users) == 1 else 0
        for task, offset, time in self._tasks:
            if not self._pids:
                break  # one address space for all: what becomes of processes cannot be told
            self._task(task, (time or 0) if timed else offset)
        for record, offset, time in self.maps:
            kernel = record.pid < 0
            pid = -1 if kernel else (record.pid if self._pids else alone)
            self._map(record, pid, kernel, (time or 0) if timed else offset)
        return -1 if self._pids else alone

    def _task(self, task: Task, time: int) -> None:
        timeline = self._profile.timeline
        if task.kind == "COMM":
            if task.parent:
                timeline.add(Change.EXEC, time, task.pid, tid=task.tid)
            timeline.name(time, task.pid, task.tid, task.name)
            return
        timeline.add(_TASKS[task.kind], time, task.pid, tid=task.tid, parent=task.parent, offset=int(time == 0))

    def _map(self, record: Map, pid: int, kernel: bool, time: int) -> None:
        name, kind = classify(record.name, kernel)
        windows = "\\" in name
        row = self._modules.get((name, record.build_id))
        if row is None:
            row = self._modules[name, record.build_id] = len(self._profile.modules)
            self._profile.modules.append(Module(name, kind, record.build_id, size=record.size if windows else 0))
        # llvm-profgen is told where the code of a PE file begins; its addresses count from the image's base.
        offset = 0 if windows else record.offset
        if kernel and record.name.endswith("]_stext"):
            offset &= ~0xFFF
        end = min(record.start + record.size, _LAST)
        self._profile.timeline.add(
            Change.MAP, time, pid, tid=record.tid, module=row, start=record.start, end=end, offset=offset
        )
