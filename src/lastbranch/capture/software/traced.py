"""What a recording traces: a program that it launches, a process that it attaches to, or those of a group."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ..launch import Launched, exit_code, launch
from ..options import Summary, Targets
from ..perf_events.cpu_times import CpuTimes
from ..perf_events.syscall import more_files
from ..traceable import check_program, describe_exec, describe_launch
from .attaching import attach, describe_running, warning_of_handlers
from .collector import Collector
from .group_sideband import open_group_sideband
from .record_writer import RecordWriter, Sideband, now, open_sideband
from .tree import Tree
from .watched import Watched

__all__ = ["Traced"]


class Traced:
    """What a recording traces, from when it is attached or launched: it waits until `run`.

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

    def run(self, collector: Collector, out: RecordWriter, say: Callable[[str], None]) -> None:
        """Let it run under ``collector`` until that ends."""
        if self.child:
            self.child.release()
        elif self.watched is None:
            describe_running(self.root, self._since, out, {})
            collector.arm_running(self.tree.threads)
            warning_of_handlers(say)(self.tree.processes[self.root])
        collector.run()

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
