"""Bursts that are foreseen: by which rules, with which call chains, and what a recording says of them."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture_tools import FREESTANDING, build, children, needs_ptrace, needs_walk, record
from command_line import run_cli
from lastbranch import native
from lastbranch.capture import procfs, ptrace
from lastbranch.capture.options import Summary
from lastbranch.capture.procfs import Rights, program_of, rights_of
from lastbranch.capture.ptrace import ticking
from lastbranch.capture.software import engine_choice
from lastbranch.capture.software.burst_runner import BurstRunner, NoBurst, SharedProcessor
from lastbranch.capture.software.bursts import Burst, BurstLimits
from lastbranch.capture.software.engines import BlockStep, DebugRegisters, Engine, SingleStep
from lastbranch.capture.software.kept_file import MemoryFiles
from lastbranch.capture.software.run_ahead import Comparison, Foreseen, RunAhead
from lastbranch.capture.software.tree import Thread
from lastbranch.lbr import KIND
from traced_program import halt, in_main_loop
from waiting import until

pytestmark = [needs_ptrace, needs_walk]
SOFTWARE = ("--engine", "software", "--duty", "50", "--period", "1000000")


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thread]:
    """A traced thread in `branches`, stopped in its main loop."""
    with ticking(), in_main_loop(tmp_path_factory.getbasetemp()) as thread:
        yield thread


def ahead() -> RunAhead:
    found = RunAhead.here()
    assert found is not None
    return found


def foreseen(one: RunAhead, thread: Thread, count: int) -> Foreseen:
    ptrace.registers(thread.tid, one.registers)
    burst = one.burst(thread.tid, thread.process.files, BurstLimits(count), alone=True)
    assert burst is not None
    burst.read_edges()
    return burst


def test_what_is_foreseen_is_what_breakpoints_then_see(running: Thread) -> None:
    """From the same instruction on, a burst of either has the same branches; to foresee one moves nothing."""
    one, engine = ahead(), BurstRunner(BlockStep(DebugRegisters()), BurstLimits(300, seconds=10), SharedProcessor())
    before = ptrace.Registers()
    for _ in range(4):
        ptrace.registers(running.tid, before)
        burst = foreseen(one, running, 200)
        after = ptrace.Registers()
        ptrace.registers(running.tid, after)
        assert list(before) == list(after)
        seen, _ = engine.run(running, lambda status: False)
        assert burst.why == "full"
        assert len(burst) == len(burst.edges) == 200
        assert burst.edges == seen.edges[:200]
        assert burst.end == burst.edges[-1][1]


@pytest.mark.parametrize("engine", [BlockStep(DebugRegisters()), SingleStep()], ids=lambda engine: engine.name)
def test_a_burst_that_is_followed_ends_in_time(engine: Engine, running: Thread) -> None:
    """With the branches that it has: its recorder may have been asked to end."""
    runner = BurstRunner(engine, BurstLimits(1 << 30, stops=1 << 30, seconds=0.5), SharedProcessor())
    burst, _ = runner.run(running, lambda status: False)
    assert burst.why == "time"
    assert len(burst)


def test_nothing_is_waited_for_where_the_recorder_is_to_end(running: Thread) -> None:
    """SIGTERM is blocked while it records, and seen at a tick."""
    resumer, begun = ptrace.Resumer(ptrace.Registers()), time.monotonic()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert resumer.go(running.tid, (), 100) is None
        assert time.monotonic() - begun < 50
    finally:
        signal.sigtimedwait({signal.SIGTERM}, 1)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    halt(running)


def test_a_burst_is_compared_when_that_is_paid_for(running: Thread) -> None:
    runner = BurstRunner(BlockStep(DebugRegisters()), BurstLimits(400, seconds=10), SharedProcessor(), ahead=ahead())
    for due in (False, True):
        runner.compared.spent(0.12 if due else 0.0, compared=False)
        burst, _ = runner.run(running, lambda status: False, 400, 40)
        assert isinstance(burst, Foreseen), "it goes further than what was followed, which is its beginning"
        assert len(burst) == 400
        assert (burst.stops > 1) == due
        assert runner.compared.same == due
        assert not runner.compared.different
    runner.compared.spent(1.0, compared=True)
    assert not runner.compared.due()
    assert str(runner.compared) == "2 bursts; 1 checked with breakpoints, 1 of these as foreseen"


class Known(Foreseen):
    """One of the branches of ``burst``."""

    def __init__(self, burst: Burst) -> None:
        Burst.__init__(self, edges=list(burst.edges), why=burst.why)

    def __len__(self) -> int:
        return len(self.edges)

    def read_edges(self) -> None: ...


THREE = [(1, 2, 1), (3, 4, 1), (5, 6, 1)]


@pytest.mark.parametrize(
    ("foreseen", "taken", "same"),
    [
        pytest.param(Burst(edges=THREE), Burst(edges=THREE[:2], why="signal"), True, id="a signal from outside"),
        pytest.param(Burst(edges=THREE), Burst(edges=THREE[:2], why="signal", faulted=True), False, id="a fault"),
        pytest.param(Burst(edges=THREE[:2]), Burst(edges=THREE, why="signal", faulted=True), True, id="a later fault"),
        pytest.param(Burst(edges=THREE), Burst(edges=THREE[:2], why="system call"), False, id="a system call"),
        pytest.param(Burst(edges=THREE[:2], why="system call"), Burst(edges=THREE), False, id="no system call"),
        pytest.param(
            Burst(edges=THREE, why="system call"), Burst(edges=THREE, why="system call"), True, id="the same call"
        ),
        pytest.param(Burst(edges=THREE), Burst(edges=[], why="deadline"), True, id="nothing"),
        pytest.param(Burst(edges=THREE[:1], why="memory changed"), Burst(edges=THREE), True, id="another thread"),
    ],
)
def test_neither_goes_on_where_an_instruction_ends_the_other(foreseen: Burst, taken: Burst, same: bool) -> None:
    compared = Comparison()
    assert compared.add(Known(foreseen), taken) == same
    assert (compared.same, compared.different) == (same, not same)


def test_the_self_check_finds_faults_that_were_not_foreseen(tmp_path: Path) -> None:
    """Of a program that faults all the time, with rights as they are not."""
    with ticking(), in_main_loop(tmp_path, "faulting", ("-static", "-no-pie")) as thread:
        runner = BurstRunner(
            BlockStep(DebugRegisters()), BurstLimits(5000, stops=100_000, seconds=10), SharedProcessor(), ahead=ahead()
        )
        all_rights = re.sub(r"^(\S+) \S{4}", r"\1 rwxp", Path(f"/proc/{thread.tid}/maps").read_text(), flags=re.M)
        (tmp_path / "maps").write_text(all_rights)
        true = thread.process.files
        with open(tmp_path / "maps", "rb") as maps:
            thread.process._files = true._replace(maps=maps.fileno())
            for _ in range(4):
                assert runner.ahead is not None
                runner.compared.spent(100.0, compared=False)
                burst, _ = runner.run(thread, lambda status: False)
                assert burst.why == "signal"
                assert burst.status is not None
                ptrace.cont(thread.tid, ptrace.signal_of(burst.status))
                halt(thread)
            thread.process._files = true
        assert (runner.compared.same, runner.compared.different) == (0, 4)
        assert runner.ahead is None


def test_where_threads_take_other_branches_nothing_is_foreseen_any_more() -> None:
    compared = Comparison()
    right, wrong = Burst(edges=[(1, 2, 1), (3, 4, 1)]), Burst(edges=[(1, 2, 1), (3, 9, 1)])

    assert compared.add(Known(right), Burst(edges=right.edges[:1])), "as far as both go"
    for _ in range(3):
        assert not compared.add(Known(right), wrong)
    assert not compared.fails, "signals and other threads explain a few"
    assert not compared.add(Known(right), wrong)
    assert compared.fails
    for _ in range(20):
        compared.add(Known(right), right)
    assert not compared.fails


# -- call chains of the records


class Model:
    """A thread that calls, returns, jumps, and throws: its edges, and its true callers after each."""

    def __init__(self, chance: random.Random, known: int) -> None:
        self.chance, self.stack = chance, 0x7FFF_0000_0000
        self.callers: list[tuple[int, int]] = []  # (return address, stack pointer once it was returned to)
        self.edges: list[int] = []
        self.truth: list[list[int]] = []
        for _ in range(known):
            self._push(chance.getrandbits(40))

    def _push(self, returns: int) -> None:
        self.stack -= 16 * self.chance.randrange(1, 9)
        base = self.stack
        self.stack -= 8
        self.callers.append((returns, base))

    def step(self) -> None:
        source, target, chance = self.chance.getrandbits(40), self.chance.getrandbits(40), self.chance.random()
        kind, length = KIND["cond"], 2
        if chance < 0.4 or not self.callers:
            kind, length = self.chance.choice(((KIND["call"], 5), (KIND["ind_call"], 3)))
            self._push(source + length)
        elif chance < 0.75:
            kind, length = KIND["ret"], 1
            target, self.stack = self.callers.pop()
        elif chance < 0.8 and len(self.callers) > 2:  # an exception: on in a caller's frame
            kind = KIND["ind"]
            for _ in range(self.chance.randrange(1, len(self.callers))):
                _, self.stack = self.callers.pop()
        self.edges += [source, target, kind | length << 8, self.stack]
        self.truth.append([target, *(returns for returns, _ in reversed(self.callers))])


@given(st.integers(0, 1 << 32), st.integers(0, 20), st.integers(1, 200), st.integers(1, 40))
def test_records_have_the_callers_at_their_ends(seed: int, known: int, count: int, depth: int) -> None:
    model = Model(random.Random(seed), known)
    callers, stack = list(model.callers), model.stack
    for _ in range(count):
        model.step()
    records, fits = _records(model.edges, depth, callers, stack)
    assert fits
    assert len(records) == -(-count // depth)
    newest = count - depth * (len(records) - 1)
    entries = 0
    for number, words in enumerate(records):
        place = newest + depth * number
        chain = words[2 : 1 + words[0]]
        expected = [0x1234] if number == len(records) - 1 else model.truth[place - 1][:1]
        assert words[1] == (1 << 64) - 512
        assert list(chain) == expected + model.truth[place - 1][1:]
        at = 1 + words[0]
        assert words[at] == (newest if number == 0 else depth)
        for n in range(words[at]):
            index = place - 1 - n
            source, target, kind = model.edges[4 * index : 4 * index + 3]
            assert list(words[at + 1 + 3 * n : at + 4 + 3 * n]) == [source, target, (kind & 0xFF) << 20 | 1 << 30]
        entries += words[at]
    assert entries == count


def test_on_another_stack_callers_are_not_known() -> None:
    ret, jump = KIND["ret"] | 1 << 8, KIND["ind"] | 2 << 8
    callers = [(50, 0x9000), (70, 0x8000)]
    records, fits = _records([10, 70, ret, 0x8000, 11, 12, jump | 1 << 16, 0x7000], 1, callers, 0x7F00)
    assert [words[0] for words in records] == [3, 0], "the stack pointer was set to a lower address"
    assert not fits
    _, fits = _records([10, 99, ret, 0x7000], 1, callers, 0x7F00)
    assert not fits, "a return to another address than that of the call, further down the stack"


def _records(
    edges: list[int], depth: int, callers: list[tuple[int, int]], stack: int
) -> tuple[list[tuple[int, ...]], bool]:
    library = native.library()
    assert library is not None
    count, out, fits = len(edges) // 4, (ctypes.c_uint64 * 100_000)(), ctypes.c_int()
    begins = (ctypes.c_int64 * (count + 1))()

    def made(room: int) -> int:
        room_for_all = (ctypes.c_uint64 * (2 * (count + len(callers))))(
            *(word for caller in callers for word in caller)
        )
        return int(
            library.lb_burst_records(
                (ctypes.c_uint64 * len(edges))(*edges),
                count,
                depth,
                1,
                room_for_all,
                len(callers),
                stack,
                0x1234,
                out,
                room,
                begins,
                ctypes.byref(fits),
            )
        )

    number = made(len(out))
    assert made(begins[number] - 1) == -1
    assert made(begins[number]) == number
    return [tuple(out[begins[n] : begins[n + 1]]) for n in range(number)], bool(fits.value)


# -- recordings

CLOCKS = r"""
#include <x86intrin.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words)
{
    unsigned long odd = 0;
    for (long n = atol(words[1]); n; n--)
        for (int i = 0; i < 16; i++) odd += __rdtsc() & 1 ? 3 : 1;
    printf("%d\n", odd > 0);
}
"""


def test_what_cannot_be_foreseen_is_followed(tmp_path: Path) -> None:
    """A program that reads the processor's clock all the time."""
    source = tmp_path / "clocks.c"
    source.write_text(CLOCKS)
    program = tmp_path / "clocks"
    subprocess.run(["cc", "-O1", str(source), "-o", str(program)], check=True)
    done = record(tmp_path / "clocks.tb5", *SOFTWARE, "--", program, "500000")
    assert done.code == 0, done.err
    profile = done.profile()
    assert (
        sum(len(batch["branch_from"]) for stream in profile.streams for batch in stream.batches() if batch.entries) > 50
    )


