"""Starts the daemon of a session: the request to it, and its answer."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import FormatError
from ...properties import SessionRequest, SessionState
from ...status import EtwError, Status, status_of
from ..protocol import Connection, Kind, pack, unpack
from ..session_registry import Entry, ProcessKey, Registry

if TYPE_CHECKING:
    import subprocess

__all__ = ["Order", "Started", "spawn"]


START_TIMEOUT = 60.0
"""Seconds in which a daemon must start its session, including its sources."""


@dataclass(frozen=True, slots=True)
class Order:
    """The body of START: what a daemon needs to know."""

    root: Path
    handle: int
    key: str
    """Key of the session's entry, and name of the socket."""
    request: SessionRequest
    """As adjusted."""
    targets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The daemon's answer to START."""

    daemon: ProcessKey
    state: SessionState


def spawn(registry: Registry, entry: Entry, order: Order) -> SessionState:
    """Start the daemon of a reserved entry, and make it the owner of the entry.

    Raises `EtwError` with the daemon's code if it could not start the session. The daemon waits for COMMIT; if this
    process ends before that, the daemon ends too.
    """
    ours, theirs = socket.socketpair()
    with Connection(ours) as connection, _log(registry, entry) as log:
        with theirs:
            process = _launch(theirs.fileno(), log)
        try:
            answer, _ = connection.call(Kind.START, pack(order), name="StartTrace", timeout=START_TIMEOUT)
        except EtwError as error:
            if isinstance(error.__cause__, OSError | FormatError) or error.status == Status.WMI_INSTANCE_NOT_FOUND:
                said = os.pread(log, 1 << 16, 0).decode(errors="replace").strip().rpartition("\n")[2]
                raise EtwError("StartTrace", Status.NO_SYSTEM_RESOURCES, f"its process ended: {said}") from error
            process.kill()
            raise
        finally:
            process.wait()  # it has forked the daemon, or has failed
        started: Started = unpack(Started, answer)
        with registry.locked() as held:
            held.put(entry.of_daemon(started.daemon))
        try:
            connection.send(Kind.COMMIT)
        except OSError as error:
            raise EtwError("StartTrace", Status.TIMEOUT, f"the daemon did not wait: {error}") from error
    return started.state


@contextmanager
def _log(registry: Registry, entry: Entry) -> Iterator[int]:
    """A descriptor of the file for the error output of a daemon."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with registry.folder("sessions") as folder:
        log = os.open(f"{entry.key}.log", flags, 0o600, dir_fd=folder)
    try:
        yield log
    finally:
        os.close(log)


def _launch(descriptor: int, log: int) -> subprocess.Popen[bytes]:
    """Start a process that forks the daemon and ends, so that the daemon is no child of the caller."""
    import subprocess  # daemons do without it

    command = [sys.executable, "-m", "lastbranch.etw.portable.session.daemon", str(descriptor)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(descriptor,),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise EtwError("StartTrace", status_of(error), f"no daemon: {error}") from error
