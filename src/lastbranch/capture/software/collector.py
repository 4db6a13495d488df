"""A software recording in one process: the choice of engine, trigger and sideband, and the loop over all stops."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from typing import IO

from ... import native
from ...errors import UnavailableError
from ...lbr import KIND, convert
from .. import ptrace
from ..launch import Interruptions, Launched, exit_code, launch
from ..options import DEFAULT_SELECT, Options, Summary
from ..perf_events.synthesis import process_records
from ..perf_events.syscall import CPU_CLOCK, FLAG, USER_ONLY, attribute, more_files, open_event
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
    ticking,
)
from ..traceable import check_machine, check_program, describe_attach, describe_exec, describe_launch, warnings_of
from .burst_runner import BurstRunner, NoBurst, SharedProcessor
from .bursts import Burst, BurstLimits
from .control_flow import Edge
from .engines import BlockStep, DebugRegisters, Engine, PerfBreakpoints, SingleStep
from .record_writer import RECORDS, RecordWriter, Sideband, now, open_sideband
from .schedule import ClockTrigger, Duty, PollTrigger, Trigger
from .startup_test import OK, test_engines
from .tree import Thread, Tree

__all__ = ["record_software"]


# -- detaching from threads, so that they continue as if they had never been traced


_NEW_TASK = (EVENT_FORK, EVENT_VFORK, EVENT_CLONE)
_SECONDS = 2.0
"""The longest wait for a thread."""


def detach_all(tree: Tree, trigger: Trigger, bursts: BurstRunner, *, killed: bool) -> None:
    """Detach from the threads of ``tree``. ``killed``: they would be killed at our end, so each one is stopped first.

    The kernel releases others when we end, without interrupting system calls; here only the remains of a burst are
    removed.
    """
    for thread in tree.threads.values():
        trigger.disarm(thread)
    waiting = [thread for thread in tree.threads.values() if killed or thread.timed_out]
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


def _detach(thread: Thread, status: int, trigger: Trigger, bursts: BurstRunner) -> None:
    """Detach from a stopped thread. It gets its own signal, but none of ours."""
    ours = trigger.due(thread, status) or (thread.timed_out and signal_of(status) == bursts.signal)
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
    """Traces the threads of ``tree`` and all their descendants until ``root`` ends, or `stop` is called.

    ``select`` is the ring's (MSR_LBR_SELECT notation). ``kills``: threads are killed if we end (PTRACE_O_EXITKILL).
    ``on_exec`` is called with the process id and path of each executed program.
    """

    def __init__(
        self, tree: Tree, root: int, options: Options, select: int, bursts: BurstRunner, trigger: Trigger,
        sideband: Sideband, out: RecordWriter, summary: Summary, *, kills: bool,
    ) -> None:  # fmt: skip
        self.tree, self.root, self.options, self.select = tree, root, options, select
        self.bursts, self.trigger, self.sideband, self.out, self.summary = bursts, trigger, sideband, out, summary
        self.kills = kills
        self.duty = Duty(options.duty, options.burst_period)
        self.on_exec: Callable[[int, str], None] = lambda pid, path: None
        self.on_tick: Callable[[Summary], None] = lambda summary: None
        self.root_status: int | None = None
        self._ended, self._skipped = Counter[str](), Counter[str]()
        self._stopping = False
        self._next_tick = 0.0
        self._stopped_at = 0.0
        """When the present stop was reported: from then on a thread loses time."""

    def stop(self) -> None:
        """End the recording at the next tick; programs continue."""
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
        detach_all(self.tree, self.trigger, self.bursts, killed=self.kills)
        self._tick(begun)

    def _tick(self, begun: float) -> None:
        self._next_tick = time.monotonic() + TICK
        self.sideband.drain(self.out)
        self.trigger.tick(list(self.tree.threads.values()))
        self.summary.seconds = time.monotonic() - begun
        self.summary.ended, self.summary.skipped = dict(self._ended), dict(self._skipped)
        self.on_tick(self.summary)

    def _handle(self, tid: int, status: int) -> None:
        """Handle one event of a thread. If it has ended meanwhile, a later event reports that."""
        try:
            if not stopped(status):
                self._gone(tid, status)
                return
            thread = self.tree.threads.get(tid)
            if thread is None:
                thread = self._first_seen(tid)
            if thread.timed_out:
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
                self._stopped_otherwise(thread, status)
            else:
                ptrace.cont(tid, signal_of(status))
        except ptrace.Gone:
            pass

    def _stopped_otherwise(self, thread: Thread, status: int) -> None:
        """A group-stop lasts until SIGCONT; any other is the first stop of a new thread, or left from `_recover`."""
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
        """A new task whose first stop came before its parent's event."""
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
        self.sideband.forked(self.out, thread, parent)

    def _executed(self, thread: Thread) -> None:
        """The other threads of the process have ended without an event, and the caller has the leader's id now."""
        process = thread.process
        former = ptrace.event_message(thread.tid)
        for tid in list(process.threads):
            if tid != thread.tid and (gone := self.tree.threads.get(tid)) is not None:
                self.trigger.disarm(gone)
                self.tree.remove(tid)
        if former != thread.tid:
            self.trigger.disarm(thread)  # its signal would go to an id that no longer exists
        process.forget()
        path = program_of(process.pid)
        process.name = os.path.basename(path)
        self.sideband.executed(self.out, thread)
        self.on_exec(process.pid, path)
        ignored = any(fnmatch(path, p) or fnmatch(process.name, p) for p in self.options.no_follow)
        if ignored and process.pid != self.root:
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
            self.sideband.ended(self.out, thread)
        if tid == self.root:
            self.root_status = status

    # -- bursts

    def arm(self, thread: Thread) -> None:
        """Give ``thread`` its trigger, unless it has one."""
        if thread.period:
            return
        thread.first_weight = self.duty.period
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
        with self.bursts.processor.realtime():
            self.trigger.hold(thread)
            cpu = self.trigger.used(thread) - thread.spent
            weight, thread.first_weight = thread.first_weight or cpu, 0
            try:
                burst, cpu_number = self.bursts.run(thread, lambda status: self.trigger.due(thread, status))
            except NoBurst as reason:
                self._skipped[str(reason)] += 1
                burst, cpu_number = Burst(), -1
            when = now()  # before it runs again, and may map other code there
            if burst.edges and not burst.dropped:
                self.sideband.reached(self.out, thread, when)
            if not burst.dropped:
                self._rearm(thread)
                if burst.status is None:
                    ptrace.cont(thread.tid)
            ended = time.perf_counter()  # from here on others may run before us
        took, self._stopped_at = ended - self._stopped_at, ended
        self.duty.spent(took, cpu)
        self.summary.in_bursts += took
        if cpu_number >= 0:
            self._ended[burst.why] += 1
        if burst.edges and not burst.dropped:
            self._write_sample(thread, burst, when, weight, cpu_number)
        if burst.status is not None:
            self._handle(thread.tid, burst.status)
        elif thread.process.successors is not None:
            thread.process.successors.widen()  # it runs again

    def _write_sample(self, thread: Thread, burst: Burst, when: int, weight: int, cpu: int) -> None:
        stack = self._cut_to_depth(burst.edges)
        self.out.sample(when, thread.process.pid, thread.tid, cpu, burst.start, burst.end, weight, stack)
        self.summary.bursts += 1
        self.summary.branches += len(stack)

    def _cut_to_depth(self, edges: Sequence[Edge]) -> list[Edge]:
        """What a ring of the recording's depth and filter keeps of the branches of a burst, newest first."""
        depth = self.options.depth
        if self.select & CALL_STACK:
            import numpy as np

            from ...lbr import ring_contents

            columns = (np.array(c, t) for c, t in zip(zip(*edges, strict=True), ("u8", "u8", "u1"), strict=True))
            return [edges[i] for i in ring_contents(*columns, depth=depth, select=self.select).tolist()]
        counted = self.bursts.limits.counted  # for a filter this is faster
        return [edge for edge in reversed(edges) if edge[2] in counted][:depth]


