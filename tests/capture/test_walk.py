"""The compiled walk: it takes the ways that Python takes, and asks where its tables do not say."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, WALK, build, needs_ptrace, needs_walk, record
from lastbranch.capture import Summary, ptrace
from lastbranch.capture.launch import end_with_parent, launch
from lastbranch.capture.ptrace import event_of, next_stop, signal_of, stopped, ticking
from lastbranch.capture.software import engine_choice, engines, self_check, walk_tables
from lastbranch.capture.software.burst_runner import BurstRunner, SharedProcessor
from lastbranch.capture.software.bursts import Burst, BurstLimits
from lastbranch.capture.software.engines import (
    BlockStep,
    DebugRegisters,
    Engine,
    SingleStep,
    Walked,
)
from lastbranch.capture.software.successors import Successors
from lastbranch.capture.software.tree import Process, Thread
from lastbranch.capture.software.walk_tables import Context
from lastbranch.lbr import KIND
from lastbranch.native.build import compiler

pytestmark = [needs_ptrace, needs_walk]
Edges = list[tuple[int, int, int]]
SIGNAL = (0, 0, 0)
COND, CALL, UNCOND, IND, RET = (KIND[name] for name in ("cond", "call", "uncond", "ind", "ret"))


@pytest.fixture(autouse=True)
def _ticks() -> Iterator[None]:
    with ticking():
        yield


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp()


def walking(engine: Engine) -> Counter[str]:
    """How often walks of ``engine`` end how, from now on, and how many ``stops`` they make."""
    ends: Counter[str] = Counter()
    assert isinstance(engine, BlockStep)
    assert engine._walker is not None
    real = engine._walker.walk

    def walk(
        thread: Thread, successors: object, expected: object, chosen: object, burst: Burst, limits: BurstLimits
    ) -> Walked | None:
        before = burst.stops
        found = real(thread, successors, expected, chosen, burst, limits)  # type: ignore[arg-type]
        ends["stops"] += burst.stops - before
        if found is None:
            ends["not in the tables"] += 1
        elif found.here:
            ends["at an end"] += 1
        else:
            ends["before" if found.pending is None else "waiting" if found.pending.status is None else "came"] += 1
        return found

    engine._walker.walk = walk  # type: ignore[method-assign]
    return ends


# -- the same as Python, from the first instruction of a program on


def edges_of(program: Path, engine: Engine, count: int, rounds: str = "100000") -> Edges:
    """The first ``count`` edges of a program, by one burst after the other; `SIGNAL` where one was delivered."""
    child = launch([str(program), rounds], signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    child.release()
    status = next_stop(child.pid, 5)
    assert status is not None
    assert event_of(status) == ptrace.EVENT_EXEC
    thread = Thread(child.pid, Process(child.pid))
    runner, registers, edges = (
        BurstRunner(engine, BurstLimits(60, seconds=5), SharedProcessor()),
        ptrace.Registers(),
        Edges(),
    )
    try:
        while len(edges) < count:
            burst, _ = runner.run(thread, lambda status: False)
            edges += burst.edges
            successors = thread.process.successors
            assert successors is not None
            successors.widen()
            if burst.why == "full" or (burst.status is not None and signal_of(burst.status) == signal.SIGTRAP):
                continue  # the trap is of the exec, where it is a single step
            assert burst.why in ("system call", "signal", "unreadable code"), burst.why
            delivered = 0 if burst.status is None else signal_of(burst.status)
            ptrace.registers(thread.tid, registers)
            branch, place = successors.line(registers[ptrace.RIP]), registers[ptrace.RIP]
            ptrace.single_step(thread.tid, delivered)
            status = next_stop(thread.tid, 5)
            assert status is not None
            assert signal_of(status) in (signal.SIGTRAP, signal.SIGILL)
            if delivered or signal_of(status) == signal.SIGILL:
                edges.append(SIGNAL)
            if signal_of(status) == signal.SIGILL:  # of this very instruction
                ptrace.single_step(thread.tid, signal.SIGILL)
                next_stop(thread.tid, 5)
            ptrace.registers(thread.tid, registers)
            taken = branch is not None and branch.goes is not None and branch.address == place and not delivered
            if taken and registers[ptrace.RIP] != place + branch.length:  # type: ignore[union-attr]
                edges.append((place, registers[ptrace.RIP], branch.kind))  # type: ignore[union-attr]
    finally:
        thread.process.forget()
        with suppress(ProcessLookupError):
            os.kill(thread.tid, signal.SIGKILL)
        next_stop(thread.tid, 5)
    return edges[:count]


def pieces(edges: Edges) -> list[Edges]:
    """From signal to signal."""
    at = [i for i, edge in enumerate(edges) if edge == SIGNAL]
    return [edges[a:b] for a, b in zip([0, *(i + 1 for i in at)], [*at, len(edges)], strict=True)]


def agree(walked: Edges, stepped: Edges) -> None:
    """But for direct branches before a signal: what no later stop confirms is not kept."""
    assert len(walked) > 500
    for ours, theirs in zip(pieces(walked), pieces(stepped), strict=False):
        common = min(len(ours), len(theirs))
        assert ours[:common] == theirs[:common]
        assert {kind for _, _, kind in theirs[common:]} <= {CALL, UNCOND} or theirs is pieces(stepped)[-1]


@pytest.mark.parametrize("name", ["branches", "hostile"])
@pytest.mark.parametrize("alone", [True, False])
def test_the_walk_sees_what_python_and_single_steps_see(
    name: str, alone: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not ``alone``: words that other threads may write are read again at the next stop."""
    real = Successors.begin
    monkeypatch.setattr(Successors, "begin", lambda successors, **_: real(successors, alone=alone))
    program = build(folder, name, *FREESTANDING)
    engine = BlockStep(DebugRegisters())
    ends = walking(engine)
    walked = edges_of(program, engine, 3000)
    assert ends["stops"] > 3000 / 8, "most stops are the walk's"
    assert walked == edges_of(program, BlockStep(DebugRegisters(), walks=False), 3000)
    agree(walked, edges_of(program, SingleStep(), 3000))


