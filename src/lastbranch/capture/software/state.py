"""The state that the parts of a software recording share: settings, tools, and facts about the threads."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch

from .. import ptrace
from ..foreign_binaries import ForeignBinaries
from ..options import Options, Summary
from .burst_runner import BurstRunner
from .burst_writer import BurstWriter
from .call_chains import CallChains
from .kept_file import KeptFile
from .losses import Losses
from .record_writer import RecordWriter, Sideband, SidebandListener
from .schedule import Budget, Duty, Trigger
from .tree import Process, Thread, Tree, ran_and_queued
from .unwinder import Unwinder

__all__ = ["RecordingListener", "RecordingSettings", "RecordingState", "StopCosts"]

_MOST_STOPS = 0.02
"""Seconds that stops for new tasks and for signals may cost at once: a hundred of them."""


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """The settings of a software recording, which do not change."""

    options: Options
    select: int
    """The ring's (MSR_LBR_SELECT notation)."""
    root: int
    """The recording ends with this process; 0: it watches processes until it is stopped."""
    kills: bool
    """Threads are killed if we end (PTRACE_O_EXITKILL)."""
    report_time: float
    """Seconds that it takes until a stop is reported."""

    @property
    def ptrace_options(self) -> int:
        """PTRACE_O_* of traced threads."""
        calls = ptrace.TRACE_CALLS if self.options.calls else 0
        return ptrace.FOLLOW | (ptrace.EXITKILL if self.kills else 0) | calls

    def options_of(self, thread: Thread) -> int:
        """PTRACE_O_* of a traced thread, whose new threads may be too many to follow."""
        return self.ptrace_options if thread.follows else self.ptrace_options & ~ptrace.THREADS

    def is_ignored(self, path: str) -> bool:
        """Whether programs at ``path`` are not to be recorded."""
        return any(fnmatch(path, p) or fnmatch(os.path.basename(path), p) for p in self.options.no_follow)


class RecordingListener:
    """Gets the events of a recording. This base class ignores them."""

    def on_exec(self, pid: int, path: str) -> None:
        """A process has executed the program at ``path``."""

    def on_attach(self, process: Process) -> None:
        """A process of a watched group is traced from now on."""

    def on_end(self, thread: Thread) -> None:
        """A thread has ended, whose trigger is still there."""

    def on_tick(self, summary: Summary) -> None:
        """The summary is up to date; this happens many times a second."""


class StopCosts:
    """The cost of stops for the program, and a budget for stops without a burst: at new tasks, each of which stops at
    least twice, and at the program's signals."""

    def __init__(self, share: float, report_time: float, summary: Summary) -> None:
        """``share``: of wall time."""
        self._budget = Budget(share, _MOST_STOPS, _MOST_STOPS)
        self._report_time, self._summary = report_time, summary
        self._own_schedstat = KeptFile("/proc/self/schedstat")
        self._since, self._worked, self.queued = 0.0, 0.0, 0
        """When the thread of the present stop stopped, our CPU time when it was reported, and for how many ns we had
        waited for a processor before."""

    def close(self) -> None:
        self._own_schedstat.close()

    def begin_wait(self) -> None:
        """We are about to wait for a stop."""
        self.queued = self.queued_now()

    def queued_now(self) -> int:
        """ns for which we have waited for a processor so far."""
        return ran_and_queued(self._own_schedstat)[1]

    def begin(self) -> None:
        """A stop was reported."""
        self._worked = time.process_time()
        self._since = time.perf_counter() - (self.queued_now() - self.queued) / 1e9 - self._report_time

    def begin_work(self) -> None:
        """Our CPU time counts from now on."""
        self._worked = time.process_time()

    def elapsed(self) -> float:
        """Seconds since the thread stopped."""
        return time.perf_counter() - self._since

    def end_burst(self, ended: float) -> float:
        """The burst of the present stop ended at ``ended`` (`time.perf_counter`): the seconds that all of it took."""
        took, self._since = ended - self._since, ended
        self._worked = time.process_time()
        return took

    def end_without_burst(self) -> None:
        """The trigger of the present stop has no burst, and its thread runs again."""
        self._summary.in_stops += self.elapsed()
        self._summary.stops += 1

    def own_time(self) -> float:
        """Our CPU time since the present stop, and what its report took, in seconds."""
        return time.process_time() - self._worked + self._report_time

    def end(self) -> None:
        """The present stop is no burst's. The stop has cost our CPU time: if others run before us, they would run
        before the program, too."""
        self._spend(self.own_time(), 1)

    def count_passed(self, stops: int, worked: float, since: float) -> None:
        """Signals were passed on at so many ``stops``, from ``since`` on. Our CPU time was ``worked`` then."""
        took = time.process_time() - worked + stops * self._report_time
        self._spend(min(took, time.perf_counter() - since), stops)

    def _spend(self, seconds: float, stops: int) -> None:
        self._budget.spend(seconds)
        self._summary.in_stops += seconds
        self._summary.stops += stops

    def spend(self) -> None:
        """Our CPU time counts, although no thread was stopped for it."""
        self._budget.spend(self.own_time())

    @property
    def too_many(self) -> bool:
        """Whether they cost more than they may."""
        return self._budget.left() <= 0

    @property
    def few(self) -> bool:
        """Whether they cost much less than they may."""
        return self._budget.left() > _MOST_STOPS / 2


