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
from dataclasses import replace
from fnmatch import fnmatch
from typing import IO

from ...errors import LastbranchError, UnavailableError
from ...lbr import KIND, convert
from ...lbr.filters import CALL_STACK
from ...model import counted
from .. import ptrace
from ..architectures import HERE
from ..foreign_binaries import ForeignBinaries
from ..launch import Interruptions, Launched, exit_code, launch
from ..options import DEFAULT_SELECT, Calls, Options, Summary, Targets
from ..perf_events.synthesis import process_records
from ..perf_events.syscall import CPU_CLOCK, FLAG, USER_ONLY, attribute, more_files, open_event
from ..process_groups import is_program
from ..procfs import has_interpreter, process_of, program_of, queued, stat_of, status_of
from ..ptrace import (
    EVENT_CLONE,
    EVENT_EXEC,
    EVENT_FORK,
    EVENT_STOP,
    EVENT_VFORK,
    TICK,
    at_call,
    event_of,
    next_stop,
    signal_of,
    stopped,
    ticking,
)
from ..switch_output import Switcher
from ..traceable import check_machine, check_program, describe_attach, describe_exec, describe_launch, warnings_of
from .burst_runner import BurstRunner, NoBurst, SharedProcessor, ThreadsProcessor
from .bursts import Burst, BurstLimits
from .call_chains import CallChains
from .control_flow import CALLS, Edge
from .engines import (
    BlockStep,
    Breakpoints,
    DebugRegisters,
    Engine,
    HardwareBreakpoints,
    PerfBlocks,
    PerfBreakpoints,
    SingleStep,
    SteppedBlocks,
)
from .group_sideband import open_group_sideband
from .instructions import LONGEST
from .quiet_signals import handled_signal, quiet_signal
from .record_writer import RECORDS, RecordWriter, Sideband, now, open_sideband
from .schedule import Budget, BurstLengths, ClockTrigger, Duty, PollTrigger, Trigger
from .startup_test import OK, report_time, test_engines
from .successors import Successors
from .tree import Call, Process, Thread, Tree
from .unwinder import Unwinder
from .watched import Watched

__all__ = ["record_software"]

_SECOND = 1_000_000_000
_MOST_LOSSES = 1 << 16


# -- detaching from threads, so that they continue as if they had never been traced


_NEW_TASK = (EVENT_FORK, EVENT_VFORK, EVENT_CLONE)
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
                if event_of(status) in _NEW_TASK:  # its own first stop is on its way
                    waiting.append(tree.add(ptrace.event_message(thread.tid), thread.process.pid))
                _detach(thread, status, trigger, bursts)
        except ptrace.Gone:
            continue


def _detach(thread: Thread, status: int, trigger: Trigger, bursts: BurstRunner) -> None:
    """Detach from a stopped thread. It gets its own signal, but none of ours."""
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
            return
        status, ours = following, _is_ours(thread, following, trigger)
    if blocked:
        ptrace.set_sigmask(thread.tid, mask)
    ptrace.detach(thread.tid, 0 if event_of(status) or ours else signal_of(status))


def _is_ours(thread: Thread, status: int, trigger: Trigger) -> bool:
    """Whether we caused this stop, so that the thread has no signal to get."""
    return at_call(status) or trigger.due(thread, status)


_MOST_FOLLOWING = 0.02
"""Seconds that new threads may cost at once: a hundred of them."""
_ALWAYS_FOLLOWED = 100
"""The first so many new threads, on busy machines, too, where each costs more."""
_TOO_FAST = "threads began faster than the duty limit allows to follow: of those that soon ended not all had bursts"
_ATTACHING = 0.05
"""Seconds at a time for attaching to processes of a group: what is attached to already may be waiting for us."""
_MOST_NAMED = 20
"""Processes that are named one by one."""
_STOPPING = frozenset((signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))


