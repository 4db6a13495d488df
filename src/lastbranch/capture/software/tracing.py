"""What a recording traces, from the beginning to the end: a program that it launches, a process that it attaches to, or
those of a group; and how it detaches from each thread, so that this continues as if it had never been traced."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ...errors import UnavailableError
from .. import ptrace
from ..launch import Launched, exit_code, launch
from ..options import Summary, Targets
from ..perf_events.cpu_times import CpuTimes
from ..perf_events.synthesis import process_records
from ..perf_events.syscall import more_files
from ..procfs import program_of, stat_of, status_of
from ..ptrace import EVENT_STOP, NEW_TASK, TICK, at_call, event_of, next_stop, signal_of, stopped
from ..traceable import check_program, describe_attach, describe_exec, describe_launch
from .burst_runner import BurstRunner
from .group_sideband import open_group_sideband
from .quiet_signals import handled_signal, quiet_signal
from .record_writer import RECORDS, RecordWriter, Sideband, now, open_sideband
from .schedule import Trigger
from .tree import Process, Thread, Tree
from .watched import Watched

__all__ = [
    "STOPPING",
    "Traced",
    "attach",
    "describe_running",
    "detach_all",
    "detach_thread",
    "is_traced_here",
    "resume_with_signal",
    "threads_of",
    "warning_of_handlers",
]


class Traced:
    """What a recording traces, from when it is attached or launched: it waits until `begin`.

    A command is ``child``, a process that runs already has none, and `Targets` are ``watched`` for as they begin. The
    collector's ``root`` is 0 for these.
    """

    def __init__(self, target: Sequence[str] | int | Targets, unblocked: Iterable[int], times: CpuTimes) -> None:
        """``times`` are to have the CPU times of all threads."""
        self.tree, self._since = Tree(), now()
        self.child: Launched | None = None
        self.watched: Watched | None = None
        self.root = 0
        if isinstance(target, Targets):
            self.watched = Watched(target)
        elif isinstance(target, int):
            self.root = target
            attach(target, self.tree)
            times.attach(target, set(self.tree.threads))
        else:
            self.child = _launch(target, unblocked, self.tree)
            self.root = self.child.pid
            times.launched(self.root)

    def sideband(self, time_period: int, graph: str, summary: Summary) -> Sideband:
        """The perf events of its threads; ``summary`` says which there are."""
        with suppress(OSError, ValueError):  # the whole system's limit may be lower
            more_files()  # each thread takes a few; what was launched keeps the limit that it has
        opened = Sideband()
        if self.watched is None:
            at_exec = self.child is not None
            opened = open_sideband(list(self.tree.threads), time_period, at_exec=at_exec, chains=graph == "fp")
        elif self.watched.group is not None:
            opened = open_group_sideband(time_period, chains=graph == "fp")
        summary.sideband = opened.name
        if opened.lacks:
            summary.notes += (opened.lacks,)
        return opened

    def begin(self, arm: Callable[[Iterable[int]], None], out: RecordWriter, say: Callable[[str], None]) -> None:
        """Let it run; ``arm`` gives threads that run already their triggers."""
        if self.child:
            self.child.release()
        elif self.watched is None:
            describe_running(self.root, self._since, out, {})
            arm(self.tree.threads)
            warning_of_handlers(say)(self.tree.processes[self.root])

    def check_end(self, status: int | None, interrupted: int, summary: Summary) -> None:
        """Put the exit code of a command that ended with ``status``, or by the signal ``interrupted``, into
        ``summary``. Raises `RunError` where it could not be executed."""
        if self.child is None:
            return
        if status is not None:
            summary.exit_code = exit_code(status)
        elif interrupted:
            summary.exit_code = 128 + interrupted
        if error := self.child.failed():
            raise describe_exec(self.child.command[0], error)


def _launch(command: Sequence[str], unblocked: Iterable[int], tree: Tree) -> Launched:
    """A child that will execute ``command``, traced."""
    if found := shutil.which(command[0]):
        check_program(found)
    try:
        child = launch(command, unblocked)
    except OSError as error:
        raise describe_launch(error) from error
    tree.add(child.pid, child.pid)
    return child


# -- attaching to processes that run: their threads, what is written of them, and what their handlers may do


_HANDLED = "handles SIGURG and SIGWINCH: its handler of SIGWINCH may run if the recorder is killed"


def attach(pid: int, tree: Tree) -> None:
    """Trace all threads of a running process."""
    check_program(f"/proc/{pid}/exe")
    refused = set[int]()
    while new := threads_of(pid) - set(tree.threads) - refused:  # threads may be created meanwhile
        for tid in new:
            try:
                ptrace.seize(tid, ptrace.FOLLOW)
            except (OSError, ptrace.Gone) as error:
                if is_traced_here(tid):
                    tree.add(tid, pid)  # a thread of ours has just created it: its first stop comes next
                    continue
                if tid != pid:
                    refused.add(tid)
                    continue
                why = error if isinstance(error, OSError) else OSError(errno.ESRCH, "No such process")
                raise describe_attach(tid, why) from error
            tree.add(tid, pid)
    if pid not in tree.processes:
        raise UnavailableError(f"process {pid} does not exist")


def is_traced_here(tid: int) -> bool:
    """Whether we trace this thread."""
    return status_of(tid, "TracerPid") == str(os.getpid())


def threads_of(pid: int) -> set[int]:
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except OSError:
        return set()


def describe_running(pid: int, since: int, out: RecordWriter, build_ids: dict[object, bytes]) -> None:
    """Write the threads, names and mappings of a process that was running before. ``build_ids`` caches what was read
    of binaries."""
    from ..perf_events.linux_kernel import Kernel  # loads the readers of binaries

    for one in process_records(Kernel(), pid, RECORDS, build_ids, maps=True, time=since):
        out.write(one)


def warning_of_handlers(say: Callable[[str], None]) -> Callable[[Process], None]:
    """A function that warns of attached processes whose handlers may run, once for each program."""
    warned: set[str] = set()

    def warn(process: Process) -> None:
        name = process.name or os.path.basename(program_of(process.pid))
        signals = stat_of(process.pid)
        if name not in warned and not quiet_signal(signals) and handled_signal(signals):
            warned.add(name)
            say(f"process {process.pid} ({name}) {_HANDLED}")

    return warn


# -- threads run on


STOPPING = frozenset((signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
"""The signals of group-stops."""


def resume_with_signal(thread: Thread, status: int) -> None:
    """Let it run on, with its signal if that caused the stop; a group-stop lasts until SIGCONT."""
    if event_of(status) == EVENT_STOP and signal_of(status) in STOPPING:
        ptrace.listen(thread.tid)
    else:
        ptrace.cont(thread.tid, 0 if event_of(status) else signal_of(status))


# -- detaching


_SECONDS = 2.0
"""The longest wait for a thread."""


def detach_all(tree: Tree, trigger: Trigger, bursts: BurstRunner, *, killed: bool) -> None:
    """Detach from the threads of ``tree``. ``killed``: they would be killed at our end, unless they are spared, so each
    one is stopped first.

    The kernel releases others when we end, without interrupting system calls; here only the remains of a burst are
    removed, and signals of triggers that are on their way.
    """
    for thread in tree.threads.values():
        trigger.disarm(thread)
    stopped_first = [thread for thread in tree.threads.values() if (killed and not thread.spared) or thread.timed_out]
    for thread in stopped_first:
        with suppress(ptrace.Gone, OSError):
            ptrace.interrupt(thread.tid)
    waiting = stopped_first + [thread for thread in tree.threads.values() if not killed and trigger.stops(thread)]
    deadline = time.monotonic() + _SECONDS
    while waiting and time.monotonic() < deadline:
        thread = waiting.pop(0)
        try:
            status = next_stop(thread.tid, TICK)
            if status is None:
                waiting.append(thread)
            elif stopped(status):
                if event_of(status) in NEW_TASK:  # its own first stop is on its way
                    waiting.append(tree.add(ptrace.event_message(thread.tid), thread.process.pid))
                detach_thread(thread, status, trigger, bursts)
        except (ptrace.Gone, OSError):
            continue


def detach_thread(thread: Thread, status: int, trigger: Trigger, bursts: BurstRunner) -> int | None:
    """Detach from a stopped thread. It gets its own signal, but none of ours. The result is its last status, that of an
    end where it has ended meanwhile; ``None``: it runs on, traced."""
    ours = _is_ours(thread, status, trigger) or (thread.timed_out and signal_of(status) == thread.stops_by)
    bursts.clean(thread)
    mask, blocked = ptrace.sigmask(thread.tid), False
    while waiting := trigger.pending(thread):
        nothing_else = bool(event_of(status)) or ours
        if waiting & mask:
            if not nothing_else:
                break  # it gets its own signal; ours stays blocked
            ptrace.set_sigmask(thread.tid, mask & ~waiting)
            blocked = True
        ptrace.cont(thread.tid, 0 if nothing_else else signal_of(status))
        following = next_stop(thread.tid, _SECONDS)
        if following is None or not stopped(following):
            return following
        status, ours = following, _is_ours(thread, following, trigger)
    if blocked:
        ptrace.set_sigmask(thread.tid, mask)
    ptrace.detach(thread.tid, 0 if event_of(status) or ours else signal_of(status))
    return status


def _is_ours(thread: Thread, status: int, trigger: Trigger) -> bool:
    """Whether we caused this stop, so that the thread has no signal to get."""
    return at_call(status) or trigger.due(thread, status)
