"""What happens to the tasks of a software recording: they are created, execute programs, and end."""

from __future__ import annotations

import os
from contextlib import suppress

from .. import ptrace
from ..procfs import has_interpreter, process_of, program_of
from ..ptrace import EVENT_CLONE
from .state import RecordingListener, RecordingState
from .tracing import detach_thread, threads_of
from .tree import Process, Thread
from .watched import Watched

__all__ = ["ENDED", "TaskEvents"]

ENDED = "the thread ended first"
"""Why a thread that was drawn has no burst."""


class TaskEvents:
    """Keeps the tree of tasks, and tells the sideband and the listener of what happens to them."""

    def __init__(self, state: RecordingState, listener: RecordingListener, watched: Watched | None) -> None:
        self._state, self._listener, self._watched = state, listener, watched
        self._early = set[int]()
        """New tasks whose first stop came before the event of the task that created them."""
        self.root_status: int | None = None
        """The status with which the root has ended."""

    # -- they are created

    def add_early(self, tid: int) -> Thread:
        """A new task whose first stop came before its parent's event."""
        thread = self._state.tree.add(tid, process_of(tid))
        thread.leaves = self._state.draws
        self._early.add(tid)
        return thread

    def add_child(self, parent: Thread, event: int) -> None:
        """``parent`` has stopped since it created a task."""
        summary, tid = self._state.summary, ptrace.event_message(parent.tid)
        pid = process_of(tid) if event == EVENT_CLONE else tid
        same = pid == parent.process.pid
        summary.processes += not same
        if tid in self._early:
            self._early.discard(tid)
            if tid not in self._state.tree.threads:  # it was let go, or has ended
                summary.threads += 1
                return
        self._add(tid, pid, parent)

    def _add(self, tid: int, pid: int, parent: Thread) -> Thread:
        """A task that ``parent`` has created."""
        state = self._state
        thread = state.tree.add(tid, pid)
        thread.origin, thread.seen, thread.blocks_internal = parent.origin, parent.seen, parent.blocks_internal
        thread.process.by_loader = parent.process.by_loader
        if thread.process.successors is None:
            thread.process.successors = parent.process.successors  # a copy of its address space
        if not thread.process.name:
            thread.process.name = parent.process.name
        thread.leaves = state.draws
        state.summary.threads += 1
        state.sideband.write_fork(state.out, thread, parent)
        return thread

    def find_unfollowed(self) -> None:
        """Trace threads that were not followed when they were created, and are still there."""
        for process in [one for one in self._state.tree.processes.values() if one.unfollowed]:
            self._find_threads(process)

    def _find_threads(self, process: Process) -> None:
        state = self._state
        parent = next((state.tree.threads[tid] for tid in process.threads), None)
        for tid in threads_of(process.pid) - process.threads:
            if parent is None or state.stops.too_many:
                return
            state.stops.begin_work()
            with state.losses.contain(process.pid), suppress(OSError):
                ptrace.seize(tid, state.settings.ptrace_options)
                state.arm(self._add(tid, process.pid, parent))
            state.stops.spend()
        process.unfollowed = any(not state.tree.threads[tid].follows for tid in process.threads)

    # -- they execute programs

    def handle_exec(self, thread: Thread, status: int) -> bool:
        """A thread has executed a program: its process's other threads have ended without an event, and it has the
        leader's id now. The result is whether it is still traced."""
        state, process = self._state, thread.process
        former = ptrace.event_message(thread.tid)
        for tid in list(process.threads):
            if tid != thread.tid and (gone := state.tree.threads.get(tid)) is not None:
                state.trigger.disarm(gone)
                state.tree.remove(tid)
        if former != thread.tid:
            state.trigger.disarm(thread)  # its signal would go to an id that no longer exists
        process.forget()
        thread.seen, thread.process.by_loader = thread.stat(), has_interpreter(process.pid)
        path = program_of(process.pid)
        process.name = os.path.basename(path)
        state.sideband.write_exec(state.out, thread)
        self._listener.on_exec(process.pid, path)
        if state.settings.is_ignored(path) and process.pid != state.settings.root:
            self._leave_ignored(thread, status)
            return False
        if not thread.leaves:
            state.arm(thread)
        if process.pid == state.settings.root:
            state.stops.begin_work()  # what was loaded for its first exec is no cost of its run
        return True

    def _leave_ignored(self, thread: Thread, status: int) -> None:
        """Trace a program no longer that is not to be recorded."""
        state = self._state
        state.trigger.disarm(thread)
        state.tree.remove(thread.tid)
        if self._watched is not None:
            self._watched.leave(thread.process.pid)
        detach_thread(thread, status, state.trigger, state.runner)
        state.losses.skipped["program not followed"] += 1

    # -- they end

    def handle_end(self, tid: int, status: int) -> None:
        """A thread has ended with ``status``."""
        state = self._state
        thread = state.tree.remove(tid)
        state.lapsed.discard(tid)
        if thread is not None and thread.drawn:
            state.trigger.disarm(thread)
            if thread.first_weight:
                state.miss(ENDED, thread.first_weight)
        elif thread is not None:
            state.writer.write_left_call(thread)
            self._listener.on_end(thread)
            state.trigger.disarm(thread)
            state.sideband.write_exit(state.out, thread)
            if self._watched is not None and thread.process.pid not in state.tree.processes:
                self._watched.forget(thread.process.pid)
        state.losses.given_up.discard(tid)
        if tid == state.settings.root and (state.settings.kills or not state.draws):
            # A process that was attached to and let go ends unseen, unless that is during its burst.
            self.root_status = status
