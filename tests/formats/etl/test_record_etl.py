"""``lastbranch record -o x.etl``: on a trace session, by the rules of any other recording."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, build, children, needs_ptrace, record
from command_line import run_cli
from lastbranch.errors import FormatError
from lastbranch.etw.flags import Control
from lastbranch.etw.portable.kernel import PortableKernel
from lastbranch.formats.etl import Event, TraceLog
from lastbranch.lbr import flag
from lastbranch.model import BytesSource
from lastbranch.opening import open_profile
from private_registry import registry_at

pytestmark = needs_ptrace
SOFTWARE = ("--engine", "software")
OFTEN = ("--duty", "50", "--period", "1000000")
RECORD = [sys.executable, "-m", "lastbranch", "record", "--no-progress", *SOFTWARE]
PATIENCE = 60


@pytest.fixture(autouse=True)
def registry(tmp_path: Path) -> Iterator[None]:
    with registry_at(tmp_path / "etw"):
        yield
        kernel = PortableKernel()
        for state in kernel.sessions():
            kernel.control(Control.STOP, state.handle, None)


def sessions() -> list[str]:
    return [state.request.name for state in PortableKernel().sessions()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with branches, made once. A slow machine may need a longer program for the first burst."""
    folder = tmp_path_factory.mktemp("recorded")
    program = build(folder, "threads")
    for rounds in ("1", "4", "16", "64"):
        words = (*SOFTWARE, *OFTEN, "--", program, rounds)
        done = record(folder / "it.etl", *words, env={"LASTBRANCH_ETW_DIR": str(folder / "etw")})
        assert done.code == 0, done.err
        if done.profile().entries:
            break
    return done.path


VERBS = [["branches"], *(["report", "--by", by] for by in ("process", "thread", "module", "function"))]


def said(verb: list[str], path: Path) -> list[dict[str, str]]:
    done = run_cli(*verb, path, "--format", "csv")
    assert done.code == 0
    return list(csv.DictReader(io.StringIO(done.out)))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_the_log_and_a_tb5_of_it_say_the_same(recorded: Path, verb: list[str]) -> None:
    other = recorded.with_suffix(".tb5")
    if not other.exists():
        assert run_cli("convert", recorded, other).code == 0
    ours = said(verb, recorded)
    assert ours == said(verb, other)
    assert len(ours) > 0


def test_a_log_of_the_tb5_says_the_same(recorded: Path, tmp_path: Path) -> None:
    assert run_cli("convert", recorded, tmp_path / "it.tb5").code == 0
    assert run_cli("convert", tmp_path / "it.tb5", tmp_path / "again.etl").code == 0
    for verb in VERBS:
        assert said(verb, tmp_path / "again.etl") == said(verb, recorded)


def test_nothing_is_claimed_that_was_not_measured(recorded: Path) -> None:
    profile = open_profile(recorded)
    entries = json.loads(run_cli("branches", recorded, "--format", "json").out)
    assert entries
    assert {row["mispredicted_percent"] for row in entries} == {None}
    assert {row["cycles"] for row in entries} == {None}
    for batch in profile.batches():
        words = batch["branch_flags"]
        assert not (flag(words, "mispred") | flag(words, "predicted") | flag(words, "cycles")).any()
        assert (flag(words, "type") > 0).all()


def found(path: Path) -> set[str]:
    """The findings of `check`, none of which may be an error."""
    checked = run_cli("check", path, "--format", "json")
    assert checked.code == 0, checked.out
    return {row["finding"] for row in json.loads(checked.out)}


def test_the_log_is_complete(recorded: Path) -> None:
    assert found(recorded) <= {"few samples"}
    log = TraceLog(BytesSource(recorded.read_bytes()))
    assert (log.events_lost, log.buffers_lost, log.skipped) == (0, 0, 0)
    assert log.header.session_name.startswith("lastbranch-")
    told = run_cli("info", recorded).out
    for words in ("lastbranch software LBR", "debug registers", "not known", "weigh", "type, privilege"):
        assert words in told
    profile = open_profile(recorded)
    (module,) = [m for m in profile.modules if m.short.startswith("threads")]
    assert module.segments
    assert module.build_id or not module.binary


