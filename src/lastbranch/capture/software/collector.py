"""The loop: every stop of every traced thread, triggers, bursts, and letting go at the end."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatch

from .. import ptrace
from ..options import Options, Summary
from ..procfs import process_of, program_of
from ..ptrace import (
    EVENT_CLONE,
    EVENT_EXEC,
    EVENT_FORK,
    EVENT_STOP,
    EVENT_VFORK,
    TICK,
    event_of,
    next_stop,
    signal_of,
    stopped,
)
from .bursts import Bursts, NoBurst
from .engines import Burst
from .schedule import Duty, Trigger
from .spill import Sideband, Spill, now
from .tree import Thread, Tree

__all__ = ["CALL_STACK", "Collector"]


# -- letting go of traced threads, so that they run on as if nobody had looked


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
        with suppress(ptrace.Gone, OSError):
            ptrace.interrupt(thread.tid)
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


CALL_STACK = 1 << 9
"""MSR_LBR_SELECT.EN_CALLSTACK."""

_STOPPING = frozenset((signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))


class Collector:
    """Traces what is in ``tree`` and all that comes of it until ``root`` ends, or `stop` is called.

    ``select`` is the ring's (MSR_LBR_SELECT notation). ``on_exec`` is told of each program that is executed.
    """

    def __init__(
        self, tree: Tree, root: int, options: Options, select: int, bursts: Bursts, trigger: Trigger,
        sideband: Sideband, spill: Spill, summary: Summary,
    ) -> None:  # fmt: skip
        self.tree, self.root, self.options, self.select = tree, root, options, select
        self.bursts, self.trigger, self.sideband, self.spill, self.summary = bursts, trigger, sideband, spill, summary
        self.duty = Duty(options.duty, options.period)
        self.kills = True
        """Whether what is traced ends with us (PTRACE_O_EXITKILL)."""
        self.on_exec: Callable[[int, str], None] = lambda pid, path: None
        self.on_tick: Callable[[Summary], None] = lambda summary: None
        self.root_status: int | None = None
        self._ended, self._skipped = Counter[str](), Counter[str]()
        self._stopping = False
        self._next_tick = 0.0
        self._stopped_at = 0.0
        """When we were told of the stop that is handled: from then on a thread loses time."""

    def stop(self) -> None:
        """End the recording at the next tick; programs go on."""
        self._stopping = True

    # -- the loop

    def run(self) -> None:
        begun = time.monotonic()
        end = None if self.options.duration is None else begun + self.options.duration
        while self.tree.threads and self.root_status is None and not self._stopping:
            if time.monotonic() >= self._next_tick:
                self._tick(begun)
                if end is not None and time.monotonic() >= end:
                    break
            try:
                tid, status = ptrace.wait()
            except ptrace.Interrupted:
                self._next_tick = 0.0
                continue
            except ptrace.Gone:
                break
            self._stopped_at = time.perf_counter()
            self._handle(tid, status)
        let_go(self.tree, self.trigger, self.bursts, killed=self.kills)
        self._tick(begun)

    def _tick(self, begun: float) -> None:
        self._next_tick = time.monotonic() + TICK
        self.sideband.drain(self.spill)
        self.trigger.tick(list(self.tree.threads.values()))
        self.summary.seconds = time.monotonic() - begun
        self.summary.ended, self.summary.skipped = dict(self._ended), dict(self._skipped)
        self.on_tick(self.summary)

    def _handle(self, tid: int, status: int) -> None:
        """Whatever happens to a thread. One that ended meanwhile tells so itself later."""
        try:
            if not stopped(status):
                self._gone(tid, status)
                return
            thread = self.tree.threads.get(tid)
            if thread is None:
                thread = self._first_seen(tid)
            if thread.lost:
                self._recover(thread, status)
                return
            event = event_of(status)
            if event in _NEW_TASK:
                self._forked(thread, event)
                ptrace.cont(tid)
            elif event == EVENT_EXEC:
                self._executed(thread)
            elif self.trigger.due(thread, status):
                self._triggered(thread)
            elif event == EVENT_STOP:
                self._rest(thread, status)
            else:
                ptrace.cont(tid, signal_of(status))
        except ptrace.Gone:
            pass

    def _rest(self, thread: Thread, status: int) -> None:
        """A group-stop lasts until SIGCONT; any other is the first one of a new thread, or left over from
        `_recover`."""
        if signal_of(status) in _STOPPING:
            ptrace.listen(thread.tid)
            return
        self.arm(thread)
        ptrace.cont(thread.tid)

    def _recover(self, thread: Thread, status: int) -> None:
        """The first stop after a burst's deadline."""
        self.bursts.clean(thread)
        self._rearm(thread)
        if event_of(status) == EVENT_STOP and signal_of(status) in _STOPPING:
            ptrace.listen(thread.tid)
        elif event_of(status) or signal_of(status) == self.bursts.signal or self.trigger.due(thread, status):
            ptrace.cont(thread.tid)
        else:
            ptrace.cont(thread.tid, signal_of(status))

    # -- the tree

    def _first_seen(self, tid: int) -> Thread:
        """A new task whose own first stop came before its parent's event."""
        return self.tree.add(tid, process_of(tid))

    def _forked(self, parent: Thread, event: int) -> None:
        tid = ptrace.event_message(parent.tid)
        pid = process_of(tid) if event == EVENT_CLONE else tid
        same = pid == parent.process.pid
        thread = self.tree.add(tid, pid)
        thread.origin = parent.origin
        if not thread.process.name:
            thread.process.name = parent.process.name
        self.summary.threads += 1
        self.summary.processes += not same
        self.sideband.forked(self.spill, thread, parent)

    def _executed(self, thread: Thread) -> None:
        """Other threads of the process are gone without a word, and the leader's id is the caller's now."""
        process = thread.process
        former = ptrace.event_message(thread.tid)
        for tid in list(process.threads):
            if tid != thread.tid and (gone := self.tree.threads.get(tid)) is not None:
                self.trigger.disarm(gone)
                self.tree.remove(tid)
        if former != thread.tid:
            self.trigger.disarm(thread)  # its signal would go to an id that is no more
        process.forget()
        path = program_of(process.pid)
        process.name = os.path.basename(path)
        self.sideband.executed(self.spill, thread)
        self.on_exec(process.pid, path)
        passed_over = any(fnmatch(path, p) or fnmatch(process.name, p) for p in self.options.no_follow)
        if passed_over and process.pid != self.root:
            self.trigger.disarm(thread)
            self.tree.remove(thread.tid)
            ptrace.detach(thread.tid)
            self._skipped["program not followed"] += 1
            return
        self.arm(thread)
        ptrace.cont(thread.tid)

    def _gone(self, tid: int, status: int) -> None:
        thread = self.tree.remove(tid)
        if thread is not None:
            self.trigger.disarm(thread)
            self.sideband.ended(self.spill, thread)
        if tid == self.root:
            self.root_status = status

    # -- bursts

    def arm(self, thread: Thread) -> None:
        """Give ``thread`` its trigger, if it has none yet."""
        if thread.period:
            return
        thread.phase = self.duty.period
        try:
            self.trigger.arm(thread, self.duty.first_period())
        except ProcessLookupError:
            return
        except OSError as error:
            self._skipped[f"no trigger: {error.strerror}"] += 1

    def _rearm(self, thread: Thread) -> None:
        thread.spent = self.trigger.used(thread)
        self.trigger.rearm(thread, self.duty.next_period())

    def _triggered(self, thread: Thread) -> None:
        if not self.duty.allows():
            self.summary.throttled += 1
            self.trigger.hold(thread)
            self.trigger.rearm(thread, self.duty.next_period())
            ptrace.cont(thread.tid)
            return
        with self.bursts.together.ahead():
            self.trigger.hold(thread)
            cpu = self.trigger.used(thread) - thread.spent
            weight, thread.phase = thread.phase or cpu, 0
            try:
                burst, cpu_number = self.bursts.run(thread, lambda status: self.trigger.due(thread, status))
            except NoBurst as reason:
                self._skipped[str(reason)] += 1
                burst, cpu_number = Burst(), -1
            when = now()  # before it runs again, and perhaps maps other code there
            if burst.edges and not burst.dropped:
                self.sideband.reached(self.spill, thread, when)
            if not burst.dropped:
                self._rearm(thread)
                if burst.status is None:
                    ptrace.cont(thread.tid)
            ended = time.perf_counter()  # from here on others may be let in before us
        took, self._stopped_at = ended - self._stopped_at, ended
        self.duty.spent(took, cpu)
        self.summary.in_bursts += took
        if cpu_number >= 0:
            self._ended[burst.why] += 1
        if burst.edges and not burst.dropped:
            self._keep(thread, burst, when, weight, cpu_number)
        if burst.status is not None:
            self._handle(thread.tid, burst.status)
        elif thread.process.ways is not None:
            thread.process.ways.widen()  # it runs again

    def _keep(self, thread: Thread, burst: Burst, when: int, weight: int, cpu: int) -> None:
        depth, edges = self.options.depth, burst.edges
        if self.select & CALL_STACK:
            import numpy as np

            from ...lbr import held

            columns = (np.array(c, t) for c, t in zip(zip(*edges, strict=True), ("u8", "u8", "u1"), strict=True))
            stack = [edges[i] for i in held(*columns, depth=depth, select=self.select).tolist()]
        else:  # it is a filter then, and this the shorter way
            counted = self.bursts.limits.counted
            stack = [edge for edge in reversed(edges) if edge[2] in counted][:depth]
        self.spill.sample(when, thread.process.pid, thread.tid, cpu, burst.start, burst.end, weight, stack)
        self.summary.bursts += 1
        self.summary.branches += len(stack)
