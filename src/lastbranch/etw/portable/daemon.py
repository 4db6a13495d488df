"""The process of one session: ``python -m lastbranch.etw.portable.daemon DESCRIPTOR``, as `spawn` starts it.

One thread serves controllers, writers, readers and sources, and moves buffers between their ends. Nothing in it waits:
an answer that needs others first (a source to be ready, writers to let go) is work in `steps`.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress

from ...errors import FormatError, LastbranchError
from ..status import EtwError, Status
from .commands import Commands
from .loop import Loop
from .protocol import Connection, Kind, Message
from .registry import Registry
from .spawn import Order
from .steps import Steps, Tasks, expected

__all__ = ["Daemon", "main"]

COMMIT_TIMEOUT = 60.0
"""Seconds after the start in which the controller must have written the entry down."""
_TROUBLED = 0.1
"""Seconds between polls of a logger that failed."""


class Daemon:
    """Serves the session of ``order`` until it is stopped, or its start is not committed."""

    def __init__(self, order: Order, boss: Connection, stack: ExitStack) -> None:
        self.order = order
        self.ended = False
        self.loop = Loop(self._serve, lambda connection: self._commands.gone(connection))
        self._committed = False
        self._tasks = Tasks()
        self._next_poll: float | None = None
        """When the logger is to be called at the latest; first when the start was answered, as it loads a lot then."""
        self._trouble = ""
        """The newest error of the logger: told once."""
        self._boss = boss
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
        self.loop.watch(boss.fileno(), self._boss_says)
        self._on_signals(stack)
        self._tasks.begin(self._commands.begin, self._started)
        self._tasks.begin(self._overdue, _nobody)

    def serve(self) -> None:
        """Until the session is over."""
        while not self.ended:
            self.loop.turn(self._patience())
            self._poll()
            self._tasks.advance()

    def _patience(self) -> float | None:
        """Seconds until there is something to do without being called."""
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
        """Have the logger look at its writers in this round."""
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

    def _started(self, body: bytes | None, error: LastbranchError | None) -> None:
        """The session runs, or cannot."""
        if error is not None:
            self._boss.post(Kind.ANSWER, _reason(error), _status(error))
            self._commands.discard()
        elif body is not None:
            self._boss.post(Kind.ANSWER, body)
            self.poll_soon()

    def _boss_says(self) -> None:
        """COMMIT, or the end of the process that starts this session."""
        try:
            messages = self._boss.pump()
        except FormatError:
            messages = None
        if messages == []:
            return
        self.loop.forget(self._boss.fileno())
        self._boss.close()
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
            self._tasks.begin(self._commands.stop, _nobody)

        self.loop.watch(wakened.fileno(), stop)


def _nobody(_body: bytes | None, _error: LastbranchError | None) -> None:
    """Who is told what nobody asked for."""


def _reason(error: LastbranchError) -> bytes:
    return (error.reason if isinstance(error, EtwError) else str(error)).encode("utf-8", "replace")


def _status(error: LastbranchError) -> int:
    return error.status if isinstance(error, EtwError) else Status.INVALID_DATA


def main(descriptor: int) -> None:
    """Take the order from the socket ``descriptor`` and serve it, as nobody's child."""
    if os.fork():
        os._exit(0)
    boss = Connection(socket.socket(fileno=descriptor))
    message = boss.receive(COMMIT_TIMEOUT)
    if message is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)
    with ExitStack() as stack:
        try:
            daemon = Daemon(Order.unpack(message.body), boss, stack)
        except Exception as error:
            told = expected(error)
            boss.send(Kind.ANSWER, _reason(told), _status(told))
            return
        daemon.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