# -- code of our own, which can be changed under it


class Crafted:
    """A traced child that runs ``code``, which is shared with us: two pages of it, and a page of words behind."""

    def __init__(self, code: bytes) -> None:
        self.memory = mmap.mmap(
            -1,
            3 * mmap.PAGESIZE,
            mmap.MAP_SHARED | mmap.MAP_ANONYMOUS,
            mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
        )
        self.memory[: len(code)] = code
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        pid = os.fork()
        if pid == 0:
            try:
                end_with_parent()
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                while True:
                    pass
            finally:
                os._exit(1)
        self.thread = Thread(pid, Process(pid))
        ptrace.seize(pid, ptrace.EXITKILL)
        ptrace.interrupt(pid)
        assert next_stop(pid, 5) is not None
        ptrace.poke_user(pid, ptrace.ORIG_RAX * 8, (1 << 64) - 1)
        self.engine = BlockStep(DebugRegisters())
        self.ends = walking(self.engine)

    def burst(
        self,
        limits: BurstLimits = BurstLimits(40, seconds=5),  # noqa: B008
        is_trigger: Callable[[int], bool] = lambda status: False,
        *,
        from_start: bool = True,
    ) -> Burst:
        """From the start of the code, or from where it stands; edges are counted from the start."""
        if from_start:
            ptrace.poke_user(self.thread.tid, ptrace.RIP * 8, self.base)
        burst, _ = BurstRunner(self.engine, limits, SharedProcessor()).run(self.thread, is_trigger)
        if self.thread.process.successors is not None:
            self.thread.process.successors.widen()
        burst.edges = [(source - self.base, target - self.base, kind) for source, target, kind in burst.edges]
        return burst

    def warm(self) -> Burst:
        """The second of two bursts, which walks."""
        self.burst()
        self.ends.clear()
        burst = self.burst()
        assert self.ends["stops"] > 3, "it walks"
        return burst

    def word(self, index: int, value: int) -> None:
        struct.pack_into("=Q", self.memory, 2 * mmap.PAGESIZE + index * 8, value)

    def close(self) -> None:
        self.thread.process.forget()
        with suppress(ProcessLookupError):
            os.kill(self.thread.tid, signal.SIGKILL)
        with suppress(ptrace.Gone):
            while (status := next_stop(self.thread.tid, 5)) is not None and stopped(status):
                pass


