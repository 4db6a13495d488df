"""The loop over all stops of the threads of a software recording."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch

from ...errors import LastbranchError, UnavailableError
from ...lbr import CALL_STACK
from ...model import counted
from .. import ptrace
from ..foreign_binaries import ForeignBinaries
from ..options import Calls, Options, Summary
from ..process_groups import is_program
from ..procfs import has_interpreter, process_of, program_of, spare_processor, status_of
from ..ptrace import EVENT_CLONE, EVENT_EXEC, EVENT_STOP, NEW_TASK, TICK, at_call, event_of, signal_of, stopped
from .burst_runner import BurstRunner, NoBurst
from .burst_writer import BurstWriter
from .bursts import Burst
from .call_chains import CallChains
from .draws import DrawIntervals, Draws
from .kept_file import KeptFile
from .quiet_signals import INTERNAL
from .record_writer import RecordWriter, Sideband, now
from .schedule import Budget, BurstLengths, Duty, Trigger
from .tracing import attach, describe_running, detach_all, detach_thread, threads_of
from .tree import Call, Process, Thread, Tree, ran_and_queued
from .unwinder import Unwinder
from .watched import Watched

__all__ = ["Collector"]

_SECOND = 1_000_000_000
_SOON = (10_000, 30_000)
"""ns of CPU time from when a drawn thread is traced to its burst: the kernel stops it in user mode then, and never in a
system call."""
_NOTHING = EVENT_STOP << 16 | signal.SIGTRAP << 8 | 0x7F
"""The status of a stop without a signal."""
_OF_A_STOP = 20_000
"""Most ns of a followed thread's CPU time that a stop takes. The rest is its own: it may repeat an instruction long."""
_LONG_DRAWN = 0.5
"""Seconds after which a thread that runs has had its burst, if it has a trigger."""
_KEPT = 64
"""Processes of which is known, between drawn bursts, what they have mapped."""
_ENDED, _REFUSED, _NO_TRIGGER = "the thread ended first", "the duty limit", "no trigger stopped the thread"
_WAITED = "the thread waited"
_FEW_UNSEEN = 0.1
"""For each burst, so many that did not happen are no news."""
_DRAWN = (
    "the program takes signals or begins tasks too often to stop at each: it is traced during bursts only, which are "
    "drawn from all that it runs"
)
_MOST_LOSSES = 1 << 16
_MOST_STOPS = 0.02
"""Seconds that stops for new tasks and for signals may cost at once: a hundred of them."""
_ALWAYS_FOLLOWED = 100
"""The first so many new threads, on busy machines, too, where each costs more."""
_FEWER_RIGHTS = (
    "no bursts are foreseen of threads that may do less than the recorder (another user, group, user namespace or "
    "security label, fewer capabilities, no new privileges, filtered system calls); --run-ahead always foresees them, "
    "too"
)
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
        self,
        tree: Tree,
        root: int,
        options: Options,
        select: int,
        bursts: BurstRunner,
        lengths: BurstLengths,
        trigger: Trigger,
        sideband: Sideband,
        out: RecordWriter,
        summary: Summary,
        *,
        kills: bool,
        report_time: float,
        watched: Watched | None = None,
    ) -> None:
        self.tree, self.root, self.options, self.select = tree, root, options, select
        self.bursts, self.trigger, self.sideband, self.out, self.summary = bursts, trigger, sideband, out, summary
        bursts.on_follow = trigger.hold
        self._own_schedstat = KeptFile("/proc/self/schedstat")
        self.kills, self._report_time, self._watched = kills, report_time, watched
        self.duty = Duty(options.duty, options.burst_period, cheap=bursts.ahead is not None)
        self._stops = Budget(options.duty / 2, _MOST_STOPS, _MOST_STOPS)
        """What stops that are no burst's may cost: those of new tasks, each of which stops at least twice, and those of
        the program's signals."""
        self._draws: Draws | None = None
        """Since the program has been let go between bursts."""
        self._may_draw = (
            bool(trigger.signals) and not options.calls and not options.no_follow and not sideband.needs_stops
        )
        self._may_draw &= watched is None or not watched.searches
        self._intervals = DrawIntervals()
        self._next_draw, self._owed = 0.0, 0
        """When the next draw is due, and ns of CPU time that no burst stands for yet."""
        self._spare = True
        """Whether a processor was spare at the last tick."""
        self._drawn_at, self._drawn_cpu = 0, 0
        """The time and the program's CPU time at the last draw, in ns."""
        self._let = set[int]()
        """Processes that were let go, and all that descend from them."""
        self._waiting, self._lapsed = ptrace.PassingSignals(), set[int]()
        """The second: threads whose burst has missed its deadline, the next stops of which may be ours."""
        self._own_signals = sum(1 << n - 1 for n in signal.valid_signals() - trigger.signals - _STOPPING)
        self._early = set[int]()
        """New tasks whose first stop came before the event of the task that created them."""
        self._given_up = set[int]()
        """Threads that are no longer recorded since something failed."""
        self._traced = ptrace.FOLLOW | (ptrace.EXITKILL if kills else 0) | (ptrace.TRACE_CALLS if options.calls else 0)
        self.lengths = lengths
        self.on_exec: Callable[[int, str], None] = lambda pid, path: None
        self.on_attached: Callable[[Process], None] = lambda process: None
        self.on_ended: Callable[[Thread], None] = lambda thread: None
        self.on_tick: Callable[[Summary], None] = lambda summary: None
        self.root_status: int | None = None
        self._ended, self._skipped = Counter[str](), Counter[str]()
        self._noted = 0
        """Triggers without a burst whose time is in the summary."""
        self.chains = CallChains(Unwinder() if summary.call_graph == "dwarf" else None)
        self._writer = BurstWriter(options, select, bursts.limits, self.chains, out, summary)
        self.foreign = ForeignBinaries()
        sideband.on_mapping = self._mapped
        self._refused: list[LastbranchError | OSError] = []
        """Why processes are not recorded, one for each."""
        self._build_ids: dict[object, bytes] = {}
        self._unarmed: dict[str, list[str]] = {}
        """Threads that get no bursts, by the reason."""
        self._stopping = False
        self._next_tick = 0.0
        self._stopped_at, self._worked, self._queued = 0.0, 0.0, 0
        """When the thread of the present stop stopped, our CPU time when it was reported, and for how many ns we had
        waited for a processor before."""
        self._unwritten: tuple[Thread, Burst, int, int, int, int, float] | None = None
        """Arguments of `_write_burst`."""

    def stop(self) -> None:
        """End the recording at the next tick; programs continue."""
        self._stopping = True

    @property
    def processes(self) -> set[int]:
        """Those that are recorded, whether they are traced at this moment or let go."""
        return self._let | set(self.tree.processes)

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def _over(self) -> bool:
        """Whether nothing is left to record."""
        watched = self._watched
        if watched is None:
            left = self.kills or self.tree.threads or (self._draws is not None and self._draws.any_left())
            return not left or self.root_status is not None
        return watched.group is not None and watched.group.ends and watched.empty

    # -- the loop

    def run(self) -> None:
        begun = time.monotonic()
        end = None if self.options.duration is None else begun + self.options.duration
        for process in self.tree.processes.values():
            self.chains.mapped(process)
            self.foreign.look(process.pid)
        with self.bursts.processor.realtime():  # also while we wait: a thread that stops waits until we run
            while not self._over and not self._stopping:
                if time.monotonic() >= self._next_tick:
                    with self._beside():
                        self._tick(begun)
                    if end is not None and time.monotonic() >= end:
                        break
                if self._draws is not None and time.monotonic() >= self._next_draw:
                    self._draw(self._draws)
                try:
                    self._handle(*self._next_event())
                except ptrace.Interrupted:  # by the tick, which may come a little early, or after hundreds of signals
                    if self._draws is None and self._next_tick - time.monotonic() < TICK / 4:
                        self._next_tick = 0.0
                except ptrace.Gone:
                    if self._watched is None and self._draws is None:
                        break
                    # There is nothing to wait for until `_tick` or `_draw` finds it.
                    draws_in = TICK if self._draws is None else self._next_draw - time.monotonic()
                    time.sleep(min(max(draws_in, 0.0), TICK / 4))
                if self._unwritten is not None:
                    with self._beside() as spare:
                        self._write_burst(*self._unwritten, spare=spare)
        self._own_schedstat.close()
        detach_all(self.tree, self.trigger, self.bursts, killed=self.kills)
        if self._draws is not None:
            self._draws.close()
        self._tick(begun)
        for why, threads in self._unarmed.items():
            named = ", ".join(threads[:_MOST_NAMED]) + (", and others" if len(threads) > _MOST_NAMED else "")
            self.summary.notes += (f"{counted(len(threads), 'thread')} not recorded ({why}): {named}",)
        self.summary.notes += self.chains.notes() + self.foreign.keep()
        self._note_processes()
        self._note_unseen()

    @contextmanager
    def _beside(self) -> Iterator[bool]:
        """Do what no stopped thread waits for; whether a processor is spare. Else the program has lost the time."""
        worked = time.thread_time()
        with self.bursts.processor.giving_way() as spare:
            yield spare
        if not spare:
            self.summary.beside += time.thread_time() - worked

    def _next_event(self) -> tuple[int, int]:
        """Wait for it: the thread and its wait status. Raises as `PassingSignals.wait` does."""
        _, self._queued = ran_and_queued(self._own_schedstat)
        asked = time.process_time(), time.perf_counter()
        try:
            event = self._waiting.wait(self._passes)
        finally:
            self._passed(*asked)
        self._worked = time.process_time()
        _, queued = ran_and_queued(self._own_schedstat)
        self._stopped_at = time.perf_counter() - (queued - self._queued) / 1e9 - self._report_time
        return event

    @property
    def _passes(self) -> int:
        """The program's signals at whose stops there is nothing to do now."""
        return 0 if self._draws is not None or self._lapsed or self.options.calls else self._own_signals

    def _passed(self, worked: float, since: float) -> None:
        """Account for the signals that were passed on while we waited, ``since`` then. Our CPU time was ``worked``."""
        if stops := self._waiting.passed():
            took = time.process_time() - worked + stops * self._report_time
            took = min(took, time.perf_counter() - since)
            self._stops.spend(took)
            self.summary.in_stops += took
            self.summary.stops += stops
            if self._stops.left() <= 0 and self._draws is None:
                self._begin_draws()

    def _tick(self, begun: float) -> None:
        self._next_tick = time.monotonic() + TICK
        self.sideband.drain(self.out)
        self.chains.prepare()
        self.trigger.tick(list(self.tree.threads.values()))
        if self._watched is not None:
            until = time.monotonic() + _ATTACHING
            for pid in self._watched.new(self._let if self._draws is not None else self.tree.processes):
                self._attach(pid, self._watched)
                if time.monotonic() > until:
                    break
            else:
                self._check_attached(self._watched)
        for process in [one for one in self.tree.processes.values() if one.unfollowed]:
            self._find_threads(process)
        if self._draws is not None:
            self._draws.any_left()  # it closes what belongs to none
            self._spare = spare_processor()
            self._forget_vanished()
            self.tree.keep(_KEPT)
        self.summary.seconds = time.monotonic() - begun
        self.summary.ended, self.summary.skipped = dict(self._ended), dict(self._skipped)
        self._note_losses()
        self.summary.stacks = dict(self.chains.counts)
        if self.bursts.lacked_rights and _FEWER_RIGHTS not in self.summary.notes:
            self.summary.notes = (*self.summary.notes, _FEWER_RIGHTS)
        if self.bursts.compared.foreseen:
            self.summary.foreseen = str(self.bursts.compared)
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
        """Handle one event of a thread. If it has ended meanwhile, a later event reports that. What fails of one thread
        ends the tracing of this thread alone."""
        try:
            if not stopped(status):
                self._gone(tid, status)
                return
            thread = self.tree.threads.get(tid)
            if thread is None:
                thread = self._first_seen(tid)
            self._handle_stop(thread, status)
        except ptrace.Gone:
            pass
        except Exception as error:  # one thread's failure ends its tracing, not the recording
            if error is self.out.failure:
                raise
            self._give_up(tid, status, error)

    def _handle_stop(self, thread: Thread, status: int) -> None:
        if thread.timed_out:
            self._recover(thread, status)
            return
        if at_call(status):
            self._at_call(thread)
            return
        if thread.call is not None:
            self._leave_call(thread)
        if not thread.follows and self._stops.left() > _MOST_STOPS / 2:
            thread.follows = True
            ptrace.set_options(thread.tid, self._traced)
        event = event_of(status)
        if event in NEW_TASK:
            self._forked(thread, event)
            self._limit_stops(thread, event)
            self._go_on(thread, status)
        elif event == EVENT_EXEC:
            self._executed(thread, status)
        elif thread.leaves:
            self._go_on(thread, status)
        elif self.trigger.due(thread, status):
            try:
                self._triggered(thread)
            except Exception as error:  # as for any stop, but the signal is ours, and the thread may have moved on
                if error is self.out.failure or isinstance(error, ptrace.Gone):
                    raise
                self._give_up(thread.tid, _NOTHING, error)
        elif event == EVENT_STOP:
            self._stopped_otherwise(thread, status)
        else:
            self._limit_stops(thread, event)
            self._go_on(thread, status)

    def _give_up(self, tid: int, status: int, error: Exception) -> None:
        """Trace a thread no longer, about which ``error`` is said at the end. ``status`` is its last one."""
        thread = self.tree.threads.get(tid)
        if tid not in self._given_up:
            self._note_failure(tid, process_of(tid) if thread is None else thread.process.pid, error)
        elif stopped(status):  # letting it go has failed before
            self.tree.remove(tid)
            with suppress(ptrace.Gone, OSError):
                ptrace.detach(tid, 0 if event_of(status) else signal_of(status))
            return
        if thread is None or not stopped(status):
            return
        thread.leaves = thread.drawn = True
        thread.first_weight = 0
        try:
            self._let_go(thread, status)
        except Exception:  # it runs, or its burst's remains cannot be removed now
            with suppress(ptrace.Gone, OSError):
                ptrace.interrupt(tid)

    @contextmanager
    def _of_one(self, pid: int) -> Iterator[None]:
        """What fails of this process in here ends nothing else."""
        try:
            yield
        except ptrace.Gone:
            pass
        except Exception as error:  # as for a stop: only writing ends the recording
            if error is self.out.failure:
                raise
            if pid not in self._given_up:
                self._note_failure(pid, pid, error)

    def _note_failure(self, tid: int, pid: int, error: Exception) -> None:
        self._given_up.add(tid)
        self._note_unrecorded(tid, pid, error)

    def _note_unrecorded(self, tid: int, pid: int, error: Exception) -> None:
        process = self.tree.processes.get(pid)
        name = (process and process.name) or program_of(pid)
        why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        self._unarmed.setdefault(why, []).append(f"{tid} of {name} ({pid})")
        self.summary.unrecorded += 1

    def _stopped_otherwise(self, thread: Thread, status: int) -> None:
        """A group-stop, the first stop of a new thread, or one that is left from `_recover`."""
        if signal_of(status) in _STOPPING:
            _resume_with_signal(thread, status)
            return
        self.arm(thread)
        self._go_on(thread, status)

    def _go_on(self, thread: Thread, status: int) -> None:
        """Let it run on after a stop that is no burst's, with its signal if that caused the stop. What the stop took is
        our CPU time: where others run before us, they would run before the program, too."""
        took = self._own_time()
        self._stops.spend(took)
        self.summary.in_stops += took
        self.summary.stops += 1
        if thread.leaves:
            self._let_go(thread, status)
        else:
            _resume_with_signal(thread, status)

    def _recover(self, thread: Thread, status: int) -> None:
        """The first stop after a burst's deadline."""
        self.bursts.clean(thread)
        self._lapsed.discard(thread.tid)
        if thread.leaves:
            self._let_go(thread, status)
            return
        self._rearm(thread)
        if not event_of(status) and (signal_of(status) == thread.stops_by or self.trigger.due(thread, status)):
            ptrace.cont(thread.tid)
        else:
            _resume_with_signal(thread, status)

    # -- the tree

    def _attach(self, pid: int, watched: Watched) -> None:
        """Trace a running process from now on. Of one that cannot be traced a note says why."""
        if self._draws is not None:
            self.sideband.drain(self.out)
            if pid in self._let:
                return  # it began a moment ago
        before, since, path = set(self.tree.threads), now(), program_of(pid)
        if self._is_ignored(path):
            self._skipped["program not followed"] += 1
            return
        try:
            attach(pid, self.tree)
        except (LastbranchError, OSError) as error:
            if _is_ours(pid):
                watched.forget(pid)  # a thread of ours has created it: the stop that says so comes next
            elif is_program(pid):
                self._refused.append(error)
                if len(self._refused) <= _MOST_NAMED:
                    self.summary.notes += (f"process {pid} ({os.path.basename(path)}) is not recorded: {error}",)
        new = set(self.tree.threads) - before
        if watched.group is not None and new:
            with self._of_one(pid):
                self._begin(self.tree.processes[pid], since)
        self.arm_running(new)
        if self._draws is not None:
            self._leave(new)

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

    def _note_unseen(self) -> None:
        """Say in one line which bursts there should have been, where these are many."""
        unseen = {_REFUSED: self.summary.throttled, **self._skipped}
        count = sum(unseen.values())
        if count > _FEW_UNSEEN * self.summary.bursts:
            why = ", ".join(f"{n}: {reason}" for reason, n in unseen.items() if n)
            self.summary.notes += (f"{counted(count, 'burst')} that were due did not happen ({why})",)

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
        thread = self.tree.add(tid, process_of(tid))
        thread.leaves = self._draws is not None
        self._early.add(tid)
        return thread

    def _forked(self, parent: Thread, event: int) -> None:
        tid = ptrace.event_message(parent.tid)
        pid = process_of(tid) if event == EVENT_CLONE else tid
        same = pid == parent.process.pid
        self.summary.processes += not same
        if tid in self._early:
            self._early.discard(tid)
            if tid not in self.tree.threads:  # it was let go, or has ended
                self.summary.threads += 1
                return
        self._add(tid, pid, parent)

    def _add(self, tid: int, pid: int, parent: Thread) -> Thread:
        """A task that ``parent`` has created."""
        thread = self.tree.add(tid, pid)
        thread.origin, thread.seen, thread.blocks_internal = parent.origin, parent.seen, parent.blocks_internal
        thread.process.by_loader = parent.process.by_loader
        if thread.process.successors is None:
            thread.process.successors = parent.process.successors  # a copy of its address space
        if not thread.process.name:
            thread.process.name = parent.process.name
        thread.leaves = self._draws is not None
        self.summary.threads += 1
        self.sideband.forked(self.out, thread, parent)
        return thread

    # -- threads that begin and end faster than they may be followed

    def _own_time(self) -> float:
        """Our CPU time since the present stop, and what its report took, in seconds."""
        return time.process_time() - self._worked + self._report_time

    def _limit_stops(self, parent: Thread, event: int) -> None:
        """Where stops cost too much already, let the program go between bursts. If that cannot be, do not follow the
        threads that ``parent``, which is stopped, creates next."""
        new = event in NEW_TASK
        if self._stops.left() > 0 or (new and self.summary.threads < _ALWAYS_FOLLOWED):
            return
        if self._draws is not None or self._begin_draws() or event != EVENT_CLONE or not parent.follows:
            return
        parent.follows, parent.process.unfollowed = False, True
        ptrace.set_options(parent.tid, self._traced & ~ptrace.THREADS)
        if _TOO_FAST not in self.summary.notes:
            self.summary.notes = (*self.summary.notes, _TOO_FAST)

    def _find_threads(self, process: Process) -> None:
        """Trace threads of ``process`` that were not followed and are still there."""
        parent = next((self.tree.threads[tid] for tid in process.threads), None)
        for tid in threads_of(process.pid) - process.threads:
            if parent is None or self._stops.left() <= 0:
                return
            self._worked = time.process_time()
            with self._of_one(process.pid), suppress(OSError):
                ptrace.seize(tid, self._traced)
                self.arm(self._add(tid, process.pid, parent))
            self._stops.spend(self._own_time())
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
            detach_thread(thread, status, self.trigger, self.bursts)
            self._skipped["program not followed"] += 1
            return
        if not thread.leaves:
            self.arm(thread)
        if process.pid == self.root:
            self._worked = time.process_time()  # what was loaded for its first exec is no cost of its run
        self._go_on(thread, status)

    def _gone(self, tid: int, status: int) -> None:
        thread = self.tree.remove(tid)
        self._lapsed.discard(tid)
        if thread is not None and thread.drawn:
            self.trigger.disarm(thread)
            if thread.first_weight:
                self._miss(_ENDED, thread.first_weight)
        elif thread is not None:
            self._leave_call(thread)
            self.on_ended(thread)
            self.trigger.disarm(thread)
            self.sideband.ended(self.out, thread)
            if self._watched is not None and thread.process.pid not in self.tree.processes:
                self._watched.forget(thread.process.pid)
        self._given_up.discard(tid)
        if tid == self.root and (self.kills or self._draws is None):
            # A process that was attached to and let go ends unseen, unless that is during its burst.
            self.root_status = status

    # -- bursts that are drawn: the program is not traced between them

    def _begin_draws(self) -> bool:
        """Let each thread go at its next stop, and draw bursts from now on; whether that can be."""
        if not self._may_draw:
            return False
        self._may_draw = False
        try:
            self._draws = Draws()
        except (OSError, UnavailableError):
            return False
        self._leave(self.tree.threads)
        self.sideband.on_fork, self.sideband.on_exit = self._descended, self._let.discard
        self.summary.notes += (_DRAWN,)
        self.summary.trigger += ", later drawn"
        return True

    def _leave(self, tids: Iterable[int]) -> None:
        """Let these threads go, each at its next stop."""
        for thread in map(self.tree.threads.__getitem__, tids):
            thread.leaves = thread.process.drawn = True
            self._let.add(thread.process.pid)

    def _cover(self, draws: Draws, thread: Thread) -> bool:
        """Draw bursts from a thread that has stopped to be let go, and from all that it creates from then on; whether
        that can be. While it is stopped it creates nothing: what it has created before is traced itself, and covered
        when it is let go in turn."""
        try:
            draws.cover(thread.tid)
        except OSError:
            return False
        if thread.period:
            self._owed += max(self.trigger.used(thread) - thread.spent, 0)
        thread.drawn, thread.first_weight = True, 0
        return True

    def _descended(self, pid: int, parent: int) -> None:
        if parent in self._let:
            self._let.add(pid)

    def _draw(self, draws: Draws) -> None:
        """Trace those that run at this moment until each has had its burst."""
        begun, period = time.thread_time(), self.duty.next_period()
        # If no thread has run since the last draw, none runs now.
        if draws.cpu() > self._drawn_cpu and self.duty.allows():
            with self.bursts.processor.realtime(), draws.running() as found:
                running = [one for one in found if one[1] not in self.tree.threads]
                cpu, moment = draws.cpu(), now()
                if self._drawn_at:
                    self._intervals.add(len(running), cpu - self._drawn_cpu, moment - self._drawn_at)
                self._owed += cpu - self._drawn_cpu
                self._drawn_cpu, self._drawn_at = cpu, moment
                for left, (pid, tid) in zip(range(len(running), 0, -1), running, strict=True):
                    weight = self._owed // left
                    self._owed -= weight
                    with self._of_one(pid):
                        self._trace(tid, pid, weight)
            self._lapse(period)
            if not self._spare:
                took = time.thread_time() - begun
                self.duty.lost(took)
                self.summary.beside += took
        until = self._intervals.next(period) / _SECOND
        self._next_draw = time.monotonic() + until
        signal.setitimer(signal.ITIMER_REAL, min(until, TICK), TICK)

    def _lapse(self, period: int) -> None:
        """Take the weight of threads that were drawn a ``period`` of the program's CPU time ago and have not run since:
        their bursts would be far from their draws."""
        for thread in self.tree.threads.values():
            if thread.drawn and thread.first_weight and self._drawn_cpu - thread.drawn_at > period:
                self._miss(_WAITED, thread.first_weight)
                thread.first_weight, thread.leaves = 0, True

    def _trace(self, tid: int, pid: int, weight: int) -> None:
        """Trace a thread for one burst of ``weight``."""
        try:
            ptrace.seize(tid, ptrace.EXITKILL if self.kills else 0)
        except (OSError, ptrace.Gone) as error:
            self._miss((isinstance(error, OSError) and error.strerror) or _ENDED, weight)
            if _is_ours(tid):  # it took this number when it executed a program
                self._release(self.tree.add(tid, pid))
            return
        thread = self.tree.add(tid, pid)
        thread.drawn, thread.since, thread.process.drawn = True, time.monotonic(), True
        thread.origin = self.root if self.kills else tid
        thread.seen = stat = thread.stat()
        thread.first_weight, thread.drawn_at = max(weight, 1), self._drawn_cpu
        thread.blocks_internal = stat is None or bool(stat.blocked >> INTERNAL - 1 & 1)
        try:
            self.trigger.arm(thread, random.randint(*_SOON))
        except ProcessLookupError:  # it has ended, and its end is reported next
            return
        except OSError as error:
            thread.first_weight = 0
            self._miss(error.strerror or str(error), weight)
            self._release(thread)

    def _release(self, thread: Thread) -> None:
        """Let a running thread that bursts are drawn from go."""
        thread.leaves = thread.drawn = True
        with suppress(ptrace.Gone, OSError):
            ptrace.interrupt(thread.tid)

    def _forget_vanished(self) -> None:
        """Forget drawn threads that ended without an event, since one of their process has executed a program. That one
        has another number now, and no trigger."""
        late = time.monotonic() - _LONG_DRAWN
        for thread in [one for one in self.tree.threads.values() if one.drawn]:
            if not _is_ours(thread.tid):
                self._gone(thread.tid, 0)
            elif thread.since < late and (stat := thread.stat()) is not None and stat.state == "R":
                self._release(thread)

    def _miss(self, why: str, weight: int) -> None:
        """A thread that was drawn has no burst: the next ones get its weight."""
        self._skipped[why] += 1
        self._owed += weight

    def _look(self, thread: Thread) -> None:
        """Forget what is known of a drawn process if it executes another program than at its last burst: it was not
        traced since."""
        process, image = thread.process, thread.image()
        if image != process.image:
            process.forget()
            process.image, process.by_loader = image, False

    def _describe(self, process: Process) -> None:
        """Look at the new program of a drawn process, if it has one: not before its thread runs again, since that takes
        a moment."""
        if process.described != process.image:
            process.described, process.name = process.image, os.path.basename(program_of(process.pid))
            self.foreign.look(process.pid)
            self.chains.mapped(process)

    def _let_go(self, thread: Thread, status: int) -> float:
        """Trace it no longer; it gets the signal of a stop that is its own. The result is when it ran again
        (`time.perf_counter`)."""
        if self._draws is not None and not thread.drawn and not self._cover(self._draws, thread):
            thread.leaves = False
            self.arm(thread)
            _resume_with_signal(thread, status)
            return time.perf_counter()
        if thread.first_weight:
            self._miss(_NO_TRIGGER, thread.first_weight)
            thread.first_weight = 0
        self.trigger.hold(thread)
        last = detach_thread(thread, status, self.trigger, self.bursts)
        runs_since = time.perf_counter()
        self.trigger.disarm(thread)
        if last is None:
            thread.leaves = thread.drawn = True  # at its next stop
        elif stopped(last):
            self.tree.remove(thread.tid)
        else:
            self._gone(thread.tid, last)
        return runs_since

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
            self._note_unrecorded(thread.tid, thread.process.pid, error)

    def _rearm(self, thread: Thread) -> None:
        thread.spent = self.trigger.used(thread)
        so_far = time.perf_counter() - self._stopped_at
        self.trigger.rearm(thread, self.duty.next_period(so_far))

    def _triggered(self, thread: Thread) -> None:
        drawn = thread.drawn
        if drawn:
            self._look(thread)
        elif not self.duty.allows():
            self.summary.throttled += 1
            self.trigger.rearm(thread, self.duty.next_period())
            ptrace.cont(thread.tid)
            self.summary.in_stops += time.perf_counter() - self._stopped_at
            self.summary.stops += 1
            return
        ran, waited = thread.ran_and_queued()
        cpu = self.trigger.used(thread) - thread.spent
        weight, thread.first_weight = (thread.first_weight or cpu) + thread.carried, 0
        cpu = weight if drawn else cpu
        length, followed = self.lengths.next(self.summary.in_bursts)
        most = 0 if self.options.calls else length
        if not drawn:
            self.sideband.drain(self.out)  # the program may just have mapped code
        self.chains.begin(thread)
        try:
            burst, cpu_number = self.bursts.run(
                thread, lambda status: self.trigger.due(thread, status), most, followed if most else 0
            )
        except NoBurst as reason:
            self._skipped[str(reason)] += 1
            burst, cpu_number = Burst(), -1
        ran_then, waited_then = thread.ran_and_queued()
        when = now()  # before it runs again, and may map other code there
        written = bool(len(burst)) and not burst.dropped
        if written:
            self.sideband.reached(self.out, thread, when)
        self.chains.end(thread, burst)
        if thread.timed_out:
            self._lapsed.add(thread.tid)
        thread.carried, ended = 0 if written or drawn else weight, 0.0
        if drawn:
            if not written:
                self._owed += weight
            thread.leaves = True
            if not burst.dropped and burst.status is None:
                ended = self._let_go(thread, _NOTHING)
        elif not burst.dropped:
            self._rearm(thread)
            if burst.status is None:
                self._resume(thread, burst, cpu_number)
        ended = ended or time.perf_counter()
        waited = ran_and_queued(self._own_schedstat)[1] - self._queued + waited_then - waited
        took, self._stopped_at = ended - self._stopped_at, ended
        self._worked = time.process_time()
        self.duty.spent(took, cpu, max(waited, 0) / 1e9)
        lost = max(took - max(ran_then - ran - burst.stops * _OF_A_STOP, 0) / 1e9, 0.0)
        self.summary.in_bursts += lost
        self.summary.longest = max(self.summary.longest, lost)
        if cpu_number >= 0:
            self._ended[burst.why] += 1
        self._unwritten = thread, burst, when, weight, cpu_number, length, took
        if burst.status is not None:
            self._write_burst(*self._unwritten, spare=spare_processor())
            self._handle(thread.tid, burst.status)

    def _write_burst(
        self,
        thread: Thread,
        burst: Burst,
        when: int,
        weight: int,
        cpu: int,
        length: int,
        took: float,
        *,
        spare: bool,
    ) -> None:
        """Write a burst that took so many seconds, and learn from it: what its thread need not wait for. If no
        processor is ``spare``, others lose the time that this takes, and have lost that of the burst."""
        self._unwritten, begun = None, time.thread_time()
        try:
            if thread.drawn:
                self.sideband.drain(self.out)
                self._describe(thread.process)
            if len(burst) and not burst.dropped:
                self._writer.write(thread, burst, when, weight, cpu, length)
            successors = thread.process.successors
            if burst.stops > 1 and burst.status is None and successors is not None and successors.burst > 1:
                # Finding ends is to cost less than the bursts, which programs that soon end would not repay.
                with self.bursts.processor.giving_way(always=True):
                    successors.widen(took)
        except Exception as error:
            if error is self.out.failure:
                raise
            self._give_up(thread.tid, _NOTHING, error)
        if not spare:
            self.duty.lost(time.thread_time() - begun + took)

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
            code = self.bursts.successors(thread.process) if call.burst.edges and self.select & CALL_STACK else None
            self._writer.write_call(thread, call, when, code)

    def _leave_call(self, thread: Thread) -> None:
        """It is not in a recorded system call any more, or stopped in it for another reason."""
        call, thread.call = thread.call, None
        if call is not None and call.entered:
            self.out.sample(now(), thread.process.pid, thread.tid, call.cpu, 0, 0, 0, (), call=True)

    def _mapped(self, pid: int, names: Iterable[str]) -> None:
        with self._of_one(pid):
            self.foreign.seen(pid, names)
            if (process := self.tree.processes.get(pid)) is not None:
                self.chains.mapped(process)


def _resume_with_signal(thread: Thread, status: int) -> None:
    """Let it run on, with its signal if that caused the stop; a group-stop lasts until SIGCONT."""
    if event_of(status) == EVENT_STOP and signal_of(status) in _STOPPING:
        ptrace.listen(thread.tid)
    else:
        ptrace.cont(thread.tid, 0 if event_of(status) else signal_of(status))


def _is_ours(tid: int) -> bool:
    """Whether we trace this thread."""
    return status_of(tid, "TracerPid") == str(os.getpid())
