"""What cannot be recorded is refused in a sentence with the way out; what tracing changes is warned of by name."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from capture_tools import DENY, FREESTANDING, build, needs_ptrace, record
from command_line import run_cli
from lastbranch.capture import traceable

pytestmark = needs_ptrace
SOFTWARE = ("--engine", "software")
OLD_CODE = """.globl _start
_start: mov $30000000, %ecx
1: dec %ecx
 jnz 1b
 mov $1, %eax
 mov $5, %ebx
 int $0x80
"""


@contextmanager
def running(*words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


# -- Yama


@pytest.mark.parametrize(
    ("scope", "cause", "way_out"),
    [
        ("1", "ptrace_scope is 1: only its launcher may trace a program", "lastbranch record COMMAND"),
        ("2", "ptrace_scope is 2: only a process with CAP_SYS_PTRACE", "root"),
        ("3", "ptrace_scope is 3: no process may be traced", "reboot"),
        ("0", "Operation not permitted", "as its user"),
        (None, "Operation not permitted", "as its user"),
    ],
)
def test_a_process_that_may_not_be_attached_to(
    scope: str | None, cause: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "ptrace_scope"
    if scope is not None:
        setting.write_text(scope + "\n")
    monkeypatch.setattr(traceable, "YAMA", str(setting))
    refused = OSError(errno.EPERM, os.strerror(errno.EPERM))
    error = traceable.describe_attach(os.getpid(), refused)
    assert cause in str(error)
    assert way_out in (error.hint or "")
    launched = traceable.describe_launch(refused)
    if scope in ("2", "3"):
        assert cause in str(launched)
        assert way_out in (launched.hint or "")
    else:
        assert "yama" not in str(launched), "a child may be traced there: it is something else"
        assert "SYS_PTRACE" in (launched.hint or "")


# -- seccomp


def test_without_ptrace(tmp_path: Path) -> None:
    words = ["record", *SOFTWARE, "--no-progress", "-o", str(tmp_path / "it.tb5"), "--", "true"]
    done = subprocess.run([sys.executable, "-c", DENY.format(101), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 125
    assert done.stderr.startswith("error: programs cannot be traced here: ")
    assert "--cap-add SYS_PTRACE" in done.stderr
    assert not (tmp_path / "it.tb5").exists()


# -- programs


@pytest.mark.parametrize(
    ("machine", "bits", "said"),
    [
        (183, 2, "an AArch64 program"),
        (243, 2, "a RISC-V program"),
        (40, 1, "an Arm program"),
        (3, 1, "a 32-bit program"),
        (62, 1, "a 32-bit program"),
        (999, 2, "a (ELF machine 999) program"),
    ],
)
def test_code_of_another_kind(machine: int, bits: int, said: str, tmp_path: Path) -> None:
    program = tmp_path / "app"
    program.write_bytes(b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + struct.pack("<HH", 2, machine) + bytes(44))
    program.chmod(0o755)
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", program)
    assert done.code == 125
    assert f"{program} is {said}; only 64-bit x86 code is recorded" in done.err
    assert "hint: build it for x86-64" in done.err
    assert not done.path.exists()


@pytest.fixture
def old_program(tmp_path: Path) -> Path:
    """A real 32-bit program."""
    (tmp_path / "old.s").write_text(OLD_CODE)
    for command in (["as", "--32", "-o", "old.o", "old.s"], ["ld", "-m", "elf_i386", "-o", "old", "old.o"]):
        if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
            pytest.skip("as and ld make no 32-bit programs here")
    with suppress(OSError):
        if subprocess.run([tmp_path / "old"]).returncode == 5:
            return tmp_path / "old"
    pytest.skip("the kernel runs no 32-bit programs")


def test_a_32_bit_program_that_is_executed_on_the_way_runs_without_bursts(old_program: Path, tmp_path: Path) -> None:
    for _ in range(5):
        words = (*SOFTWARE, "--duty", "30", "--period", "1000000", "--", "sh", "-c", f"{old_program}; echo $?")
        done = record(tmp_path / "it.tb5", *words)
        assert (done.code, done.out) == (0, b"5\n"), done.err
        known = run_cli("info", done.path).out
        if "32-bit code" in known:
            return
    raise AssertionError(known)


def test_a_32_bit_process_is_not_attached_to(old_program: Path, tmp_path: Path) -> None:
    text = OLD_CODE.replace("jnz 1b", "jmp 1b")
    (tmp_path / "old.s").write_text(text)
    subprocess.run(["as", "--32", "-o", "old.o", "old.s"], cwd=tmp_path, check=True)
    subprocess.run(["ld", "-m", "elf_i386", "-o", "spins", "old.o"], cwd=tmp_path, check=True)
    with running(tmp_path / "spins") as target:
        done = record(tmp_path / "it.tb5", *SOFTWARE, "-p", str(target.pid))
        assert target.poll() is None
    assert done.code == 125
    assert "is a 32-bit program" in done.err


@pytest.mark.parametrize(
    ("make", "code", "said", "hint"),
    [
        (lambda path: None, 127, "No such file or directory", None),
        (lambda path: path.write_text("#!/no/such/interpreter\n"), 127, "the interpreter", None),
        (lambda path: path.mkdir(), 126, "is a directory", "name a program in it"),
        (lambda path: path.write_text("true\n"), 126, "Exec format error", "#!/bin/sh"),
    ],
)
def test_what_cannot_be_executed(make: object, code: int, said: str, hint: str | None, tmp_path: Path) -> None:
    program = tmp_path / "app"
    make(program)  # type: ignore[operator]
    if program.is_file():
        program.chmod(0o755)
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", program)
    assert done.code == code, done.err
    assert f"error: {program}: {said}" in done.err
    assert hint is None or f"hint: {hint}" in done.err or hint in done.err
    assert not done.path.exists()


def test_what_may_not_be_executed(tmp_path: Path) -> None:
    program = tmp_path / "app"
    program.write_text("#!/bin/sh\n")
    done = record(tmp_path / "it.tb5", *SOFTWARE, "--", program)
    assert done.code == 126
    assert f"hint: chmod +x {program}" in done.err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGTRAP, signal.SIGABRT])
def test_death_by_a_signal_is_handed_on(number: signal.Signals, tmp_path: Path) -> None:
    done = record(tmp_path / "it.data", *SOFTWARE, "--", "sh", "-c", f"kill -{int(number)} $$")
    assert done.code == 128 + number, done.err


@pytest.mark.parametrize("place", ["folder", "missing/it.tb5", "file/it.tb5"])
@pytest.mark.parametrize("engine", ["auto", "software"])
def test_nothing_is_executed_for_an_output_that_cannot_be_made(place: str, engine: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    done = record(tmp_path / place, "--engine", engine, "--", "sh", "-c", f"echo ran; touch {tmp_path}/ran")
    assert done.code == 125
    assert done.out == b""
    assert not (tmp_path / "ran").exists()
    why = "is a folder and cannot be replaced" if place == "folder" else "cannot be written: "
    assert done.err.startswith(f"error: {tmp_path / place} {why}"), done.err
    assert "hint: " in done.err


# -- other tracers


@pytest.mark.parametrize("tracer", ["strace", "gdb"])
def test_a_process_that_another_program_traces(tracer: str, tmp_path: Path) -> None:
    if shutil.which(tracer) is None:
        pytest.skip(f"{tracer} is not installed")
    program = build(tmp_path, "branches", *FREESTANDING)
    commands = {
        "strace": ("strace", "-o", "/dev/null", "-p"),
        "gdb": ("gdb", "--batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", "continue", "-p"),
    }
    with running(program, "1000000000") as target, running(*commands[tracer], str(target.pid)) as other:
        end = time.monotonic() + 60
        while f"TracerPid:\t{other.pid}\n" not in Path(f"/proc/{target.pid}/status").read_text():
            if other.poll() is not None:
                pytest.skip(f"{tracer} cannot attach here")
            assert time.monotonic() < end
            time.sleep(0.01)
        done = record(tmp_path / "it.tb5", *SOFTWARE, "-p", str(target.pid))
    assert done.code == 125
    assert f"process {target.pid} is already traced by process {other.pid} ({tracer})" in done.err
    assert f"hint: end {tracer} first" in done.err


def test_a_tracer_in_a_recorded_program_is_warned_of(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    done = record(tmp_path / "it.data", *SOFTWARE, "--", "strace", "-o", str(tmp_path / "log"), "true")
    assert "strace is a debugger: it cannot trace a program that is already traced" in done.err


# -- rights that are lost


def _without_tracing_rights() -> None:
    """PR_CAPBSET_DROP of CAP_SYS_PTRACE: gone at the next exec."""
    import ctypes

    assert ctypes.CDLL(None).prctl(24, 19, 0, 0, 0) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make such programs")
@pytest.mark.parametrize("kind", ["set-user-id", "set-group-id", "file capabilities"])
def test_rights_that_a_traced_program_does_not_get_are_warned_of(kind: str, tmp_path: Path) -> None:
    program = tmp_path / "app"
    shutil.copy("/bin/true", program)
    program.chmod({"set-user-id": 0o4755, "set-group-id": 0o2755}.get(kind, 0o755))
    if kind == "file capabilities":
        # struct vfs_cap_data: revision 2, effective; CAP_NET_RAW permitted
        try:
            os.setxattr(program, "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
        except OSError as error:
            pytest.skip(f"no file capabilities here: {error.strerror}")
    command = [sys.executable, "-m", "lastbranch", "record", *SOFTWARE, "--no-progress", "-o", tmp_path / "it.data"]
    both = []
    for before in (None, _without_tracing_rights):
        done = subprocess.run([*command, "--", program], capture_output=True, text=True, timeout=60, preexec_fn=before)
        assert done.returncode == 0, done.stderr
        both.append(done.stderr)
    assert "warning: " not in both[0], "root's programs keep them"
    assert f"warning: {program}" in both[1]
    assert kind in both[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make such programs")
@pytest.mark.parametrize("mode", [0o4755, 0o4711])
def test_a_program_whose_memory_is_hidden_is_warned_of(mode: int, tmp_path: Path) -> None:
    """It runs as another user, whose memory a recorder without CAP_SYS_PTRACE may not read: nothing is recorded."""
    program = tmp_path / "app"
    shutil.copy("/usr/bin/id", program)
    os.chown(program, 65534, -1)
    program.chmod(mode)
    command = [sys.executable, "-m", "lastbranch", "record", *SOFTWARE, "--no-progress", "-o", tmp_path / "it.data"]
    both = []
    for before in (None, _without_tracing_rights):
        done = subprocess.run(
            [*command, "--", program, "-un"], capture_output=True, text=True, timeout=60, preexec_fn=before
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "nobody\n", "it has the rights that it has without us"
        both.append(done.stderr)
    assert "cannot be recorded" not in both[0]
    assert "app cannot be recorded: the kernel hides its memory" in both[1]


@pytest.mark.parametrize("sanitizer", ["address", "leak"])
def test_programs_with_leak_sanitizer_run_and_are_warned_of(sanitizer: str, tmp_path: Path) -> None:
    source, program = tmp_path / "leak.c", tmp_path / "leak"
    source.write_text('#include <stdio.h>\nint main(void) { puts("ran"); return fflush(stdout); }')
    if subprocess.run(["gcc", f"-fsanitize={sanitizer}", "-o", program, source], capture_output=True).returncode:
        pytest.skip(f"gcc has no {sanitizer} sanitizer")
    done = record(tmp_path / "it.data", *SOFTWARE, "--", program)
    assert f"warning: {program} has LeakSanitizer" in done.err
    assert "LSAN_OPTIONS=detect_leaks=0" in done.err
    assert done.out == b"ran\n"
    done = record(tmp_path / "it.data", *SOFTWARE, "--", program, env={"LSAN_OPTIONS": "detect_leaks=0"})
    assert (done.code, done.out) == (0, b"ran\n"), done.err
