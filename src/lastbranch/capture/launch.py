"""Launching the program to record: recording starts at its first instruction, in the environment it would have anyway.
Also the signals that go to the program or end the recording."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from . import ptrace

__all__ = [
    "Interruptions",
    "Launched",
    "Received",
    "Repeats",
    "end_with_parent",
    "exit_code",
    "held_signals",
    "interruptible",
    "launch",
    "received",
]

_PR_SET_PDEATHSIG = 1
_OURS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; a program must not inherit that."""


class Launched:
    """A child that executes ``command`` once it is released."""

    def __init__(self, command: Sequence[str], pid: int, go: int, failure: int) -> None:
        self.command, self.pid, self._go, self._failure = command, pid, go, failure

    def release(self) -> None:
        os.write(self._go, b"g")
        os.close(self._go)

    def abandon(self) -> None:
        """Let it end without executing anything."""
        os.close(self._go)
        os.close(self._failure)
        os.waitpid(self.pid, 0)

    def failed(self) -> OSError | None:
        """Why the command could not be executed, once the child has ended without an exec."""
        code = os.read(self._failure, 16)
        os.close(self._failure)
        return OSError(int(code), os.strerror(int(code))) if code else None

    def exit_code(self, options: int = 0) -> int | None:
        """Wait for its end (``options`` of waitpid(2)) and return the exit code; ``None`` while it runs."""
        pid, status = os.waitpid(self.pid, options)
        return exit_code(status) if pid else None


def launch(command: Sequence[str], unblocked: Iterable[int], *, traced: bool = True) -> Launched:
    """Fork a child, and trace it: the kernel kills a traced child when we end. ``unblocked`` is the child's signal
    mask."""
    waits, go = os.pipe()
    failure, fails = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            for number in _OURS:
                signal.signal(number, signal.SIG_DFL)
            if os.read(waits, 1):
                os.execvp(command[0], list(command))
        except OSError as error:
            os.write(fails, str(error.errno or 0).encode())
        finally:
            os._exit(127)
    os.close(waits)
    os.close(fails)
    if traced:
        ptrace.seize(pid, ptrace.FOLLOW | ptrace.EXITKILL)
    return Launched(command, pid, go, failure)


def exit_code(status: int) -> int:
    """The exit code of a wait ``status`` as a shell reports it: 128+n where signal n ended the program."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process ``number`` when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


# -- signals to the program or to the recorder: all stay blocked, and the recorder asks for pending signals
#
# CPython's `signal.sigtimedwait` is no use: in 3.11, if the process is stopped and continued after the timeout (Ctrl-Z,
# then fg), the call returns uninitialized memory as a signal.


_FAULTS = (signal.SIGILL, signal.SIGTRAP, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS)
_NEVER_END = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, *_OURS)
_STOP = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
SIGNALS = tuple(sorted(signal.valid_signals() - {*_FAULTS, *_NEVER_END, *_STOP}))
"""All that would end this process, and can be blocked."""
_SI_KERNEL, _SI_PID = 0x80, 4
_SET_SIZE, _INFO_SIZE = 128, 128
"""sizeof(sigset_t) and sizeof(siginfo_t); glibc and musl, 64-bit."""

_libc = ctypes.CDLL(None)


class Received(NamedTuple):
    number: int
    by_terminal: bool
    """The kernel sent it, to the whole foreground job and so to the program, too."""
    sender: int = 0
    """Its process."""

    def forward(self, pid: int) -> None:
        """Send the signal to ``pid``, unless the process has the signal already, has ended, or is not ours (sudo)."""
        if not self.by_terminal:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, self.number)


def received(seconds: float = 0.0, *, also: Iterable[int] = ()) -> Received | None:
    """The next of `SIGNALS` and ``also`` that are blocked; ``None`` where none came within ``seconds``, or the wait was
    interrupted."""
    if not seconds and not signal.sigpending():  # which is so at each tick, and what follows takes 0.1 ms
        return None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    mask = sum(1 << number - 1 for number in blocked.intersection((*SIGNALS, *also)))
    wanted = ctypes.create_string_buffer(mask.to_bytes(_SET_SIZE, "little"), _SET_SIZE)
    info = (ctypes.c_int * (_INFO_SIZE // 4))()  # si_signo, si_errno, si_code, ...
    whole = int(seconds)
    limit = (ctypes.c_long * 2)(whole, int((seconds - whole) * 1e9))
    if _libc.sigtimedwait(wanted, info, limit) < 0:
        return None
    return Received(info[0], info[2] == _SI_KERNEL, info[_SI_PID])


_held: list[set[int]] = []


@contextmanager
def held_signals() -> Iterator[set[int]]:
    """Block `SIGNALS`, so that `received` gets them; signals left at the end are dropped. Gives the previous signal
    mask, also if the signals are held already."""
    if _held:
        yield _held[0]
        return
    _held.append(signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))
    try:
        yield _held[0]
    finally:
        while received() is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, _held.pop())


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT through, and no other signal that is held."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if _held and signal.SIGINT not in _held[0]:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Repeats:
    """Recognizes one signal that comes several times. timeout(1) sends its signal to a process, and at once to the
    whole group; and what comes to a group comes to the collector directly, and by way of its parent."""

    _AT_ONCE, _BY_OTHERS = 0.02, 0.5
    """Seconds between two of the same sender, and of different ones."""

    def __init__(self) -> None:
        self._last, self._at = Received(0, False), 0.0

    def is_repeat(self, found: Received) -> bool:
        """Whether ``found`` is the last signal again, which it becomes."""
        last, since = self._last, time.monotonic() - self._at
        self._last, self._at = found, self._at + since
        return found.number == last.number and since < (
            self._AT_ONCE if found.sender == last.sender else self._BY_OTHERS
        )


class Interruptions:
    """Signals during a recording. The first signal goes to the launched program ``child``, if any; the next signal ends
    the recording. Under nohup(1) a SIGHUP only goes to the program."""

    def __init__(self, child: int | None) -> None:
        self._child, self._count, self._repeats = child, 0, Repeats()
        self._ignores_hang_up = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self.last = 0
        """The newest signal."""

    def enough(self) -> bool:
        """Take the signals that have come; whether they end the recording."""
        while (found := received()) is not None:
            if self._repeats.is_repeat(found):
                continue
            if found.number == signal.SIGHUP and self._ignores_hang_up:
                if self._child is not None:
                    found.forward(self._child)
                continue
            self._count, self.last = self._count + 1, found.number
            if self._child is not None and self._count == 1:
                found.forward(self._child)
        return self._count > (self._child is not None)