def test_what_comes_after_a_fault_is_not_foreseen(tmp_path: Path) -> None:
    """A store to a page that may be read only, a load from one that may not be read, and a call of data: each ends in a
    handler, and a function behind it never runs. Another one runs between these."""
    program = build(tmp_path, "faulting", "-no-pie", "-static")
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", program, "200000")
    assert done.out == b"0\n"
    taken = Counter[str]()
    for name, at in (("never", symbol(program, "never")), ("work", symbol(program, "work"))):
        for stream in done.profile().streams:
            for batch in stream.batches():
                if batch.entries:
                    taken[name] += int(np.count_nonzero(batch["branch_from"] - np.uint64(at) < 64))
    assert taken["never"] == 0
    assert taken["work"] > 100


def symbol(program: Path, name: str) -> int:
    """Where the function ``name`` begins, by nm."""
    listed = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    return next(int(words[0], 16) for words in map(str.split, listed.splitlines()) if words[-1] == name)


def test_after_a_fault_bursts_of_a_process_are_short(running: Thread) -> None:
    """They end where the next one comes: long ones would show what happens without."""
    runner, now = BurstRunner(None, BurstLimits(400), SharedProcessor(), ahead=ahead()), ptrace.Registers()
    ptrace.registers(running.tid, now)
    ptrace.go_on_at(running.tid, now[ptrace.RSP])  # which may not be executed
    with pytest.raises(NoBurst):
        runner.run(running, lambda status: False, 400, 50)
    ptrace.go_on_at(running.tid, now[ptrace.RIP])
    lengths = [len(runner.run(running, lambda status: False, 400, 50)[0]) for _ in range(40)]
    assert set(lengths) == {50, 400}
    assert lengths == sorted(lengths)


