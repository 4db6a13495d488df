"""Runs the command line in this process or in one of its own."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from unittest import mock

import pytest

CRASHED = 70


@dataclass
class Ran:
    """A finished run of the command line."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()


def run_cli(*args: str | Path, stdin: bytes = b"", alone: bool = False, env: dict[str, str] | None = None) -> Ran:
    """Anything but an exit is the test's failure, and so is the exit of an error that nobody foresaw."""
    words = [str(a) for a in args]
    if alone:
        command = [sys.executable, "-m", "lastbranch", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=120, env={**os.environ, **(env or {})})
        assert done.returncode != CRASHED, done.stderr.decode(errors="replace")
        return Ran(done.returncode, done.stdout, done.stderr.decode(errors="replace"))
    got = io.BytesIO()
    code, err = _run_here(words, io.TextIOWrapper(got, "utf-8", newline="\n"), stdin)
    return Ran(code, got.getvalue(), err)


def _run_here(words: list[str], out: io.TextIOWrapper, stdin: bytes = b"") -> tuple[int, str]:
    """(exit code, standard error) of the command line in this process, with ``out`` as its standard output."""
    from lastbranch.cli import cli, run

    err, given = io.StringIO(), io.TextIOWrapper(io.BytesIO(stdin))
    patches = mock.patch.object(sys, "argv", ["lastbranch", *words]), mock.patch.object(sys, "stdin", given)
    with patches[0], patches[1], redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        run(cli, "lastbranch")
    out.flush()
    code = end.value.code
    assert code is None or isinstance(code, int), code
    assert code != CRASHED, err.getvalue()
    return code or 0, err.getvalue()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Makes a hang a failure (where the system has SIGALRM)."""

    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_number: int, _frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _terminal(width: int, height: int) -> tuple[int, int]:
    """Both sides of a terminal of this size: the user's side, and the program's side."""
    pty, fcntl, termios = (pytest.importorskip(name) for name in ("pty", "fcntl", "termios"))
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))
    return main, side


def run_in_terminal(*words: str | Path, width: int = 80, env: dict[str, str]) -> Ran:
    """The command line in this process, with the environment ``env``; its standard output is a terminal."""
    main, side = _terminal(width, 40)
    shown = list[bytes]()

    def read() -> None:
        with open(main, "rb", buffering=0) as terminal, suppress(OSError):  # EIO: nobody has the other side open
            while part := terminal.read(1 << 16):
                shown.append(part)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        with (
            open(side, "w", encoding=env.get("PYTHONIOENCODING", "utf-8")) as out,
            mock.patch.object(sys, "__stdout__", out),
            mock.patch.dict(os.environ, env, clear=True),
        ):
            code, err = _run_here([str(word) for word in words], out)
    finally:
        reading.join()
    return Ran(code, b"".join(shown), err)


def in_terminal(
    *command: str | Path,
    width: int = 80,
    height: int = 40,
    env: dict[str, str] | None = None,
    keyboard: bool = False,
) -> tuple[int, bytes, str]:
    """(exit code, what the terminal got, standard error) of a program whose standard output is a terminal of that size.

    ``keyboard``: its standard input is the terminal, too, at which nobody types. An empty read before the program has
    ended is never taken for the end: the program may pause.
    """
    main, side = _terminal(width, height)
    shown = b""
    with (
        open(main, "rb", buffering=0) as terminal,
        TemporaryFile() as errors,
        subprocess.Popen(
            [*map(str, command)], stdin=side if keyboard else None, stdout=side, stderr=errors, env=env
        ) as program,
    ):
        os.close(side)
        while True:
            ended = program.poll() is not None
            try:
                part = terminal.read(1 << 16) or b""
            except OSError:  # EIO: nobody has the other side open
                part = b""
            shown += part
            if ended and not part:
                break
            if not part:
                time.sleep(0.01)
        errors.seek(0)
        return program.returncode, shown, errors.read().decode()
