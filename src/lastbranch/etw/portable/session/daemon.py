"""The process of one session: ``python -m lastbranch.etw.portable.session.daemon DESCRIPTOR``, as `spawn` starts it.

One thread serves controllers, writers, readers and sources, and moves buffers from writers to sinks. It never waits: an
answer that depends on others (on a source to be ready, on writers to detach) is work in `Steps`.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from ....errors import FormatError, LastbranchError
from ...flags import EnableProvider, Info, LogFileMode
from ...properties import SessionRequest, SessionState
from ...status import EtwError, Status
from ..protocol import (
    Connection,
    Kind,
    Message,
    Value,
    address_in,
    pack,
    peer_of,
    unpack,
)
from ..request import updated
from ..session_registry import Notice, Registry, notify, process_key, remove
from .logger import Logger
from .loop import Condition, Loop, Steps, Tasks, expected
from .remains import Keeper
from .settings import Settings
from .source_processes import SOURCE_TIMEOUT, SourceProcesses
from .spawn import Order, Started

__all__ = ["Commands", "main"]


# -- what the daemon does on each message


_KERNEL, _BRANCH = "kernel", "branch"
"""Roles of `Settings.commands`. The branch source has branch records for the kernel source until it ends."""
WRITERS_TIMEOUT = 2.0
"""Seconds in which writers must detach when a session stops. Events that they write later are lost."""


class Commands:
    """The session of a daemon: its logger, its sources, its settings, and a method for each request."""

    def __init__(self, daemon: Daemon, registry: Registry, stack: ExitStack) -> None:
        order = daemon.order
        self._daemon, self._registry, self._order = daemon, registry, order
        folder = stack.enter_context(registry.folder("sessions"))
        self.address = address_in(folder, f"{order.key}.sock")
        """The daemon's address. It is valid in processes that inherit the descriptor in it."""
        remove(folder, f"{order.key}.sock")
        self.settings = Settings(order.request, order.targets, registry)
        self.logger = Logger(order.request, order.handle, header_events=self.settings.header_events)
        self._keeper: Keeper | None = None
        if order.request.mode & LogFileMode.BUFFERING_MODE:
            self._keeper = Keeper(
                registry, order.key, order.request, order.handle, self.logger.begun, self.settings.header_events
            )
            self.logger.tell_changes(self._keeper.changed)
        self._sources = SourceProcesses(daemon.loop.post, daemon.loop.watch, daemon.loop.forget, (folder,))
        self._slots: dict[Connection, set[int]] = {}
        self._stopping = self._changing = False

    def handle(self, connection: Connection, message: Message) -> bytes | Steps | None:
        """The body of the answer, steps that return a body, or ``None`` without an answer."""
        if message.kind in (Kind.READY, Kind.FAILED):
            self._sources.answered(connection, message)
            return None
        if message.kind == Kind.BRANCHES:
            self._sources.forward(_KERNEL, message, peer_of(connection.stream).pid)
            return None
        if message.kind not in _HANDLERS:
            raise EtwError("session", Status.NOT_SUPPORTED, f"a session does not handle {message.kind.name}")
        if self._stopping and message.kind not in (Kind.QUERY, Kind.DETACH):
            raise EtwError("session", Status.WMI_INSTANCE_NOT_FOUND, "the session is being stopped")
        body, handler = _HANDLERS[message.kind]
        return handler(self, connection, None if body is None else unpack(body, message.body))

    def gone(self, connection: Connection) -> None:
        """The peer hung up."""
        for slot in () if self._daemon.ended else self._slots.pop(connection, ()):
            try:
                self.logger.detach(slot)
            except Exception as error:  # the loss of its last events must not end the session
                expected(error)
        self._sources.hung_up(connection)
        self._daemon.poll_soon()

    # -- from start to stop

    def begin(self) -> Steps:
        """Start the sources. Returns the answer to START."""
        yield from self._apply()
        return pack(Started(process_key(), self._full_state()))

    def stop(self) -> Steps:
        """End the session, with everything that was written before in its file. Returns the last state."""
        if self._stopping:
            raise EtwError("ControlTrace", Status.WMI_INSTANCE_NOT_FOUND, "the session is being stopped")
        self._stopping = True
        return self._stop()

    def _stop(self) -> Steps:
        with suppress(LastbranchError, OSError):
            self._disable_providers()
        self._sources.stop(_BRANCH)
        yield lambda: not self._sources.runs(_BRANCH), SOURCE_TIMEOUT
        self._sources.stop()
        yield lambda: self._sources.gone, SOURCE_TIMEOUT
        self._sources.kill()
        for connection in list(self._slots):
            self._daemon.loop.post(connection, Kind.ENDED)
        yield lambda: not any(self._slots.values()), WRITERS_TIMEOUT
        try:
            self.logger.stop()
            return self._state()
        finally:
            self._leave()

    def discard(self) -> None:
        """End a session whose start is not complete. It leaves no file."""
        if self._daemon.ended:
            return
        self._sources.kill()
        self.logger.discard()
        self._leave()

    def _disable_providers(self) -> None:
        with self._registry.locked() as held:
            providers = held.enabled_by(self._order.handle)
            for provider in providers:
                held.set_enabled(provider, self._order.handle, None)
        for provider in providers:
            notify(self._registry, provider, Notice(EnableProvider.DISABLE, self._order.handle))

    def _leave(self) -> None:
        self._daemon.ended = True
        if self._keeper is not None:
            self._keeper.end()
        with suppress(LastbranchError, OSError), self._registry.locked() as held:
            held.drop(self._order.key, process_key())

    # -- control

    def _full_state(self) -> SessionState:
        state: SessionState = self.logger.state()
        request = replace(state.request, enable_flags=self.settings.request.enable_flags)
        thread = state.logger_thread or process_key().pid
        return replace(
            state, request=request, handle=self._order.handle, masks=list(self.settings.masks), logger_thread=thread
        )

    def _state(self) -> bytes:
        return pack(self._full_state())

    def _update(self, asked: SessionRequest) -> Steps:
        made = updated(self._full_state().request, asked)
        self.logger.update(made)
        yield from self._apply_change(lambda settings: settings.updated(made))
        return self._state()

    def _flush(self, file: str) -> bytes:
        request = self.logger.state().request
        if request.mode & LogFileMode.BUFFERING_MODE and not file and not request.file:
            raise EtwError(
                "ControlTrace", Status.BAD_PATHNAME, "a buffering session is flushed to a file: give its name"
            )
        self.logger.flush(file)
        return self._state()

    def _increment_file(self) -> bytes:
        if not self.logger.state().request.mode & LogFileMode.FILE_MODE_NEWFILE:
            raise EtwError("ControlTrace", Status.INVALID_PARAMETER, "the session does not write a series of files")
        self.logger.increment_file()
        return self._state()

    def _convert(self) -> bytes:
        if self.logger.state().request.mode & (LogFileMode.REAL_TIME_MODE | LogFileMode.BUFFERING_MODE):
            raise EtwError("ControlTrace", Status.INVALID_PARAMETER, "the session has no file mode to leave")
        self.logger.convert_to_realtime()
        return self._state()

    # -- information

    def _set(self, number: int, value: Any) -> Steps:
        info = _info(number)
        return self._apply_change(lambda settings: settings.with_information(info, value))

    def _query(self, number: int) -> bytes:
        info = _info(number)
        values: dict[int, Any] = {
            Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO: list(self.settings.masks),
            Info.DISALLOW_LIST_QUERY: self.settings.information.get(Info.SET_DISALLOW_LIST, []),
        }
        if info not in values:
            raise EtwError("TraceQueryInformation", Status.NOT_SUPPORTED, f"a session does not report {info.name}")
        if info == Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO:
            self.settings.check_system("TraceQueryInformation")
        return pack(values[info])

    def _apply_change(self, change: Callable[[Settings], Settings]) -> Steps:
        """Apply changed settings, one change at a time. If a source refuses the new flags, restore the old flags."""
        yield lambda: not self._changing, SOURCE_TIMEOUT
        if self._changing:
            raise EtwError("session", Status.BUSY, "another change of the session is not complete")
        before, self._changing = self.settings, True
        try:
            self.settings = change(before)
            yield from self._apply()
        except Exception:
            self.settings = before
            with suppress(EtwError):
                yield from self._apply()
            raise
        finally:
            self._changing = False
        return b""

    def _apply(self) -> Generator[Condition, None, None]:
        yield from self._sources.apply(self.settings.commands(self.address), self.settings.configuration())

    # -- writers, readers and sources

    def _connect_source(self, connection: Connection) -> bytes:
        return self._sources.connect(connection, peer_of(connection.stream).pid)

    def _attach(self, connection: Connection, processor: int) -> None:
        slot, answer, fds = self.logger.attach(peer_of(connection.stream).pid, processor)
        self._slots.setdefault(connection, set()).add(slot)
        self._daemon.loop.post(connection, Kind.ANSWER, answer, fds=tuple(fds))
        self._daemon.poll_soon()

    def _detach(self, connection: Connection, slot: int) -> bytes:
        if slot not in self._slots.get(connection, ()):
            raise EtwError("detach", Status.INVALID_PARAMETER, f"slot {slot} is not this writer's")
        self._slots[connection].discard(slot)
        self.logger.detach(slot)
        return b""

    def _consume(self, connection: Connection) -> None:
        if not self.logger.state().request.mode & LogFileMode.REAL_TIME_MODE:
            raise EtwError("OpenTrace", Status.INVALID_PARAMETER, "the session is not one in real time")
        self._daemon.loop.post(connection, Kind.ANSWER)
        if self._daemon.loop.release(connection):
            self.logger.add_reader(connection.stream)
            self._daemon.poll_soon()


