"""`lastbranch record` on the fake Windows: the recipe's calls and its file, the program's exit code, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import etl_builder as eb
from command_line import Ran
from etl_kernel_logs import PAIR, WORLD, lbr, pmc
from lastbranch.capture import traceable
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.windows.kernel import WindowsKernel
from lastbranch.recording import recorders
from lastbranch.recording import windows_session as recording
from lastbranch.recording.windows_session import SESSION
from windows_fake import LBR, FakeWindows, example, fake_windows, lbr_calls, stopped_sessions
from windows_memory import LOST, FakeSession

NOTHING = (sys.executable, "-S", "-c", "")
ALL = ("--filter", "user,kernel,any")
"""No filter: what the recipe records."""

Record = Callable[..., Ran]


@pytest.fixture(scope="module")
def log() -> bytes:
    """A log of one process and the kernel, with a counter interrupt and its branch record."""
    trace = eb.Trace()
    for cpu, event in [*WORLD, (0, pmc(200, 0x140001010, 420, 6)), (0, lbr(200, 42, 420, 0, PAIR))]:
        trace.add(cpu, event)
    return bytes(trace)


@pytest.fixture
def windows(log: bytes) -> Iterator[FakeWindows]:
    with fake_windows(log) as made:
        yield made


@pytest.fixture
def record(run: Callable[..., Ran], tmp_path: Path) -> Record:
    """``record(words..., to="x.etl")``: the verb, with its output in a folder of its own."""
    (tmp_path / "out").mkdir()

    def recorded(*words: str, to: str = "x.etl") -> Ran:
        return run("record", "-o", tmp_path / "out" / to, *words)

    return recorded


def outputs(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "out").iterdir())


def asked(sessions: list[FakeSession]) -> list[tuple[Any, ...]]:
    """What sessions were asked for and configured to, but their names and files."""
    return [(s.numbers, s.masks, s.lbr_flags, s.lbr_hooks) for s in sessions]


def test_the_calls_and_the_file_are_the_recipe_s(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: bytes
) -> None:
    with fake_windows(log) as ours:
        sessions = stopped_sessions(monkeypatch, ours)
        assert record(*ALL, "--", *NOTHING).code == 0
    with fake_windows(log) as theirs:
        recipes = stopped_sessions(monkeypatch, theirs)
        recipe = example("lbr_recipe")
        recipe.record(str(tmp_path / "recipe.etl"), 65536, "input()")
        merged = recipe.with_identities(str(tmp_path / "recipe.etl"))
    assert lbr_calls(ours) == lbr_calls(theirs)
    assert len(lbr_calls(ours)) == 8
    assert asked(sessions) == asked(recipes)
    assert [flags for _, _, flags in ours.merged] == [flags for _, _, flags in theirs.merged] == [1]
    assert (tmp_path / "out" / "x.etl").read_bytes() == Path(merged).read_bytes() == log
    assert outputs(tmp_path) == ["x.etl"]


def test_default_branches_are_those_of_programs(
    windows: FakeWindows, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = stopped_sessions(monkeypatch, windows)
    assert record("--", *NOTHING).code == 0
    assert record("--call-graph", "lbr", "--", *NOTHING).code == 0
    assert [s.lbr_flags for s in sessions] == [0x1, 0x1 | 0x1C4 | 0x200]  # kernel left out; and call-stack mode
    assert [s.masks[:2] for s in sessions] == [[7, 0x400]] * 2
    assert {s.name for s in sessions} == {SESSION}


@pytest.mark.parametrize(("event", "source"), [((), 30), (("--event", "branchinstructions"), 6), (("--event", "6"), 6)])
def test_the_source_and_its_interval(windows: FakeWindows, record: Record, event: tuple[str, ...], source: int) -> None:
    done = record(*event, "--period", "10007", "--", *NOTHING)
    assert done.code == 0
    assert (windows.configured, windows.intervals[source]) == ([source], 10007)
    name = next(name for number, name, *_ in windows.sources if number == source)
    assert f"a branch record every 10007 {name}" in done.err


def test_before_the_function_the_classes_do(
    windows: FakeWindows, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows.missing.add(LBR)
    sessions = stopped_sessions(monkeypatch, windows)
    assert record("--", *NOTHING).code == 0
    assert (sessions[0].lbr_hooks, sessions[0].lbr_flags) == ([0x0F2F], 1)


# -- outputs


def test_an_older_file_is_kept(windows: FakeWindows, record: Record, tmp_path: Path, log: bytes) -> None:
    for _ in range(2):
        assert record("--", *NOTHING).code == 0
    assert outputs(tmp_path) == ["x.etl", "x.etl.old"]


@pytest.mark.parametrize("name", ["x.tb5", "x"])
def test_a_tb5_has_the_log_s_branches(
    windows: FakeWindows, record: Record, run: Callable[..., Ran], tmp_path: Path, name: str
) -> None:
    done = record("--", *NOTHING, to=name)
    assert done.code == 0, done.err
    assert outputs(tmp_path) == [name]
    assert "app.exe+0x1100" in run("branches", tmp_path / "out" / name, "--format", "csv").out


def test_a_log_that_cannot_be_converted_is_kept(windows: FakeWindows, record: Record, tmp_path: Path) -> None:
    windows.log_of = lambda session: b"no trace log"
    done = record("--", *NOTHING, to="x.tb5")
    assert done.code == 125
    (kept,) = outputs(tmp_path)
    assert f"{kept}; `lastbranch convert" in done.err
    assert (tmp_path / "out" / kept).read_bytes() == b"no trace log"


def test_without_the_toolkit_the_log_stays_as_it_is(
    windows: FakeWindows, record: Record, tmp_path: Path, log: bytes
) -> None:
    windows.toolkit = None
    done = record("--", "sh", "-c", "exit 3")
    assert done.code == 3
    assert "note: images have no identities" in done.err
    assert "Windows Performance Toolkit" in done.err
    assert (tmp_path / "out" / "x.etl").read_bytes() == log


def test_losses_are_told(windows: FakeWindows, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = windows.ControlTraceW

    def control(handle: int, name_at: int, at: int, code: int) -> int:
        windows.sessions[handle].numbers[LOST] = 12
        return stop(handle, name_at, at, code)

    monkeypatch.setattr(windows, "ControlTraceW", control)
    assert "note: 12 events were lost" in record("--", *NOTHING).err


# -- the program


def test_the_program_s_exit_code(windows: FakeWindows, record: Record) -> None:
    done = record("--", "sh", "-c", "exit 41")
    assert done.code == 41
    assert done.err.splitlines()[-1].endswith("x.etl")


@pytest.mark.parametrize(
    ("words", "code", "started"),
    [(["/nothing/of/the/kind"], 127, False), (["/etc/passwd"], 126, False), (["garbage"], 126, True)],
)
def test_a_command_that_cannot_be_executed(
    windows: FakeWindows, record: Record, tmp_path: Path, words: list[str], code: int, started: bool
) -> None:
    if started:  # only the attempt shows it
        (tmp_path / "garbage").write_bytes(b"\x7fELF and nothing")
        (tmp_path / "garbage").chmod(0o755)
        words = [str(tmp_path / "garbage")]
    done = record("--", *words)
    assert done.code == code
    assert done.err.startswith(f"error: {words[0]}: ")
    assert ("StartTraceW" in windows.names) == started
    assert windows.sessions == {}
    assert outputs(tmp_path) == []


class Child:
    """A program: what each `wait` does; the last is repeated."""

    def __init__(self, *waits: int | Callable[[], None] | None) -> None:
        self.waits, self.asked = list(waits), 0

    def wait(self, seconds: float) -> int:
        self.asked += 1
        what = self.waits.pop(0) if len(self.waits) > 1 else self.waits[0]
        if isinstance(what, int):
            return what
        if what is not None:
            what()
        raise subprocess.TimeoutExpired("program", seconds)


def launched(monkeypatch: pytest.MonkeyPatch, child: Child, windows: FakeWindows) -> list[list[int]]:
    """Let ``child`` be every program; the sessions that run at its start, with their masks."""
    seen: list[list[int]] = []

    def launch(command: list[str]) -> Child:
        seen.extend(session.masks[:2] for session in windows.sessions.values())
        return child

    monkeypatch.setattr(recording, "_launched", launch)
    return seen


def test_the_program_starts_when_all_is_recorded(
    windows: FakeWindows, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = launched(monkeypatch, Child(None, None, 0), windows)
    assert record("--", "sh").code == 0
    assert seen == [[7, 0x400]]


def test_an_exception_of_windows_is_an_exit_code_with_a_sign(
    windows: FakeWindows, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may exit with any 32 bits, but Python can only exit with a C int: the bits are the same."""
    launched(monkeypatch, Child(0xC0000005), windows)
    assert record("--", "sh").code == 0xC0000005 - 2**32


