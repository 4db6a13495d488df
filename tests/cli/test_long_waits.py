"""Verbs say what they wait for if a pipe has no writer yet, or no data comes out of the pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line import Ran, time_limit
from lastbranch import cli, demo, long_waits

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def told(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> list[str]:
    """Messages to the user from now on; ``then`` is done when that happens, in another thread."""
    found = list[str]()

    def tell(what: str) -> None:
        found.append(what)
        then()

    monkeypatch.setattr(long_waits, "SECONDS", 0.05)
    monkeypatch.setattr(cli, "_tell_wait", tell)
    return found


@pytest.mark.parametrize(
    "words",
    [
        "info FIFO",
        "report FIFO",
        "check FIFO",
        "verify FIFO",
        "dump FIFO",
        "export --to counts FIFO",
        "diff FILE FIFO",
        "convert FIFO OUT",
        "query FIFO 1",
    ],
)
def test_who_is_to_write(words: str, fifo: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(demo.capture()).read_bytes()
    found = told(monkeypatch, lambda: fifo.write_bytes(data))
    names = {"FIFO": fifo, "FILE": demo.capture(), "OUT": fifo.with_name("out.tb5"), "1": "select 1"}
    with time_limit(60):
        ran = run(*(names.get(word, word) for word in words.split()))
    assert (ran.code, found) == (0, [f"a program that writes to {fifo}"]), ran.err


def test_who_is_to_write_a_profile(fifo: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, lambda: fifo.write_bytes(b"main:1:1\n 1: 1\n"))
    with time_limit(60):
        ran = run("export", "--check", fifo, "--binary", sys.executable)
    assert found == [f"a program that writes to {fifo}"], ran.err


def test_who_is_to_read(fifo: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    got = list[bytes]()
    found = told(monkeypatch, lambda: got.append(fifo.read_bytes()))
    with time_limit(60):
        ran = run("export", "--to", "pprof", "-o", fifo, demo.capture())
    assert (ran.code, found) == (0, [f"a program that reads {fifo}"]), ran.err


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command line with a pipe as its standard input, which is not patient."""
    program = "from lastbranch import cli, long_waits; long_waits.SECONDS = 0.1; cli.main()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with time_limit(120), subprocess.Popen([sys.executable, "-c", program, *words], **pipes) as running:  # type: ignore[call-overload]
        try:
            yield running
        finally:
            running.kill()


def test_what_standard_input_lacks() -> None:
    data = Path(demo.capture()).read_bytes()
    with started("info", "-") as running:
        assert running.stderr.readline() == b"note: waiting for data on standard input\n"
        running.stdin.write(data[:1000])
        running.stdin.flush()
        assert running.stderr.readline() == b"note: waiting for the end of standard input\n"
        out, err = running.communicate(data[1000:])
    assert (running.returncode, b"waiting" in err, b"perf.data" in out) == (0, False, True)


@pytest.mark.parametrize("words", [["info"], ["top", "--plain", "-i"]])
def test_waiting_ends_by_ctrl_c(words: list[str]) -> None:
    with started(*words, "-") as running:
        assert running.stderr.readline() == b"note: waiting for data on standard input\n"
        running.send_signal(signal.SIGINT)
        assert running.wait() in (0, 130)  # of top it is a way to end


def test_a_fifo_that_nobody_writes_to_is_left_by_ctrl_c(fifo: Path) -> None:
    with started("info", str(fifo)) as running:
        assert running.stderr.readline() == f"note: waiting for a program that writes to {fifo}\n".encode()
        running.send_signal(signal.SIGINT)
        assert running.wait() == 130


def test_short_waits_are_not_told(fifo: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, lambda: None)
    monkeypatch.setattr(long_waits, "SECONDS", 600)
    assert run("info", "-", stdin=Path(demo.capture()).read_bytes()).code == 0
    assert found == []