def _info(number: int) -> Info:
    if number not in Info._value2member_map_:
        raise EtwError("session", Status.NOT_SUPPORTED, f"a session has no class {number}")
    return Info(number)


_HANDLERS: dict[Kind, tuple[Any, Callable[[Commands, Connection, Any], bytes | Steps | None]]] = {
    Kind.QUERY: (None, lambda session, _connection, _: session._state()),
    Kind.STOP: (None, lambda session, _connection, _: session.stop()),
    Kind.UPDATE: (SessionRequest, lambda session, _connection, asked: session._update(asked)),
    Kind.FLUSH: (str, lambda session, _connection, file: session._flush(file)),
    Kind.INCREMENT_FILE: (None, lambda session, _connection, _: session._increment_file()),
    Kind.CONVERT_TO_REALTIME: (None, lambda session, _connection, _: session._convert()),
    Kind.SET_INFO: (tuple[int, Value], lambda session, _connection, set_: session._set(*set_)),
    Kind.QUERY_INFO: (int, lambda session, _connection, number: session._query(number)),
    Kind.LBR: (
        tuple[int, list[tuple[UUID, int]]],
        lambda session, _connection, lbr: session._apply_change(lambda settings: settings.with_lbr(*lbr)),
    ),
    Kind.REFRESH: (None, lambda session, _connection, _: session._apply_change(lambda settings: settings)),
    Kind.ATTACH: (int, Commands._attach),
    Kind.DETACH: (int, Commands._detach),
    Kind.CONSUME: (None, lambda session, connection, _: session._consume(connection)),
    Kind.SOURCE: (None, lambda session, connection, _: session._connect_source(connection)),
}
"""Message -> the type of its body, and what answers it."""