def test_the_second_interrupt_ends_the_recording(
    windows: FakeWindows, record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first is the program's; the program runs on."""

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    child, before = Child(None, interrupt, None, interrupt, None), signal.getsignal(signal.SIGINT)
    launched(monkeypatch, child, windows)
    assert record("--", "sh").code == 0
    assert child.asked == 4
    assert windows.sessions == {}
    assert outputs(tmp_path) == ["x.etl"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("words", [("-a",), ("--", "sh")])
def test_a_duration_ends_the_recording_and_not_the_program(
    windows: FakeWindows, record: Record, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    launched(monkeypatch, Child(None), windows)
    ran = record("--duration", "0.01", *words)
    assert (ran.code, "note: the recording has ended, and sh runs on" in ran.err) == (0, words[0] == "--")
    assert windows.sessions == {}
    assert windows.last("ControlTraceW").arguments[3] == 1


def test_a_failure_of_ours_stops_the_session(
    windows: FakeWindows, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError("a fault")

    launched(monkeypatch, Child(fails), windows)
    assert record("--", "sh").code
    assert windows.sessions == {}


# -- refusals: nothing runs, nothing is left


def _no_privilege(windows: FakeWindows) -> None:
    windows.has_privilege = False


def _no_administrator(windows: FakeWindows) -> None:
    windows.admin = False


def _code(export: str, code: int) -> Callable[[FakeWindows], None]:
    return lambda windows: windows.codes.update({export: code})


def _in_use(windows: FakeWindows) -> None:
    WindowsKernel(windows).start(SessionRequest(SESSION.upper(), file="C:\\traces\\other.etl"))


def _system_loggers(windows: FakeWindows) -> None:
    for n in range(8):
        WindowsKernel(windows).start(SessionRequest(f"s{n}", file="C:\\traces\\other.etl", mode=0x2000000))


def _no_counters(windows: FakeWindows) -> None:
    windows.sources = [(0, "Timer", 1221, 1000000)]


@pytest.mark.parametrize(
    ("state", "says", "hint"),
    [
        (_no_privilege, "SeSystemProfilePrivilege is missing", "elevated prompt"),
        (_no_administrator, "sessions of system events need an administrator", "elevated prompt"),
        (
            _code(LBR, 50),
            "this processor has no last branch records, or a hypervisor hides them: TraceConfigureLastBranchRecord",
            "",
        ),
        (_code("TraceSetInformation", 170), "another session uses the processor's counters", "session list"),
        (_in_use, f"a session called {SESSION} runs already", f"lastbranch session stop {SESSION}"),
        (_system_loggers, "too many sessions of system events run", "session list"),
        (_no_counters, "no profile source of this machine counts branches; there are: Timer", "hypervisor"),
        (_code("StartTraceW", 31337), "the session failed: StartTrace: Windows' text of 31337 (code 31337)", ""),
    ],
)
def test_what_windows_refuses(
    windows: FakeWindows, record: Record, tmp_path: Path, state: Callable[[FakeWindows], None], says: str, hint: str
) -> None:
    state(windows)
    before = set(windows.sessions)
    done = record("--", "sh", "-c", f"echo run > {tmp_path}/run")
    assert done.code == 125
    message, *hints = done.err.splitlines()
    assert message.startswith(f"error: {says}")
    assert hint in "".join(hints)
    assert "Traceback" not in done.err
    assert set(windows.sessions) == before
    assert outputs(tmp_path) == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--frequency", "99", "--", "sh"), 2, "--frequency: on Windows a counter interrupts at a fixed period"),
        (("--call-graph", "fp", "--", "sh"), 2, "--call-graph fp: on Windows call stacks come from the branch records"),
        (("--call-graph", "dwarf", "--", "sh"), 2, "--call-graph dwarf"),
        (("--event", "Nothing", "--", "sh"), 2, "--event Nothing: no profile source of this machine; there are: Timer"),
        (("--period", "5", "--", "sh"), 2, "--period 5: BranchInstructionRetired takes 4096 to 2147483647"),
        (("--engine", "software", "--", "sh"), 125, "the software engine is not for"),
        (("-p", "1"), 125, "-p: on Windows the processor's branch records are those of all processes"),
    ],
)
def test_what_only_other_recorders_can(
    windows: FakeWindows, record: Record, tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    done = record(*words)
    assert (done.code, done.err.startswith(f"error: {says}")) == (code, True), done.err
    assert {"StartTraceW", "TraceSetInformation"}.isdisjoint(windows.names)
    assert outputs(tmp_path) == []


def test_formats_are_the_platform_s(windows: FakeWindows, record: Record) -> None:
    done = record("--", "sh", to="x.data")
    assert done.code == 2
    assert "a recording is a TB5 (a name in .tb5, or without an extension) or a trace log (.etl), not .data" in done.err


def test_other_systems_record_nothing(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(recorders.RECORDERS, sys.platform)
    done = record("--", "sh")
    assert done.code == 125
    assert done.err.startswith(f"error: recording needs Linux or Windows; this is {sys.platform}")


def test_top_is_of_linux(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traceable, "sys", SimpleNamespace(platform="win32"))
    done = run("top", "--once", "sh")
    assert done.code == 125
    assert done.err.startswith("error: this way to record needs Linux; this is win32")


# -- on a Python of Windows

_AS_WINDOWS = """
import ctypes, os, signal, sys
# These look at the system when they are imported:
import click, glob, inspect, json, numpy, pathlib, platform, queue, shutil, subprocess, tempfile, uuid
for name in ("fcntl", "grp", "posix", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGPIPE", "SIGXFSZ", "pthread_sigmask", "setitimer"):
    delattr(signal, name)
for name in ("fork", "geteuid", "getuid", "sysconf", "waitpid", "O_NOFOLLOW", "O_DIRECTORY", "WNOHANG"):
    delattr(os, name)
load = ctypes.CDLL
def library(name, *rest, **named):
    if name is None:
        raise TypeError("LoadLibrary takes a name")
    return load(name, *rest, **named)
ctypes.CDLL = ctypes.WinDLL = library  # which do not find a DLL here
ctypes.get_last_error = lambda: 0
class Version(tuple):
    build = 26100
sys.getwindowsversion = lambda: Version((10, 0, 26100, 2))
sys.platform = "win32"
from lastbranch.recording import recorders
from lastbranch.capture import Options
from lastbranch.cli import record
from lastbranch.errors import LastbranchError
try:
    recorders.record_file([sys.executable], "x.etl", Options())
except LastbranchError as error:
    print(type(error).__name__, error)
"""


def test_nothing_of_other_systems_is_imported(tmp_path: Path) -> None:
    """Up to the first call of a DLL."""
    done = subprocess.run([sys.executable, "-c", _AS_WINDOWS], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith("CollectorError the session failed: TraceQueryInformation: "), done.stderr
    assert os.listdir(tmp_path) == []
