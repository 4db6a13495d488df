"""The engines: on code whose branches are known, and with stops that are not theirs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import hypot, sqrt
from pathlib import Path
from unittest import mock

import pytest

from capture_tools import needs_ptrace
from lastbranch.capture import ptrace
from lastbranch.capture.procfs import fixed_program, parse_stat, stat_of
from lastbranch.capture.ptrace import event_of, next_stop, signal_of, ticking
from lastbranch.capture.software import self_check
from lastbranch.capture.software.burst_runner import BurstRunner, NoBurst, SharedProcessor, ThreadsProcessor, Watch
from lastbranch.capture.software.bursts import Burst, BurstLimits
from lastbranch.capture.software.control_flow import End, Fork
from lastbranch.capture.software.engines import (
    BlockStep,
    DebugRegisters,
    Engine,
    PerfBreakpoints,
    SingleStep,
    Target,
    moves,
)
from lastbranch.capture.software.tree import Thread
from traced_program import halt, in_main_loop

pytestmark = needs_ptrace
ENGINES = {
    "debug registers": lambda: BlockStep(DebugRegisters()),
    "perf breakpoints": lambda: BlockStep(PerfBreakpoints()),
    "single steps": SingleStep,
}


@pytest.fixture(autouse=True)
def _ticks() -> Iterator[None]:
    with ticking():
        yield


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_sees_just_the_branches_of_known_code(name: str) -> None:
    engine: Engine = ENGINES[name]()
    assert self_check.test_engines([engine]) == {engine.name: self_check.OK}


def test_the_start_up_test_finds_an_engine_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SingleStep()
    true = engine.burst

    def wrong(*arguments: object) -> Burst:
        burst = true(*arguments)  # type: ignore[arg-type]
        source, target, kind = burst.edges[20]
        burst.edges[20] = source, target + 1, kind
        return burst

    monkeypatch.setattr(engine, "burst", wrong)
    assert self_check.test_engines([engine]) == {engine.name: "branch 20 is wrong"}


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thread]:
    """A traced thread in `branches`, stopped in its main loop."""
    with in_main_loop(tmp_path_factory.getbasetemp()) as thread:
        yield thread


PATIENT = BurstLimits(seconds=10)
"""On a busy machine the deadline of a recording may pass before a stop that is sure to come."""


def bursts(engine: Engine, limits: BurstLimits = PATIENT) -> BurstRunner:
    return BurstRunner(engine, limits, SharedProcessor())


@pytest.mark.parametrize("name", ENGINES)
def test_a_burst_has_no_gaps_and_leaves_nothing(name: str, running: Thread) -> None:
    runner = bursts(ENGINES[name](), BurstLimits(100, seconds=10))
    processors, before = os.sched_getaffinity(running.tid), stat_of(running.tid)
    burst, _ = runner.run(running, lambda status: False)
    assert burst.why == "full"
    assert len(burst.edges) >= 100
    # From each target a straight line leads to the next source.
    successors = running.process.successors
    assert successors is not None
    for (_, target, _), (source, _, _) in pairwise(burst.edges):
        place = target
        while (branch := successors.line(place)) is not None and branch.address != source:
            assert branch.kind == 1, "only conditional branches are passed"
            place = branch.address + branch.length
        assert branch is not None
    after = stat_of(running.tid)
    assert before is not None
    assert after is not None
    assert (after.blocked, after.ignored, after.caught) == (before.blocked, before.ignored, before.caught)
    assert os.sched_getaffinity(running.tid) == processors
    assert os.sched_getscheduler(running.tid) == os.SCHED_OTHER
    ptrace.cont(running.tid)
    assert next_stop(running.tid, 0.2) is None, "no breakpoint and no trap flag is left"


@pytest.mark.parametrize("name", ENGINES)
def test_a_signal_ends_the_burst_and_is_handed_on(name: str, running: Thread) -> None:
    os.kill(running.tid, signal.SIGUSR1)
    burst, _ = bursts(ENGINES[name]()).run(running, lambda status: False)
    assert burst.why == "signal"
    assert burst.status is not None
    assert signal_of(burst.status) == signal.SIGUSR1


@pytest.mark.parametrize("name", ["debug registers", "perf breakpoints"])
def test_engines_agree_on_how_often_edges_are_taken(name: str, running: Thread) -> None:
    """Shares of all edges within three standard errors over bursts, and 0.01 for there being many edges."""
    runners = {name: bursts(ENGINES[name]()), "single steps": bursts(SingleStep())}
    seen: dict[str, list[Counter[tuple[int, int, int]]]] = {of: [] for of in runners}
    chance = random.Random(1)
    for _ in range(120):
        for of, runner in runners.items():
            ptrace.cont(running.tid)
            signal.sigtimedwait([], chance.uniform(0.0005, 0.002))
            halt(running)
            running.process.successors = None  # each engine has ends of its own
            burst, _ = runner.run(running, lambda status: False)
            assert burst.status is None
            if burst.why == "full":
                seen[of].append(Counter(burst.edges))
    one, two = ({edge: share(edge, found) for edge in set().union(*found)} for found in seen.values())
    often = [edge for edge in one if one[edge][0] > 0.02]
    assert len(often) > 5
    for edge in often:
        (p, error), (q, other) = one[edge], two.get(edge, (0.0, 0.0))
        assert abs(p - q) <= 0.01 + 3 * hypot(error, other), (edge, p, q)


def share(edge: tuple[int, int, int], found: list[Counter[tuple[int, int, int]]]) -> tuple[float, float]:
    """Of all records, with its standard error over bursts."""
    records = sum(burst.total() for burst in found)
    p = sum(burst[edge] for burst in found) / records
    return p, sqrt(sum((burst[edge] - p * burst.total()) ** 2 for burst in found)) / records


def test_a_real_trap_is_not_taken_for_a_breakpoint(running: Thread) -> None:
    os.kill(running.tid, signal.SIGTRAP)
    burst, _ = bursts(BlockStep(DebugRegisters())).run(running, lambda status: False)
    assert burst.status is not None
    assert signal_of(burst.status) == signal.SIGTRAP
    assert len(burst.edges) <= 1, "the branch it stood before"


def test_a_real_trap_at_the_very_place_of_a_breakpoint_is_not_taken_for_it(running: Thread) -> None:
    engine, registers = BlockStep(DebugRegisters()), ptrace.Registers()
    ptrace.registers(running.tid, registers)
    ptrace.registers(running.tid, engine._registers)
    here = Fork({registers[ptrace.RIP]: End(None, ())}, frozenset())  # type: ignore[dict-item]
    os.kill(running.tid, signal.SIGTRAP)
    engine.breakpoints.arm(running.tid)
    burst = Burst()
    assert engine._run(Target(running.tid, lambda status: False), here, burst, PATIENT) == "signal"
    assert burst.status is not None
    engine.breakpoints.disarm()


@pytest.mark.parametrize("name", ENGINES)
def test_a_trigger_in_a_burst_means_nothing(name: str, running: Thread) -> None:
    os.kill(running.tid, signal.SIGUSR2)
    burst, _ = bursts(ENGINES[name]()).run(running, lambda status: signal_of(status) == signal.SIGUSR2)
    assert burst.why == "full"
    assert burst.status is None


@pytest.mark.parametrize("name", ENGINES)
def test_a_thread_that_is_killed_in_a_burst_is_gone(name: str, running: Thread) -> None:
    os.kill(running.tid, signal.SIGKILL)
    try:
        burst, _ = bursts(ENGINES[name]()).run(running, lambda status: False)
    except ptrace.Gone:
        return
    assert burst.why == "gone"
    assert burst.status is not None
    assert os.WTERMSIG(burst.status) == signal.SIGKILL


@pytest.mark.parametrize("name", ["debug registers", "perf breakpoints"])
def test_a_wait_that_takes_too_long_drops_the_burst(name: str, running: Thread) -> None:
    """Breakpoints are put where the program never comes."""
    make = {"debug registers": DebugRegisters, "perf breakpoints": lambda: PerfBreakpoints()}
    engine = BlockStep(make[name](), walks=False)
    ends = Fork({0x10: End(None, ())}, frozenset())  # type: ignore[dict-item]
    runner = bursts(engine, BurstLimits(seconds=0.05))
    real, engine.breakpoints.place = engine.breakpoints.place, lambda fork: real(ends)  # type: ignore[method-assign]
    burst, _ = runner.run(running, lambda status: False)
    assert burst.dropped
    assert running.timed_out
    status = next_stop(running.tid, 5)
    assert status is not None
    assert event_of(status) == ptrace.EVENT_STOP
    runner.clean(running)
    assert not running.timed_out
    ptrace.cont(running.tid)
    assert next_stop(running.tid, 0.1) is None


@pytest.mark.parametrize("name", ["debug registers", "perf breakpoints"])
def test_a_breakpoint_of_ours_where_no_path_leads_ends_the_burst_and_never_the_program(
    name: str, running: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal of that stop would kill the program if it were handed on."""
    known, _ = bursts(ENGINES[name]()).run(running, lambda status: False)
    assert known.why == "full"
    sources = {source for source, _, _ in known.edges}
    elsewhere = next(target for _, target, _ in known.edges if target not in sources)
    make = {"debug registers": DebugRegisters, "perf breakpoints": PerfBreakpoints}
    engine = BlockStep(make[name](), walks=False)
    wrong = Fork({elsewhere: End(mock.Mock(), ())}, frozenset())
    place = engine.breakpoints.place
    monkeypatch.setattr(engine.breakpoints, "place", lambda fork: place(wrong))
    burst, _ = bursts(engine).run(running, lambda status: False)
    assert (burst.why, burst.status) == ("unexpected path", None)
    ptrace.cont(running.tid)
    assert next_stop(running.tid, 0.2) is None, "it runs on"


