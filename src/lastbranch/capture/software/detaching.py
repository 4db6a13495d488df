"""Detaching from threads, so that they continue as if they had never been traced."""

from __future__ import annotations

import time
from contextlib import suppress

from .. import ptrace
from ..ptrace import NEW_TASK, TICK, at_call, event_of, next_stop, signal_of, stopped
from .burst_runner import BurstRunner
from .schedule import Trigger
from .tree import Thread, Tree

__all__ = ["detach_all", "detach_thread"]

_SECONDS = 2.0
"""The longest wait for a thread."""


def detach_all(tree: Tree, trigger: Trigger, bursts: BurstRunner, *, killed: bool) -> None:
    """Detach from the threads of ``tree``. ``killed``: they would be killed at our end, so each one is stopped first.

    The kernel releases others when we end, without interrupting system calls; here only the remains of a burst are
    removed, and signals of triggers that are on their way.
    """
    for thread in tree.threads.values():
        trigger.disarm(thread)
    stopped_first = [thread for thread in tree.threads.values() if killed or thread.timed_out]
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