@contextmanager
def crafted(code: bytes) -> Iterator[Crafted]:
    found = Crafted(code)
    try:
        yield found
    finally:
        found.close()


def counting(inner: bytes) -> bytes:
    """A loop that counts ECX up and tests its lowest bits; ``inner`` must go on at 10, and stands at 5.

    0: inc ecx   2: test cl, 3   5: inner   ...   10: jmp 0"""
    return bytes.fromhex("ffc1f6c103") + inner.ljust(11, b"\x90") + bytes.fromhex("ebee")


JZ = bytes.fromhex("7403")
"""5: jz 0xa"""
JNZ = bytes.fromhex("7501")
"""5: jnz 8"""


def follow(edges: Edges) -> None:
    """Between two edges it ran straight on, past conditional branches only."""
    for (_, target, _), (source, _, _) in pairwise(edges):
        assert target <= source, (edges, target, source)


def test_code_that_is_rewritten_between_bursts_is_walked_as_it_is_now() -> None:
    with crafted(counting(JZ)) as child:
        assert set(child.warm().edges) == {(5, 0xA, COND), (0x10, 0, UNCOND)}
        child.memory[5:7] = JNZ
        found = child.burst().edges
        assert set(found) == {(5, 8, COND), (0x10, 0, UNCOND)}
        assert 2 < found.count((5, 8, COND)) > found.count((0x10, 0, UNCOND)) / 2
        child.burst()
        child.ends.clear()
        assert set(child.burst().edges) == {(5, 8, COND), (0x10, 0, UNCOND)}
        assert child.ends["stops"] > 3, "the new code is walked, too"
        child.memory[5:7] = JZ
        assert set(child.burst().edges) == {(5, 0xA, COND), (0x10, 0, UNCOND)}


