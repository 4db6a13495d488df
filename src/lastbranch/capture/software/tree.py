"""The traced threads and processes, and what is kept for each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..procfs import PAGE, Stat, parse_stat, stat_of
from .control_flow import memory_of
from .instructions import Memory
from .successors import Ways

__all__ = ["Process", "Thread", "Tree"]


@dataclass(eq=False)
class Process:
    """One address space with its threads."""

    pid: int
    name: str = ""
    threads: set[int] = field(default_factory=set)
    ways: Ways | None = None
    """Its code, as far as bursts went through it."""
    _mem: int = -1

    @property
    def memory(self) -> Memory:
        """Its memory; of what it executes now, if `forget` was called at each exec."""
        return memory_of(self.descriptor)

    @property
    def descriptor(self) -> int:
        """The file that `memory` reads."""
        if self._mem < 0:
            self._mem = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        return self._mem

    def forget(self) -> None:
        """The memory is another one, or nobody's, from now on."""
        if self._mem >= 0:
            os.close(self._mem)
        self._mem, self.ways = -1, None


class Tree:
    """Threads by id, processes by id."""

    def __init__(self) -> None:
        self.threads: dict[int, Thread] = {}
        self.processes: dict[int, Process] = {}

    def add(self, tid: int, pid: int) -> Thread:
        """The thread ``tid`` of ``pid``, made if need be."""
        if tid in self.threads:
            return self.threads[tid]
        process = self.processes.get(pid)
        if process is None:
            process = self.processes[pid] = Process(pid)
        process.threads.add(tid)
        thread = self.threads[tid] = Thread(tid, process, tid)
        return thread

    def remove(self, tid: int) -> Thread | None:
        """Forget a thread, and its process with the last one."""
        thread = self.threads.pop(tid, None)
        if thread is None:
            return None
        thread.close()
        process = thread.process
        process.threads.discard(tid)
        if not process.threads:
            process.forget()
            self.processes.pop(process.pid, None)
        return thread


@dataclass(eq=False, slots=True)
class Thread:
    """One traced thread."""

    tid: int
    process: Process
    origin: int = -1
    """The thread that was there at the start and that this one comes from, or it itself."""
    clock: int = -1
    """Descriptor of its trigger event, -1 none."""
    former_clock: int = -1
    """What that was before it was closed: a signal of it may still be on its way."""
    period: int = 0
    """ns of CPU time after which its next burst is due; 0 not armed."""
    asked: bool = False
    """Whether a stop was asked for to run a burst."""
    spent: int = 0
    """Its CPU time in ns at the end of its last burst."""
    phase: int = 0
    """ns of CPU time that its first burst stands for; 0 after it."""
    lost: bool = False
    """A burst in it met its deadline; what that left behind is taken away when it stops next."""
    mask: int | None = None
    """Its blocked signals, where a burst changed them."""
    _stat: int = -1

    def stat(self) -> Stat | None:
        """`stat_of` it, from a file that stays open: each burst asks."""
        try:
            if self._stat < 0:
                self._stat = os.open(f"/proc/{self.process.pid}/task/{self.tid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            return parse_stat(os.pread(self._stat, PAGE, 0))
        except OSError:
            return stat_of(self.tid)

    def close(self) -> None:
        if self._stat >= 0:
            os.close(self._stat)
            self._stat = -1
