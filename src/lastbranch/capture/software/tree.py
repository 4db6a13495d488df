"""The traced threads and processes, with the state of each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..procfs import Stat, parse_image, parse_stat, program_number, read_once, stat_of
from .bursts import Burst
from .control_flow import memory_of
from .instructions import Memory
from .kept_file import KeptFile, MemoryFiles
from .successors import Successors
from .unwinder import LEAST_COPIED, AddressSpace

__all__ = ["Call", "Process", "Thread", "Tree", "ran_and_queued"]


def ran_and_queued(schedstat: KeptFile) -> tuple[int, int]:
    """ns of a thread's CPU time, and ns that it has waited for a processor so far; 0 where the kernel does not count
    them (Documentation/scheduler/sched-stats.rst)."""
    try:
        ran, queued, *_ = schedstat.read().split()
    except (OSError, ValueError):
        return 0, 0
    return int(ran), int(queued)


@dataclass(eq=False)
class Process:
    """One address space with its threads."""

    pid: int
    name: str = ""
    threads: set[int] = field(default_factory=set)
    by_loader: bool = False
    """Its program was started by a dynamic loader, so it calls the kernel through a C library."""
    unfollowed: bool = False
    """Whether it may have threads that are not traced: there were too many new ones."""
    short_bursts: int = 0
    """How many bursts that can be foreseen are to be no longer than followed ones."""
    drawn: bool = False
    """Whether its threads are traced for single bursts only, which are drawn. It is kept between these."""
    image: tuple[int, ...] = ()
    """`Thread.image` at the last burst of a drawn process."""
    described: tuple[int, ...] = ()
    """The `image` that its name belongs to."""
    splits_stack: bool | None = None
    """Whether its program was built with -fsplit-stack; ``None``: nothing looks like that so far."""
    successors: Successors | None = None
    """Its code, as far as bursts have run through it."""
    _space: AddressSpace | None = None
    _space_number: int | None = None
    _mem: int = -1
    _files: MemoryFiles | None = None

    @property
    def alone(self) -> bool:
        """Whether its only thread is traced: no other one changes its memory meanwhile."""
        return len(self.threads) == 1 and not self.unfollowed and not self.drawn

    @property
    def memory(self) -> Memory:
        """Its memory; `forget` must be called at each exec."""
        return memory_of(self.descriptor)

    @property
    def descriptor(self) -> int:
        """The file descriptor of `memory`."""
        if self._mem < 0:
            self._mem = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        return self._mem

    @property
    def files(self) -> MemoryFiles:
        """`memory`, and what may be done there."""
        if self._files is None:
            self._files = MemoryFiles.of(self.pid, self.descriptor)
        return self._files

    @property
    def space(self) -> AddressSpace:
        """What it has mapped, as far as call stacks have led through it."""
        if self._space is None:
            self._space = AddressSpace(self.pid, self.memory, self.descriptor)
        return self._space

    @property
    def space_number(self) -> int:
        """A number that processes of one program share: they may have the same code at the same addresses."""
        if self._space_number is None:
            self._space_number = program_number(self.pid)
        return self._space_number

    def mapped(self) -> None:
        """It mapped code."""
        if self._space is not None:
            self._space.forget()

    def forget(self) -> None:
        """The address space was replaced, or has ended."""
        if self._files is not None:
            self._files.close()
            self._files = None
        if self._mem >= 0:
            os.close(self._mem)
        self._mem, self.successors, self._space, self.splits_stack = -1, None, None, None
        self._space_number = None


class Tree:
    """Threads by id, processes by id."""

    def __init__(self) -> None:
        self.threads: dict[int, Thread] = {}
        self.processes: dict[int, Process] = {}

    def add(self, tid: int, pid: int) -> Thread:
        """The thread ``tid`` of ``pid``, added if it is new."""
        if tid in self.threads:
            return self.threads[tid]
        process = self.processes.get(pid)
        if process is None:
            process = self.processes[pid] = Process(pid)
        process.threads.add(tid)
        thread = self.threads[tid] = Thread(tid, process, tid)
        return thread

    def remove(self, tid: int) -> Thread | None:
        """Remove a thread, and with its last thread the process, unless others of it may be drawn."""
        thread = self.threads.pop(tid, None)
        if thread is None:
            return None
        thread.close()
        process = thread.process
        process.threads.discard(tid)
        if not process.threads and not process.drawn:
            self.forget(process)
        return thread

    def forget(self, process: Process) -> None:
        """A process without threads is not to be kept."""
        process.forget()
        self.processes.pop(process.pid, None)

    def keep(self, most: int) -> None:
        """Of the processes without threads, keep the newest, so that about ``most`` are left."""
        idle = [one for one in self.processes.values() if not one.threads]
        for process in idle[: len(self.processes) - most]:
            self.forget(process)


@dataclass(slots=True)
class Call:
    """A system call at which a burst ended."""

    burst: Burst
    cpu: int
    entered: bool = False


@dataclass(eq=False, slots=True)
class Thread:
    """One traced thread."""

    tid: int
    process: Process
    origin: int = -1
    """The thread at the start of the recording from which this one descends, or the thread itself."""
    clock: int = -1
    """Descriptor of its trigger event, -1 for none."""
    former_clock: int = -1
    """That of the closed event before, a signal of which may be pending."""
    period: int = 0
    """ns of CPU time after which its next burst is due; 0: not armed."""
    seen: Stat | None = None
    """It, or the thread that made it, as it was at the last stop that mattered: its signals."""
    blocks_internal: bool = False
    """Whether it blocked `INTERNAL` when that was last looked at."""
    sends: int = 0
    """The signal that its trigger sends, 0 for none."""
    sent: int = 0
    """All that its triggers have sent, bit n - 1 for signal n."""
    stops_by: int = 0
    """The signal of the stops of its last burst."""
    interrupted: bool = False
    """Whether it was interrupted to run a burst."""
    spent: int = 0
    """Its CPU time in ns at the end of its last burst."""
    first_weight: int = 0
    """The weight of its first burst, in ns of CPU time; 0 after it."""
    carried: int = 0
    """The weight of bursts that have no branches: the next burst has it, too."""
    follows: bool = True
    """Whether threads that it creates are traced."""
    spared: bool = False
    """It would not be killed if we ended now: it waits for a child, or was not stopped since it was drawn."""
    drawn: bool = False
    """It is traced for one burst, from `since` on (`time.monotonic`)."""
    since: float = 0.0
    drawn_at: int = 0
    """ns of the program's CPU time when it was drawn."""
    leaves: bool = False
    """It is let go at its next stop."""
    timed_out: bool = False
    """A burst missed its deadline; its remains are removed at the next stop."""
    call: Call | None = None
    """The system call before which its last burst ended, until it has been recorded, or the thread has left it."""
    stack_copied: int = LEAST_COPIED
    """How many bytes of its stack are copied for a burst; 0: it is deeper than any copy (`unwinder.StackCopy`)."""
    mask: int | None = None
    """Its blocked signals before a burst changed them."""
    may_as_much: bool = False
    """Whether it had all rights of the recorder when they were last looked at."""
    rights_until: float = 0.0
    """`time.monotonic` at which they are looked at again."""
    _stat: KeptFile = field(init=False)
    _schedstat: KeptFile = field(init=False)

    def __post_init__(self) -> None:
        files = f"/proc/{self.process.pid}/task/{self.tid}"
        self._stat, self._schedstat = KeptFile(f"{files}/stat"), KeptFile(f"{files}/schedstat")

    def stat(self) -> Stat | None:
        """`stat_of`."""
        try:
            return parse_stat(self._stat.read())
        except OSError:
            return stat_of(self.tid)

    def image(self) -> tuple[int, ...]:
        """`parse_image` of its process; empty if that has ended."""
        leader = self.process.pid
        try:
            return parse_image(self._stat.read() if self.tid == leader else read_once(f"/proc/{leader}/stat"))
        except OSError:
            return ()

    def ran(self) -> int:
        """Its CPU time in ns. Raises `OSError`."""
        return int(self._schedstat.read().split()[0])

    def ran_and_queued(self) -> tuple[int, int]:
        """`ran_and_queued`."""
        return ran_and_queued(self._schedstat)

    def close(self) -> None:
        self._stat.close()
        self._schedstat.close()
