"""Programs that take many signals, or begin many tasks: they are let go between bursts, which are drawn."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from capture_tools import Recorded, build, needs_ptrace, needs_walk, record
from command_line import run_cli
from lastbranch.capture import ptrace
from lastbranch.capture.options import Summary
from lastbranch.capture.software.collector import Collector
from lastbranch.capture.software.draws import Draws
from waiting import until

pytestmark = needs_ptrace
SOFTWARE = ("--engine", "software")
AT_ONCE = (
    "from lastbranch.capture.software.collector import Collector as C; executed = C._executed\n"
    "def begin(self, thread, status): self._draws or self._begin_draws(); executed(self, thread, status)\n"
    "C._executed = begin\n"
    "from lastbranch.cli import main; main()"
)
"""``python -c`` this: lastbranch that lets a program go as soon as that has been executed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def drawn(output: Path, *words: str | Path) -> Recorded:
    command = [sys.executable, "-c", AT_ONCE, "record", "--no-progress", *SOFTWARE, "-o", str(output), *map(str, words)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    return Recorded(done.returncode, done.stdout, done.stderr.decode(), output)


def other_stops(path: Path) -> int:
    """How often the program was stopped for something other than a burst."""
    found = re.search(r"^other stops +(\d+),", run_cli("info", path).out, re.M)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("kind", ["trap", "barrier", "divide"])
def test_a_program_that_takes_signals_is_not_stopped_at_each(kind: str, folder: Path, tmp_path: Path) -> None:
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", build(folder, "takes"), kind, "60000")
    assert (done.code, done.out) == (0, b"60000\n"), done.err
    assert other_stops(done.path) < 60000 / 4


@pytest.mark.parametrize("kind", ["trap", "barrier", "divide"])
def test_a_program_that_is_traced_all_the_time_takes_its_signals(kind: str, folder: Path, tmp_path: Path) -> None:
    """With --no-follow it cannot be let go."""
    words = ("--no-follow", "none", "--frequency", "100", "--", build(folder, "takes"), kind, "5000", "50000")
    done = record(tmp_path / "it.tb5", *SOFTWARE, *words)
    assert (done.code, done.out) == (0, b"5000\n"), done.err
    assert other_stops(done.path) >= 5000


@pytest.mark.parametrize("kind", ["trap", "barrier", "divide", "timer"])
def test_bursts_are_drawn_from_a_program_that_takes_signals(kind: str, folder: Path, tmp_path: Path) -> None:
    program = build(folder, "takes")
    done = drawn(tmp_path / "it.tb5", "--", program, kind, "100000", "200000")
    assert (done.code, done.out) == (0, b"1\n" if kind == "timer" else b"100000\n"), done.err
    assert "it is traced during bursts only" in done.err
    profile = done.profile()
    sampled = {int(pid) for batch in profile.streams[-1].batches() for pid in batch.pid}
    assert len(sampled) == 1
    assert "compute" in run_cli("report", done.path, "--by", "function", "--format", "csv").out


def test_weights_of_drawn_bursts_add_up_to_the_time_of_the_program(folder: Path, tmp_path: Path) -> None:
    done = drawn(tmp_path / "it.tb5", "--", build(folder, "takes"), "trap", "1", "1000000")
    bursts = sum(int(batch.period.sum()) for batch in done.profile().streams[-1].batches())
    samples = sum(int(batch.period.sum()) for batch in done.profile().streams[0].batches())
    assert bursts == pytest.approx(samples, rel=0.25)


def test_bursts_are_drawn_from_processes_that_soon_end(folder: Path, tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 700 ]; do /bin/true; i=$((i+1)); done"
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", "sh", "-c", script)
    assert done.code == 0, done.err
    processes = [int(pid) for batch in done.profile().streams[-1].batches() for pid in batch.pid]
    assert len(set(processes)) > 5
    assert other_stops(done.path) < 2000


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("traps", ()), ("signals", ("urg", "winch", "chld", "30")), ("signals", ("block", "30")),
        ("signals", ("cont", "30")), ("threads", ()), ("storm", ()), ("timer", ()), ("blocked", ()),
    ],
)  # fmt: skip
def test_a_program_that_is_let_go_does_as_it_does_alone(
    program: str, words: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    command = [build(folder, program), *words]
    alone = subprocess.run(command, capture_output=True, timeout=60)
    done = drawn(tmp_path / "it.tb5", "--frequency", "200", "--duty", "30", "--", *command)
    assert (done.code, done.out) == (alone.returncode, alone.stdout), done.err


def test_a_program_that_is_executed_between_two_bursts_is_known(folder: Path, tmp_path: Path) -> None:
    first, second = build(folder, "takes"), build(folder, "timer")
    script = f"{first} trap 1 200000; exec {second}"
    done = drawn(tmp_path / "it.tb5", "--", "sh", "-c", script)
    assert done.code == 0, done.err
    listed = run_cli("report", done.path, "--by", "module", "--format", "csv").out
    assert "takes" in listed
    assert "timer" in listed


def test_a_process_that_was_attached_to_is_let_go_and_recorded_to_the_end_of_its_children(
    folder: Path, tmp_path: Path
) -> None:
    program, ready = build(folder, "takes"), tmp_path / "go"
    child = f"{program} trap 200000 1000000 & echo $! > {tmp_path}/child"
    script = f"while ! [ -e {ready} ]; do /bin/true; done; {child}; exit 3"
    command = [sys.executable, "-c", AT_ONCE, "record", "--no-progress", *SOFTWARE, "-o", str(tmp_path / "it.tb5")]
    with subprocess.Popen(["sh", "-c", script]) as shell:
        with subprocess.Popen([*command, "-p", str(shell.pid)], stderr=subprocess.PIPE) as recorder:
            until(lambda: is_traced(shell.pid))
            until(lambda: not is_traced(shell.pid))
            ready.touch()
            assert recorder.stderr is not None
            said = recorder.stderr.read().decode()
            assert recorder.wait() == 0, said
        assert shell.wait() == 3
    pid = int((tmp_path / "child").read_text())
    assert pid in {int(one) for batch in Recorded(0, b"", "", tmp_path / "it.tb5").profile().streams[-1].batches()
                   for one in batch.pid}  # fmt: skip


def is_traced(pid: int) -> bool:
    with open(f"/proc/{pid}/status") as lines:
        return any(line.startswith("TracerPid") and line.split()[1] != "0" for line in lines)


def test_bursts_that_were_due_and_did_not_happen_are_said_in_one_line() -> None:
    collector = Collector.__new__(Collector)
    collector.summary = Summary(bursts=30, throttled=84)
    collector._skipped = Counter({"the thread ended first": 5})
    collector._note_unseen()
    said = "89 bursts that were due did not happen (84: the duty limit, 5: the thread ended first)"
    assert collector.summary.notes == (said,)
    collector.summary = Summary(bursts=1000, throttled=84)
    collector._note_unseen()
    assert collector.summary.notes == (), "few: others have their weight"


def test_a_draw_finds_what_runs_and_what_that_creates() -> None:
    draws, forks = Draws(), "input()\nimport os\nif os.fork() == 0: [None for _ in iter(int, 1)]\nos.wait()"
    with subprocess.Popen([sys.executable, "-c", forks], stdin=subprocess.PIPE) as parent:
        draws.cover(parent.pid)
        assert draws.any_left()
        before = draws.cpu()
        assert parent.stdin is not None
        parent.stdin.write(b"\n")
        parent.stdin.close()
        (child,) = until(lambda: [pid for pid, _ in draws.running() if pid != parent.pid])
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1] == str(parent.pid)
        until(lambda: draws.cpu() - before > 20_000_000)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert draws.any_left()
        os.kill(child, signal.SIGKILL)
        until(lambda: not draws.any_left())
    assert draws.running() == []
    draws.close()


@needs_walk
def test_signals_at_whose_stops_there_is_nothing_to_do_are_passed_on_without_python() -> None:
    sends = (
        "import os, signal; signal.signal(10, lambda *_: None); input()\nfor _ in range(700): os.kill(os.getpid(), 10)"
    )
    waiting, passes, seen = ptrace.PassingSignals(), 1 << signal.SIGUSR1 - 1, []
    with subprocess.Popen([sys.executable, "-c", sends], stdin=subprocess.PIPE) as child:
        ptrace.seize(child.pid, 0)
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        while not seen or ptrace.stopped(seen[-1][1]):
            with suppress(ptrace.Interrupted):
                seen.append(waiting.wait(passes))
        child.returncode = 0
    assert seen == [(child.pid, 0)]
    assert waiting.passed() == 700
    assert waiting.passed() == 0