def test_interrupts_trigger_the_records(recorded: Path) -> None:
    """Each record stands behind its interrupt, which has the burst's end as its time and address: straight on from the
    newest branch."""
    newest: dict[int, Event] = {}  # by processor: the two may lie in buffers that others' stand between
    for event in TraceLog(BytesSource(recorded.read_bytes())).events():
        if event.hook == 0x0C20:
            before = newest[event.cpu]
            assert (before.hook, before.time) == (0x0F2F, event.time)
            assert int.from_bytes(event.payload[:8], "little") == event.time
            newest_to = int.from_bytes(event.payload[32:40], "little")
            assert 0 <= int.from_bytes(before.payload[:8], "little") - newest_to < 4096
        newest[event.cpu] = event


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sh", "-c", "exit 41"], 41),
        (["sh", "-c", "kill -9 $$"], 137),
        (["/nothing/of/the/kind"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_codes(words: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "it.etl").write_bytes(b"older")
    done = record(tmp_path / "it.etl", *SOFTWARE, "--", *words)
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    kept = sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("it.etl"))
    if code in (126, 127):  # nothing was recorded, and nothing is touched
        assert kept == ["it.etl"]
        assert done.path.read_bytes() == b"older"
    else:
        assert kept == ["it.etl", "it.etl.old"]
        assert (tmp_path / "it.etl.old").read_bytes() == b"older"
        assert open_profile(done.path).processes
    assert sessions() == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    done = record(tmp_path / "none" / "it.etl", *SOFTWARE, "--", "sh", "-c", f": > {tmp_path}/ran")
    assert done.code == 125
    assert "cannot be written" in done.err
    assert not (tmp_path / "ran").exists()
    assert sessions() == []


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "it.etl").symlink_to(tmp_path / "victim")
    done = record(tmp_path / "it.etl", *SOFTWARE, "--", "true")
    assert done.code == 0, done.err
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert not (tmp_path / "it.etl").is_symlink()
    assert (tmp_path / "it.etl").stat().st_mode & 0o777 == 0o600


@contextmanager
def started(tmp_path: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """A recording of a shell script that has come to its end and goes on in a loop."""
    ready = tmp_path / "ready"
    command = [*RECORD, "-o", str(tmp_path / "it.etl"), "--", "sh", "-c", f"{script}; while :; do :; done"]
    ours = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "READY": str(ready)},
    )
    with ours:
        try:
            wait_until(ready.exists, ours)
            yield ours
        finally:
            ours.kill()


def wait_until(true: Callable[[], bool], ours: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        assert ours.poll() is None
        time.sleep(0.01)


def test_an_interrupt_is_the_programs(tmp_path: Path) -> None:
    with started(tmp_path, "trap 'echo caught; exit 7' INT; : > $READY") as ours:
        ours.send_signal(signal.SIGINT)
        out, err = ours.communicate(timeout=PATIENCE)
    assert (ours.returncode, out) == (7, "caught\n"), err
    assert open_profile(tmp_path / "it.etl").samples >= 0
    assert sessions() == []


def test_a_second_interrupt_ends_the_recording_and_lets_the_program_run_on(tmp_path: Path) -> None:
    with started(tmp_path, "trap ': > $READY.first' INT; echo $$ > $READY.pid; : > $READY") as ours:
        ours.send_signal(signal.SIGINT)
        wait_until((tmp_path / "ready.first").exists, ours)
        time.sleep(0.2)  # two at once count as one
        ours.send_signal(signal.SIGINT)
        ours.wait(PATIENCE)
        pid = int((tmp_path / "ready.pid").read_text())
        told = Path(f"/proc/{pid}/status").read_text()
        os.kill(pid, signal.SIGKILL)
    assert ours.returncode == 130
    assert "TracerPid:\t0" in told
    assert open_profile(tmp_path / "it.etl").processes


def test_a_process_that_runs_already(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    with subprocess.Popen([program, "1000000000"]) as target:
        try:
            for seconds in ("1", "4", "16"):
                done = record(
                    tmp_path / "it.etl", *SOFTWARE, *OFTEN, "--allow-risk", "--duration", seconds, "-p", str(target.pid)
                )
                assert done.code == 0, done.err
                if done.profile().entries:
                    break
            assert target.poll() is None
        finally:
            target.kill()
    profile = done.profile()
    assert profile.entries
    assert {process.name for process in profile.processes if process.pid == target.pid} == {program.name[:15]}
    assert found(done.path) <= {"few samples", "sampling noise"}


def has_events() -> bool:
    """Whether the session has more than its header when it is flushed."""
    kernel = PortableKernel()
    return any(kernel.control(Control.FLUSH, s.handle, None).buffers_written > 1 for s in kernel.sessions())


def test_a_killed_collector_leaves_what_it_had_written(tmp_path: Path) -> None:
    with started(tmp_path, ": > $READY") as ours:
        wait_until(has_events, ours)
        (collector,) = children(ours.pid)
        os.kill(collector, signal.SIGKILL)
        _, err = ours.communicate(timeout=PATIENCE)
    assert ours.returncode == 125, err
    assert "collector was killed" in err
    assert open_profile(tmp_path / "it.etl").processes
    assert sessions() == []


def test_a_killed_recorder_leaves_a_session_that_can_be_stopped(tmp_path: Path) -> None:
    def has_processes() -> bool:
        """The first events are about the machine."""
        with suppress(FormatError):
            return has_events() and bool(open_profile(tmp_path / "it.etl").processes)
        return False

    with started(tmp_path, ": > $READY") as ours:
        wait_until(has_processes, ours)
        ours.kill()
    (name,) = sessions()
    assert name.startswith("lastbranch-")
    state = PortableKernel().control(Control.STOP, name.upper(), None)
    assert state.request.file == str(tmp_path / "it.etl")
    assert sessions() == []
    profile = open_profile(tmp_path / "it.etl")
    assert profile.processes
    assert not profile.damage
