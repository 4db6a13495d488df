"""Attaches to the processes that a recording watches, as they begin, and says which of them cannot be recorded."""

from __future__ import annotations

import os
import time

from ...errors import LastbranchError, UnavailableError
from ...model import counted
from ..process_groups import is_program
from ..procfs import program_of
from .losses import MOST_NAMED
from .record_writer import now
from .state import RecordingListener, RecordingState
from .tracing import attach, describe_running, is_traced_here
from .tree import Process
from .watched import Watched

__all__ = ["Attacher"]

_AT_ONCE = 0.05
"""Seconds at a time for attaching to processes of a group: what is attached to already may be waiting for us."""


class Attacher:
    """Attaches to what `Watched` finds. The processes of a group have all that a recording has of a single process; of
    others there are bursts alone."""

    def __init__(self, state: RecordingState, listener: RecordingListener, watched: Watched) -> None:
        self._state, self._listener, self._watched = state, listener, watched
        self._refused: list[LastbranchError | OSError] = []
        """Why processes are not recorded, one for each."""
        self._build_ids: dict[object, bytes] = {}

    @property
    def over(self) -> bool:
        """Whether the group has ended with its last process."""
        group = self._watched.group
        return group is not None and group.ends and self._watched.empty

    def attach_new(self) -> None:
        """Attach to processes that began since the last call. Raises `UnavailableError` where no process of a group can
        be recorded."""
        state = self._state
        until = time.monotonic() + _AT_ONCE
        for pid in self._watched.new(state.let_go if state.draws else state.tree.processes):
            self._attach(pid)
            if time.monotonic() > until:
                break
        else:
            self._check()

    def _attach(self, pid: int) -> None:
        """Trace a running process from now on. If the process cannot be traced, a note says why."""
        state, watched = self._state, self._watched
        if state.draws:
            state.sideband.drain(state.out)
            if pid in state.let_go:
                return  # it began a moment ago
        before, since, path = set(state.tree.threads), now(), program_of(pid)
        if state.settings.is_ignored(path):
            state.losses.skipped["program not followed"] += 1
            return
        try:
            attach(pid, state.tree)
        except (LastbranchError, OSError) as error:
            if is_traced_here(pid):
                watched.forget(pid)  # a thread of ours has created it: the stop that says so comes next
            elif is_program(pid):
                self._refused.append(error)
                if len(self._refused) <= MOST_NAMED:
                    state.summary.notes += (f"process {pid} ({os.path.basename(path)}) is not recorded: {error}",)
        new = set(state.tree.threads) - before
        if watched.group is not None and new:
            with state.losses.contain(pid):
                self._begin(state.tree.processes[pid], since)
        state.arm_running(new)
        if state.draws:
            state.leave(new)

    def _begin(self, process: Process, since: int) -> None:
        """Record all of a process that was attached to."""
        state = self._state
        process.name = os.path.basename(program_of(process.pid))
        state.sideband.attach([state.tree.threads[tid] for tid in process.threads])
        state.foreign.look(process.pid)
        describe_running(process.pid, since, state.out, self._build_ids)
        state.chains.mapped(process)
        state.summary.processes += 1
        state.summary.threads += len(process.threads)
        self._listener.on_attach(process)

    def _check(self) -> None:
        """Raise the first reason where no process of a group can be recorded."""
        group = self._watched.group
        if group is not None and self._refused and not self._state.summary.processes:
            first = self._refused[0]
            hint = first.hint if isinstance(first, LastbranchError) else None
            raise UnavailableError(f"{group.shown}: no process can be recorded: {first}", hint=hint)

    def note_missing(self) -> None:
        """Say at the end what of a group was not recorded."""
        summary, lacks = self._state.summary, self._state.sideband.lacks
        if more := max(len(self._refused) - MOST_NAMED, 0):
            summary.notes += (f"{counted(more, 'more process', 'more processes')} could not be recorded",)
        if self._watched.left_out:
            pids = ", ".join(map(str, sorted(self._watched.left_out)))
            summary.notes += (f"lastbranch and the processes that it descends from are not recorded: {pids}",)
        if lacks and lacks not in summary.notes:
            summary.notes += (lacks,)