def test_info_says_how_many_bursts_were_foreseen(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", program, "60000")
    said = run_cli("info", done.path).out
    assert re.search(r"^software LBR +running ahead; block stepping", said, re.M)
    assert re.search(r"^foreseen +\d+ burst", said, re.M)
    assert "running ahead: ok" in said


def test_breakpoints_may_be_asked_for(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--run-ahead", "never", "--", program, "20000")
    said = run_cli("info", done.path).out
    assert re.search(r"^software LBR +block stepping", said, re.M)
    assert "foreseen" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights that others lack")
@pytest.mark.parametrize(("option", "foreseen"), [("auto", False), ("always", True)])
def test_code_of_others_is_executed_here_only_if_that_is_asked_for(option: str, foreseen: bool, tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    with tempfile.TemporaryDirectory() as folder:  # others may not enter pytest's
        Path(folder).chmod(0o755)
        program = shutil.copy(program, folder)
        other = subprocess.Popen([program, "100000000"], user=65534, group=65534, extra_groups=())
        try:
            options = ("--run-ahead", option, "--duration", "1", "--allow-risk")
            done = record(tmp_path / "it.tb5", *SOFTWARE, *options, "-p", str(other.pid))
        finally:
            other.kill()
            other.wait()
    said = run_cli("info", done.path).out
    assert bool(re.search(r"^foreseen +\d+ burst", said, re.M)) == foreseen
    assert ("may do less than the recorder" in done.err) != foreseen
    assert done.bursts()


def test_where_our_rights_are_not_known_no_code_is_executed_here(
    running: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "rights_of", lambda tid: None)
    runner = BurstRunner(None, BurstLimits(100), SharedProcessor(), ahead=ahead())
    with pytest.raises(NoBurst):
        runner.run(running, lambda status: False)
    assert runner.lacked_rights


@pytest.mark.parametrize(
    "less",
    [
        {"ids": (b"1\t1\t1\t1", b"0\t0\t0\t0")},
        {"ids": (b"0\t1\t0\t0", b"0\t0\t0\t0")},
        {"ids": (b"0\t0\t0\t0", b"0\t0\t0\t1")},
        {"groups": frozenset((4,))},
        *({"capabilities": tuple(0xF ^ (n == part) for n in range(5))} for part in range(5)),
        {"capabilities": (0x1E,) * 5},
        {"gains_none": True},
        {"filters": (2, 1)},
        {"user_namespace": "user:[2]"},
        {"files": ("mnt:[2]", "/")},
        {"files": ("mnt:[1]", "/jail")},
        {"label": b"docker-default (enforce)"},
    ],
)
def test_a_thread_has_as_many_rights_only_if_it_has_all(less: dict[str, Any]) -> None:
    ours = Rights(
        (b"0\t0\t0\t0", b"0\t0\t0\t0"),
        frozenset((0, 4)),
        (0xF,) * 5,
        False,
        (0, 0),
        "user:[1]",
        ("mnt:[1]", "/"),
        b"unconfined",
    )
    assert ours.within(ours)
    assert ours.within(ours._replace(capabilities=(0x1F,) * 5, groups=frozenset((0, 4, 7))))
    assert ours._replace(gains_none=True, filters=(2, 1)).within(ours)
    capable = ours._replace(capabilities=((1 << 41) - 1,) * 5)
    assert ours.within(capable._replace(groups=frozenset(), files=("mnt:[2]", "/jail"))), "it may go there"
    assert not ours.within(ours._replace(**less))
    assert not ours.within(None)


@pytest.mark.parametrize(
    ("command", "as_many"),
    [
        pytest.param("", True, id="nothing"),
        pytest.param("setpriv --no-new-privs", False, id="no new privileges, as in a service of systemd"),
        pytest.param("setpriv --bounding-set=-net_raw --inh-caps=-all", False, id="a bounding set"),
        pytest.param("setpriv --regid=65534 --clear-groups", False, id="another group"),
        pytest.param("setpriv --reuid=65534", False, id="another user"),
        pytest.param("unshare -Ur", False, id="a user namespace"),
        pytest.param("bwrap --die-with-parent --dev-bind / /", False, id="bwrap"),
    ],
)
def test_what_restricts_a_process_is_seen(command: str, as_many: bool) -> None:
    words = command.split()
    if words and (shutil.which(words[0]) is None or subprocess.run([*words, "true"], capture_output=True).returncode):
        pytest.skip(f"{command}: not possible here")
    with subprocess.Popen([*words, "sleep", "1000"]) as process:
        try:
            at = process.pid
            until(lambda: "sleep" in map(program_name, (at, *children(at))))
            ours, (its, *_) = rights_of("self"), [pid for pid in (at, *children(at)) if program_name(pid) == "sleep"]
            assert ours is not None
            assert ours.within(rights_of(its)) == as_many
        finally:
            process.kill()


def program_name(pid: int) -> str:
    return Path(program_of(pid)).name


def test_a_process_whose_files_cannot_be_opened_is_followed(running: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(pid: int, mem: int) -> MemoryFiles:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(MemoryFiles, "of", none)
    runner = BurstRunner(BlockStep(DebugRegisters()), BurstLimits(50, seconds=10), SharedProcessor(), ahead=ahead())
    burst, _ = runner.run(running, lambda status: False)
    assert len(burst) >= 50
    assert not isinstance(burst, Foreseen)


def test_without_breakpoints_an_attached_process_has_what_can_be_foreseen(
    running: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "test_engines", lambda engines: {one.name: "refused" for one in engines})
    summary = Summary()
    assert engine_choice.choose_engine(False, False, summary, needed=False) is None
    runner = BurstRunner(None, BurstLimits(100), SharedProcessor(), ahead=ahead())
    burst, _ = runner.run(running, lambda status: False)
    assert isinstance(burst, Foreseen)
    runner.ahead = None
    with pytest.raises(NoBurst, match="cannot be foreseen"):
        runner.run(running, lambda status: False)


def test_a_chain_is_read_back_as_it_was_written() -> None:
    from lastbranch.capture.software.run_ahead import chain_in

    assert chain_in(struct.pack("=5Q", 3, (1 << 64) - 512, 7, 9, 0)) == [7, 9]
