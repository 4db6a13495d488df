"""Runs the command line in this process or in one of its own."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
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
    from lastbranch.cli import cli, run

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n"), io.StringIO()
    given = io.TextIOWrapper(io.BytesIO(stdin))
    patches = mock.patch.object(sys, "argv", ["lastbranch", *words]), mock.patch.object(sys, "stdin", given)
    with patches[0], patches[1], redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        run(cli, "lastbranch")
    out.flush()
    code = end.value.code
    assert code is None or isinstance(code, int), code
    assert code != CRASHED, err.getvalue()
    assert isinstance(out.buffer, io.BytesIO)
    return Ran(code or 0, out.buffer.getvalue(), err.getvalue())


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


def in_terminal(
    *command: str | Path,
    width: int = 80,
    height: int = 40,
    env: dict[str, str] | None = None,
    keyboard: bool = False,
) -> tuple[int, bytes, str]:
    """(exit code, what the terminal got, standard error) of a program whose standard output is a terminal of that size.

    ``keyboard``: its standard input is the terminal, too, at which nobody types.
    What a read gets before the program has ended is never taken for the end: it may be a pause.
    """
    pty, fcntl, termios = (pytest.importorskip(name) for name in ("pty", "fcntl", "termios"))
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))
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
