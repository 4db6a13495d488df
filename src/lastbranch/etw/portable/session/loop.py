"""The event loop of a daemon: its descriptors (`Loop`), and work that waits for other processes (`Tasks`).

The descriptors are the listener, the connections, and those passed to `Loop.watch`.
"""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass

from ....errors import FormatError, LastbranchError
from ...status import EtwError, Status, status_of
from ..protocol import Connection, Kind, Message, check_peer

__all__ = ["Condition", "Loop", "Steps", "Tasks", "expected"]


MOST_CONNECTIONS = 4096
_EACH = 3
"""Most descriptors of a connection: its own, and the pool and doorbell of a process that writes."""
_SPARE = 64
"""Descriptors reserved for files and sources."""
_SHORT = 0.01
"""Seconds to wait if the system has no descriptor or memory for a connection."""


class Loop:
    """Calls ``serve`` with each message, and ``gone`` with each connection whose peer hung up, before closing it."""

    def __init__(self, serve: Callable[[Connection, Message], None], gone: Callable[[Connection], None]) -> None:
        self._serve, self._gone = serve, gone
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE
        self._most = min(MOST_CONNECTIONS, room // _EACH)

    def turn(self, timeout: float | None) -> None:
        """Wait until descriptors are ready, at most for ``timeout`` seconds, and serve them."""
        for key, events in self._selector.select(timeout):
            key.data(events)

    # -- descriptors

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call ``call`` whenever ``descriptor`` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _events: call())

    def forget(self, descriptor: int) -> None:
        """Stop watching ``descriptor``."""
        self._selector.unregister(descriptor)

    # -- connections

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from processes of this user."""
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda _events: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            stream, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            time.sleep(_SHORT)
            return
        try:
            check_peer(stream)
        except (EtwError, OSError):
            stream.close()
            return
        connection = Connection(stream)
        self._connections.add(connection)
        self._watch_connection(connection)
        if len(self._connections) == self._most:
            self._selector.unregister(listener)

    def _watch_connection(self, connection: Connection) -> None:
        """Watch a connection for reading, and for writing while messages wait."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.pending else 0)
        try:
            known = self._selector.get_key(connection)
        except KeyError:
            self._selector.register(connection, events, lambda ready: self._ready(connection, ready))
        else:
            if known.events != events:
                self._selector.modify(connection, events, known.data)

    def release(self, connection: Connection) -> bool:
        """Give up a connection, which stays open. False if it was dropped before."""
        if connection not in self._connections:
            return False
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        if len(self._connections) == self._most and self._listener is not None:
            self.listen(self._listener)
        self._connections.discard(connection)
        return True

    def drop(self, connection: Connection) -> None:
        """Hang up."""
        if self.release(connection):
            self._gone(connection)
            connection.close()

    def post(
        self, connection: Connection, kind: Kind, body: bytes = b"", status: int = 0, fds: tuple[int, ...] = ()
    ) -> None:
        """Send without waiting. A peer that has disconnected or does not read is dropped."""
        if connection not in self._connections:
            return
        if connection.post(kind, body, status, fds):
            self._watch_connection(connection)
        else:
            self.drop(connection)

    def _ready(self, connection: Connection, events: int) -> None:
        if connection not in self._connections:  # dropped while an earlier descriptor was served
            return None
        if events & selectors.EVENT_WRITE:
            if not connection.flush():
                return self.drop(connection)
            self._watch_connection(connection)
        if events & selectors.EVENT_READ:
            try:
                messages = connection.pump()
            except FormatError:
                messages = None
            if messages is None:
                return self.drop(connection)
            for message in messages:
                self._serve(connection, message)
        return None


# -- work that depends on others: generators that yield the condition on which they continue


Condition = tuple[Callable[[], bool], float]
"""Continue when this holds, or after so many seconds at most. The work finds out which."""
Steps = Generator[Condition, None, bytes]
"""Work in steps. Its result is the body of an answer."""
Done = Callable[[bytes | None, LastbranchError | None], None]
"""Called with the result or the error; with neither, if there is no answer."""


@dataclass
class _Task:
    steps: Steps
    done: Done
    holds: Callable[[], bool]
    deadline: float


class Tasks:
    """Work in progress."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []

    def begin(self, work: Callable[[], bytes | Steps | None], done: Done) -> None:
        """Do ``work``, at once or in steps, and pass its result to ``done``."""
        try:
            result = work()
        except Exception as error:
            return done(None, expected(error))
        if result is None or isinstance(result, bytes):
            return done(result, None)
        self._tasks.append(_Task(result, done, lambda: True, 0.0))
        return None

    def advance(self) -> None:
        """Continue all work that can."""
        for task in list(self._tasks):
            if not task.holds() and time.monotonic() < task.deadline:
                continue
            try:
                task.holds, seconds = next(task.steps)
                task.deadline = time.monotonic() + seconds
                continue
            except StopIteration as end:
                result: tuple[bytes | None, LastbranchError | None] = end.value, None
            except Exception as error:
                result = None, expected(error)
            self._tasks.remove(task)
            task.done(*result)

    def deadline(self) -> float | None:
        """When `advance` has work, unless a condition changes earlier; 0 if it has work now."""
        if any(task.holds() for task in self._tasks):
            return 0.0
        return min((task.deadline for task in self._tasks), default=None)


def expected(error: Exception) -> LastbranchError:
    """``error`` as an error with a code. Unexpected ones are also logged."""
    if isinstance(error, LastbranchError):
        return error
    if isinstance(error, OSError):
        return EtwError("session", status_of(error), str(error))
    from traceback import print_exception

    with suppress(OSError):  # the log may be on the very disk that is full
        print_exception(error)
    return EtwError("session", Status.INVALID_DATA, f"{type(error).__name__}: {error}")