def test_threads_that_ignore_sigtrap_have_no_burst(running: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = stat_of(running.tid)
    assert stat is not None
    monkeypatch.setattr(Thread, "stat", lambda thread: stat._replace(ignored=1 << 4))
    with pytest.raises(NoBurst, match="SIGTRAP is ignored"):
        bursts(SingleStep()).run(running, lambda status: False)
    burst, _ = bursts(BlockStep(PerfBreakpoints())).run(running, lambda status: False)
    assert burst.why == "full"


@pytest.fixture
def realtime() -> int:
    """Our own scheduling policy, where it may be replaced by a real-time one."""
    ours = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, ours, os.sched_param(0))
    except PermissionError:
        pytest.skip("real-time priorities are not allowed here")
    return ours


def test_the_tracer_is_realtime_of_others_until_the_outermost_end(realtime: int) -> None:
    ours = realtime
    processor = SharedProcessor()
    with processor.realtime():
        assert os.sched_getscheduler(0) == os.SCHED_FIFO
        with processor.realtime():
            pass
        assert os.sched_getscheduler(0) == os.SCHED_FIFO
    assert os.sched_getscheduler(0) == ours


def test_processes_of_a_program_share_what_is_known_of_its_code(running: Thread) -> None:
    runner = bursts(BlockStep(DebugRegisters()), BurstLimits(50, seconds=10))
    runner.run(running, lambda status: False)
    known = running.process.successors
    running.process.forget()  # as another process would begin
    runner.run(running, lambda status: False)
    assert running.process.successors is known
    assert fixed_program(running.tid) is not None
    assert fixed_program(-1) is None


