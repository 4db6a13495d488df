"""The signal that stops a thread of the program: a signal that changes nothing where it arrives.

While we live, no program gets it: we suppress it at its stop. But one that the kernel sends after we were killed
arrives, and one that is pending until a thread unblocks it can be waited for.

It is not SIGSTOP: when the kernel sends one, it drops a pending SIGCONT of the program. It is not SIGCHLD: its siginfo
can look like that of ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from signal import SIGURG, SIGWINCH

from ..procfs import Stat, status_of

__all__ = ["INTERNAL", "handled_signal", "pending_signals", "quiet_signal"]

_IGNORED = (int(SIGURG), int(SIGWINCH))
"""Programs ignore these unless they handle them."""
INTERNAL = 33
"""C libraries keep it to themselves (glibc's SIGSETXID): a program that calls the kernel through one neither blocks it
nor waits for it. If the signal arrives, it ends the program."""


def quiet_signal(thread: Stat | None) -> int:
    """A signal that a thread, as it was last seen, neither blocks nor handles; 0 where there is none."""
    return _first(_IGNORED, 0 if thread is None else thread.blocked | thread.caught)


def handled_signal(thread: Stat | None) -> int:
    """A signal that the thread handles and does not block; 0 if there is none."""
    # A handler of SIGWINCH looks at the size of its window, and finds the same one.
    return _first(_IGNORED[::-1], 0 if thread is None else thread.blocked)


def _first(numbers: Iterable[int], not_of: int) -> int:
    return next((number for number in numbers if not not_of >> number - 1 & 1), 0)


def pending_signals(tid: int) -> int:
    """The signals that wait for a thread alone, bit n - 1 for signal n."""
    return int(status_of(tid, "SigPnd") or "0", 16)
