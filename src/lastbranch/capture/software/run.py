"""The software branch record: engine, trigger and sideband are chosen here, and the collector runs."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import IO

from ...errors import UnavailableError
from ...lbr import KIND, convert
from .. import ptrace
from ..launch import exit_code, launch, received
from ..options import DEFAULT_SELECT, Options, Summary
from ..perf_events.syscall import CPU_CLOCK, FLAG, USER_ONLY, attribute, more_files, open_event
from ..ptrace import ticking
from ..traceable import (
    check_machine,
    check_program,
    describe_attach,
    describe_exec,
    describe_launch,
    warnings_of,
)
from .block_step import BlockStep, DebugRegisters, PerfBreakpoints
from .bursts import OK, Bursts, Together, test_engines
from .collector import CALL_STACK, Collector
from .engines import Engine, Limits, SingleStep
from .schedule import ClockTrigger, PollTrigger, Trigger
from .spill import Spill, describe_running, now, sideband
from .tree import Tree

__all__ = ["record_software"]

_HARMLESS = signal.SIGURG
"""Programs ignore it, so that one which the collector leaves behind does nothing."""
_FIRST_PERIOD = 20_000_000


def record_software(
    target: Sequence[str] | int, options: Options, file: IO[bytes], command: Sequence[str], unblocked: Iterable[int],
    summary: Summary, say: Callable[[str], None], progress: Callable[[Summary], None],
) -> None:  # fmt: skip
    """Record a command or a process id into ``file`` (perf.data, pipe form), in this process, which must have no other
    children, one thread, and `SIGNALS` blocked. ``summary`` is kept up to date. ``command`` is what the file says how
    it was made. Raises `UnavailableError` or `RunError`."""
    check_machine()
    select = convert(options.select, "perf", "msr").value
    launched = not isinstance(target, int)
    with ticking():
        engine = _engine(launched, options.allow_risk, summary)
        trigger = _trigger(launched)
        summary.trigger = trigger.name
        bursts = Bursts(engine, _limits(options.depth, select), Together(both=launched))
        spill = Spill(file, options.select, options.period or _FIRST_PERIOD, options.time_period)
        start = _Launch(target) if not isinstance(target, int) else _Attach(target)
        tids = start.begin(unblocked)
        with suppress(OSError, ValueError):  # the whole system's limit may be lower
            more_files()  # each thread takes a few; what was launched keeps the limit that it has
        beside = sideband(tids, options.time_period, at_exec=launched)
        summary.sideband, bursts.beside = beside.name, beside
        spill.begin(beside.ids, command)
        collector = Collector(start.tree, start.pid, options, select, bursts, trigger, beside, spill, summary)
        watch = _Signals(start.pid, launched, collector, progress)
        collector.on_tick, collector.kills = watch.tick, launched
        collector.on_exec = lambda pid, path: _say_all(say, pid, path)
        try:
            start.go(collector, spill)
            collector.run()
        finally:
            beside.close()
            spill.flush()
        if launched and collector.root_status is not None:
            summary.exit_code = exit_code(collector.root_status)
        start.check(collector)
        if watch.last and summary.exit_code is None and launched:
            summary.exit_code = 128 + watch.last


def _engine(launched: bool, allow_risk: bool, summary: Summary) -> Engine:
    """The first engine that passes the self-test, of those that may be used."""
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
        raise UnavailableError(f"no engine passes the start-up test here ({said})")
    if not launched and good[0] not in safe and not allow_risk:
        said = summary.self_test[safe[0].name]
        raise UnavailableError(
            f"perf breakpoints cannot be used here ({said}); with the other engines the process would be killed if the "
            "collector were killed in the middle of a burst",
            hint="--allow-risk takes that risk; or launch the program with `lastbranch record COMMAND`",
        )
    summary.engine = good[0].name
    return good[0]


def _trigger(launched: bool) -> Trigger:
    """Perf events if they are allowed. What is attached must survive us: no SIGSTOP there."""
    try:
        flags = USER_ONLY | FLAG["disabled"]
        os.close(open_event(attribute(CPU_CLOCK, flags, period=_FIRST_PERIOD), 0))
    except OSError:
        return PollTrigger()
    return ClockTrigger(signal.SIGSTOP if launched else _HARMLESS)


def _limits(depth: int, select: int) -> Limits:
    """A burst is full when so many branches passed the filter. In call-stack mode calls and returns come and go: there
    it looks at twice as many."""
    twice = depth * 2 if select & CALL_STACK else depth
    if select == convert(DEFAULT_SELECT, "perf", "msr").value:
        return Limits(twice, stops=64 + 16 * depth)  # all of them: a recording starts without NumPy
    import numpy as np

    from ...lbr import held

    one = np.ones(1, np.uint64)
    counted = frozenset(
        kind for kind in KIND.values()
        if len(held(one, one << np.uint64(8), np.array([kind], np.uint8), depth=1, select=select & ~CALL_STACK))
    )  # fmt: skip
    return Limits(twice, counted, stops=64 + 16 * depth)


class _Launch:
    """A command to be recorded."""

    def __init__(self, command: Sequence[str]) -> None:
        found = shutil.which(command[0])
        if found:
            check_program(found)
        self.command, self.tree, self.pid = command, Tree(), -1

    def begin(self, unblocked: Iterable[int]) -> list[int]:
        try:
            self.child = launch(self.command, unblocked)
        except OSError as error:
            raise describe_launch(error) from error
        self.pid = self.child.pid
        self.tree.add(self.pid, self.pid)
        return [self.pid]

    def go(self, collector: Collector, spill: Spill) -> None:
        self.child.release()

    def check(self, collector: Collector) -> None:
        """Raises `RunError` if it was never executed."""
        error = self.child.failed()
        if error is not None:
            raise describe_exec(self.command[0], error)


class _Attach:
    """A process that runs already, with all its threads."""

    def __init__(self, pid: int) -> None:
        check_program(f"/proc/{pid}/exe")
        self.pid, self.tree = pid, Tree()
        self._since = 0
        """Before its first sample."""

    def begin(self, unblocked: Iterable[int]) -> list[int]:
        self._since = now()
        while new := self._threads() - set(self.tree.threads):  # threads may be made while we look
            for tid in new:
                try:
                    ptrace.seize(tid, ptrace.FOLLOW)
                except (OSError, ptrace.Gone) as error:
                    if tid != self.pid:
                        continue
                    why = error if isinstance(error, OSError) else OSError(errno.ESRCH, "No such process")
                    raise describe_attach(tid, why) from error
                self.tree.add(tid, self.pid)
        if not self.tree.threads:
            raise UnavailableError(f"there is no process {self.pid}")
        return list(self.tree.threads)

    def _threads(self) -> set[int]:
        try:
            return {int(name) for name in os.listdir(f"/proc/{self.pid}/task")}
        except OSError:
            return set()

    def go(self, collector: Collector, spill: Spill) -> None:
        describe_running(spill, self._since, self.pid, list(self.tree.threads))
        for thread in self.tree.threads.values():
            collector.arm(thread)

    def check(self, collector: Collector) -> None: ...


class _Signals:
    """Signals to the collector: the first one is the program's, the second ends the recording."""

    def __init__(self, pid: int, launched: bool, collector: Collector, progress: Callable[[Summary], None]) -> None:
        self.pid, self.launched, self.collector, self.progress = pid, launched, collector, progress
        self.last = 0

    def tick(self, summary: Summary) -> None:
        while (found := received()) is not None:
            if self.last or not self.launched:
                self.collector.stop()
            else:
                found.forward(self.pid)
            self.last = found.number
        self.progress(summary)


def _say_all(say: Callable[[str], None], pid: int, path: str) -> None:
    for sentence in warnings_of(pid, path):
        say(sentence)