# -- a recording: the choice of engine, trigger and sideband, launching or attaching, and the collector's run


_HARMLESS = signal.SIGURG
"""Programs ignore it: one that the collector leaves pending does nothing."""
_FIRST_PERIOD = 20_000_000
_SLOWER = "the compiled library is not in use: bursts take longer (`lastbranch doctor` says why)"


def record_software(
    target: Sequence[str] | int, options: Options, file: IO[bytes], command: Sequence[str], unblocked: Iterable[int],
    summary: Summary, say: Callable[[str], None], progress: Callable[[Summary], None],
) -> None:  # fmt: skip
    """Record a command or a process id into ``file`` (perf.data, pipe form), in this process, which must have no other
    children, one thread, and `SIGNALS` blocked. ``summary`` is kept up to date, ``command`` is stored in the file as
    the command that recorded. Raises `UnavailableError` or `RunError`."""
    check_machine()
    select = convert(options.select, "perf", "msr").value
    launched = not isinstance(target, int)
    with ticking():
        engine = _engine(launched, options.allow_risk, summary)
        if native.library() is None:
            summary.notes = (*summary.notes, _SLOWER)
        trigger = _trigger(launched)
        summary.trigger = trigger.name
        bursts = BurstRunner(engine, _limits(options.depth, select), SharedProcessor(both=launched))
        out = RecordWriter(file, options.select, options.burst_period or _FIRST_PERIOD, options.time_period)
        tree, child, since = Tree(), None, now()
        if isinstance(target, int):
            root = target
            _attach(root, tree)
        else:
            child = _launch(target, unblocked, tree)
            root = child.pid
        with suppress(OSError, ValueError):  # the whole system's limit may be lower
            more_files()  # each thread takes a few; what was launched keeps the limit that it has
        sideband = open_sideband(list(tree.threads), options.time_period, at_exec=launched)
        summary.sideband, bursts.sideband = sideband.name, sideband
        out.begin(sideband.ids, command)
        collector = Collector(tree, root, options, select, bursts, trigger, sideband, out, summary, kills=launched)
        signals = Interruptions(root if launched else None)

        def tick(summary: Summary) -> None:
            if signals.enough():
                collector.stop()
            progress(summary)

        def warn(pid: int, path: str) -> None:
            for sentence in warnings_of(pid, path):
                say(sentence)

        collector.on_tick, collector.on_exec = tick, warn
        try:
            if child:
                child.release()
            else:
                _describe_running(root, since, out)
                for thread in tree.threads.values():
                    collector.arm(thread)
            collector.run()
        finally:
            sideband.close()
            out.flush()
        if child:
            if collector.root_status is not None:
                summary.exit_code = exit_code(collector.root_status)
            elif signals.last:
                summary.exit_code = 128 + signals.last
            if error := child.failed():
                raise describe_exec(child.command[0], error)