def test_a_thread_that_may_outlive_us_is_left_as_it_is(running: Thread, realtime: int) -> None:
    """Where it runs, and with which priority; we give way to it, and have our own priority again afterwards."""
    seen: list[tuple[int, ...]] = []

    class Looking(ThreadsProcessor):
        @contextmanager
        def with_thread(self, tid: int, last: int) -> Iterator[int]:
            before = tuple(os.sched_getaffinity(tid)), os.sched_getscheduler(tid)
            with super().with_thread(tid, last) as cpu:
                assert (tuple(os.sched_getaffinity(tid)), os.sched_getscheduler(tid)) == before
                seen.append((os.sched_getscheduler(0), *os.sched_getaffinity(0)))
                yield cpu

    ours, processor = os.sched_getaffinity(0), Looking()
    try:
        runner = BurstRunner(BlockStep(PerfBreakpoints()), BurstLimits(50, seconds=10), processor)
        burst, cpu = runner.run(running, lambda status: False)
    finally:
        processor.close()
    assert burst.why == "full"
    assert seen[0] in {(policy, cpu) for policy in (os.SCHED_IDLE, os.SCHED_FIFO)}  # a busy machine gives it back
    assert os.sched_getaffinity(0) == ours
    assert os.sched_getscheduler(0) == realtime


def test_who_gives_way_too_long_gets_its_priority_back(realtime: int) -> None:
    watch = Watch()
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        watch.begin()
        for _ in range(100):
            time.sleep(0.05)  # as if others ran
            if os.sched_getscheduler(0) == os.SCHED_FIFO:
                break
        assert watch.end()
        assert os.sched_getscheduler(0) == os.SCHED_FIFO
        assert not watch.end(), "once is enough"
    finally:
        watch.close()
        os.sched_setscheduler(0, realtime, os.sched_param(0))


def test_breakpoints_move_as_little_as_they_can() -> None:
    def fork(*ends: int, passed: tuple[int, ...] = ()) -> Fork:
        return Fork(dict.fromkeys(ends), frozenset(), tuple((a, a) for a in passed))  # type: ignore[arg-type]

    assert moves((), fork(1)) == (((0, 1),), (1,))
    assert moves((1,), fork(1, 2)) == (((1, 2),), (1, 2))
    assert moves((1, 2), fork(2)) == ((), (1, 2))  # 1 may stay: nothing leads past it
    assert moves((1, 2), fork(2, passed=(1,))) == (((0, 2),), (2, 2))
    assert moves((2, 2), fork(3, 4)) == (((0, 4), (1, 3)), (4, 3))
    assert moves((4, 3), fork(5, passed=(3,))) == (((1, 5),), (4, 5))
    assert moves((2, 2), fork(1, 2)) == (((1, 1),), (2, 1))  # two at one place: the second is free


def test_stat_reads_names_with_everything_in_them(tmp_path: Path) -> None:
    text = b"7 (a) b ) R 1 " + b" ".join(str(n).encode() for n in range(5, 53))
    started = 22 * 10**9 // os.sysconf("SC_CLK_TCK")
    assert parse_stat(text) == ("a) b ", "R", 1, 39, 31, 32, 33, 34, started)