class RecordingState(SidebandListener):
    """The settings and the tools of a recording, and what is known of its threads."""

    def __init__(
        self,
        settings: RecordingSettings,
        tree: Tree,
        runner: BurstRunner,
        trigger: Trigger,
        sideband: Sideband,
        out: RecordWriter,
        summary: Summary,
    ) -> None:
        options = settings.options
        self.settings, self.tree, self.runner, self.trigger = settings, tree, runner, trigger
        self.sideband, self.out, self.summary = sideband, out, summary
        sideband.listener = self
        self.duty = Duty(options.duty, options.burst_period, cheap=runner.ahead is not None)
        self.stops = StopCosts(options.duty / 2, settings.report_time, summary)
        self.losses = Losses(tree, out, summary)
        self.chains = CallChains(Unwinder() if summary.call_graph == "dwarf" else None)
        self.writer = BurstWriter(options, settings.select, runner.limits, self.chains, out, summary)
        self.foreign = ForeignBinaries()
        self.stopping = False
        """Whether the recording is to end now; programs continue."""
        self.ended = Counter[str]()
        """Bursts by the reason for their end."""
        self.lapsed = set[int]()
        """Threads whose burst has missed its deadline, the next stops of which may be ours."""
        self.draws = False
        """Whether the program has been let go between bursts, which are drawn."""
        self.owed = 0
        """ns of CPU time that are not yet in the weight of a drawn burst."""
        self.let_go = set[int]()
        """Processes that were let go, and all their descendants."""

    @contextmanager
    def beside(self) -> Iterator[bool]:
        """Do what no stopped thread waits for; whether a processor is spare. Else the program has lost the time."""
        worked = time.thread_time()
        with self.runner.processor.giving_way() as spare:
            yield spare
        if not spare:
            self.summary.beside += time.thread_time() - worked

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
            self.losses.note_unrecorded(thread.tid, thread.process.pid, error)

    def arm_running(self, tids: Iterable[int]) -> None:
        """Give threads that were running before their triggers."""
        for tid in tids:
            thread = self.tree.threads[tid]
            thread.seen = thread.stat()
            self.arm(thread)

    def rearm(self, thread: Thread) -> None:
        """Let the trigger of a stopped thread count again."""
        thread.spent = self.trigger.used(thread)
        self.trigger.rearm(thread, self.duty.next_period(self.stops.elapsed()))

    def leave(self, tids: Iterable[int]) -> None:
        """Let these threads go, each at its next stop."""
        for thread in map(self.tree.threads.__getitem__, tids):
            thread.leaves = thread.process.drawn = True
            self.let_go.add(thread.process.pid)

    def miss(self, why: str, weight: int) -> None:
        """A thread that was drawn has no burst: the next ones get its weight."""
        self.losses.skipped[why] += 1
        self.owed += weight

    # -- what the sideband tells

    def on_mapping(self, pid: int, names: Iterable[str]) -> None:
        with self.losses.contain(pid):
            self.foreign.seen(pid, names)
            if (process := self.tree.processes.get(pid)) is not None:
                self.chains.mapped(process)

    @property
    def follows_processes(self) -> bool:
        return self.draws

    def on_fork(self, pid: int, parent: int) -> None:
        if parent in self.let_go:
            self.let_go.add(pid)

    def on_exit(self, pid: int) -> None:
        self.let_go.discard(pid)