def _engine(launched: bool, allow_risk: bool, summary: Summary) -> Engine:
    """The first engine that passes the start-up test, of those that may be used."""
    safe: list[Engine] = [BlockStep(PerfBreakpoints(_HARMLESS))]
    fastest = BlockStep(DebugRegisters())
    risky: list[Engine] = [fastest, SingleStep()]
    tested = risky if launched else safe + risky
    try:
        summary.self_test = test_engines(tested)
        if fastest.walks and summary.self_test[fastest.name] != OK:
            tested.insert(tested.index(fastest) + 1, plain := BlockStep(DebugRegisters(), walks=False))
            summary.self_test |= test_engines([plain])
    except OSError as error:
        raise describe_launch(error) from error
    good = [engine for engine in tested if summary.self_test[engine.name] == OK]
    if not good:
        said = "; ".join(f"{name}: {what}" for name, what in summary.self_test.items())
        raise UnavailableError(f"no engine passes the start-up test on this machine ({said})")
    if not launched and good[0] not in safe and not allow_risk:
        said = summary.self_test[safe[0].name]
        raise UnavailableError(
            f"perf breakpoints cannot be used here ({said}); with the other engines the process would be killed if the "
            "collector were killed in the middle of a burst",
            hint="--allow-risk accepts that risk; or launch the program with `lastbranch record COMMAND`",
        )
    summary.engine = good[0].name
    return good[0]


def _trigger(launched: bool) -> Trigger:
    """Perf events if they are allowed. A process that we attach to must survive us: no SIGSTOP there."""
    try:
        os.close(open_event(attribute(USER_ONLY | FLAG["disabled"], sample_period=_FIRST_PERIOD, **CPU_CLOCK), 0))
    except OSError:
        return PollTrigger()
    return ClockTrigger(signal.SIGSTOP if launched else _HARMLESS)


def _limits(depth: int, select: int) -> BurstLimits:
    """A burst is full when ``depth`` branches have passed the filter; in call-stack mode, where returns delete calls,
    twice as many."""
    twice = depth * 2 if select & CALL_STACK else depth
    if select == convert(DEFAULT_SELECT, "perf", "msr").value:
        return BurstLimits(twice, stops=64 + 16 * depth)  # all of them, which needs no ring
    import numpy as np

    from ...lbr import ring_contents

    one, far = np.ones(1, np.uint64), np.full(1, 256, np.uint64)
    counted = frozenset(
        kind for kind in KIND.values()
        if len(ring_contents(one, far, np.array([kind], np.uint8), depth=1, select=select & ~CALL_STACK))
    )  # fmt: skip
    return BurstLimits(twice, counted, stops=64 + 16 * depth)


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


def _attach(pid: int, tree: Tree) -> None:
    """Trace all threads of a running process."""
    check_program(f"/proc/{pid}/exe")
    while new := _threads(pid) - set(tree.threads):  # threads may be created meanwhile
        for tid in new:
            try:
                ptrace.seize(tid, ptrace.FOLLOW)
            except (OSError, ptrace.Gone) as error:
                if tid != pid:
                    continue
                why = error if isinstance(error, OSError) else OSError(errno.ESRCH, "No such process")
                raise describe_attach(tid, why) from error
            tree.add(tid, pid)
    if not tree.threads:
        raise UnavailableError(f"process {pid} does not exist")


def _threads(pid: int) -> set[int]:
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except OSError:
        return set()


def _describe_running(pid: int, since: int, out: RecordWriter) -> None:
    """Write the threads, names and mappings of a process that was running before."""
    from ..perf_events.linux_kernel import Kernel  # loads the readers of binaries

    for one in process_records(Kernel(), pid, RECORDS, {}, maps=True, time=since):
        out.write(one)
