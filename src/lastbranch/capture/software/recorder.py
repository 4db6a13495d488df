"""A software recording in one process: engine, trigger, sideband, and the collector that runs with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ...errors import UnavailableError
from ...formats.perfdata.record_file import Sink
from ...lbr import CALL_STACK, convert
from .. import ptrace
from ..architectures import HERE
from ..launch import Interruptions
from ..options import Options, Summary, Targets
from ..overflow import loss_of
from ..perf_events.cpu_times import CpuTimes, Ran
from ..perf_events.syscall import read_count
from ..ptrace import ticking
from ..switch_output import Switcher
from ..traceable import check_machine, warnings_of
from .burst_choice import limits_of
from .burst_runner import BurstRunner, SharedProcessor, ThreadsProcessor
from .collector import Collector
from .engine_choice import FIRST_PERIOD, choose_ahead, choose_engine, choose_trigger
from .record_writer import RecordWriter, now
from .self_check import report_time
from .tracing import Traced, threads_of, warning_of_handlers
from .tree import Process, Thread

__all__ = ["record_software"]

_SLOWER = "the compiled library is not in use: bursts take longer (`lastbranch doctor` says why)"
_ONLY_AHEAD = "bursts are foreseen only: what cannot be foreseen is not recorded, since no breakpoints can be used here"
_SLOWER_HERE = f"no part of the compiled library is for bursts on {HERE.title}: they take longer than on 64-bit x86"


def record_software(
    target: Sequence[str] | int | Targets,
    options: Options,
    file: Sink,
    command: Sequence[str],
    unblocked: Iterable[int],
    summary: Summary,
    say: Callable[[str], None],
    progress: Callable[[Summary], None],
    stop: Callable[[], bool] = lambda: False,
    switcher: Switcher | None = None,
) -> None:
    """Record a command, a process id or `Targets` (these with a sideband for their group alone) into ``file``
    (perf.data, pipe form), in this process, which must have no other children, one thread, and `SIGNALS` blocked.
    ``summary`` is kept up to date, ``command`` is stored in the file as the command that recorded. The recording ends
    early where ``stop`` is true, and the program runs on. Raises `UnavailableError` or `RunError`, and `CollectorError`
    where it ended because no disk has room for more."""
    check_machine()
    select = convert(options.select, "perf", "msr").value if options.ring is None else options.ring
    launched = not isinstance(target, int | Targets)
    with ticking():
        ahead = None if options.calls or options.run_ahead == "never" else choose_ahead(summary)
        engine = choose_engine(launched, options.allow_risk, summary, needed=ahead is None)
        summary.engine = "; ".join(one.name for one in (ahead, engine) if one is not None)
        if ptrace.compiled() is None:
            summary.notes = (*summary.notes, _SLOWER if HERE.compiled else _SLOWER_HERE)
        trigger = choose_trigger(launched)
        summary.trigger = trigger.name
        if engine is None:
            summary.notes = (*summary.notes, _ONLY_AHEAD)
        limits, lengths = limits_of(options, select, cheap=ahead is not None)
        processor = SharedProcessor() if launched else ThreadsProcessor()
        bursts = BurstRunner(engine, limits, processor, ahead=ahead, of_all=options.run_ahead == "always")
        summary.call_graph = graph = _call_graph(options.call_graph, select)
        period = options.burst_period or FIRST_PERIOD
        out = RecordWriter(file, options.select, period, options.time_period, graph, calls=bool(options.calls))
        times = CpuTimes()
        traced = Traced(target, unblocked, times)
        bursts.sideband = sideband = traced.sideband(options.time_period, graph, summary)
        out.begin(sideband.ids, command)
        if switcher is not None:
            out.carry_state()
        collector = Collector(
            traced.tree,
            traced.root,
            options,
            select,
            bursts,
            lengths,
            trigger,
            sideband,
            out,
            summary,
            kills=launched,
            report_time=report_time(),
            watched=traced.watched,
        )
        signals = Interruptions(traced.root if launched else None)

        def tick(summary: Summary) -> None:
            if signals.enough() or stop() or out.full:
                collector.stop()
            out.ran(times.ended())
            progress(summary)
            if switcher is not None and switcher.due(out.size) and not collector.stopping:
                moment = now()
                sideband.drain(out)
                out.ran(times.running(_tasks(collector)))
                out.flush()
                out.switch(switcher.next_file(summary), moment)

        def warn(pid: int, path: str) -> None:
            for sentence in warnings_of(pid, path):
                say(sentence)

        warn_of_handlers = warning_of_handlers(say)

        def attached(process: Process) -> None:
            times.attach(process.pid, process.threads)
            warn_of_handlers(process)

        collector.on_tick, collector.on_exec, collector.on_attached = tick, warn, attached
        if not times.works:
            collector.on_ended = lambda thread: out.ran(_count_of(thread))
        try:
            traced.begin(collector.arm_running, out, say)
            collector.run()
            out.ran(times.ended())
            out.ran(times.running(_tasks(collector)))
            summary.notes += times.notes
        finally:
            times.close()
            bursts.processor.close()
            sideband.close()
            out.end()
        traced.check_end(collector.root_status, signals.last, summary)
        if out.full:
            raise loss_of(out.dropped)


def _tasks(collector: Collector) -> Iterator[tuple[int, int]]:
    """(pid, tid) of the threads that run."""
    for pid in collector.processes:
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
