"""A software recording in one process: engine, trigger, sideband, and the collector that runs with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...errors import UnavailableError
from ...formats.perfdata.record_file import Sink
from ...lbr import CALL_STACK, convert
from .. import ptrace
from ..architectures import HERE
from ..full_disk import loss_of
from ..launch import Interruptions
from ..options import Callbacks, Options, SoftwareRequest, Summary, Targets
from ..perf_events.cpu_times import CpuTimes, Ran
from ..perf_events.syscall import read_count
from ..ptrace import ticking
from ..switch_output import Switcher
from ..traceable import check_machine, warnings_of
from .burst_runner import BurstRunner, SharedProcessor, ThreadsProcessor
from .collector import Collector
from .engine_choice import FIRST_PERIOD, choose_ahead, choose_engine, choose_trigger
from .record_writer import RecordWriter, Sideband, now
from .schedule import limits_of
from .self_check import report_time
from .state import RecordingListener, RecordingSettings, RecordingState
from .tracing import Traced, threads_of, warning_of_handlers
from .tree import Process, Thread

__all__ = ["record_software"]

_SLOWER = "the compiled library is not in use: bursts take longer (`lastbranch doctor` says why)"
_ONLY_AHEAD = "bursts are foreseen only: what cannot be foreseen is not recorded, since no breakpoints can be used here"
_SLOWER_HERE = f"no part of the compiled library is for bursts on {HERE.title}: they take longer than on 64-bit x86"


def record_software(
    request: SoftwareRequest,
    file: Sink,
    callbacks: Callbacks,
    unblocked: Iterable[int],
    summary: Summary,
    switcher: Switcher | None = None,
) -> None:
    """Record the request's target (of `Targets`, a sideband for the group alone) into ``file`` (perf.data, pipe form),
    in this process, which must have no other children, one thread, and `SIGNALS` blocked. ``summary`` is kept up to
    date. Raises `UnavailableError` or `RunError`, and `CollectorError` where it ended because no disk has room for
    more."""
    check_machine()
    options, launched = request.options, not isinstance(request.target, int | Targets)
    select = convert(options.select, "perf", "msr").value if options.ring is None else options.ring
    with ticking():
        tools = _Tools(options, select, launched, summary)
        summary.call_graph = graph = _call_graph(options.call_graph, select)
        period = options.burst_period or FIRST_PERIOD
        out = RecordWriter(file, options.select, period, options.time_period, graph, calls=bool(options.calls))
        times = CpuTimes()
        traced = Traced(request.target, unblocked, times)
        sideband = traced.sideband(options.time_period, graph, summary)
        out.begin(sideband.ids, request.command)
        if switcher is not None:
            out.carry_state()
        settings = RecordingSettings(options, select, traced.root, launched, report_time())
        state = RecordingState(settings, traced.tree, tools.runner(sideband), tools.trigger, sideband, out, summary)
        listener = _RecorderListener(state, times, callbacks, switcher)
        collector = Collector(state, tools.lengths, listener, traced.watched)
        try:
            traced.begin(state.arm_running, out, callbacks.say)
            collector.run()
            out.ran(times.ended())
            out.ran(times.running(_tasks(state)))
            summary.notes += times.notes
        finally:
            times.close()
            tools.processor.close()
            sideband.close()
            out.end()
        traced.check_end(collector.tasks.root_status, listener.interruptions.last, summary)
        if out.full:
            raise loss_of(out.dropped)


class _Tools:
    """The tools that take the bursts of a recording; ``summary`` says what was chosen."""

    def __init__(self, options: Options, select: int, launched: bool, summary: Summary) -> None:
        """Raises `UnavailableError` where there is nothing that can."""
        ahead = None if options.calls or options.run_ahead == "never" else choose_ahead(summary)
        engine = choose_engine(launched, options.allow_risk, summary, needed=ahead is None)
        summary.engine = "; ".join(one.name for one in (ahead, engine) if one is not None)
        if ptrace.compiled() is None:
            summary.notes = (*summary.notes, _SLOWER if HERE.compiled else _SLOWER_HERE)
        self.trigger = choose_trigger(launched)
        summary.trigger = self.trigger.name
        if engine is None:
            summary.notes = (*summary.notes, _ONLY_AHEAD)
        self._limits, self.lengths = limits_of(options, select, cheap=ahead is not None)
        self.processor = SharedProcessor() if launched else ThreadsProcessor()
        self._engine, self._ahead, self._of_all = engine, ahead, options.run_ahead == "always"

    def runner(self, sideband: Sideband) -> BurstRunner:
        return BurstRunner(
            self._engine,
            self._limits,
            self.processor,
            sideband,
            ahead=self._ahead,
            of_all=self._of_all,
            hold=self.trigger.hold,
        )


class _RecorderListener(RecordingListener):
    """Writes CPU times, warns of what tracing changes, and ends the recording or goes on in a new file in time."""

    def __init__(self, state: RecordingState, times: CpuTimes, callbacks: Callbacks, switcher: Switcher | None) -> None:
        self._state, self._times, self._callbacks, self._switcher = state, times, callbacks, switcher
        self._warn_of_handlers = warning_of_handlers(callbacks.say)
        settings = state.settings
        self.interruptions = Interruptions(settings.root if settings.kills else None)

    def on_exec(self, pid: int, path: str) -> None:
        for sentence in warnings_of(pid, path):
            self._callbacks.say(sentence)

    def on_attach(self, process: Process) -> None:
        self._times.attach(process.pid, process.threads)
        self._warn_of_handlers(process)

    def on_end(self, thread: Thread) -> None:
        if not self._times.works:
            self._state.out.ran(_count_of(thread))

    def on_tick(self, summary: Summary) -> None:
        state, out, switcher = self._state, self._state.out, self._switcher
        if self.interruptions.enough() or self._callbacks.stop() or out.full:
            state.stopping = True
        out.ran(self._times.ended())
        self._callbacks.progress(summary)
        if switcher is not None and switcher.due(out.size) and not state.stopping:
            moment = now()
            state.sideband.drain(out)
            out.ran(self._times.running(_tasks(state)))
            out.flush()
            out.switch(switcher.next_file(summary), moment)


def _tasks(state: RecordingState) -> Iterator[tuple[int, int]]:
    """(pid, tid) of the threads that run."""
    for pid in state.let_go | set(state.tree.processes):
        yield from ((pid, tid) for tid in threads_of(pid))


def _count_of(thread: Thread) -> Iterator[Ran]:
    """The CPU time of a thread that has ended, which its trigger has counted since it was armed."""
    if thread.clock >= 0:
        yield Ran(thread.process.pid, thread.tid, read_count(thread.clock), now())


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
