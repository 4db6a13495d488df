"""Signals that mean the program, or the end of the recording: they are blocked, and whoever waits looks at them.

`signal.sigtimedwait` will not do: where the process is stopped and goes on when its time is over (Ctrl-Z, then fg),
CPython 3.11 gives what happens to be in memory as a signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

__all__ = ["SIGNALS", "Received", "received"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
_SI_KERNEL = 0x80
_SET_SIZE, _INFO_SIZE = 128, 128
"""sizeof(sigset_t) and sizeof(siginfo_t); glibc and musl, 64-bit."""

_libc = ctypes.CDLL(None)


class Received(NamedTuple):
    number: int
    by_terminal: bool
    """The kernel sent it, to the program too."""

    def forward(self, pid: int) -> None:
        """Send it to ``pid``, unless that has it already, is gone (it may have ended by it), or is not ours (sudo)."""
        if not self.by_terminal:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, self.number)


def received(seconds: float = 0.0, *, also: Iterable[int] = ()) -> Received | None:
    """The next of `SIGNALS`, or of ``also``, which must all be blocked.

    ``None``: none came for ``seconds``, or the wait was interrupted."""
    mask = sum(1 << number - 1 for number in (*SIGNALS, *also))
    wanted = ctypes.create_string_buffer(mask.to_bytes(_SET_SIZE, "little"), _SET_SIZE)
    info = (ctypes.c_int * (_INFO_SIZE // 4))()  # si_signo, si_errno, si_code, ...
    whole = int(seconds)
    limit = (ctypes.c_long * 2)(whole, int((seconds - whole) * 1e9))
    if _libc.sigtimedwait(wanted, info, limit) < 0:
        return None
    return Received(info[0], info[2] == _SI_KERNEL)
