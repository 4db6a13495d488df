"""The source processes of a session, which its daemon starts, configures, waits for and ends.

A source connects to the daemon, gets its configuration, and answers READY when events flow, or FAILED with a code. It
writes through writers of its own, like any provider, and ends with its connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...status import EtwError, Status
from ..protocol import Connection, Kind, Message, unpack
from .loop import Condition

if TYPE_CHECKING:
    import subprocess

__all__ = ["SourceProcesses", "SOURCE_TIMEOUT"]


SOURCE_TIMEOUT = 30.0
"""Seconds in which a source must apply a configuration, and in which it must end."""


@dataclass(eq=False)
class _Source:
    process: subprocess.Popen[bytes]
    exit: int
    """A descriptor that becomes readable when the process ends."""
    connection: Connection | None = None
    configuration: bytes = b""
    """The newest configuration that was sent to the source."""
    asked: int = 1
    answered: int = 0
    error: EtwError | None = None
    stopping: bool = False


class SourceProcesses:
    """Sources by role. ``post`` sends a message without waiting; ``watch`` and ``forget`` are those of `Loop`."""

    def __init__(
        self,
        post: Callable[[Connection, Kind, bytes], None],
        watch: Callable[[int, Callable[[], None]], None],
        forget: Callable[[int], None],
        descriptors: tuple[int, ...] = (),
    ) -> None:
        self._post, self._watch, self._forget = post, watch, forget
        self._descriptors = descriptors
        """Descriptors that sources inherit."""
        self._running: dict[str, _Source] = {}

    @property
    def gone(self) -> bool:
        """Whether no source runs."""
        return not self._running

    def apply(self, wanted: dict[str, list[str]], configuration: bytes) -> Generator[Condition, None, None]:
        """Run the sources ``wanted`` (role -> command) with ``configuration``, and no others.

        Continues when each has applied it. Raises the `EtwError` of the first that could not.
        """
        ending = [source for role, source in self._running.items() if role not in wanted]
        for source in ending:
            self._stop(source)
        asked = {role: self._ask(role, command, configuration) for role, command in wanted.items()}
        numbers = {source: source.asked for source in asked.values()}

        def settled() -> bool:
            return all(source.answered >= number for source, number in numbers.items()) and not any(
                source in self._running.values() for source in ending
            )

        if numbers or ending:
            yield settled, SOURCE_TIMEOUT
        for role, source in asked.items():
            if source.answered < numbers[source]:
                raise EtwError("session", Status.TIMEOUT, f"the {role} source was not ready in {SOURCE_TIMEOUT:g} s")
            if source.error is not None:
                raise source.error

    def _ask(self, role: str, command: list[str], configuration: bytes) -> _Source:
        source = self._running.get(role)
        if source is None or source.stopping:
            source = self._running[role] = self._start(role, command)
        elif source.configuration != configuration:
            source.asked += 1
            if source.connection is not None:
                self._post(source.connection, Kind.CONFIGURE, configuration)
        source.configuration = configuration
        return source

    def _start(self, role: str, command: list[str]) -> _Source:
        import subprocess  # sessions without sources do without it

        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=self._descriptors, cwd="/")
        source = _Source(process, os.pidfd_open(process.pid))
        self._watch(source.exit, lambda: self._drop_source(role, source))
        return source

    def connect(self, connection: Connection, pid: int) -> bytes:
        """A source connected. Returns its configuration. Raises `EtwError` 5 for a process that is no source."""
        for source in self._running.values():
            if source.process.pid == pid and source.connection is None and not source.stopping:
                source.connection = connection
                source.asked = 1
                return source.configuration
        raise EtwError("source", Status.ACCESS_DENIED, f"process {pid} is no source of this session")

    def answered(self, connection: Connection, message: Message) -> None:
        """Handle READY or FAILED."""
        for source in self._running.values():
            if source.connection is connection:
                source.answered += 1
                source.error = None
                if message.kind == Kind.FAILED:
                    source.error = EtwError("source", *unpack(tuple[int, str], message.body))

    def forward(self, role: str, message: Message, pid: int) -> None:
        """Pass a message of process ``pid`` on to the source of ``role``, if there is one. Raises `EtwError` 5 for a
        process that is no source."""
        if pid not in {source.process.pid for source in self._running.values()}:
            raise EtwError("source", Status.ACCESS_DENIED, f"process {pid} is no source of this session")
        source = self._running.get(role)
        if source is not None and source.connection is not None and not source.stopping:
            self._post(source.connection, message.kind, message.body)

    def hung_up(self, connection: Connection) -> None:
        """Handle a hang-up: the source is about to end."""
        for source in self._running.values():
            if source.connection is connection:
                source.connection, source.stopping = None, True

    def stop(self, *roles: str) -> None:
        """Ask those of ``roles``, or all, to write what is left and end; see `gone`."""
        for role, source in self._running.items():
            if not roles or role in roles:
                self._stop(source)

    def runs(self, role: str) -> bool:
        """Whether there is a source of ``role``."""
        return role in self._running

    def _stop(self, source: _Source) -> None:
        source.stopping = True
        if source.connection is not None:
            self._post(source.connection, Kind.SOURCE_STOP, b"")
        else:
            source.process.terminate()

    def kill(self) -> None:
        """Kill the processes that still run."""
        for role, source in list(self._running.items()):
            source.process.kill()
            self._drop_source(role, source)

    def _drop_source(self, role: str, source: _Source) -> None:
        if source.exit < 0:
            return
        source.process.wait()
        self._forget(source.exit)
        os.close(source.exit)
        source.exit = -1
        if self._running.get(role) is source:
            del self._running[role]
        if source.answered < source.asked:
            source.answered = source.asked
            why = f"the {role} source ended with code {source.process.returncode}"
            source.error = source.error or EtwError("session", Status.NO_SYSTEM_RESOURCES, why)
