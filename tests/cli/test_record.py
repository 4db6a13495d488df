"""``lastbranch record``: exit codes, output files, signals, refusals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, build, needs_ptrace, record
from command_line import run_cli
from lastbranch.capture.launch import Received
from lastbranch.recording.recorders import CLASSES

pytestmark = needs_ptrace
SOFTWARE = ("--engine", "software")
RECORD = [sys.executable, "-m", "lastbranch", "record", "--no-progress", *SOFTWARE]


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
    done = record(tmp_path / "it.data", *SOFTWARE, "--", *words)
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    if code in (126, 127):
        assert done.err.startswith(f"error: {words[0]}: ")
        assert not done.path.exists()


def test_the_program_has_the_standard_streams_and_the_dispositions_it_would_have(tmp_path: Path) -> None:
    command = [
        *RECORD,
        "-o",
        str(tmp_path / "it.data"),
        "--",
        "sh",
        "-c",
        "cat; exec grep -E 'Sig(Ign|Blk|Cgt|Pnd)' /proc/self/status",
    ]
    done = subprocess.run(command, input=b"given\n", capture_output=True, timeout=60, restore_signals=True)
    alone = subprocess.run(command[command.index("--") + 1 :], input=b"given\n", capture_output=True, timeout=60)
    assert done.stdout == alone.stdout


def test_the_default_output_is_a_bound_profile_and_an_old_one_is_kept(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    for _ in range(2):
        subprocess.run([*RECORD, "--", program, "8000"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    names = sorted(p.name for p in tmp_path.iterdir() if p != program)
    assert names == ["lastbranch.tb5", "lastbranch.tb5.old"]
    for verb in (["info"], ["report", "--by", "module"], ["branches"], ["verify"]):
        done = run_cli(*verb, tmp_path / "lastbranch.tb5")
        assert done.code == 0, done.err
    assert program.name in run_cli("branches", tmp_path / "lastbranch.tb5", "--format", "csv").out
    told = run_cli("info", tmp_path / "lastbranch.tb5").out
    for words in ("debug registers", "start-up test", "not known", "weigh"):
        assert words in told


def test_perf_data_is_what_perf_reads(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    done = record(tmp_path / "it.data", *SOFTWARE, "--depth", "8", "--", program, "8000")
    assert done.profile().deepest == 8
    perf = subprocess.run(["perf", "script", "-F", "brstack", "-i", done.path], capture_output=True, text=True)
    if perf.returncode:
        pytest.skip("perf is not installed")
    ours = run_cli("export", done.path, "--to", "brstack").out
    entries = [[word.split("/")[:2] for word in text.split() if "/" in word] for text in (perf.stdout, ours)]
    assert len(entries[0]) >= 8
    assert entries[0] == entries[1]


def started(tmp_path: Path, script: str) -> tuple[subprocess.Popen[str], Path]:
    ready = tmp_path / "ready"
    command = [*RECORD, "-o", str(tmp_path / "it.data"), "--", "sh", "-c", f"{script}; while :; do :; done"]
    ours = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "READY": str(ready)},
        process_group=0,
    )
    end = time.monotonic() + 60
    while not ready.exists():
        if time.monotonic() > end:
            ours.kill()
            raise AssertionError("it did not start")
        time.sleep(0.01)
    return ours, ready


def test_an_interrupt_is_the_programs(tmp_path: Path) -> None:
    with started(tmp_path, "trap 'echo caught; exit 7' INT; : > $READY")[0] as ours:
        ours.send_signal(signal.SIGINT)
        try:
            out, err = ours.communicate(timeout=60)
        finally:
            ours.kill()
    assert (ours.returncode, out) == (7, "caught\n"), err


@pytest.mark.parametrize("stop", [os.kill, os.killpg], ids=["the command alone", "the whole job"])
def test_stopped_and_continued_it_records_on(stop: Callable[[int, int], None], tmp_path: Path) -> None:
    with started(tmp_path, "trap 'echo caught; exit 7' INT; : > $READY")[0] as ours:
        try:
            for number in (signal.SIGSTOP, signal.SIGCONT):
                stop(ours.pid, number)
                time.sleep(0.7)  # longer than any wait of it: only one that is over when it goes on shows the fault
            ours.send_signal(signal.SIGINT)
            out, err = ours.communicate(timeout=60)
        finally:
            ours.kill()
    assert (ours.returncode, out) == (7, "caught\n"), err
    assert "branches in" in err


def test_a_second_interrupt_ends_the_recording_and_lets_the_program_run_on(tmp_path: Path) -> None:
    script = "trap ': > $READY.caught' INT; echo $$ > $READY.pid; : > $READY"
    ours, ready = started(tmp_path, script)
    pid = int(Path(f"{ready}.pid").read_text())
    with ours:
        try:
            ours.send_signal(signal.SIGINT)
            end = time.monotonic() + 60
            while not Path(f"{ready}.caught").exists():
                assert time.monotonic() < end
                time.sleep(0.01)
            time.sleep(0.2)  # two at once count as one
            ours.send_signal(signal.SIGINT)
            ours.wait(60)
        finally:
            ours.kill()
        told = ""
        try:
            while "State:\tR" not in told:  # its trap may wait for the disk
                assert time.monotonic() < end + 60, told
                told = Path(f"/proc/{pid}/status").read_text()
        finally:
            os.kill(pid, signal.SIGKILL)
    assert ours.returncode == 130
    assert "TracerPid:\t0" in told
    assert (tmp_path / "it.data").exists()


def test_programs_that_are_not_to_be_followed_are_let_go(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    words = (
        "--duty",
        "30",
        "--period",
        "1000000",
        "--no-follow",
        "*/branches*",
        "--",
        "sh",
        "-c",
        f"{program} 5000; :",
    )
    done = record(tmp_path / "it.tb5", *SOFTWARE, *words)
    assert done.code == 0, done.err
    assert "program not followed" in run_cli("info", done.path).out


def test_what_the_program_left_behind_lives_on(tmp_path: Path) -> None:
    done = record(tmp_path / "it.data", *SOFTWARE, "--", "sh", "-c", "sleep 30 >/dev/null 2>&1 & echo $!")
    pid = int(done.out)
    try:
        assert "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text()
    finally:
        os.kill(pid, signal.SIGKILL)
    assert done.code == 0


@pytest.mark.parametrize("blocks", [4, 20])
def test_a_full_disk_is_said_to_be_one(blocks: int, tmp_path: Path) -> None:
    """The recording meets the limit; with the second limit, a part of it is kept."""
    words = f"{sys.executable} -B -m lastbranch record --no-progress --engine software -o it.tb5"
    work = "import sys; sum(range(10**7)); sys.setrecursionlimit(10**4)"
    done = subprocess.run(
        ["bash", "-c", f'ulimit -f {blocks}; {words} -- {sys.executable} -B -c "{work}"'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 125, done.stderr
    assert re.search(r"ended early: no disk has room for more, \d+ records? of its end (is|are) lost", done.stderr)


def test_any_period_is_taken(tmp_path: Path) -> None:
    done = record(tmp_path / "it.data", *SOFTWARE, "--period", "1", "--", build(tmp_path, "timer"))
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "give one of"),
        (("-p", "1", "--", "true"), 2, "give one of"),
        (("--period", "5", "--frequency", "5", "--", "true"), 2, "not both"),
        (("--event", "cycles", "--", "true"), 2, "only cpu-clock triggers"),
        (("--filter", "nonsense", "--", "true"), 2, "no branch filter 'nonsense'"),
        (("--filter", "kernel", "--", "true"), 2, "user code only"),
        (("-p", str((1 << 22) + 1)), 125, "does not exist"),
        (("-p", "1,x"), 2, "not a process id"),
        (("-p", f"1,{(1 << 22) + 1}"), 125, "does not exist"),
        (("-p", "1", "--unit", "x"), 2, "give one of"),
        (("--unit", "no-such-unit"), 125, ""),
        (("--cgroup", "/no/such/group"), 125, ""),
        (("--container", "no-such-container"), 125, "no container no-such-container is running"),
    ],
)
def test_refusals(words: tuple[str, ...], code: int, sentence: str, tmp_path: Path) -> None:
    output = tmp_path / "it.tb5"
    done = run_cli("record", *SOFTWARE, "-o", output, *words)
    assert done.code == code
    assert sentence in done.err
    assert not output.exists()


@pytest.mark.parametrize(
    ("dashes", "given"),
    [
        ((), ("-la", "--all")),
        ((), ("-o", "other")),
        ((), ("-p", "1")),
        ((), ("--help",)),
        (("--",), ("--engine", "hardware")),
        (("--",), ("--", "-a")),
        ((), ("--", "-a")),
    ],
)
def test_everything_after_the_command_belongs_to_it(
    given: tuple[str, ...], dashes: tuple[str, ...], tmp_path: Path
) -> None:
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    show.chmod(0o755)
    done = record(tmp_path / "it.data", *SOFTWARE, *dashes, show, *given)
    assert done.code == 0, done.err
    assert done.out.decode().split() == list(given)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it.data", "show"]


@pytest.mark.parametrize("engine", ["auto", "hardware", "software"])
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("mini",), 127, "error: mini: not found in PATH\nhint: did you mean ./mini?\n"),
        (("folder",), 127, "error: folder: not found in PATH\nhint: give its path, or add its folder to PATH\n"),
        (("./folder",), 126, "error: ./folder: is a directory\nhint: name a program in it\n"),
        (("nothing",), 127, "error: nothing: not found in PATH\nhint: give its path, or add its folder to PATH\n"),
        (("./plain",), 126, "error: ./plain: Permission denied\nhint: chmod +x ./plain\n"),
        (("-p", "4194305"), 125, "error: process 4194305 does not exist\nhint: `pgrep -a NAME` shows process ids\n"),
        (("-p", "99999999999999999999"), 125, "error: process 99999999999999999999 does not exist\nhint: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_no_engine_can_record_is_all_that_is_said(
    words: tuple[str, ...], code: int, message: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").touch()
    (tmp_path / "mini").write_text("#!/bin/sh\n")
    (tmp_path / "mini").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    done = run_cli("record", "--engine", engine, "-o", "it.data", *words)
    assert done.code == code
    assert done.err.startswith(message)
    assert not (tmp_path / "it.data").exists()


def test_a_32_bit_program_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "old"
    program.write_bytes(b"\x7fELF\1\1\1" + bytes(45))
    program.chmod(0o755)
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", program)
    assert done.code == 125
    assert f"{program} is a 32-bit program" in done.err


def test_a_process_with_another_tracer_is_refused(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    with subprocess.Popen([program, "100000000"], stdout=subprocess.DEVNULL) as target:
        first = subprocess.Popen(
            [*RECORD, "-o", str(tmp_path / "a.data"), "-p", str(target.pid)], stderr=subprocess.PIPE
        )
        try:
            end = time.monotonic() + 60
            while "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text():
                assert first.poll() is None, first.stderr and first.stderr.read()
                assert time.monotonic() < end
                time.sleep(0.01)
            done = record(tmp_path / "b.data", *SOFTWARE, "-p", str(target.pid))
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=60)
        finally:
            first.kill()
            target.kill()
    assert done.code == 125
    assert "is already traced by process" in done.err


def test_changes_that_tracing_makes_are_warned_of_by_name(tmp_path: Path) -> None:
    debugger = tmp_path / "gdb"
    os.symlink("/bin/true", debugger)
    copy = tmp_path / "strace"
    copy.write_bytes(Path("/bin/true").read_bytes())
    copy.chmod(0o755)
    done = record(tmp_path / "it.data", *SOFTWARE, "--", copy)
    assert f"warning: {copy} is a debugger" in done.err
    source = tmp_path / "leak.c"
    source.write_text("int main(void) { return 0; }")
    if subprocess.run(["gcc", "-fsanitize=address", "-o", tmp_path / "leak", source], capture_output=True).returncode:
        pytest.skip("gcc has no address sanitizer")
    done = record(tmp_path / "it.data", *SOFTWARE, "--", tmp_path / "leak")
    assert "LeakSanitizer" in done.err


def test_every_branch_class_that_the_help_names_is_taken(tmp_path: Path) -> None:
    alone, others = {"any", "call_stack"}, {name.lower() for name in CLASSES} - {"kernel"}
    for names in ({"any"}, {"call_stack"} & others, others - alone):
        done = record(tmp_path / "it.data", *SOFTWARE, "--filter", ",".join(sorted(names)), "--", "true")
        assert done.code == 0, done.err
        told = run_cli("info", done.path).out
        assert [name for name in sorted(names) if name not in told] == []


def test_a_signal_to_the_whole_group_is_no_failure_of_the_collector(tmp_path: Path) -> None:
    """As `timeout -s INT 3 lastbranch record` sends it: to us, then to all, so that the program may be gone already."""
    for _ in range(2):
        command = [*RECORD, "-o", str(tmp_path / "it.data"), "--", "sh", "-c", "echo begun; exec sleep 60"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
        ) as ours:
            assert ours.stdout is not None
            assert ours.stdout.readline() == "begun\n"
            os.killpg(ours.pid, signal.SIGINT)
            _, err = ours.communicate(timeout=60)
        assert "failed" not in err
        assert ours.returncode == 130, err


def test_a_signal_for_a_program_that_is_gone_or_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is lost, and no error."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    Received(signal.SIGINT, by_terminal=False).forward(gone.pid)
    sent: list[tuple[int, ...]] = []

    def refused(*call: int) -> None:
        sent.append(call)
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    Received(signal.SIGINT, by_terminal=False).forward(gone.pid)
    assert sent == [(gone.pid, signal.SIGINT)]
