"""Attaching to a process: it survives the collector, whatever happens to that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, build, needs_ptrace, record
from fuzz_capture import attached
from lastbranch.capture import ptrace
from lastbranch.capture.software import tracing
from lastbranch.capture.software.tree import Tree
from lastbranch.model import ModuleKind
from waiting import until

pytestmark = needs_ptrace
DENSE = ("--engine", "software", "--duty", "50", "--period", "500000")
KILLS = int(os.environ.get("LASTBRANCH_KILLS", "2"))
"""How often the collector is killed in mid-burst; `make fuzz` does it 100 times."""

LONGER = ("0.6", "3", "15")
"""Seconds to record for: on a busy machine little comes of the first."""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = build(tmp_path, "branches", *FREESTANDING)
    with subprocess.Popen([program, "100000000"], stdout=subprocess.DEVNULL) as process:
        until(lambda: has_computed(process.pid))  # before, the exec may not have reset everything yet
        yield process
        process.kill()


def status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status") as lines:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def state(pid: int) -> tuple[str, ...]:
    """What a recording must leave as it was."""
    found = status(pid)
    names = ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd", "Cpus_allowed_list")
    return (*(found[name] for name in names), str(os.sched_getscheduler(pid)))


def has_computed(pid: int) -> bool:
    """Whether it had a tick of processor time in user code."""
    with open(f"/proc/{pid}/stat") as line:
        return int(line.read().rpartition(")")[2].split()[11]) > 0


def ended(pid: int) -> bool:
    """Whether it runs no more; where nobody waits for it, it stays in /proc."""
    try:
        return status(pid)["State"][0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def runs(pid: int) -> bool:
    """Whether it computes: no stop, and no breakpoint that it trips over."""
    return status(pid)["State"].startswith("R") and status(pid)["TracerPid"] == "0"


def test_a_running_process_is_recorded_and_left_as_it_was(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    before = state(target.pid)
    for seconds in LONGER:
        done = record(tmp_path / "it.tb5", *DENSE, "--duration", seconds, "-p", str(target.pid))
        assert done.code == 0, done.err
        until(lambda: runs(target.pid))
        assert state(target.pid) == before
        if done.bursts() > 10:
            break
    profile = done.profile()
    assert done.bursts() > 10
    assert "perf breakpoints" in profile.header["software LBR"]
    (program,) = [m for m in profile.modules if m.kind is ModuleKind.FILE]
    assert program.segments, "a mapping from before is known with its build id"


def test_all_threads_are_attached_to(tmp_path: Path) -> None:
    work = "def f():\n  while True: sum(range(1000))\nfor _ in range(3): threading.Thread(target=f).start()"
    code = f"import threading\n{work}"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == 4)
        for seconds in LONGER:
            done = record(tmp_path / "it.data", *DENSE, "--duration", seconds, "-p", str(process.pid))
            streams = done.profile().streams
            tids = {tid for stream in streams for batch in stream.batches() for tid in batch.tid.tolist()}
            if len(tids) >= 3:
                break
        process.kill()
    assert len(tids) >= 3


@pytest.mark.parametrize("who", ["collector", "its parent", pytest.param("both", marks=pytest.mark.thorough)])
def test_the_target_survives_a_killed_collector(who: str, target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    before = state(target.pid)
    command = [sys.executable, "-m", "lastbranch", "record", "--no-progress", *DENSE, "-o", str(tmp_path / "it.tb5")]
    for i in range(KILLS if who == "both" else 1):
        with subprocess.Popen([*command, "-p", str(target.pid)], stderr=subprocess.DEVNULL) as ours:
            until(lambda: status(target.pid)["TracerPid"] != "0")
            time.sleep(0.15 + 0.013 * (i % 8))
            tracer = int(status(target.pid)["TracerPid"])
            for pid in {"collector": [tracer], "its parent": [ours.pid], "both": [tracer, ours.pid]}[who]:
                os.kill(pid, signal.SIGKILL)
            ours.wait()
        until(lambda: runs(target.pid))
        time.sleep(0.02)  # what the collector left, if anything, would end it now
        assert target.poll() is None
        until(lambda: runs(target.pid))
        assert state(target.pid) == before


@pytest.mark.parametrize(
    "words", [["urg"], ["block"], pytest.param(["winch"], marks=pytest.mark.thorough)], ids=" ".join
)
def test_no_handler_runs_because_the_collector_was_killed(words: list[str], tmp_path: Path) -> None:
    """Stopped before that, it leaves the target at a signal that it does not suppress any more."""
    program, output = build(tmp_path, "signals"), tmp_path / "it.tb5"
    command = [sys.executable, "-m", "lastbranch", "record", "--no-progress", *DENSE, "-o", str(output), "-p"]
    with subprocess.Popen([program, *words], stdout=subprocess.PIPE, text=True) as target:
        until(lambda: has_computed(target.pid))
        with subprocess.Popen([*command, str(target.pid)], stderr=subprocess.DEVNULL) as ours:
            until(lambda: status(target.pid)["TracerPid"] != "0")
            tracer = int(status(target.pid)["TracerPid"])
            for _ in range(60):  # the trigger may not be set yet, or a burst be over
                os.kill(tracer, signal.SIGSTOP)
                time.sleep(0.05)
                if status(target.pid)["State"].startswith("t"):
                    break
                os.kill(tracer, signal.SIGCONT)
                time.sleep(0.05)
            os.kill(tracer, signal.SIGKILL)
            ours.wait()
        until(lambda: runs(target.pid))
        target.send_signal(signal.SIGTERM)
        assert target.communicate(timeout=60) == ("0 handled, 0 taken\n", None)


def test_a_program_that_handles_all_quiet_signals_is_warned_of(tmp_path: Path) -> None:
    with subprocess.Popen([build(tmp_path, "signals"), "urg", "winch"], stdout=subprocess.PIPE, text=True) as target:
        until(lambda: has_computed(target.pid))
        done = record(tmp_path / "it.data", *DENSE, "--duration", "0.3", "-p", str(target.pid))
        assert "handles SIGURG and SIGWINCH" in done.err
        until(lambda: status(target.pid)["TracerPid"] == "0")
        target.send_signal(signal.SIGTERM)
        assert target.communicate(timeout=60) == ("0 handled, 0 taken\n", None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_recording_and_not_the_process(
    number: signal.Signals, target: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    output = tmp_path / "it.tb5"
    command = [sys.executable, "-m", "lastbranch", "record", "--no-progress", "-o", str(output), "-p", str(target.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as ours:
        until(lambda: status(target.pid)["TracerPid"] != "0")
        time.sleep(0.2)
        ours.send_signal(number)
        assert ours.wait(60) == 0
    assert output.exists()
    until(lambda: runs(target.pid))


def test_programs_do_what_they_do_alone() -> None:
    """All kinds, each attached to once; `make fuzz` does it 100 times."""
    assert attached(1) == 0


def test_a_stopped_process_stays_stopped(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    target.send_signal(signal.SIGSTOP)
    until(lambda: status(target.pid)["State"].startswith("T"))
    done = record(tmp_path / "it.data", "--engine", "software", "--duration", "0.2", "-p", str(target.pid))
    assert done.code == 0, done.err
    until(lambda: status(target.pid)["State"].startswith("T"))
    assert status(target.pid)["TracerPid"] == "0"
    target.send_signal(signal.SIGCONT)
    until(lambda: runs(target.pid))


def test_a_launched_program_ends_with_its_collector(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    command = [sys.executable, "-m", "lastbranch", "record", "--no-progress", *DENSE, "-o", str(tmp_path / "it.tb5")]
    with subprocess.Popen([*command, "--", str(program), "100000000"], stdout=subprocess.DEVNULL) as ours:
        found: list[str] = []

        def started() -> bool:
            found[:] = subprocess.run(["pgrep", "-f", f"^{program}"], capture_output=True, text=True).stdout.split()
            return bool(found)

        until(started)
        time.sleep(0.2)
        tracer = int(status(int(found[0]))["TracerPid"])
        os.kill(tracer, signal.SIGKILL)
        assert ours.wait(60) == 125
    until(lambda: ended(int(found[0])))


def test_a_thread_that_an_attached_one_has_just_created_is_ours(
    target: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is traced from its first instruction, so it cannot be attached to: that was tried for ever."""
    tree, seize, ended = Tree(), ptrace.seize, list[int]()

    def refuse_others(tid: int, options: int) -> None:
        if tid != target.pid:
            ended.append(tid)
            raise PermissionError
        seize(tid, options)

    monkeypatch.setattr(ptrace, "seize", refuse_others)
    monkeypatch.setattr(tracing, "threads_of", lambda pid: {pid, 1})
    tracing.attach(target.pid, tree)
    assert (set(tree.threads), ended) == ({target.pid}, [1])
    monkeypatch.setattr(tracing, "status_of", lambda tid, name: str(os.getpid()))
    tracing.attach(target.pid, tree)
    assert set(tree.threads) == {target.pid, 1}