COMMIT_TIMEOUT = 60.0
"""Seconds after the start in which the controller must have stored the entry."""
_TROUBLED = 0.1
"""Seconds between polls of a logger that failed."""


class Daemon:
    """Serves the session of ``order`` until it is stopped, or its start is not committed."""

    def __init__(self, order: Order, starter: Connection, stack: ExitStack) -> None:
        self.order = order
        self.ended = False
        self.loop = Loop(self._serve, lambda connection: self._commands.gone(connection))
        self._committed = False
        self._tasks = Tasks()
        self._next_poll: float | None = None
        """When to call the logger at the latest. The first call, which loads a lot, follows the answer to the start."""
        self._trouble = ""
        """The newest error of the logger, which is logged once."""
        self._starter = starter
        self._commands = Commands(self, Registry(order.root), stack)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        try:
            listener.bind(self._commands.address)
            listener.listen(socket.SOMAXCONN)
        except OSError:
            self._commands.discard()
            raise
        self.loop.listen(listener)
        self.loop.watch(self._commands.logger.doorbell, self.poll_soon)
        self.loop.watch(starter.fileno(), self._starter_message)
        self._on_signals(stack)
        self._tasks.begin(self._commands.begin, self._answer_starter)
        self._tasks.begin(self._overdue, _ignore)

    def serve(self) -> None:
        """Run until the session is over."""
        while not self.ended:
            self.loop.turn(self._patience())
            self._poll()
            self._tasks.advance()

    def _patience(self) -> float | None:
        """Seconds until there is work without an event."""
        times = [at for at in (self._tasks.deadline(), self._next_poll) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _serve(self, connection: Connection, message: Message) -> None:
        def answer(body: bytes | None, error: LastbranchError | None) -> None:
            if body is not None:
                self.loop.post(connection, Kind.ANSWER, body)
            elif error is not None:
                self.loop.post(connection, Kind.ANSWER, _reason(error), _status(error))

        self._tasks.begin(lambda: self._commands.handle(connection, message), answer)

    # -- buffers

    def poll_soon(self) -> None:
        """Let the logger look at its writers in this round."""
        self._next_poll = 0.0

    def _poll(self) -> None:
        if self.ended or self._next_poll is None or time.monotonic() < self._next_poll:
            return
        try:
            wanted: float | None = self._commands.logger.poll()
        except Exception as error:
            if repr(error) != self._trouble:
                expected(error)
            self._trouble, wanted = repr(error), _TROUBLED
        self._next_poll = None if wanted is None else time.monotonic() + wanted

    # -- start and end

    def _answer_starter(self, body: bytes | None, error: LastbranchError | None) -> None:
        """Answer the starter: the session runs, or cannot."""
        if error is not None:
            self._starter.post(Kind.ANSWER, _reason(error), _status(error))
            self._commands.discard()
        elif body is not None:
            self._starter.post(Kind.ANSWER, body)
            self.poll_soon()

    def _starter_message(self) -> None:
        """COMMIT, or the end of the process that is starting this session."""
        try:
            messages = self._starter.pump()
        except FormatError:
            messages = None
        if messages == []:
            return
        self.loop.forget(self._starter.fileno())
        self._starter.close()
        if messages is not None and messages[0].kind == Kind.COMMIT:
            self._committed = True
        elif not self.ended:
            self._commands.discard()

    def _overdue(self) -> Steps:
        yield lambda: self._committed, COMMIT_TIMEOUT
        if not self._committed:
            self._commands.discard()
        return b""

    def _on_signals(self, stack: ExitStack) -> None:
        """SIGTERM and SIGINT stop the session as STOP does."""
        waker, wakened = (stack.enter_context(one) for one in socket.socketpair())
        waker.setblocking(False)
        wakened.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, -1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

        def stop() -> None:
            with suppress(BlockingIOError):
                wakened.recv(64)
            self._tasks.begin(self._commands.stop, _ignore)

        self.loop.watch(wakened.fileno(), stop)


def _ignore(_body: bytes | None, _error: LastbranchError | None) -> None:
    """For results that nobody asked for."""


def _reason(error: LastbranchError) -> bytes:
    return (error.reason if isinstance(error, EtwError) else str(error)).encode("utf-8", "replace")


def _status(error: LastbranchError) -> int:
    return error.status if isinstance(error, EtwError) else Status.INVALID_DATA


def main(descriptor: int) -> None:
    """Detach from the parent, read an `Order` from the socket ``descriptor``, and run the ordered session."""
    if os.fork():
        os._exit(0)
    starter = Connection(socket.socket(fileno=descriptor))
    message = starter.receive(COMMIT_TIMEOUT)
    if message is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)
    with ExitStack() as stack:
        try:
            daemon = Daemon(unpack(Order, message.body), starter, stack)
        except Exception as error:
            failure = expected(error)
            starter.send(Kind.ANSWER, _reason(failure), _status(failure))
            return
        daemon.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