@pytest.mark.parametrize("walks", [True, False])
def test_a_way_that_is_told_by_its_first_instruction_may_end_with_it(
    *, walks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands at that return already: running to it would miss it."""
    # 0: nop  2: test cl, 1  5: call c  a: jmp 0  c: jz f  e: ret  f: nop  10: ret
    other = [(5, 0xC, CALL), (0xC, 0xF, COND), (0x10, 0xA, RET), (0xA, 0, UNCOND)]
    way = [(5, 0xC, CALL), (0xE, 0xA, RET), (0xA, 0, UNCOND)]
    with crafted(bytes.fromhex("6690f6c101e802000000ebf47401c390c3")) as child:
        if not walks:
            child.engine = BlockStep(DebugRegisters(), walks=False)
        for bit, round_ in ((0, other), (1, way)):
            for _ in range(4):
                ptrace.poke_user(child.thread.tid, ptrace.RCX * 8, bit)
                burst = child.burst()
                assert burst.why == "full"
                assert burst.edges == (round_ * len(burst.edges))[: len(burst.edges)]
            known = child.thread.process.successors  # the code after the other way stays new
            monkeypatch.setattr(known, "widen", lambda: None)


def test_each_page_of_code_is_compared_before_the_first_of_its_forks() -> None:
    """The first stops, which are Python's, say nothing of the second page."""
    # 0: inc edx  2: (test dl, 8  jnz next  nop) 12 times  4a: jmp 0x1000; there: test dl, 3  jz 0x100a  ...  jmp 0
    first = bytes.fromhex("ffc2") + bytes.fromhex("f6c208750190") * 12
    first += b"\xe9" + struct.pack("<i", 0x1000 - len(first) - 5)
    second = bytes.fromhex("f6c2037405").ljust(0x10, b"\x90") + b"\xe9" + struct.pack("<i", -0x1015)
    with crafted(first.ljust(0x1000, b"\xcc") + second) as child:
        for _ in range(6):
            child.burst(BurstLimits(120, seconds=5))
        child.memory[0x1003:0x1005] = bytes.fromhex("7508")  # jnz 0x100d
        child.ends.clear()
        found = Counter(child.burst(BurstLimits(120, seconds=5)).edges)
        assert child.ends["stops"] > 3
        assert found[0x1003, 0xD + 0x1000, COND] > 2
        assert found[0x1003, 0xA + 0x1000, COND] == 0


def test_a_trap_of_somebody_else_where_it_stands_is_not_taken_for_a_stop() -> None:
    with crafted(bytes.fromhex("83c20171fbebf9")) as child:  # 0: add edx, 1  3: jno 0  5: jmp 0
        for depth in range(1, 12):
            child.warm()
            child.burst(BurstLimits(depth, seconds=5))
            stands = ptrace.Registers()
            ptrace.registers(child.thread.tid, stands)
            assert stands[ptrace.RIP] == child.base + 3
            os.kill(child.thread.tid, signal.SIGTRAP)
            child.ends.clear()
            burst = child.burst(from_start=False)
            assert child.ends["came"] + child.ends["waiting"] == 1
            assert (burst.why, burst.edges) == ("signal", [])


def through_a_word() -> bytes:
    """0: inc ecx  2: test cl, 1  5: jz 8  7: nop  8: jmp [rip+word 0]  e: jmp 0 (twice, and once more behind 0x20)"""
    code = bytes.fromhex("ffc1f6c101740190ff25f21f0000ebf0ebee")
    return code.ljust(0x20, b"\xcc") + bytes.fromhex("90ebdd")


def test_a_word_that_is_written_between_bursts_leads_where_it_says() -> None:
    with crafted(through_a_word()) as child:
        child.word(0, child.base + 0xE)
        assert (8, 0xE, IND) in child.warm().edges
        child.ends.clear()
        child.word(0, child.base + 0x20)  # to where it never was
        found = child.burst().edges
        assert child.ends["at an end"] + child.ends["not in the tables"] > 0, "it asks"
        assert (8, 0x20, IND) in found
        assert (8, 0xE, IND) not in found
        child.word(0, child.base + 0x10)
        child.burst()
        child.word(0, child.base + 0xE)
        assert {target for source, target, _ in child.burst().edges if source == 8} == {0xE}


def test_it_ends_with_as_many_branches_as_were_wanted() -> None:
    """And no more than one stop can report."""
    with crafted(counting(JZ)) as child:
        child.warm()
        for depth in (1, 2, 7, 39):
            child.ends.clear()
            burst = child.burst(BurstLimits(depth, seconds=5))
            assert burst.why == "full"
            assert depth <= len(burst.edges) <= depth + 2
            follow(burst.edges)
        conditional = child.burst(BurstLimits(11, frozenset((COND,)), seconds=5))
        kinds = Counter(kind for _, _, kind in conditional.edges)
        assert conditional.why == "full"
        assert 11 <= kinds[COND] <= 13
        assert kinds[UNCOND] > 3 * 10, "others are seen, and not counted"


def test_it_makes_no_more_stops_than_it_may() -> None:
    with crafted(counting(JZ)) as child:
        child.warm()
        child.ends.clear()
        burst = child.burst(BurstLimits(1000, stops=9, seconds=5))
        assert (burst.why, burst.stops) == ("stops", 9)
        assert child.ends["stops"] >= 8
        follow(burst.edges)


def test_a_walk_with_no_room_left_goes_on_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_ROOM", 3)
    with crafted(counting(JZ)) as child:
        follow(child.warm().edges)
        assert child.ends["before"] > 1


def test_signals_end_it_and_triggers_do_not() -> None:
    with crafted(counting(JZ)) as child:
        child.warm()
        child.ends.clear()
        os.kill(child.thread.tid, signal.SIGUSR2)
        burst = child.burst(is_trigger=lambda status: signal_of(status) == signal.SIGUSR2)
        assert (burst.why, burst.status) == ("full", None)
        follow(burst.edges)
        os.kill(child.thread.tid, signal.SIGUSR1)
        burst = child.burst()
        assert burst.why == "signal"
        assert burst.status is not None
        assert signal_of(burst.status) == signal.SIGUSR1
        assert burst.edges == []
        os.kill(child.thread.tid, signal.SIGTRAP)
        burst = child.burst()
        assert burst.status is not None
        assert signal_of(burst.status) == signal.SIGTRAP, "one that is not ours"
        os.kill(child.thread.tid, signal.SIGKILL)
        with suppress(ptrace.Gone):
            assert child.burst().why == "gone"


def test_a_system_call_ends_it_before() -> None:
    with crafted(counting(bytes.fromhex("7403900f05"))) as child:  # 5: jz 0xa  7: nop  8: syscall
        child.burst()
        child.burst()
        burst = child.burst()
        assert burst.why == "system call"
        assert burst.end == child.base + 8


def test_a_wait_that_a_tick_interrupts_goes_on_and_has_a_deadline() -> None:
    with crafted(counting(JZ)) as child:
        child.warm()
        signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
        for _ in range(100):
            burst = child.burst(BurstLimits(200, seconds=5))
            assert burst.why == "full"
            follow(burst.edges)
            if child.ends["waiting"] > 3:
                break
        assert child.ends["waiting"] > 3
        bursts = (child.burst(BurstLimits(200, seconds=0.01)) for _ in range(100))  # a tick is the deadline
        assert any(burst.dropped for burst in bursts)
        assert child.thread.timed_out


# -- where it cannot be


def test_without_the_library_python_does_it_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = build(folder, "branches", *FREESTANDING)
    walked = edges_of(program, BlockStep(DebugRegisters()), 600)
    monkeypatch.setenv("LASTBRANCH_NATIVE", "0")
    engine = BlockStep(DebugRegisters())
    assert not engine.walks
    assert engine._walker is None
    assert edges_of(program, engine, 600) == walked
    assert self_check.test_engines([engine]) == {engine.name: self_check.OK}


@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_recording_says_once_where_it_lacks_the_library(switch: str, folder: Path, tmp_path: Path) -> None:
    program = build(folder, "branches", *FREESTANDING)
    words = ["--engine", "software", "--duty", "50", "--period", "1000000", "--", program, "20000"]
    done = record(tmp_path / "it.tb5", *words, env={"LASTBRANCH_NATIVE": switch})
    assert done.code == 0, done.err
    assert done.err.count("the compiled library is not in use: bursts take longer") == (switch == "0")
    assert done.bursts() > 3
    assert ("compiled walk" in done.profile().header["software LBR"]) == (switch == "1")


def test_tables_without_room_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = {
        name: (form, 8 if name == "nodes" else capacity) for name, (form, capacity) in walk_tables._LAYOUT.items()
    }
    monkeypatch.setattr(walk_tables, "_LAYOUT", layout)
    code = b"".join(bytes.fromhex("ffc1f6c10174019090") for _ in range(24)) + bytes.fromhex("e923ffffff")
    with crafted(code) as child:
        for _ in range(12):
            burst = child.burst()
            assert burst.why == "full"
            follow(burst.edges)
        assert child.ends["stops"] > 0


# -- the compiled form


def test_structures_are_laid_out_as_the_compiler_lays_them_out(tmp_path: Path) -> None:
    structs = {
        "nodes": "node",
        "ends": "end",
        "path": "step",
        "lines": "line",
        "stores": "store",
        "pages": "page",
        "entries": "entry",
    }
    sizes = [
        f"_Static_assert(sizeof(struct {of}) == {struct.calcsize(walk_tables._LAYOUT[name][0])}, {name!r});"
        for name, of in structs.items()
    ]
    fields = [
        f"_Static_assert(__builtin_offsetof(struct context, {name}) == {getattr(Context, name).offset}, {name!r});"
        for name, *_ in Context._fields_
    ]
    sizes.append(f"_Static_assert(sizeof(struct context) == {ctypes.sizeof(Context)}, 'context');")
    source = tmp_path / "layout.c"
    source.write_text("\n".join([f'#include "{WALK}"', *sizes, *fields]).replace("'", '"'))
    checked = subprocess.run([*compiler(), "-std=c11", "-fsyntax-only", source], stderr=subprocess.PIPE, text=True)
    assert checked.returncode == 0, checked.stderr


def test_without_a_walk_that_fails_the_start_up_test_python_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def tested(engines: list[Engine]) -> dict[str, str]:
        return {e.name: "branch 3 is wrong" if isinstance(e, BlockStep) and e.walks else self_check.OK for e in engines}

    monkeypatch.setattr(engine_choice, "test_engines", tested)
    summary = Summary()
    engine = engine_choice.choose_engine(True, False, summary)
    assert isinstance(engine, BlockStep)
    assert not engine.walks
    assert summary.engine == engine.name
    assert len(summary.self_test) == 3
