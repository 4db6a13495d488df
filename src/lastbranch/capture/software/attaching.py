"""Attaching to processes that run: their threads, what is written of them, and what their handlers may do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ...errors import UnavailableError
from .. import ptrace
from ..perf_events.synthesis import process_records
from ..procfs import program_of, stat_of, status_of
from ..traceable import check_program, describe_attach
from .quiet_signals import handled_signal, quiet_signal
from .record_writer import RECORDS, RecordWriter
from .tree import Process, Tree

__all__ = ["attach", "describe_running", "threads_of", "warning_of_handlers"]

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
                if status_of(tid, "TracerPid") == str(os.getpid()):
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
