"""The sideband of a recording that attaches to processes one by one, while it runs.

Events that are opened late have ids that the file's beginning cannot name. So all records get one id of ours.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from ...errors import UnavailableError
from ...model import counted
from ..perf_events.late_events import relabel
from ..perf_events.syscall import FLAG
from .record_writer import KernelSideband, RecordWriter, Sideband, TracerSideband, time_attribute
from .tree import Thread

__all__ = ["GroupSideband", "open_group_sideband"]


_IDENTIFIER = (1 << 62) + 2
"""The id of all time samples; record_writer has those of bursts and calls."""


class GroupSideband(KernelSideband):
    """Perf events on the threads that are attached to, and all that they create. If the kernel opens no events on a
    process, its forks, execs and mappings come from ptrace events and /proc, as far as bursts see them."""

    def __init__(self, period: int, *, chains: bool) -> None:
        """Raises `OSError` where the kernel refuses events altogether."""
        super().__init__([os.getpid()], period, at_exec=True, chains=chains)  # they own the rings, and count nothing
        self.ids, self._labels = [_IDENTIFIER], dict.fromkeys(self.ids, _IDENTIFIER)
        self._attr = time_attribute(period, chains, FLAG["inherit"], wakeup_events=1 << 20)
        self._tracer = TracerSideband()
        self._alive = Counter[int]()
        """Threads that descend from each one that was attached to, itself among them."""
        self._refused: dict[str, int] = {}
        """Processes without events, by the reason."""

    def attach(self, threads: Sequence[Thread]) -> None:
        opened: list[int] = []
        try:
            for thread in threads:
                opened.append(thread.tid)
                for cpu in sorted(self._rings):
                    self._open(self._attr, thread.tid, cpu)
        except (OSError, UnavailableError) as error:
            for tid in opened:
                self._close(tid)
            self._tracer.listener = self.listener
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._refused[why] = self._refused.get(why, 0) + 1
            without = ", ".join(f"{counted(n, 'process', 'processes')}: {why}" for why, n in self._refused.items())
            self.lacks = f"no time samples of {without}"
        else:
            self._alive.update(opened)
        self._labels.update(dict.fromkeys(self.ids, _IDENTIFIER))
        self.ids = [_IDENTIFIER]

    def _close(self, tid: int) -> None:
        for key in [key for key in self._fds if key[0] == tid]:
            os.close(self._fds.pop(key))
        self._alive.pop(tid, None)

    def label(self, records: bytes) -> bytes:
        return relabel(records, self._labels)

    # -- what ptrace events say: counted, and of processes without perf events written

    def write_fork(self, out: RecordWriter, thread: Thread, parent: Thread) -> None:
        if thread.origin in self._alive:
            self._alive[thread.origin] += 1
        else:
            self._tracer.write_fork(out, thread, parent)

    def write_exec(self, out: RecordWriter, thread: Thread) -> None:
        if thread.origin not in self._alive:
            self._tracer.write_exec(out, thread)

    def write_exit(self, out: RecordWriter, thread: Thread) -> None:
        if thread.origin not in self._alive:
            self._tracer.write_exit(out, thread)
            return
        self._alive[thread.origin] -= 1
        if not self._alive[thread.origin]:
            self._close(thread.origin)  # others are about to be opened

    def write_mappings(self, out: RecordWriter, thread: Thread, when: int) -> None:
        if thread.origin not in self._alive:
            self._tracer.write_mappings(out, thread, when)


def open_group_sideband(period: int, *, chains: bool) -> Sideband:
    """The kernel's sideband where perf events are allowed, else the tracer's, which has no call chains."""
    try:
        return GroupSideband(period, chains=chains)
    except (OSError, UnavailableError) as error:
        sideband = TracerSideband()
        sideband.lacks = f"no time samples: {error.strerror if isinstance(error, OSError) else error}"
        return sideband
