"""The CPU time of each thread and process that a recording states, against what the kernel charged the program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from capture_tools import build, needs_ptrace, record
from lastbranch.capture.perf_events import cpu_times
from lastbranch.capture.perf_events.cpu_times import CpuTimes
from lastbranch.model import Profile
from lastbranch.opening import open_profile
from waiting import until

pytestmark = needs_ptrace
OPTIONS = ("--engine", "software")
BRIEF = "200000"
"""Rounds of a thread: some 0.3 ms."""
LEAST, MOST = 0.75, 1.1
"""What is stated, as a part of what was charged: what the kernel does after a thread has run is not in it, which is
more where another processor must be woken, and the program's own end is not in what it prints."""


@pytest.fixture(scope="module", autouse=True)
def _kernel_says_it() -> None:
    with CpuTimes() as times:
        if not times.works:
            pytest.skip("this kernel writes no record of threads that end, or allows no perf events")


def stated(profile: Profile) -> float:
    """Seconds."""
    return sum(process.cpu_ns or 0 for process in profile.processes) / 1e9


@pytest.mark.parametrize(("what", "many"), [("threads", 4), ("threads", 200), ("processes", 100)])
def test_all_that_ends_has_its_time_however_short_it_was(what: str, many: int, tmp_path: Path) -> None:
    rounds = "20000000" if many == 4 else BRIEF if what == "threads" else "3000000"
    done = record(tmp_path / "x.data", *OPTIONS, "--", build(tmp_path, "brief"), what, str(many), rounds)
    profile, charged = done.profile(), int(done.out) / 1e6
    assert {row.cpu_ns is not None for row in (*profile.processes, *profile.threads)} == {True}
    assert len(profile.threads) == many + 1
    assert LEAST * charged < stated(profile) < MOST * charged + 0.01


def test_threads_that_an_attached_process_creates_have_theirs(tmp_path: Path) -> None:
    command = [str(build(tmp_path, "brief")), "threads", "80", "1000000", "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        recorder = [sys.executable, "-m", "lastbranch", "record", "-o", str(tmp_path / "x.data"), *OPTIONS]
        with subprocess.Popen([*recorder, "-p", str(program.pid)], stderr=subprocess.DEVNULL) as recording:
            until(lambda: "TracerPid:\t0" not in Path(f"/proc/{program.pid}/status").read_text())
            out, _ = program.communicate(b"\n", timeout=60)
            recording.wait(60)
    profile, charged = open_profile(tmp_path / "x.data"), int(out) / 1e6
    assert LEAST * charged < stated(profile) < MOST * charged + 0.01


def test_threads_that_still_run_at_the_end_have_what_they_used(tmp_path: Path) -> None:
    loop = ("-c", "while True: pass")
    with subprocess.Popen([sys.executable, *loop]) as program:
        done = record(tmp_path / "x.data", *OPTIONS, "--duration", "0.5", "-p", str(program.pid))
        program.kill()
    profile = done.profile()
    assert 0.02 < stated(profile) < 10  # it ran all the time, on a machine on which others do


@pytest.mark.parametrize("threads", [40])
def test_where_the_kernel_does_not_say_it_triggers_do(threads: int, tmp_path: Path) -> None:
    without = (
        "from lastbranch.capture.perf_events import cpu_times;"
        "cpu_times.CpuTimes._try = lambda self: False;"
        "from lastbranch.cli import main; main()"
    )
    words = ["record", "-o", str(tmp_path / "x.data"), *OPTIONS, "--"]
    program = [str(build(tmp_path, "brief")), "threads", str(threads), "3000000"]
    done = subprocess.run([sys.executable, "-c", without, *words, *program], capture_output=True, timeout=120)
    profile, charged = open_profile(tmp_path / "x.data"), int(done.stdout) / 1e6
    assert LEAST * charged < stated(profile) < MOST * charged + 0.01


def test_ends_that_came_too_fast_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_times, "_PAGES", 1)
    program = build(tmp_path, "brief")
    with CpuTimes() as times:
        for many in ("400", "4"):  # the kernel says what was lost when there is room again
            subprocess.run([program, "threads", many, "1000"], check=True, stdout=subprocess.DEVNULL)
            assert list(times.ended())
        assert times.lost > 0
        assert times.notes == (f"CPU times are not stated of some threads: {times.lost} records of ends were lost",)


def test_more_attached_threads_than_are_followed_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_times, "_MOST_RINGS", 1)
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(3)]
    with CpuTimes() as times:
        for thread in threads:
            thread.start()
        times.attach(os.getpid(), [thread.native_id or 0 for thread in threads])
        over.set()
        for thread in threads:
            thread.join()
        (note,) = times.notes
        assert "begun by 2 of the threads that ran before" in note


def test_a_log_states_them_too(tmp_path: Path) -> None:
    folder = {"LASTBRANCH_ETW_DIR": str(tmp_path / "etw")}
    done = record(tmp_path / "x.etl", *OPTIONS, "--", build(tmp_path, "brief"), "threads", "40", "2000000", env=folder)
    profile, charged = done.profile(), int(done.out) / 1e6
    assert not [thread for thread in profile.threads if thread.cpu_ns is None]
    assert LEAST * charged < stated(profile) < MOST * charged + 0.01


def test_several_files_of_one_recording_state_each_time_once(tmp_path: Path) -> None:
    words = ("--switch-output", "0.3s", "--", build(tmp_path, "brief"), "threads", "4", "250000000")
    done = record(tmp_path / "x.data", *OPTIONS, *words)
    files, charged = sorted(tmp_path.glob("x*.data*")), int(done.out) / 1e6
    each = [stated(open_profile(path)) for path in files]
    assert len(each) > 1, done.err
    assert LEAST * charged < sum(each) < MOST * charged + 0.01
    assert sum(one > 0 for one in each) > 1
