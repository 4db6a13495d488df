"""Starting a program so that it is traced from its first instruction, and is otherwise as it would be."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Sequence

from . import ptrace

__all__ = ["Launched", "end_with_parent", "launch"]

_PR_SET_PDEATHSIG = 1
_OURS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; a program must not inherit that."""


class Launched:
    """A child that waits to be let go; then it executes its command."""

    def __init__(self, pid: int, go: int, failure: int) -> None:
        self.pid, self._go, self._failure = pid, go, failure

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


def launch(command: Sequence[str], unblocked: Iterable[int], *, traced: bool = True) -> Launched:
    """Fork a child and trace it, to be killed if we end. ``unblocked`` is the signal mask that it gets."""
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
    return Launched(pid, go, failure)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process ``number`` when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
