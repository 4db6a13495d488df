"""Letting go of traced threads, so that they run on as if nobody had looked."""

from __future__ import annotations

import time

from .. import ptrace
from ..ptrace import EVENT_CLONE, EVENT_FORK, EVENT_VFORK
from .bursts import Bursts
from .stops import TICK, event_of, next_stop, signal_of, stopped
from .tree import Thread, Tree
from .trigger import Trigger

__all__ = ["let_go"]

_NEW_TASK = (EVENT_FORK, EVENT_VFORK, EVENT_CLONE)
_SECONDS = 2.0
"""How long a thread is waited for."""


def let_go(tree: Tree, trigger: Trigger, bursts: Bursts, *, killed: bool) -> None:
    """Detach from the threads of ``tree``. ``killed``: they would be killed at our end, so each one is stopped first.

    Others are let go by the kernel when we end, which disturbs none in a system call; only what a burst left in one is
    taken away here.
    """
    for thread in tree.threads.values():
        trigger.disarm(thread)
    waiting = [thread for thread in tree.threads.values() if killed or thread.lost]
    for thread in waiting:
        _interrupt(thread)
    deadline = time.monotonic() + _SECONDS
    while waiting and time.monotonic() < deadline:
        thread = waiting.pop(0)
        try:
            status = next_stop(thread.tid, TICK)
            if status is None:
                waiting.append(thread)
            elif stopped(status):
                if event_of(status) in _NEW_TASK:  # its own first stop is on its way
                    waiting.append(tree.add(ptrace.event_message(thread.tid), thread.process.pid))
                _detach(thread, status, trigger, bursts)
        except ptrace.Gone:
            continue


def _interrupt(thread: Thread) -> None:
    try:
        ptrace.interrupt(thread.tid)
    except (ptrace.Gone, OSError):
        return


def _detach(thread: Thread, status: int, trigger: Trigger, bursts: Bursts) -> None:
    """Signals that it stopped at are its own, but for ours; none of ours may reach it when nobody takes it away."""
    ours = trigger.due(thread, status) or (thread.lost and signal_of(status) == bursts.signal)
    bursts.clean(thread)
    while trigger.pending(thread):
        ptrace.cont(thread.tid, 0 if event_of(status) or ours else signal_of(status))
        following = next_stop(thread.tid, _SECONDS)
        if following is None or not stopped(following):
            return
        status, ours = following, trigger.due(thread, following)
    ptrace.detach(thread.tid, 0 if event_of(status) or ours else signal_of(status))