class Collector:
    """Traces the threads of ``tree`` and all their descendants until ``root`` ends, or `stop` is called. With
    ``watched`` it traces those processes as they begin, until `stop` is called; ``root`` is 0 then.

    ``select`` is the ring's (MSR_LBR_SELECT notation). ``kills``: threads are killed if we end (PTRACE_O_EXITKILL).
    ``on_exec`` is called with the process id and path of each executed program.
    """

    def __init__(
        self, tree: Tree, root: int, options: Options, select: int, bursts: BurstRunner, lengths: BurstLengths,
        trigger: Trigger, sideband: Sideband, out: RecordWriter, summary: Summary, *, kills: bool, report_time: float,
        watched: Watched | None = None,
    ) -> None:  # fmt: skip
        self.tree, self.root, self.options, self.select = tree, root, options, select
        self.bursts, self.trigger, self.sideband, self.out, self.summary = bursts, trigger, sideband, out, summary
        self.kills, self._report_time, self._watched = kills, report_time, watched
        self.duty = Duty(options.duty, options.burst_period)
        self._following = Budget(options.duty / 2, _MOST_FOLLOWING, _MOST_FOLLOWING)
        """What new threads may cost: each stops at least twice."""
        self._traced = ptrace.FOLLOW | (ptrace.EXITKILL if kills else 0) | (ptrace.TRACE_CALLS if options.calls else 0)
        self.lengths, self.is_ring = lengths, _is_ring(options, select)
        self.on_exec: Callable[[int, str], None] = lambda pid, path: None
        self.on_attached: Callable[[Process], None] = lambda process: None
        self.on_tick: Callable[[Summary], None] = lambda summary: None
        self.root_status: int | None = None
        self._ended, self._skipped = Counter[str](), Counter[str]()
        self._noted = 0
        """Triggers without a burst whose time is in the summary."""
        self.chains = CallChains(Unwinder() if summary.call_graph == "dwarf" else None)
        self.foreign = ForeignBinaries()
        sideband.on_mapping = self._mapped
        self._refused: list[LastbranchError | OSError] = []
        """Why processes are not recorded, one for each."""
        self._build_ids: dict[object, bytes] = {}
        self._unarmed: dict[str, list[str]] = {}
        """Threads that get no bursts, by the reason."""
        self._stopping = False
        self._next_tick = 0.0
        self._stopped_at, self._worked = 0.0, 0.0
        """When the present stop was reported, and our CPU time then: from then on a thread loses time."""

    def stop(self) -> None:
        """End the recording at the next tick; programs continue."""
        self._stopping = True

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def _over(self) -> bool:
        """Whether nothing is left to record."""
        watched = self._watched
        if watched is None:
            return not self.tree.threads or self.root_status is not None
        return watched.group is not None and watched.group.ends and watched.empty

    # -- the loop

    def run(self) -> None:
        begun = time.monotonic()
        end = None if self.options.duration is None else begun + self.options.duration
        for process in self.tree.processes.values():
            self.chains.mapped(process)
            self.foreign.look(process.pid)
        while not self._over and not self._stopping:
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
                if self._watched is None:
                    break
                time.sleep(TICK)  # there is no thread to wait for until `_tick` finds a watched process
                continue
            self._stopped_at, self._worked = time.perf_counter(), time.process_time()
            self._handle(tid, status)
        detach_all(self.tree, self.trigger, self.bursts, killed=self.kills)
        self._tick(begun)
        for why, threads in self._unarmed.items():
            named = ", ".join(threads)
            self.summary.notes += (f"{counted(len(threads), 'thread')} not recorded ({why}): {named}",)
        self.summary.notes += self.chains.notes() + self.foreign.keep()
        self._note_processes()

    def _tick(self, begun: float) -> None:
        self._next_tick = time.monotonic() + TICK
        self.sideband.drain(self.out)
        self.chains.prepare()
        self.trigger.tick(list(self.tree.threads.values()))
        if self._watched is not None:
            until = time.monotonic() + _ATTACHING
            for pid in self._watched.new(self.tree.processes):
                self._attach(pid, self._watched)
                if time.monotonic() > until:
                    break
            else:
                self._check_attached(self._watched)
        for process in [one for one in self.tree.processes.values() if one.unfollowed]:
            self._find_threads(process)
        self.summary.seconds = time.monotonic() - begun
        self.summary.ended, self.summary.skipped = dict(self._ended), dict(self._skipped)
        self._note_losses()
        self.summary.stacks = dict(self.chains.counts)
        self.out.flush()  # others may read the file while it grows
        self.on_tick(self.summary)

    def _note_losses(self) -> None:
        """Note when triggers had no burst."""
        summary, when = self.summary, now()
        more = summary.throttled + sum(self._skipped.values()) - self._noted
        if not more:
            return
        self._noted += more
        losses = summary.losses
        if losses and (when // _SECOND == losses[-1][0] // _SECOND or len(losses) == _MOST_LOSSES):
            losses[-1] = when, losses[-1][1] + more
        else:
            losses.append((when, more))

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
            if at_call(status):
                self._at_call(thread)
                return
            if thread.call is not None:
                self._leave_call(thread)
            if not thread.follows and self._following.left() > _MOST_FOLLOWING / 2:
                thread.follows = True
                ptrace.set_options(tid, self._traced)
            event = event_of(status)
            if event in _NEW_TASK:
                self._forked(thread, event)
                if event == EVENT_CLONE:
                    self._limit_following(thread)
                self._lost()
                ptrace.cont(tid)
            elif event == EVENT_EXEC:
                self._executed(thread, status)
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
        self._lost()
        ptrace.cont(thread.tid)

    def _recover(self, thread: Thread, status: int) -> None:
        """The first stop after a burst's deadline."""
        self.bursts.clean(thread)
        self._rearm(thread)
        if event_of(status) == EVENT_STOP and signal_of(status) in _STOPPING:
            ptrace.listen(thread.tid)
        elif event_of(status) or signal_of(status) == thread.stops_by or self.trigger.due(thread, status):
            ptrace.cont(thread.tid)
        else:
            ptrace.cont(thread.tid, signal_of(status))

    # -- the tree

    def _attach(self, pid: int, watched: Watched) -> None:
        """Trace a running process from now on. Of one that cannot be traced a note says why."""
        before, since, path = set(self.tree.threads), now(), program_of(pid)
        if self._is_ignored(path):
            self._skipped["program not followed"] += 1
            return
        try:
            attach(pid, self.tree)
        except (LastbranchError, OSError) as error:
            if status_of(pid, "TracerPid") == str(os.getpid()):
                watched.forget(pid)  # one of ours has created it, which we are about to be told
            elif is_program(pid):
                self._refused.append(error)
                if len(self._refused) <= _MOST_NAMED:
                    self.summary.notes += (f"process {pid} ({os.path.basename(path)}) is not recorded: {error}",)
        new = set(self.tree.threads) - before
        if watched.group is not None and new:
            self._begin(self.tree.processes[pid], since)
        self.arm_running(new)

    def _begin(self, process: Process, since: int) -> None:
        """Record all of a process that was attached to."""
        process.name = os.path.basename(program_of(process.pid))
        self.sideband.attach([self.tree.threads[tid] for tid in process.threads])
        self.foreign.look(process.pid)
        describe_running(process.pid, since, self.out, self._build_ids)
        self.chains.mapped(process)
        self.summary.processes += 1
        self.summary.threads += len(process.threads)
        self.on_attached(process)

    def _check_attached(self, watched: Watched) -> None:
        """Raise the first reason where no process of a group can be recorded."""
        if watched.group is not None and self._refused and not self.summary.processes:
            first = self._refused[0]
            hint = first.hint if isinstance(first, LastbranchError) else None
            raise UnavailableError(f"{watched.group.shown}: no process can be recorded: {first}", hint=hint)

    def _note_processes(self) -> None:
        """Say at the end what of a group was not recorded."""
        if self._watched is None:
            return
        if more := max(len(self._refused) - _MOST_NAMED, 0):
            self.summary.notes += (f"{counted(more, 'more process', 'more processes')} could not be recorded",)
        if self._watched.left_out:
            pids = ", ".join(map(str, sorted(self._watched.left_out)))
            self.summary.notes += (f"lastbranch and the processes that it descends from are not recorded: {pids}",)
        if self.sideband.lacks and self.sideband.lacks not in self.summary.notes:
            self.summary.notes += (self.sideband.lacks,)

    def _is_ignored(self, path: str) -> bool:
        """Whether programs at ``path`` are not to be recorded."""
        return any(fnmatch(path, p) or fnmatch(os.path.basename(path), p) for p in self.options.no_follow)

    def arm_running(self, tids: Iterable[int]) -> None:
        """Give threads that were running before their triggers."""
        for tid in tids:
            thread = self.tree.threads[tid]
            thread.seen = thread.stat()
            self.arm(thread)

    def _first_seen(self, tid: int) -> Thread:
        """A new task whose first stop came before its parent's event."""
        return self.tree.add(tid, process_of(tid))

    def _forked(self, parent: Thread, event: int) -> None:
        tid = ptrace.event_message(parent.tid)
        pid = process_of(tid) if event == EVENT_CLONE else tid
        same = pid == parent.process.pid
        self._add(tid, pid, parent)
        self.summary.processes += not same

    def _add(self, tid: int, pid: int, parent: Thread) -> Thread:
        """A task that ``parent`` has created."""
        thread = self.tree.add(tid, pid)
        thread.origin, thread.seen, thread.blocks_internal = parent.origin, parent.seen, parent.blocks_internal
        thread.process.by_loader = parent.process.by_loader
        if thread.process.successors is None:
            thread.process.successors = parent.process.successors  # a copy of its address space
        if not thread.process.name:
            thread.process.name = parent.process.name
        self.summary.threads += 1
        self.sideband.forked(self.out, thread, parent)
        return thread

    # -- threads that begin and end faster than they may be followed

    def _lost(self) -> None:
        """The stop that is over now took time that new threads may cost: our CPU time. Where others run before us, they
        would run before the program, too."""
        took = self._own_time()
        self._following.spend(took)
        self.duty.lost(took)

    def _own_time(self) -> float:
        """Our CPU time since the present stop, and what its report took, in seconds."""
        return time.process_time() - self._worked + self._report_time

    def _limit_following(self, parent: Thread) -> None:
        """Do not follow what ``parent``, which is stopped, creates next if that costs too much already."""
        if self._following.left() > 0 or self.summary.threads < _ALWAYS_FOLLOWED or not parent.follows:
            return
        parent.follows, parent.process.unfollowed = False, True
        ptrace.set_options(parent.tid, self._traced & ~ptrace.THREADS)
        if _TOO_FAST not in self.summary.notes:
            self.summary.notes = (*self.summary.notes, _TOO_FAST)

    def _find_threads(self, process: Process) -> None:
        """Trace threads of ``process`` that were not followed and are still there."""
        parent = next((self.tree.threads[tid] for tid in process.threads), None)
        for tid in _threads(process.pid) - process.threads:
            if parent is None or self._following.left() <= 0:
                return
            self._worked = time.process_time()
            with suppress(OSError, ptrace.Gone):
                ptrace.seize(tid, self._traced)
                self.arm(self._add(tid, process.pid, parent))
            self._lost()
        process.unfollowed = any(not self.tree.threads[tid].follows for tid in process.threads)

    def _executed(self, thread: Thread, status: int) -> None:
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
        thread.seen, thread.process.by_loader = thread.stat(), has_interpreter(process.pid)
        path = program_of(process.pid)
        process.name = os.path.basename(path)
        self.sideband.executed(self.out, thread)
        self.on_exec(process.pid, path)
        if self._is_ignored(path) and process.pid != self.root:
            self.trigger.disarm(thread)
            self.tree.remove(thread.tid)
            if self._watched is not None:
                self._watched.leave(process.pid)
            _detach(thread, status, self.trigger, self.bursts)
            self._skipped["program not followed"] += 1
            return
        self.arm(thread)
        ptrace.cont(thread.tid)

    def _gone(self, tid: int, status: int) -> None:
        thread = self.tree.remove(tid)
        if thread is not None:
            self._leave_call(thread)
            self.trigger.disarm(thread)
            self.sideband.ended(self.out, thread)
            if self._watched is not None and thread.process.pid not in self.tree.processes:
                self._watched.forget(thread.process.pid)
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
            program = thread.process.name or program_of(thread.process.pid)
            whole = self._unarmed.setdefault(error.strerror or str(error), [])
            whole.append(f"{thread.tid} of {program} ({thread.process.pid})")
            self.summary.unrecorded += 1

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
        waited = queued("self") + queued(thread.tid)
        with self.bursts.processor.realtime():
            self.trigger.hold(thread)
            cpu = self.trigger.used(thread) - thread.spent
            weight, thread.first_weight = thread.first_weight or cpu, 0
            length = self.lengths.next(self.summary.in_bursts)
            most = 0 if self.options.calls else length
            self.sideband.drain(self.out)  # the program may just have mapped code
            self.chains.begin(thread)
            try:
                burst, cpu_number = self.bursts.run(thread, lambda status: self.trigger.due(thread, status), most)
            except NoBurst as reason:
                self._skipped[str(reason)] += 1
                burst, cpu_number = Burst(), -1
            when = now()  # before it runs again, and may map other code there
            if burst.edges and not burst.dropped:
                self.sideband.reached(self.out, thread, when)
            self.chains.end(thread, burst)
            if not burst.dropped:
                self._rearm(thread)
                if burst.status is None:
                    self._resume(thread, burst, cpu_number)
            ended = time.perf_counter()  # from here on others may run before us
        took, self._stopped_at = ended - self._stopped_at + self._report_time, ended
        self._worked = time.process_time()
        waited = max(queued("self") + queued(thread.tid) - waited, 0)
        self.summary.in_bursts += self.duty.spent(took, cpu, waited / 1e9)
        if cpu_number >= 0:
            self._ended[burst.why] += 1
        if burst.edges and not burst.dropped:
            self._write_records(thread, burst, when, weight, cpu_number, length)
        if burst.status is not None:
            self._handle(thread.tid, burst.status)
        elif thread.process.successors is not None:
            # It runs again. Finding ends is to cost less than the bursts, which programs that soon end would not repay.
            thread.process.successors.widen(took)

    # -- system calls at which bursts ended

    def _resume(self, thread: Thread, burst: Burst, cpu: int) -> None:
        """Let it run on after a burst: up to a system call, if that is to be recorded."""
        if not (self.options.calls and burst.why == "system call"):
            ptrace.cont(thread.tid)
            return
        ptrace.set_options(thread.tid, self._traced if thread.follows else self._traced & ~ptrace.THREADS)
        thread.call = Call(burst, cpu)
        ptrace.cont_to_call(thread.tid)

    def _at_call(self, thread: Thread) -> None:
        """It enters the system call before which its burst ended, or leaves it. The kernel reports a call to us before
        it reports it to tracepoints, and the end of one after that."""
        call, when = thread.call, now()
        enters = call is not None and not call.entered
        if not enters:
            self._leave_call(thread)
        self.duty.lost(self._own_time())
        if call is not None and enters and self.options.calls == Calls.LEFT:
            call.entered = True
            ptrace.cont_to_call(thread.tid)
        else:
            thread.call = None
            ptrace.cont(thread.tid)
        if call is not None and enters:
            self._write_call(thread, call, when)

    def _leave_call(self, thread: Thread) -> None:
        """It is not in a recorded system call any more, or stopped in it for another reason."""
        call, thread.call = thread.call, None
        if call is not None and call.entered:
            self.out.sample(now(), thread.process.pid, thread.tid, call.cpu, 0, 0, 0, (), call=True)

    def _write_call(self, thread: Thread, call: Call, when: int) -> None:
        burst = call.burst
        code = self.bursts.successors(thread.process) if burst.edges and self.select & CALL_STACK else None
        stack = self._records(burst.edges, code)[-1] if burst.edges else []
        if stack:
            self.out.sample(
                when, thread.process.pid, thread.tid, call.cpu, burst.start, burst.end, 0, stack, call=True
            )  # fmt: skip
            self.summary.calls += 1

    def _mapped(self, pid: int, name: str) -> None:
        self.foreign.seen(pid, name)
        if (process := self.tree.processes.get(pid)) is not None:
            self.chains.mapped(process)

    def _write_records(self, thread: Thread, burst: Burst, when: int, weight: int, cpu: int, length: int) -> None:
        """All records of a burst, oldest first: they have its time and its start, and share its weight."""
        # The last stop may reveal more than `length`. A ring is read after exactly that many, since the newest that a
        # stop reveals is never a direct jump.
        kept = self._cut(burst.edges, length) if self.is_ring else burst.edges[-length:]
        records = self._records(kept, thread.process.successors)
        last = len(records) - 1
        every, cut = len(burst.edges), self.is_ring and len(kept) < len(burst.edges)
        places = [len(kept), every] if cut else [every - self.options.depth * n for n in range(last, -1, -1)]
        chains = self.chains.of(burst.edges, places)[: len(records)]
        for number, (stack, frames) in enumerate(zip(records, chains, strict=True)):
            end = stack[0][1] if number < last else kept[-1][1] if cut else burst.end
            part = weight * (number + 1) // len(records) - weight * number // len(records)
            self.out.sample(when, thread.process.pid, thread.tid, cpu, burst.start, end, part, stack, frames)
            self.summary.branches += len(stack)
            self.summary.full += len(stack) == self.options.depth
        self.summary.bursts += 1

    def _cut(self, edges: list[Edge], length: int) -> list[Edge]:
        """The oldest of ``edges`` up to that with which ``length`` have passed the filter."""
        passed = 0
        for number, edge in enumerate(edges, 1):
            passed += self.bursts.limits.kinds >> edge[2] & 1
            if passed == length:
                return edges[:number]
        return edges

    def _records(self, edges: Sequence[Edge], code: Successors | None) -> list[list[Edge]]:
        """The branches of a burst as rings of the recording's depth and filter deliver them, each newest first."""
        depth = self.options.depth
        if self.select & CALL_STACK:
            import numpy as np

            from ...lbr import ring_contents

            columns = (np.array(c, t) for c, t in zip(zip(*edges, strict=True), ("u8", "u8", "u1"), strict=True))
            length = np.array([_length_of_call(edge, code) for edge in edges], np.uint64)
            kept = ring_contents(*columns, depth=depth, select=self.select, length=length)
            return [[edges[i] for i in kept.tolist()]]
        counted = self.bursts.limits.counted  # for a filter this is faster
        newest_first = [edge for edge in reversed(edges) if edge[2] in counted]
        if self.is_ring:
            return [newest_first[:depth]]
        return [newest_first[at : at + depth] for at in range(0, len(newest_first), depth)][::-1]


# -- a recording: the choice of engine, trigger and sideband, launching or attaching, and the collector's run


_HANDLED = "handles SIGURG and SIGWINCH: its handler of SIGWINCH may run if the recorder is killed"
_FIRST_PERIOD = 20_000_000
_SLOWER = "the compiled library is not in use: bursts take longer (`lastbranch doctor` says why)"
_SLOWER_HERE = f"no part of the compiled library is for bursts on {HERE.title}: they take longer than on 64-bit x86"


def record_software(
    target: Sequence[str] | int | Targets, options: Options, file: IO[bytes], command: Sequence[str],
    unblocked: Iterable[int], summary: Summary, say: Callable[[str], None], progress: Callable[[Summary], None],
    stop: Callable[[], bool] = lambda: False, switcher: Switcher | None = None,
) -> None:  # fmt: skip
    """Record a command, a process id or `Targets` (these with a sideband for their group alone) into ``file``
    (perf.data, pipe form), in this process, which must have no other children, one thread, and `SIGNALS` blocked.
    ``summary`` is kept up to date, ``command`` is stored in the file as the command that recorded. The recording ends
    early where ``stop`` is true, and the program runs on. Raises `UnavailableError` or `RunError`."""
    check_machine()
    select = convert(options.select, "perf", "msr").value if options.ring is None else options.ring
    launched = not isinstance(target, int | Targets)
    with ticking():
        engine = _engine(launched, options.allow_risk, summary)
        if ptrace.compiled() is None:
            summary.notes = (*summary.notes, _SLOWER if HERE.compiled else _SLOWER_HERE)
        trigger = _trigger(launched)
        summary.trigger = trigger.name
        limits, lengths = _limits(options, select)
        bursts = BurstRunner(engine, limits, SharedProcessor() if launched else ThreadsProcessor())
        summary.call_graph = graph = _call_graph(options.call_graph, select)
        period = options.burst_period or _FIRST_PERIOD
        out = RecordWriter(file, options.select, period, options.time_period, graph, calls=bool(options.calls))
        traced = _Traced(target, unblocked)
        bursts.sideband = sideband = traced.sideband(options.time_period, graph, summary)
        out.begin(sideband.ids, command)
        if switcher is not None:
            out.carry_state()
        collector = Collector(
            traced.tree, traced.root, options, select, bursts, lengths, trigger, sideband, out, summary, kills=launched,
            report_time=report_time(), watched=traced.watched,
        )  # fmt: skip
        signals = Interruptions(traced.root if launched else None)

        def tick(summary: Summary) -> None:
            if signals.enough() or stop():
                collector.stop()
            progress(summary)
            if switcher is not None and switcher.due(out.size) and not collector.stopping:
                moment = now()
                sideband.drain(out)
                out.flush()
                out.switch(switcher.next_file(summary), moment)

        def warn(pid: int, path: str) -> None:
            for sentence in warnings_of(pid, path):
                say(sentence)

        collector.on_tick, collector.on_exec, collector.on_attached = tick, warn, _warning_of_handlers(say)
        try:
            traced.run(collector, out, say)
        finally:
            bursts.processor.close()
            sideband.close()
            out.flush()
        traced.check_end(collector.root_status, signals.last, summary)


class _Traced:
    """What a recording traces, from when it is attached or launched: it waits until `run`.

    A command is ``child``, a process that runs already has none, and `Targets` are ``watched`` for as they begin. The
    collector's ``root`` is 0 for these.
    """

    def __init__(self, target: Sequence[str] | int | Targets, unblocked: Iterable[int]) -> None:
        self.tree, self._since = Tree(), now()
        self.child: Launched | None = None
        self.watched: Watched | None = None
        self.root = 0
        if isinstance(target, Targets):
            self.watched = Watched(target)
        elif isinstance(target, int):
            self.root = target
            attach(target, self.tree)
        else:
            self.child = _launch(target, unblocked, self.tree)
            self.root = self.child.pid

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
            _warning_of_handlers(say)(self.tree.processes[self.root])
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


def _engine(launched: bool, allow_risk: bool, summary: Summary) -> Engine:
    """The first engine that passes the start-up test, of those that may be used."""
    safe, risky = _ENGINES[HERE.name]()
    tested = risky if launched else safe + risky
    try:
        summary.self_test = test_engines(tested)
    except OSError as error:
        raise describe_launch(error) from error
    good = next((engine for engine in tested if summary.self_test.get(engine.name) == OK), None)
    if good is None:
        said = "; ".join(f"{name}: {what}" for name, what in summary.self_test.items())
        raise UnavailableError(f"no engine passes the start-up test on this machine ({said})")
    if not launched and good not in safe and not allow_risk:
        said = summary.self_test[safe[-1].name] if safe else f"not on {HERE.title}"
        raise UnavailableError(
            f"perf breakpoints cannot be used here ({said}); with the other engines the process would be killed if the "
            "collector were killed in the middle of a burst",
            hint="--allow-risk accepts that risk; or launch the program with `lastbranch record COMMAND`",
        )
    summary.engine = good.name
    return good


def _engines_x86() -> tuple[list[Engine], list[Engine]]:
    return _block_steps(PerfBreakpoints), [*_block_steps(DebugRegisters), SingleStep()]


def _engines_a64() -> tuple[list[Engine], list[Engine]]:
    return [PerfBlocks(PerfBreakpoints())], [
        SteppedBlocks(HardwareBreakpoints(4)),
        SteppedBlocks(HardwareBreakpoints(2)),
        SingleStep(),
    ]


_ENGINES = {"x86_64": _engines_x86, "aarch64": _engines_a64}
"""Engines whose threads survive our death in a burst, and those whose threads do not, best first."""


def _block_steps(breakpoints: Callable[[], Breakpoints]) -> list[Engine]:
    """With the compiled walk where there is one, and without."""
    walking, plain = BlockStep(breakpoints()), BlockStep(breakpoints(), walks=False)
    return [walking, plain] if walking.walks else [plain]


def _trigger(launched: bool) -> Trigger:
    """Perf events if they are allowed."""
    try:
        os.close(open_event(attribute(USER_ONLY | FLAG["disabled"], sample_period=_FIRST_PERIOD, **CPU_CLOCK), 0))
    except OSError:
        return PollTrigger()
    return ClockTrigger(ends_with_us=launched)


def _call_graph(wanted: str, select: int) -> str:
    """How call stacks are recorded: call frame information needs nothing but what bursts need, too. Raises
    `UnavailableError` where it is not followed."""
    if select & CALL_STACK:
        return "lbr"
    if wanted == "dwarf" and not HERE.unwinds:
        raise UnavailableError(
            f"call stacks by call frame information are not for {HERE.title}", hint="--call-graph fp"
        )
    return ("dwarf" if HERE.unwinds else "fp") if wanted == "auto" else wanted


def _length_of_call(edge: Edge, code: Successors | None) -> int:
    """Bytes of the instruction of a call that may be one of the next instruction; 0 for any other branch."""
    source, target, kind = edge
    if kind not in CALLS or not 0 < target - source <= LONGEST or code is None:
        return 0
    branch = code.line(source)
    return branch.length if branch is not None and branch.address == source else 0


def _is_ring(options: Options, select: int) -> bool:
    """Whether a burst makes one record, as a processor's ring delivers it."""
    return options.ring is not None or select != convert(DEFAULT_SELECT, "perf", "msr").value


def kinds_recorded(select: int) -> frozenset[int]:
    """perf's branch types that MSR_LBR_SELECT ``select`` records; of call-stack mode, before returns delete calls."""
    import numpy as np

    from ...lbr import ring_contents

    one, far = np.ones(1, np.uint64), np.full(1, 256, np.uint64)
    return frozenset(
        kind for kind in KIND.values()
        if len(ring_contents(one, far, np.array([kind], np.uint8), depth=1, select=select & ~CALL_STACK))
    )  # fmt: skip


_UP_TO_A_CALL = 1 << 20
"""Branches of a burst that only a system call, or the number of stops, is to end."""


def _limits(options: Options, select: int) -> tuple[BurstLimits, BurstLengths]:
    """When bursts end, and who draws their lengths. A ring is read when one to two times ``depth`` branches have passed
    its filter, in call-stack mode, where returns delete calls, two to three times: at a fixed number a loop would show
    one of its branches as the newest in all records."""
    if not _is_ring(options, select):
        lengths = BurstLengths(options.burst)
        return BurstLimits(lengths.most, stops=64 + 16 * lengths.most), lengths
    least = options.depth * 2 if select & CALL_STACK else options.depth
    lengths = BurstLengths((least, least + options.depth))
    limits = BurstLimits(lengths.most, stops=64 + 16 * lengths.most)
    if select != convert(DEFAULT_SELECT, "perf", "msr").value:
        limits = BurstLimits(lengths.most, kinds_recorded(select), stops=64 + 32 * lengths.most)
    if options.calls:
        limits = replace(limits, depth=_UP_TO_A_CALL, stops=64 + 32 * lengths.most)
    return limits, lengths


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


def attach(pid: int, tree: Tree) -> None:
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
    if pid not in tree.processes:
        raise UnavailableError(f"process {pid} does not exist")


def _threads(pid: int) -> set[int]:
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


def _warning_of_handlers(say: Callable[[str], None]) -> Callable[[Process], None]:
    """A function that warns of attached processes whose handlers may run, once for each program."""
    warned: set[str] = set()

    def warn(process: Process) -> None:
        name = process.name or os.path.basename(program_of(process.pid))
        signals = stat_of(process.pid)
        if name not in warned and not quiet_signal(signals) and handled_signal(signals):
            warned.add(name)
            say(f"process {process.pid} ({name}) {_HANDLED}")

    return warn
