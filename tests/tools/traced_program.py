"""A traced thread that runs when a test wants it to."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from capture_tools import FREESTANDING, build
from lastbranch.capture import ptrace
from lastbranch.capture.launch import launch
from lastbranch.capture.ptrace import event_of, next_stop, signal_of, stopped
from lastbranch.capture.software.tree import Process, Thread


@contextmanager
def in_main_loop(folder: Path, name: str = "branches", flags: tuple[str, ...] = FREESTANDING) -> Iterator[Thread]:
    """The thread of the program ``name``, built in ``folder``, stopped in its main loop. It is killed at the end."""
    program = build(folder, name, *flags)
    child = launch([str(program), "100000000"], signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    child.release()
    status = next_stop(child.pid, 5)
    assert status is not None
    assert event_of(status) == ptrace.EVENT_EXEC
    thread = Thread(child.pid, Process(child.pid))
    ptrace.cont(thread.tid)
    signal.sigtimedwait([], 0.1)
    halt(thread)
    yield thread
    thread.process.forget()
    with suppress(ProcessLookupError):
        os.kill(thread.tid, signal.SIGKILL)
    with suppress(ptrace.Gone):
        while (status := next_stop(thread.tid, 5)) is not None and stopped(status):
            pass


def halt(thread: Thread) -> None:
    """Stop ``thread``, which runs, and may get signals."""
    ptrace.interrupt(thread.tid)
    while (status := next_stop(thread.tid, 5)) is not None and not event_of(status):
        ptrace.cont(thread.tid, signal_of(status))
    assert status is not None
    assert event_of(status) == ptrace.EVENT_STOP
