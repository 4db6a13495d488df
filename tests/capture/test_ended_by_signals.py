"""Recordings that signals end: whole, with the exit code of the program, or 128+n."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, Recorded, build, needs_ptrace
from command_line import run_cli
from lastbranch.capture import launch
from waiting import until

pytestmark = needs_ptrace
RECORD = [sys.executable, "-m", "lastbranch", "record", "--no-progress", "--engine", "software"]
DENSE = ["--duty", "50", "--period", "500000"]
ALL = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGXCPU, signal.SIGRTMIN + 6]
"""Some of those that end a process. SIGALRM reaches the program as SIGTERM."""


@pytest.fixture(autouse=True)
def nothing_ignored() -> Iterator[None]:
    """nohup(1) has SIGHUP ignored, and a job in the background SIGQUIT: programs that tests start would ignore them."""
    before = [(number, signal.signal(number, signal.SIG_DFL)) for number in (signal.SIGHUP, signal.SIGQUIT)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@contextmanager
def recorded(*words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([*map(str, words)], stderr=subprocess.PIPE, process_group=0) as ours:
        try:
            yield ours
        finally:
            ours.kill()


def computed(pid: int) -> int:
    """CPU time of a process in user mode, in clock ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def traced(program: Path) -> list[int]:
    """Processes that execute ``program`` and have computed."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe") == str(program):
                found += [int(pid)] if computed(int(pid)) > 5 else []
        except OSError:
            continue
    return found


def test_a_recording_ended_by_any_signal_is_whole(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    sent = [(number, 128 + number) for number in ALL] + [(signal.SIGALRM, 128 + signal.SIGTERM)]
    ours = [
        subprocess.Popen(
            [*RECORD, *DENSE, "-o", tmp_path / f"{number}.tb5", "--", program, "1000000000"], stdout=subprocess.DEVNULL
        )
        for number, _ in sent
    ]
    try:
        until(lambda: len(traced(program)) == len(sent))
        for one, (number, _) in zip(ours, sent, strict=True):
            one.send_signal(number)
        assert [one.wait(60) for one in ours] == [code for _, code in sent]
    finally:
        for one in ours:
            one.kill()
            one.wait()
    assert not traced(program)
    for number, _ in sent:
        path = tmp_path / f"{number}.tb5"
        assert run_cli("verify", path).code == 0
        assert Recorded(0, b"", "", path).bursts() > 0


@pytest.mark.parametrize("ending", ["tb5", "etl"])
def test_a_signal_to_the_process_and_its_group_is_one(ending: str, tmp_path: Path) -> None:
    """As timeout(1) sends it: the program may still do what it does at its end."""
    ready, output = tmp_path / "ready", tmp_path / f"it.{ending}"
    script = f"trap 'sleep 0.3; exit 7' TERM; echo $$ > {ready}.new; mv {ready}.new {ready}; while :; do :; done"
    with recorded(*RECORD, *DENSE, "-o", output, "--", "sh", "-c", script) as ours:
        until(ready.exists)
        until(lambda: computed(int(ready.read_text())) > 10)
        ours.send_signal(signal.SIGTERM)
        os.killpg(ours.pid, signal.SIGTERM)
        assert ours.wait(60) == 7, ours.communicate()
    assert run_cli("verify", output).code == 0
    assert run_cli("branches", output, "--format", "csv").out.count("\n") > 10


AT_THE_END = (
    "import os, signal; from lastbranch.capture import recording; save = recording._convert;"
    "recording._convert = lambda *words: (os.kill(os.getpid(), {}), save(*words));"
    "from lastbranch.cli import main; main()"
)
"""``python -c`` this: a signal comes while the recording is written."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 3), (signal.SIGHUP, 3), (signal.SIGINT, 125)])
def test_a_signal_while_the_recording_is_written_loses_nothing(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    words = [*RECORD[3:], *DENSE, "-o", str(tmp_path / "it.tb5"), "--", "sh", "-c", "exit 3"]
    done = subprocess.run([sys.executable, "-c", AT_THE_END.format(int(number)), *words], capture_output=True)
    assert done.returncode == code, done.stderr
    (kept,) = tmp_path.iterdir()  # Ctrl-C: the perf.data that was to be converted
    assert run_cli("verify", kept).code == 0


def test_the_program_has_the_signals_that_it_would_have_alone(tmp_path: Path) -> None:
    """What the recorder blocks and ignores for itself is not passed on."""
    words = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    alone = subprocess.run(words, capture_output=True, check=True).stdout
    for engine in (RECORD, RECORD[:-2]):
        done = subprocess.run([*engine, "-o", tmp_path / "it.tb5", "--", *words], capture_output=True, check=True)
        assert done.stdout == alone


@pytest.mark.parametrize(("handler", "ends"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_hang_up_ends_no_recording_under_nohup(
    handler: signal.Handlers, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.signal(signal.SIGHUP, handler)
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    for child, after in ((None, [ends]), (7, [False, ends])):
        interruptions = launch.Interruptions(child)
        for end in after:
            came = [launch.Received(signal.SIGHUP, by_terminal=False)]
            monkeypatch.setattr(launch, "received", lambda came=came: came.pop() if came else None)
            monkeypatch.setattr(interruptions, "_repeats", launch.Repeats())  # they came one after the other
            assert interruptions.enough() is end
    assert sent == [(7, signal.SIGHUP)] * (1 if ends else 2)
